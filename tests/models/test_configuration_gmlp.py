"""Configs: defaults, invalid input, saving, and the code saved with them."""

import re

import pytest
from huggingface_hub.errors import StrictDataclassError

from hf_gmlp import GMLPConfig, GMLPVisionConfig, preset_config


@pytest.mark.parametrize(
    "config_class, fields, message",
    [
        (GMLPConfig, {"intermediate_size": 33}, "`intermediate_size`.*2.*33"),
        (GMLPConfig, {"spatial_gating": "multiply"}, "'spatial_gating'.*'linear'.*multiply"),
        (GMLPConfig, {"spatial_heads": 5}, "`spatial_heads`.*3072"),
        (GMLPConfig, {"spatial_reach": 513}, "`spatial_reach`.*512.*513"),
        (GMLPConfig, {"spatial_reach": 9, "toeplitz": False}, "`spatial_reach`.*Toeplitz"),
        (GMLPVisionConfig, {"is_causal": True}, "'is_causal'.*True"),
        (GMLPVisionConfig, {"toeplitz": True}, '`toeplitz`.*`pooling="mean"`'),
        (GMLPVisionConfig, {"stem": "conv", "image_size": 15, "patch_size": 3}, "`patch_size`.*3"),
        (GMLPVisionConfig, {"image_size": (224, 100)}, "`image_size`.*`patch_size`.*100.* and .*16"),
        (GMLPVisionConfig, {"pooling": "mean", "reshape_hidden_states": False}, "`reshape_hidden_states"),
    ],
)
def test_bad_fields_are_named(config_class, fields, message):
    with pytest.raises(StrictDataclassError) as error:
        config_class(**fields)
    assert re.search(message, str(error.value), flags=re.DOTALL)


def test_fields_are_checked_when_they_are_set_and_conflicts_when_a_config_is_loaded(tmp_path):
    config = GMLPConfig(spatial_reach=128)
    with pytest.raises(StrictDataclassError, match="hidden_dropout_prob"):
        config.hidden_dropout_prob = 2
    config.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(path.read_text().replace('"spatial_reach": 128', '"spatial_reach": 600'))
    with pytest.raises(StrictDataclassError, match="`spatial_reach`.*512.*600"):
        GMLPConfig.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    "config, preset",
    [
        (GMLPConfig(), preset_config("gmlp-base")),
        (GMLPVisionConfig(), preset_config("gmlp-s16-224", drop_path_rate=0.0)),
    ],
)
def test_defaults_are_a_preset(config, preset):
    assert config.to_dict() == preset.to_dict()


@pytest.mark.parametrize(
    "fields, grid, tokens",
    [
        ({}, (14, 14), 197),
        ({"pooling": "mean"}, (14, 14), 196),
        ({"image_size": (32, 64), "patch_size": (16, 8)}, (2, 8), 17),
    ],
)
def test_image_and_patch_size_give_the_grid(fields, grid, tokens):
    config = GMLPVisionConfig(**fields)
    assert config.grid_size == grid
    assert config.max_position_embeddings == tokens
    assert config.num_prefix_tokens == tokens - grid[0] * grid[1]


def test_custom_classes_stay_in_the_auto_map():
    """A config may map a user's subclass of a head and a custom tokenizer."""
    other = {"AutoModelForMaskedLM": "other.MyMaskedLM", "AutoTokenizer": ["tokenization_other.MyTokenizer", None]}
    earlier = {"AutoModel": "someone/else--modeling_gmlp.GMLPModel"}
    assert GMLPConfig.from_dict({"auto_map": other | earlier}).auto_map == GMLPConfig().auto_map | other
