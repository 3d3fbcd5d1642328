"""Spatial matrices, and how much of each is shift-invariant (paper, Appendix C and Figure 9)."""

import math
from pathlib import Path

import torch

from ...models.modeling_gmlp import GMLPPreTrainedModel
from .filters import head_names, panel_note, spatial_matrices, spread_panels
from .pictures import block_panels, save_picture


def shift_invariant_fraction(matrix: torch.Tensor, grid: tuple[int, int] | None = None) -> float:
    """Return the fraction of the sum of a matrix's squared entries that the nearest Toeplitz matrix explains.

    The nearest Toeplitz matrix has the mean of each diagonal. For independent random entries with mean zero, the
    fraction is `random_fraction` on average.

    Args:
        matrix: [n, n].
        grid: Rows and columns of n patches, to compare with the nearest convolution over the image instead.

    Returns:
        A number from 0 to 1, or NaN for a matrix of zeros.
    """
    matrix = matrix.detach().double().cpu()
    rows, columns = grid or (1, matrix.shape[0])
    positions = torch.arange(rows * columns)
    row, column = positions // columns, positions % columns
    # Number the pairs of an offset in rows, from -(rows - 1) to rows - 1, and an offset in columns.
    width = 2 * columns - 1
    offsets = (row[None] - row[:, None] + rows - 1) * width + column[None] - column[:, None] + columns - 1
    offsets = offsets.flatten()
    count = torch.bincount(offsets)
    sums = torch.zeros(len(count), dtype=torch.double).index_add_(0, offsets, matrix.flatten())
    # Some numbers may not occur, which makes their count 0.
    invariant, total = (sums.square() / count.clamp(min=1)).sum().item(), matrix.square().sum().item()
    # Rounding may give an exact Toeplitz matrix slightly more than 1.
    return min(invariant / total, 1.0) if total > 0 else math.nan


def random_fraction(n: int, grid: tuple[int, int] | None = None) -> float:
    """Return the mean `shift_invariant_fraction` of random n x n matrices: the number of offsets over n^2."""
    rows, columns = grid or (1, n)
    return (2 * rows - 1) * (2 * columns - 1) / n**2


def plot_matrices(model: GMLPPreTrainedModel, path: str | Path) -> tuple[list[float], float]:
    """Plot the paper's Figure 9: the W of every head of every block, at most 36, and the fraction that is Toeplitz.

    Args:
        model: A text model, or an image model, which is compared with a convolution over the grid of patches.
        path: The picture to write.

    Returns:
        The `shift_invariant_fraction` of every head, and the `random_fraction` to compare it with.
    """
    matrices, names, grid = spatial_matrices(model), head_names(model), getattr(model.config, "grid_size", None)
    count, n, _ = matrices.shape
    panels = spread_panels(count, 36)
    fractions, chance = [shift_invariant_fraction(matrix, grid) for matrix in matrices], random_fraction(n, grid)
    kind, unit = ("convolution", "patch") if grid else ("Toeplitz", "token")
    figure, axes, columns = block_panels(len(panels), lambda columns: 6.7 / columns + 0.7)
    ticks = sorted({0, n // 2, n - 1})
    # Positions are counted from 1.
    labels = [str(tick + 1) for tick in ticks]
    for i, (axis, panel) in enumerate(zip(axes, panels)):
        # Zero is white. The scale excludes the few largest weights, such as the main diagonal, to show the others.
        limit = matrices[panel].abs().flatten().sort().values[int(0.995 * (n * n - 1))].item() or 1.0
        axis.imshow(matrices[panel], cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")
        axis.set_title(f"{names[panel]}\n(±{limit:.2g})\n{kind} {fractions[panel]:.3f}", fontsize=7.5)
        axis.set_xticks(ticks, labels=labels)
        axis.set_yticks([] if i % columns else ticks, labels=[] if i % columns else labels)
        axis.tick_params(labelsize=7)
    nearest = "convolution" if grid else "Toeplitz matrix"
    figure.suptitle(
        f"Spatial matrices W of {n} × {n} weights{panel_note(model, len(panels))}\n"
        "red is positive, blue negative; the colors end at the number in brackets\n"
        f"{kind}: fraction of the squared weights in the nearest {nearest} (random weights: {chance:.3f})",
        fontsize=8.5,
    )
    figure.supxlabel(f"input {unit}", fontsize=9)
    figure.supylabel(f"gated {unit}", fontsize=9)
    save_picture(figure, path)
    return fractions, chance
