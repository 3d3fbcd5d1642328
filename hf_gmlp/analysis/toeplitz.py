"""Whole spatial matrices, and how much of each is shift invariant (paper, Appendix C and Figure 9)."""

import math
from pathlib import Path

import torch

from ..models.modeling_gmlp import GMLPPreTrainedModel
from .filters import spread_layers
from .pictures import check_picture, plt, save_picture


def shift_invariant_share(matrix: torch.Tensor, grid: tuple[int, int] | None = None) -> float:
    """
    How Toeplitz a matrix is: the share of its energy (the sum of its squared entries) that its nearest Toeplitz matrix
    has, which has the mean of every diagonal all along it. 1 is Toeplitz; of independent random entries with mean zero
    `random_share` is expected. A constant matrix is Toeplitz too: `constant_share` says how much of the share that is.

    Args:
        matrix: [n, n]
        grid: Rows and columns of patches, with n of them in all: then an entry counts by the offset of two patches over
            the grid, in place of that of two tokens over the line, as in a convolution over the image.

    Returns:
        A number from 0 to 1; of a matrix of zeros, not a number.
    """
    matrix = matrix.detach().double().cpu()
    rows, columns = grid or (1, matrix.shape[0])
    places = torch.arange(rows * columns)
    row, column = places // columns, places % columns
    # Every offset has a number: those of two rows, -(rows - 1) to rows - 1, times those of two columns.
    width = 2 * columns - 1
    offsets = (row[None] - row[:, None] + rows - 1) * width + column[None] - column[:, None] + columns - 1
    offsets = offsets.flatten()
    count = torch.bincount(offsets)
    total = torch.zeros(len(count), dtype=torch.double).index_add_(0, offsets, matrix.flatten())
    # An offset may not occur, as on a grid of a single row none of two rows does.
    invariant, whole = (total.square() / count.clamp(min=1)).sum().item(), matrix.square().sum().item()
    # Rounding may take an exact Toeplitz matrix a little past 1.
    return min(invariant / whole, 1.0) if whole > 0 else math.nan


def constant_share(matrix: torch.Tensor) -> float:
    """
    The share of a matrix' energy that the mean of all its entries has: what `shift_invariant_share` owes to all tokens
    being read alike, whatever their offset.

    Args:
        matrix: [n, n]
    """
    matrix = matrix.detach().double()
    whole = matrix.square().sum().item()
    return min(matrix.numel() * matrix.mean().item() ** 2 / whole, 1.0) if whole > 0 else math.nan


def random_share(n: int, grid: tuple[int, int] | None = None) -> float:
    """
    The share that `shift_invariant_share` gives on average of a matrix of random entries with mean zero: the number of
    offsets over the number of entries, over a line (2n - 1) / n^2.

    Args:
        n: Rows and columns of the matrix.
        grid: As for `shift_invariant_share`.
    """
    rows, columns = grid or (1, n)
    return (2 * rows - 1) * (2 * columns - 1) / n**2


def spatial_matrices(model: GMLPPreTrainedModel) -> torch.Tensor:
    """The W of every block over the tokens of a text or the patches of an image ([CLS] left out): [L, n, n]."""
    prefix = getattr(model.config, "num_prefix_tokens", 0)
    with torch.no_grad():
        matrices = [proj.matrix(causal=model.config.is_causal) for proj in model.spatial_projections()]
    return torch.stack(matrices)[:, prefix:, prefix:].float().cpu()


def shift_invariant_shares(model: GMLPPreTrainedModel) -> tuple[list[float], float]:
    """
    How shift invariant the W of each block is, over the line of tokens of a text model and over the grid of patches of
    an image model ([CLS] left out).

    Returns:
        `shift_invariant_share` of every block, and `random_share` to compare with.
    """
    grid = getattr(model.config, "grid_size", None)
    matrices = spatial_matrices(model)
    return [shift_invariant_share(matrix, grid) for matrix in matrices], random_share(matrices.shape[-1], grid)


def plot_matrices(model: GMLPPreTrainedModel, path: str | Path, *, max_layers: int = 36) -> tuple[list[float], float]:
    """
    The paper's Figure 9: the whole W of every block, with the share of it that is Toeplitz (of an image model: that is
    a convolution over the grid of patches). A model with the Toeplitz prior is drawn too, and the picture says that its
    share is 1 by construction.

    Args:
        model: A model for text or for images.
        path: The picture to write, its kind by its ending.
        max_layers: Of a deeper model, so many layers are drawn, evenly spread.

    Returns:
        As `shift_invariant_shares`, of all blocks.

    Raises:
        InputError: If the picture cannot be written to `path`, or no layer is to be drawn.
    """
    check_picture(path)
    matrices = spatial_matrices(model)
    shares, chance = shift_invariant_shares(model)
    depth, n = matrices.shape[:2]
    layers = spread_layers(depth, max_layers)
    columns = min(len(layers), 6 if len(layers) > 12 else 3 if len(layers) > 4 else 2)
    rows = math.ceil(len(layers) / columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(7.2, (6.7 / columns + 0.5) * rows + 1.0), squeeze=False, layout="constrained"
    )
    images = model.config.model_type == "gmlp_vision"
    kind = "convolution" if images else "Toeplitz"
    for axis in axes.flat[len(layers) :]:
        axis.axis("off")
    for i, (axis, layer) in enumerate(zip(axes.flat, layers)):
        # Zero is white, and a few great weights, as on the main diagonal, do not take the color from all others.
        limit = matrices[layer].abs().flatten().sort().values[int(0.995 * (n * n - 1))].item() or 1.0
        axis.imshow(matrices[layer], cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")
        found = f"\n{kind} {shares[layer]:.3f}\nconstant {constant_share(matrices[layer]):.3f}"
        axis.set_title(f"block {layer + 1} (±{limit:.2g}){'' if model.config.toeplitz else found}", fontsize=7.5)
        # Tokens are counted from 1.
        ticks = sorted({0, n // 2, n - 1})
        axis.set_xticks(ticks, [tick + 1 for tick in ticks], fontsize=7)
        axis.set_yticks(ticks if i % columns == 0 else [], [tick + 1 for tick in ticks] if i % columns == 0 else [])
        axis.tick_params(labelsize=7)
    nearest = "convolution over {} × {} patches".format(*model.config.grid_size) if images else "Toeplitz matrix"
    some = f" ({len(layers)} of {depth} blocks)" if len(layers) < depth else ""
    if model.config.toeplitz:
        meaning = "The model has the Toeplitz prior: its matrices are Toeplitz by construction"
    else:
        meaning = (
            f"{kind}: share of the sum of squared weights that the nearest {nearest} has\n"
            f"(random weights: {chance:.3f} on average); constant: share of the nearest constant matrix"
        )
    colors = "red is positive, blue negative; the colors end at the number in brackets"
    figure.suptitle(f"Spatial matrices W of {n} × {n} weights{some}: {colors}\n{meaning}", fontsize=8.5)
    figure.supxlabel("token that is read" if not images else "patch that is read, row by row", fontsize=9)
    figure.supylabel("token that is gated" if not images else "patch that is gated", fontsize=9)
    save_picture(figure, path)
    return shares, chance
