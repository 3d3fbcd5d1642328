"""Spatial matrices of text models, and how Toeplitz they are (paper, Appendix C and Figure 9)."""

import math
from pathlib import Path

import torch

from hf_gmlp.errors import InputError
from hf_gmlp.models.modeling_gmlp import GMLPPreTrainedModel

from .filters import head_names, load_spatial_model, panel_note, spatial_matrices, spread_panels
from .pictures import block_panels, save_picture


def shift_invariant_fraction(matrix: torch.Tensor) -> float:
    """Return the fraction of the sum of a matrix's squared entries that the nearest Toeplitz matrix explains.

    The nearest Toeplitz matrix has the mean of each diagonal. For independent random entries with mean zero, the
    fraction is `random_fraction` on average.

    Args:
        matrix: [n, n].

    Returns:
        A number from 0 to 1, or NaN for a matrix of zeros.
    """
    matrix = matrix.detach().double().cpu()
    diagonals = [matrix.diagonal(offset) for offset in range(1 - len(matrix), len(matrix))]
    invariant = sum(diagonal.sum().item() ** 2 / len(diagonal) for diagonal in diagonals)
    total = matrix.square().sum().item()
    # Rounding may give an exact Toeplitz matrix slightly more than 1.
    return min(invariant / total, 1.0) if total > 0 else math.nan


def random_fraction(n: int) -> float:
    """Return the mean `shift_invariant_fraction` of random n x n matrices: the number of diagonals over n^2."""
    return (2 * n - 1) / n**2


def plot_matrices(model: GMLPPreTrainedModel, path: str | Path) -> list[float]:
    """Plot the paper's Figure 9: the W of every head of every block, at most 36, and the fraction that is Toeplitz.

    Args:
        model: A text model.
        path: The picture to write.

    Returns:
        The `shift_invariant_fraction` of every head.
    """
    matrices, names = spatial_matrices(model), head_names(model)
    count, n, _ = matrices.shape
    panels = spread_panels(count, 36)
    fractions = [shift_invariant_fraction(matrix) for matrix in matrices]
    figure, axes, columns = block_panels(len(panels), lambda columns: 6.7 / columns + 0.7)
    ticks = sorted({0, n // 2, n - 1})
    # Positions are counted from 1.
    labels = [str(tick + 1) for tick in ticks]
    for i, (axis, panel) in enumerate(zip(axes, panels)):
        # Zero is white. The scale excludes the few largest weights, such as the main diagonal, to show the others.
        limit = matrices[panel].abs().flatten().sort().values[int(0.995 * (n * n - 1))].item() or 1.0
        axis.imshow(matrices[panel], cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")
        axis.set_title(f"{names[panel]}\n(±{limit:.2g})\nToeplitz {fractions[panel]:.3f}", fontsize=7.5)
        axis.set_xticks(ticks, labels=labels)
        axis.set_yticks([] if i % columns else ticks, labels=[] if i % columns else labels)
        axis.tick_params(labelsize=7)
    figure.suptitle(
        f"Spatial matrices W of {n} × {n} weights{panel_note(model, len(panels))}\n"
        "red is positive, blue negative; the colors end at the number in brackets\n"
        "Toeplitz: fraction of the squared weights in the nearest Toeplitz matrix "
        f"(random weights: {random_fraction(n):.3f})",
        fontsize=8.5,
    )
    figure.supxlabel("input token", fontsize=9)
    figure.supylabel("gated token", fontsize=9)
    save_picture(figure, path)
    return fractions


def plot(checkpoint: str, output: str) -> None:
    """Run `python -m paper plot matrices`."""
    model = load_spatial_model(checkpoint)
    if model.config.model_type == "gmlp_vision":
        raise InputError(f"{checkpoint} is an image model: plot its filters, since matrices are for text models.")
    fractions, names = plot_matrices(model, output), head_names(model)
    for name, fraction in zip(names, fractions):
        print(f"{name:<{len(names[-1])}}  {fraction:.4f}")
    chance = random_fraction(model.config.max_position_embeddings)
    print(f"mean {sum(fractions) / len(fractions):.4f}, random weights {chance:.4f}\nThe picture is in {output}.")
