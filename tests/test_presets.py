"""The presets by name; tests/paper/test_tables.py has their counts."""

import pytest

import hf_gmlp
from hf_gmlp import preset_config, preset_path


def test_overrides_leave_the_preset_unchanged():
    config = preset_config("amlp-base", num_labels=3, hidden_dropout_prob=0.1, num_hidden_layers=2)
    assert (config.num_labels, config.hidden_dropout_prob, config.num_hidden_layers) == (3, 0.1, 2)
    assert config.attention_size == 64 and len(config.id2label) == 3
    assert preset_config("amlp-base").num_hidden_layers == 36


@pytest.mark.parametrize("name, rate", [("gmlp-ti16-224", 0.0), ("gmlp-s16-224", 0.05), ("gmlp-b16-224", 0.2)])
def test_stochastic_depth_of_table_1(name, rate):
    assert preset_config(name).drop_path_rate == rate


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: preset_path("gmlp-huge"), "gmlp-huge.*gmlp-base"),
        (lambda: preset_config("gmlp-base", hidden_sizes=3), "gmlp-base.*'hidden_sizes'"),
    ],
)
def test_wrong_names_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_public_names_are_frozen():
    names = """
        GMLPBlock GMLPConfig GMLPForCausalLM GMLPForImageClassification GMLPForMaskedLM GMLPForMultipleChoice
        GMLPForQuestionAnswering GMLPForSequenceClassification GMLPForTokenClassification GMLPModel GMLPPreTrainedModel
        GMLPVisionBackbone GMLPVisionConfig GMLPVisionModel GMLPVisionPreTrainedModel
        SpatialGatingUnit SpatialProjection
        __version__ enable_selective_checkpointing extend_context list_presets param_groups preset_config preset_path
    """
    assert set(hf_gmlp.__all__) == set(names.split())
