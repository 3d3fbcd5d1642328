"""Pictures of the spatial weights that a model has learned: filters over an image (paper, Figure 3) or a text (4)."""

from pathlib import Path

import torch
from matplotlib.patches import Rectangle
from transformers import AutoModel

from ..errors import InputError
from ..loading import open_model
from ..models.modeling_gmlp import GMLPPreTrainedModel
from .pictures import block_panels, check_picture, plt, save_picture


def load_spatial_model(checkpoint: str | Path) -> GMLPPreTrainedModel:
    """
    Opens the model of a checkpoint, whichever head it was saved with.

    Raises:
        InputError: If there is no checkpoint, or it is of another architecture.
    """
    model, _ = open_model(AutoModel, checkpoint, new_head=True)
    if not isinstance(model, GMLPPreTrainedModel):
        raise InputError(f"{checkpoint} is a {type(model).__name__}, which has no spatial weights to draw.")
    return model


def head_names(model: GMLPPreTrainedModel) -> list[str]:
    """Returns a title for each of the L * H spatial matrices of a model, in the order of the functions below."""
    blocks, heads = range(1, model.config.num_hidden_layers + 1), model.config.spatial_heads
    if heads == 1:
        return [f"block {block}" for block in blocks]
    return [f"block {block}, head {head}" for block in blocks for head in range(1, heads + 1)]


