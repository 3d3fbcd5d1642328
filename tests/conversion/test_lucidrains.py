"""Converts g-mlp-pytorch's text models, and compares with the package itself."""

import pytest
import safetensors.torch
import torch
from g_mlp_pytorch import gMLP, gMLPVision
from g_mlp_pytorch.autoregressive_wrapper import AutoregressiveWrapper
from torch import nn
from transformers import AutoModelForMaskedLM

from hf_gmlp import GMLPForCausalLM
from hf_gmlp.cli import main
from hf_gmlp.conversion.lucidrains import convert_lucidrains, model_from_lucidrains
from hf_gmlp.errors import InputError

from ..numerics import assert_close

SIZES = {"num_tokens": 40, "dim": 16, "depth": 3, "seq_len": 12, "ff_mult": 4}


@pytest.fixture
def peer(randomize):
    """peer(**fields) makes a model of the package with weights far from their initial ones."""
    return lambda **fields: randomize(gMLP(**(SIZES | fields)), std=0.2)


@torch.no_grad()
def assert_same_logits(ours, theirs, length=12):
    ids = torch.randint(0, 40, (3, length))
    logits = theirs(ids)
    assert logits.std() > 0.1
    assert_close(ours(ids).logits, logits, depth=3)


@pytest.mark.parametrize("circulant", [False, True])
@pytest.mark.parametrize("attn_dim", [None, 8])
def test_logits_are_those_of_the_package(peer, attn_dim, circulant):
    theirs = peer(attn_dim=attn_dim, circulant_matrix=circulant)
    ours, notes = model_from_lucidrains(theirs.state_dict())
    assert_same_logits(ours, theirs)
    assert ours.config.attention_size == (attn_dim or 0) and not ours.config.toeplitz
    assert any("circulant" in note for note in notes) == circulant


@pytest.mark.parametrize("attn_dim", [None, 8])
@pytest.mark.parametrize("circulant", [False, True])
@pytest.mark.parametrize("length", [12, 5])
def test_a_causal_model_stays_causal(peer, circulant, length, attn_dim):
    theirs = peer(causal=True, circulant_matrix=circulant, attn_dim=attn_dim)
    ours, notes = model_from_lucidrains(theirs.state_dict(), causal=True)
    assert type(ours) is GMLPForCausalLM and ours.config.is_causal
    assert_same_logits(ours, theirs, length)
    assert any("causal (--causal)" in note for note in notes)
    assert all((matrix.triu(1) == 0).all() for matrix in ours.get_position_embeddings())
    if not circulant:
        wrong, notes = model_from_lucidrains(theirs.state_dict())
        ids = torch.randint(0, 40, (2, 12))
        assert (wrong(ids).logits - theirs(ids)).abs().max() > 0.1
        assert any("otherwise give --causal" in note for note in notes)


def test_a_causal_model_generates_as_the_package(peer):
    theirs = peer(causal=True, attn_dim=8)
    ours, _ = model_from_lucidrains(theirs.state_dict(), causal=True)
    # In double precision, rounding does not decide between two tokens.
    theirs, ours = theirs.double(), ours.double()
    prompt = torch.randint(0, 40, (2, 3))
    # Only the most likely token is kept, so nothing is sampled.
    text = AutoregressiveWrapper(theirs).generate(prompt, 9, filter_thres=0.97)
    assert torch.equal(ours.generate(prompt, do_sample=False, max_new_tokens=9)[:, 3:], text)


def test_other_sizes(peer):
    sizes = {"num_tokens": 50, "dim": 10, "depth": 11, "seq_len": 7, "ff_mult": 3}
    ours, _ = model_from_lucidrains(peer(**sizes).state_dict())
    config = ours.config
    assert (config.vocab_size, config.hidden_size, config.num_hidden_layers) == (50, 10, 11)
    assert (config.max_position_embeddings, config.intermediate_size) == (7, 30)


@pytest.mark.parametrize("ending", ["safetensors", "pt"])
def test_the_command_converts_a_file(tmp_path, peer, capsys, ending):
    theirs = peer(attn_dim=8)
    source, out = str(tmp_path / f"weights.{ending}"), str(tmp_path / "out")
    if ending == "pt":
        # A training script's checkpoint of a model under DistributedDataParallel.
        weights = {f"module.{name}": tensor for name, tensor in theirs.state_dict().items()}
        torch.save({"epoch": 3, "model": weights}, source)
    else:
        safetensors.torch.save_file(theirs.state_dict(), source)
    main(["convert", "lucidrains", source, out])
    said = capsys.readouterr().out
    for part in ("n 12, attention 8", "no shift_tokens", "no tokenizer", "prob_survival", "The license"):
        assert part in said
    ours, info = AutoModelForMaskedLM.from_pretrained(out, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert_same_logits(ours, theirs)
    assert ours.config.pad_token_id is None
    card = (tmp_path / "out" / "README.md").read_text()
    assert "license: unknown" in card and "g-mlp-pytorch" in card and "no tokenizer" in card and "--license" not in card
    with pytest.raises(InputError, match="exists already"):
        convert_lucidrains("not even looked at", out)


@pytest.mark.parametrize(
    ("fields", "options", "message"),
    [
        ({"heads": 2}, {}, "2 heads.*cannot be converted"),
        ({"num_tokens": None}, {}, "no tensor to_embed.weight"),
    ],
)
def test_models_that_cannot_be_converted(peer, fields, options, message):
    with pytest.raises(InputError, match=message):
        model_from_lucidrains(peer(**fields).state_dict(), "weights.pt", **options)


def test_tensors_that_do_not_fit(peer):
    state = peer(circulant_matrix=True).state_dict()
    unit = "layers.2.fn.fn.fn.sgu"
    del state[f"{unit}.circulant_pos_y"]
    state[f"{unit}.weight"] = torch.zeros(1, 12, 12)
    state["layers.1.fn.fn.fn.attn.to_out.bias"] = torch.zeros(32)
    with pytest.raises(InputError) as error:
        model_from_lucidrains(state, "weights.pt")
    message = str(error.value)
    assert (
        f"1 missing ({unit}.circulant_pos_y)" in message and "1 unknown (layers.1.fn.fn.fn.attn.to_out.bias)" in message
    )
    assert f"{unit}.weight [1, 12, 12] instead of [1, 12]" in message


def test_other_models_of_the_package_are_refused():
    vision = gMLPVision(image_size=16, patch_size=4, num_classes=3, dim=8, depth=2)
    for model in (vision, nn.Linear(2, 3)):
        with pytest.raises(InputError, match="not a checkpoint of a text model of g-mlp-pytorch"):
            model_from_lucidrains(model.state_dict())
