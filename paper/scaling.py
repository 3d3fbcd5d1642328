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
from runs import Run, best_setting, pretraining
from scipy.stats import linregress
from tables import paper_table

from hf_gmlp.errors import InputError
from hf_gmlp.tools.analysis.pictures import check_picture, plt, save_picture

# Table 2: marker and families of each kind of network, colors of families, and labels that have no room on the right.
KINDS = {
    "ConvNets": ("s", ("ResNet", "RegNetY", "EfficientNet", "NFNet")),
    "Transformers": ("^", ("ViT", "DeiT")),
    "MLP-like": ("o", ("Mixer", "ResMLP", "gMLP")),
}
CAPACITY_COLORS = {"gMLP": "C0", "DeiT": "C1", "ViT": "C4", "Mixer": "C5", "ResMLP": "C2"}
LABELS_ON_THE_LEFT = (
    "DeiT-Ti", "DeiT-S", "ResNet-152", "Mixer-B/16", "Mixer-B/16 (as gMLP)",
    "EfficientNet-B0", "EfficientNet-B3 @300",
)  # fmt: skip

TASK_TITLES = {"mnli": "MNLI (matched)", "sst2": "SST-2", "rte": "RTE", "mrpc": "MRPC", "qnli": "QNLI", "qqp": "QQP"}
# The fine-tunings in Table 4, by its columns, and their numbers of classes.
PAPER_TASKS = {"mnli": "MNLI-m", "sst2": "SST-2"}
PAPER_CLASSES = {"mnli": 3, "sst2": 2}
PAPER = " (paper)"
PARAMETERS = "parameters (millions, log scale)"
# With fewer sizes, almost any line would fit.
SIZES_OF_A_LAW = 4

# A family has the same color in every figure.
COLORS = {"gMLP": "C0", "Transformer": "C1", "BERT with relative positions": "C1", "aMLP": "C3", "BERT": "C4"}
COLORS["MLP-Mixer"] = "C5"
OTHER_COLORS = ("C2", "C6", "C8", "C9", "C7", "black")


@dataclass(frozen=True)
class Point:
    """The values of some runs, such as the seeds of one size, at x (parameters in millions, or a perplexity)."""

    x: float
    values: tuple[float, ...]
    millions: float

    @property
    def y(self) -> float:
        return statistics.median(self.values)


Series = dict[str, list[Point]]
"""Points by family."""


@dataclass(frozen=True)
class PowerLaw:
    """y = factor * x ** exponent, fitted to `points` points, with the standard error of the exponent."""

    factor: float
    exponent: float
    error: float
    points: int

    def __str__(self) -> str:
        return f"exponent {self.exponent:.3f} ± {self.error:.3f} ({self.points} sizes)"


def power_law(x: Iterable[float], y: Iterable[float]) -> PowerLaw:
    """
    Fits a power law by least squares on logarithms, as Kaplan et al. (the paper's [42]) do. Raises InputError if there
    are fewer than four different x, or a number is not positive and finite.
    """
    x, y = np.asarray(list(x), dtype=float), np.asarray(list(y), dtype=float)
    if len(set(x)) < SIZES_OF_A_LAW:
        raise InputError(f"A power law needs at least {SIZES_OF_A_LAW} sizes, got {len(set(x))}.")
    if not all(np.isfinite(one).all() and (one > 0).all() for one in (x, y)):
        raise InputError("A power law needs positive, finite numbers. Leave out runs that diverged.")
    fit = linregress(np.log(x), np.log(y))
    return PowerLaw(math.exp(fit.intercept), float(fit.slope), float(fit.stderr), len(x))


def perplexity_points(runs: Iterable[Run]) -> Series:
    """
    Returns held-out perplexities against parameters in millions; the runs of one size are one point. Raises InputError
    if the runs differ in the length of training, the vocabulary, or the held-out text.
    """
    runs = [run for run in runs if run.task == "mlm" and "eval_perplexity" in run.results]
    _check_perplexities(runs)
    _check_same("were trained for {} steps", (run.steps for run in runs if run.steps is not None))
    return _by_size(runs, lambda members: [run.results["eval_perplexity"] for run in members])


def accuracy_points(runs: Iterable[Run], task: str) -> Series:
    """
    Returns accuracies in percent after fine-tuning on a task against parameters in millions. As in the paper, the
    setting of batch size and learning rate with the best median over its seeds stands for a size.
    """
    return _by_size(_finetunings(runs, task), _best_accuracies)


