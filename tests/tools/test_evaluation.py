"""Accuracies equal those of rows one by one."""

import random

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoImageProcessor

from hf_gmlp import GMLPForImageClassification, GMLPForMaskedLM, GMLPForSequenceClassification
from hf_gmlp.errors import InputError
from hf_gmlp.processor import evaluation_processor
from hf_gmlp.tools.evaluation import accuracies, evaluation_batches

from .. import samples

TEXTS = ["w1", "w2 w3", "w4 w5 w6", "w7 w8 w9 w1", "w2 w2 w2 w2 w2"]
NAMES = {"id2label": {0: "a", 1: "b", 2: "c"}, "label2id": {"a": 0, "b": 1, "c": 2}}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    samples.word_tokenizer(samples.WORDS[:35]).save_pretrained(tmp_path / "model")
    evaluation_processor((16, 16)).save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")


@torch.no_grad()
def test_sentences(tmp_path, folder, perturbed_model, text_config):
    model = perturbed_model(GMLPForSequenceClassification, text_config(**NAMES))
    model.save_pretrained(folder)
    tokenizer = samples.word_tokenizer(samples.WORDS[:35])
    classes = [int(model(**tokenizer(text, return_tensors="pt")).logits.argmax()) for text in TEXTS]
    # Two of five are wrong.
    labels = ["abc"[(number + (row < 2)) % 3] for row, number in enumerate(classes)]
    path = samples.write(tmp_path / "dev.tsv", "sentence\tlabel\n" + "".join(map("{}\t{}\n".format, TEXTS, labels)))
    batches = evaluation_batches(model, folder, "text-classification", path)
    inputs = ["input_ids", "attention_mask", "token_type_ids"]
    constant = {"logits": torch.eye(3)[[0] * len(TEXTS)]}
    scores = accuracies({"model": model, "always a": lambda **batch: constant}, batches, inputs)
    assert scores == {"model": 0.6, "always a": labels.count("a") / 5}
    with pytest.raises(InputError, match="'d'"):
        path = samples.write(tmp_path / "other.tsv", "sentence\tlabel\nw1\td\n")
        evaluation_batches(model, folder, "text-classification", path)
    with pytest.raises(InputError, match="--eval_file is for"):
        evaluation_batches(model, folder, "question-answering", path)


@torch.no_grad()
def test_images(tmp_path, folder, perturbed_model, vision_config):
    model = perturbed_model(GMLPForImageClassification, vision_config(**NAMES))
    model.save_pretrained(folder)
    processor = AutoImageProcessor.from_pretrained(folder)
    for number in range(4):
        image = Image.fromarray(np.random.default_rng(number).integers(0, 255, (20, 20, 3), dtype=np.uint8))
        predicted = int(model(**processor(image, return_tensors="pt")).logits.argmax())
        path = tmp_path / "images" / "abc"[(predicted + (number == 0)) % 3] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path)
    batches = evaluation_batches(model, folder, "image-classification", str(tmp_path / "images"))
    assert accuracies({"model": model}, batches, ["pixel_values"]) == {"model": 0.75}


@torch.no_grad()
def test_masked_tokens(tmp_path, folder, perturbed_model, text_config):
    model = perturbed_model(GMLPForMaskedLM, text_config())
    words = random.Random(0).choices(samples.WORDS[:35], k=400)
    path = samples.write(tmp_path / "text.txt", " ".join(words))
    batches = evaluation_batches(model, folder, "fill-mask", path)
    correct = []
    for row in batches.dataset:
        ids, labels = (torch.as_tensor(row[name]) for name in ("input_ids", "labels"))
        correct.append((model(ids[None]).logits[0].argmax(-1) == labels)[labels != -100])
    correct = torch.cat(correct).float()
    assert len(correct) > 20
    assert accuracies({"model": model}, batches, ["input_ids", "attention_mask"]) == {
        "model": pytest.approx(correct.mean().item())
    }
