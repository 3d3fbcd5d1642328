"""Configs: defaults, bad input, saving, and the code that travels with them."""

import ast
import inspect
import json
import re
import sys
from pathlib import Path

import pytest
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig

from hf_gmlp import GMLPConfig, GMLPVisionConfig
from hf_gmlp.models import configuration_gmlp, modeling_gmlp
from hf_gmlp.models.configuration_gmlp import as_pair

PACKAGE = Path(configuration_gmlp.__file__).parent
CODE_FILES = ("configuration_gmlp.py", "heads.py", "modeling_gmlp.py", "spatial_gating.py")


@pytest.mark.parametrize(
    "config_class, fields, message",
    [
        (GMLPConfig, {"intermediate_size": 33}, "`intermediate_size` must be even.*got 33"),
        (
            GMLPConfig,
            {"spatial_gating": "multiply"},
            "`spatial_gating` .*'split', 'multiplicative', 'additive', 'linear'.*multiply",
        ),
        (GMLPConfig, {"attention_size": -1}, "`attention_size`.*got -1"),
        (GMLPConfig, {"hidden_size": 0}, "`hidden_size` must be at least 1, got 0"),
        (GMLPConfig, {"hidden_size": "wide"}, "'hidden_size' expected int, got str"),
        (GMLPConfig, {"num_hidden_layers": 0}, "`num_hidden_layers` must be at least 1"),
        (GMLPConfig, {"intermediate_size": 0}, "`intermediate_size` must be at least 1"),
        (GMLPConfig, {"vocab_size": 0}, "`vocab_size` must be at least 1"),
        (GMLPConfig, {"max_position_embeddings": 0}, "`max_position_embeddings` must be at least 1"),
        (GMLPConfig, {"type_vocab_size": -2}, "`type_vocab_size` must be at least 0 .*got -2"),
        (GMLPConfig, {"hidden_dropout_prob": 1.5}, "`hidden_dropout_prob`.*between 0 and 1, got 1.5"),
        (GMLPConfig, {"activation_dropout": -0.1}, "`activation_dropout`.*between 0 and 1"),
        (GMLPConfig, {"attention_probs_dropout_prob": 2}, "`attention_probs_dropout_prob`.*between 0 and 1"),
        (GMLPConfig, {"classifier_dropout": 2.0}, "`classifier_dropout`.*between 0 and 1"),
        (GMLPConfig, {"drop_path_rate": 1.0}, "`drop_path_rate`.*1 - p"),
        (GMLPVisionConfig, {"drop_path_rate": -0.2}, "`drop_path_rate`"),
        (GMLPConfig, {"layer_norm_eps": -1e-6}, "`layer_norm_eps`.*at least 0, got -1e-06"),
        (GMLPConfig, {"spatial_layer_norm_eps": float("nan")}, "`spatial_layer_norm_eps`.*got nan"),
        (GMLPConfig, {"initializer_range": -0.1}, "`initializer_range`.*at least 0, got -0.1"),
        (GMLPConfig, {"initializer_range": float("inf")}, "`initializer_range`.*got inf"),
        (GMLPConfig, {"spatial_initializer_range": float("nan")}, "`spatial_initializer_range`.*got nan"),
        (GMLPConfig, {"hidden_dropout_prob": float("nan")}, "`hidden_dropout_prob`.*got nan"),
        (GMLPVisionConfig, {"num_channels": 0}, "`num_channels` must be at least 1, got 0"),
        (GMLPConfig, {"is_causal": "yes"}, "'is_causal' expected bool, got str"),
        (GMLPVisionConfig, {"is_causal": True}, "`is_causal`.*images"),
        (GMLPVisionConfig, {"toeplitz": True}, '`toeplitz` needs `pooling="mean"` for images'),
        (GMLPVisionConfig, {"stem": "conv", "image_size": 15, "patch_size": 3}, "`patch_size` of 1, 2, 4, 8.*got 3"),
        (GMLPVisionConfig, {"stem": "conv", "patch_size": (4, 8)}, r"`patch_size` of 1, 2, 4, 8.*got \(4, 8\)"),
        (GMLPVisionConfig, {"stem": "convolution"}, "'patch', 'conv'.*convolution"),
        (GMLPConfig, {"spatial_heads": 0}, "`spatial_heads` must be at least 1, got 0"),
        (GMLPConfig, {"spatial_heads": 5}, "`spatial_heads` must divide the 1536 channels.*got 5"),
        (GMLPConfig, {"spatial_heads": 3072}, "`spatial_heads` must divide the 1536 channels.*got 3072"),
        (GMLPVisionConfig, {"image_size": 225}, "`image_size`.*`patch_size`.*225 and 16"),
        (GMLPVisionConfig, {"image_size": (224, 100)}, "`image_size`.*`patch_size`.*100.* and 16"),
        (GMLPVisionConfig, {"image_size": 0}, "`patch_size`|`image_size`"),
        (GMLPVisionConfig, {"patch_size": 0}, "`patch_size`|`image_size`"),
        (GMLPVisionConfig, {"image_size": [224]}, r"`image_size` must be one number or \(height, width\)"),
        (GMLPVisionConfig, {"pooling": "max"}, "'cls', 'mean'.*max"),
        (GMLPVisionConfig, {"classifier_dropout": -1}, "`classifier_dropout`.*between 0 and 1"),
    ],
)
def test_bad_fields_are_named(config_class, fields, message):
    with pytest.raises(StrictDataclassError) as error:
        config_class(**fields)
    assert re.search(message, str(error.value), flags=re.DOTALL)


