"""The presets: their sizes, and the parameter counts that the paper prints."""

import pytest
import torch
from g_mlp_pytorch import gMLP
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, AutoModelForCausalLM

import hf_gmlp
from hf_gmlp import (
    GMLPConfig,
    GMLPForImageClassification,
    GMLPModel,
    GMLPVisionConfig,
    list_presets,
    preset_path,
    registration,
)
from hf_gmlp.presets import PRESETS

# Parameters in millions as Tables 1, 3, 4 and 5 print them, independently of the package.
PAPER = {
    "gmlp-base": "130",
    "gmlp-large": "365",
    "gmlp-xlarge": "941",
    "amlp-base": "109",
    "amlp-large": "316",
    "gmlp-18l": "59",
    "gmlp-36l": "102",
    "gmlp-72l": "187",
    "gmlp-144l": "357",
    "gmlp-linear": "92",
    "gmlp-additive": "92",
    "gmlp-multiplicative": "92",
    "gmlp-ti16-224": "5.9",
    "gmlp-s16-224": "19.5",
    "gmlp-b16-224": "73.4",
}
# (layers, d_model, d_ffn, n, attention)
SIZES = {
    "gmlp-base": (48, 512, 3072, 512, 0),
    "gmlp-large": (96, 768, 3072, 512, 0),
    "gmlp-xlarge": (144, 1024, 4096, 512, 0),
    "amlp-base": (36, 512, 3072, 512, 64),
    "amlp-large": (72, 768, 3072, 512, 128),
    "gmlp-18l": (18, 512, 3072, 128, 0),
    "gmlp-36l": (36, 512, 3072, 128, 0),
    "gmlp-72l": (72, 512, 3072, 128, 0),
    "gmlp-144l": (144, 512, 3072, 128, 0),
    "gmlp-linear": (36, 512, 2048, 128, 0),
    "gmlp-additive": (36, 512, 2048, 128, 0),
    "gmlp-multiplicative": (36, 512, 2048, 128, 0),
    "gmlp-ti16-224": (30, 128, 768, 197, 0),
    "gmlp-s16-224": (30, 256, 1536, 197, 0),
    "gmlp-b16-224": (30, 512, 3072, 197, 0),
}


# Models of other projects: (layers, d_model, d_ffn, n, parameters in millions).
CAUSAL = {"gmlp-causal-enwik8": (8, 512, 2048, 768, 17.5), "gmlp-causal-labml": (6, 512, 2048, 256, 10.0)}
SMALL_IMAGES = "gmlp-mini4-32"


def test_all_presets_are_listed():
    folders = {path.parent.name for path in preset_path("gmlp-base").parent.glob("*/config.json")}
    assert set(list_presets()) == folders
    assert {name for name in folders if name.startswith(("gmlp", "amlp"))} == {*PAPER, *CAUSAL, SMALL_IMAGES}
    assert set(PAPER) == set(SIZES)


@pytest.mark.parametrize("name", PAPER)
def test_parameters_are_as_printed(name):
    config = AutoConfig.from_pretrained(preset_path(name))
    with torch.device("meta"):
        if config.model_type == "gmlp":
            model = GMLPModel(config, add_pooling_layer=False)
        else:
            config.num_labels = 1000
            model = GMLPForImageClassification(config)
    millions = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    digits = len(PAPER[name].partition(".")[2])
    assert f"{millions:.{digits}f}" == PAPER[name]
    assert PRESETS[name].parameters == float(PAPER[name])


@pytest.mark.parametrize("name", SIZES)
def test_sizes_and_ways_to_open(name):
    config = AutoConfig.from_pretrained(preset_path(name))
    config_class = type(config)
    assert config_class is (GMLPVisionConfig if "16-224" in name else GMLPConfig)
    assert config.to_json_string() == config_class.from_preset(name).to_json_string()
    sizes = (config.num_hidden_layers, config.hidden_size, config.intermediate_size)
    assert (*sizes, config.max_position_embeddings, config.attention_size) == SIZES[name]
    assert config.toeplitz == (config_class is GMLPConfig)
    gating = name.removeprefix("gmlp-")
    assert config.spatial_gating == (gating if gating in ("linear", "additive", "multiplicative") else "split")


def test_small_images():
    config = GMLPVisionConfig.from_preset(SMALL_IMAGES)
    assert config.toeplitz and config.spatial_heads == 4 and (config.stem, config.pooling) == ("conv", "mean")
    assert (
        config.grid_size == (8, 8)
        and config.to_json_string() == AutoConfig.from_pretrained(preset_path(SMALL_IMAGES)).to_json_string()
    )
    counts = {}
    for config.num_labels in (10, 1000):
        with torch.device("meta"):
            model = GMLPForImageClassification(config)
        counts[config.num_labels] = sum(parameter.numel() for parameter in model.parameters())
    assert counts[10] == 716_738 and round(counts[1000] / 1e6, 2) == PRESETS[SMALL_IMAGES].parameters


