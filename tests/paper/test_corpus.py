import json
import random
from collections import Counter

import corpus
import pytest

from hf_gmlp.errors import InputError

WORDS = [f"{a}{b}{c}{d}" for a in "bdfg" for b in "aeiou" for c in "lmnr" for d in "stk"]


def write_documents(path, count, words, seed=0):
    draw = random.Random(seed)
    documents = [" ".join([f"Document {number}", *draw.choices(WORDS, k=words)]) for number in range(count)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents), encoding="utf-8")
    return path


@pytest.fixture
def text(tmp_path):
    train = write_documents(tmp_path / "train.jsonl", 200, 100)
    return corpus.prepare_text([str(train)], [], 32, tmp_path / "data")


def test_no_document_is_in_two_parts(text):
    parts = {part: {row["text"] for row in corpus.read_rows(path)} for part, path in text.items()}
    assert {part: len(found) for part, found in parts.items()} == {"train": 180, "development": 10, "evaluation": 10}
    assert len(set.union(*parts.values())) == 200


def test_evaluation_is_on_the_files_given_and_at_most_so_long(tmp_path, monkeypatch):
    monkeypatch.setitem(corpus.HELD_OUT, "evaluation", 10_000)
    train = write_documents(tmp_path / "train.jsonl", 200, 100)
    other = write_documents(tmp_path / "other.jsonl", 100, 100, seed=1)
    text = corpus.prepare_text([str(train)], [str(other)], 32, tmp_path / "data")
    rows = corpus.read_rows(text["evaluation"])
    assert sum(len(row["text"]) for row in rows) == 10_000
    own, trained = ({row["text"] for row in corpus.read_rows(path)} for path in (other, text["train"]))
    assert {row["text"] for row in rows[:-1]} <= own and not trained & own


def test_another_text_is_refused_in_the_same_folder(tmp_path, text):
    other = write_documents(tmp_path / "other.jsonl", 200, 100, seed=1)
    with pytest.raises(InputError, match="was made from other files. Choose another --output_dir"):
        corpus.prepare_text([str(other)], [], 32, tmp_path / "data")


def test_a_short_text_is_refused(tmp_path):
    short = write_documents(tmp_path / "short.jsonl", 30, 20)
    with pytest.raises(InputError, match="The text for train has .* words, but needs at least 6,400"):
        corpus.prepare_text([str(short)], [], 32, tmp_path / "data")


def test_the_repeated_word_is_what_the_label_says(text, tmp_path):
    paths = corpus.prepare_pairs(text, 400, tmp_path / "data")
    rows = corpus.read_rows(paths["train"])
    assert len(rows) == 400 and sum(row["label"] for row in rows) == 200
    assert len(corpus.read_rows(paths["evaluation"])) == 40
    for row in rows:
        first, second = row["sentence1"].split(), row["sentence2"].split()
        assert len(first) == len(second) == 8
    # Drawn words share some by chance, and the repeated one is shared always.
    shared = Counter((row["label"], bool({*row["sentence1"].split()} & {*row["sentence2"].split()})) for row in rows)
    assert shared[1, False] == 0 and shared[0, False] > 100


def test_one_sentence_says_nothing_of_the_label():
    documents = [[f"word{number}" for number in range(50)] for _ in range(5)]
    rows = list(corpus.pairs(documents, WORDS, 8000, random.Random(0)))
    for name in ("sentence1", "sentence2"):
        counts = Counter((row["label"], word) for row in rows for word in row[name].split())
        # 4,000 changed words of 240: 17 of each by label, give or take.
        assert max(abs(counts[0, word] - counts[1, word]) for word in WORDS) < 35


def test_tasks_are_split_and_checked(tmp_path):
    rows = [{"sentence": f"It is {number}.", "label": number % 2} for number in range(100)]
    files = [str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")]
    for path, part in zip(files, (rows[:80], rows[80:])):
        with open(path, "w") as file:
            file.writelines(json.dumps(row) + "\n" for row in part)
    parts = corpus.prepare_task("single", files, tmp_path / "data")
    found = {part: corpus.read_rows(path) for part, path in parts.items()}
    assert found["development"] == rows[:80:10] and found["evaluation"] == rows[80:] and len(found["train"]) == 72
    with pytest.raises(InputError, match=r"has 1 sentence\(s\) a row, but --pair needs 2"):
        corpus.prepare_task("pair", files, tmp_path / "data")
