"""Convert labml's annotated gMLP, and compare it with the reimplementation in tests/peers/annotated.py."""

import copy

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from hf_gmlp import GMLPForCausalLM
from hf_gmlp.errors import InputError
from hf_gmlp.tools.conversion.labml import model_from_labml
from hf_gmlp_cli import main

from ...numerics import assert_close
from ...peers.annotated import AnnotatedGMLPBlock

D_MODEL, LENGTH, VOCABULARY = 16, 12, 40


class Autoregressive(nn.Module):
    """labml's AutoregressiveTransformer with the names of its weights, for ids [m, B]."""

    def __init__(self, embeddings: nn.Module):
        super().__init__()
        self.src_embed = embeddings
        self.encoder = nn.Module()
        self.encoder.layers = nn.ModuleList(AnnotatedGMLPBlock(D_MODEL, 32, LENGTH) for _ in range(3))
        self.encoder.norm = nn.LayerNorm([D_MODEL])
        self.generator = nn.Module()
        self.generator.projection = nn.Linear(D_MODEL, VOCABULARY)

    def forward(self, ids):
        x = self.src_embed(ids)
        for layer in self.encoder.layers:
            # labml's model multiplies W by this mask.
            masked = copy.deepcopy(layer)
            masked.sgu.weight.data *= torch.ones_like(masked.sgu.weight).tril()
            x = masked(x)
        return self.generator.projection(self.encoder.norm(x))


@torch.no_grad()
def assert_same_logits(ours, theirs, length):
    ids = torch.randint(0, VOCABULARY, (3, length))
    logits = theirs(ids.T).transpose(0, 1)
    assert logits.std() > 0.1
    assert_close(ours(ids).logits, logits, depth=3)


def test_logits_are_those_of_the_annotated_model(randomize):
    theirs = randomize(Autoregressive(nn.Embedding(VOCABULARY, D_MODEL)), std=0.2)
    # Weights above the diagonal were masked, and must stay without effect.
    assert theirs.encoder.layers[0].sgu.weight.triu(1).abs().max() > 0.1
    ours, _ = model_from_labml(theirs.state_dict())
    assert_same_logits(ours, theirs, length=5)
    assert type(ours) is GMLPForCausalLM
    assert all((matrix.triu(1) == 0).all() for matrix in ours.get_position_embeddings())


def test_the_command_converts_a_file(tmp_path, randomize, capsys):
    theirs = randomize(Autoregressive(nn.Embedding(VOCABULARY, D_MODEL)), std=0.2)
    torch.save(theirs.state_dict(), tmp_path / "weights.pth")
    main(["convert", "labml", str(tmp_path / "weights.pth"), str(tmp_path / "out"), "--license", "mit"])
    assert "no tokenizer" in capsys.readouterr().out
    assert_same_logits(AutoModelForCausalLM.from_pretrained(tmp_path / "out"), theirs, LENGTH)
    assert "license: mit" in (tmp_path / "out" / "README.md").read_text()


def test_tensors_that_do_not_fit_are_refused():
    state = Autoregressive(nn.Embedding(VOCABULARY, D_MODEL)).state_dict()
    del state["encoder.layers.1.proj2.bias"]
    with pytest.raises(InputError, match="encoder.layers.1.proj2.bias"):
        model_from_labml(state)
    # labml's embeddings with position encodings have other names.
    state["src_embed.linear.weight"] = state.pop("src_embed.weight")
    state["src_embed.positional_encodings"] = torch.randn(50, 1, D_MODEL)
    with pytest.raises(InputError, match="src_embed.weight"):
        model_from_labml(state)