def transfer_points(runs: Iterable[Run], task: str) -> Series:
    """
    Returns accuracies in percent, chosen as in `accuracy_points`, against the perplexity of the pretraining that a
    fine-tuning on a task started from. Every pretraining is a point, even if several have one size.
    """
    runs = list(runs)
    found: dict[Path, tuple[Run, list[Run]]] = {}
    for run in _finetunings(runs, task):
        base = pretraining(run, runs)
        if base is not None and "eval_perplexity" in base.results:
            found.setdefault(base.folder, (base, []))[1].append(run)
    return _series(
        (base.size, base.results["eval_perplexity"], _best_accuracies(members)) for base, members in found.values()
    )


def image_points(runs: Iterable[Run]) -> Series:
    """
    Returns accuracies in percent of image classifiers against parameters in millions; the runs of one size are one
    point. Raises InputError if the runs differ in the number of classes or of epochs.
    """
    runs = [run for run in runs if run.task == "image" and run.accuracy is not None]
    _check_same("classify into {} classes", (run.config.num_labels for run in runs))
    _check_same(
        "were trained for {} epochs", (round(run.results["epoch"], 1) for run in runs if "epoch" in run.results)
    )
    return _by_size(runs, lambda members: [100 * run.accuracy for run in members])


def finetuning_tasks(runs: Iterable[Run]) -> list[str]:
    """Returns the tasks with an accuracy that the runs were fine-tuned on, the paper's two first."""
    tasks = {task for task in {run.task for run in runs} - {None, "mlm", "image"} if _finetunings(runs, task)}
    return sorted(tasks, key=lambda task: (task not in PAPER_TASKS, task))


def paper_points(x: str, y: str) -> Series:
    """Returns two columns of Table 4 as points, under names such as "gMLP (paper)"."""
    found = []
    for row in paper_table(4).rows:
        place, value, size = (float(row.cells[column].paper) for column in (x, y, "Params (M)"))
        found.append(((row.name + PAPER, size), place, [value]))
    return _series(found)


def image_points_of_paper() -> list[tuple[str, float, float]]:
    """
    Returns the models of Table 2 (with "@384" if images do not have 224 pixels), their parameters in millions and top-1
    accuracies in percent.
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
    Draws the paper's Figure 2: accuracy against parameters as in its Table 2, and in a second panel the image
    classifiers among `runs`. Raises InputError if there are none, they cannot be compared, or nothing can be written.
    """
    check_picture(path)
    found = image_points(runs or [])
    if runs and not found:
        raise InputError("There is no finished image classifier with an accuracy among these runs.")
    size = (7.2, 10.0 if found else 5.0)
    figure, axes = plt.subplots(1 + bool(found), 1, figsize=size, squeeze=False, layout="constrained")
    axis = axes[0, 0]
    printed = image_points_of_paper()
    for kind, (marker, names) in KINDS.items():
        axis.plot([], [], marker, color="0.3", fillstyle="none", linestyle="none", label=kind)
        for name in names:
            color = CAPACITY_COLORS.get(name, "0.45")
            points = [point for point in printed if point[0].split("-")[0] == name]
            # Mixer-B is there twice; the line goes through the results of its authors.
            line = sorted((x, y) for label, x, y in points if "(" not in label)
            axis.plot(*zip(*line), color=color, linewidth=2.2 if name == "gMLP" else 1.0)
            for label, x, y in points:
                axis.plot(x, y, marker, color=color, markersize=6, fillstyle="none")
                # Where neighbors leave room.
                left, below = label in LABELS_ON_THE_LEFT, name in ("gMLP", "ResMLP")
                place = {"xytext": (-5 if left else 4, -9 if below else 4), "ha": "right" if left else "left"}
                axis.annotate(label, (x, y), textcoords="offset points", fontsize=7, color=color, **place)
    axis.legend(fontsize=8, loc="upper left")
    axis.set_title("ImageNet, Table 2 of the paper: images of 224 pixels, or of the number behind @", fontsize=9)
    axis.set_ylabel("ImageNet top-1 accuracy (%; chance: 0.1)")
    _log_axis(axis, "x", [factor * x for _, x, _ in printed for factor in (0.7, 1.7)], PARAMETERS)
    axis.grid(color="0.92")
    if found:
        axis = axes[1, 0]
        classes = next(run.config.num_labels for run in runs if run.task == "image")
        _draw_accuracies([axis], {"image": found}, runs)
        axis.set_title(f"Validation images of {classes} classes, {_said(runs, 'image')}", fontsize=9, parse_math=False)
        _log_axis(axis, "x", _all_x(found), PARAMETERS)
        axis.legend(fontsize=8)
    figure.suptitle("Accuracy of image classifiers against their size", fontsize=11)
    save_picture(figure, path)


