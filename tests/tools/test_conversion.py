"""Conversion from timm and g-mlp-pytorch: outputs, gradients, names, files, and what cannot be converted."""

import pytest
import safetensors.torch
import timm
import torch
from g_mlp_pytorch import gMLP, gMLPVision
from timm.models.mlp_mixer import GatedMlp, MlpMixer, SpatialGatingBlock
from transformers import AutoModelForImageClassification, AutoModelForMaskedLM

from hf_gmlp import GMLPForCausalLM, GMLPForImageClassification
from hf_gmlp.errors import InputError
from hf_gmlp.tools.conversion import (
    convert_lucidrains,
    convert_timm,
    model_from_lucidrains,
    model_from_timm,
    read_tensors,
)
from hf_gmlp_cli import main

from ..numerics import assert_close, perturb


def small(**fields):
    """Return a model of timm's class with other sizes than its named models."""
    sizes = {"img_size": 16, "patch_size": 4, "num_blocks": 3, "embed_dim": 16, "mlp_ratio": 4, "num_classes": 5}
    return perturb(MlpMixer(**(sizes | fields), block_layer=SpatialGatingBlock, mlp_layer=GatedMlp))


def assert_same_classifier(ours, theirs, size=(16, 16)):
    """Compare the logits and the input gradients of a random projection of the logits."""
    pixels, depth = torch.randn(2, 3, *size, requires_grad=True), ours.config.num_hidden_layers
    logits, expected = ours(pixels).logits, theirs(pixels)
    assert expected.std() > 0.02
    assert_close(logits, expected, depth)
    weights = torch.randn_like(expected)
    assert_close(*(torch.autograd.grad((x * weights).sum(), pixels)[0] for x in (logits, expected)), depth)


def test_the_command_converts_a_file_of_timm(tmp_path, capsys):
    source, theirs = str(tmp_path / "small.safetensors"), small()
    safetensors.torch.save_file(theirs.state_dict(), source)
    folder = str(tmp_path / "new" / "ours")
    main(["convert", "timm", source, folder, "--license", "mit"])
    assert "images of 16x16 pixels" in capsys.readouterr().out
    ours = AutoModelForImageClassification.from_pretrained(folder)
    assert_same_classifier(ours, theirs)
    card = (tmp_path / "new" / "ours" / "README.md").read_text()
    assert "license: mit" in card and "converted from timm's weights small.safetensors" in card
    assert str(tmp_path) not in card


@pytest.mark.slow
def test_a_name_is_downloaded_by_timm(tmp_path, monkeypatch):
    theirs = perturb(timm.create_model("gmlp_ti16_224"))
    torch.save(theirs.state_dict(), tmp_path / "downloaded.pth")
    create_model = timm.create_model

    def download(name, pretrained):
        overlay = {"file": str(tmp_path / "downloaded.pth")}
        return create_model(name, pretrained=pretrained, pretrained_cfg_overlay=overlay)

    monkeypatch.setattr(timm, "create_model", download)
    lines = convert_timm("timm/gmlp_ti16_224", str(tmp_path / "out"))
    ours = AutoModelForImageClassification.from_pretrained(tmp_path / "out")
    assert_same_classifier(ours, theirs, (224, 224))
    assert "license: apache-2.0" in (tmp_path / "out" / "README.md").read_text()
    assert any("ImageNet-1k" in line for line in lines)
    assert ours.config.label2id["zucchini, courgette"] == 939 and len(ours.config.label2id) == 1000
    assert (ours.config.id2label[134], ours.config.id2label[517]) == ("crane (n02012849)", "crane (n03126707)")


