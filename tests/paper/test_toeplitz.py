import numpy as np
import pytest
import torch

from hf_gmlp import GMLPForMaskedLM, GMLPVisionModel
from paper.__main__ import main
from paper.filters import spatial_matrices
from paper.toeplitz import random_fraction, shift_invariant_fraction


@pytest.mark.parametrize("n", [9, 1])
def test_fraction_is_that_of_the_least_squares_fit(n):
    matrix = np.random.default_rng(0).normal(size=(n, n)) + 0.3 * np.eye(n) + 0.1
    # Fit one weight per diagonal: column k of the design is the indicator matrix of diagonal k.
    design = np.stack([np.eye(n, k=offset).reshape(-1) for offset in range(1 - n, n)], axis=1)
    fit = (design @ np.linalg.lstsq(design, matrix.reshape(-1), rcond=None)[0]).reshape(n, n)
    expected = (fit**2).sum() / (matrix**2).sum()
    assert shift_invariant_fraction(torch.tensor(matrix)) == pytest.approx(expected, abs=1e-12)


def test_random_matrices_have_the_expected_fraction():
    mean = np.mean([shift_invariant_fraction(matrix) for matrix in torch.randn(400, 24, 24)])
    assert mean == pytest.approx(random_fraction(24), rel=0.02)


def test_every_head_has_a_matrix(tmp_path, text_config, vision_config, perturbed_model, capsys):
    dense = perturbed_model(GMLPForMaskedLM, text_config(toeplitz=False, spatial_heads=4))
    mean = np.mean([shift_invariant_fraction(matrix) for matrix in spatial_matrices(dense)])
    for model, words in (
        (dense, f"mean {mean:.4f}, random weights 0.1597"),
        (perturbed_model(GMLPForMaskedLM, text_config(toeplitz=True, spatial_heads=4)), "mean 1.0000"),
    ):
        model.save_pretrained(tmp_path / "model")
        main(["plot", "matrices", str(tmp_path / "model"), "--output", str(tmp_path / "m.png")])
        printed = capsys.readouterr().out
        assert printed.splitlines()[5].startswith("block 2, head 2  ") and words in printed
    assert (tmp_path / "m.png").is_file()
    perturbed_model(GMLPVisionModel, vision_config()).save_pretrained(tmp_path / "image")
    with pytest.raises(SystemExit):
        main(["plot", "matrices", str(tmp_path / "image")])
    assert "image model" in capsys.readouterr().err