def plot_scaling(
    path: str | Path, runs: list[Run] | None = None, *, paper: bool = False, unigram: float | None = None
) -> dict[str, PowerLaw]:
    """
    Draws the paper's Figure 5: perplexity against parameters, with a power law for every family of at least four sizes,
    and fine-tuned accuracies against parameters, with the level of chance. With aMLPs among the runs it is Figure 8.

    Args:
        path: The picture to write; its ending names the format.
        runs: Pretrainings and fine-tunings; without runs, the figure shows the paper's Table 4.
        paper: Whether to draw the points of Table 4 as well, hollow.
        unigram: The perplexity of predicting every token by its frequency, drawn as a level.

    Returns the laws by family, the paper's as "Transformer (paper)". Raises InputError if the runs have no points or
    cannot be compared, or the picture cannot be written.
    """
    check_picture(path)
    perplexities = perplexity_points(runs or [])
    tasks = finetuning_tasks(runs) if runs else list(PAPER_TASKS)
    if runs and not perplexities and not tasks:
        raise InputError(
            "These runs have no point to draw: neither a perplexity of pretraining nor an accuracy of fine-tuning. "
            "Leave --runs out for the paper's numbers."
        )
    accuracies = {task: accuracy_points(runs or [], task) for task in tasks}
    if printed := paper or not runs:
        perplexities |= paper_points("Params (M)", "Perplexity")
        for task in PAPER_TASKS.keys() & accuracies.keys():
            accuracies[task] |= paper_points("Params (M)", PAPER_TASKS[task])
    panels = [*([perplexities] if perplexities else []), *accuracies.values()]
    figure, axes = _panels(len(panels))
    fits = _draw_perplexities(axes[0], perplexities, unigram) if perplexities else {}
    _draw_accuracies(axes[len(axes) - len(tasks) :], accuracies, runs)
    for axis, series in zip(axes, panels):
        _log_axis(axis, "x", _all_x(series), PARAMETERS)
    notes = {}
    for name, points in perplexities.items():
        sizes = f"{len(points)} size{'s' if len(points) > 1 else ''} of pretraining, too few for a law"
        notes[name] = f": {fits.get(name, sizes)}"
    law = "lines in the first panel: perplexity = factor × parameters ^ exponent" if fits else ""
    _legend_below(figure, notes, "\n".join(filter(None, [law, _bars(panels)])))
    figure.suptitle(_title("Quality against size", runs, printed), fontsize=10, parse_math=False)
    save_picture(figure, path)
    return fits


def plot_transfer(path: str | Path, runs: list[Run] | None = None, *, paper: bool = False):
    """
    Draws the paper's Figure 7: accuracy after fine-tuning against perplexity after pretraining, for pretrainings and
    the fine-tunings that started from them. The points of a family are joined if each has another size. Arguments and
    errors are those of `plot_scaling`.
    """
    check_picture(path)
    _check_perplexities([run for run in runs or [] if run.task == "mlm"])
    tasks = finetuning_tasks(runs) if runs else list(PAPER_TASKS)
    series = {task: transfer_points(runs or [], task) for task in tasks}
    series = {task: points for task, points in series.items() if points or not runs}
    if not series:
        raise InputError(
            "No fine-tuning was found together with the pretraining that it started from. Point --runs to the folders "
            "of both."
        )
    printed = PAPER_TASKS.keys() & series.keys() if paper or not runs else set()
    for task in printed:
        series[task] |= paper_points("Perplexity", PAPER_TASKS[task])
    figure, axes = _panels(len(series))
    _draw_accuracies(axes, series, runs)
    for axis, points in zip(axes, series.values()):
        _log_axis(axis, "x", _all_x(points), "perplexity after pretraining (log scale, lower is better)")
    _legend_below(figure, title=_bars(series.values()))
    figure.suptitle(_title("Transfer from pretraining to fine-tuning", runs, printed), fontsize=10, parse_math=False)
    save_picture(figure, path)


def _check_same(what: str, values: Iterable[float]):
    """Raises InputError, with `what` the runs do or have, if the values of the runs differ."""
    found = sorted(set(values))
    if len(found) > 1:
        different = " and ".join(f"{value:.10g}" for value in found)
        raise InputError(f"The runs {what.format(different)} and cannot be compared. Point --runs to runs of one kind.")


