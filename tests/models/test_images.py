"""Options for images: a W that is Toeplitz over the grid of patches, heads of W, early convolutions."""

import pytest
import torch
from torch.nn import functional as F

from hf_gmlp import GMLPForImageClassification

from ..numerics import assert_close
from ..samples import CONVOLUTIONAL
from .helpers import make_projection


@pytest.mark.parametrize("heads", [1, 3])
def test_the_product_is_a_convolution_over_the_image(heads):
    """W v equals a cross-correlation with zero padding around the image."""
    grid, size = (4, 3), 2
    projection = make_projection(heads=heads, grid=grid, dtype=torch.double)
    v = torch.randn(2, 12, heads * size, dtype=torch.double)
    # Each channel uses the kernel of its head: [E, 1, 2h - 1, 2w - 1]
    kernel = projection.weight.view(heads, 1, 7, 5).repeat_interleave(size, 0)
    image = v.transpose(1, 2).unflatten(2, grid)
    expected = F.conv2d(image, kernel, padding=(3, 2), groups=heads * size).flatten(2).transpose(1, 2)
    bias = projection.bias.view(heads, 12).repeat_interleave(size, 0).T
    assert_close(projection(v), expected + bias)


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("new_grid", [(6, 4), (2, 6)])
def test_a_resized_toeplitz_matrix_keeps_every_offset(heads, new_grid):
    old_grid = (4, 3)
    projection = make_projection(heads=heads, grid=old_grid, dtype=torch.bfloat16).requires_grad_(False)
    weight, bias = projection.weight.view(heads, 7, 5).clone(), projection.bias.view(heads, *old_grid).clone()
    projection.resize_grid(old_grid, new_grid, 0)
    (new_height, new_width), new_bias = new_grid, projection.bias.view(heads, *new_grid)
    new_weight = projection.weight.view(heads, 2 * new_height - 1, 2 * new_width - 1)
    for down in range(1 - new_height, new_height):
        for right in range(1 - new_width, new_width):
            is_old = abs(down) < 4 and abs(right) < 3
            expected = weight[:, 3 + down, 2 + right] if is_old else torch.zeros(heads)
            assert torch.equal(new_weight[:, new_height - 1 + down, new_width - 1 + right], expected.bfloat16())
    for row in range(new_height):
        for column in range(new_width):
            # New patches get the bias of the nearest old one.
            assert torch.equal(new_bias[:, row, column], bias[:, min(row, 3), min(column, 2)])
    assert projection.matrix().shape == (heads, new_height * new_width, new_height * new_width)
    for parameter in projection.parameters():
        assert parameter.dtype == torch.bfloat16 and not parameter.requires_grad


def test_frozen_batch_norms_keep_their_statistics(perturbed_model, vision_config):
    """An adapter does not save running statistics, so training must not change those of a frozen base."""
    model = perturbed_model(GMLPForImageClassification, vision_config(**CONVOLUTIONAL)).train()
    pixels = 3 * torch.randn(4, 3, 16, 16) + 1
    statistics = {name: value.clone() for name, value in model.named_buffers()}
    model.requires_grad_(False)
    model.classifier.requires_grad_(True)
    frozen = model(pixels, labels=torch.tensor([0, 1, 2, 0]))
    frozen.loss.backward()
    assert all(torch.equal(value, statistics[name]) for name, value in model.named_buffers())
    assert_close(frozen.logits, model.eval()(pixels).logits, depth=2)
    model.train().requires_grad_(True)
    model(pixels)
    assert not any(torch.equal(value, statistics[name]) for name, value in model.named_buffers() if "mean" in name)
