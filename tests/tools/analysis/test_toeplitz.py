import numpy as np
import pytest
import torch

from hf_gmlp import GMLPForImageClassification, GMLPForMaskedLM
from hf_gmlp.tools.analysis.filters import spatial_matrices
from hf_gmlp.tools.analysis.toeplitz import plot_matrices, random_fraction, shift_invariant_fraction
from hf_gmlp_cli import main

from ...samples import CONVOLUTIONAL


def nearest_convolution(matrix, rows, columns):
    """Fit a convolution by least squares over one indicator matrix per patch offset."""
    positions = [(r, c) for r in range(rows) for c in range(columns)]
    offsets = sorted({(a[0] - b[0], a[1] - b[1]) for a in positions for b in positions})
    design = np.zeros((len(positions) ** 2, len(offsets)))
    for i, a in enumerate(positions):
        for j, b in enumerate(positions):
            design[i * len(positions) + j, offsets.index((a[0] - b[0], a[1] - b[1]))] = 1
    solution = np.linalg.lstsq(design, matrix.reshape(-1), rcond=None)[0]
    return (design @ solution).reshape(matrix.shape)


@pytest.mark.parametrize("grid", [(1, 9), (2, 5), (4, 1), (1, 1)])
def test_fraction_is_that_of_the_least_squares_fit(grid):
    n = grid[0] * grid[1]
    matrix = np.random.default_rng(0).normal(size=(n, n)) + 0.3 * np.eye(n) + 0.1
    fit = nearest_convolution(matrix, *grid)
    fraction = shift_invariant_fraction(torch.tensor(matrix), grid)
    assert fraction == pytest.approx((fit**2).sum() / (matrix**2).sum(), abs=1e-12)


@pytest.mark.parametrize("grid", [None, (4, 6)])
def test_fraction_of_random_matrices(grid):
    mean = np.mean([shift_invariant_fraction(matrix, grid) for matrix in torch.randn(400, 24, 24)])
    assert mean == pytest.approx(random_fraction(24, grid), rel=0.02)


def test_matrices_of_models(tmp_path, text_config, vision_config, perturbed_model):
    dense = perturbed_model(GMLPForMaskedLM, text_config(toeplitz=False))
    assert torch.equal(spatial_matrices(dense)[1], dense.model.layers[1].spatial_gating_unit.proj.weight)
    fractions, chance = plot_matrices(dense, tmp_path / "m.png")
    assert fractions == [shift_invariant_fraction(matrix) for matrix in spatial_matrices(dense)] and chance == 23 / 144
    # For images, [CLS] is excluded and offsets are those of the grid.
    image = perturbed_model(GMLPForImageClassification, vision_config(image_size=(8, 12)))
    fractions, chance = plot_matrices(image, tmp_path / "m.png")
    weight = image.model.layers[0].spatial_gating_unit.proj.weight.detach().numpy()[1:, 1:]
    fit = nearest_convolution(weight, 2, 3)
    assert fractions[0] == pytest.approx((fit**2).sum() / (weight**2).sum(), rel=1e-5) and chance == 15 / 36


def test_matrices_of_heads(tmp_path, text_config, vision_config, perturbed_model, capsys):
    dense = perturbed_model(GMLPForMaskedLM, text_config(toeplitz=False, spatial_heads=4))
    matrices = spatial_matrices(dense)
    assert matrices.shape == (8, 12, 12)
    assert torch.equal(matrices[5], dense.model.layers[1].spatial_gating_unit.proj.weight[1])
    # A Toeplitz W for images is a convolution over the grid of patches, not over their sequence.
    image = perturbed_model(GMLPForImageClassification, vision_config(**CONVOLUTIONAL))
    assert shift_invariant_fraction(spatial_matrices(image)[0]) < 0.9
    for model, words in ((dense, "random weights 0.1597"), (image, "mean 1.0000")):
        model.save_pretrained(tmp_path / "model")
        main(["plot", "matrices", str(tmp_path / "model"), "--output", str(tmp_path / "m.png")])
        printed = capsys.readouterr().out
        assert printed.splitlines()[5].startswith("block 2, head 2  ") and words in printed
