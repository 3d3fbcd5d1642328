"""Plots of quality against size (paper, Figures 2, 5, 7 and 8), for finished runs and the paper's numbers."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axis import XAxis, YAxis
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from scipy.stats import linregress

from hf_gmlp.errors import InputError

from .pictures import plt, save_picture
from .runs import Run, best_setting, family, find_runs, pretraining
from .tables import paper_table

# The fine-tunings in Table 4, by its columns.
PAPER_TASKS = {"mnli": "MNLI-m", "sst2": "SST-2"}
PAPER = " (paper)"
SIZE = "millions of parameters"
# Minimum number of sizes for a power law: a line fits almost any smaller number of points.
SIZES_OF_A_LAW = 4


@dataclass
class Panel:
    """A panel of a figure."""

    title: str
    x: str  # the label of the axis
    y: str
    points: pd.DataFrame  # a row for each run, with columns "family", "x" and "y"
    joined: bool = True  # whether to connect the medians of a family with lines
    laws: dict[str, Any] | None = None  # by family, the `power_laws` to draw; with them the y axis is logarithmic


def power_laws(points: pd.DataFrame) -> dict[str, Any]:
    """Fit y = exp(intercept) * x ** slope to the medians of every family of at least four sizes.

    The fit is a least-squares line in log-log space (scipy's `linregress`), as in Kaplan et al. (the paper's [42]).
    """
    medians = {name: group.groupby("x").y.median() for name, group in points.groupby("family", sort=False)}
    return {name: linregress(np.log(y.index), np.log(y)) for name, y in medians.items() if len(y) >= SIZES_OF_A_LAW}


def to_points(rows: Iterable[tuple[str, float, float]]) -> pd.DataFrame:
    """Convert rows (family, x, y) to the points of a panel."""
    return pd.DataFrame(rows, columns=["family", "x", "y"]).astype({"x": float, "y": float})


def perplexity_points(runs: Iterable[Run]) -> pd.DataFrame:
    """Return pretraining perplexity against parameters; raise InputError if the runs are not comparable."""
    runs = [run for run in runs if run.task == "mlm" and "eval_perplexity" in run.results]
    check_same("vocabularies of {} tokens", (run.config.vocab_size for run in runs))
    check_same("trainings of {} steps", (run.steps for run in runs))
    return to_points((family(run.config), run.millions, run.results["eval_perplexity"]) for run in runs)


def image_points(runs: Iterable[Run]) -> pd.DataFrame:
    """Return image accuracy against parameters; raise InputError if the runs are not comparable."""
    runs = [run for run in runs if run.task == "image" and run.accuracy]
    check_same("{} classes", (run.config.num_labels for run in runs))
    check_same("trainings of {} epochs", (run.settings.get("num_train_epochs") for run in runs))
    return to_points((family(run.config), run.millions, 100 * run.accuracy) for run in runs)


def check_same(what: str, values: Iterable[Any]) -> None:
    """Raise InputError if the values that are not None differ; `what` describes the values in the message."""
    distinct = sorted({value for value in values if value is not None})
    if len(distinct) > 1:
        different = " and ".join(f"{value:,}" for value in distinct)
        raise InputError(f"These runs cannot be compared: they have {what.format(different)}. Pass fewer as --runs.")


def finetunings(runs: Iterable[Run]) -> list[Run]:
    """Return the fine-tuning runs with an accuracy on a text task, excluding those trained from scratch."""
    runs = [run for run in runs if run.task not in ("", "mlm", "image") and run.accuracy]
    return [run for run in runs if not run.settings.get("config_name")]


def accuracy_points(runs: Iterable[Run], task: str, x: Callable[[Run], float | None]) -> pd.DataFrame:
    """Return accuracies of fine-tunings on a task: all seeds of the best setting at each x."""
    groups: dict[tuple, list[Run]] = {}
    for run in finetunings(runs):
        if run.task == task and x(run) is not None:
            groups.setdefault((family(run.config), x(run)), []).append(run)
    best = {key: best_setting(members, members[0].metric)[0] for key, members in groups.items()}
    return to_points((*key, 100 * run.accuracy) for key, members in best.items() for run in members)


def paper_points(number: int, x: str, y: str) -> pd.DataFrame:
    """Return two columns of a table of the paper as points. In Table 2, all sizes of a model form one family."""
    rows = [row for row in paper_table(number).rows if "our setup" not in row.name]
    names = [row.name.partition("-")[0] if number == 2 else row.name for row in rows]
    return to_points((name + PAPER, float(row.paper[x]), float(row.paper[y])) for name, row in zip(names, rows))


def accuracy_panels(runs: list[Run], paper: bool, label: str, column: str, x: Callable) -> list[Panel]:
    """Return a panel for each fine-tuning task; `column` of Table 4 is the x axis of the paper's points."""
    panels = []
    for task in sorted({run.task for run in finetunings(runs)}) if runs else PAPER_TASKS:
        points = accuracy_points(runs, task, x)
        if paper and task in PAPER_TASKS:
            points = pd.concat([points, paper_points(4, column, PAPER_TASKS[task])])
        title = f"After fine-tuning on {PAPER_TASKS.get(task, task.upper())}"
        # Perplexity on the x axis differs between seeds of one size, so lines would connect seeds.
        panels.append(Panel(title, label, "accuracy (%)", points, joined=label == SIZE))
    return panels


