"""Selective checkpointing trains identically with about half of the memory for the backward pass."""

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM
from transformers.testing_utils import torch_device

from benchmarks.memory import kept_bytes
from hf_gmlp import GMLPConfig, GMLPForImageClassification, GMLPForMaskedLM, GMLPVisionConfig
from hf_gmlp.training.checkpointing import enable_selective_checkpointing, keep_products

from ..numerics import assert_close
from .helpers import make_trainer

DROPPED = {"hidden_dropout_prob": 0.1, "activation_dropout": 0.1, "drop_path_rate": 0.2}


def build(kind, layers=2, **fields):
    """Build a model and its inputs, on a GPU if available."""
    torch.manual_seed(0)
    ids = torch.randint(5, 40, (2, 64))
    inputs = {"input_ids": ids, "labels": ids}
    sizes = {"num_hidden_layers": layers, "hidden_size": 64, "max_position_embeddings": 64, "vocab_size": 40}
    if kind == "images":
        config = GMLPVisionConfig(num_hidden_layers=layers, image_size=64, pooling="mean", num_labels=5, **fields)
        model = GMLPForImageClassification(config)
        inputs = {"pixel_values": torch.randn(2, 3, 64, 64), "labels": torch.tensor([1, 3])}
    elif kind == "bert":
        model = BertForMaskedLM(BertConfig(**sizes, num_attention_heads=2, intermediate_size=128))
    else:
        attention_size = 16 if kind == "amlp" else 0
        model = GMLPForMaskedLM(GMLPConfig(**sizes, intermediate_size=384, attention_size=attention_size, **fields))
    return model.to(torch_device), {name: x.to(torch_device) for name, x in inputs.items()}


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
    # The order of summation may differ.
    assert_close(new_gradients, gradients, depth=2)


@pytest.mark.parametrize("dropout, policy", [(0.0, "MUST_SAVE"), (0.1, "PREFER_RECOMPUTE")])
def test_attention_with_dropout_is_recomputed(dropout, policy):
    """The dropout that follows must get the same random numbers again. On CPUs, no kernel has dropout."""
    x = torch.zeros(1, 1, 2, 4)
    efficient = torch.ops.aten._scaled_dot_product_efficient_attention.default
    flash = torch.ops.aten._scaled_dot_product_flash_attention.default
    assert keep_products(None, efficient, x, x, x, None, True, dropout).name == policy
    assert keep_products(None, flash, x, x, x, dropout_p=dropout).name == policy


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


def test_compiled_into_one_graph():
    model, inputs = build("gmlp", hidden_dropout_prob=0.0)
    loss, gradients = loss_and_gradients(model, inputs)
    enable_selective_checkpointing(model)
    model.compile(backend="aot_eager", fullgraph=True)
    new_loss, new_gradients = loss_and_gradients(model, inputs)
    assert_close((new_loss, new_gradients), (loss, gradients), depth=2)


def test_a_training_has_the_same_weights(tmp_path):
    options = ({"selective_checkpointing": flag, "optim": "sgd"} for flag in (False, True))
    plain, selective = (make_trainer(tmp_path / str(number), **flags) for number, flags in enumerate(options))
    for trainer in (plain, selective):
        trainer.train()
    assert_close(selective.model.state_dict(), plain.model.state_dict())
