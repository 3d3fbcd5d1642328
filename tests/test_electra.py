"""Replaced-token detection: what the generator fills in, and what the discriminator is asked."""

import json

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from examples import electra
from hf_gmlp import GMLPConfig

SIZES = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 4, "intermediate_size": 64}


@pytest.fixture
def model():
    torch.manual_seed(0)
    return electra.ReplacedTokenDetection(GMLPConfig(**SIZES, max_position_embeddings=8, num_labels=2))


def test_embeddings_are_shared(model):
    shared = model.discriminator.get_input_embeddings().weight
    assert model.generator.get_input_embeddings().weight is shared and model.generator.decoder.weight is shared
    assert model.generator.config.num_hidden_layers == 1 and model.generator.config.intermediate_size == 32


def test_the_discriminator_is_asked_what_the_generator_replaced(model):
    tokens = torch.tensor([[2, 11, 12, 13, 14, 3, 0, 0], [2, 15, 16, 17, 18, 19, 20, 3]])
    inputs, labels = tokens.clone(), torch.full_like(tokens, -100)
    for row, column in ((0, 2), (1, 1), (1, 5)):
        labels[row, column], inputs[row, column] = tokens[row, column], 4
    # The last position of the first row fills it up, and has no label.
    positions = torch.tensor([[2, 4], [1, 5]])
    # A generator that is sure of token 19, which is right in one place.
    with torch.no_grad():
        model.generator.decoder.bias[19] = 1e4
    asked = {}
    model.discriminator.register_forward_pre_hook(
        lambda module, args, kwargs: asked.update(ids=args[0], labels=kwargs["labels"]), with_kwargs=True
    )
    output = model.train()(inputs, labels, positions, (tokens != 0).long())
    expected = tokens.clone()
    expected[0, 2] = expected[1, 1] = 19
    assert torch.equal(asked["ids"], expected)
    replaced = (expected != tokens).long().masked_fill(tokens == 0, -100)
    assert torch.equal(asked["labels"], replaced) and replaced.clamp(min=0).sum() == 2
    assert output.logits.shape == (2, 8, 2)
    output.loss.backward()
    # Samples pass no gradient to the generator, but its own loss does.
    assert all(weight.grad is not None for weight in model.parameters())


@pytest.mark.slow
def test_a_run_leaves_a_model_to_fine_tune(tmp_path, monkeypatch):
    text = tmp_path / "text.txt"
    text.write_text("a film of few words and many pictures of rain in the city\n" * 200)
    sizes = "hidden_size=32,num_hidden_layers=4,intermediate_size=64,max_position_embeddings=32,attention_size=16"
    flags = ["--config_overrides", sizes, "--vocab_size", "361", "--train_file", text, "--validation_file", text]
    flags += ["--max_steps", 3, "--per_device_train_batch_size", 4, "--global_batch_size", 4, "--use_cpu"]
    words = ["electra", "recipes/laptop.yaml", *flags, "--output_dir", tmp_path / "out"]
    monkeypatch.setattr("sys.argv", [str(word) for word in words])
    electra.main()
    folder = tmp_path / "out" / "discriminator"
    assert json.loads((folder / "config.json").read_text())["id2label"]["1"] == "replaced"
    classifier = AutoModelForSequenceClassification.from_pretrained(folder)
    found = electra.AutoModelForTokenClassification.from_pretrained(folder)
    assert torch.equal(
        classifier.model.embeddings.word_embeddings.weight, found.model.embeddings.word_embeddings.weight
    )