@pytest.mark.parametrize("name", CAUSAL)
def test_causal_presets(name):
    config = AutoConfig.from_pretrained(preset_path(name))
    sizes = (config.num_hidden_layers, config.hidden_size, config.intermediate_size, config.max_position_embeddings)
    assert sizes == CAUSAL[name][:4] and config.is_causal and not config.toeplitz
    assert PRESETS[name].paper == "-" and "Not in the paper" in PRESETS[name].note
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
        backbone = sum(parameter.numel() for parameter in model.model.parameters())
        whole = sum(parameter.numel() for parameter in model.parameters())
    assert round(backbone / 1e6, 1) == PRESETS[name].parameters == CAUSAL[name][4]
    if name == "gmlp-causal-enwik8":
        with torch.device("meta"):
            theirs = gMLP(num_tokens=256, dim=512, seq_len=768, depth=8, causal=True)
        # [PAD] and [SEP] in the embeddings and in the decoder.
        assert whole - sum(parameter.numel() for parameter in theirs.parameters()) == 2 * (512 + 512 + 1)


@pytest.mark.parametrize("name, rate", [("gmlp-ti16-224", 0.0), ("gmlp-s16-224", 0.05), ("gmlp-b16-224", 0.2)])
def test_stochastic_depth_of_table_1(name, rate):
    assert GMLPVisionConfig.from_preset(name).drop_path_rate == rate


def test_overrides():
    config = GMLPConfig.from_preset("amlp-base", num_labels=3, hidden_dropout_prob=0.1, num_hidden_layers=2)
    assert (config.num_labels, config.hidden_dropout_prob, config.num_hidden_layers) == (3, 0.1, 2)
    assert config.attention_size == 64 and len(config.id2label) == 3
    # The preset itself is unchanged.
    assert GMLPConfig.from_preset("amlp-base").num_hidden_layers == 36


@pytest.mark.parametrize("overrides", [{"intermediate_size": 3071}, {"drop_path_rate": 1.5}, {"attention_size": -1}])
def test_overrides_are_validated(overrides):
    with pytest.raises((ValueError, StrictDataclassError), match=next(iter(overrides))):
        GMLPConfig.from_preset("gmlp-base", **overrides)


def test_a_misspelled_override_is_an_error():
    with pytest.raises((ValueError, TypeError), match="hiden_size"):
        GMLPConfig.from_preset("gmlp-base", hiden_size=256)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: GMLPConfig.from_preset("gmlp-huge"), "no preset 'gmlp-huge'; choose one of .*gmlp-base"),
        (lambda: preset_path("gmlp-huge"), "no preset 'gmlp-huge'. Choose one of: .*gmlp-base"),
        (lambda: GMLPConfig.from_preset("gmlp-s16-224"), "'gmlp_vision', not a `GMLPConfig`"),
        (lambda: GMLPVisionConfig.from_preset("amlp-base"), "'gmlp', not a `GMLPVisionConfig`"),
    ],
)
def test_wrong_names_and_classes(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("name", [name for name in list_presets() if name not in {*PAPER, *CAUSAL, SMALL_IMAGES}])
def test_a_preset_of_another_architecture(name):
    for config_class in (GMLPConfig, GMLPVisionConfig):
        with pytest.raises(ValueError, match=f"'{name}'.*not a `{config_class.__name__}`"):
            config_class.from_preset(name)


def test_public_names_are_frozen():
    assert set(hf_gmlp.__all__) == {
        "BertRelposConfig",
        "BertRelposForMaskedLM",
        "BertRelposForQuestionAnswering",
        "BertRelposForSequenceClassification",
        "BertRelposForTokenClassification",
        "BertRelposModel",
        "GMLPBlock",
        "GMLPConfig",
        "GMLPForCausalLM",
        "GMLPForImageClassification",
        "GMLPForMaskedLM",
        "GMLPForMultipleChoice",
        "GMLPForQuestionAnswering",
        "GMLPForSequenceClassification",
        "GMLPForTokenClassification",
        "GMLPModel",
        "GMLPPreTrainedModel",
        "GMLPVisionBackbone",
        "GMLPVisionConfig",
        "GMLPVisionModel",
        "GMLPVisionPreTrainedModel",
        "SpatialGatingUnit",
        "SpatialProjection",
        "TextMixerConfig",
        "TextMixerForMaskedLM",
        "TextMixerForQuestionAnswering",
        "TextMixerForSequenceClassification",
        "TextMixerForTokenClassification",
        "TextMixerModel",
        "__version__",
        "enable_selective_checkpointing",
        "list_presets",
        "param_groups",
        "preset_path",
    }
    assert set(hf_gmlp.__all__) == {*registration.__all__, "__version__", "list_presets", "preset_path"}
    for name in hf_gmlp.__all__:
        assert hasattr(hf_gmlp, name)
