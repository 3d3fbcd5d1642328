"""Plots of the spatial filters that a model has learned, over an image (paper, Figure 3) or a text (Figure 4)."""

from pathlib import Path

import torch
from matplotlib.patches import Rectangle
from transformers import AutoModel

from hf_gmlp.errors import InputError
from hf_gmlp.loading import open_model
from hf_gmlp.models.modeling_gmlp import GMLPPreTrainedModel

from .pictures import block_panels, plt, save_picture


def load_spatial_model(checkpoint: str | Path) -> GMLPPreTrainedModel:
    """Load a gMLP or aMLP without its head, or raise an InputError if the checkpoint is of another kind."""
    model = open_model(AutoModel, checkpoint, new_head=True)
    if not isinstance(model, GMLPPreTrainedModel):
        raise InputError(f"{checkpoint} is a {type(model).__name__}, which has no spatial weights: choose a gMLP.")
    return model


def head_names(model: GMLPPreTrainedModel) -> list[str]:
    """Return a title for each of the L * H spatial matrices of a model, in the order of `spatial_matrices`."""
    blocks, heads = range(1, model.config.num_hidden_layers + 1), model.config.spatial_heads
    if heads == 1:
        return [f"block {block}" for block in blocks]
    return [f"block {block}, head {head}" for block in blocks for head in range(1, heads + 1)]


@torch.no_grad()
def spatial_matrices(model: GMLPPreTrainedModel, rows: list[int] | slice = slice(None)) -> torch.Tensor:
    """Return rows of the W of every head over the tokens or patches, without the [CLS] of images: [L * H, rows, n]."""
    prefix = getattr(model.config, "num_prefix_tokens", 0)
    matrices = (proj.matrix(is_causal=model.config.is_causal) for proj in model.spatial_projections())
    return torch.cat([matrix[:, prefix:, prefix:][:, rows].float().cpu() for matrix in matrices])


