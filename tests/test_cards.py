"""The model card: complete for every head, true to the model, and carried over from a trained checkpoint."""

import ast
import re
from types import SimpleNamespace

import pytest
import torch
from huggingface_hub import ModelCard
from huggingface_hub.errors import EntryNotFoundError
from markdown_it import MarkdownIt
from transformers.utils.hub import create_and_tag_model_card

import hf_gmlp
from hf_gmlp import (
    GMLPConfig,
    GMLPForCausalLM,
    GMLPForMaskedLM,
    GMLPForSequenceClassification,
    GMLPModel,
    GMLPVisionConfig,
    GMLPVisionModel,
    cards,
)
from hf_gmlp.cards import TASKS, TrainingRecord, filled_in, model_card, preset_name, write_card

from .samples import CONVOLUTIONAL

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


# The Hub's names of tasks, independently of the package.
PIPELINE_TAGS = {
    "GMLPModel": "feature-extraction",
    "GMLPForMaskedLM": "fill-mask",
    "GMLPForCausalLM": "text-generation",
    "GMLPForSequenceClassification": "text-classification",
    "GMLPForTokenClassification": "token-classification",
    "GMLPForQuestionAnswering": "question-answering",
    "GMLPForMultipleChoice": "multiple-choice",
    "GMLPVisionModel": "image-feature-extraction",
    "GMLPVisionBackbone": "image-feature-extraction",
    "GMLPForImageClassification": "image-classification",
}


def test_every_model_has_a_task():
    code_maps = GMLPConfig.code_map, GMLPVisionConfig.code_map
    assert set(TASKS) == {class_name for code_map in code_maps for class_name in code_map.values()}
    for class_name in TASKS:
        auto_class = getattr(hf_gmlp, class_name)._auto_class
        assert class_name in {code_map.get(auto_class) for code_map in code_maps}


@pytest.mark.parametrize("attention_size", [0, 8])
@pytest.mark.parametrize("class_name", TASKS)
def test_a_card_is_complete(text_config, vision_config, class_name, attention_size):
    model = make_model(class_name, text_config, vision_config, attention_size=attention_size)
    card = ModelCard(str(model_card(model, "me/my-model")))
    assert card.data.library_name == "transformers"
    assert card.data.pipeline_tag == PIPELINE_TAGS[class_name]
    # No license was given.
    assert card.data.license is None and "The license of the weights is not stated." in card.text
    family = "amlp" if attention_size else "gmlp"
    assert card.data.tags == [family, "arxiv:2105.08050"]
    for heading in ("# me/my-model", "## Architecture", "## How to load", "## Training", "## Limits", "## Citation"):
        assert re.search(f"^{heading}$", card.text, flags=re.MULTILINE)
    assert ("is an aMLP" if attention_size else "is a gMLP") in card.text
    millions = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    assert f"| parameters | {millions:.2f} M |" in card.text
    assert "were not recorded" in card.text
    # No placeholder is left.
    assert not re.search(r"\[More Information|<!-- (?!hf_gmlp)|{{|TODO|\bNone\b|your-|, ,", str(card))
    (code,) = re.findall(r"```python\n(.*?)```", card.text, flags=re.DOTALL)
    compile(code, "card", "exec")
    assert f'{type(model)._auto_class}.from_pretrained("me/my-model", trust_remote_code=True)' in code


@pytest.mark.parametrize(
    "fields, row",
    [
        ({"spatial_gating": "additive"}, "| spatial gating | additive, Z + f(Z) |"),
        ({}, "| spatial weights | Toeplitz (2n - 1 per block) |"),
        ({"toeplitz": False}, "| spatial weights | dense (n x n per block) |"),
        ({"spatial_heads": 4}, "| spatial weights | Toeplitz (2n - 1 for each of 4 heads in a block) |"),
        ({"attention_size": 8}, "| tiny attention | one head of width 8 |"),
        ({"mask_padding": False}, "| padding | not masked |"),
        ({"id2label": {i: f"kind {i}" for i in range(3)}}, "| labels | kind 0, kind 1, kind 2 |"),
        ({"num_labels": 12}, "LABEL_9 and 2 more |"),
    ],
)
def test_the_table_describes_the_model(text_config, fields, row):
    assert row in model_card(GMLPForSequenceClassification(text_config(**fields)), "x").text


