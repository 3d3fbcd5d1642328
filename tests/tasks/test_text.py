import itertools
import json

import numpy as np
import pytest
from datasets import Dataset

from hf_gmlp.errors import InputError
from hf_gmlp.tasks import text as text_module
from hf_gmlp.tasks.clm.arguments import CLMArguments
from hf_gmlp.tasks.mlm.arguments import MLMArguments
from hf_gmlp.tasks.text import count_bytes, load_texts, pack, pack_causal, tokenize, tokenize_lines
from hf_gmlp.training.files import BATCH_BYTES, Access

from ..samples import documents


def lists(rows):
    assert all(row.dtype == np.int32 for row in rows)
    return [row.tolist() for row in rows]


def test_pack_joins_documents_and_drops_only_the_end(word_tokenizer):
    texts = documents([3, 1, 9, 4])
    packed = pack(texts, word_tokenizer, 7)
    expected = []
    for text in texts:
        expected += [*word_tokenizer.convert_tokens_to_ids(text.split()), 3]
    expected = expected[:-1]
    assert [len(ids) for ids in packed["input_ids"]] == [7] * 4
    assert all(ids[0] == 2 and ids[-1] == 3 for ids in packed["input_ids"])
    assert [token for ids in lists(packed["input_ids"]) for token in ids[1:-1]] == expected[: 4 * 5]

    kept = pack(texts, word_tokenizer, 8, keep_remainder=True)
    assert [token for ids in kept["input_ids"] for token in ids[1:-1]] == expected
    assert [len(ids) for ids in kept["input_ids"]] == [8, 8, 8, 4]


def test_blank_documents_leave_no_trace(word_tokenizer):
    assert lists(pack(["", "w1 w2", " \n ", "w3", None], word_tokenizer, 6)["input_ids"]) == [[2, 6, 7, 3, 8, 3]]
    assert pack(["", " "], word_tokenizer, 6, offsets=True) == {"input_ids": [], "offset_mapping": []}


def test_lines_are_truncated_and_not_joined(word_tokenizer):
    lines = tokenize_lines(["w0 w1 w2 w3", "", "w4", None], word_tokenizer, 5, offsets=True)
    assert lists(lines["input_ids"]) == [[2, 5, 6, 7, 3], [2, 9, 3]]
    assert lists(lines["offset_mapping"])[1] == [[0, 0], [0, 2], [0, 0]]


def test_causal_blocks_predict_every_token_once(word_tokenizer):
    texts = ["", *documents([3, 1, 9, 4]), " \n"]
    stream = [id_ for text in texts[1:-1] for id_ in (3, *word_tokenizer.convert_tokens_to_ids(text.split()))]
    # 20 predictions: with blocks of 6, four full ones.
    for block_size, kept_lengths in ((6, [6] * 4 + [1]), (7, [7, 7, 7, 3]), (21, [21]), (50, [21])):
        kept = lists(pack_causal(texts, word_tokenizer, block_size, keep_remainder=True)["input_ids"])
        kept_lengths = [length for length in kept_lengths if length > 1]
        assert [len(ids) for ids in kept] == kept_lengths
        assert kept[0][0] == stream[0] and [id_ for ids in kept for id_ in ids[1:]] == stream[1:]
        assert all(before[-1] == after[0] for before, after in itertools.pairwise(kept))
        full = lists(pack_causal(texts, word_tokenizer, block_size)["input_ids"])
        assert full == [ids for ids in kept if len(ids) == block_size]
    assert pack_causal(["", None], word_tokenizer, 6) == {"input_ids": []}
    assert count_bytes(["", None, " \n", "Ä b", "c"]) == 5


def test_causal_stream_gives_the_same_blocks(word_tokenizer):
    data = {split: Dataset.from_dict({"text": documents([3, 1, 9, 4, 20])}) for split in ("train", "validation")}
    train, validation = tokenize(data, word_tokenizer, 7, CLMArguments(), causal=True)
    assert train.column_names == validation.column_names == ["input_ids"]
    stream, _ = tokenize(
        data | {"train": data["train"].to_iterable_dataset()}, word_tokenizer, 7, CLMArguments(), causal=True
    )
    rows = sorted(row["input_ids"].tolist() for row in itertools.islice(stream, len(train)))
    assert rows == sorted(row["input_ids"].tolist() for row in train)
    with pytest.raises(InputError, match="one sequence of 90 tokens: give more text, or lower --block_size"):
        tokenize(data, word_tokenizer, 90, CLMArguments(), causal=True)


