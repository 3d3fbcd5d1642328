import copy
from functools import partial

import pytest
import torch
from torch import nn
from transformers import AutoModelForSequenceClassification, BertConfig, MPNetConfig

from hf_gmlp import GMLPConfig, param_groups
from hf_gmlp.training.optimization import WithMuon, hidden_matrices

SIZES = {"vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 32}
POSITIONAL = {
    "gmlp": (GMLPConfig(**SIZES, max_position_embeddings=8), {"gating_unit.proj.weight"}),
    "bert": (BertConfig(**SIZES, num_attention_heads=1), {"position_embeddings.weight"}),
    "mpnet": (
        MPNetConfig(**SIZES, num_attention_heads=2),
        {"position_embeddings.weight", "relative_attention_bias.weight"},
    ),
}


def build(kind):
    torch.manual_seed(0)
    return AutoModelForSequenceClassification.from_config(POSITIONAL[kind][0])


@pytest.mark.parametrize("kind", POSITIONAL)
def test_every_weight_has_the_learning_rate_and_decay_of_its_group(kind):
    model, endings = build(kind), tuple(POSITIONAL[kind][1])
    names = {id(weight): name for name, weight in model.named_parameters()}
    groups = param_groups(model, 1e-3, weight_decay=0.1, spatial_lr_multiplier=5.0)
    settings = {}
    for group in groups:
        for weight in group["params"]:
            settings[names[id(weight)]] = round(group["lr"], 6), group["weight_decay"]
    assert settings.keys() == set(names.values())
    for name, setting in settings.items():
        if name.endswith(endings):
            assert setting == (5e-3, 0.0 if "bias" in name else 0.1)
        else:
            matrix = model.get_parameter(name).ndim > 1
            assert setting == (1e-3, 0.1 if matrix else 0.0), name
    assert len({id(weight) for group in groups for weight in group["params"]}) == len(names)


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


@pytest.mark.parametrize("kind", POSITIONAL)
def test_hidden_matrices_are_those_of_the_encoder(kind):
    model = build(kind)
    names = {id(weight): name for name, weight in model.named_parameters()}
    matrices = {names[id(weight)] for weight in hidden_matrices(model)}
    encoder = {name for name in names.values() if name.startswith(f"{model.base_model_prefix}.")}
    others = ("embeddings.weight", *POSITIONAL[kind][1])
    expected = {name for name in encoder if model.get_parameter(name).ndim == 2 and not name.endswith(others)}
    assert matrices == expected and matrices


def test_muon_and_another_optimizer_train_their_parts_with_one_schedule():
    model = build("gmlp")
    twin = copy.deepcopy(model)
    groups = partial(param_groups, learning_rate=1e-2, weight_decay=0.1, spatial_lr_multiplier=5.0)
    both = WithMuon(hidden_matrices(model), groups(model), torch.optim.AdamW, 3e-2, weight_decay=0.2)
    schedule = torch.optim.lr_scheduler.LambdaLR(both, lambda step: 1 / (step + 1))
    # For comparison, Muon and AdamW train their parts of a copy separately.
    matrices = hidden_matrices(twin)
    muon = torch.optim.Muon(matrices, 3e-2, weight_decay=0.2, adjust_lr_fn="match_rms_adamw")
    kept = {id(weight) for weight in matrices}
    rest = [group | {"params": [w for w in group["params"] if id(w) not in kept]} for group in groups(twin)]
    adamw = torch.optim.AdamW([group for group in rest if group["params"]])
    schedules = [torch.optim.lr_scheduler.LambdaLR(part, lambda step: 1 / (step + 1)) for part in (muon, adamw)]
    for step in range(4):
        for copied, optimizers in ((model, [both]), (twin, [muon, adamw])):
            copied(torch.arange(8)[None], labels=torch.tensor([step % 2])).loss.backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        for part in (schedule, *schedules):
            part.step()
        if step == 1:
            state = copy.deepcopy(both.state_dict())
            both = WithMuon(hidden_matrices(model), groups(model), torch.optim.AdamW, 1.0, weight_decay=0.2)
            both.load_state_dict(state)
            schedule = torch.optim.lr_scheduler.LambdaLR(both, lambda step: 1 / (step + 3))
    for name, weight in model.named_parameters():
        torch.testing.assert_close(weight, twin.get_parameter(name), msg=name)
