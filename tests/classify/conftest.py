"""Tiny encoders of texts and pictures."""

import pytest
import torch

from hf_gmlp import GMLPConfig, GMLPModel, GMLPVisionConfig, GMLPVisionModel
from hf_gmlp.processor import evaluation_processor

from .. import samples

SIZES = {"hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 32}


def opinions(count, seed=1):
    """Return texts, and "good" or "bad" for each."""
    rows = samples.opinions(count, seed)
    return [row["sentence"] for row in rows], [("bad", "good")[row["label"]] for row in rows]


def make_tokenizer():
    words = [*samples.GOOD, *samples.BAD, *samples.NOUNS, "the", "is", "and", "long"]
    return samples.word_tokenizer(list(dict.fromkeys(words)), model_max_length=32)


@pytest.fixture(scope="session")
def encoder(tmp_path_factory):
    """The folder of a sentence encoder, in whose embeddings words are random vectors."""
    folder, tokenizer = tmp_path_factory.mktemp("encoder"), make_tokenizer()
    sizes = SIZES | {"vocab_size": len(tokenizer), "max_position_embeddings": 32}
    torch.manual_seed(0)
    model = GMLPModel(GMLPConfig(**sizes, pooling="mean", hidden_dropout_prob=0.1))
    torch.nn.init.normal_(model.embeddings.word_embeddings.weight, std=1.0)
    torch.nn.init.normal_(model.pooler.dense.weight, std=0.2)
    for item in (model, tokenizer):
        item.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def vision(tmp_path_factory):
    """The folder of an image encoder."""
    folder = tmp_path_factory.mktemp("vision")
    torch.manual_seed(0)
    model = GMLPVisionModel(GMLPVisionConfig(**SIZES, image_size=16, patch_size=4))
    for name, parameter in model.named_parameters():
        if name.endswith("weight") and parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    for item in (model, evaluation_processor((16, 16))):
        item.save_pretrained(folder)
    return str(folder)