@pytest.mark.parametrize("line_by_line", [False, True])
def test_a_stream_gives_the_same_sequences(word_tokenizer, line_by_line):
    data = {split: Dataset.from_dict({"text": documents([3, 1, 9, 4, 20])}) for split in ("train", "validation")}
    arguments = MLMArguments(line_by_line=line_by_line, max_train_samples=4)
    train, validation = tokenize(data, word_tokenizer, 7, arguments)
    assert len(train) == 4 and sum(map(len, validation["input_ids"])) >= sum(map(len, train["input_ids"]))
    streamed = {"train": data["train"].to_iterable_dataset(), "validation": data["validation"]}
    stream, validation_again = tokenize(streamed, word_tokenizer, 7, arguments)
    rows = sorted(row["input_ids"].tolist() for row in itertools.islice(stream, 4))
    assert rows == sorted(row["input_ids"].tolist() for row in train)
    assert [row["input_ids"].tolist() for row in validation_again] == [row["input_ids"].tolist() for row in validation]


def test_a_part_that_is_not_asked_for_is_none(word_tokenizer):
    data = Dataset.from_dict({"text": documents([3, 9])})
    train, validation = tokenize({"train": data}, word_tokenizer, 7, MLMArguments())
    assert (len(train), validation) == (2, None)
    train, validation = tokenize({"validation": data}, word_tokenizer, 7, MLMArguments(whole_word_mask=True))
    assert train is None and validation[2]["offset_mapping"].shape == (5, 2)


