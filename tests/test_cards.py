"""The model card: whole for every head, true to the model, and carried on from a trained checkpoint."""

import re

import pytest
import torch
from huggingface_hub import ModelCard

import hf_gmlp
from hf_gmlp import (
    GMLPConfig,
    GMLPForCausalLM,
    GMLPForMaskedLM,
    GMLPForSequenceClassification,
    GMLPModel,
    GMLPVisionConfig,
    GMLPVisionModel,
)
from hf_gmlp.cards import TASKS, TrainingRecord, model_card, preset_name

RECORD = TrainingRecord(
    dataset="Two thousand lines about cats; 10 % held out",
    hyperparameters={"learning rate": 7e-4, "steps": 100},
    metrics={"accuracy": 0.8125},
    command="python run_glue.py --do_train",
    dataset_id="me/cats",
)


def make_model(class_name, text_config, vision_config, **fields):
    model_class = getattr(hf_gmlp, class_name)
    make_config = vision_config if model_class.config_class is GMLPVisionConfig else text_config
    return model_class(make_config(**fields))


# The Hub's own names of tasks, written down a second time.
PIPELINE_TAGS = {
    "GMLPModel": "feature-extraction",
    "GMLPForMaskedLM": "fill-mask",
    "GMLPForCausalLM": "text-generation",
    "GMLPForSequenceClassification": "text-classification",
    "GMLPForTokenClassification": "token-classification",
    "GMLPForQuestionAnswering": "question-answering",
    "GMLPForMultipleChoice": "multiple-choice",
    "GMLPVisionModel": "image-feature-extraction",
    "GMLPForImageClassification": "image-classification",
}


def test_every_model_has_a_task():
    code_maps = GMLPConfig.code_map, GMLPVisionConfig.code_map
    assert set(TASKS) == {class_name for code_map in code_maps for class_name in code_map.values()}
    for class_name, (_, _, auto_class, _) in TASKS.items():
        assert class_name in {code_map.get(auto_class) for code_map in code_maps}


@pytest.mark.parametrize("attention_size", [0, 8])
@pytest.mark.parametrize("class_name", TASKS)
def test_cards_are_whole(text_config, vision_config, class_name, attention_size):
    model = make_model(class_name, text_config, vision_config, attention_size=attention_size)
    card = ModelCard(str(model_card(model, "me/my-model")))
    assert card.data.library_name == "transformers"
    assert card.data.pipeline_tag == PIPELINE_TAGS[class_name]
    assert card.data.license == "apache-2.0"
    family = "amlp" if attention_size else "gmlp"
    assert card.data.tags == [family, "arxiv:2105.08050"]
    for heading in ("# me/my-model", "## Architecture", "## How to load", "## Training", "## Limits", "## Citation"):
        assert re.search(f"^{heading}$", card.text, flags=re.MULTILINE)
    assert ("is an aMLP" if attention_size else "is a gMLP") in card.text
    millions = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    assert f"| parameters | {millions:.2f} M |" in card.text
    assert "were not recorded" in card.text
    # Nothing left to fill in.
    assert not re.search(r"\[More Information|<!--|{{|TODO|\bNone\b|your-|, ,", str(card))
    (code,) = re.findall(r"```python\n(.*?)```", card.text, flags=re.DOTALL)
    compile(code, "card", "exec")
    assert f'{TASKS[class_name][2]}.from_pretrained("me/my-model", trust_remote_code=True)' in code


@pytest.mark.parametrize(
    "fields, row",
    [
        ({"spatial_gating": "additive"}, "| spatial gating | additive, Z + f(Z) |"),
        ({"toeplitz": False}, "| spatial weights | dense (n x n per block) |"),
        ({"attention_size": 8}, "| tiny attention | one head of width 8 |"),
        ({"mask_padding": False}, "| padding | visible |"),
        ({"id2label": {i: f"kind {i}" for i in range(3)}}, "| labels | kind 0, kind 1, kind 2 |"),
        ({"num_labels": 12}, "LABEL_9 and 2 more |"),
    ],
)
def test_the_table_describes_the_model(text_config, fields, row):
    assert row in model_card(GMLPForSequenceClassification(text_config(**fields)), "x").text


