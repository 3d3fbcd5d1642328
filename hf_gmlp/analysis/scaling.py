"""Quality against size (paper, Figures 2, 5, 7 and 8): of finished runs, and as the paper prints it."""

import math
import statistics
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator
from scipy.stats import linregress

from ..errors import InputError
from .pictures import check_picture, draw_level, in_words, legend_below, plt, save_picture
from .runs import Run, pretraining
from .tables import paper_table

# The families of Table 2, by the kind of network.
KINDS = {
    "ConvNets": ("ResNet", "RegNetY", "EfficientNet", "NFNet"),
    "Transformers": ("ViT", "DeiT"),
    "MLP-like": ("Mixer", "ResMLP", "gMLP"),
}
MARKERS = {"ConvNets": "s", "Transformers": "^", "MLP-like": "o"}
CAPACITY_COLORS = {"gMLP": "C0", "DeiT": "C1", "ViT": "C4", "Mixer": "C5", "ResMLP": "C2"}

TASK_TITLES = {"mnli": "MNLI (matched)", "sst2": "SST-2", "rte": "RTE", "mrpc": "MRPC", "qnli": "QNLI", "qqp": "QQP"}

# The fine-tunings in Table 4, by its columns, and their numbers of classes.
PAPER_TASKS = {"mnli": "MNLI-m", "sst2": "SST-2"}
PAPER_CLASSES = {"mnli": 3, "sst2": 2}

# An exponent from fewer sizes is no finding.
SIZES_OF_A_LAW = 4

# The same family has the same color in every figure.
COLORS = {"gMLP": "C0", "Transformer": "C1", "BERT + rel pos": "C1", "aMLP": "C3", "BERT": "C4", "MLP-Mixer": "C5"}
LABELS_ON_THE_LEFT = (
    "DeiT-Ti", "DeiT-S", "ResNet-152", "Mixer-B/16", "Mixer-B/16 (as gMLP)",
    "EfficientNet-B0", "EfficientNet-B3 @300",
)  # fmt: skip
OTHER_COLORS = ("C2", "C6", "C8", "C9", "C7", "black")


@dataclass(frozen=True)
class Point:
    """
    A place in a figure.

    Attributes:
        x: Parameters in millions, or a perplexity.
        values: Of all runs that belong to it, as the seeds of one size.
        size: Parameters in millions.
    """

    x: float
    values: tuple[float, ...]
    size: float

    @property
    def y(self) -> float:
        """The median over runs."""
        return statistics.median(self.values)


@dataclass(frozen=True)
class PowerLaw:
    """
    y = factor * x ** exponent, by least squares on the logarithms of both.

    Attributes:
        error: Standard error of the exponent.
        r_squared: Share of the variance of log y that the law explains.
        points: How many points it was fitted to.
    """

    factor: float
    exponent: float
    error: float
    r_squared: float
    points: int

    def __str__(self) -> str:
        return f"exponent {self.exponent:.3f} ± {self.error:.3f} ({self.points} sizes)"


def power_law(x: Iterable[float], y: Iterable[float]) -> PowerLaw:
    """
    Fits a power law, as Kaplan et al. (the paper's [42]) do for losses.

    Args:
        x, y: Positive numbers, pairwise, as parameters and perplexities.

    Raises:
        InputError: If there are fewer than four different x, or a number is not positive and finite.
    """
    x, y = np.asarray(list(x), dtype=float), np.asarray(list(y), dtype=float)
    if len(set(x)) < SIZES_OF_A_LAW:
        raise InputError(
            f"A power law is fitted to at least {SIZES_OF_A_LAW} sizes, and here are {len(set(x))}: with fewer, almost "
            f"any line would fit."
        )
    if not (np.isfinite(x).all() and np.isfinite(y).all() and (x > 0).all() and (y > 0).all()):
        raise InputError("A power law needs positive, finite numbers: a run that diverged does not belong here.")
    fit = linregress(np.log(x), np.log(y))
    return PowerLaw(math.exp(fit.intercept), float(fit.slope), float(fit.stderr), float(fit.rvalue**2), len(x))


