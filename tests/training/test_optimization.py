"""Which parameters decay, and which have a learning rate of their own."""

import pytest
import torch
from torch import nn
from transformers import AutoModelForSequenceClassification, BertConfig

from hf_gmlp import BertRelposConfig, GMLPConfig, TextMixerConfig, param_groups

SIZES = {"vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 32}
POSITIONAL = {
    "gmlp": (GMLPConfig(**SIZES, max_position_embeddings=8), {"gating_unit.proj.weight"}),
    "relpos": (BertRelposConfig(**SIZES, num_attention_heads=2, max_position_embeddings=8), {"bias.biases.weight"}),
    "bert": (BertConfig(**SIZES, num_attention_heads=1), {"position_embeddings.weight"}),
    "mixer": (
        TextMixerConfig(**SIZES, max_position_embeddings=8),
        {"token_mlp.proj_in.weight", "token_mlp.proj_out.weight"},
    ),
}


def build(kind):
    torch.manual_seed(0)
    return AutoModelForSequenceClassification.from_config(POSITIONAL[kind][0])


@pytest.mark.parametrize("kind", POSITIONAL)
def test_groups(kind):
    model, endings = build(kind), tuple(POSITIONAL[kind][1])
    names = {id(weight): name for name, weight in model.named_parameters()}
    groups = param_groups(model, 1e-3, weight_decay=0.1, spatial_lr_multiplier=5.0)
    found = {}
    for group in groups:
        for weight in group["params"]:
            found[names[id(weight)]] = round(group["lr"], 6), group["weight_decay"]
    assert found.keys() == set(names.values())
    for name, setting in found.items():
        if name.endswith(endings):
            assert setting == (5e-3, 0.0 if "bias" in name else 0.1)
        else:
            matrix = model.get_parameter(name).ndim > 1
            assert setting == (1e-3, 0.1 if matrix else 0.0), name
    assert len({id(weight) for group in groups for weight in group["params"]}) == len(names)


def test_norms_of_convolutional_networks():
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.GroupNorm(2, 4))
    matrices, vectors = param_groups(network, 1e-3, weight_decay=0.1)
    assert [weight.ndim for weight in matrices["params"]] == [4] and len(vectors["params"]) == 5


def test_frozen_weights_are_left_out():
    model = build("gmlp")
    model.base_model.requires_grad_(False)
    assert {id(weight) for group in param_groups(model, 1e-3) for weight in group["params"]} == {
        id(weight) for weight in model.parameters() if weight.requires_grad
    }


def test_a_multiplier_needs_positional_weights():
    with pytest.raises(ValueError, match="spatial_lr_multiplier .* Linear"):
        param_groups(nn.Linear(2, 2), 1e-3, spatial_lr_multiplier=2.0)
    assert len(param_groups(nn.Linear(2, 2), 1e-3)) == 2
