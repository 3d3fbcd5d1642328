import json
import math
import random
from collections import Counter

import pytest

from hf_gmlp.tasks.mlm.masking import MaskedOnce, MaskingCollator
from hf_gmlp.tasks.text import TextArguments, load_texts, tokenize
from hf_gmlp.tokenizer import train_tokenizer
from paper import baselines

from .test_corpus import WORDS

PHRASES = ["the cat sat", "a dog ran", "one bird flew"]


def witten_bell(train, context, byte, order):
    """As the formula has it, one byte at a time."""
    if order == 0:
        return 1 / 256
    lower = witten_bell(train, context, byte, order - 1)
    history = context[len(context) - order + 1 :]
    if len(context) < order - 1:
        return lower
    followers = [train[i + order - 1] for i in range(len(train) - order + 1) if train[i : i + order - 1] == history]
    if not followers:
        return lower
    new = len(set(followers))
    return (followers.count(byte) + new * lower) / (len(followers) + new)


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_bits_per_byte_of_an_n_gram_model(order):
    train, validation = b"the cat sat on the mat; the cat ate the rat", b"a cat on the mat \xc3\xa9"
    bits = [-math.log2(witten_bell(train, validation[:i], validation[i], order)) for i in range(len(validation))]
    assert baselines.bits_per_byte(train, validation, order) == pytest.approx(sum(bits) / len(bits))


def test_losses_by_frequency_and_by_neighbors(tmp_path):
    draw, files = random.Random(0), {}
    for split, count in (("train", 300), ("validation", 40)):
        files[split] = tmp_path / f"{split}.jsonl"
        texts = [" ".join(draw.choices(PHRASES, k=12)) for _ in range(count)]
        files[split].write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    words = [phrase for phrase in PHRASES for _ in range(50)] + WORDS
    tokenizer = train_tokenizer(words, vocab_size=400, max_length=32)
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    losses = baselines.token_losses(tmp_path / "tokenizer", files["train"], files["validation"], 32)

    arguments = TextArguments(**{f"{split}_file": [str(path)] for split, path in files.items()})
    train, validation = tokenize(load_texts(arguments), tokenizer, 32, arguments)
    frequency = Counter(token for ids in train["input_ids"] for token in ids.tolist()[1:])
    total = sum(frequency.values()) + len(tokenizer)
    rows = MaskedOnce(validation, MaskingCollator(tokenizer, seed=0))
    labels = [int(token) for row in rows for token in row["labels"] if token != -100]
    expected = [-math.log((frequency[token] + 1) / total) for token in labels]
    assert losses["unigram"] == pytest.approx(sum(expected) / len(expected))
    # Three words that stand together always: neighbors tell most.
    assert losses["neighbors"] < 0.7 * losses["unigram"]


def test_tf_idf_of_sentences(tmp_path):
    rows = [
        {"sentence": f"{'good' if number % 2 else 'bad'} film {number}", "label": number % 2} for number in range(60)
    ]
    for name, part in (("train", rows[:40]), ("validation", rows[40:])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    assert baselines.sentence_accuracy(tmp_path / "train.jsonl", tmp_path / "validation.jsonl") == 1.0
