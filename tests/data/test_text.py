import itertools
import json

import pytest
from datasets import Dataset, DatasetDict
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from hf_gmlp.data.text import count_bytes, load_texts, pack, pack_causal, tokenize, tokenize_lines
from hf_gmlp.errors import InputError

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [f"w{i}" for i in range(200)]


@pytest.fixture(scope="module")
def tokenizer():
    """One token per word."""
    tokenizer = Tokenizer(models.WordLevel({token: i for i, token in enumerate(SPECIAL + WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {"pad_token": 0, "unk_token": 1, "cls_token": 2, "sep_token": 3, "mask_token": 4}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **{name: SPECIAL[i] for name, i in names.items()})


def documents(sizes):
    words = iter(WORDS)
    return [" ".join(next(words) for _ in range(size)) for size in sizes]


def test_pack_lays_documents_end_to_end_and_loses_nothing_but_the_end(tokenizer):
    texts = documents([3, 1, 9, 4])
    packed = pack(texts, tokenizer, 7)
    expected = []
    for text in texts:
        expected += [*tokenizer.convert_tokens_to_ids(text.split()), 3]
    expected = expected[:-1]
    assert [len(ids) for ids in packed["input_ids"]] == [7] * 4
    assert all(ids[0] == 2 and ids[-1] == 3 for ids in packed["input_ids"])
    assert [token for ids in packed["input_ids"] for token in ids[1:-1]] == expected[: 4 * 5]
    for ids, mask in zip(packed["input_ids"], packed["special_tokens_mask"]):
        assert mask == [int(token in (2, 3)) for token in ids]

    kept = pack(texts, tokenizer, 8, keep_remainder=True)
    assert [token for ids in kept["input_ids"] for token in ids[1:-1]] == expected
    assert [len(ids) for ids in kept["input_ids"]] == [8, 8, 8, 4]


def test_blank_documents_leave_no_trace(tokenizer):
    assert pack(["", "w1 w2", " \n ", "w3", None], tokenizer, 6)["input_ids"] == [[2, 6, 7, 3, 8, 3]]
    assert pack(["", " "], tokenizer, 6) == {"input_ids": [], "special_tokens_mask": []}


def test_lines_are_truncated_not_joined(tokenizer):
    lines = tokenize_lines(["w0 w1 w2 w3", "", "w4"], tokenizer, 5)
    assert lines == {"input_ids": [[2, 5, 6, 7, 3], [2, 9, 3]], "special_tokens_mask": [[1, 0, 0, 0, 1], [1, 0, 1]]}


def test_causal_blocks_predict_every_token_once(tokenizer):
    texts = ["", *documents([3, 1, 9, 4]), " \n"]
    stream = [id_ for text in texts[1:-1] for id_ in (3, *tokenizer.convert_tokens_to_ids(text.split()))]
    # 20 predictions: with blocks of 6, four full ones.
    for block_size, kept_lengths in ((6, [6] * 4 + [1]), (7, [7, 7, 7, 3]), (21, [21]), (50, [21])):
        kept = pack_causal(texts, tokenizer, block_size, keep_remainder=True)["input_ids"]
        kept_lengths = [length for length in kept_lengths if length > 1]
        assert [len(ids) for ids in kept] == kept_lengths
        assert kept[0][0] == stream[0] and [id_ for ids in kept for id_ in ids[1:]] == stream[1:]
        assert all(before[-1] == after[0] for before, after in itertools.pairwise(kept))
        full = pack_causal(texts, tokenizer, block_size)["input_ids"]
        assert full == [ids for ids in kept if len(ids) == block_size]
    assert pack_causal(["", None], tokenizer, 6) == {"input_ids": []}
    assert count_bytes(["", None, " \n", "Ä b", "c"]) == 5


def test_causal_stream_gives_the_same_blocks(tokenizer):
    data = {split: Dataset.from_dict({"text": documents([3, 1, 9, 4, 20])}) for split in ("train", "validation")}
    train, validation = tokenize(DatasetDict(data), tokenizer, 7, causal=True)
    assert train.column_names == validation.column_names == ["input_ids"]
    stream, _ = tokenize(data | {"train": data["train"].to_iterable_dataset()}, tokenizer, 7, causal=True)
    rows = sorted(row["input_ids"].tolist() for row in itertools.islice(stream, len(train)))
    assert rows == sorted(train["input_ids"])
    with pytest.raises(InputError, match="one sequence of 90 tokens: give more text, or lower --block_size"):
        tokenize(DatasetDict(data), tokenizer, 90, causal=True)


@pytest.mark.parametrize("line_by_line", [False, True])
def test_a_stream_gives_the_same_sequences(tokenizer, line_by_line):
    data = DatasetDict(
        {split: Dataset.from_dict({"text": documents([3, 1, 9, 4, 20])}) for split in ("train", "validation")}
    )
    train, validation = tokenize(data, tokenizer, 7, line_by_line=line_by_line, max_train_samples=4)
    assert len(train) == 4 and sum(map(len, validation["input_ids"])) >= sum(map(len, train["input_ids"]))
    streamed = {"train": data["train"].to_iterable_dataset(), "validation": data["validation"]}
    stream, validation_again = tokenize(streamed, tokenizer, 7, line_by_line=line_by_line, max_train_samples=4)
    rows = sorted(row["input_ids"].tolist() for row in itertools.islice(stream, 4))
    assert rows == sorted(train["input_ids"])
    assert list(validation_again["input_ids"]) == list(validation["input_ids"])


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
    loaded = load_texts(
        train_files=[train], validation_files=[validation], streaming=streaming, cache_dir=str(tmp_path / "cache")
    )
    assert [row["text"] for row in loaded["train"]] == texts
    assert [row["text"] for row in loaded["validation"]] == ["held out"]
    assert set(next(iter(loaded["train"]))) == {"text"}


def test_held_out_documents_are_no_training_documents(tmp_path):
    texts = [f"document {i}" for i in range(40)]
    path = write(tmp_path / "train.jsonl", texts)

    def load(**options):
        loaded = load_texts(train_files=[path], cache_dir=str(tmp_path / "cache"), **options)
        return [[row["text"] for row in loaded[split]] for split in ("train", "validation")]

    train, validation = load(validation_split_percentage=25, seed=1)
    assert len(validation) == 10 and sorted(train + validation) == sorted(texts)
    assert load(validation_split_percentage=25, seed=1) == [train, validation]
    assert load(validation_split_percentage=25, seed=2)[1] != validation
    train, validation = load(streaming=True, max_eval_samples=7)
    assert len(validation) == 7 and train + validation == texts[7:] + texts[:7]


def test_line_by_line_reads_lines(tmp_path):
    path = write(tmp_path / "train.txt", ["one\ntwo", "three"])
    loaded = load_texts(
        train_files=[path], validation_files=[path], line_by_line=True, cache_dir=str(tmp_path / "cache")
    )
    assert [row["text"] for row in loaded["train"]] == ["one", "two", "", "three"]


def test_bad_data_is_named(tmp_path, tokenizer):
    good = write(tmp_path / "good.jsonl", ["a", "b"])
    (tmp_path / "empty.txt").touch()
    (tmp_path / "data.xyz").write_text("x")
    (tmp_path / "broken.json").write_text('[{"text": "a"')
    cases = [
        ({}, "Name the data"),
        ({"dataset_name": "c4", "train_files": [good]}, "either --dataset_name"),
        ({"train_files": [str(tmp_path / "none.txt")]}, "no file .*none.txt"),
        ({"train_files": [str(tmp_path / "empty.txt")]}, "empty.txt is empty"),
        ({"train_files": [str(tmp_path / "data.xyz")]}, "data.xyz is of no known kind"),
        ({"train_files": [good, write(tmp_path / "v.txt", ["a"])]}, "of one kind"),
        ({"train_files": [str(tmp_path / "broken.json")]}, "broken.json cannot be read as json"),
        ({"train_files": [str(tmp_path / "broken.json")], "streaming": True}, "cannot be read as json"),
        ({"train_files": [good], "text_column": "body"}, "no column 'body' but text, other"),
    ]
    for options, message in cases:
        with pytest.raises(InputError, match=message):
            load_texts(**options, cache_dir=str(tmp_path / "cache"))
    texts = {"train": Dataset.from_dict({"text": ["w1"]}), "validation": Dataset.from_dict({"text": ["w1"]})}
    with pytest.raises(InputError, match="percentage is above 0 and below 100, got 100"):
        load_texts(train_files=[good], validation_split_percentage=100, cache_dir=str(tmp_path / "cache"))
    with pytest.raises(InputError, match="does not fill one sequence of 8"):
        tokenize(texts, tokenizer, 8)