def test_initialization_without_noise():
    config = GMLPConfig(initializer_range=0, spatial_initializer_range=0, num_hidden_layers=1, vocab_size=9)
    assert all((p == p.flatten()[0]).all() for p in modeling_gmlp.GMLPModel(config).parameters())


@pytest.mark.parametrize("name", ["../presets/gmlp-base", "gmlp-base/", "", "gmlp", "/etc"])
def test_unknown_presets(name):
    with pytest.raises(ValueError, match="amlp-base, "):
        GMLPConfig.from_preset(name)


@pytest.mark.parametrize("field", ["hidden", "num_layers"])
def test_overrides_of_unknown_fields(field):
    with pytest.raises(ValueError, match=f"`GMLPConfig` has no field '{field}'"):
        GMLPConfig.from_preset("gmlp-base", **{field: 3})


def test_overrides_of_a_preset():
    config = GMLPConfig.from_preset("gmlp-base", num_labels=5, hidden_size=64)
    assert (config.num_labels, config.hidden_size) == (5, 64)


def test_fields_of_early_checkpoints(tmp_path):
    """They saved how the block was computed, which is no field of the config any more."""
    GMLPConfig().save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"gating_implementation": "reference"}))
    loaded = AutoConfig.from_pretrained(tmp_path)
    assert loaded.to_json_string() == GMLPConfig().to_json_string()


def test_a_subclass_has_its_own_map():
    class OtherConfig(GMLPConfig):
        model_type = "other"

    assert "auto_map" not in OtherConfig().to_dict()
    own = {"AutoConfig": "other.OtherConfig"}
    assert OtherConfig(auto_map=own).auto_map == own


def test_an_odd_width_without_a_split():
    assert GMLPConfig(intermediate_size=33, spatial_gating="linear").spatial_size == 33
    assert GMLPConfig(intermediate_size=34).spatial_size == 17


def test_text_defaults_are_gmlp_base():
    assert GMLPConfig().to_dict() == GMLPConfig.from_preset("gmlp-base").to_dict()


def test_vision_defaults_are_gmlp_s():
    preset = GMLPVisionConfig.from_preset("gmlp-s16-224", drop_path_rate=0.0)
    assert GMLPVisionConfig().to_dict() == preset.to_dict()