@pytest.mark.parametrize(
    "fields, rows",
    [
        ({}, ["| spatial weights | dense (n x n per block) |", "| stem | one convolution per patch |"]),
        (
            CONVOLUTIONAL | {"image_size": (8, 12), "spatial_heads": 1},
            ["| spatial weights | Toeplitz over the grid (3 x 5 per block) |", "| stem | early convolutions |"],
        ),
        (CONVOLUTIONAL, ["| Toeplitz over the grid (7 x 7 for each of 4 heads in a block) |"]),
    ],
)
def test_the_table_describes_an_image_model(vision_config, fields, rows):
    text = model_card(hf_gmlp.GMLPForImageClassification(vision_config(**fields)), "x").text
    assert all(row in text for row in rows)


def test_the_card_of_a_causal_model(text_config):
    text = model_card(GMLPForCausalLM(text_config()), "x").text
    assert "| direction | causal" in text and "padding on either side" in text and "generated text" in text
    assert 'pipeline("text-generation"' in text
    text = model_card(GMLPForMaskedLM(text_config()), "x").text
    assert "| direction | bidirectional |" in text and "generated text" not in text


def test_the_card_of_a_trained_model(text_config):
    card = model_card(GMLPForSequenceClassification(text_config()), "me/my-model", training=RECORD, license="mit")
    card = ModelCard(str(card))
    assert card.data.license == "mit" and "The license of the weights is mit." in card.text
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
def test_the_card_of_a_trained_checkpoint_is_carried_over(text_config, tmp_path, folder_name):
    folder = tmp_path / folder_name
    model = GMLPForSequenceClassification(text_config())
    model.save_pretrained(folder)
    first = model_card(model, folder_name, training=RECORD, tags=["cats"])
    first.save(folder / "README.md")

    loaded = GMLPForSequenceClassification.from_pretrained(folder)
    card = ModelCard(str(model_card(loaded, "me/hub-name", tags=["new", "cats"])))
    # Only the name differs, wherever it appears.
    assert card.data.model_name == "me/hub-name"
    assert card.data.tags == ["gmlp", "arxiv:2105.08050", "cats", "new"]
    assert card.data.eval_results == first.data.eval_results
    assert card.text.strip() == model_card(model, "me/hub-name", training=RECORD).text.strip()
    # A changed model has no results.
    with torch.no_grad():
        loaded.classifier.bias += 1
    assert "were not recorded" in (other := model_card(loaded, "me/hub-name")).text and other.data.eval_results is None
    other = GMLPForSequenceClassification.from_pretrained(folder)
    other.resize_position_embeddings(2 * other.config.max_position_embeddings)
    text = model_card(other, "x").text
    assert RECORD.dataset not in text and f"| tokens (n) | {2 * model.config.max_position_embeddings} |" in text
    unchanged = GMLPForSequenceClassification.from_pretrained(folder)
    other = model_card(GMLPForMaskedLM.from_pretrained(folder), "x")
    assert other.data.pipeline_tag == "fill-mask" and RECORD.dataset not in other.text
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").write_bytes(b"not weights any more")
    assert RECORD.dataset not in model_card(unchanged, "x").text
    # A new training makes a new card.
    again = TrainingRecord(dataset="Dogs")
    assert "Dogs" in model_card(loaded, "me/hub-name", training=again).text
    assert RECORD.dataset not in model_card(loaded, "me/hub-name", training=again).text


def test_another_license_for_a_carried_over_card(text_config, tmp_path):
    model = GMLPModel(text_config())
    model.save_pretrained(tmp_path)
    model_card(model, "first", training=RECORD).save(tmp_path / "README.md")
    card = model_card(GMLPModel.from_pretrained(tmp_path), "second", license="mit")
    assert card.data.license == "mit"
    assert "The license of the weights is mit." in card.text and "is not stated" not in card.text
    # By default, the license of the card stays.
    card.save(tmp_path / "README.md")
    card = model_card(GMLPModel.from_pretrained(tmp_path), "third")
    assert card.data.license == "mit" and "the weights is mit." in card.text and RECORD.dataset in card.text


