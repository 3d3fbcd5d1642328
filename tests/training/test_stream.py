"""Streams yield every document once per epoch for any number of processes and workers, also after a resume."""

import itertools
from collections import Counter

import pytest
from datasets import load_dataset

from hf_gmlp.data.documents import load_texts
from hf_gmlp.data.files import Access
from hf_gmlp.data.source import Source
from hf_gmlp.errors import InputError
from hf_gmlp.tasks.language_modeling import tokenize
from hf_gmlp.training.arguments import RunArguments
from hf_gmlp.training.stream import StreamLoader

from ..samples import write, write_rows

DOCUMENTS = 48


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Four files in which document i is the word "wi" seven times."""
    folder = tmp_path_factory.mktemp("files")
    for part in range(4):
        rows = [{"text": " ".join([f"w{i}"] * 7)} for i in range(DOCUMENTS) if i % 4 == part]
        write_rows(folder / f"{part}.jsonl", rows)
    return [str(path) for path in sorted(folder.iterdir())]


@pytest.fixture
def loader(files, word_tokenizer, tmp_path, monkeypatch):
    """loader(process, processes, workers) returns the batches of a process, lists of the words of their rows."""
    # The buffer is small, since a resumed run loses the sequences in it.
    monkeypatch.setattr("hf_gmlp.tasks.language_modeling.SHUFFLE_BUFFER", 2)
    source = Source({"train": files, "validation": files[:1]}, access=Access(cache_dir=str(tmp_path)))
    texts = load_texts(source, streaming=True, validate=False)
    stream, _ = tokenize(texts, word_tokenizer, 5, seed=3)

    def make(process=0, processes=1, workers=0):
        args = RunArguments(str(tmp_path), use_cpu=True, per_device_train_batch_size=4, dataloader_num_workers=workers)
        # A launcher would set these.
        args.__class__ = type("Args", (RunArguments,), {"process_index": process, "world_size": processes})
        return StreamLoader(stream, lambda rows: [word for row in rows for word in row["input_ids"].tolist()], args)

    return make


def epoch(loader, number=0):
    """Return the words of the batches up to the end of an epoch."""
    return [
        word for batch in itertools.takewhile(lambda _: loader.epoch <= number, loader) for word in batch if word > 4
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "workers"), [(1, 0), (3, 0), (8, 0), (2, 2)])
def test_every_document_comes_once_in_an_epoch(loader, processes, workers):
    """This also holds if the files cannot be split evenly or are fewer than the processes."""
    counts = Counter(word for process in range(processes) for word in epoch(loader(process, processes, workers)))
    assert counts == {5 + i: 7 for i in range(DOCUMENTS)}


def test_epochs_have_orders_of_their_own(loader):
    first = loader()
    epochs = [epoch(first), epoch(loader())]
    first.epoch = 1
    epochs.append(epoch(first, 1))
    assert epochs[0] == epochs[1] != epochs[2] and sorted(epochs[0]) == sorted(epochs[2])


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_resumed_stream_continues_where_it_stopped(loader, workers, tmp_path, caplog):
    cut = loader(workers=workers)
    before = [word for batch in itertools.islice(cut, 9) for word in batch if word > 4]
    cut.save(tmp_path, 0)
    resumed = loader(workers=workers)
    resumed.load(tmp_path, 0)
    after = epoch(resumed)
    counts = Counter(before) + Counter(after)
    assert max(counts.values()) == 7 and len(before) + len(after) > 6 * DOCUMENTS
    # With a different number of readers, the stream restarts and logs that.
    for processes, readers in ((2, workers), (1, workers + 1)):
        other = loader(0, processes, readers)
        assert other.num_workers == readers
        other.load(tmp_path, 0)
        assert f"{processes} process(es) with {readers} worker(s)" in caplog.text


def test_an_empty_corpus_does_not_loop_forever(tmp_path):
    path = write_rows(tmp_path / "blank.jsonl", [{"text": " "}])
    blank = load_dataset("json", data_files=[str(path)], split="train", streaming=True)
    blank = blank.filter(lambda row: bool(row["text"].strip()))
    with pytest.raises(InputError, match="no sequence"):
        next(iter(StreamLoader(blank, list, RunArguments(str(tmp_path), use_cpu=True))))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_broken_line_far_behind_stops_the_run(tmp_path, workers):
    path = write(tmp_path / "a.jsonl", '{"text": "w1"}\n' * 4000 + '{"text": "w\n')
    broken = load_dataset("json", data_files=[path], split="train", streaming=True)
    args = RunArguments(str(tmp_path), use_cpu=True, dataloader_num_workers=workers)
    with pytest.raises(InputError, match="cannot be read as text"):
        for _ in itertools.islice(StreamLoader(broken, list, args), 2000):
            pass
