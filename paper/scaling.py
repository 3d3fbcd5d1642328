"""Quality against size (paper, Figures 2, 5, 7 and 8): of finished runs, and as the paper prints it."""

import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator
from scipy.stats import linregress

from hf_gmlp.errors import InputError
from hf_gmlp.tools.analysis.pictures import check_picture, plt, save_picture

from .runs import Run, best_setting, find_runs, pretraining
from .tables import paper_table

TASK_TITLES = {"mnli": "MNLI (matched)", "sst2": "SST-2", "rte": "RTE", "mrpc": "MRPC", "qnli": "QNLI", "qqp": "QQP"}
# The fine-tunings in Table 4, by its columns, and their numbers of classes.
PAPER_TASKS = {"mnli": "MNLI-m", "sst2": "SST-2"}
PAPER_CLASSES = {"mnli": 3, "sst2": 2}
PAPER = " (paper)"
PARAMETERS = "parameters (millions, log scale)"
# With fewer sizes, almost any line would fit.
SIZES_OF_A_LAW = 4
# A family has the same color in every figure.
COLORS = {"gMLP": "C0", "Transformer": "C1", "BERT with relative positions": "C1", "DeiT": "C1", "aMLP": "C3"}
COLORS |= {"BERT": "C4", "ViT": "C4", "MLP-Mixer": "C5", "Mixer": "C5"}
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


def power_law(x: Iterable[float], y: Iterable[float]) -> PowerLaw:
    """
    Fit a power law by least squares on logarithms, as Kaplan et al. (the paper's [42]) do.

    Raises:
        InputError: There are fewer than four different x, or a number is not positive and finite.
    """
    sizes, values = np.asarray(list(x), dtype=float), np.asarray(list(y), dtype=float)
    if len(set(sizes)) < SIZES_OF_A_LAW:
        raise InputError(f"A power law needs at least {SIZES_OF_A_LAW} sizes, got {len(set(sizes))}.")
    if not all(np.isfinite(array).all() and (array > 0).all() for array in (sizes, values)):
        raise InputError("A power law needs positive, finite numbers. Leave out runs that diverged.")
    fit = linregress(np.log(sizes), np.log(values))
    return PowerLaw(math.exp(fit.intercept), float(fit.slope), float(fit.stderr), len(sizes))


def perplexity_points(runs: Iterable[Run]) -> Series:
    """
    Return held-out perplexities against parameters in millions; the runs of one size are one point. Raise InputError if
    the runs differ in the length of training, the vocabulary, or the held-out text.
    """
    runs = [run for run in runs if run.task == "mlm" and "eval_perplexity" in run.results]
    _check_perplexities(runs)
    _check_same("were trained for {} steps", (run.steps for run in runs if run.steps is not None))
    return _by_size(runs, lambda members: [run.results["eval_perplexity"] for run in members])


def accuracy_points(runs: Iterable[Run], task: str) -> Series:
    """
    Return accuracies in percent after fine-tuning on a task against parameters in millions. As in the paper, a size has
    those of the setting of batch size and learning rate with the best median over its seeds.
    """
    return _by_size(_finetunings(runs, task), _best_accuracies)


def transfer_points(runs: Iterable[Run], task: str) -> Series:
    """
    Return accuracies in percent, chosen as in `accuracy_points`, against the perplexity of the pretraining that a
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
    Return accuracies in percent of image classifiers against parameters in millions; the runs of one size are one
    point. Raise InputError if the runs differ in the number of classes or of epochs.
    """
    runs = [run for run in runs if run.task == "image" and run.accuracy is not None]
    _check_same("classify into {} classes", (run.config.num_labels for run in runs))
    epochs = (round(run.results["epoch"], 1) for run in runs if "epoch" in run.results)
    _check_same("were trained for {} epochs", epochs)
    return _by_size(runs, lambda members: [100 * run.accuracy for run in members])


def finetuning_tasks(runs: Iterable[Run]) -> list[str]:
    """Return the tasks with an accuracy that the runs were fine-tuned on, the paper's two first."""
    tasks = {task for task in {run.task for run in runs} - {None, "mlm", "image"} if _finetunings(runs, task)}
    return sorted(tasks, key=lambda task: (task not in PAPER_TASKS, task))


def paper_points(x: str, y: str) -> Series:
    """Return two columns of Table 4 as points, under names such as "gMLP (paper)"."""
    found = []
    for row in paper_table(4).rows:
        position, value, size = (float(row.cells[column].paper) for column in (x, y, "Params (M)"))
        found.append(((row.name + PAPER, size), position, [value]))
    return _series(found)


def image_points_of_paper() -> Series:
    """Return the models of Table 2 as published: top-1 accuracies in percent against parameters in millions."""
    found = []
    for row in paper_table(2).rows:
        if "our setup" not in row.name:
            millions, accuracy = (float(row.cells[name].paper) for name in ("Params (M)", "ImageNet Top-1 (%)"))
            found.append(((row.name.partition("-")[0], millions), millions, [accuracy]))
    return _series(found)


