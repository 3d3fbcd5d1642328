"""Checkpoints saved before the first release, and those in the repository, open with unchanged logits."""

from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file

import paper.models  # noqa: F401  # registers BertRelpos

from ..numerics import assert_close

FIXTURES = Path(__file__).parent.parent / "fixtures"
CHECKPOINTS = Path(__file__).parents[2] / "checkpoints"
PIXELS = {"pixel_values": torch.linspace(-1, 1, 3 * 32 * 32, dtype=torch.float64).view(1, 3, 32, 32)}
LARGE_PIXELS = {"pixel_values": torch.linspace(-1, 1, 3 * 64 * 64, dtype=torch.float64).view(1, 3, 64, 64)}
TOKENS = {"input_ids": torch.tensor([[2, *range(300, 800, 25), 4, 700, 3]])}
MASKED_LM = [-7.54260742, -6.12208681, -6.17679385, -6.689903, -6.75575289]
MASKED_LM += [-8.928318, -5.25086224, -4.36546383, -2.37369858, -4.49658857]
CIFAR10 = [2.54791225, -0.43836443, 3.15907405, -2.03850256, -0.43202139]
CIFAR10 += [-0.61918832, 0.85558741, -0.96089839, -2.49619749, -0.57704295]
SENTENCES = [0.01335063, -0.57526086, 0.79252357, -0.22062836, 0.33781187]
SENTENCES += [0.4152122, 0.10641854, -0.60443, 0.10203751, -0.29924434]
PHOTOS = [0.62851834, 1.6626347, 0.46557375, -0.06831254, -0.92619747]
PHOTOS += [-1.16398633, 1.21769991, 0.18838686, -2.00244756, -0.360014]
# Folder -> class that opens it, inputs, and the last ten logits (of the last token), or numbers of an embedding, in
# double precision.
LOGITS = {
    "amlp-mini": ("AutoModelForMaskedLM", TOKENS, MASKED_LM),
    "amlp-mini-sst2": ("AutoModelForSequenceClassification", TOKENS, [1.69642813, -1.71846597]),
    "gmlp-mini-cifar10": ("AutoModelForImageClassification", PIXELS, CIFAR10),
    "gmlp-mini-photos": ("AutoModel", LARGE_PIXELS, PHOTOS),
    "gmlp-mini-sentences": ("AutoModel", TOKENS, SENTENCES),
}


@pytest.mark.parametrize(
    "name, auto_class",
    [
        ("amlp-masked-lm", "AutoModelForMaskedLM"),
        ("gmlp-causal-lm", "AutoModelForCausalLM"),
        ("gmlp-images", "AutoModelForImageClassification"),
        ("bert-relpos-masked-lm", "AutoModelForMaskedLM"),
    ],
)
def test_early_checkpoints_keep_their_logits(name, auto_class):
    model, info = getattr(transformers, auto_class).from_pretrained(FIXTURES / name, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    inputs = load_file(FIXTURES / name / "expected.safetensors")
    expected = inputs.pop("logits")
    with torch.no_grad():
        assert_close(model(**inputs).logits, expected, depth=2)
    assert "gating_implementation" not in model.config.to_json_string()


def test_all_checkpoints_are_tested():
    assert {path.parent.name for path in CHECKPOINTS.glob("*/config.json")} == set(LOGITS)


@pytest.mark.parametrize("name", LOGITS)
def test_logits_are_unchanged(name):
    auto_class, inputs, expected = LOGITS[name]
    model = getattr(transformers, auto_class).from_pretrained(CHECKPOINTS / name, dtype=torch.float64)
    with torch.no_grad():
        outputs = model.eval()(**inputs)
    logits = outputs["logits"] if "logits" in outputs else outputs["pooler_output"]
    assert logits.flatten(0, -2)[-1, -10:].tolist() == pytest.approx(expected, abs=1e-7)
