"""Feature maps of GMLPVisionBackbone equal hidden states and those of timm, and heads of transformers accept them."""

from types import SimpleNamespace

import pytest
import timm
import torch
from transformers import (
    AutoBackbone,
    AutoConfig,
    DepthAnythingConfig,
    DepthAnythingForDepthEstimation,
)
from transformers.models.auto import auto_factory

from hf_gmlp import GMLPForImageClassification, GMLPVisionBackbone, GMLPVisionConfig
from hf_gmlp.tools.conversion import model_from_timm

from ..numerics import assert_close, perturb


def maps(hidden_states, config):
    """[B, prefix + patches, D] -> [B, D, rows, columns]"""
    rows, columns = config.grid_size
    batch, _, width = hidden_states.shape
    return hidden_states[:, -rows * columns :].reshape(batch, rows, columns, width).permute(0, 3, 1, 2)


@pytest.mark.parametrize("pooling, head", [("cls", False), ("mean", True)])
def test_feature_maps_are_hidden_states(vision_config, perturbed_model, tmp_path, monkeypatch, pooling, head):
    config = vision_config(pooling=pooling, attention_size=4, image_size=(16, 24), patch_size=(4, 8))
    classifier = perturbed_model(GMLPForImageClassification, config)
    (classifier if head else classifier.model).save_pretrained(tmp_path)
    classifier.set_attn_implementation("eager")
    # AutoBackbone would ask the Hub whether the repository exists.
    monkeypatch.setattr(auto_factory, "hf_api", lambda: SimpleNamespace(repo_exists=lambda name: True))
    pixels = torch.randn(2, 3, 16, 24)
    with torch.no_grad():
        encoded = classifier.model(pixels, output_hidden_states=True, output_attentions=True)
        raw = AutoBackbone.from_pretrained(
            tmp_path, out_indices=[0, 1, 2], apply_layernorm=False, attn_implementation="eager"
        )
        assert type(raw) is GMLPVisionBackbone and raw.channels == [16, 16, 16]
        outputs = raw(pixels, output_hidden_states=True, output_attentions=True)
        for stage in (0, 1):
            assert outputs.feature_maps[stage].shape == (2, 16, 4, 3)
            assert torch.equal(outputs.feature_maps[stage], maps(encoded.hidden_states[stage], config))
            assert torch.equal(outputs.hidden_states[stage], encoded.hidden_states[stage])
        assert torch.equal(outputs.feature_maps[2], maps(outputs.hidden_states[2], config))
        assert torch.equal(outputs.attentions[1], encoded.attentions[1])
        last = GMLPVisionBackbone.from_pretrained(tmp_path, attn_implementation="eager")
        (feature_map,) = last(pixels).feature_maps
        assert torch.equal(feature_map, maps(encoded.last_hidden_state, config))
        raw.save_pretrained(tmp_path / "again")
        again = GMLPVisionBackbone.from_pretrained(tmp_path / "again", attn_implementation="eager")
        assert again.out_indices == [0, 1, 2] and again.config.apply_layernorm is False
        assert all(map(torch.equal, again(pixels).feature_maps, outputs.feature_maps))


@torch.no_grad()
def test_feature_maps_equal_those_of_timm():
    reference = perturb(timm.create_model("gmlp_ti16_224", img_size=64, num_classes=10))
    tested = model_from_timm(reference.state_dict())
    pixels, indices = torch.randn(1, 3, 64, 64), [2, 9, 29]
    raw = timm.create_model("gmlp_ti16_224", img_size=64, features_only=True, out_indices=indices).eval()
    raw.model.load_state_dict(reference.state_dict(), strict=False)
    normed = reference.forward_intermediates(pixels, indices=indices, norm=True, intermediates_only=True)
    for norm, expected in ((False, raw(pixels)), (True, normed)):
        tested.config.out_indices, tested.config.apply_layernorm = [index + 1 for index in indices], norm
        backbone = GMLPVisionBackbone(tested.config).eval()
        backbone.load_state_dict(tested.model.state_dict())
        for actual, feature_map in zip(backbone(pixels).feature_maps, expected, strict=True):
            assert feature_map.std() > 0.1
            assert_close(actual, feature_map, depth=30)


def test_default_stages_follow_the_depth_and_are_not_saved(tmp_path):
    config = GMLPVisionConfig(num_hidden_layers=4)
    config.num_hidden_layers = 2
    assert config.out_features == ["stage2"] and config.out_indices == [2]
    config.save_pretrained(tmp_path)
    text = (tmp_path / "config.json").read_text(encoding="utf-8")
    assert "out_features" not in text and "stage" not in text
    assert AutoConfig.from_pretrained(tmp_path).out_features == ["stage2"]
    config.out_indices = [0, -1]
    config.save_pretrained(tmp_path)
    assert AutoConfig.from_pretrained(tmp_path).out_features == ["stem", "stage2"]


def test_a_backbone_does_not_change_the_config_of_its_caller(vision_config):
    config = vision_config(num_hidden_layers=2)
    assert GMLPVisionBackbone(config).out_features == ["stage2"]
    for layers in (3, 1):
        config.num_hidden_layers = layers
        assert GMLPVisionBackbone(config).out_features == [f"stage{layers}"]


def test_depth_anything_accepts_sequences_of_the_backbone(vision_config):
    """The depth head accepts sequences with a [CLS] token, like those of Dinov2."""
    backbone_config = vision_config(reshape_hidden_states=False, num_hidden_layers=4, out_indices=[1, 2, 3, 4])
    fields = {"neck_hidden_sizes": [8, 8, 8, 8], "fusion_hidden_size": 8, "reassemble_hidden_size": 16}
    config = DepthAnythingConfig(backbone_config=backbone_config, patch_size=4, **fields)
    model = DepthAnythingForDepthEstimation(config)
    assert type(model.backbone) is GMLPVisionBackbone
    depths = model(torch.randn(2, 3, 16, 16)).predicted_depth
    assert depths.shape == (2, 16, 16)
    depths.sum().backward()
    assert model.backbone.layers[0].spatial_gating_unit.proj.weight.grad is not None
