"""What all pictures share: where they are written, the check of that before the work, words and levels."""

from pathlib import Path

import matplotlib

from ..errors import InputError

# Files, and no windows, on any machine.
matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure


def check_picture(path: str | Path):
    """
    Raises:
        InputError: If a picture cannot be written to `path`: its folder does not exist, or its ending is of no kind of
            picture.
    """
    path = Path(path)
    if not path.resolve().parent.is_dir():
        raise InputError(f"There is no folder {path.resolve().parent} to write the picture to.")
    kinds = Figure().canvas.get_supported_filetypes()
    if path.suffix.removeprefix(".").lower() not in kinds:
        raise InputError(f"{path} has no ending of a picture: choose one of {', '.join(sorted(kinds))}.")


def save_picture(figure: Figure, path: str | Path):
    """Writes a figure, its kind by the ending of `path`, and frees it."""
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise InputError(f"The picture cannot be written: {error}") from error
    finally:
        plt.close(figure)


def in_words(family: str) -> str:
    """A family of models (`runs.family`) as a legend says it."""
    for short, words in (
        ("+ rel pos", "with relative positions"),
        (" - attn", ", without attention"),
        ("dense W", "without Toeplitz prior"),
        ("_", " "),
    ):
        family = family.replace(short, words)
    return family


def draw_level(axis: Axes, y: float, label: str | None = None):
    """A dotted gray line at the height of what is had without learning."""
    axis.axhline(y, color="0.35", linestyle=":", linewidth=1.4, label=label)


def legend_below(figure: Figure, notes: dict[str, str] | None = None, title: str | None = None):
    """
    One legend for all panels of a figure with a constrained layout, below them, where it hides nothing. The figure
    grows by it.

    Args:
        notes: What is to be said behind some labels.
    """
    found = [pair for axis in figure.axes for pair in zip(*axis.get_legend_handles_labels())]
    handles = {label: handle for handle, label in reversed(found)}
    labels = list(dict.fromkeys(label for _, label in found))
    if labels:
        figure.set_figheight(figure.get_figheight() + 0.19 * len(labels) + 0.3)
        legend = figure.legend(
            [handles[label] for label in labels],
            [label + (notes or {}).get(label, "") for label in labels],
            loc="outside lower center",
            fontsize=8,
            title=title,
            title_fontsize=8,
        )
        for text in legend.get_texts():
            # A dollar sign in the name of a folder starts no formula.
            text.set_parse_math(False)
