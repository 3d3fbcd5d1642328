"""Checkpoints saved before the first release open with unchanged logits."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForImageClassification, AutoModelForMaskedLM

import paper.models  # noqa: F401  # registers BertRelpos

from ..numerics import assert_close

FIXTURES = Path(__file__).parent.parent / "fixtures"


@pytest.mark.parametrize(
    "name, auto_class",
    [
        ("amlp-masked-lm", AutoModelForMaskedLM),
        ("gmlp-causal-lm", AutoModelForCausalLM),
        ("gmlp-images", AutoModelForImageClassification),
        ("bert-relpos-masked-lm", AutoModelForMaskedLM),
    ],
)
def test_early_checkpoints_keep_their_logits(name, auto_class):
    model, info = auto_class.from_pretrained(FIXTURES / name, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    inputs = load_file(FIXTURES / name / "expected.safetensors")
    expected = inputs.pop("logits")
    with torch.no_grad():
        assert_close(model(**inputs).logits, expected, depth=2)
    assert "gating_implementation" not in model.config.to_json_string()
