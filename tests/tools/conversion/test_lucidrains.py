"""Converts g-mlp-pytorch's text and image models, and compares with the package itself."""

import pytest
import safetensors.torch
import torch
from g_mlp_pytorch import gMLP, gMLPVision
from g_mlp_pytorch.autoregressive_wrapper import AutoregressiveWrapper
from g_mlp_pytorch.g_mlp_pytorch import SpatialGatingUnit
from PIL import Image
from torch import nn
from transformers import AutoImageProcessor, AutoModelForImageClassification, AutoModelForMaskedLM

from hf_gmlp import GMLPForCausalLM, GMLPForImageClassification
from hf_gmlp.errors import InputError
from hf_gmlp.tools.cli import main
from hf_gmlp.tools.conversion.lucidrains import circulant_matrix, convert_lucidrains, model_from_lucidrains

from ...numerics import assert_close

SIZES = {"num_tokens": 40, "dim": 16, "depth": 3, "seq_len": 12, "ff_mult": 4}
IMAGE_SIZES = {"image_size": 16, "patch_size": 4, "num_classes": 5, "dim": 16, "depth": 3}


@pytest.fixture
def peer(randomize):
    """peer(**fields) makes a text model of the package with perturbed weights."""
    return lambda **fields: randomize(gMLP(**(SIZES | fields)), std=0.2)


@pytest.fixture
def image_peer(randomize):
    """image_peer(**fields) makes an image model of the package with perturbed weights."""
    return lambda **fields: randomize(gMLPVision(**(IMAGE_SIZES | fields)), std=0.2)


@torch.no_grad()
def assert_same_logits(ours, theirs, length=12):
    ids = torch.randint(0, 40, (3, length))
    logits = theirs(ids)
    assert logits.std() > 0.1
    assert_close(ours(ids).logits, logits, depth=3)


def assert_same_function(ours, theirs, inputs, **options):
    """Asserts that a converted model has the source's logits and gradients, both in double precision."""
    logits, expected = ours(inputs).logits, theirs(inputs)
    assert expected.dtype == torch.float64 and expected.std() > 0.1
    assert_close(logits, expected, depth=3)
    factors = torch.randn_like(expected)
    for output in (logits, expected):
        (output * factors).sum().backward()
    # Except for circulant weights, a conversion renames and reshapes, so it converts gradients too.
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    converted = dict(model_from_lucidrains(gradients, **options)[0].named_parameters())
    actual = {name: parameter.grad for name, parameter in ours.named_parameters() if not name.endswith("qkv_proj.bias")}
    expected = {name: converted[name] for name in actual}
    units = [module for module in theirs.modules() if isinstance(module, SpatialGatingUnit)]
    for i, (unit, projection) in enumerate(zip(units, ours.spatial_projections(), strict=True)):
        if unit.circulant_matrix:
            parts = [unit.weight, unit.circulant_pos_x, unit.circulant_pos_y]
            matrix = circulant_matrix(*parts)
            name = f"model.layers.{i}.spatial_gating_unit.proj.weight"
            actual[name] = torch.autograd.grad(matrix, parts, projection.weight.grad.view_as(matrix))
            expected[name] = [part.grad for part in parts]
    assert_close(actual, expected, depth=3)


@pytest.mark.parametrize("circulant", [False, True])
@pytest.mark.parametrize("attn_dim", [None, 8])
@pytest.mark.parametrize("heads", [1, 4])
def test_a_text_model_is_that_of_the_package(peer, heads, attn_dim, circulant):
    theirs = peer(heads=heads, attn_dim=attn_dim, circulant_matrix=circulant).double()
    ours, notes = model_from_lucidrains(theirs.state_dict())
    assert_same_function(ours, theirs, torch.randint(0, 40, (3, 12)))
    config = ours.config
    assert (config.spatial_heads, config.attention_size, config.toeplitz) == (heads, attn_dim or 0, False)
    assert any("circulant" in note for note in notes) == circulant


@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("attn_dim", [None, 8])
@pytest.mark.parametrize("circulant", [False, True])
@pytest.mark.parametrize("length", [12, 5])
def test_a_causal_model_stays_causal(peer, circulant, length, attn_dim, heads):
    theirs = peer(causal=True, circulant_matrix=circulant, attn_dim=attn_dim, heads=heads).double()
    ours, notes = model_from_lucidrains(theirs.state_dict(), causal=True)
    assert type(ours) is GMLPForCausalLM and ours.config.is_causal
    assert_same_function(ours, theirs, torch.randint(0, 40, (3, length)), causal=True)
    assert any("causal (--causal)" in note for note in notes)
    assert all((matrix.triu(1) == 0).all() for matrix in ours.get_position_embeddings())
    if not circulant:
        wrong, notes = model_from_lucidrains(theirs.state_dict())
        ids = torch.randint(0, 40, (2, 12))
        assert (wrong(ids).logits - theirs(ids)).abs().max() > 0.1
        assert any("otherwise pass --causal" in note for note in notes)


