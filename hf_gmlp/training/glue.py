"""What run_glue.py needs beyond the other scripts: labels, metrics, predictions, and many runs in one call."""

import csv
import dataclasses
import itertools
import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
from datasets import Dataset
from transformers import EvalPrediction, PreTrainedConfig

from ..data.classification import CLASSIFICATION_METRICS, REGRESSION_METRICS, Task
from ..errors import InputError
from ..metrics import load_metric
from .arguments import GlueArguments, ModelArguments, RunArguments
from .trainer import FINISHED, SETTINGS, run_settings, total_batch_size


def trained_labels(config: PreTrainedConfig) -> list[str] | None:
    """The classes of a checkpoint that was trained as a classifier, in its order; none of a regressor; else None."""
    if not is_classifier(config):
        return None
    return [config.id2label[number] for number in range(config.num_labels)] if config.num_labels > 1 else []


def is_classifier(config: PreTrainedConfig) -> bool:
    """Whether a checkpoint was trained as a sequence classifier or regressor."""
    return any(name.endswith("ForSequenceClassification") for name in config.architectures or ())


def set_labels(config: PreTrainedConfig, labels: list[str] | None, train: bool):
    """
    Writes the labels into a config: `id2label`, `label2id`, `problem_type`.

    Args:
        labels: The names of the classes; None for regression.
        train: Whether there will be a training.

    Raises:
        InputError: If the config belongs to a classifier with another number of labels; or if it belongs to none and
            nothing is trained.
    """
    names = labels or ["value"]
    if is_classifier(config) and config.num_labels != len(names):
        raise InputError(
            f"The checkpoint {config.name_or_path} was trained to tell {config.num_labels} label(s) "
            f"({', '.join(map(str, config.id2label.values()))}), and the data have {len(names)} ({', '.join(names)}): "
            f"start from the checkpoint that it was fine-tuned from."
        )
    if not is_classifier(config) and not train:
        raise InputError(
            f"{config.name_or_path or 'A new model'} is no trained classifier: train it first, with --do_train."
        )
    config.id2label = dict(enumerate(names))
    config.label2id = {name: number for number, name in enumerate(names)}
    config.problem_type = "regression" if labels is None else "single_label_classification"


def metric_names(task: Task | None, labels: list[str] | None) -> tuple[str, ...]:
    """The metrics of a task of GLUE, or of data of one's own; runs are compared by the first."""
    if task is not None:
        return task.metrics
    return REGRESSION_METRICS if labels is None else CLASSIFICATION_METRICS


def classification_metrics(
    names: Iterable[str], labels: list[str] | None
) -> Callable[[EvalPrediction], dict[str, float]]:
    """
    `compute_metrics` for Trainer.

    Args:
        names: Modules of hf_gmlp/metrics.
        labels: The names of the classes; None for regression. Of two classes F1 is that of the second, of more it is
            the mean over all.
    """
    metrics = {name: load_metric(name) for name in names}
    options = {"f1": {"average": "binary" if len(labels or ()) == 2 else "macro"}}

    def compute(prediction: EvalPrediction) -> dict[str, float]:
        predictions = predicted(prediction.predictions, labels)
        results = {}
        for name, metric in metrics.items():
            results |= metric.compute(predictions=predictions, references=prediction.label_ids, **options.get(name, {}))
        return results

    return compute


def predicted(logits: np.ndarray | tuple, labels: list[str] | None) -> np.ndarray:
    """
    Class ids [samples] from logits [samples, classes], or numbers [samples] from [samples, 1]. A model may give more
    than its logits; they come first.
    """
    logits = logits[0] if isinstance(logits, tuple) else logits
    # A run that diverged gives no numbers; it shall not end a series of runs.
    return np.nan_to_num(logits).squeeze(-1) if labels is None else logits.argmax(-1)


