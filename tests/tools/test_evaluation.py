"""Accuracies equal those of rows one by one."""

import pytest
import torch

from hf_gmlp import GMLPForMaskedLM, GMLPForSequenceClassification
from hf_gmlp.errors import InputError
from hf_gmlp.tools.evaluation import accuracies, evaluation_batches

from .. import samples

TEXTS = ["w1", "w2 w3", "w4 w5 w6", "w7 w8 w9 w1", "w2 w2 w2 w2 w2"]
NAMES = {"id2label": {0: "a", 1: "b", 2: "c"}, "label2id": {"a": 0, "b": 1, "c": 2}}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    samples.word_tokenizer(samples.WORDS[:35]).save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")


@torch.no_grad()
@pytest.mark.parametrize("names", ["abc", "012"])
@pytest.mark.parametrize("pairs", [False, True])
def test_sentences(tmp_path, folder, perturbed_model, text_config, names, pairs):
    model = perturbed_model(GMLPForSequenceClassification, text_config(**NAMES))
    tokenizer = samples.word_tokenizer(samples.WORDS[:35])
    rows = [(text, "w3")[: 1 + pairs] for text in TEXTS]
    classes = [int(model(**tokenizer(*row, return_tensors="pt")).logits.argmax()) for row in rows]
    # Two of five are wrong. The file has the names of the classes, or their numbers.
    labels = [names[(number + (row < 2)) % 3] for row, number in enumerate(classes)]
    header = "label\tone\ttwo\n" if pairs else "label\tone\n"
    lines = ["\t".join((label, *row)) for label, row in zip(labels, rows)]
    batches = evaluation_batches(model, folder, samples.write(tmp_path / "dev.tsv", header + "\n".join(lines)))
    inputs = ["input_ids", "attention_mask", "token_type_ids"]
    constant = {"logits": torch.eye(3)[[0] * len(TEXTS)]}
    scores = accuracies({"model": model, "always a": lambda **batch: constant}, batches, inputs)
    assert scores == {"model": 0.6, "always a": labels.count(names[0]) / 5}


def test_data_and_models_that_do_not_fit(tmp_path, folder, perturbed_model, text_config):
    model = perturbed_model(GMLPForSequenceClassification, text_config(**NAMES))
    for content, message in (
        ("sentence\tlabel\nw1\td\n", "labels d,"),
        ("sentence\tlabel\nw1\t3\n", "labels 3,"),
        ("sentence\tclass\nw1\ta\n", "'label'"),
        ("a\tb\tc\tlabel\nw1\tw1\tw1\ta\n", "one or two"),
    ):
        path = samples.write(tmp_path / "other.tsv", content)
        with pytest.raises(InputError, match=message):
            evaluation_batches(model, folder, path)
        (tmp_path / "other.tsv").unlink()
    with pytest.raises(InputError, match="--eval_file is for"):
        evaluation_batches(GMLPForMaskedLM(text_config()), folder, path)
