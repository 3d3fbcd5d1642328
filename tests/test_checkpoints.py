"""Later versions open the checkpoints in the repository with unchanged logits."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers

import hf_gmlp  # noqa: F401

CHECKPOINTS = Path(__file__).parents[1] / "checkpoints"
PIXELS = {"pixel_values": torch.linspace(-1, 1, 3 * 32 * 32, dtype=torch.float64).view(1, 3, 32, 32).tolist()}
TOKENS = {"input_ids": [[2, *range(300, 800, 25), 4, 700, 3]]}
MASKED_LM = [-7.54260742, -6.12208681, -6.17679385, -6.689903, -6.75575289]
MASKED_LM += [-8.928318, -5.25086224, -4.36546383, -2.37369858, -4.49658857]
CIFAR10 = [2.54791225, -0.43836443, 3.15907405, -2.03850256, -0.43202139]
CIFAR10 += [-0.61918832, 0.85558741, -0.96089839, -2.49619749, -0.57704295]
# Folder -> class that opens it, inputs, and the last ten logits (of the last token) in double precision.
LOGITS = {
    "amlp-mini": ("AutoModelForMaskedLM", TOKENS, MASKED_LM),
    "amlp-mini-sst2": ("AutoModelForSequenceClassification", TOKENS, [1.69642813, -1.71846597]),
    "gmlp-mini-cifar10": ("AutoModelForImageClassification", PIXELS, CIFAR10),
}
# Script for a process without this package.
ALONE = """
import json, sys
sys.modules["hf_gmlp"] = None
import torch, transformers
torch.set_default_dtype(torch.float64)
model = getattr(transformers, sys.argv[1]).from_pretrained(sys.argv[2], trust_remote_code=True, dtype=torch.float64)
inputs = {name: torch.tensor(values) for name, values in json.load(sys.stdin).items()}
print(json.dumps(model.eval()(**inputs).logits.flatten(0, -2)[-1, -10:].tolist()))
"""


def test_all_checkpoints_are_tested():
    assert {path.parent.name for path in CHECKPOINTS.glob("*/config.json")} == set(LOGITS)


@pytest.mark.parametrize("name", LOGITS)
def test_logits(name):
    auto_class, inputs, expected = LOGITS[name]
    model = getattr(transformers, auto_class).from_pretrained(CHECKPOINTS / name, dtype=torch.float64)
    dtypes = {"input_ids": torch.long, "pixel_values": torch.float64}
    tensors = {key: torch.tensor(values, dtype=dtypes[key]) for key, values in inputs.items()}
    with torch.no_grad():
        logits = model.eval()(**tensors).logits.flatten(0, -2)[-1, -10:]
    assert logits.tolist() == pytest.approx(expected, abs=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("name", LOGITS)
def test_logits_of_a_portable_copy(name, tmp_path):
    """The checkpoints in the repository contain no code; `save_pretrained` adds it."""
    assert not any((CHECKPOINTS / name).glob("*.py"))
    assert "auto_map" not in (CHECKPOINTS / name / "config.json").read_text()
    auto_class, inputs, expected = LOGITS[name]
    getattr(transformers, auto_class).from_pretrained(CHECKPOINTS / name).save_pretrained(tmp_path / "copy")
    command = [sys.executable, "-c", ALONE, auto_class, str(tmp_path / "copy")]
    done = subprocess.run(command, cwd=tmp_path, input=json.dumps(inputs), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == pytest.approx(expected, abs=1e-7)