def write_predictions(path: str | Path, logits: np.ndarray | tuple, labels: list[str] | None, task: Task | None = None):
    """
    Writes "index<tab>prediction" for every sample: for a task of GLUE what its leaderboard takes (the name of the label
    or its number, or a number from 0 to 5), else the name of the label or a number.
    """
    values = predicted(logits, labels)
    if labels is None:
        # Digits enough for a float32, so that no two become equal. The leaderboard's one regression, STS-B, is about
        # similarities from 0 to 5.
        values = [f"{value:.9g}" for value in (values if task is None else values.clip(0, 5))]
    else:
        values = [labels[number] for number in values]
        if task is not None and not task.submits_names:
            values = [task.labels.index(name) for name in values]
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter="\t", lineterminator="\n")
        writer.writerow(["index", "prediction"])
        writer.writerows(enumerate(values))


def validation_sets(datasets: Mapping[str, Dataset]) -> Dataset | dict[str, Dataset] | None:
    """The validation data as Trainer takes them: one set, or several by name, which are evaluated apart."""
    sets = {
        split.removeprefix("validation").removeprefix("_"): dataset
        for split, dataset in datasets.items()
        if split.startswith("validation")
    }
    return sets.get("", sets or None)


def main_metric(args: RunArguments, names: tuple[str, ...], splits: Iterable[str]) -> str | None:
    """
    The metric that runs are compared by: --metric_for_best_model, or the first metric on the first validation split;
    None without validation data.

    Args:
        splits: Names as "validation" or "validation_matched".

    Raises:
        InputError: If --metric_for_best_model is none of the metrics.
    """
    prefixes = [split.replace("validation", "eval", 1) for split in splits if split.startswith("validation")]
    keys = [f"{prefix}_{name}" for prefix, name in itertools.product(prefixes, (*names, "loss"))]
    if not keys or args.metric_for_best_model is None:
        return keys[0] if keys else None
    wanted = f"eval_{args.metric_for_best_model.removeprefix('eval_')}"
    if wanted not in keys:
        raise InputError(
            f"--metric_for_best_model (of --load_best_model_at_end: {args.metric_for_best_model}) must be one of "
            f"{', '.join(keys)}."
        )
    return wanted


def plan_runs(model_args: ModelArguments, data_args: GlueArguments, args: RunArguments) -> list[RunArguments]:
    """
    The arguments of every run: one for each batch size, learning rate and seed, in a folder of its own, as in
    "batch-16-lr-1e-05/seed-1". Without lists of these there is one run, in the output folder itself.

    Raises:
        InputError: If flags do not go together, or the output folder holds runs made with other flags.
    """
    if model_args.config_name is not None and not args.do_train:
        raise InputError("A new model (--config_name) knows nothing yet: give --do_train.")
    if not is_series(data_args):
        return [args]
    if not (args.do_train and args.do_eval):
        raise InputError("Runs are compared by what they reach on the validation data: give --do_train and --do_eval.")
    if args.push_to_hub or args.resume_from_checkpoint is not None:
        raise InputError("--push_to_hub and --resume_from_checkpoint are for a single run: choose one first.")
    runs = []
    for batch_size, learning_rate, seed in itertools.product(
        data_args.sweep_batch_sizes or [None], data_args.sweep_learning_rates or [None], data_args.seeds or [None]
    ):
        setting = []
        changes: dict = {}
        if batch_size is not None:
            setting.append(f"batch-{batch_size}")
            changes["global_batch_size"] = batch_size
        if learning_rate is not None:
            setting.append(f"lr-{learning_rate:g}")
            changes["learning_rate"] = learning_rate
        folder = Path(args.output_dir, "-".join(setting))
        if seed is not None:
            folder /= f"seed-{seed}"
            changes["seed"] = seed
        try:
            run = dataclasses.replace(args, output_dir=str(folder), **changes)
        except ValueError as error:
            raise InputError(str(error)) from error
        check_settings(run, run_settings(model_args, data_args, run))
        runs.append(run)
    return runs


def is_series(data_args: GlueArguments) -> bool:
    """Whether several runs were asked for."""
    return any((data_args.seeds, data_args.sweep_batch_sizes, data_args.sweep_learning_rates))


def is_finished(run: RunArguments) -> bool:
    """Whether a run of a series is over."""
    return Path(run.output_dir, FINISHED).is_file()


