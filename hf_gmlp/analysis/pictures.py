"""What all pictures share: the check before the work, panels, names of models, levels, legends, and writing."""

import math
from collections.abc import Callable
from pathlib import Path

import matplotlib
from transformers import PreTrainedConfig

from ..errors import InputError

# Files instead of windows, on any machine.
matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure


def check_picture(path: str | Path):
    """Raises InputError if `path` cannot be a picture: its folder is missing, or its ending is of another kind."""
    path = Path(path)
    if not path.resolve().parent.is_dir():
        raise InputError(f"There is no folder {path.resolve().parent} to write the picture to.")
    kinds = Figure().canvas.get_supported_filetypes()
    if path.suffix.removeprefix(".").lower() not in kinds:
        raise InputError(f"{path} does not have the ending of a picture: choose one of {', '.join(sorted(kinds))}.")


def save_picture(figure: Figure, path: str | Path):
    """Writes a figure, in the format that the ending of `path` names, and frees it."""
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise InputError(f"The picture cannot be written: {error}") from error
    finally:
        plt.close(figure)


def block_panels(count: int, height: Callable[[int], float], **options) -> tuple[Figure, list[Axes], int]:
    """
    Makes a panel for each of `count` blocks or heads, in rows whose height in inches is a function of the panels in a
    row.
    Returns the figure, its panels, and how many of them are in a row.
    """
    columns = min(count, 6 if count > 12 else 3 if count > 4 else 2)
    rows = math.ceil(count / columns)
    size = (7.2, height(columns) * rows + 1.0)
    figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained", **options)
    for axis in axes.flat[count:]:
        axis.axis("off")
    return figure, list(axes.flat[:count]), columns


def family(config: PreTrainedConfig) -> str:
    """Returns the kind of a model, as a legend names it; models of one family differ only in size."""
    if config.model_type in ("gmlp", "gmlp_vision"):
        name = "aMLP" if config.attention_size else "gMLP"
        if config.spatial_gating != "split":
            name = f"{config.spatial_gating.capitalize()} {name}"
        images = config.model_type == "gmlp_vision"
        if config.toeplitz == images:
            name += ", with Toeplitz prior" if images else ", without Toeplitz prior"
        if config.spatial_heads > 1:
            name += f", {config.spatial_heads} spatial heads"
        return f"{name}, convolutional stem" if images and config.stem == "conv" else name
    if config.model_type == "bert_relpos":
        return f"BERT with relative positions{'' if config.content_attention else ', without attention'}"
    if config.model_type == "timm_wrapper":
        return f"timm {config.architecture.split('_')[0]}"
    names = {"bert": "BERT", "text_mixer": "MLP-Mixer", "vit": "ViT", "deit": "DeiT"}
    return names.get(config.model_type, config.model_type.replace("_", " "))


def draw_level(axis: Axes, y: float, label: str | None = None):
    """Draws a dotted gray line at the height that is reached without learning."""
    axis.axhline(y, color="0.35", linestyle=":", linewidth=1.4, label=label)


def legend_below(figure: Figure, notes: dict[str, str] | None = None, title: str | None = None):
    """Draws one legend for all panels below them, in a higher figure, with `notes` behind some labels."""
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
