"""Configs: defaults, invalid input, and the code saved with them."""

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


def test_defaults_are_a_preset():
    assert GMLPConfig().to_dict() == preset_config("gmlp-base").to_dict()
    assert GMLPVisionConfig().to_dict() == preset_config("gmlp-s16-224", drop_path_rate=0.0).to_dict()


def test_custom_classes_stay_in_the_auto_map():
    """A config may map a user's subclass of a head and a custom tokenizer."""
    other = {"AutoModelForMaskedLM": "other.MyMaskedLM", "AutoTokenizer": ["tokenization_other.MyTokenizer", None]}
    earlier = {"AutoModel": "someone/else--modeling_gmlp.GMLPModel"}
    assert GMLPConfig.from_dict({"auto_map": other | earlier}).auto_map == GMLPConfig().auto_map | other
