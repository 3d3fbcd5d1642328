"""The tolerance accepts rounding errors and nothing larger."""

import copy

import pytest
import torch

from hf_gmlp import GMLPForMaskedLM

from .numerics import assert_close


@torch.no_grad()
def test_one_wrong_weight_fails_and_rounding_passes(text_config, perturbed_model, random_ids):
    model, ids = perturbed_model(GMLPForMaskedLM, text_config(num_hidden_layers=8, attention_size=8)), random_ids(3, 12)
    expected = model(ids).logits
    # Double precision rounds differently from single precision on any processor.
    assert_close(expected, copy.deepcopy(model).double()(ids).logits, depth=8)
    for layer in (0, 7):
        for name in ("proj_in.weight", "spatial_gating_unit.proj.weight", "attention.qkv_proj.weight"):
            wrong = copy.deepcopy(model)
            wrong.get_parameter(f"model.layers.{layer}.{name}").view(-1)[3] += 1e-3
            with pytest.raises(AssertionError, match="logits"):
                assert_close(wrong(ids).logits, expected, depth=8, msg="logits")
