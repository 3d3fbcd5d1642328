import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from hf_gmlp import GMLPConfig, GMLPForImageClassification, GMLPForMaskedLM

pytestmark = pytest.mark.heavy

SCRIPT = Path(__file__).parent / "fsdp_training.py"
ROOT = SCRIPT.parents[2]
LAUNCHER = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
ENVIRONMENT = {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


def test_fsdp_on_two_processes_trains_the_same_model_as_one(tmp_path):
    torch.manual_seed(0)
    config = GMLPConfig(vocab_size=30, hidden_size=16, num_hidden_layers=2, intermediate_size=32,
                        max_position_embeddings=8, attention_size=4, spatial_initializer_range=0.2)  # fmt: skip
    GMLPForMaskedLM(config).save_pretrained(tmp_path / "start")
    for name, prefix in (("single", []), ("parallel", LAUNCHER)):
        command = [sys.executable, *prefix, SCRIPT, tmp_path / "start", tmp_path / name]
        done = subprocess.run(list(map(str, command)), env=os.environ | ENVIRONMENT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    start, single, parallel = (
        load_file(tmp_path / name / "model.safetensors") for name in ("start", "single", "parallel")
    )
    # transformers saves tied weights of a sharded model twice.
    assert parallel.keys() - single.keys() == {"decoder.weight"}
    assert torch.equal(parallel["decoder.weight"], parallel["model.embeddings.word_embeddings.weight"])
    for name in single:
        assert (single[name] - start[name]).abs().max() > 1e-3
        torch.testing.assert_close(parallel[name], single[name], atol=1e-5, rtol=1e-4)


def test_tensor_parallelism_on_two_processes_matches_one(perturbed_model, text_config, vision_config, tmp_path):
    """Weights split by the plans in the configs give the same logits, gradients and checkpoint."""
    # 41 words cannot be split evenly.
    text = text_config(attention_size=4, vocab_size=41, hidden_dropout_prob=0.0)
    perturbed_model(GMLPForMaskedLM, text).save_pretrained(tmp_path / "text")
    perturbed_model(GMLPForImageClassification, vision_config()).save_pretrained(tmp_path / "image")
    command = [sys.executable, *LAUNCHER, SCRIPT.with_name("tp_training.py"), tmp_path / "text", tmp_path / "image"]
    done = subprocess.run(list(map(str, command)), env=os.environ | ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