def perplexity_points(runs: Iterable[Run]) -> dict[str, list[Point]]:
    """
    Held-out perplexity against parameters in millions, by family; the runs of one size are one point.

    Raises:
        InputError: If the runs cannot be compared: other lengths of training, vocabularies, or held-out texts.
    """
    runs = [run for run in runs if run.task == "mlm" and "eval_perplexity" in run.results]
    _check_comparable(runs)
    found: dict[tuple[str, float], list[float]] = {}
    for run in runs:
        found.setdefault((run.family, run.parameters / 1e6), []).append(run.results["eval_perplexity"])
    return _by_family((name, size, size, values) for (name, size), values in found.items())


def accuracy_points(runs: Iterable[Run], task: str) -> dict[str, list[Point]]:
    """
    Accuracy in percent against parameters in millions, by family. As the paper does, the setting of batch size and
    learning rate with the best median over its seeds stands for a size.

    Args:
        runs: Fine-tunings among others.
        task: As "sst2".
    """
    found: dict[tuple[str, float], list[Run]] = {}
    for run in _finetunings(runs, task):
        found.setdefault((run.family, run.parameters / 1e6), []).append(run)
    return _by_family((name, size, size, _best_setting(members)) for (name, size), members in found.items())


def transfer_points(runs: Iterable[Run], task: str) -> dict[str, list[Point]]:
    """
    Accuracy in percent against the perplexity of the checkpoint that the fine-tuning began with, by family; the best
    setting as in `accuracy_points`. Every checkpoint is a point of its own, also where several are of one size.

    Args:
        runs: Pretrainings and fine-tunings.
        task: As "sst2".
    """
    runs = list(runs)
    found: dict[Path, tuple[Run, list[Run]]] = {}
    for run in _finetunings(runs, task):
        base = pretraining(run, runs)
        if base is not None and "eval_perplexity" in base.results:
            found.setdefault(base.folder, (base, []))[1].append(run)
    return _by_family(
        (base.family, base.results["eval_perplexity"], base.parameters / 1e6, _best_setting(members))
        for base, members in found.values()
    )


def finetuning_tasks(runs: Iterable[Run]) -> list[str]:
    """The tasks with an accuracy that the runs were fine-tuned on: the paper's two first."""
    tasks = {run.task for run in runs} - {None, "mlm", "image"}
    tasks = {task for task in tasks if _finetunings(runs, task)}
    return sorted(tasks, key=lambda task: (task not in PAPER_TASKS, task))


def image_points(runs: Iterable[Run]) -> dict[str, list[Point]]:
    """
    Accuracy in percent against parameters in millions of image classifiers, by family; the runs of one size are one
    point.

    Raises:
        InputError: If the runs are about different numbers of classes, or of different numbers of epochs.
    """
    runs = [run for run in runs if run.task == "image" and run.accuracy is not None]
    classes = sorted({run.config.num_labels for run in runs})
    if len(classes) > 1:
        raise InputError(
            f"The image classifiers tell {' and '.join(map(str, classes))} classes: point --runs to those of one data "
            f"set, since accuracies of different ones cannot be compared."
        )
    epochs = sorted({round(run.results["epoch"], 1) for run in runs if "epoch" in run.results})
    if len(epochs) > 1:
        raise InputError(
            f"The image classifiers were trained for {' and '.join(f'{number:g}' for number in epochs)} epochs: point "
            f"--runs to those of one length, so that size alone differs."
        )
    found: dict[tuple[str, float], list[float]] = {}
    for run in runs:
        found.setdefault((run.family, run.parameters / 1e6), []).append(100 * run.accuracy)
    return _by_family((name, size, size, values) for (name, size), values in found.items())


def image_points_of_paper() -> list[tuple[str, float, float]]:
    """
    Table 2: the model, with "@384" where its images have another size than 224 pixels; its parameters in millions; its
    top-1 accuracy in percent.
    """
    points = []
    for row in paper_table(2).rows:
        cells = {column: cell.paper for column, cell in row.cells.items()}
        label = row.name.split(" ")[0] + (" (as gMLP)" if "our setup" in row.name else "")
        if cells["Input Resolution"] != "224":
            label += f" @{cells['Input Resolution']}"
        points.append((label, float(cells["Params (M)"]), float(cells["ImageNet Top-1 (%)"])))
    return points