def _check_perplexities(runs: list[Run]):
    """Raises InputError if perplexities of the runs say nothing about each other."""
    for run in runs:
        if not math.isfinite(run.results.get("eval_perplexity", 1.0)):
            raise InputError(f"The run in {run.folder} diverged and has no perplexity to draw. Leave it out of --runs.")
    _check_same("have vocabularies of {} tokens", (run.config.vocab_size for run in runs))
    tokens = [run.results["eval_predicted_tokens"] for run in runs if "eval_predicted_tokens" in run.results]
    # Another seed masks a few more or fewer.
    if tokens and max(tokens) > 1.1 * min(tokens):
        raise InputError(
            f"The runs were evaluated on {min(tokens):,.0f} to {max(tokens):,.0f} masked tokens, so on different "
            f"texts. Point --runs to those of one held-out text."
        )


def _finetunings(runs: Iterable[Run], task: str) -> list[Run]:
    """Runs with an accuracy on a task that were not trained from scratch."""
    return [
        run for run in runs if run.task == task and run.accuracy is not None and not run.settings.get("config_name")
    ]


def _best_accuracies(runs: list[Run]) -> list[float]:
    """Accuracies in percent of the seeds of the best setting."""
    members, _ = best_setting(runs, lambda run: run.accuracy, names=("global_batch_size", "learning_rate"))
    return [100 * run.accuracy for run in members]


def _by_size(runs: Iterable[Run], values) -> Series:
    """Points of `values` of the runs of one size, against the size."""
    found: dict[tuple[str, float], list[Run]] = {}
    for run in runs:
        found.setdefault(run.size, []).append(run)
    return _series((size, size[1], values(members)) for size, members in found.items())


def _series(found: Iterable[tuple[tuple[str, float], float, list[float]]]) -> Series:
    """Points by family, each of them given as (family, size), x, values."""
    series: Series = {}
    for (name, size), x, values in found:
        series.setdefault(name, []).append(Point(x, tuple(values), size))
    order = [name for name in COLORS if name in series] + sorted(series.keys() - COLORS.keys())
    return {name: sorted(series[name], key=lambda point: point.x) for name in order}


def _bars(panels: Iterable[Series]) -> str:
    """What a legend says of bars, if there are any."""
    several = any(len(point.values) > 1 for series in panels for points in series.values() for point in points)
    return "bars: from the least to the greatest of several runs, with their median" if several else ""


def _panels(count: int) -> tuple[Figure, list[Axes]]:
    columns = count if count < 4 else 2
    rows = math.ceil(count / columns)
    size = ({1: 6.4, 2: 8.4, 3: 10.5}[columns], 3.8 * rows + 0.4)
    figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    for axis in axes.flat[count:]:
        axis.axis("off")
    return figure, list(axes.flat[:count])


def _color(name: str, series: Series) -> str:
    name = name.removesuffix(PAPER)
    others = sorted({other.removesuffix(PAPER) for other in series} - COLORS.keys())
    return COLORS.get(name) or OTHER_COLORS[others.index(name) % len(OTHER_COLORS)]


def _draw(axis: Axes, series: Series, join: bool = False):
    """
    Draws the medians of every family, with bars from the least to the greatest value of points of several runs. `join`
    joins them if each has another size, so that no line leads from seed to seed.
    """
    for name, points in series.items():
        hollow = name.endswith(PAPER)
        y = np.array([point.y for point in points])
        spread = [y - [min(point.values) for point in points], [max(point.values) for point in points] - y]
        joined = join and len({point.millions for point in points}) == len(points)
        style = {"linestyle": ("--" if hollow else "-") if joined else "none", "color": _color(name, series)}
        style |= {"marker": "o", "markersize": 6, "markerfacecolor": "none" if hollow else None}
        bars = {"yerr": spread if any(len(point.values) > 1 for point in points) else None, "capsize": 3}
        axis.errorbar([point.x for point in points], y, linewidth=1.0, label=name, **style, **bars)


def _draw_level(axis: Axes, y: float, label: str | None = None):
    """Draw a dotted gray line at the height that is reached without learning."""
    axis.axhline(y, color="0.35", linestyle=":", linewidth=1.4, label=label)


