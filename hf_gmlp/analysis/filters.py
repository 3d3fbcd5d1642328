"""Pictures of the spatial weights that a model has learned (paper, Figure 4)."""

import math
from pathlib import Path

import matplotlib
import torch
from transformers import AutoModel

from ..errors import InputError
from ..modeling_gmlp import GMLPPreTrainedModel

matplotlib.use("Agg")
from matplotlib import pyplot as plt


def load_spatial_model(checkpoint: str | Path) -> GMLPPreTrainedModel:
    """
    The model of a checkpoint, whichever head it was saved with.

    Raises:
        InputError: If there is no checkpoint, or it is of another architecture.
    """
    try:
        model = AutoModel.from_pretrained(checkpoint)
    except (OSError, ValueError) as error:
        raise InputError(f"There is no model to open in {checkpoint}: {error}") from error
    if not isinstance(model, GMLPPreTrainedModel):
        raise InputError(f"{checkpoint} is a {type(model).__name__}, which has no spatial weights to draw.")
    return model


@torch.no_grad()
def middle_filters(model: GMLPPreTrainedModel) -> torch.Tensor:
    """The row of W of the token in the middle of the sequence, for every layer: [L, n]."""
    return torch.stack([proj.matrix()[proj.bias.shape[0] // 2].float() for proj in model.spatial_projections()]).cpu()


def plot_filters(model: GMLPPreTrainedModel, path: str | Path, *, max_layers: int = 36) -> None:
    """
    The paper's Figure 4 for a text model: per layer, how much each token of the sequence counts for the gate of the
    token in the middle.

    Args:
        model: A text model.
        path: The picture to write, its kind by its ending.
        max_layers: Of a deeper model, so many layers are drawn, evenly spread.

    Raises:
        InputError: If the model is one for images, or the folder of `path` does not exist.
    """
    if model.config.model_type != "gmlp":
        raise InputError("Filters over a line of tokens are for text models; this one is for images.")
    if not Path(path).resolve().parent.is_dir():
        raise InputError(f"There is no folder {Path(path).resolve().parent} to write the picture to.")
    filters = middle_filters(model)
    depth, n = filters.shape
    layers = torch.linspace(0, depth - 1, min(depth, max_layers)).round().int().unique().tolist()
    columns = min(len(layers), 6 if len(layers) > 12 else 3 if len(layers) > 4 else 2)
    rows = math.ceil(len(layers) / columns)
    width = 2.2 if columns == 6 else 3.2
    figure, axes = plt.subplots(
        rows, columns, figsize=(width * columns, 1.7 * rows + 0.9), squeeze=False, sharex=True, layout="constrained"
    )
    offsets = torch.arange(n) - n // 2
    for axis, layer in zip(axes.flat, layers):
        axis.axhline(0, color="0.8", linewidth=0.8)
        axis.axvline(0, color="0.8", linewidth=0.8)
        axis.plot(offsets, filters[layer], color="tab:blue", linewidth=1.0)
        axis.set_title(f"block {layer + 1}", fontsize=9)
        axis.tick_params(labelsize=7)
    for axis in axes.flat[len(layers) :]:
        axis.axis("off")
    # Where the last row is not full, the axis above a gap keeps its numbers.
    for column in range(columns):
        lowest = max(i for i in range(column, len(layers), columns))
        axes.flat[lowest].tick_params(labelbottom=True)
    figure.suptitle(f"Spatial filters: weights of W for the gate of the middle token (n = {n})", fontsize=10)
    figure.supxlabel("position of the other token, relative to the middle one", fontsize=9)
    figure.supylabel("weight", fontsize=9)
    figure.savefig(path, dpi=150)
    plt.close(figure)