def plot_capacity(path: str | Path, runs: list[Run] | None = None):
    """
    The paper's Figure 2: accuracy against parameters, ImageNet as in its Table 2; below it, in a panel of its own,
    the image classifiers among `runs`, with the level of chance.

    Raises:
        InputError: If there are runs and no image classifier among them, they cannot be compared, or the picture cannot
            be written to `path`.
    """
    check_picture(path)
    ours = image_points(runs) if runs else {}
    if runs and not ours:
        raise InputError("There is no finished image classifier with an accuracy among these runs.")
    figure, axes = plt.subplots(
        1 + bool(ours), 1, figsize=(7.2, 10.0 if ours else 5.0), squeeze=False, layout="constrained"
    )
    axis = axes[0, 0]
    printed = image_points_of_paper()
    for kind, marker in MARKERS.items():
        axis.plot([], [], marker, color="0.3", fillstyle="none", linestyle="none", label=kind)
        for name in KINDS[kind]:
            color = CAPACITY_COLORS.get(name, "0.45")
            points = [point for point in printed if point[0].split("-")[0] == name]
            # Mixer-B is there twice; the line is that of its own authors.
            line = sorted((x, y) for label, x, y in points if "(" not in label)
            axis.plot(*zip(*line), color=color, linewidth=2.2 if name == "gMLP" else 1.0)
            for label, x, y in points:
                axis.plot(x, y, marker, color=color, markersize=6, fillstyle="none")
                # Where neighbors leave room.
                left, below = label in LABELS_ON_THE_LEFT, name in ("gMLP", "ResMLP")
                axis.annotate(
                    label,
                    (x, y),
                    xytext=(-5 if left else 4, -9 if below else 4),
                    ha="right" if left else "left",
                    textcoords="offset points",
                    fontsize=7,
                    color=color,
                )
    axis.legend(fontsize=8, loc="upper left")
    axis.set_title("ImageNet, Table 2 of the paper: images of 224 pixels, or as many as stand after @", fontsize=9)
    axis.set_ylabel("ImageNet top-1 accuracy (%; chance: 0.1)")
    parameters = [x for _, x, _ in printed]
    _log_axis(axis, "x", [0.7 * min(parameters), 1.7 * max(parameters)], "parameters (millions, log scale)")
    axis.grid(color="0.92")
    if ours:
        axis = axes[1, 0]
        classes = next(run.config.num_labels for run in runs if run.task == "image")
        _draw_accuracies([axis], {"image": ours}, runs)
        axis.set_title(f"Validation images of {classes} classes, {_said(runs, 'image')}", fontsize=9, parse_math=False)
        _log_axis(axis, "x", _all_x(ours), "parameters (millions, log scale)")
        axis.legend(fontsize=8)
    figure.suptitle("Accuracy of image classifiers against their size", fontsize=11)
    save_picture(figure, path)


