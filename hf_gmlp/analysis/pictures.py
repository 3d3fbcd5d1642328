"""What all pictures share: where they are written, and the check of that before the work."""

from pathlib import Path

import matplotlib

from ..errors import InputError

# Files, and no windows, on any machine.
matplotlib.use("Agg")
from matplotlib import pyplot as plt
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
