"""Several runs of one script in one command: a folder for each, their comparison, and the best."""

import dataclasses
import itertools
import json
import logging
import math
import statistics
from collections.abc import Callable
from pathlib import Path

from accelerate.utils import release_memory

from ..errors import InputError
from . import run_folder
from .arguments import ModelArguments, RunArguments, SeriesArguments

logger = logging.getLogger(__name__)

Runs = list[tuple[RunArguments, dict | None]]


def plan_runs(model_args: ModelArguments, data_args: SeriesArguments, args: RunArguments) -> Runs:
    """
    The arguments and settings of a run for each batch size, learning rate and seed, in a folder of its own such as
    "batch-16-lr-1e-05/seed-1". Without such lists: one run in the output folder, and no settings.

    Raises:
        InputError: If flags do not go together, or the output folder holds finished runs of other flags.
    """
    if not data_args.is_series():
        return [(args, None)]
    if not (args.do_train and args.do_eval):
        raise InputError("Runs are compared by their results on the validation data: give --do_train and --do_eval.")
    if args.push_to_hub or args.resume_from_checkpoint is not None:
        raise InputError("--push_to_hub and --resume_from_checkpoint are for a single run: choose one first.")
    shared = run_folder.run_settings(model_args, data_args, args)
    lists = {
        "global_batch_size": data_args.sweep_batch_sizes,
        "learning_rate": data_args.sweep_learning_rates,
        "seed": data_args.seeds,
    }
    lists = {name: values for name, values in lists.items() if values}
    names = {"global_batch_size": "batch-{}", "learning_rate": "lr-{:g}", "seed": "seed-{}"}
    runs: dict[Path, tuple[RunArguments, dict]] = {}
    for given in (dict(zip(lists, values)) for values in itertools.product(*lists.values())):
        *setting, seed = (names[name].format(given[name]) if name in given else "" for name in names)
        folder = Path(args.output_dir, "-".join(filter(None, setting)), seed)
        if folder in runs:
            raise InputError(f"Two of the runs would be in {folder}: give learning rates with at most six digits.")
        try:
            run = dataclasses.replace(args, output_dir=str(folder), **given)
        except ValueError as error:
            raise InputError(str(error)) from error
        settings = shared | given | {"global_batch_size": run_folder.total_batch_size(run)}
        if is_finished(run):
            # It will not be repeated, so it must have these settings.
            earlier = run_folder.read_settings(folder)
            if earlier is None:
                raise InputError(f"{folder} holds a finished run of another command. Choose another --output_dir.")
            run_folder.check_same(folder, earlier, settings)
        runs[folder] = run, settings
    return list(runs.values())


def make_runs(args: RunArguments, runs: Runs, run: Callable, checkpoint: str | None, metric: str | None):
    """
    Calls `run` for every unfinished run of `plan_runs`, with its arguments and the checkpoint to resume from, if any:
    for a single run, `checkpoint`. A series is then reported, compared by `metric`.
    """
    for number, (one, settings) in enumerate(runs, start=1):
        if settings is not None:
            logger.info("Run %d of %d: %s", number, len(runs), one.output_dir)
            if is_finished(one):
                logger.info("Already finished: skipped")
                continue
            checkpoint = run_folder.resume_point(one, settings)
        run(one, checkpoint)
        release_memory()
    if settings is not None and args.process_index == 0:
        report_series(args, summarize([one for one, _ in runs]), metric)


def is_finished(run: RunArguments) -> bool:
    """Whether a run of a series is over and will not be repeated."""
    return Path(run.output_dir, run_folder.FINISHED).is_file() and not run.overwrite_output_dir


def summarize(runs: list[RunArguments]) -> list[dict]:
    """The `spread` over the seeds of every validation metric, for each batch size and learning rate."""
    settings: dict[tuple, list[RunArguments]] = {}
    for run in runs:
        settings.setdefault((run_folder.total_batch_size(run), run.learning_rate), []).append(run)
    rows = []
    for (batch_size, learning_rate), members in settings.items():
        results = [_read_results(Path(run.output_dir, run_folder.FINISHED)) for run in members]
        keys = [key for key in results[0] if not key.endswith(("_runtime", "_per_second"))]
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


def _read_results(path: Path) -> dict[str, float]:
    """The validation metrics of a finished run."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        results = {key: float(value) for key, value in content.items() if key.startswith("eval_")}
        if not results:
            raise ValueError("There is no evaluation in it.")
        return results
    except (ValueError, AttributeError, TypeError) as error:
        raise InputError(f"{path} is damaged: remove it, and repeat the command to make that run again.") from error


def spread(values: list[float]) -> dict[str, float]:
    """Median, minimum, maximum and standard deviation (of a sample; 0 for one value); NaN if a value is NaN."""
    if any(map(math.isnan, values)):
        return dict.fromkeys(("median", "min", "max", "std"), math.nan)
    std = statistics.stdev(values) if len(values) > 1 else 0.0
    numbers = {"median": statistics.median(values), "min": min(values), "max": max(values), "std": std}
    return {name: round(number, 6) for name, number in numbers.items()}


def main_metric(args: RunArguments, keys: list[str], chosen: str | None = None) -> str | None:
    """--metric_for_best_model (InputError if not in `keys` or not `chosen`), else the first of `keys`, if any."""
    if not keys or args.metric_for_best_model is None:
        return keys[0] if keys else None
    wanted = f"eval_{args.metric_for_best_model.removeprefix('eval_')}"
    possible = [key for key in keys if chosen is None or key.endswith(f"_{chosen}")]
    if wanted not in possible:
        why = f" where --metric_name is {chosen}" if chosen else ""
        raise InputError(
            f"--metric_for_best_model {args.metric_for_best_model} (with --load_best_model_at_end, loss by default) "
            f"must be one of {', '.join(possible)}{why}."
        )
    return wanted


def report_series(args: RunArguments, rows: list[dict], metric: str) -> dict:
    """Prints the result of `summarize`, writes summary.json, and returns the row best by `metric`."""
    # TrainingArguments derives it from --metric_for_best_model; for every other metric, greater is better.
    sign = -1 if args.greater_is_better is False else 1

    def quality(row: dict) -> float:
        # A run that diverged may still have an accuracy.
        medians = {key: numbers["median"] for key, numbers in row["metrics"].items()}
        return -math.inf if any(map(math.isnan, medians.values())) else sign * medians[metric]

    best, folder = max(rows, key=quality), Path(args.output_dir)
    run_folder.write_json(folder / "summary.json", {"metric": metric, "best": best, "settings": rows})
    print(f"\nMedian (minimum to maximum, standard deviation) over the runs; * is the best by {metric}")
    for row in rows:
        mark, runs = "*" if row is best else " ", len(row["seeds"])
        print(f"{mark} batch {row['batch_size']}, learning rate {row['learning_rate']:g}, {runs} runs", end="")
        for key, numbers in row["metrics"].items():
            # The loss is in the file.
            if not key.endswith("loss") or key == metric:
                print(f", {key}", "{median:.4f} ({min:.4f} to {max:.4f}, std {std:.4f})".format(**numbers), end="")
        print()
    print(f"Everything is in {folder}\n")
    return best
