import itertools
import json

import numpy as np
import pytest
from datasets import load_dataset

from hf_gmlp.errors import InputError
from hf_gmlp.training.stream import SequenceStream

pytestmark = pytest.mark.slow


def corpus(tmp_path, documents=57, files=2):
    """Document i is the text "i", over several files."""
    paths = []
    for part in range(files):
        paths.append(str(tmp_path / f"{part}.jsonl"))
        rows = [json.dumps({"text": str(i)}) + "\n" for i in range(documents) if i * files // documents == part]
        (tmp_path / f"{part}.jsonl").write_text("".join(rows))
    return load_dataset("json", data_files={"train": paths}, streaming=True, cache_dir=str(tmp_path))["train"]


def make_sequences(texts):
    """Two sequences per document, of one and of two numbers."""
    return {"input_ids": [np.array([int(text)] * count) for text in texts for count in (1, 2)]}


def stream(documents, **options):
    options = {"buffer_size": 10, "batch_size": 12, "seed": 3} | options
    return SequenceStream(documents, make_sequences, **options)


def plain(rows):
    return [(row["epoch"], *map(int, row["input_ids"])) for row in rows]


def test_every_sequence_comes_once_per_epoch_in_a_new_order(tmp_path):
    documents = corpus(tmp_path)
    # A data set that was read before, to train a tokenizer, starts again.
    assert len(list(documents)) == 57
    rows = plain(itertools.islice(stream(documents), 3 * 114))
    epochs = [[row[1:] for row in rows if row[0] == epoch] for epoch in range(3)]
    for epoch in epochs:
        assert sorted(epoch) == sorted([(i,) * k for i in range(57) for k in (1, 2)])
    assert epochs[0] != epochs[1] != epochs[2]
    assert rows == sorted(rows, key=lambda row: row[0])
    assert plain(itertools.islice(stream(documents), 50)) == rows[:50]
    assert plain(itertools.islice(stream(documents, seed=4), 50)) != rows[:50]


@pytest.mark.parametrize("yielded", [0, 9, 104, 114, 115, 300])
@pytest.mark.parametrize("read_ahead", [0, 25])
def test_resumes_at_any_sequence(tmp_path, yielded, read_ahead):
    expected = plain(itertools.islice(stream(corpus(tmp_path)), 400))
    first = stream(corpus(tmp_path))
    taken = plain(itertools.islice(iter(first), yielded + read_ahead))
    assert taken == expected[: yielded + read_ahead]
    first.save_state(tmp_path / "state.pt", yielded)

    second = stream(corpus(tmp_path), seed=99)
    second.load_state(tmp_path / "state.pt")
    assert plain(itertools.islice(second, 400 - yielded)) == expected[yielded:]
    # Once more from there: sequences are counted from the start of the first run.
    third = stream(corpus(tmp_path))
    third.load_state(tmp_path / "state.pt")
    iterator = iter(third)
    list(itertools.islice(iterator, 30))
    third.save_state(tmp_path / "again.pt", yielded + 20)
    fourth = stream(corpus(tmp_path))
    fourth.load_state(tmp_path / "again.pt")
    assert plain(itertools.islice(fourth, 40)) == expected[yielded + 20 : yielded + 60]


def test_old_snapshots_are_forgotten(tmp_path):
    reading = stream(corpus(tmp_path))
    reading.read_ahead = 40
    list(itertools.islice(iter(reading), 5000))
    assert len(reading.snapshots) < 40
    reading.save_state(tmp_path / "state.pt", 4961)


def test_max_samples_limits_an_epoch(tmp_path):
    rows = plain(itertools.islice(stream(corpus(tmp_path), max_samples=20), 60))
    assert [row[0] for row in rows] == [0] * 20 + [1] * 20 + [2] * 20
    assert len({row[1:] for row in rows}) == 20


def test_an_empty_corpus_does_not_loop_forever(tmp_path):
    (tmp_path / "blank.jsonl").write_text(json.dumps({"text": " "}) + "\n")
    blank = load_dataset("json", data_files=[str(tmp_path / "blank.jsonl")], split="train", streaming=True)
    with pytest.raises(InputError, match="no sequence"):
        next(iter(SequenceStream(blank, lambda texts: {"input_ids": []})))
