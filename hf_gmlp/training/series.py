"""Many runs of one script in one call: a folder for each, their comparison, and the best."""

import dataclasses
import itertools
import json
import logging
import math
import statistics
from collections.abc import Iterator
from pathlib import Path

from accelerate.utils import release_memory

from ..errors import InputError
from .arguments import ModelArguments, RunArguments, SeriesArguments
from .folder import (
    FINISHED,
    PLACES,
    check_same,
    read_settings,
    resume_point,
    run_settings,
    total_batch_size,
    write_text,
)

logger = logging.getLogger(__name__)


def plan_runs(
    model_args: ModelArguments, data_args: SeriesArguments, args: RunArguments
) -> list[tuple[RunArguments, dict | None]]:
    """
    The arguments and settings of every run: one for each batch size, learning rate and seed, in a folder of its own, as
    in "batch-16-lr-1e-05/seed-1". Without lists of these there is one run, in the output folder, and no settings.

    Raises:
        InputError: If flags do not go together, or the output folder holds runs made with other flags.
    """
    if not is_series(data_args):
        return [(args, None)]
    if not (args.do_train and args.do_eval):
        raise InputError("Runs are compared by what they reach on the validation data: give --do_train and --do_eval.")
    if args.push_to_hub or args.resume_from_checkpoint is not None:
        raise InputError("--push_to_hub and --resume_from_checkpoint are for a single run: choose one first.")
    shared = run_settings(model_args, data_args, args)
    lists = {
        "global_batch_size": data_args.sweep_batch_sizes,
        "learning_rate": data_args.sweep_learning_rates,
        "seed": data_args.seeds,
    }
    lists = {name: values for name, values in lists.items() if values}
    runs: dict[Path, tuple[RunArguments, dict]] = {}
    for given in (dict(zip(lists, values)) for values in itertools.product(*lists.values())):
        names = {"global_batch_size": "batch-{}", "learning_rate": "lr-{:g}", "seed": "seed-{}"}
        *setting, seed = (names[name].format(given[name]) if name in given else "" for name in names)
        folder = Path(args.output_dir, "-".join(filter(None, setting)), seed)
        if folder in runs:
            raise InputError(f"Two of the runs would be in {folder}: give learning rates of at most six digits.")
        try:
            run = dataclasses.replace(args, output_dir=str(folder), **given)
        except ValueError as error:
            raise InputError(str(error)) from error
        settings = shared | given | {"global_batch_size": total_batch_size(run)}
        # A finished run will not be made again: it must be the one that is asked for.
        if is_finished(run):
            earlier = read_settings(folder)
            if earlier is None:
                raise InputError(f"{folder} holds a finished run of another command. Choose another --output_dir.")
            check_same(folder, earlier, settings, free=PLACES)
        runs[folder] = run, settings
    return list(runs.values())


def is_series(data_args: SeriesArguments) -> bool:
    """Whether several runs were asked for."""
    return any((data_args.seeds, data_args.sweep_batch_sizes, data_args.sweep_learning_rates))


def unfinished(
    runs: list[tuple[RunArguments, dict | None]], checkpoint: str | None
) -> Iterator[tuple[RunArguments, str | None]]:
    """
    The arguments of every run of `plan_runs` that is to be made, and the checkpoint that it goes on from.

    Args:
        checkpoint: That of a single run.
    """
    for number, (args, settings) in enumerate(runs, start=1):
        if settings is not None:
            logger.info("Run %d of %d: %s", number, len(runs), args.output_dir)
            if is_finished(args):
                logger.info("It is finished already: skipped")
                continue
            checkpoint = resume_point(args, settings)
        yield args, checkpoint
        release_memory()


def is_finished(run: RunArguments) -> bool:
    """Whether a run of a series is over, and not to be made anew."""
    return Path(run.output_dir, FINISHED).is_file() and not run.overwrite_output_dir


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
        results = [_read_results(Path(run.output_dir, FINISHED)) for run in members]
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
    """What the evaluation of a finished run gave."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        results = {key: float(value) for key, value in content.items() if key.startswith("eval_")}
        if not results:
            raise ValueError("There is no evaluation in it.")
        return results
    except (ValueError, AttributeError, TypeError) as error:
        raise InputError(f"{path} is damaged: remove it, and the same command makes that run anew.") from error


def spread(values: list[float]) -> dict[str, float]:
    """Median, least, greatest and standard deviation (of a sample; 0 of a single value); NaN if one of them is."""
    if any(map(math.isnan, values)):
        return dict.fromkeys(("median", "min", "max", "std"), math.nan)
    std = statistics.stdev(values) if len(values) > 1 else 0.0
    numbers = {"median": statistics.median(values), "min": min(values), "max": max(values), "std": std}
    return {name: round(number, 6) for name, number in numbers.items()}


def main_metric(args: RunArguments, keys: list[str], chosen: str | None = None) -> str | None:
    """
    The metric among `keys` that runs are compared by: --metric_for_best_model, or the first; None without any.

    Raises:
        InputError: If --metric_for_best_model is none of them, or another one than was `chosen` by --metric_name.
    """
    if not keys or args.metric_for_best_model is None:
        return keys[0] if keys else None
    wanted = f"eval_{args.metric_for_best_model.removeprefix('eval_')}"
    possible = [key for key in keys if chosen is None or key.endswith(f"_{chosen}")]
    if wanted not in possible:
        why = f" where --metric_name is {chosen}" if chosen else ""
        raise InputError(
            f"--metric_for_best_model {args.metric_for_best_model} (which --load_best_model_at_end makes the loss) "
            f"must be one of {', '.join(possible)}{why}."
        )
    return wanted


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
        # A run that diverged may still guess the larger class.
        medians = {key: numbers["median"] for key, numbers in row["metrics"].items()}
        return -math.inf if any(map(math.isnan, medians.values())) else sign * medians[metric]

    best = max(rows, key=quality)
    folder = Path(args.output_dir)
    summary = {"metric": metric, "best": best, "settings": rows}
    write_text(folder / "summary.json", json.dumps(summary, indent=2) + "\n")
    names = [f"{key}_{name}" for key, numbers in best["metrics"].items() for name in numbers]
    table = [["batch_size", "learning_rate", "runs", *names]]
    print(f"\nMedian (least to greatest, standard deviation) over the runs; * is the best by {metric}")
    for row in rows:
        table.append([row["batch_size"], row["learning_rate"], len(row["seeds"])])
        print("{} batch {}, learning rate {:g}, {} runs".format("*" if row is best else " ", *table[-1]), end="")
        for key, numbers in row["metrics"].items():
            table[-1] += numbers.values()
            # The loss is in the files.
            if not key.endswith("loss") or key == metric:
                print(f", {key}", "{median:.4f} ({min:.4f} to {max:.4f}, std {std:.4f})".format(**numbers), end="")
        print()
    write_text(folder / "summary.csv", "".join(",".join(map(str, cells)) + "\n" for cells in table))
    print(f"Everything is in {folder}\n")
    return best