def plot_scaling(
    path: str | Path, runs: list[Run] | None = None, *, paper: bool = False, unigram: float | None = None
) -> dict[str, PowerLaw]:
    """
    The paper's Figures 5 and 8: perplexity against parameters, with a power law fitted to every family of at least
    four sizes, and fine-tuned accuracies against parameters with the level of chance. Figure 8 is Figure 5 with the
    aMLPs among the runs.

    Args:
        path: The picture to write, its kind by its ending.
        runs: Pretrainings and fine-tunings; without any, the figure is that of the paper's Table 4.
        paper: Whether the points of Table 4 are drawn as well, hollow.
        unigram: A perplexity to draw as a level: that of predicting every token by its frequency.

    Returns:
        The fits, by family; the paper's as "Transformer (paper)".

    Raises:
        InputError: If the runs have neither perplexities nor accuracies, they cannot be compared, or the picture cannot
            be written.
    """
    check_picture(path)
    ours = perplexity_points(runs or [])
    tasks = finetuning_tasks(runs) if runs else list(PAPER_TASKS)
    if runs and not ours and not tasks:
        raise InputError(
            "These runs have no point to draw: neither a perplexity of pretraining nor an accuracy of fine-tuning. "
            "Leave --runs out for the paper's own numbers."
        )
    printed = paper_points("Params (M)", "Perplexity") if paper or not runs else {}
    perplexities = ours | printed
    accuracies = {task: accuracy_points(runs or [], task) for task in tasks}
    for task in PAPER_TASKS.keys() & accuracies.keys() if printed else ():
        accuracies[task] |= paper_points("Params (M)", PAPER_TASKS[task])
    figure, axes = _panels(bool(perplexities) + len(tasks))
    fits = _draw_perplexities(axes[0], perplexities, unigram) if perplexities else {}
    _draw_accuracies(axes[len(axes) - len(tasks) :], accuracies, runs)
    for axis, series in zip(axes, [perplexities, *accuracies.values()] if perplexities else accuracies.values()):
        _log_axis(axis, "x", _all_x(series), "parameters (millions, log scale)")
    notes = {}
    for name, points in perplexities.items():
        sizes = f"{len(points)} size{'s' if len(points) > 1 else ''} of pretraining, too few for a law"
        notes[in_words(name)] = f": {fits.get(name, sizes)}"
    law = "lines in the first panel: perplexity = factor × parameters ^ exponent" if fits else ""
    legend_below(figure, notes, "\n".join(filter(None, [law, _bars([perplexities, *accuracies.values()])])))
    figure.suptitle(_title("Quality against size", runs, printed), fontsize=10, parse_math=False)
    save_picture(figure, path)
    return fits


def plot_transfer(path: str | Path, runs: list[Run] | None = None, *, paper: bool = False):
    """
    The paper's Figure 7: accuracy after fine-tuning, with the level of chance, against perplexity after pretraining.
    The points of a family are joined if no two are of one size.

    Args:
        path: The picture to write, its kind by its ending.
        runs: Pretrainings, and fine-tunings that began with them; without any, the figure is that of Table 4.
        paper: Whether the points of Table 4 are drawn as well, hollow.

    Raises:
        InputError: If no fine-tuning's pretraining is among the runs, their perplexities cannot be compared, or the
            picture cannot be written.
    """
    check_picture(path)
    _check_comparable([run for run in runs or [] if run.task == "mlm"], steps=False)
    tasks = finetuning_tasks(runs) if runs else list(PAPER_TASKS)
    series = {task: transfer_points(runs or [], task) for task in tasks}
    series = {task: points for task, points in series.items() if points or not runs}
    if not series:
        raise InputError(
            "No fine-tuning was found together with the pretraining that it began with: point --runs to the folders "
            "of both."
        )
    printed = PAPER_TASKS.keys() & series.keys() if paper or not runs else set()
    for task in printed:
        series[task] |= paper_points("Perplexity", PAPER_TASKS[task])
    figure, axes = _panels(len(series))
    _draw_accuracies(axes, series, runs)
    for axis, points in zip(axes, series.values()):
        _log_axis(axis, "x", _all_x(points), "perplexity after pretraining (log scale, less is better)")
    legend_below(figure, title=_bars(series.values()))
    figure.suptitle(_title("Transfer from pretraining to fine-tuning", runs, printed), fontsize=10, parse_math=False)
    save_picture(figure, path)


def _check_comparable(runs: list[Run], steps: bool = True):
    """Raises InputError where perplexities of the runs say nothing about each other."""
    if not runs:
        return
    for run in runs:
        if not math.isfinite(run.results.get("eval_perplexity", 1.0)):
            raise InputError(f"The run in {run.folder} diverged: it has no perplexity to draw. Leave it out of --runs.")
    vocabularies = sorted({run.config.vocab_size for run in runs})
    if len(vocabularies) > 1:
        raise InputError(
            f"The runs have vocabularies of {' and '.join(map(str, vocabularies))} tokens: their perplexities cannot "
            f"be compared. Point --runs to those of one vocabulary."
        )
    tokens = [run.results["eval_predicted_tokens"] for run in runs if "eval_predicted_tokens" in run.results]
    # Another seed masks a few more or fewer.
    if tokens and max(tokens) > 1.1 * min(tokens):
        raise InputError(
            f"The runs were evaluated on {min(tokens):,.0f} to {max(tokens):,.0f} masked tokens, so on different "
            f"texts: point --runs to those of one held-out text."
        )
    lengths = sorted({run.steps for run in runs if run.steps is not None})
    if steps and len(lengths) > 1:
        raise InputError(
            f"The runs were trained for {' and '.join(map(str, lengths))} steps: point --runs to those of one length, "
            f"so that size alone differs."
        )


