"""Convert timm's gMLPs: outputs, gradients, names, and weights that cannot be converted."""

import pytest
import safetensors.torch
import timm
import torch
from timm.models.mlp_mixer import GatedMlp, MlpMixer, SpatialGatingBlock
from transformers import AutoModelForImageClassification

from hf_gmlp import preset_config
from hf_gmlp.errors import InputError
from hf_gmlp.tools.conversion.timm import convert_timm, model_from_timm
from hf_gmlp_cli import main

from ...numerics import assert_close

pytestmark = pytest.mark.slow


@torch.no_grad()
def perturb(model):
    """Add noise of 0.2 to W and 0.1 to biases, norms and the head, so that the gates of 30 blocks do not explode."""
    for name, parameter in model.named_parameters():
        std = 0.2 if name.endswith("gate.proj.weight") else 0.1 if parameter.ndim == 1 or "head" in name else 0.0
        parameter.add_(torch.randn(parameter.shape), alpha=std)
    return model.eval()


def small(**fields):
    """Return a model of timm's class with other sizes than its named models."""
    sizes = {"img_size": 16, "patch_size": 4, "num_blocks": 3, "embed_dim": 16, "mlp_ratio": 4, "num_classes": 5}
    return perturb(MlpMixer(**(sizes | fields), block_layer=SpatialGatingBlock, mlp_layer=GatedMlp))


def assert_same_function(ours, theirs, size=(16, 16)):
    """Compare the logits and the input gradients of a random projection of the logits."""
    pixels, depth = torch.randn(2, 3, *size, requires_grad=True), ours.config.num_hidden_layers
    logits, expected = ours(pixels).logits, theirs(pixels)
    assert expected.std() > 0.02
    assert_close(logits, expected, depth)
    weights = torch.randn_like(expected)
    assert_close(*(torch.autograd.grad((x * weights).sum(), pixels)[0] for x in (logits, expected)), depth)


def test_a_named_model_has_the_outputs_and_gradients_of_timm():
    theirs = perturb(timm.create_model("gmlp_ti16_224", num_classes=10))
    ours = model_from_timm(theirs.state_dict())
    config = preset_config("gmlp-ti16-224")
    for field in ("hidden_size", "intermediate_size", "num_hidden_layers", "image_size", "patch_size"):
        assert getattr(ours.config, field) == getattr(config, field)
    assert_same_function(ours, theirs, (224, 224))


def test_the_command_converts_a_file(tmp_path, capsys):
    source, theirs = str(tmp_path / "small.safetensors"), small()
    safetensors.torch.save_file(theirs.state_dict(), source)
    folder = str(tmp_path / "new" / "ours")
    main(["convert", "timm", source, folder, "--license", "mit"])
    assert "LABEL_0" in capsys.readouterr().out
    ours = AutoModelForImageClassification.from_pretrained(folder)
    assert_same_function(ours, theirs)
    card = (tmp_path / "new" / "ours" / "README.md").read_text()
    assert "license: mit" in card and "converted from timm's weights small.safetensors" in card
    assert str(tmp_path) not in card


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
    assert_same_function(ours, theirs, (224, 224))
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
    for fields, tensor in (({}, "gate.proj.bias"), ({"patch_size": (2, 6)}, "stem.proj.weight")):
        with pytest.raises(InputError, match=tensor):
            model_from_timm(small(**{"img_size": (8, 24)} | fields).state_dict())
    state = small().state_dict()
    del state["blocks.1.norm.bias"], state["norm.weight"]
    state["head_dist.weight"] = torch.zeros(2)
    state["blocks.2.mlp_channels.gate.proj.weight"] = torch.zeros(16, 15)
    state["head.bias"] = torch.zeros(5, dtype=torch.long)
    with pytest.raises(InputError) as error:
        model_from_timm(state)
    names = ("blocks.1.norm.bias", "blocks.2.mlp_channels.gate.proj.weight ([16, 15]", "head.bias (torch.int64")
    assert all(part in str(error.value) for part in ("5 tensors", *names, "head_dist.weight"))
