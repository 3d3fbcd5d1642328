"""What run_glue.py needs beyond the other scripts: labels, metrics and predictions."""

import csv
import itertools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
from datasets import Dataset
from transformers import EvalPrediction, PreTrainedConfig

from ..data.classification import CLASSIFICATION_METRICS, REGRESSION_METRICS, Task
from ..errors import InputError
from ..metrics import load_metric
from .arguments import RunArguments


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
