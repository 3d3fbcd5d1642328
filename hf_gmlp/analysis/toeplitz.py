"""Whole spatial matrices, and how much of each is shift invariant (paper, Appendix C and Figure 9)."""

import math
from pathlib import Path

import torch

from ..models.modeling_gmlp import GMLPPreTrainedModel
from .filters import head_names, some_panels, spread_panels
from .pictures import block_panels, check_picture, save_picture


def shift_invariant_share(matrix: torch.Tensor, grid: tuple[int, int] | None = None) -> float:
    """
    Returns how Toeplitz a matrix is, from 0 to 1: the share of its energy (the sum of its squared entries) that is in
    its nearest Toeplitz matrix, whose diagonals have the means of the matrix's. A matrix of independent random
    entries with mean zero has `random_share` on average. A constant matrix is Toeplitz too: `constant_share` says how
    much of the share is due to that. For a matrix of zeros, the result is NaN.

    Args:
        matrix: [n, n]
        grid: Rows and columns of n patches. Entries then count by the offset of two patches over the grid, as in a
            convolution over the image, instead of the offset of two tokens.
    """
    matrix = matrix.detach().double().cpu()
    rows, columns = grid or (1, matrix.shape[0])
    places = torch.arange(rows * columns)
    row, column = places // columns, places % columns
    # Numbers every offset: those of two rows, -(rows - 1) to rows - 1, times those of two columns.
    width = 2 * columns - 1
    offsets = (row[None] - row[:, None] + rows - 1) * width + column[None] - column[:, None] + columns - 1
    offsets = offsets.flatten()
    count = torch.bincount(offsets)
    total = torch.zeros(len(count), dtype=torch.double).index_add_(0, offsets, matrix.flatten())
    # Some offsets may not occur: on a grid of a single row, no two rows differ.
    invariant, whole = (total.square() / count.clamp(min=1)).sum().item(), matrix.square().sum().item()
    # Rounding may take an exact Toeplitz matrix slightly past 1.
    return min(invariant / whole, 1.0) if whole > 0 else math.nan


def constant_share(matrix: torch.Tensor) -> float:
    """
    Returns the share of the energy of a matrix [n, n] that is in the mean of its entries: the part of
    `shift_invariant_share` that comes from reading all tokens alike, whatever their offset.
    """
    matrix = matrix.detach().double()
    whole = matrix.square().sum().item()
    return min(matrix.numel() * matrix.mean().item() ** 2 / whole, 1.0) if whole > 0 else math.nan


def random_share(n: int, grid: tuple[int, int] | None = None) -> float:
    """
    Returns the mean `shift_invariant_share` of n x n random entries with mean zero: the number of offsets over the
    number of entries, which is (2n - 1) / n^2 without a grid.
    """
    rows, columns = grid or (1, n)
    return (2 * rows - 1) * (2 * columns - 1) / n**2


def spatial_matrices(model: GMLPPreTrainedModel) -> torch.Tensor:
    """Returns the W of every head over the tokens of a text or the patches of an image, without [CLS]: [L * H, n, n]"""
    prefix = getattr(model.config, "num_prefix_tokens", 0)
    with torch.no_grad():
        matrices = [proj.matrix(causal=model.config.is_causal) for proj in model.spatial_projections()]
    return torch.cat(matrices)[:, prefix:, prefix:].float().cpu()


def shift_invariant_shares(model: GMLPPreTrainedModel) -> tuple[list[float], float]:
    """
    Returns the `shift_invariant_share` of the W of every head, over the tokens of a text model or the grid of patches
    of an image model, and the `random_share` to compare them with.
    """
    grid = getattr(model.config, "grid_size", None)
    matrices = spatial_matrices(model)
    return [shift_invariant_share(matrix, grid) for matrix in matrices], random_share(matrices.shape[-1], grid)


def plot_matrices(model: GMLPPreTrainedModel, path: str | Path, *, max_layers: int = 36) -> tuple[list[float], float]:
    """
    Draws the paper's Figure 9: the whole W of every block, with the share of it that is Toeplitz (for an image model:
    that is a convolution over the grid of patches). For a model with the Toeplitz prior, the picture says that the
    share is 1 by construction. With several heads, it shows the W of each.
    Draws at most `max_layers` matrices, evenly spread. Returns the `shift_invariant_shares` of all.

    Raises:
        InputError: If the picture cannot be written to `path`, or `max_layers` is below 1.
    """
    check_picture(path)
    matrices = spatial_matrices(model)
    shares, chance = shift_invariant_shares(model)
    (count, n, _), names = matrices.shape, head_names(model)
    panels = spread_panels(count, max_layers)
    # The titles of heads have one more line.
    room = 0.5 if model.config.spatial_heads == 1 else 0.8
    figure, axes, columns = block_panels(len(panels), lambda columns: 6.7 / columns + room)
    images = model.config.model_type == "gmlp_vision"
    kind = "convolution" if images else "Toeplitz"
    for i, (axis, panel) in enumerate(zip(axes, panels)):
        # Zero is white, and a few large weights, as on the main diagonal, do not take the color from all others.
        limit = matrices[panel].abs().flatten().sort().values[int(0.995 * (n * n - 1))].item() or 1.0
        axis.imshow(matrices[panel], cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")
        found = f"\n{kind} {shares[panel]:.3f}\nconstant {constant_share(matrices[panel]):.3f}"
        gap = " " if model.config.spatial_heads == 1 else "\n"
        axis.set_title(f"{names[panel]}{gap}(±{limit:.2g}){'' if model.config.toeplitz else found}", fontsize=7.5)
        # Tokens are counted from 1.
        ticks = sorted({0, n // 2, n - 1})
        labels = [tick + 1 for tick in ticks]
        axis.set_xticks(ticks, labels, fontsize=7)
        axis.set_yticks(*([], []) if i % columns else (ticks, labels))
        axis.tick_params(labelsize=7)
    nearest = "convolution over {} × {} patches".format(*model.config.grid_size) if images else "Toeplitz matrix"
    if model.config.toeplitz:
        prior = f"a {nearest}" if images else "Toeplitz"
        meaning = f"The model has the Toeplitz prior: each matrix is {prior} by construction"
    else:
        meaning = (
            f"{kind}: share of the sum of squared weights that is in the nearest {nearest}\n"
            f"(random weights: {chance:.3f} on average); constant: share in the nearest constant matrix"
        )
    some = some_panels(model, len(panels))
    some = f"{some}:\n" if some else ": "
    colors = "red is positive, blue negative; the colors end at the number in brackets"
    figure.suptitle(f"Spatial matrices W of {n} × {n} weights{some}{colors}\n{meaning}", fontsize=8.5)
    figure.supxlabel("token that is read" if not images else "patch that is read, row by row", fontsize=9)
    figure.supylabel("token that is gated" if not images else "patch that is gated", fontsize=9)
    save_picture(figure, path)
    return shares, chance