def plot_capacity(path: str | Path, runs: list[Run] | None = None):
    """
    Draw the paper's Figure 2: accuracy against parameters as in its Table 2, and in a second panel the image
    classifiers among `runs`. Raise InputError if there are none, or they cannot be compared.
    """
    check_picture(path)
    panels = {"ImageNet, Table 2 of the paper": image_points_of_paper()}
    if runs:
        panels[f"Validation images of {_about(runs, 'image')}"] = image_points(runs)
        if not all(panels.values()):
            raise InputError("There is no finished image classifier with an accuracy among these runs.")
    figure, axes = _panels(len(panels))
    for axis, (title, series) in zip(axes, panels.items()):
        _draw(axis, series, {}, join=True)
        axis.set_title(title, fontsize=9)
        axis.set_ylabel("top-1 accuracy (%)")
        log_axis(axis.xaxis, _all_x(series), PARAMETERS)
    _finish(figure, axes, "Accuracy of image classifiers against their size", path)


def plot_scaling(path: str | Path, runs: list[Run] | None = None, paper: bool = False) -> dict[str, PowerLaw]:
    """
    Draw the paper's Figure 5: perplexity against parameters, with a power law for every family of at least four sizes,
    and fine-tuned accuracies against parameters. With aMLPs among the runs it is Figure 8.

    Args:
        path: The picture to write; its ending names the format.
        runs: Pretrainings and fine-tunings; without runs, the figure shows the paper's Table 4.
        paper: Whether to draw the points of Table 4 as well, hollow.

    Returns:
        The laws by family, the paper's as "Transformer (paper)".

    Raises:
        InputError: The runs have no points or cannot be compared.
    """
    check_picture(path)
    perplexities = perplexity_points(runs or [])
    tasks = finetuning_tasks(runs) if runs else list(PAPER_TASKS)
    if runs and not perplexities and not tasks:
        raise InputError("These runs have neither a perplexity of pretraining nor an accuracy of fine-tuning to draw.")
    accuracies = {task: accuracy_points(runs or [], task) for task in tasks}
    if paper or not runs:
        perplexities |= paper_points("Params (M)", "Perplexity")
        for task in PAPER_TASKS.keys() & accuracies.keys():
            accuracies[task] |= paper_points("Params (M)", PAPER_TASKS[task])
    panels = [*([perplexities] if perplexities else []), *accuracies.values()]
    figure, axes = _panels(len(panels))
    laws = _draw_perplexities(axes[0], perplexities) if perplexities else {}
    _draw_accuracies(axes[len(axes) - len(tasks) :], accuracies, runs)
    for axis, series in zip(axes, panels):
        log_axis(axis.xaxis, _all_x(series), PARAMETERS)
    _finish(figure, axes, f"Quality against size: {_about(runs)}", path)
    return laws


def plot_transfer(path: str | Path, runs: list[Run] | None = None, paper: bool = False):
    """
    Draw the paper's Figure 7: accuracy after fine-tuning against perplexity after pretraining, for pretrainings and the
    fine-tunings that started from them. Arguments and errors are those of `plot_scaling`.
    """
    check_picture(path)
    _check_perplexities([run for run in runs or [] if run.task == "mlm"])
    tasks = finetuning_tasks(runs) if runs else list(PAPER_TASKS)
    panels = {task: transfer_points(runs or [], task) for task in tasks}
    panels = {task: points for task, points in panels.items() if points or not runs}
    if not panels:
        raise InputError("No fine-tuning was found together with its pretraining. Point --runs to the folders of both.")
    if paper or not runs:
        for task in PAPER_TASKS.keys() & panels.keys():
            panels[task] |= paper_points("Perplexity", PAPER_TASKS[task])
    figure, axes = _panels(len(panels))
    _draw_accuracies(axes, panels, runs)
    for axis, points in zip(axes, panels.values()):
        log_axis(axis.xaxis, _all_x(points), "perplexity after pretraining (log scale, lower is better)")
    _finish(figure, axes, f"Transfer from pretraining to fine-tuning: {_about(runs)}", path)


def _check_same(what: str, values: Iterable[float]):
    """Raise InputError if the values differ; `what` the runs have or did goes into its message."""
    distinct = sorted(set(values))
    if len(distinct) > 1:
        different = " and ".join(f"{value:.10g}" for value in distinct)
        raise InputError(f"The runs {what.format(different)} and cannot be compared. Point --runs to runs of one kind.")


def _check_perplexities(runs: list[Run]):
    """Raise InputError if the perplexities of the runs cannot be compared."""
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


def _by_size(runs: Iterable[Run], values: Callable) -> Series:
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


def _panels(count: int) -> tuple:
    figure, axes = plt.subplots(1, count, figsize=(4.6 * count, 4.2), squeeze=False, layout="constrained")
    return figure, list(axes.flat)


def _finish(figure, axes: list[Axes], title: str, path: str | Path):
    """Write a figure, with a legend and a grid in each panel."""
    for axis in axes:
        axis.grid(color="0.92")
        if axis.get_legend_handles_labels()[1]:
            axis.legend(fontsize=7)
    figure.suptitle(title, fontsize=10, parse_math=False)
    save_picture(figure, path)