def capacity(runs: list[Run]) -> list[Panel]:
    """Return Figure 2: accuracy against parameters in Table 2, and of the image classifiers among the runs."""
    printed = paper_points(2, "Params (M)", "ImageNet Top-1 (%)")
    panels = {"ImageNet (Table 2)": printed, "These runs": image_points(runs)}
    return [Panel(title, SIZE, "top-1 accuracy (%)", points) for title, points in panels.items()]


def scaling(runs: list[Run], paper: bool) -> list[Panel]:
    """Return Figure 5, with aMLPs Figure 8: perplexity, and accuracy after fine-tuning, against parameters."""
    points = perplexity_points(runs)
    if paper:
        points = pd.concat([points, paper_points(4, "Params (M)", "Perplexity")])
    pretrained = Panel("After pretraining", SIZE, "held-out perplexity", points, False, power_laws(points))
    return [pretrained, *accuracy_panels(runs, paper, SIZE, "Params (M)", lambda run: run.millions)]


def transfer(runs: list[Run], paper: bool) -> list[Panel]:
    """Return Figure 7: accuracy after fine-tuning against perplexity after pretraining."""
    perplexity_points(runs)

    def perplexity(run: Run) -> float | None:
        base = pretraining(run, runs)
        return base.results.get("eval_perplexity") if base else None

    return accuracy_panels(runs, paper, "perplexity after pretraining", "Perplexity", perplexity)


def draw(panels: list[Panel], path: str) -> None:
    """Draw medians with bars from minimum to maximum; the paper's points are hollow."""
    figure, axes = plt.subplots(1, len(panels), figsize=(4.6 * len(panels), 4.2), squeeze=False, layout="constrained")
    names = list(dict.fromkeys(name.removesuffix(PAPER) for panel in panels for name in panel.points.family))
    for axis, panel in zip(axes.flat, panels):
        for name, group in panel.points.groupby("family", sort=False):
            values, law = group.groupby("x").y.agg(["median", "min", "max"]), (panel.laws or {}).get(name)
            color = f"C{names.index(name.removesuffix(PAPER))}"
            line, fill = ("--", "none") if name.endswith(PAPER) else ("-", color)
            label = f"{name}: exponent {law.slope:.3f} ± {law.stderr:.3f}" if law else name
            axis.vlines(values.index, values["min"], values["max"], color)
            points = axis.plot(values["median"], line, marker="o", color=color, mfc=fill, label=label)
            if not panel.joined:
                points[0].set_linestyle("none")
            if law:
                axis.plot(values.index, np.exp(law.intercept) * values.index**law.slope, line, color=color)
        axis.set(title=panel.title, ylabel=panel.y)
        log_axis(axis.xaxis, panel.x)
        if panel.laws is not None:
            log_axis(axis.yaxis, panel.y)
        axis.grid(color="0.92")
        axis.legend(fontsize=7)
    save_picture(figure, path)


def log_axis(axis: XAxis | YAxis, label: str) -> None:
    """Make an axis logarithmic with plain numbers as tick labels."""
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    axis.set_label_text(f"{label} (log scale)")
    axis.set_major_locator(LogLocator(subs=(1, 2, 3, 5, 7)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def plot(kind: str, runs: list[str], paper: bool, output: str) -> None:
    """Draw a figure and print its power laws; the arguments are the flags. Raise InputError if the runs have no points
    or cannot be compared."""
    finished = find_runs(runs) if runs else []
    if kind == "capacity":
        panels = capacity(finished)
    else:
        panels = (scaling if kind == "scaling" else transfer)(finished, paper or not runs)
    panels = [panel for panel in panels if len(panel.points)]
    if not panels:
        raise InputError(f"These runs have no results for the figure {kind!r}. Pass other folders as --runs.")
    draw(panels, output)
    for name, law in (panels[0].laws or {}).items():
        print(f"{name}: perplexity ~ parameters^({law.slope:.3f} ± {law.stderr:.3f})")
    print(f"The picture is in {output}.")