@pytest.mark.slow
def test_batches_are_a_thousand_texts_or_fewer_long_ones(word_tokenizer, monkeypatch):
    sizes = []

    def packed(documents, *args, **options):
        documents = list(documents)
        sizes.append(len(documents))
        return pack(documents, *args, **options)

    monkeypatch.setattr(text_module, "pack", packed)
    for text, number in (("w1 w2 w3", 2500), ("w1 w2 " * (BATCH_BYTES // 20), 7)):
        tokenize({"validation": Dataset.from_dict({"text": [text] * number})}, word_tokenizer, 500, MLMArguments())
    assert sizes == [1000, 1000, 500, 3, 3, 1]


def load(tmp_path, train=None, validation=None, parts=None, **arguments):
    """load_texts of single files with a cache of its own."""
    files = {f"{split}_file": path and [str(path)] for split, path in (("train", train), ("validation", validation))}
    access = Access(cache_dir=str(tmp_path / "cache"))
    return load_texts(MLMArguments(**files, **arguments), access=access, **(parts or {}))


def write(path, texts):
    if path.suffix == ".txt":
        path.write_text("\n\n".join(texts))
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps({"text": text, "other": 1}) + "\n" for text in texts))
    elif path.suffix == ".json":
        path.write_text(json.dumps([{"text": text} for text in texts]))
    else:
        data = Dataset.from_dict({"text": texts})
        (data.to_csv if path.suffix == ".csv" else data.to_parquet)(path)
    return str(path)


@pytest.mark.parametrize("ending", ["txt", "json", "jsonl", "csv", "parquet"])
@pytest.mark.parametrize("streaming", [False, True])
def test_files_of_every_kind(tmp_path, ending, streaming):
    texts = ["first line\nsecond line", "another document"]
    train = write(tmp_path / f"train.{ending}", texts)
    validation = write(tmp_path / f"validation.{ending}", ["held out"])
    loaded = load(tmp_path, train, validation, streaming=streaming)
    assert [row["text"] for row in loaded["train"]] == texts
    assert [row["text"] for row in loaded["validation"]] == ["held out"]
    assert set(next(iter(loaded["train"]))) == {"text"}


def test_held_out_documents_are_not_trained_on(tmp_path):
    texts = [f"document {i}" for i in range(40)]
    path = write(tmp_path / "train.jsonl", texts)

    def parts(seed=42, **options):
        ask = {name: options.pop(name) for name in ("train", "validate") if name in options}
        loaded = load(tmp_path, path, parts=ask | {"seed": seed}, **options)
        return [[row["text"] for row in rows] for rows in loaded.values()]

    train, validation = parts(validation_split_percentage=25, seed=1)
    assert len(validation) == 10 and sorted(train + validation) == sorted(texts)
    assert parts(validation_split_percentage=25, seed=1) == [train, validation]
    assert parts(validation_split_percentage=25, seed=2)[1] != validation
    train, validation = parts(streaming=True, max_eval_samples=7)
    assert len(validation) == 7 and train + validation == texts[7:] + texts[:7]
    # Each part is the same without the other.
    for options in ({"seed": 1}, {"streaming": True, "max_eval_samples": 7}):
        both = parts(**options)
        assert [parts(validate=False, **options), parts(train=False, **options)] == [both[:1], both[1:]]


def test_files_that_are_not_needed_are_not_read(tmp_path):
    here, gone = write(tmp_path / "here.jsonl", ["a", "b"]), tmp_path / "gone.jsonl"
    assert len(load(tmp_path, gone, here, {"train": False})["validation"]) == 2
    assert list(load(tmp_path, None, here, {"train": False})) == ["validation"]
    assert list(load(tmp_path, here, gone, {"validate": False})) == ["train"]
    with pytest.raises(InputError, match="There are no training data"):
        load(tmp_path, None, here)


@pytest.mark.parametrize("streaming", [False, True])
def test_numbers_are_text_and_nulls_are_none(tmp_path, streaming):
    rows = {
        "a.csv": "text\n007\n1.50\n",
        "a.jsonl": '{"text": 7}\n{"text": null}\n',
        "b.jsonl": '{"text": 3}\n{"text": "b"}\n',
    }
    for name, expected in (("a.csv", ["007", "1.50"]), ("a.jsonl", ["7", None]), ("b.jsonl", ["3", "b"])):
        (tmp_path / name).write_text(rows[name])
        loaded = load(tmp_path, tmp_path / name, tmp_path / name, streaming=streaming)
        assert [[row["text"] for row in rows] for rows in loaded.values()] == [expected, expected]


@pytest.mark.parametrize("streaming", [False, True])
def test_columns_without_text_are_refused(tmp_path, word_tokenizer, streaming):
    path = tmp_path / "data.jsonl"
    for content, message in (
        ('{"text": ["a"]}\n', "data has a list in it: name text with --text_column"),
        ('{"text": " "}\n{"text": null}\n', "text is blank|not give a single sequence"),
    ):
        path.write_text(content)
        with pytest.raises(InputError, match=message):
            texts = load(tmp_path, path, path, {"validate": not streaming}, streaming=streaming)
            train, _ = tokenize(texts, word_tokenizer, 8, MLMArguments())
            next(iter(train))
    if streaming:
        with pytest.raises(InputError, match="no text after the first 1000, .* lower --max_eval_samples"):
            load(tmp_path, path, streaming=True)


def test_whole_words_need_a_tokenizer_with_offsets(word_tokenizer, monkeypatch):
    monkeypatch.setattr(type(word_tokenizer), "is_fast", False)
    with pytest.raises(InputError, match="leave out --whole_word_mask"):
        tokenize({}, word_tokenizer, 8, MLMArguments(whole_word_mask=True))


def test_line_by_line_reads_lines(tmp_path):
    path = write(tmp_path / "train.txt", ["one\ntwo", "three"])
    loaded = load(tmp_path, path, path, line_by_line=True)
    assert [row["text"] for row in loaded["train"]] == ["one", "two", "three"]


def test_bad_data_are_named(tmp_path, word_tokenizer):
    good = write(tmp_path / "good.jsonl", ["a", "b"])
    cases = [
        ({}, "Name the data"),
        ({"train": tmp_path / "none.txt"}, "no file .*none.txt"),
        ({"train": good, "text_column": "body"}, "no column 'body' in the train data but text, other"),
        ({"train": good, "validation_split_percentage": 99}, "2 training samples are too few to hold some out"),
    ]
    for options, message in cases:
        with pytest.raises(InputError, match=message):
            load(tmp_path, **options)
    texts = {"train": Dataset.from_dict({"text": ["w1"]}), "validation": Dataset.from_dict({"text": ["w1"]})}
    with pytest.raises(InputError, match="does not fill one sequence of 8"):
        tokenize(texts, word_tokenizer, 8, MLMArguments())