def middle_filters(model: GMLPPreTrainedModel) -> torch.Tensor:
    """Return the row of W of the middle position of a text, for every head: [L * H, n]."""
    return spatial_matrices(model, [model.config.max_position_embeddings // 2])[:, 0]


def patch_filters(model: GMLPPreTrainedModel, patches: list[tuple[int, int]]) -> torch.Tensor:
    """Return the rows of W of selected output patches over the grid of input patches, without [CLS].

    Args:
        model: An image model.
        patches: Row and column of each of P output patches.

    Returns:
        The weights of every head, [L * H, P, rows, columns].
    """
    grid = model.config.grid_size
    return spatial_matrices(model, [row * grid[1] + column for row, column in patches]).unflatten(-1, grid)


def spread_panels(count: int, limit: int) -> list[int]:
    """Return the indices of at most `limit` panels, evenly spread from the first to the last."""
    if limit < 1:
        raise InputError(f"--max_layers {limit} must be at least 1.")
    return torch.linspace(0, count - 1, min(count, limit)).round().int().unique().tolist()


def spread_patches(grid: tuple[int, int]) -> list[tuple[int, int]]:
    """Return the row and column of the middle patch and of four patches near the corners, without duplicates."""
    (top, middle, bottom), (left, center, right) = ([size // 6, size // 2, size - 1 - size // 6] for size in grid)
    patches = [(top, left), (top, right), (middle, center), (bottom, left), (bottom, right)]
    return list(dict.fromkeys(patches))


def plot_filters(model: GMLPPreTrainedModel, path: str | Path, *, max_layers: int | None = None) -> None:
    """Plot the spatial filters of each head of each block: the paper's Figure 4 for text, and Figure 3 for images.

    Args:
        model: A text model, with one panel per head, or an image model, with one row of panels per head.
        path: The picture to write.
        max_layers: Maximum number of blocks or heads, evenly spread; by default 36 for text and 12 for images.
    """
    images = model.config.model_type == "gmlp_vision"
    trained, note = len(head_names(model)), ""
    if images and model.config.pooling == "cls" and model.config.num_hidden_layers > 1:
        trained -= model.config.spatial_heads
        note = "\nthe last block is left out, since only the row of [CLS] is trained there"
    panels = spread_panels(trained, (12 if images else 36) if max_layers is None else max_layers)
    save_picture(_patch_figure(model, panels, note) if images else _token_figure(model, panels), path)


def panel_note(model: GMLPPreTrainedModel, panels: int) -> str:
    """Return a note for a title, such as " (12 of 30 blocks)", or "" if there is a panel for every head."""
    count, name = len(head_names(model)), "blocks" if model.config.spatial_heads == 1 else "heads"
    return f" ({panels} of {count} {name})" if panels < count else ""


def _token_figure(model: GMLPPreTrainedModel, panels: list[int]) -> plt.Figure:
    n, names = model.config.max_position_embeddings, head_names(model)
    # A Toeplitz W is zero beyond its reach.
    reach = min(n // 2, model.config.spatial_reach or n)
    filters = middle_filters(model)[:, n // 2 - reach : n // 2 + reach + n % 2]
    figure, axes, columns = block_panels(
        len(panels), lambda columns: 1.25 if columns == 6 else 1.7, sharex=True, sharey=True
    )
    axes[0].set_xticks([-(reach // 2), 0, reach // 2])
    for axis, panel in zip(axes, panels):
        axis.axhline(0, color="0.8", linewidth=0.8)
        axis.axvline(0, color="0.8", linewidth=0.8)
        axis.plot(torch.arange(filters.shape[1]) - reach, filters[panel], color="tab:blue", linewidth=1.0)
        axis.set_title(names[panel], fontsize=8)
        axis.tick_params(labelsize=7)
    # Label the lowest axis of each column, since the last row may have gaps.
    for axis in axes[-columns:]:
        axis.tick_params(labelbottom=True)
    note = panel_note(model, len(panels))
    figure.suptitle(f"Spatial filters{note}: weight in W of each token for the gate of the middle one", fontsize=10)
    figure.supxlabel(f"position relative to the middle of {n} tokens", fontsize=9)
    figure.supylabel("weight in W", fontsize=9)
    return figure


def _patch_figure(model: GMLPPreTrainedModel, panels: list[int], note: str) -> plt.Figure:
    grid, names = model.config.grid_size, head_names(model)
    patches = spread_patches(grid)
    filters = patch_filters(model, patches)
    height = 1.1 * min(2.0, max(0.5, grid[0] / grid[1]))
    size = (7.2, height * len(panels) + 1.2)
    figure, axes = plt.subplots(len(panels), len(patches), figsize=size, squeeze=False, layout="constrained")
    for row, panel in zip(axes, panels):
        # Zero is white. For a head of zeros, any positive limit will do.
        limit = filters[panel].abs().max().item() or 1.0
        for axis, (patch_row, patch_column), weights in zip(row, patches, filters[panel]):
            image = axis.imshow(weights, cmap="RdBu_r", vmin=-limit, vmax=limit)
            axis.add_patch(Rectangle((patch_column - 0.5, patch_row - 0.5), 1, 1, fill=False, edgecolor="black"))
            axis.set(xticks=[], yticks=[])
        row[0].set_ylabel(names[panel].replace(", ", "\n"), fontsize=8)
        bar = figure.colorbar(image, ax=row, ticks=[-limit, 0, limit], fraction=0.02, pad=0.01)
        bar.ax.set_yticklabels([f"{-limit:.2g}", "0", f"{limit:.2g}"], fontsize=7)
    panels_note = panel_note(model, len(panels))
    figure.suptitle(
        f"Spatial filters{panels_note}: weight in W of each of {grid[0]} × {grid[1]} patches for the gate of the boxed "
        f"patch\nred is positive, blue negative; each row has the scale at its right{note}",
        fontsize=9,
    )
    return figure


def plot(checkpoint: str, max_layers: int | None, output: str) -> None:
    """Run `python -m paper plot filters`."""
    plot_filters(load_spatial_model(checkpoint), output, max_layers=max_layers)
    print(f"The picture is in {output}.")