@pytest.mark.parametrize(
    "fields, grid, tokens",
    [
        ({}, (14, 14), 197),
        ({"pooling": "mean"}, (14, 14), 196),
        ({"image_size": (32, 64), "patch_size": (16, 8)}, (2, 8), 17),
    ],
)
def test_patch_grid(fields, grid, tokens):
    config = GMLPVisionConfig(**fields)
    assert config.grid_size == grid
    assert config.max_position_embeddings == tokens
    assert config.num_prefix_tokens == tokens - grid[0] * grid[1]


def test_as_pair():
    assert as_pair(3) == (3, 3)
    assert as_pair([3, 4]) == as_pair((3, 4)) == (3, 4)


@pytest.mark.parametrize(
    "config",
    [
        GMLPConfig(spatial_gating="additive", attention_size=8, toeplitz=False, drop_path_rate=0.1, num_labels=5),
        GMLPVisionConfig(image_size=(32, 64), pooling="mean", num_labels=7),
    ],
    ids=["text", "vision"],
)
def test_save_and_load(config, tmp_path):
    config.save_pretrained(tmp_path)
    loaded = AutoConfig.from_pretrained(tmp_path)
    assert type(loaded) is type(config)
    # A pair becomes a list in JSON.
    assert json.loads(loaded.to_json_string()) == json.loads(config.to_json_string())


@pytest.mark.parametrize("config_class", [GMLPConfig, GMLPVisionConfig])
def test_saved_config_names_every_class_and_carries_the_code(config_class, tmp_path):
    config_class().save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    files = {"configuration_gmlp": configuration_gmlp, "modeling_gmlp": modeling_gmlp}
    assert saved["auto_map"].keys() == {"AutoConfig", *config_class.code_map}
    for reference in saved["auto_map"].values():
        file, class_name = reference.split(".")
        assert hasattr(files[file], class_name)
    assert sorted(path.name for path in tmp_path.glob("*.py")) == sorted(CODE_FILES)
    for name in CODE_FILES:
        assert (tmp_path / name).read_bytes() == (PACKAGE / name).read_bytes()


def test_the_map_of_an_older_checkpoint_is_replaced():
    loaded = GMLPConfig.from_dict({"auto_map": {"AutoConfig": "someone/else--configuration_old.OldConfig"}})
    assert loaded.auto_map == GMLPConfig().auto_map


def test_other_classes_in_a_map_stay():
    """A user's subclass of a head, with this config, and a tokenizer of its own."""
    other = {"AutoModelForMaskedLM": "other.MyMaskedLM", "AutoTokenizer": ["tokenization_other.MyTokenizer", None]}
    earlier = {"AutoModel": "someone/else--modeling_gmlp.GMLPModel"}
    assert GMLPConfig.from_dict({"auto_map": other | earlier}).auto_map == GMLPConfig().auto_map | other


def test_every_model_class_is_in_a_map():
    mapped = {*GMLPConfig.code_map.values(), *GMLPVisionConfig.code_map.values()}
    public = {
        name
        for name, value in vars(modeling_gmlp).items()
        if inspect.isclass(value) and name in modeling_gmlp.__all__ and not name.endswith("PreTrainedModel")
    }
    assert mapped == public


@pytest.mark.parametrize("name", CODE_FILES)
def test_checkpoint_code_is_flat_and_needs_few_libraries(name):
    """Only the libraries that a user of transformers has, and `from .x import` of files that travel too: any other
    form makes saving fail, or leaves a file behind."""
    tree = ast.parse((PACKAGE / name).read_text(encoding="utf-8"))
    allowed = {"torch", "transformers", "huggingface_hub"} | sys.stdlib_module_names
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = {alias.name.split(".")[0] for alias in node.names}
            assert modules <= allowed
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            assert node.module.split(".")[0] in allowed
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 1 and f"{node.module}.py" in CODE_FILES
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            called = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            # Model cards are for the file in the package, not for its copies.
            assert (
                called not in ("import_module", "__import__") or ast.unparse(node) == "import_module('hf_gmlp.cards')"
            )
