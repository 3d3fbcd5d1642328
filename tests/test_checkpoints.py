"""The checkpoints that come with the repository: every later version opens them, with the logits that they had."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers

import hf_gmlp  # noqa: F401

CHECKPOINTS = Path(__file__).parents[1] / "checkpoints"
# Folder -> class that opens it, and its logits in double precision for pixels from -1 to 1.
LOGITS = {
    "gmlp-mini-cifar10": (
        "AutoModelForImageClassification",
        [
            *(2.54791225, -0.43836443, 3.15907405, -2.03850256, -0.43202139),
            *(-0.61918832, 0.85558741, -0.96089839, -2.49619749, -0.57704295),
        ],
    ),
}
# What a process without this package runs.
ALONE = """
import json, sys
sys.modules["hf_gmlp"] = None
import torch, transformers
model = getattr(transformers, sys.argv[1]).from_pretrained(sys.argv[2], trust_remote_code=True, dtype=torch.float64)
pixels = torch.linspace(-1, 1, 3 * 32 * 32, dtype=torch.float64).view(1, 3, 32, 32)
print(json.dumps(model.eval()(pixels).logits[0].tolist()))
"""


def test_every_checkpoint_is_tested():
    assert {path.parent.name for path in CHECKPOINTS.glob("*/config.json")} == set(LOGITS)


@pytest.mark.parametrize("name", LOGITS)
def test_logits(name):
    auto_class, expected = LOGITS[name]
    model = getattr(transformers, auto_class).from_pretrained(CHECKPOINTS / name, dtype=torch.float64)
    pixels = torch.linspace(-1, 1, 3 * 32 * 32, dtype=torch.float64).view(1, 3, 32, 32)
    with torch.no_grad():
        assert model.eval()(pixels).logits[0].tolist() == pytest.approx(expected, abs=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("name", LOGITS)
def test_logits_by_the_code_that_it_carries(name, tmp_path):
    auto_class, expected = LOGITS[name]
    command = [sys.executable, "-c", ALONE, auto_class, str(CHECKPOINTS / name)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == pytest.approx(expected, abs=1e-7)
