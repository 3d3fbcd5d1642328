"""Selective checkpointing: the same training, with about half of the memory for the backward pass."""

import os
import runpy
import shutil
import subprocess
import sys
from pydoc_data.topics import topics

import pytest
import torch
from safetensors.torch import load_file
from transformers import BertConfig, BertForMaskedLM

import run_mlm
from hf_gmlp import (
    GMLPConfig,
    GMLPForImageClassification,
    GMLPForMaskedLM,
    GMLPForSequenceClassification,
    GMLPVisionConfig,
)
from hf_gmlp.errors import InputError
from hf_gmlp.training.arguments import ModelArguments, RunArguments, parse_arguments
from hf_gmlp.training.checkpointing import enable_selective_checkpointing

from .test_distributed import ENVIRONMENT, LAUNCHER, ROOT
from .test_trainer import make_trainer

kept_bytes = runpy.run_path(str(ROOT / "benchmarks" / "memory.py"))["kept_bytes"]
DROPPED = {"hidden_dropout_prob": 0.1, "activation_dropout": 0.1, "drop_path_rate": 0.2}


def build(kind, layers=2, **fields):
    """A model, and its inputs."""
    torch.manual_seed(0)
    if kind == "images":
        config = GMLPVisionConfig(num_hidden_layers=layers, image_size=64, pooling="mean", num_labels=5, **fields)
        images = torch.randn(2, 3, 64, 64)
        return GMLPForImageClassification(config), {"pixel_values": images, "labels": torch.tensor([1, 3])}
    ids = torch.randint(5, 40, (2, 64))
    sizes = {"num_hidden_layers": layers, "hidden_size": 64, "max_position_embeddings": 64, "vocab_size": 40}
    if kind == "bert":
        model = BertForMaskedLM(BertConfig(**sizes, num_attention_heads=2, intermediate_size=128))
    else:
        attention_size = 16 if kind == "amlp" else 0
        model = GMLPForMaskedLM(GMLPConfig(**sizes, intermediate_size=384, attention_size=attention_size, **fields))
    return model, {"input_ids": ids, "labels": ids}


def loss_and_gradients(model, inputs):
    torch.manual_seed(1)
    model.zero_grad()
    loss = model.train()(**inputs).loss
    loss.backward()
    return loss, [parameter.grad.clone() for parameter in model.parameters()]


@pytest.mark.parametrize("kind", ["gmlp", "amlp", "images", "bert"])
def test_outputs_and_gradients_stay_the_same(kind):
    model, inputs = build(kind, **({} if kind == "bert" else DROPPED))
    loss, gradients = loss_and_gradients(model, inputs)
    enable_selective_checkpointing(model)
    new_loss, new_gradients = loss_and_gradients(model, inputs)
    assert torch.equal(new_loss, loss)
    # Sums may be taken in another order.
    torch.testing.assert_close(new_gradients, gradients, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("kind, limit", [("gmlp", 0.55), ("amlp", 0.65), ("images", 0.55)])
def test_a_block_keeps_about_half(kind, limit):
    def kept(layers, selective):
        model, inputs = build(kind, layers)
        if selective:
            enable_selective_checkpointing(model)
        own = [*model.parameters(), *inputs.values()]
        return kept_bytes(lambda: model.train()(**inputs).loss, own)

    plain, selective = (kept(3, selective) - kept(1, selective) for selective in (False, True))
    assert 0.2 * plain < selective <= limit * plain


def test_what_is_kept_of_a_known_layer():
    x = torch.ones(5, 8, requires_grad=True)
    # The results of both sigmoids, and a scalar.
    assert kept_bytes(lambda: x.sigmoid().sigmoid().sum(), [x]) == 4 * (2 * 5 * 8 + 1)


@pytest.mark.parametrize("kind", ["gmlp", "images"])
def test_compiled_into_one_graph(kind):
    model, inputs = build(kind, hidden_dropout_prob=0.0)
    loss, gradients = loss_and_gradients(model, inputs)
    enable_selective_checkpointing(model)
    model.compile(backend="aot_eager", fullgraph=True)
    new_loss, new_gradients = loss_and_gradients(model, inputs)
    torch.testing.assert_close(new_loss, loss)
    torch.testing.assert_close(new_gradients, gradients, atol=1e-6, rtol=1e-5)


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    """script(name, *flags) trains by run_mlm.py in a folder of that name, and returns the file of the weights."""
    folder = tmp_path_factory.mktemp("script")
    (folder / "text.txt").write_text("\n\n".join(text for _, text in sorted(topics.items())[:10]), encoding="utf-8")
    sizes = "num_hidden_layers=2,hidden_size=32,intermediate_size=64,max_position_embeddings=32,hidden_dropout_prob=0.1"
    common = ["--config_name", "gmlp-18l", "--config_overrides", sizes, "--train_file", folder / "text.txt",
              "--vocab_size", 400, "--do_train", "--use_cpu", "--max_steps", 4, "--global_batch_size", 4]  # fmt: skip

    def run(name, *flags, launcher=None):
        words = list(map(str, [ROOT / "run_mlm.py", *common, *flags, "--output_dir", folder / name]))
        if launcher is None:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(sys, "argv", words)
                run_mlm.main()
        else:
            command = [sys.executable, *launcher, *words]
            done = subprocess.run(command, env=os.environ | ENVIRONMENT, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
        return folder / name / "model.safetensors"

    return run


@pytest.mark.slow
def test_the_script_trains_the_same_weights(script):
    expected = load_file(script("plain"))
    flag = "--selective_checkpointing"
    compiled = ("--torch_compile", "--torch_compile_backend", "aot_eager")
    # Dropout on two processes draws other numbers, but runs.
    for name, flags, launcher in (("one", (), None), ("compiled", compiled, None), ("two", (), LAUNCHER)):
        for key, value in load_file(script(name, flag, *flags, launcher=launcher)).items():
            assert name == "two" or torch.allclose(value, expected[key], atol=1e-5, rtol=1e-4), (name, key)


@pytest.mark.slow
def test_a_run_may_be_resumed_with_it(script, caplog):
    expected = load_file(script("whole"))
    cut = script("cut", "--save_steps", 2)
    for path in ("checkpoint-4", "all_results.json", "model.safetensors"):
        remove = cut.parent / path
        shutil.rmtree(remove) if remove.is_dir() else remove.unlink()
    with caplog.at_level("INFO"):
        script("cut", "--save_steps", 2, "--selective_checkpointing")
    assert "checkpoint-2" in caplog.text
    for key, value in load_file(cut).items():
        torch.testing.assert_close(value, expected[key], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("flag", ["--gradient_checkpointing", "--activation_checkpointing"])
def test_refused_with_full_checkpointing(flag, tmp_path):
    words = ["--config_name", "gmlp-18l", "--output_dir", str(tmp_path), "--use_cpu", "--selective_checkpointing", flag]
    if flag == "--activation_checkpointing" and not hasattr(RunArguments, flag[2:]):
        pytest.skip("This transformers has the older name only.")
    with pytest.raises(
        InputError, match="--selective_checkpointing and --gradient_checkpointing .* cannot be combined"
    ):
        parse_arguments((ModelArguments, RunArguments), "", words)


def test_refused_for_models_that_cannot(tmp_path, monkeypatch):
    monkeypatch.setattr(GMLPForSequenceClassification, "supports_gradient_checkpointing", False)
    with pytest.raises(InputError, match="--selective_checkpointing: .* Leave it out."):
        make_trainer(tmp_path, selective_checkpointing=True)
