"""Positions, lengths and grids that do not fit the model are refused; test_reference.py tests the outputs."""

import pytest
import torch
from transformers import DynamicCache

from hf_gmlp import GMLPModel, GMLPVisionModel

from ..samples import CONVOLUTIONAL


@pytest.mark.parametrize(
    "inputs, message",
    [
        ({"position_ids": torch.tensor([[0, 1, 2, 3, 4, 12]])}, "`position_ids`.* 11"),
        ({"position_ids": torch.tensor([[-2, 1, 2, 3, 4, 5]])}, "`position_ids`.* 11"),
        ({"position_ids": torch.arange(7)[None]}, r"`position_ids`.*\(1, 6\)"),
        # With a cache, a row holds one document, whose positions count its tokens.
        ({"position_ids": torch.arange(6)[None] + 1, "use_cache": True}, "use_cache=False"),
        ({"position_ids": torch.arange(6)[None] - 20, "use_cache": True}, "use_cache=False"),
        ({"position_ids": torch.tensor([[0, 1, 2, 0, 1, 2]]), "past_key_values": DynamicCache()}, "use_cache=False"),
    ],
)
def test_wrong_positions_are_refused(perturbed_model, text_config, random_ids, inputs, message):
    with pytest.raises(ValueError, match=message):
        perturbed_model(GMLPModel, text_config(is_causal=True))(random_ids(1, 6), **inputs)


@pytest.mark.parametrize("attribute, value", [("toeplitz", True), ("max_position_embeddings", 20)])
def test_a_changed_config_is_refused(perturbed_model, text_config, random_ids, attribute, value):
    model = perturbed_model(GMLPModel, text_config(toeplitz=False))
    setattr(model.config, attribute, value)
    with pytest.raises(ValueError, match="resize_position_embeddings"):
        model(random_ids(1, 6))


def test_a_changed_grid_is_refused(perturbed_model, vision_config):
    """The number of patches stays the same."""
    model = perturbed_model(GMLPVisionModel, vision_config(**CONVOLUTIONAL))
    model.config.image_size = (8, 32)
    with pytest.raises(ValueError, match="resize_image_size"):
        model(torch.randn(1, 3, 8, 32))