def _color(name: str, series: Series) -> str:
    name = name.removesuffix(PAPER)
    others = sorted({other.removesuffix(PAPER) for other in series} - COLORS.keys())
    return COLORS.get(name) or OTHER_COLORS[others.index(name) % len(OTHER_COLORS)]


def _draw(axis: Axes, series: Series, labels: dict[str, str], join: bool = False):
    """
    Draw the medians of every family, with bars from the least to the greatest value of points of several runs. `join`
    joins them if each has another size, so that no line leads from seed to seed.
    """
    for name, points in series.items():
        paper = name.endswith(PAPER)
        y = np.array([point.y for point in points])
        bars = [y - [min(point.values) for point in points], [max(point.values) for point in points] - y]
        joined = join and len({point.millions for point in points}) == len(points)
        style = {"linestyle": ("--" if paper else "-") if joined else "none", "color": _color(name, series)}
        style |= {"marker": "o", "markerfacecolor": "none" if paper else None, "linewidth": 1.0, "capsize": 3}
        several = any(len(point.values) > 1 for point in points)
        label = labels.get(name, name)
        axis.errorbar([point.x for point in points], y, yerr=bars if several else None, label=label, **style)


def _draw_perplexities(axis: Axes, series: Series) -> dict[str, PowerLaw]:
    """Draw perplexities with the laws of the families that have enough sizes, and return the laws."""
    laws = {
        name: power_law([point.x for point in points], [point.y for point in points])
        for name, points in series.items()
        if len(points) >= SIZES_OF_A_LAW
    }
    labels = {name: f"{name}: exponent {law.exponent:.3f} ± {law.error:.3f}" for name, law in laws.items()}
    _draw(axis, series, labels)
    for name, law in laws.items():
        x = np.array([series[name][0].x, series[name][-1].x])
        # A straight line, since both axes are logarithmic.
        style = "--" if name.endswith(PAPER) else "-"
        axis.plot(x, law.factor * x**law.exponent, style, color=_color(name, series), linewidth=1.0)
    values = [value for points in series.values() for point in points for value in point.values]
    log_axis(axis.yaxis, values, "held-out perplexity (log scale, lower is better)")
    axis.set_title("After pretraining", fontsize=9)
    return laws


def _draw_accuracies(axes: list[Axes], panels: dict[str, Series], runs: list[Run] | None):
    """Draw a panel of accuracies for each task, in one scale, whose label names the accuracy of chance."""
    for axis, (task, series) in zip(axes, panels.items()):
        classes = [run.config.num_labels for run in runs or [] if run.task == task]
        chance = 100 / min(classes, default=PAPER_CLASSES.get(task))
        _draw(axis, series, {}, join=True)
        axis.set_title(f"After fine-tuning on {TASK_TITLES.get(task, task.replace('_', ' '))}", fontsize=9)
        axis.set_ylabel(f"accuracy (%; chance: {chance:.3g})")
        if axis is not axes[0]:
            axis.sharey(axes[0])


def _all_x(series: Series) -> list[float]:
    return [point.x for points in series.values() for point in points]


def log_axis(line, values: list[float], label: str):
    """Make an axis (`axis.xaxis` or `axis.yaxis`) logarithmic around the values, with plain numbers as ticks."""
    margin = max((max(values) / min(values)) ** 0.08, 1.05)
    low, high = min(values) / margin, max(values) * margin
    if high / low < 8:
        ticks = MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    else:
        steps = (1, 2, 3, 5, 7) if high / low < 30 else (1, 2, 5)
        ticks = [step * 10.0**decade for decade in range(-6, 10) for step in steps]
    name = line.axis_name
    line.axes.set(**{f"{name}scale": "log", f"{name}lim": (low, high), f"{name}label": label})
    line.set_major_locator(FixedLocator([tick for tick in ticks if low <= tick <= high]))
    line.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    line.set_minor_locator(NullLocator())


def _about(runs: list[Run] | None, task: str | None = None) -> str:
    """Return what was read, for a title."""
    if not runs:
        return "the numbers of the paper's Table 4"
    count = sum(run.task == task for run in runs) if task else len(runs)
    return f"{count} finished run{'s' * (count > 1)}"


def plot(kind: str, runs: list[str] | None, paper: bool, output: str | None):
    """Draw a figure, "capacity", "scaling" or "transfer", of the runs in folders, and print the power laws."""
    path, found = output or f"{kind}.png", find_runs(runs) if runs else None
    if kind == "capacity":
        plot_capacity(path, found)
    elif kind == "transfer":
        plot_transfer(path, found, paper)
    else:
        for name, law in plot_scaling(path, found, paper).items():
            fit = f"{law.exponent:.3f} ± {law.error:.3f}"
            print(f"{name}: perplexity ~ parameters^({fit}), from {law.points} sizes")
    print(f"The picture is in {path}.")