def check_settings(run: RunArguments, settings: dict):
    """
    Raises:
        InputError: If the run's folder holds a run, finished or not, that was made with other settings.
    """
    path = Path(run.output_dir, SETTINGS)
    if not path.is_file():
        if is_finished(run):
            raise InputError(f"{run.output_dir} holds a finished run of another command. Choose another --output_dir.")
        return
    earlier = json.loads(path.read_text(encoding="utf-8"))
    for name in sorted(earlier.keys() | settings.keys()):
        if earlier.get(name) != settings.get(name):
            raise InputError(
                f"{run.output_dir} holds a run with {name} {earlier.get(name)}, now it is {settings.get(name)}. Choose "
                f"another --output_dir, or remove that folder first."
            )


def summarize(runs: list[RunArguments]) -> list[dict]:
    """
    For every setting of batch size and learning rate, the median, least, greatest and standard deviation (of a sample;
    0 of a single run) over its seeds of every validation metric.

    Returns:
        Dictionaries with "batch_size", "learning_rate", "seeds", "folder" and "metrics".
    """
    settings: dict[tuple, list[RunArguments]] = {}
    for run in runs:
        settings.setdefault((total_batch_size(run), run.learning_rate), []).append(run)
    rows = []
    for (batch_size, learning_rate), members in settings.items():
        results = [json.loads(Path(run.output_dir, FINISHED).read_text(encoding="utf-8")) for run in members]
        keys = [key for key in results[0] if key.startswith("eval_") and not key.endswith(("_runtime", "_per_second"))]
        folder = Path(members[0].output_dir)
        rows.append(
            {
                "batch_size": batch_size,
                "learning_rate": learning_rate,
                "seeds": [run.seed for run in members],
                "folder": str(folder.parent if folder.name == f"seed-{members[0].seed}" else folder),
                "metrics": {key: spread([result[key] for result in results]) for key in keys},
            }
        )
    return rows


def spread(values: list[float]) -> dict[str, float]:
    """Median, least, greatest and standard deviation (of a sample; 0 of a single value)."""
    std = statistics.stdev(values) if len(values) > 1 else 0.0
    numbers = {"median": statistics.median(values), "min": min(values), "max": max(values), "std": std}
    return {name: round(number, 6) for name, number in numbers.items()}


def report_series(args: RunArguments, rows: list[dict], metric: str) -> dict:
    """
    Prints what `summarize` gave as a table, the best setting marked, and writes it as summary.json and summary.csv into
    the output folder.

    Returns:
        The best row: that with the best median of `metric`.
    """
    # TrainingArguments tells from --metric_for_best_model; all of our own are the better the greater.
    sign = -1 if args.greater_is_better is False else 1

    def quality(row: dict) -> float:
        median = row["metrics"][metric]["median"]
        return -math.inf if math.isnan(median) else sign * median

    best = max(rows, key=quality)
    folder = Path(args.output_dir)
    summary = {"metric": metric, "best": best, "settings": rows}
    (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    with open(folder / "summary.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        names = [f"{key}_{value}" for key, values in best["metrics"].items() for value in values]
        writer.writerow(["batch_size", "learning_rate", "runs", *names])
        for row in rows:
            numbers = [number for values in row["metrics"].values() for number in values.values()]
            writer.writerow([row["batch_size"], row["learning_rate"], len(row["seeds"]), *numbers])

    # The loss is in the files.
    shown = [key for key in best["metrics"] if not key.endswith("loss") or key == metric]
    table = [["", "batch", "learning rate", "runs", *shown]]
    for row in rows:
        cells = ["{median:.4f} ({min:.4f} to {max:.4f}, std {std:.4f})".format(**row["metrics"][key]) for key in shown]
        mark = "*" if row is best else ""
        table.append([mark, str(row["batch_size"]), f"{row['learning_rate']:g}", str(len(row["seeds"])), *cells])
    widths = [max(map(len, column)) for column in zip(*table)]
    print(f"\nMedian (least to greatest, standard deviation) over the runs; * is the best by {metric}")
    for cells in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(cells, widths)).rstrip())
    print(f"Everything is in {folder}\n")
    return best
