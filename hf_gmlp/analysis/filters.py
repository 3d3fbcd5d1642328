"""Pictures of the spatial weights that a model has learned: filters over an image (paper, Figure 3) or a text (4)."""

import math
from pathlib import Path

import torch
from matplotlib.patches import Rectangle
from transformers import AutoModel

from ..errors import InputError
from ..loading import open_model
from ..models.modeling_gmlp import GMLPPreTrainedModel
from .pictures import check_picture, plt, save_picture


def load_spatial_model(checkpoint: str | Path) -> GMLPPreTrainedModel:
    """
    The model of a checkpoint, whichever head it was saved with.

    Raises:
        InputError: If there is no checkpoint, or it is of another architecture.
    """
    model, _ = open_model(AutoModel, checkpoint, new_head=True)
    if not isinstance(model, GMLPPreTrainedModel):
        raise InputError(f"{checkpoint} is a {type(model).__name__}, which has no spatial weights to draw.")
    return model


@torch.no_grad()
def middle_filters(model: GMLPPreTrainedModel) -> torch.Tensor:
    """Of a text model, the row of W of the token in the middle of the sequence, for every layer: [L, n]."""
    causal = model.config.is_causal
    rows = [proj.matrix(causal=causal)[proj.length // 2].float() for proj in model.spatial_projections()]
    return torch.stack(rows).cpu()


@torch.no_grad()
def patch_filters(model: GMLPPreTrainedModel, patches: list[tuple[int, int]]) -> torch.Tensor:
    """
    Of an image model, the rows of W of some output patches, over the grid of input patches; [CLS] is left out.

    Args:
        model: An image model.
        patches: Output patches by row and column of the grid.

    Returns:
        [L, patches, rows, columns]
    """
    grid, prefix = model.config.grid_size, model.config.num_prefix_tokens
    tokens = [prefix + row * grid[1] + column for row, column in patches]
    rows = [proj.matrix()[tokens, prefix:].float() for proj in model.spatial_projections()]
    return torch.stack(rows).unflatten(-1, grid).cpu()


def spread_layers(depth: int, at_most: int) -> list[int]:
    """
    The layers of `depth` to be drawn, counted from 0: all, or as many as are wanted, evenly spread from first to last.

    Raises:
        InputError: If none is wanted.
    """
    if at_most < 1:
        raise InputError(f"--max_layers is the number of blocks to be drawn, at least 1, and here it is {at_most}.")
    return torch.linspace(0, depth - 1, min(depth, at_most)).round().int().unique().tolist()


def spread_patches(grid: tuple[int, int]) -> list[tuple[int, int]]:
    """Five patches by row and column, or fewer of a small grid: four near its corners, and the one in the middle."""
    (top, middle, bottom), (left, center, right) = ([size // 6, size // 2, size - 1 - size // 6] for size in grid)
    patches = [(top, left), (top, right), (middle, center), (bottom, left), (bottom, right)]
    return list(dict.fromkeys(patches))


def plot_filters(model: GMLPPreTrainedModel, path: str | Path, *, max_layers: int | None = None):
    """
    The spatial filters of a model. Of a text model, the paper's Figure 4: per layer, how much each token of the
    sequence counts for the gate of the token in the middle. Of an image model, its Figure 3: a row of pictures per
    layer, each showing how much every patch of the image counts for the gate of one patch.

    Args:
        model: A model for text or for images.
        path: The picture to write, its kind by its ending.
        max_layers: Of a deeper model, so many layers are drawn, evenly spread; by default 36 for text, 12 for images.

    Raises:
        InputError: If the picture cannot be written to `path`, or no layer is to be drawn.
    """
    check_picture(path)
    images = model.config.model_type == "gmlp_vision"
    layers = spread_layers(model.config.num_hidden_layers, (12 if images else 36) if max_layers is None else max_layers)
    figure = _patch_figure(model, layers) if images else _token_figure(model, layers)
    save_picture(figure, path)


def _token_figure(model: GMLPPreTrainedModel, layers: list[int]) -> plt.Figure:
    """Curves of W over the sequence, one per layer, in one scale."""
    filters = middle_filters(model)
    n = filters.shape[1]
    columns = min(len(layers), 6 if len(layers) > 12 else 3 if len(layers) > 4 else 2)
    rows = math.ceil(len(layers) / columns)
    height = 1.25 if columns == 6 else 1.7
    figure, axes = plt.subplots(
        rows, columns, figsize=(7.2, height * rows + 0.9), squeeze=False, sharex=True, sharey=True, layout="constrained"
    )
    axes[0, 0].set_xticks([-(n // 4), 0, n // 4])
    offsets = torch.arange(n) - n // 2
    for axis, layer in zip(axes.flat, layers):
        axis.axhline(0, color="0.8", linewidth=0.8)
        axis.axvline(0, color="0.8", linewidth=0.8)
        axis.plot(offsets, filters[layer], color="tab:blue", linewidth=1.0)
        axis.set_title(f"block {layer + 1}", fontsize=8)
        axis.tick_params(labelsize=7)
    for axis in axes.flat[len(layers) :]:
        axis.axis("off")
    # Where the last row is not full, the axis above a gap keeps its numbers.
    for column in range(columns):
        lowest = max(i for i in range(column, len(layers), columns))
        axes.flat[lowest].tick_params(labelbottom=True)
    some = f" ({len(layers)} of {len(filters)} blocks)" if len(layers) < len(filters) else ""
    figure.suptitle(f"Spatial filters{some}: how much each token counts for the gate of the middle one", fontsize=10)
    figure.supxlabel(f"position of a token, relative to the middle of {n} tokens", fontsize=9)
    figure.supylabel("weight in W", fontsize=9)
    return figure


def _patch_figure(model: GMLPPreTrainedModel, layers: list[int]) -> plt.Figure:
    """Pictures of rows of W over the grid of patches: a row of them per layer, in one scale within the layer."""
    grid = model.config.grid_size
    patches = spread_patches(grid)
    filters = patch_filters(model, patches)
    height = 1.1 * min(2.0, max(0.5, grid[0] / grid[1]))
    figure, axes = plt.subplots(
        len(layers),
        len(patches),
        figsize=(7.2, height * len(layers) + 1.2),
        squeeze=False,
        layout="constrained",
    )
    for row, layer in zip(axes, layers):
        # Zero is white, whatever the weights; a layer that is all zero has no scale of its own.
        limit = filters[layer].abs().max().item() or 1.0
        for axis, (patch_row, patch_column), weights in zip(row, patches, filters[layer]):
            image = axis.imshow(weights, cmap="RdBu_r", vmin=-limit, vmax=limit)
            axis.add_patch(Rectangle((patch_column - 0.5, patch_row - 0.5), 1, 1, fill=False, edgecolor="black"))
            axis.set(xticks=[], yticks=[])
        row[0].set_ylabel(f"block {layer + 1}", fontsize=8)
        bar = figure.colorbar(image, ax=row, ticks=[-limit, 0, limit], fraction=0.02, pad=0.01)
        bar.ax.set_yticklabels([f"{-limit:.2g}", "0", f"{limit:.2g}"], fontsize=7)
    for axis, (patch_row, patch_column) in zip(axes[0], patches):
        axis.set_title(f"row {patch_row + 1}, column {patch_column + 1}", fontsize=8)
    cls = " ([CLS] left out)" if model.config.num_prefix_tokens else ""
    some = f" ({len(layers)} of {len(filters)} blocks)" if len(layers) < len(filters) else ""
    figure.suptitle(
        f"Spatial filters{some}: how much each of {grid[0]} × {grid[1]} patches{cls} counts for the gate of the\n"
        "boxed one, as weights in W; red is positive, blue negative, each block has the scale at its right",
        fontsize=9,
    )
    return figure
