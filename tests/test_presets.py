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
)
from hf_gmlp.presets import PRESETS

# name: parameters in millions as Tables 1, 3, 4 and 5 print them, layers, d_model, d_ffn, n, attention.
PAPER = {
    "gmlp-base": ("130", 48, 512, 3072, 512, 0),
    "gmlp-large": ("365", 96, 768, 3072, 512, 0),
    "gmlp-xlarge": ("941", 144, 1024, 4096, 512, 0),
    "amlp-base": ("109", 36, 512, 3072, 512, 64),
    "amlp-large": ("316", 72, 768, 3072, 512, 128),
    "gmlp-18l": ("59", 18, 512, 3072, 128, 0),
    "gmlp-36l": ("102", 36, 512, 3072, 128, 0),
    "gmlp-72l": ("187", 72, 512, 3072, 128, 0),
    "gmlp-144l": ("357", 144, 512, 3072, 128, 0),
    "gmlp-linear": ("92", 36, 512, 2048, 128, 0),
    "gmlp-additive": ("92", 36, 512, 2048, 128, 0),
    "gmlp-multiplicative": ("92", 36, 512, 2048, 128, 0),
    "gmlp-ti16-224": ("5.9", 30, 128, 768, 197, 0),
    "gmlp-s16-224": ("19.5", 30, 256, 1536, 197, 0),
    "gmlp-b16-224": ("73.4", 30, 512, 3072, 197, 0),
}


# Models of other projects: (layers, d_model, d_ffn, n, parameters in millions).
CAUSAL = {"gmlp-causal-enwik8": (8, 512, 2048, 768, 17.5), "gmlp-causal-labml": (6, 512, 2048, 256, 10.0)}
SMALL_IMAGES = "gmlp-mini4-32"


def test_all_presets_are_listed():
    folders = {path.parent.name for path in preset_path("gmlp-base").parent.glob("*/config.json")}
    assert set(list_presets()) == folders
    assert {name for name in folders if name.startswith(("gmlp", "amlp"))} == {*PAPER, *CAUSAL, SMALL_IMAGES}


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
    printed = PAPER[name][0]
    assert f"{millions:.{len(printed.partition('.')[2])}f}" == printed
    assert PRESETS[name].parameters == float(printed)


@pytest.mark.parametrize("name", PAPER)
def test_sizes_and_ways_to_open(name):
    config = AutoConfig.from_pretrained(preset_path(name))
    config_class = type(config)
    assert config_class is (GMLPVisionConfig if "16-224" in name else GMLPConfig)
    assert config.to_json_string() == config_class.from_preset(name).to_json_string()
    sizes = (config.num_hidden_layers, config.hidden_size, config.intermediate_size)
    assert (*sizes, config.max_position_embeddings, config.attention_size) == PAPER[name][1:]
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


def test_overrides():
    config = GMLPConfig.from_preset("amlp-base", num_labels=3, hidden_dropout_prob=0.1, num_hidden_layers=2)
    assert (config.num_labels, config.hidden_dropout_prob, config.num_hidden_layers) == (3, 0.1, 2)
    assert config.attention_size == 64 and len(config.id2label) == 3
    # The preset itself is unchanged.
    assert GMLPConfig.from_preset("amlp-base").num_hidden_layers == 36


@pytest.mark.parametrize("name, rate", [("gmlp-ti16-224", 0.0), ("gmlp-s16-224", 0.05), ("gmlp-b16-224", 0.2)])
def test_stochastic_depth_of_table_1(name, rate):
    assert GMLPVisionConfig.from_preset(name).drop_path_rate == rate


@pytest.mark.parametrize("overrides", [{"intermediate_size": 3071}, {"drop_path_rate": 1.5}, {"hiden_size": 256}])
def test_overrides_are_validated(overrides):
    with pytest.raises((ValueError, TypeError, StrictDataclassError), match=next(iter(overrides))):
        GMLPConfig.from_preset("gmlp-base", **overrides)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: GMLPConfig.from_preset("gmlp-huge"), "gmlp-huge.*gmlp-base"),
        (lambda: preset_path("gmlp-huge"), "gmlp-huge.*gmlp-base"),
        (lambda: GMLPConfig.from_preset("gmlp-s16-224"), "gmlp_vision.*GMLPConfig"),
        (lambda: GMLPVisionConfig.from_preset("amlp-base"), "gmlp.*GMLPVisionConfig"),
        (lambda: GMLPConfig.from_preset("bert-base"), "bert.*GMLPConfig"),
        (lambda: GMLPVisionConfig.from_preset("vit-b16-384"), "vit.*GMLPVisionConfig"),
    ],
)
def test_wrong_names_and_classes(call, message):
    with pytest.raises(ValueError, match=message):
        call()


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
    assert all(hasattr(hf_gmlp, name) for name in hf_gmlp.__all__)
