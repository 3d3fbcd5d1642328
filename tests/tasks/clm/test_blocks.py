from pathlib import Path

import numpy as np
import pytest
import torch

from hf_gmlp.errors import InputError
from hf_gmlp.tasks.clm.arguments import CLMArguments
from hf_gmlp.tasks.clm.blocks import ByteBlocks, CausalCollator, are_raw_bytes, load_bytes
from hf_gmlp.tasks.text import pack_causal
from hf_gmlp.tokenizer import byte_tokenizer


@pytest.mark.parametrize("block_size", [2, 8, 57, 60])
def test_blocks_match_a_packed_document(tmp_path, block_size):
    text = "Ä paragraph.\n\n\n  And another one, with 漢字 in it...\n"
    assert len(text.encode()) == 56
    (tmp_path / "text").write_text(text, encoding="utf-8")
    expected = pack_causal([text], byte_tokenizer(), block_size, keep_remainder=True)["input_ids"]
    blocks = ByteBlocks(str(tmp_path / "text"), 0, 56, 1, block_size)
    assert [row["input_ids"].tolist() for row in blocks] == [ids.tolist() for ids in expected]


def load(train, validation, block_size, *, parts=("train", "validate"), **arguments):
    files = {"train_file": train, "validation_file": validation}
    arguments = CLMArguments(byte_level=True, **files, **arguments)
    asked = {part: part in parts for part in ("train", "validate")}
    return load_bytes(arguments, byte_tokenizer(), block_size, **asked)


def test_each_file_is_a_document_whose_end_is_held_out(tmp_path):
    data = np.random.default_rng(0).integers(256, size=300, dtype=np.uint8).tobytes()
    for name, part in (("a.txt", data[:100]), ("b", data[100:])):
        (tmp_path / name).write_bytes(part)
    files = [str(tmp_path / name) for name in ("a.txt", "b")]

    def read(blocks):
        return bytes(int(token) - 2 for i in range(len(blocks)) for token in blocks[i]["input_ids"][1:])

    train, held_out = load(files, None, 11, validation_split_percentage=10)
    assert read(train) == data[:90] + data[100:280]
    assert read(held_out) == data[90:100] + data[280:]
    # Every file starts with the end-of-text token, and no block crosses its end.
    firsts = [int(blocks[i]["input_ids"][0]) for blocks in (train, held_out) for i in range(len(blocks))]
    assert [i for i, token in enumerate(firsts) if token == 1] == [0, 9, 27, 28]
    # Each part is the same without the other.
    nothing, alone = load(files, None, 11, validation_split_percentage=10, parts=("validate",))
    assert nothing is None and read(alone) == read(held_out)
    assert load(files, None, 11, validation_split_percentage=10, parts=("train",))[1] is None
    assert read(load(None, files[1:], 11, parts=("validate",))[1]) == data[100:]
    train, held_out = load(files, files[1:], 16, max_train_samples=4, max_eval_samples=5)
    assert (len(train), len(held_out), len(read(held_out))) == (4, 5, 75)


@pytest.mark.parametrize(
    ("files", "expected"),
    [(["enwik8"], True), (["a.txt", "b.xml"], True), (["v1.2.c"], True), ([], False), (["a.txt", "b.parquet"], False),
     (["a.json.gz"], False)],
)  # fmt: skip
def test_which_files_are_read_as_bytes(files, expected):
    assert are_raw_bytes(CLMArguments(byte_level=True, train_file=files)) == expected
    assert not are_raw_bytes(CLMArguments(train_file=files))


@pytest.mark.parametrize(
    ("train", "validation", "words"),
    [("none", None, "none"), ("few", "text", "block of 10"), (None, "text", "no file")],
)
def test_bad_files_are_named(tmp_path, monkeypatch, train, validation, words):
    monkeypatch.chdir(tmp_path)
    for name, size in {"few": 3, "text": 100}.items():
        Path(name).write_bytes(b"a" * size)
    with pytest.raises(InputError, match=words):
        load(train and [train], validation and [validation], 10)


def test_batches_are_padded_on_the_right_and_labels_are_tokens():
    collator = CausalCollator(byte_tokenizer())
    batch = collator([{"input_ids": np.array([1, 5, 0, 7])}, {"input_ids": [8, 9], "epoch": 3}])
    assert batch["input_ids"].tolist() == [[1, 5, 0, 7], [8, 9, 0, 0]]
    # A [PAD] written in the text would be a label; padding is not.
    assert batch["labels"].tolist() == [[-100, 5, 0, 7], [-100, 9, -100, -100]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]
    assert "attention_mask" not in collator([{"input_ids": torch.tensor([1, 2])}])
