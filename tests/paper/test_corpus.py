import json
import random

import pytest

from hf_gmlp.errors import InputError
from paper import corpus

WORDS = [f"{a}{b}{c}{d}" for a in "bdfg" for b in "aeiou" for c in "lmnr" for d in "stk"]


def write_documents(path, count, words, seed=0):
    draw = random.Random(seed)
    documents = [" ".join([f"Document {number}", *draw.choices(WORDS, k=words)]) for number in range(count)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents), encoding="utf-8")
    return path


def read_rows(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def text(tmp_path):
    train = write_documents(tmp_path / "train.jsonl", 200, 100)
    return corpus.prepare_text([str(train)], [], 32, tmp_path / "data")


def test_no_document_is_in_two_parts(text):
    parts = {part: {row["text"] for row in read_rows(path)} for part, path in text.items()}
    assert {part: len(found) for part, found in parts.items()} == {"train": 180, "development": 10, "evaluation": 10}
    assert len(set.union(*parts.values())) == 200


def test_evaluation_is_on_the_files_given_and_at_most_so_long(tmp_path, monkeypatch):
    monkeypatch.setitem(corpus.HELD_OUT, "evaluation", 10_000)
    train = write_documents(tmp_path / "train.jsonl", 200, 100)
    other = write_documents(tmp_path / "other.jsonl", 100, 100, seed=1)
    text = corpus.prepare_text([str(train)], [str(other)], 32, tmp_path / "data")
    rows = read_rows(text["evaluation"])
    assert sum(len(row["text"]) for row in rows) == 10_000
    own, trained = ({row["text"] for row in read_rows(path)} for path in (other, text["train"]))
    assert {row["text"] for row in rows[:-1]} <= own and not trained & own


def test_another_text_is_refused_in_the_same_folder(tmp_path, text):
    other = write_documents(tmp_path / "other.jsonl", 200, 100, seed=1)
    with pytest.raises(InputError, match="was made from other files. Choose another --output_dir"):
        corpus.prepare_text([str(other)], [], 32, tmp_path / "data")


def test_a_short_text_is_refused(tmp_path):
    short = write_documents(tmp_path / "short.jsonl", 30, 20)
    with pytest.raises(InputError, match="The text for train has .* words, but needs at least 6,400"):
        corpus.prepare_text([str(short)], [], 32, tmp_path / "data")
