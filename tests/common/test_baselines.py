import json
import math
import random
from collections import Counter

import pytest

from common import baselines
from hf_gmlp.data.documents import load_texts
from hf_gmlp.data.source import Source
from hf_gmlp.tasks.language_modeling import tokenize
from hf_gmlp.tasks.mlm import MaskingCollator, mask_once
from hf_gmlp.tokenizer import train_tokenizer

from ..paper.conftest import WORDS

PHRASES = ["the cat sat", "a dog ran", "one bird flew"]


def test_losses_of_the_count_models(tmp_path):
    generator, files = random.Random(0), {}
    for split, count in (("train", 300), ("validation", 40)):
        files[split] = tmp_path / f"{split}.jsonl"
        texts = [" ".join(generator.choices(PHRASES, k=12)) for _ in range(count)]
        files[split].write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    words = [phrase for phrase in PHRASES for _ in range(50)] + WORDS
    tokenizer = train_tokenizer(words, vocab_size=400, max_length=32)
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    losses = baselines.token_losses(tmp_path / "tokenizer", files["train"], files["validation"], 32)

    source = Source({split: [str(path)] for split, path in files.items()})
    train, validation = tokenize(load_texts(source), tokenizer, 32)
    frequency = Counter(token for ids in train["input_ids"] for token in ids.tolist()[1:])
    total = sum(frequency.values()) + len(tokenizer)
    rows = mask_once(validation, MaskingCollator(tokenizer, seed=0))
    labels = [int(token) for row in rows for token in row["labels"] if token != -100]
    expected = [-math.log((frequency[token] + 1) / total) for token in labels]
    assert losses["unigram"] == pytest.approx(sum(expected) / len(expected))
    # Three words in a fixed order, so that the context is informative.
    assert losses["bigram_context"] < 0.7 * losses["unigram"]
