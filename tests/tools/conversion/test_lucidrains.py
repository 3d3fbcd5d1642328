"""Convert text and image models of g-mlp-pytorch, and compare them with that package."""

import pytest
import safetensors.torch
import torch
from g_mlp_pytorch import gMLP, gMLPVision
from transformers import AutoModelForMaskedLM

from hf_gmlp import GMLPForCausalLM, GMLPForImageClassification
from hf_gmlp.errors import InputError
from hf_gmlp.tools.conversion.lucidrains import convert_lucidrains, model_from_lucidrains
from hf_gmlp_cli import main

from ...numerics import assert_close

SIZES = {
    gMLP: {"num_tokens": 40, "dim": 16, "depth": 3, "seq_len": 12, "ff_mult": 4},
    gMLPVision: {"image_size": 16, "patch_size": 4, "num_classes": 5, "dim": 16, "depth": 3},
}


@pytest.fixture
def peer(randomize):
    """peer(model_class, **fields) makes a model of the package with perturbed weights."""
    return lambda model_class, **fields: randomize(model_class(**(SIZES[model_class] | fields)), std=0.2)


def assert_same_function(ours, theirs, inputs, **options):
    """Assert that a converted model has the source's logits and gradients, both in double precision."""
    logits, expected = ours(inputs).logits, theirs(inputs)
    assert expected.dtype == torch.float64 and expected.std() > 0.1
    assert_close(logits, expected, depth=3)
    factors = torch.randn_like(expected)
    for output in (logits, expected):
        (output * factors).sum().backward()
    # A conversion renames and reshapes, so it converts gradients too.
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    converted = dict(model_from_lucidrains(gradients, **options)[0].named_parameters())
    actual = {name: parameter.grad for name, parameter in ours.named_parameters() if not name.endswith("qkv_proj.bias")}
    assert_close(actual, {name: converted[name] for name in actual}, depth=3)


@pytest.mark.parametrize(("heads", "attn_dim"), [(1, None), (4, 8)])
def test_a_text_model_is_that_of_the_package(peer, heads, attn_dim):
    theirs = peer(gMLP, heads=heads, attn_dim=attn_dim).double()
    ours, _ = model_from_lucidrains(theirs.state_dict())
    assert_same_function(ours, theirs, torch.randint(0, 40, (3, 12)))
    config = ours.config
    assert (config.spatial_heads, config.attention_size, config.toeplitz) == (heads, attn_dim or 0, False)


@pytest.mark.parametrize(("heads", "attn_dim", "length"), [(1, 8, 12), (4, None, 5)])
def test_a_causal_model_stays_causal(peer, length, attn_dim, heads):
    theirs = peer(gMLP, causal=True, attn_dim=attn_dim, heads=heads).double()
    ours, _ = model_from_lucidrains(theirs.state_dict(), causal=True)
    assert type(ours) is GMLPForCausalLM and ours.config.is_causal
    assert_same_function(ours, theirs, torch.randint(0, 40, (3, length)), causal=True)
    assert all((matrix.triu(1) == 0).all() for matrix in ours.get_position_embeddings())
    wrong, _ = model_from_lucidrains(theirs.state_dict())
    ids = torch.randint(0, 40, (2, 12))
    assert (wrong(ids).logits - theirs(ids)).abs().max() > 0.1


@pytest.mark.parametrize(("heads", "attn_dim"), [(1, 8), (4, None)])
def test_an_image_model_is_that_of_the_package(peer, heads, attn_dim):
    theirs = peer(gMLPVision, heads=heads, attn_dim=attn_dim).double()
    ours, _ = model_from_lucidrains(theirs.state_dict())
    assert type(ours) is GMLPForImageClassification
    assert_same_function(ours, theirs, torch.randn(3, 3, 16, 16).double())
    config = ours.config
    assert (config.spatial_heads, config.attention_size, config.stem) == (heads, attn_dim or 0, "patch")
    assert (config.image_size, config.patch_size, config.num_labels) == (16, 4, 5)


def test_the_command_converts_a_file(tmp_path, peer, capsys):
    theirs = peer(gMLP, attn_dim=8)
    source, out = str(tmp_path / "weights.safetensors"), str(tmp_path / "out")
    safetensors.torch.save_file(theirs.state_dict(), source)
    main(["convert", "lucidrains", source, out])
    assert "no shift_tokens" in capsys.readouterr().out
    ours, ids = AutoModelForMaskedLM.from_pretrained(out), torch.randint(0, 40, (3, 12))
    with torch.no_grad():
        assert_close(ours(ids).logits, theirs(ids), depth=3)
    card = (tmp_path / "out" / "README.md").read_text()
    assert "license: unknown" in card and "g-mlp-pytorch" in card and "no tokenizer" in card
    with pytest.raises(InputError, match="out"):
        convert_lucidrains("not even looked at", out)


def test_models_that_cannot_be_converted_are_refused(peer):
    for model, options, message in (
        (peer(gMLP, num_tokens=None), {}, "to_embed.weight"),
        (peer(gMLP, circulant_matrix=True), {}, "circulant_pos_x"),
        (peer(gMLPVision, image_size=(8, 24)), {}, "sgu.bias"),
        (peer(gMLPVision), {"causal": True}, "--causal"),
        (peer(gMLPVision, channels=1), {}, "16 values"),
    ):
        with pytest.raises(InputError, match=message):
            model_from_lucidrains(model.state_dict(), **options)