def _legend_below(figure: Figure, notes: dict[str, str] | None = None, title: str | None = None):
    """Draw one legend for all panels below them, in a higher figure, with `notes` behind some labels."""
    found = [pair for axis in figure.axes for pair in zip(*axis.get_legend_handles_labels())]
    handles = {label: handle for handle, label in reversed(found)}
    labels = list(dict.fromkeys(label for _, label in found))
    if labels:
        figure.set_figheight(figure.get_figheight() + 0.19 * len(labels) + 0.3)
        words = [label + (notes or {}).get(label, "") for label in labels]
        options = {"loc": "outside lower center", "fontsize": 8, "title": title, "title_fontsize": 8}
        legend = figure.legend([handles[label] for label in labels], words, **options)
        for text in legend.get_texts():
            # A dollar sign in the name of a folder does not start a formula.
            text.set_parse_math(False)


def _draw_perplexities(axis: Axes, series: Series, unigram: float | None) -> dict[str, PowerLaw]:
    """Draws perplexities with the laws of the families that have enough sizes, and returns the laws."""
    laws = {
        name: power_law([point.x for point in points], [point.y for point in points])
        for name, points in series.items()
        if len(points) >= SIZES_OF_A_LAW
    }
    _draw(axis, series)
    values = _all_values(series)
    for name, law in laws.items():
        x = np.array([series[name][0].x, series[name][-1].x])
        y = law.factor * x**law.exponent
        # A straight line, since both axes are logarithmic.
        axis.plot(x, y, "--" if name.endswith(PAPER) else "-", color=_color(name, series), linewidth=1.0)
        values += [*y]
    if unigram is not None:
        _draw_level(axis, unigram, f"every token by its frequency: {unigram:.4g}")
        values.append(unigram)
    _log_axis(axis, "y", values, "held-out perplexity (log scale, lower is better)")
    axis.set_title("After pretraining", fontsize=9)
    axis.grid(color="0.92")
    return laws


def _draw_accuracies(axes: list[Axes], panels: dict[str, Series], runs: list[Run] | None):
    """
    Draws a panel of accuracies for each task, in one scale. Chance, one over the number of classes, is a line if it is
    near enough to the points not to flatten them, else a number.
    """
    values = [value for series in panels.values() for value in _all_values(series)]
    lowest = min(values, default=0.0)
    for axis, (task, series) in zip(axes, panels.items()):
        classes = [run.config.num_labels for run in runs or [] if run.task == task]
        chance = 100 / min(classes, default=PAPER_CLASSES.get(task))
        _draw(axis, series, join=True)
        if near := chance > lowest - 15:
            _draw_level(axis, chance)
            values.append(chance)
        axis.set_title(f"After fine-tuning on {TASK_TITLES.get(task, task.replace('_', ' '))}", fontsize=9)
        axis.set_ylabel(f"accuracy (%; {'dotted: chance' if near else 'chance'}, {chance:.3g})")
        axis.grid(color="0.92")
    for axis in axes:
        margin = 0.05 * (max(values) - min(values)) or 1.0
        axis.set_ylim(min(values) - margin, max(values) + margin)


def _all_x(series: Series) -> list[float]:
    return [point.x for points in series.values() for point in points]


def _all_values(series: Series) -> list[float]:
    return [value for points in series.values() for point in points for value in point.values]


def _log_axis(axis: Axes, which: str, values: list[float], label: str):
    """Makes an axis logarithmic around the values, with plain numbers at round places even if it is short."""
    margin = max((max(values) / min(values)) ** 0.08, 1.05)
    low, high = min(values) / margin, max(values) * margin
    if high / low < 8:
        ticks = MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    else:
        steps = (1, 2, 3, 5, 7) if high / low < 30 else (1, 2, 5)
        ticks = [step * 10.0**decade for decade in range(-6, 10) for step in steps]
    axis.set(**{f"{which}scale": "log", f"{which}lim": (low, high), f"{which}label": label})
    line = getattr(axis, f"{which}axis")
    line.set_major_locator(FixedLocator([tick for tick in ticks if low <= tick <= high]))
    line.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    line.set_minor_locator(NullLocator())


def _said(runs: list[Run], *tasks: str) -> str:
    """What was read, for a title."""
    read = [run for run in runs if not tasks or run.task in tasks]
    steps = {run.steps for run in read if run.task == "mlm" and run.steps}
    lengths = " to ".join(f"{length:,}" for length in sorted({min(steps), max(steps)})) if steps else ""
    return f"{len(read)} finished run{'s' * (len(read) > 1)}" + (f", pretrained for {lengths} steps" if steps else "")


def _title(what: str, runs: list[Run] | None, printed: Collection[str] | bool) -> str:
    if not runs:
        return f"{what}: the numbers of the paper's Table 4"
    note = "\nhollow, dashed: the paper's Table 4, of other text and vocabulary" if printed else ""
    return f"{what}: {_said(runs)}{note}"
