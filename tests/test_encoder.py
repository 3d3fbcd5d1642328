"""The bundled sentence encoder."""

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F
from transformers import AutoModel, AutoTokenizer

import hf_gmlp
from common.encoders import Encoder

FOLDER = Path(__file__).parent.parent / "checkpoints/gmlp-mini-sentences"
TEXTS = ["How do I reset my password?", "I forgot my login code.", "The soup was served with fresh bread."]


@pytest.fixture(scope="module")
def encoder():
    return AutoModel.from_pretrained(FOLDER).eval(), AutoTokenizer.from_pretrained(FOLDER)


@torch.no_grad()
def embed(encoder, text):
    model, tokenizer = encoder
    return model(**tokenizer(text, truncation=True, return_tensors="pt")).pooler_output[0]


def test_a_text_is_read_alike_alone_and_in_a_longer_one(encoder):
    model, tokenizer = encoder
    assert all((projection.bias == 1).all() for projection in model.spatial_projections())
    hf_gmlp.extend_context(model, tokenizer, 8192)
    middle, around = (
        tokenizer(TEXTS[0], add_special_tokens=False)["input_ids"],
        tokenizer.convert_tokens_to_ids(["the"]),
    )
    margin = around * (model.config.num_hidden_layers * model.config.spatial_reach)
    with torch.no_grad():
        short = model(torch.tensor([margin + middle + margin])).last_hidden_state[0, len(margin) : -len(margin)]
        long = model(torch.tensor([20 * margin + middle + 30 * margin])).last_hidden_state[0]
    torch.testing.assert_close(long[20 * len(margin) :][: len(middle)], short, atol=1e-3, rtol=1e-3)


def test_the_benchmark_and_sentence_transformers_embed_alike(encoder):
    expected = F.normalize(torch.stack([embed(encoder, text) for text in TEXTS]), dim=-1)
    torch.testing.assert_close(torch.from_numpy(Encoder(str(FOLDER))(TEXTS)), expected, atol=1e-5, rtol=1e-4)
    library = pytest.importorskip("sentence_transformers").SentenceTransformer(str(FOLDER), device="cpu")
    vectors = library.encode(TEXTS, convert_to_tensor=True)
    torch.testing.assert_close(vectors, expected, atol=1e-5, rtol=1e-4)