def _finetunings(runs: Iterable[Run], task: str) -> list[Run]:
    """Runs that were fine-tuned on a task: trained, with an accuracy, and not from scratch."""
    return [
        run for run in runs if run.task == task and run.accuracy is not None and not run.settings.get("config_name")
    ]


def _best_setting(runs: list[Run]) -> list[float]:
    """Accuracies in percent of the seeds of the setting with the best median."""
    settings: dict[tuple, list[float]] = {}
    for run in runs:
        key = tuple(str(run.settings.get(name)) for name in ("global_batch_size", "learning_rate"))
        settings.setdefault(key, []).append(100 * run.accuracy)
    return max(settings.values(), key=statistics.median)


def _bars(panels: Iterable[dict[str, list[Point]]]) -> str:
    """What a legend says of bars, if there are any."""
    several = any(len(point.values) > 1 for series in panels for points in series.values() for point in points)
    return "bars: from the least to the greatest of several runs, with their median" if several else ""


def _by_family(found: Iterable[tuple[str, float, float, list[float]]]) -> dict[str, list[Point]]:
    series: dict[str, list[Point]] = {}
    for name, x, size, values in found:
        series.setdefault(name, []).append(Point(x, tuple(values), size))
    order = [name for name in COLORS if name in series] + sorted(series.keys() - COLORS.keys())
    return {name: sorted(series[name], key=lambda point: point.x) for name in order}


def paper_points(x: str, y: str) -> dict[str, list[Point]]:
    """Two columns of Table 4 as points, by family, as "gMLP (paper)"."""
    series: dict[str, list[Point]] = {}
    for row in paper_table(4).rows:
        place, value, size = (float(row.cells[column].paper) for column in (x, y, "Params (M)"))
        series.setdefault(f"{row.name} (paper)", []).append(Point(place, (value,), size))
    return {name: sorted(points, key=lambda point: point.x) for name, points in series.items()}


def _panels(count: int) -> tuple[Figure, list[Axes]]:
    columns = count if count < 4 else 2
    rows = math.ceil(count / columns)
    width = {1: 6.4, 2: 8.4, 3: 10.5}[columns]
    figure, axes = plt.subplots(rows, columns, figsize=(width, 3.8 * rows + 0.4), squeeze=False, layout="constrained")
    for axis in axes.flat[count:]:
        axis.axis("off")
    return figure, list(axes.flat[:count])


def _color(name: str, series: dict[str, list[Point]]) -> str:
    name = name.removesuffix(" (paper)")
    others = sorted({other.removesuffix(" (paper)") for other in series} - COLORS.keys())
    return COLORS.get(name) or OTHER_COLORS[others.index(name) % len(OTHER_COLORS)]


def _draw(axis: Axes, series: dict[str, list[Point]], join: bool = False):
    """
    Points of every family: medians, with bars from the least to the greatest where several runs are one point; joined,
    if wanted, where no two are of one size, so that no line leads from seed to seed.
    """
    for name, points in series.items():
        hollow = name.endswith(" (paper)")
        y = np.array([point.y for point in points])
        spread = [y - [min(point.values) for point in points], [max(point.values) for point in points] - y]
        sizes = {point.size for point in points}
        axis.errorbar(
            [point.x for point in points],
            y,
            yerr=spread if any(len(point.values) > 1 for point in points) else None,
            marker="o",
            markersize=6,
            markerfacecolor="none" if hollow else None,
            linestyle=("--" if hollow else "-") if join and len(sizes) == len(points) else "none",
            linewidth=1.0,
            capsize=3,
            color=_color(name, series),
            label=in_words(name),
        )


