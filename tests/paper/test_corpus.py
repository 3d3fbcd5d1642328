import json
import random
from collections import Counter

import pytest

from hf_gmlp.tokenizer import train_tokenizer
from paper import corpus

from .conftest import WORDS, write_documents


def read_rows(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def text(tmp_path):
    train = write_documents(tmp_path / "train.jsonl", 200, 100)
    return corpus.prepare_text([str(train)], [], tmp_path / "data")


def test_no_document_is_in_two_parts(text):
    parts = {part: {row["text"] for row in read_rows(path)} for part, path in text.items()}
    assert {part: len(texts) for part, texts in parts.items()} == {"train": 180, "development": 10, "evaluation": 10}
    assert len(set.union(*parts.values())) == 200


def test_evaluation_text_has_its_own_files_and_a_maximum(tmp_path, monkeypatch):
    monkeypatch.setitem(corpus.HELD_OUT, "evaluation", 10_000)
    train = write_documents(tmp_path / "train.jsonl", 200, 100)
    other = write_documents(tmp_path / "other.jsonl", 100, 100, seed=1)
    text = corpus.prepare_text([str(train)], [str(other)], tmp_path / "data")
    rows = read_rows(text["evaluation"])
    assert sum(len(row["text"]) for row in rows) == 10_000
    own, trained = ({row["text"] for row in read_rows(path)} for path in (other, text["train"]))
    assert {row["text"] for row in rows[:-1]} <= own and not trained & own


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """The folder of a tokenizer with a piece for nearly each of a hundred words."""
    folder, generator = tmp_path_factory.mktemp("tokenizer"), random.Random(0)
    texts = [" " + " ".join(generator.choices(WORDS[:100], k=20)) for _ in range(1000)]
    train_tokenizer(texts, vocab_size=455).save_pretrained(folder)
    return folder


def test_pairs_of_the_repeated_word(tokenizer, tmp_path):
    files = {part: tmp_path / f"pairs-{part}.jsonl" for part in ("train", "evaluation")}
    corpus.write_pairs(tokenizer, dict(zip(files.values(), (10_000, 200))), " [a-z]{3,}")
    parts = {part: read_rows(path) for part, path in files.items()}
    assert [len(rows) for rows in parts.values()] == [10_000, 200]
    lengths, words = Counter(), set()
    for row in parts["train"] + parts["evaluation"]:
        first, second = row["sentence1"].split(), row["sentence2"].split()
        assert len({*first}) == len(first) and len({*second}) == len(second)
        assert len({*first} & {*second}) == row["label"]
        words |= {*first, *second}
        lengths[row["label"], len(first), len(second)] += 1
    assert len(words) == 64 and words <= {*WORDS}
    # Neither the lengths nor single words predict the label.
    assert len(lengths) == 32 and 200 < min(lengths.values()) <= max(lengths.values()) < 450
    ones = Counter(word for row in parts["train"] if row["label"] for word in row["sentence2"].split())
    assert 130 < min(ones.values()) <= max(ones.values()) < 270
    assert sum(row["label"] for row in parts["train"]) == 5000
    assert not {str(row) for row in parts["train"]} & {str(row) for row in parts["evaluation"]}
    # A new file has none of the existing pairs.
    files["train"].unlink()
    corpus.write_pairs(tokenizer, {files["evaluation"]: 200, files["train"]: 50}, " [a-z]{3,}")
    assert not {str(row) for row in read_rows(files["train"])} & {str(row) for row in parts["evaluation"]}
