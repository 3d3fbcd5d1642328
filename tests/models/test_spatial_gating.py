"""The Toeplitz matrix of Appendix C, resizing of the spatial projection, and orders of interaction."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from hf_gmlp.models.modeling_gmlp import SpatialGatingUnit

from ..numerics import assert_close
from ..peers.appendix_c import create_toeplitz_matrix
from .helpers import make_projection


@pytest.mark.parametrize("n", [2, 5, 8])
def test_toeplitz_matrix_is_that_of_appendix_c(n):
    projection = make_projection(n, toeplitz=True)
    expected = create_toeplitz_matrix(projection.weight.detach().numpy())
    for m in range(1, n + 1):
        np.testing.assert_array_equal(projection.matrix(m)[0].detach().numpy(), expected[:m, :m])
        causal = projection.matrix(m, is_causal=True)[0].detach().numpy()
        np.testing.assert_array_equal(causal, np.tril(expected[:m, :m]))


@pytest.mark.parametrize("new", [3, 9])
@pytest.mark.parametrize("toeplitz", [True, False])
def test_resize_keeps_the_leading_part(toeplitz, new):
    old = 5
    projection = make_projection(old, toeplitz=toeplitz, dtype=torch.bfloat16).requires_grad_(False)
    matrix, bias, weight = projection.matrix()[0], projection.bias, projection.weight
    projection.resize(new)
    kept, (resized,) = min(old, new), projection.matrix()
    assert torch.equal(resized[:kept, :kept], matrix[:kept, :kept])
    assert torch.equal(projection.bias[:kept], bias[:kept])
    assert (projection.bias[kept:] == 1).all()
    assert resized.shape == (new, new)
    assert projection.weight.dtype == torch.bfloat16 and not projection.weight.requires_grad
    if toeplitz:
        # The weight of an offset also applies at new positions, and new offsets start at zero.
        for offset in range(-(new - 1), new):
            expected = weight[old - 1 + offset] if abs(offset) < old else 0
            assert (resized.diagonal(offset) == expected).all()
    else:
        new_part = resized.clone()
        new_part[:kept, :kept] = 0
        assert (new_part == 0).all()


def pil_resize(image: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
    """Resize with Pillow's bicubic filter, which smooths when shrinking, as an independent reference."""
    return np.asarray(Image.fromarray(image.astype(np.float32)).resize((grid[1], grid[0]), Image.Resampling.BICUBIC))


@pytest.mark.parametrize("prefix", [0, 1])
@pytest.mark.parametrize("new_grid", [(8, 6), (2, 7)])
def test_resize_grid_interpolates_both_sides(new_grid, prefix):
    old_grid = (4, 3)
    old, new = old_grid[0] * old_grid[1], new_grid[0] * new_grid[1]
    projection = make_projection(prefix + old)
    weight, bias = projection.weight.detach().numpy(), projection.bias.detach().numpy()
    projection.resize_grid(old_grid, new_grid, prefix)

    # Resize each row of W as an image over the input patches, then each column as one over the output patches.
    rows = np.zeros((prefix + old, prefix + new), np.float32)
    rows[:, :prefix] = weight[:, :prefix]
    for i in range(prefix + old):
        rows[i, prefix:] = pil_resize(weight[i, prefix:].reshape(old_grid), new_grid).ravel() * old / new
    expected = np.zeros((prefix + new, prefix + new), np.float32)
    expected[:prefix] = rows[:prefix]
    for j in range(prefix + new):
        expected[prefix:, j] = pil_resize(rows[prefix:, j].reshape(old_grid), new_grid).ravel()
    assert_close(projection.weight, expected)

    expected_bias = np.concatenate([bias[:prefix], pil_resize(bias[prefix:].reshape(old_grid), new_grid).ravel()])
    assert_close(projection.bias, expected_bias)


@pytest.mark.parametrize(("gating", "order"), [("split", 2), ("multiplicative", 2), ("additive", 1), ("linear", 1)])
def test_orders_of_interaction(text_config, gating, order):
    """Section 2.1: the gate multiplies two tokens, z_i z_j, where self-attention multiplies three, q_i k_j v_k.

    The norm of the gate and the softmax of attention are left out, since they are not polynomials.
    """

    def degree(function, x):
        """Return the degree in c of function(c * x), a polynomial: the highest of its differences that is not zero."""
        values = torch.stack([function(c * x) for c in range(6)])
        return max(i for i in range(6) if values.diff(i, dim=0).abs().max() > 1e-12 * values.abs().max())

    config = text_config(spatial_gating=gating, attention_size=4)
    unit, qkv = SpatialGatingUnit(config).double(), nn.Linear(config.hidden_size, 12).double()
    nn.init.normal_(unit.proj.weight, std=0.3)
    unit.norm = nn.Identity()
    assert degree(unit, torch.randn(2, 9, config.intermediate_size, dtype=torch.double)) == order

    def attention(x):
        query, key, value = qkv(x).chunk(3, dim=-1)
        return query @ key.mT @ value

    assert degree(attention, torch.randn(2, 9, config.hidden_size, dtype=torch.double)) == 3