PERSON = """---
license: cc-by-4.0
tags: [mine]
thumbnail: cat.png
---

# My model

I wrote this myself.
"""


def test_what_a_person_wrote_stays(text_config, tmp_path):
    (tmp_path / "README.md").write_text(PERSON)
    earlier = ModelCard.load(tmp_path / "README.md")
    card = filled_in(earlier, model_card(GMLPForMaskedLM(text_config()), "me/x", training=RECORD, license="mit"))
    card = ModelCard(str(card))
    assert card.text.strip() == "# My model\n\nI wrote this myself."
    assert (card.data.license, card.data.thumbnail, card.data.library_name) == ("cc-by-4.0", "cat.png", "transformers")
    assert card.data.tags == ["mine", "gmlp", "arxiv:2105.08050"] and card.data.pipeline_tag == "fill-mask"
    # The same holds for a generated card that a person has changed.
    card = model_card(GMLPForMaskedLM(text_config()), "me/x", training=RECORD)
    card.text = card.text.replace("## Limits", "## What I think of it\n\nNot much.\n\n## Limits")
    card.save(tmp_path / "README.md")
    again = filled_in(ModelCard.load(tmp_path / "README.md"), model_card(GMLPForMaskedLM(text_config()), "me/x"))
    assert "Not much." in again.text and RECORD.dataset in again.text


def test_a_generated_card_is_replaced(text_config, tmp_path):
    model_card(GMLPForMaskedLM(text_config()), "me/x", training=RECORD, license="mit").save(tmp_path / "README.md")
    text = (tmp_path / "README.md").read_text().replace("license: mit", "license: gpl-3.0\nthumbnail: cat.png")
    (tmp_path / "README.md").write_text(text)
    card = filled_in(
        ModelCard.load(tmp_path / "README.md"),
        model_card(GMLPForMaskedLM(text_config()), "me/x", training=TrainingRecord(dataset="Dogs")),
    )
    assert "Dogs" in card.text and RECORD.dataset not in card.text and card.data.eval_results is None
    assert card.data.datasets is None
    # A person chose these.
    assert (card.data.license, card.data.thumbnail) == ("gpl-3.0", "cat.png") and "the weights is gpl-3.0." in card.text
    # It still counts as generated.
    card.save(tmp_path / "README.md")
    third = filled_in(ModelCard.load(tmp_path / "README.md"), model_card(GMLPForMaskedLM(text_config()), "me/x"))
    assert "Dogs" not in third.text and "The license of the weights is gpl-3.0." in third.text


def test_the_form_of_the_library_is_replaced(text_config):
    form = transformers_form()
    card = filled_in(form, model_card(GMLPForMaskedLM(text_config()), "me/x"))
    assert "# me/x" in card.text and "More Information Needed" not in card.text
    # But not after a person has written into it.
    form.text = form.text.replace("[More Information Needed]", "Me", 1)
    assert "Me\n" in filled_in(form, model_card(GMLPForMaskedLM(text_config()), "me/x")).text