def test_a_causal_model_is_told_from_the_others(text_config):
    text = model_card(GMLPForCausalLM(text_config()), "x").text
    assert "| direction | causal" in text and "padding goes on either side" in text and "generated together" in text
    assert 'pipeline("text-generation"' in text
    text = model_card(GMLPForMaskedLM(text_config()), "x").text
    assert "| direction | both ways |" in text and "generated together" not in text


def test_training_is_told(text_config):
    card = model_card(GMLPForSequenceClassification(text_config()), "me/my-model", training=RECORD, license="mit")
    card = ModelCard(str(card))
    assert card.data.license == "mit" and "The weights: mit." in card.text
    assert card.data.datasets == ["me/cats"]
    (result,) = card.data.eval_results
    assert (result.metric_type, result.metric_value, result.dataset_type) == ("accuracy", 0.8125, "me/cats")
    assert result.task_type == "text-classification"
    for told in (
        RECORD.dataset,
        RECORD.command,
        "| learning rate | 0.0007 |",
        "| steps | 100 |",
        "| accuracy | 0.8125",
    ):
        assert told in card.text


@pytest.mark.parametrize("folder_name", ["run-7", "out", "a", "gMLP"])
def test_the_card_of_a_trained_checkpoint_goes_along(text_config, tmp_path, folder_name):
    folder = tmp_path / folder_name
    model = GMLPForSequenceClassification(text_config())
    model.save_pretrained(folder)
    first = model_card(model, folder_name, training=RECORD, tags=["cats"])
    first.save(folder / "README.md")

    loaded = GMLPForSequenceClassification.from_pretrained(folder)
    card = ModelCard(str(model_card(loaded, "me/hub-name", tags=["new", "cats"])))
    # Only the name differs, wherever it stood.
    assert card.data.model_name == "me/hub-name"
    assert card.data.tags == ["gmlp", "arxiv:2105.08050", "cats", "new"]
    assert card.data.eval_results == first.data.eval_results
    assert card.text.strip() == model_card(model, "me/hub-name", training=RECORD).text.strip()
    # A new training makes a new card.
    again = TrainingRecord(dataset="Dogs")
    assert "Dogs" in model_card(loaded, "me/hub-name", training=again).text
    assert RECORD.dataset not in model_card(loaded, "me/hub-name", training=again).text


def test_another_license_for_a_card_taken_over(text_config, tmp_path):
    model = GMLPModel(text_config())
    model.save_pretrained(tmp_path)
    model_card(model, "first", training=RECORD).save(tmp_path / "README.md")
    card = model_card(GMLPModel.from_pretrained(tmp_path), "second", license="mit")
    assert card.data.license == "mit"
    assert "The weights: mit." in card.text and "The weights: apache-2.0." not in card.text


def test_a_model_class_of_ones_own_has_a_card(text_config):
    class MyClassifier(GMLPForSequenceClassification):
        pass

    card = model_card(MyClassifier(text_config()), "me/mine")
    assert card.data.pipeline_tag == "text-classification"


@pytest.mark.parametrize("name", ["gmlp-base", "amlp-large", "gmlp-18l", "gmlp-additive", "gmlp-ti16-224"])
def test_presets_are_recognized(name):
    config_class = GMLPVisionConfig if "16-224" in name else GMLPConfig
    assert preset_name(config_class.from_preset(name, num_labels=7, drop_path_rate=0.3)) == name


def test_other_sizes_are_no_preset(text_config):
    assert preset_name(text_config()) is None
    assert preset_name(GMLPConfig.from_preset("gmlp-base", toeplitz=False)) is None


def test_parameters_of_a_tied_model_are_counted_once(text_config):
    model = GMLPForMaskedLM(text_config(vocab_size=100_000))
    # 1.6 M of embeddings, which the decoder shares, and its bias.
    assert "| parameters | 1.70 M |" in model_card(model, "x").text


def test_a_model_on_no_device_has_a_card(vision_config):
    with torch.device("meta"):
        model = GMLPVisionModel(vision_config(image_size=(16, 8)))
    assert "(16, 8)" in model_card(model, "x").text
