"""The tolerance accepts rounding errors and nothing larger."""

import copy

import pytest
import torch

from hf_gmlp import GMLPForMaskedLM

from .numerics import assert_close


@torch.no_grad()
def test_one_wrong_weight_is_seen_and_rounding_is_not(text_config, perturbed_model, random_ids):
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


def test_collections_have_one_scale():
    gradients = {"weight": torch.tensor([3.0, -100.0]), "bias": torch.zeros(2)}
    assert_close({"weight": torch.tensor([3.0, -100.0]), "bias": torch.full((2,), 1e-4)}, gradients)
    with pytest.raises(AssertionError):
        assert_close({"weight": torch.tensor([3.0, -100.0]), "bias": torch.full((2,), 1e-3)}, gradients)
    # Hidden positions have the lowest number of the dtype, or minus infinity.
    hidden = torch.tensor([1.0, torch.finfo(torch.float32).min, -torch.inf])
    assert_close(hidden.clone(), hidden)
    for wrong in (hidden + torch.tensor([1e-4, 0, 0]), hidden.where(hidden == 1, torch.nan), hidden.clamp(-9)):
        with pytest.raises(AssertionError):
            assert_close(wrong, hidden)
    with pytest.raises((AssertionError, ValueError)):
        assert_close([hidden], [hidden, hidden])
