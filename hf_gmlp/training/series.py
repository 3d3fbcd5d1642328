"""Several runs of a script in one command: a run and a folder for each seed, and the medians of the results."""

import dataclasses
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
from .arguments import BaseModelArguments, RunArguments, SeriesArguments

logger = logging.getLogger(__name__)

Runs = list[tuple[RunArguments, dict | None]]


def plan_runs(model_args: BaseModelArguments, data_args: SeriesArguments, args: RunArguments) -> Runs:
    """Return the arguments and settings of each seed's run, whose folder is, for example, "seed-1".

    Without --seeds, return the arguments of a single run in the output folder, without settings.

    Raises:
        InputError: If flags contradict each other, or the output folder holds finished runs with other flags or rows.
    """
    if not data_args.seeds:
        return [(args, None)]
    if not (args.do_train and args.do_eval):
        raise InputError("--seeds compares runs by their results on validation data: pass --do_train and --do_eval.")
    if args.push_to_hub or args.resume_from_checkpoint is not None:
        raise InputError("--push_to_hub and --resume_from_checkpoint are for a single run: leave --seeds out.")
    runs: list[tuple[RunArguments, dict]] = []
    # The number of training rows of finished runs, which is that of all seeds.
    rows: dict[str, int] = {}
    for seed in data_args.seeds:
        flags: dict[str, Any] = {"seed": seed, "output_dir": str(Path(args.output_dir, f"seed-{seed}"))}
        run = dataclasses.replace(args, **flags)
        settings = run_folder.run_settings(model_args, data_args, run)
        if results_file(run).is_file():
            # A finished run is not repeated, so its settings must be the same.
            folder = results_file(run).parent
            earlier = run_folder.read_settings(folder)
            run_folder.check_same(folder, earlier, settings | rows)
            if "train_rows" in earlier:
                rows["train_rows"] = earlier["train_rows"]
        runs.append((run, settings))
    return [(run, settings | rows) for run, settings in runs]


def make_runs(args: RunArguments, runs: Runs, run: Callable, checkpoint: str | None):
    """Call `run` for each unfinished run of `plan_runs`, with its arguments and the checkpoint to resume from, if any.

    A single run resumes from `checkpoint`. A series ends with its medians in summary.json.
    """
    for number, (run_args, settings) in enumerate(runs, start=1):
        if settings is None:
            return run(run_args, checkpoint)
        logger.info("Run %d of %d: %s", number, len(runs), run_args.output_dir)
        if results_file(run_args).is_file():
            logger.info("Already finished: skipped")
        else:
            run(run_args, run_folder.resume_point(run_args, settings))
            release_memory()
    if args.process_index == 0:
        report_series(Path(args.output_dir), [run_args for run_args, _ in runs])


def results_file(run: RunArguments) -> Path:
    """Return the path of the last file that a run writes."""
    return Path(run.output_dir, run_folder.FINISHED)


def report_series(folder: Path, runs: list[RunArguments]):
    """Print the `spread` of each validation metric over the seeds, and write it to summary.json."""
    results = [json.loads(results_file(run).read_text(encoding="utf-8")) for run in runs]
    keys = [key for key in results[0] if key.startswith("eval_") and not key.endswith(("_runtime", "_per_second"))]
    metrics = {key: spread([result[key] for result in results]) for key in keys}
    run_folder.write_json(folder / "summary.json", {"seeds": [run.seed for run in runs], "metrics": metrics})
    print(f"\nMedian (minimum to maximum, standard deviation) over {len(runs)} seeds")
    for key, numbers in metrics.items():
        print(f"  {key}  " + "{median:.4f} ({min:.4f} to {max:.4f}, std {std:.4f})".format(**numbers))
    print(f"All results are in {folder}\n")


def spread(values: list[float]) -> dict[str, float]:
    """Return median, minimum, maximum and sample standard deviation (0 for one value); NaN if a value is NaN."""
    if any(map(math.isnan, values)):
        return dict.fromkeys(("median", "min", "max", "std"), math.nan)
    std = statistics.stdev(values) if len(values) > 1 else 0.0
    numbers = {"median": statistics.median(values), "min": min(values), "max": max(values), "std": std}
    return {name: round(number, 6) for name, number in numbers.items()}