def transformers_form():
    """Returns the card with which transformers pushes a tokenizer if there is none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ModelCard, "load", lambda *args, **kwargs: throw(EntryNotFoundError("There is no card.")))
        return create_and_tag_model_card("me/x")


def throw(error):
    raise error


def test_a_card_that_cannot_be_read_is_left_alone(text_config, tmp_path, caplog):
    (tmp_path / "README.md").write_text("---\nlicense: [unclosed\n---\n# Mine")
    write_card(model_card(GMLPForMaskedLM(text_config()), "me/x"), tmp_path, tmp_path / "README.md")
    assert (tmp_path / "README.md").read_text().endswith("# Mine") and "is left unchanged" in caplog.text


def test_a_trainer_does_not_push_a_card_that_cannot_be_read(text_config, tmp_path, monkeypatch):
    monkeypatch.setattr(cards, "_repository_card", lambda *args: None)
    args = SimpleNamespace(output_dir=str(tmp_path), hub_token=None, hub_revision=None)
    trainer, card = SimpleNamespace(args=args, hub_model_id="me/x"), model_card(GMLPForMaskedLM(text_config()), "me/x")
    (tmp_path / "README.md").write_text(broken := "---\nlicense: [unclosed\n---\n# Mine")
    cards.write_trainer_card(trainer, card, pushing=False)
    assert (tmp_path / "README.md").read_text() == broken
    cards.write_trainer_card(trainer, card)
    # Trainer does not upload it under this name.
    assert [path.name for path in tmp_path.iterdir()] == ["_README.md"]
    assert (tmp_path / "_README.md").read_text() == broken


def test_odd_names_break_nothing(text_config):
    labels = {0: "a|b", 1: "line\nbreak", 2: "<script>", 3: "*bold* `code` [link](x)"}
    model = GMLPForSequenceClassification(text_config(num_labels=4, id2label=labels))
    name = 'me/"quoted" | <b>\\ :x'
    odd = TrainingRecord(
        "``` # no | heading\n# one", {"a": "x|y"}, {"loss": float("nan"), "f1": "high", "ok|": 1}, "a ```b"
    )
    card = model_card(model, name, training=odd, tags=["a: b"])
    card = ModelCard(str(card))
    assert card.data.model_name == name and "a: b" in card.data.tags
    (code,) = re.findall(r"```python\n(.*?)```", card.text, flags=re.DOTALL)
    loads = [node.args[0].value for node in ast.walk(ast.parse(code)) if getattr(node, "func", None) and node.args
             and getattr(node.func, "attr", "") == "from_pretrained"]  # fmt: skip
    assert loads == [name, name]
    html = MarkdownIt("commonmark").enable("table").render(card.text)
    assert "<script>" not in html and "<b>" not in html and "nan" not in html.lower().replace("finance", "")
    assert "<td>a|b, line break, &lt;script&gt;, *bold* `code` [link](x)</td>" in html
    assert html.count("<h1>") == 1 and html.count("<h2>") == 7


def test_the_base_model_and_the_language(text_config):
    record = TrainingRecord(dataset="Cats", base_model="me/base", language="en")
    card = ModelCard(str(model_card(GMLPForMaskedLM(text_config()), "me/x", training=record)))
    assert (card.data.base_model, card.data.language) == ("me/base", "en")
    assert card.data.to_dict()["widget"] == [{"text": "The capital of France is [MASK]."}]


def test_a_subclass_has_a_card(text_config):
    class MyClassifier(GMLPForSequenceClassification):
        pass

    card = model_card(MyClassifier(text_config()), "me/mine")
    assert card.data.pipeline_tag == "text-classification"


@pytest.mark.parametrize("name", ["gmlp-base", "amlp-large", "gmlp-18l", "gmlp-additive", "gmlp-ti16-224"])
def test_presets_are_recognized(name):
    config_class = GMLPVisionConfig if "16-224" in name else GMLPConfig
    assert preset_name(config_class.from_preset(name, num_labels=7, drop_path_rate=0.3)) == name


def test_other_sizes_are_not_a_preset(text_config):
    assert preset_name(text_config()) is None
    assert preset_name(GMLPConfig.from_preset("gmlp-base", toeplitz=False)) is None


def test_parameters_of_a_tied_model_are_counted_once(text_config):
    model = GMLPForMaskedLM(text_config(vocab_size=100_000))
    # 1.6 M of embeddings, which the decoder shares, and its bias.
    assert "| parameters | 1.70 M |" in model_card(model, "x").text


def test_a_model_on_the_meta_device_has_a_card(vision_config):
    with torch.device("meta"):
        model = GMLPVisionModel(vision_config(image_size=(16, 8)))
    assert "(16, 8)" in model_card(model, "x").text