@torch.no_grad()
def middle_filters(model: GMLPPreTrainedModel) -> torch.Tensor:
    """Returns the row of W of the token in the middle of the sequence, for every head of a text model: [L * H, n]."""
    causal = model.config.is_causal
    rows = [proj.matrix(causal=causal)[:, proj.length // 2].float() for proj in model.spatial_projections()]
    return torch.cat(rows).cpu()


@torch.no_grad()
def patch_filters(model: GMLPPreTrainedModel, patches: list[tuple[int, int]]) -> torch.Tensor:
    """
    Returns the rows of W of an image model for some output patches, by row and column of the grid, over the grid of
    input patches (without [CLS]): [L * H, patches, rows, columns].
    """
    grid, prefix = model.config.grid_size, model.config.num_prefix_tokens
    tokens = [prefix + row * grid[1] + column for row, column in patches]
    rows = [proj.matrix()[:, tokens, prefix:].float() for proj in model.spatial_projections()]
    return torch.cat(rows).unflatten(-1, grid).cpu()


def spread_panels(count: int, at_most: int) -> list[int]:
    """
    Returns the panels to draw, counted from 0: all of `count`, or `at_most` evenly spread from the first to the last.

    Raises:
        InputError: If `at_most` is below 1.
    """
    if at_most < 1:
        raise InputError(f"--max_layers must be at least 1, got {at_most}.")
    return torch.linspace(0, count - 1, min(count, at_most)).round().int().unique().tolist()


def spread_patches(grid: tuple[int, int]) -> list[tuple[int, int]]:
    """Returns five patches by row and column, fewer on a small grid: four near its corners, and the middle one."""
    (top, middle, bottom), (left, center, right) = ([size // 6, size // 2, size - 1 - size // 6] for size in grid)
    patches = [(top, left), (top, right), (middle, center), (bottom, left), (bottom, right)]
    return list(dict.fromkeys(patches))


def plot_filters(model: GMLPPreTrainedModel, path: str | Path, *, max_layers: int | None = None):
    """
    Draws the spatial filters of a model. For a text model this is the paper's Figure 4: how much each token counts for
    the gate of the token in the middle, block by block. For an image model it is Figure 3: a row of pictures per block,
    each showing how much every patch counts for the gate of one patch. With several heads, each head of a block is
    drawn as a block is. Draws at most `max_layers` blocks (or heads), evenly spread; by default 36 for text, 12 for
    images.

    Raises:
        InputError: If the picture cannot be written to `path`, or `max_layers` is below 1.
    """
    check_picture(path)
    images = model.config.model_type == "gmlp_vision"
    panels = spread_panels(len(head_names(model)), (12 if images else 36) if max_layers is None else max_layers)
    save_picture(_patch_figure(model, panels) if images else _token_figure(model, panels), path)


def some_panels(model: GMLPPreTrainedModel, shown: int) -> str:
    """Words for a title that shows some of the blocks or heads; none if it shows all."""
    count, name = len(head_names(model)), "blocks" if model.config.spatial_heads == 1 else "heads"
    return f" ({shown} of {count} {name})" if shown < count else ""


def _token_figure(model: GMLPPreTrainedModel, panels: list[int]) -> plt.Figure:
    """Curves of W over the sequence, one per head, in one scale."""
    filters, names = middle_filters(model), head_names(model)
    n = filters.shape[1]
    figure, axes, columns = block_panels(
        len(panels), lambda columns: 1.25 if columns == 6 else 1.7, sharex=True, sharey=True
    )
    axes[0].set_xticks([-(n // 4), 0, n // 4])
    offsets = torch.arange(n) - n // 2
    for axis, panel in zip(axes, panels):
        axis.axhline(0, color="0.8", linewidth=0.8)
        axis.axvline(0, color="0.8", linewidth=0.8)
        axis.plot(offsets, filters[panel], color="tab:blue", linewidth=1.0)
        axis.set_title(names[panel], fontsize=8)
        axis.tick_params(labelsize=7)
    # Where the last row is not full, the axis above a gap keeps its numbers.
    for axis in axes[-columns:]:
        axis.tick_params(labelbottom=True)
    some = some_panels(model, len(panels))
    figure.suptitle(f"Spatial filters{some}: how much each token counts for the gate of the middle one", fontsize=10)
    figure.supxlabel(f"position of a token, relative to the middle of {n} tokens", fontsize=9)
    figure.supylabel("weight in W", fontsize=9)
    return figure


def _patch_figure(model: GMLPPreTrainedModel, panels: list[int]) -> plt.Figure:
    """Rows of W over the grid of patches as pictures, a line of them per head with its own scale."""
    grid, names = model.config.grid_size, head_names(model)
    patches = spread_patches(grid)
    filters = patch_filters(model, patches)
    height = 1.1 * min(2.0, max(0.5, grid[0] / grid[1]))
    size = (7.2, height * len(panels) + 1.2)
    figure, axes = plt.subplots(len(panels), len(patches), figsize=size, squeeze=False, layout="constrained")
    for row, panel in zip(axes, panels):
        # Zero is white, whatever the weights; a head of zeros has no scale.
        limit = filters[panel].abs().max().item() or 1.0
        for axis, (patch_row, patch_column), weights in zip(row, patches, filters[panel]):
            image = axis.imshow(weights, cmap="RdBu_r", vmin=-limit, vmax=limit)
            axis.add_patch(Rectangle((patch_column - 0.5, patch_row - 0.5), 1, 1, fill=False, edgecolor="black"))
            axis.set(xticks=[], yticks=[])
        row[0].set_ylabel(names[panel].replace(", ", "\n"), fontsize=8)
        bar = figure.colorbar(image, ax=row, ticks=[-limit, 0, limit], fraction=0.02, pad=0.01)
        bar.ax.set_yticklabels([f"{-limit:.2g}", "0", f"{limit:.2g}"], fontsize=7)
    for axis, (patch_row, patch_column) in zip(axes[0], patches):
        axis.set_title(f"row {patch_row + 1}, column {patch_column + 1}", fontsize=8)
    cls = " (without [CLS])" if model.config.num_prefix_tokens else ""
    some = some_panels(model, len(panels))
    figure.suptitle(
        f"Spatial filters{some}: how much each of {grid[0]} × {grid[1]} patches{cls} counts for the gate of the\n"
        "boxed one, as weights in W; red is positive, blue negative, each row has the scale at its right",
        fontsize=9,
    )
    return figure