@pytest.mark.parametrize("source", ["gmlp_b16_224", "nowhere/weights.pth"])
def test_names_without_weights_are_refused(tmp_path, monkeypatch, source):
    # All tests are offline, and the cache is empty.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "cache"))
    with pytest.raises(InputError, match=source):
        convert_timm(source, str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_tensors_that_do_not_fit_are_refused():
    # Neither images nor patches are square.
    for fields, tensor in (({}, "gating_unit.proj.bias"), ({"patch_size": (2, 6)}, "embeddings.projection.weight")):
        with pytest.raises(InputError, match=tensor):
            model_from_timm(small(**{"img_size": (8, 24)} | fields).state_dict())
    state = small().state_dict()
    del state["blocks.1.norm.bias"], state["norm.weight"]
    state["head_dist.weight"] = torch.zeros(2)
    state["blocks.2.mlp_channels.gate.proj.weight"] = torch.zeros(16, 15)
    with pytest.raises(InputError) as error:
        model_from_timm(state)
    names = ("model.layers.1.norm.bias", "model.norm.weight", "head_dist.weight", "shape torch.Size([16, 15])")
    assert all(name in str(error.value) for name in names) and "\n" not in str(error.value)


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
    converted = dict(model_from_lucidrains(gradients, **options).named_parameters())
    actual = {name: parameter.grad for name, parameter in ours.named_parameters() if not name.endswith("qkv_proj.bias")}
    assert_close(actual, {name: converted[name] for name in actual}, depth=3)


@pytest.mark.parametrize(("heads", "attn_dim"), [(1, None), (4, 8)])
def test_a_text_model_is_that_of_the_package(peer, heads, attn_dim):
    theirs = peer(gMLP, heads=heads, attn_dim=attn_dim).double()
    ours = model_from_lucidrains(theirs.state_dict())
    assert_same_function(ours, theirs, torch.randint(0, 40, (3, 12)))
    config = ours.config
    assert (config.spatial_heads, config.attention_size, config.toeplitz) == (heads, attn_dim or 0, False)


@pytest.mark.parametrize(("heads", "attn_dim", "length"), [(1, 8, 12), (4, None, 5)])
def test_a_causal_model_stays_causal(peer, length, attn_dim, heads):
    theirs = peer(gMLP, causal=True, attn_dim=attn_dim, heads=heads).double()
    ours = model_from_lucidrains(theirs.state_dict(), causal=True)
    assert type(ours) is GMLPForCausalLM and ours.config.is_causal
    assert_same_function(ours, theirs, torch.randint(0, 40, (3, length)), causal=True)
    assert all((matrix.triu(1) == 0).all() for matrix in ours.get_position_embeddings())


@pytest.mark.parametrize(("heads", "attn_dim"), [(1, 8), (4, None)])
def test_an_image_model_is_that_of_the_package(peer, heads, attn_dim):
    theirs = peer(gMLPVision, heads=heads, attn_dim=attn_dim).double()
    ours = model_from_lucidrains(theirs.state_dict())
    assert type(ours) is GMLPForImageClassification
    assert_same_function(ours, theirs, torch.randn(3, 3, 16, 16).double())
    config = ours.config
    assert (config.spatial_heads, config.attention_size, config.stem) == (heads, attn_dim or 0, "patch")
    assert (config.image_size, config.patch_size, config.num_labels) == (16, 4, 5)


def test_the_command_converts_a_file_of_lucidrains(tmp_path, peer, capsys):
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
    with pytest.raises(InputError, match="out exists already"):
        convert_lucidrains(source, out)


def test_models_that_cannot_be_converted_are_refused(peer):
    for model, options, message in (
        (peer(gMLP, num_tokens=None), {}, "word_embeddings.weight"),
        (peer(gMLP, circulant_matrix=True), {}, "circulant_pos_x"),
        (peer(gMLPVision, image_size=(8, 24)), {}, "gating_unit.proj.bias"),
        (peer(gMLPVision, channels=1), {}, "16 values"),
    ):
        with pytest.raises(InputError, match=message):
            model_from_lucidrains(model.state_dict(), **options)


TENSORS = {"a.weight": torch.arange(6.0).view(2, 3), "blocks.10.b.bias": torch.ones(2)}


class Payload:
    """An object that writes a file when unpickled without restrictions."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_nothing_in_a_file_is_executed(tmp_path):
    torch.save(TENSORS | {"extra": Payload(tmp_path / "executed")}, tmp_path / "payload.pth")
    (tmp_path / "note.txt").write_text("hello")
    torch.save([torch.ones(2)], tmp_path / "list.pth")
    torch.save({"state_dict": TENSORS, "epoch": 3}, tmp_path / "training.pth")
    for name in ("payload.pth", "note.txt", "list.pth", "training.pth"):
        with pytest.raises(InputError, match=name):
            read_tensors(tmp_path / name)
    assert not (tmp_path / "executed").exists()
