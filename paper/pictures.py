"""Layout and files of plots."""

import math
from collections.abc import Callable
from pathlib import Path

import matplotlib

from hf_gmlp.errors import InputError, first_line

# Write files without a display.
matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure


def save_picture(figure: Figure, path: str | Path) -> None:
    """Write a figure in the format of the file extension, by default PNG, and free it."""
    try:
        figure.savefig(path, dpi=150, format=Path(path).suffix.removeprefix(".") or "png")
    except ValueError as error:
        # The file extension is not supported.
        raise InputError(f"{path} cannot be written: {first_line(error)}.") from error
    finally:
        plt.close(figure)


def block_panels(count: int, height: Callable[[int], float], **options) -> tuple[Figure, list[Axes], int]:
    """Make a panel for each of `count` blocks or heads.

    Args:
        height: The height of a row in inches, as a function of the number of panels in a row.

    Returns:
        The figure, its panels, and the number of panels in a row.
    """
    columns = min(count, 6 if count > 12 else 3 if count > 4 else 2)
    rows = math.ceil(count / columns)
    size = (7.2, height(columns) * rows + 1.0)
    figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained", **options)
    for axis in axes.flat[count:]:
        axis.axis("off")
    return figure, list(axes.flat[:count]), columns