def _draw_perplexities(axis: Axes, series: dict[str, list[Point]], unigram: float | None) -> dict[str, PowerLaw]:
    """Perplexity against parameters with the laws of the families that have sizes enough, which are returned."""
    fits = {
        name: power_law([point.x for point in points], [point.y for point in points])
        for name, points in series.items()
        if len(points) >= SIZES_OF_A_LAW
    }
    _draw(axis, series)
    values = [value for points in series.values() for point in points for value in point.values]
    for name, fit in fits.items():
        x = np.array([series[name][0].x, series[name][-1].x])
        y = fit.factor * x**fit.exponent
        # A straight line, since both axes are logarithmic.
        axis.plot(x, y, "--" if name.endswith(" (paper)") else "-", color=_color(name, series), linewidth=1.0)
        values += [*y]
    if unigram is not None:
        draw_level(axis, unigram, f"every token by its frequency alone: {unigram:.4g}")
        values.append(unigram)
    axis.set_ylabel("held-out perplexity (log scale, less is better)")
    _log_axis(axis, "y", values, None)
    axis.set_title("After pretraining", fontsize=9)
    axis.grid(color="0.92")
    return fits


def _draw_accuracies(axes: list[Axes], panels: dict[str, dict[str, list[Point]]], runs: list[Run] | None):
    """
    A panel of accuracies for each task, one scale for all. Chance, which is one over the number of classes, is a line
    where it is near enough to the points not to flatten them, else a number.
    """
    values = [
        value for series in panels.values() for points in series.values() for one in points for value in one.values
    ]
    lowest = min(values, default=0.0)
    for axis, (task, series) in zip(axes, panels.items()):
        chance = 100 / min(
            (run.config.num_labels for run in runs or [] if run.task == task), default=PAPER_CLASSES.get(task)
        )
        _draw(axis, series, join=True)
        if near := chance > lowest - 15:
            draw_level(axis, chance)
            values.append(chance)
        axis.set_title(f"After fine-tuning on {TASK_TITLES.get(task, task.replace('_', ' '))}", fontsize=9)
        axis.set_ylabel(f"accuracy (%; {'dotted: chance' if near else 'chance'}, {chance:.3g})")
        axis.grid(color="0.92")
    for axis in axes:
        margin = 0.05 * (max(values) - min(values)) or 1.0
        axis.set_ylim(min(values) - margin, max(values) + margin)


def _all_x(series: dict[str, list[Point]]) -> list[float]:
    return [point.x for points in series.values() for point in points]


def _log_axis(axis: Axes, which: str, values: list[float], label: str | None):
    """A logarithmic axis around the values with plain numbers at round places, also where it is short."""
    low, high = min(values), max(values)
    margin = max((high / low) ** 0.08, 1.05)
    low, high = low / margin, high * margin
    if high / low < 8:
        ticks = MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    else:
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        steps = (1, 2, 3, 5, 7) if high / low < 30 else (1, 2, 5)
        ticks = [step * 10.0**decade for decade in decades for step in steps]
    line = axis.xaxis if which == "x" else axis.yaxis
    axis.set(**{f"{which}scale": "log", f"{which}lim": (low, high)})
    line.set_major_locator(FixedLocator([tick for tick in ticks if low <= tick <= high]))
    line.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    line.set_minor_locator(NullLocator())
    if label is not None:
        line.set_label_text(label)


def _said(runs: list[Run], *tasks: str) -> str:
    """What was read, for a title."""
    read = [run for run in runs if not tasks or run.task in tasks]
    steps = sorted({run.steps for run in read if run.task == "mlm" and run.steps})
    said = f"{len(read)} finished run{'s' if len(read) > 1 else ''}"
    if not steps:
        return said
    length = f"{steps[0]:,}" if len(steps) == 1 else f"{steps[0]:,} to {steps[-1]:,}"
    return f"{said}, pretrained for {length} steps"


def _title(what: str, runs: list[Run] | None, printed: Collection[str]) -> str:
    if not runs:
        return f"{what}: the numbers of the paper's Table 4"
    note = "\nhollow, dashed: the paper's Table 4, of other text and vocabulary" if printed else ""
    return f"{what}: {_said(runs)}{note}"
