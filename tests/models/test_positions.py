"""Positions, masks and lengths that do not fit the model are refused; test_reference.py tests the outputs."""

import pytest
import torch
from transformers import DynamicCache

from hf_gmlp import GMLPModel


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
        ({"attention_mask": torch.ones(1, 5)}, r"`attention_mask`.*\(1, 6\)"),
        ({"attention_mask": torch.ones(1, 1, 6, 6)}, r"`attention_mask`.*\(1, 6\)"),
        ({"input_ids": torch.arange(6)}, r"\[batch, tokens\].*\(6,\)"),
        ({"input_ids": torch.ones(1, 0, dtype=torch.long)}, "at least one token"),
    ],
)
def test_inputs_of_the_wrong_shape_are_refused(perturbed_model, text_config, random_ids, inputs, message):
    with pytest.raises(ValueError, match=message):
        perturbed_model(GMLPModel, text_config(is_causal=True))(**{"input_ids": random_ids(1, 6)} | inputs)