@pytest.mark.parametrize("attn_dim", [None, 8])
@pytest.mark.parametrize("heads", [1, 4])
def test_an_image_model_is_that_of_the_package(image_peer, heads, attn_dim):
    theirs = image_peer(heads=heads, attn_dim=attn_dim).double()
    ours, _ = model_from_lucidrains(theirs.state_dict())
    assert type(ours) is GMLPForImageClassification
    assert_same_function(ours, theirs, torch.randn(3, 3, 16, 16).double())
    config = ours.config
    assert (config.spatial_heads, config.attention_size, config.stem) == (heads, attn_dim or 0, "patch")
    assert (config.image_size, config.patch_size, config.num_labels) == (16, 4, 5)


def test_sizes_of_images_that_must_be_passed(image_peer):
    theirs = image_peer(image_size=(8, 24), heads=2).double()
    with pytest.raises(InputError, match="12 patches of 4x4 pixels.*--image_size H W"):
        model_from_lucidrains(theirs.state_dict())
    with pytest.raises(InputError, match="do not make 16x20"):
        model_from_lucidrains(theirs.state_dict(), image_size=(16, 20))
    ours, _ = model_from_lucidrains(theirs.state_dict(), image_size=(8, 24))
    assert_same_function(ours, theirs, torch.randn(3, 3, 8, 24).double(), image_size=(8, 24))


def test_options_and_patches_that_do_not_fit_an_image_model(image_peer):
    with pytest.raises(InputError, match="--causal is for text models"):
        model_from_lucidrains(image_peer().state_dict(), causal=True)
    with pytest.raises(InputError, match="patches have 16 values"):
        model_from_lucidrains(image_peer(channels=1).state_dict())


def run_command(source, out, auto_class):
    """Converts a file, and opens the checkpoint, which must have every weight and no other."""
    main(["convert", "lucidrains", source, out])
    model, info = auto_class.from_pretrained(out, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    return model


def test_the_command_converts_an_image_model(tmp_path, image_peer, capsys):
    theirs = image_peer(heads=4, attn_dim=8)
    source, out = str(tmp_path / "weights.pt"), str(tmp_path / "out")
    torch.save(theirs.state_dict(), source)
    ours = run_command(source, out, AutoModelForImageClassification)
    said = capsys.readouterr().out
    for part in ("16x16 pixels", "LABEL_0", "prob_survival", "The license"):
        assert part in said
    processor = AutoImageProcessor.from_pretrained(out)
    pixels = processor(Image.effect_noise((30, 20), 99).convert("RGB"), return_tensors="pt")["pixel_values"]
    assert pixels.shape == (1, 3, 16, 16)
    with torch.no_grad():
        assert_close(ours(pixels).logits, theirs(pixels), depth=3)


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
    ours = run_command(source, out, AutoModelForMaskedLM)
    said = capsys.readouterr().out
    for part in ("no shift_tokens", "no tokenizer", "prob_survival", "The license"):
        assert part in said
    assert_same_logits(ours, theirs)
    assert ours.config.pad_token_id is None
    card = (tmp_path / "out" / "README.md").read_text()
    assert "license: unknown" in card and "g-mlp-pytorch" in card and "no tokenizer" in card and "--license" not in card
    with pytest.raises(InputError, match="exists already"):
        convert_lucidrains("not even looked at", out)


def test_a_text_model_that_cannot_be_converted(peer):
    with pytest.raises(InputError, match="no tensor to_embed.weight"):
        model_from_lucidrains(peer(num_tokens=None).state_dict())
    with pytest.raises(InputError, match="--image_size for image models"):
        model_from_lucidrains(peer().state_dict(), image_size=(8, 8))


def test_tensors_that_do_not_fit(peer):
    state = peer(circulant_matrix=True).state_dict()
    unit = "layers.2.fn.fn.fn.sgu"
    del state[f"{unit}.circulant_pos_y"]
    state[f"{unit}.weight"] = torch.zeros(1, 12, 12)
    state["layers.1.fn.fn.fn.attn.to_out.bias"] = torch.zeros(32)
    with pytest.raises(InputError) as error:
        model_from_lucidrains(state)
    for part in (
        f"{unit}.circulant_pos_y (nothing instead of [1, 12])",
        "layers.1.fn.fn.fn.attn.to_out.bias ([32] instead of nothing)",
        f"{unit}.weight ([1, 12, 12] instead of [1, 12])",
    ):
        assert part in str(error.value)


def test_other_models_are_refused():
    with pytest.raises(InputError, match="not a checkpoint of a gMLP of g-mlp-pytorch"):
        model_from_lucidrains(nn.Linear(2, 3).state_dict())
