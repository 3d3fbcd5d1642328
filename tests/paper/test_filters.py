import pytest
import torch

from hf_gmlp import GMLPForMaskedLM, GMLPModel, GMLPVisionModel
from paper.filters import head_names, middle_filters, patch_filters, spatial_matrices

from ..samples import CONVOLUTIONAL

pytestmark = pytest.mark.slow


def test_filters_are_the_middle_rows(text_config, perturbed_model):
    for toeplitz, row in ((False, 6), (True, slice(12 - 1 - 6, 2 * 12 - 1 - 6))):
        model = perturbed_model(GMLPForMaskedLM, text_config(toeplitz=toeplitz))
        rows = [block.spatial_gating_unit.proj.weight[row] for block in model.model.layers]
        assert torch.equal(middle_filters(model), torch.stack(rows))


@pytest.mark.parametrize("toeplitz", [True, False])
def test_weights_of_later_tokens_are_zero_in_a_causal_model(text_config, perturbed_model, toeplitz):
    model = perturbed_model(GMLPForMaskedLM, text_config(toeplitz=toeplitz))
    both_ways = middle_filters(model)
    model.config.is_causal = True
    filters = middle_filters(model)
    assert torch.equal(filters[:, :7], both_ways[:, :7]) and both_ways[:, 7:].all() and not filters[:, 7:].any()
    assert torch.equal(spatial_matrices(model), spatial_matrices(model).tril())


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_patch_filters_are_rows_of_w_over_the_grid(vision_config, perturbed_model, pooling):
    # 2 x 3 patches; with [CLS] in front, patch (r, c) is token 1 + 3 r + c.
    model = perturbed_model(GMLPVisionModel, vision_config(image_size=(8, 12), pooling=pooling))
    filters = patch_filters(model, [(0, 0), (1, 2)])
    assert filters.shape == (2, 2, 2, 3)
    first = 1 if pooling == "cls" else 0
    for layer, block in enumerate(model.layers):
        weight = block.spatial_gating_unit.proj.weight.detach()
        for r in range(2):
            for c in range(3):
                assert filters[layer, 0, r, c] == weight[first, first + 3 * r + c]
                assert filters[layer, 1, r, c] == weight[first + 5, first + 3 * r + c]


def test_every_head_has_a_filter(vision_config, text_config, perturbed_model):
    text = perturbed_model(GMLPModel, text_config(spatial_heads=2, toeplitz=False))
    image = perturbed_model(GMLPVisionModel, vision_config(**CONVOLUTIONAL))
    assert torch.equal(middle_filters(text)[3], text.layers[1].spatial_gating_unit.proj.weight[1, 6])
    # The weights of patch (1, 2) over 4 x 4 patches, in the third head of the first block.
    weight = image.layers[0].spatial_gating_unit.proj.weight[2]
    assert torch.equal(patch_filters(image, [(1, 2)])[2, 0], weight[2:6, 1:5])
    assert head_names(text)[2] == "block 2, head 1"
