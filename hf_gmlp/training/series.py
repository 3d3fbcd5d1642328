"""Several runs of one script in one command: a folder for each, their comparison, and the best."""

import dataclasses
import itertools
import json
import logging
import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from accelerate.utils import release_memory

from ..errors import InputError
from . import run_folder
from .arguments import ModelArguments, RunArguments, SeriesArguments
from .files import reading

logger = logging.getLogger(__name__)

Runs = list[tuple[RunArguments, dict | None]]


def plan_runs(model_args: ModelArguments, data_args: SeriesArguments, args: RunArguments) -> Runs:
    """Return the arguments and settings of a run for each batch size, learning rate and seed.

    Each has a folder of its own, such as "batch-16-lr-1e-05/seed-1". Without such lists it is one run in the output
    folder, and no settings.

    Raises:
        InputError: If flags do not go together, or the output folder holds finished runs of other flags.
    """
    if not data_args.is_series():
        return [(args, None)]
    if not (args.do_train and args.do_eval):
        raise InputError("Runs are compared by their results on the validation data: give --do_train and --do_eval.")
    if args.push_to_hub or args.resume_from_checkpoint is not None:
        raise InputError("--push_to_hub and --resume_from_checkpoint are for a single run: choose one first.")
    runs: Runs = []
    lists = (data_args.sweep_batch_sizes, data_args.sweep_learning_rates, data_args.seeds)
    for batch_size, rate, seed in itertools.product(*(values or [None] for values in lists)):
        parts = [] if batch_size is None else [f"batch-{batch_size}"]
        parts += [] if rate is None else [f"lr-{str(rate).removesuffix('.0')}"]
        folder = Path(args.output_dir, "-".join(parts), "" if seed is None else f"seed-{seed}")
        swept = {"global_batch_size": batch_size, "learning_rate": rate, "seed": seed}
        flags: dict[str, Any] = {name: value for name, value in swept.items() if value is not None}
        try:
            run = dataclasses.replace(args, **flags | {"output_dir": str(folder)})
        except ValueError as error:
            raise InputError(str(error)) from error
        settings = run_folder.run_settings(model_args, data_args, run)
        if is_finished(run):
            # It will not be repeated, so it must have these settings.
            earlier = run_folder.read_settings(folder)
            if earlier is None:
                raise InputError(f"{folder} holds a finished run of another command. Choose another --output_dir.")
            run_folder.check_same(folder, earlier, settings)
        runs.append((run, settings))
    return runs


def make_runs(args: RunArguments, runs: Runs, run: Callable, checkpoint: str | None, metric: str | None):
    """Call `run` for each unfinished run of `plan_runs`, with its arguments and the checkpoint to resume from, if any.

    For a single run that is `checkpoint`. A series is then reported, compared by `metric`.
    """
    for number, (one, settings) in enumerate(runs, start=1):
        if settings is None:
            return run(one, checkpoint)
        logger.info("Run %d of %d: %s", number, len(runs), one.output_dir)
        if is_finished(one):
            logger.info("Already finished: skipped")
        else:
            run(one, run_folder.resume_point(one, settings))
            release_memory()
    if args.process_index == 0 and metric is not None:
        report_series(args, summarize([one for one, _ in runs]), metric)


def is_finished(run: RunArguments) -> bool:
    """Return whether a run of a series is over and will not be repeated."""
    return Path(run.output_dir, run_folder.FINISHED).is_file() and not run.overwrite_output_dir


def summarize(runs: list[RunArguments]) -> list[dict]:
    """Return the `spread` over the seeds of each validation metric, for each batch size and learning rate."""
    settings: dict[tuple, list[RunArguments]] = {}
    for run in runs:
        settings.setdefault((run_folder.total_batch_size(run), run.learning_rate), []).append(run)
    rows = []
    for (batch_size, learning_rate), members in settings.items():
        paths = [Path(run.output_dir, run_folder.FINISHED) for run in members]
        with reading(paths, "results of runs"):
            results = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
        times = ("_runtime", "_per_second")
        keys = [key for key in results[0] if key.startswith("eval_") and not key.endswith(times)]
        folder, seeds = paths[0].parent, [run.seed for run in members]
        row = {"batch_size": batch_size, "learning_rate": learning_rate, "seeds": seeds}
        row["folder"] = str(folder.parent if folder.name == f"seed-{seeds[0]}" else folder)
        rows.append(row | {"metrics": {key: spread([result[key] for result in results]) for key in keys}})
    return rows


def spread(values: list[float]) -> dict[str, float]:
    """Return median, minimum, maximum and sample standard deviation (0 for one value); NaN if a value is NaN."""
    if any(map(math.isnan, values)):
        return dict.fromkeys(("median", "min", "max", "std"), math.nan)
    std = statistics.stdev(values) if len(values) > 1 else 0.0
    numbers = {"median": statistics.median(values), "min": min(values), "max": max(values), "std": std}
    return {name: round(number, 6) for name, number in numbers.items()}


def main_metric(args: RunArguments, keys: list[str]) -> str | None:
    """Return --metric_for_best_model, which must be one of `keys`, else the first of `keys`, if any."""
    if not keys or args.metric_for_best_model is None:
        return keys[0] if keys else None
    # With --load_best_model_at_end, it is the loss by default.
    wanted = f"eval_{args.metric_for_best_model.removeprefix('eval_')}"
    if wanted not in keys:
        raise InputError(f"--metric_for_best_model must be one of {', '.join(keys)}, got {wanted}.")
    return wanted


def report_series(args: RunArguments, rows: list[dict], metric: str) -> dict:
    """Print the result of `summarize`, write summary.json, and return the row best by `metric`."""
    sign = -1 if metric.endswith("loss") else 1

    def quality(row: dict) -> float:
        # A run that diverged may still have an accuracy.
        medians = {key: numbers["median"] for key, numbers in row["metrics"].items()}
        return -math.inf if any(map(math.isnan, medians.values())) else sign * medians[metric]

    best, folder = max(rows, key=quality), Path(args.output_dir)
    run_folder.write_json(folder / "summary.json", {"metric": metric, "best": best, "settings": rows})
    print(f"\nMedian (minimum to maximum, standard deviation) over the runs; * is the best by {metric}")
    for row in rows:
        line = f"batch {row['batch_size']}, learning rate {row['learning_rate']:g}, {len(row['seeds'])} runs"
        for key, numbers in row["metrics"].items():
            line += f", {key} " + "{median:.4f} ({min:.4f} to {max:.4f}, std {std:.4f})".format(**numbers)
        print("*" if row is best else " ", line)
    print(f"Everything is in {folder}\n")
    return best
