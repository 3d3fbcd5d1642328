"""The command `hf-gmlp train-tokenizer`."""

import json
from pydoc_data.topics import topics

import pytest
from transformers import AutoTokenizer

from hf_gmlp.errors import InputError
from hf_gmlp.tokenizer import train_tokenizer
from hf_gmlp.tools.train_tokenizer import read_texts
from hf_gmlp_cli import main

pytestmark = pytest.mark.slow


def test_documents_are_read_from_files(tmp_path):
    """Documents without text are skipped, and every line of a text file is a document."""
    rows = [{"text": "one, two"}, {"text": None}, {"text": "línea\nwith 日本"}, {"text": ""}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert list(read_texts([tmp_path / "a.jsonl"])) == ["one, two", "línea\nwith 日本"]
    (tmp_path / "a.txt").write_bytes(b"  one\n\ntwo \r\nthree")
    assert list(read_texts([tmp_path / "a.txt"] * 2)) == ["  one", "two ", "three"] * 2


@pytest.mark.parametrize("streaming", [True, False])
def test_documents_are_read_from_a_data_set(tmp_path, streaming, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "train.jsonl").write_text('{"body": "one"}\n{"body": null}\n{"body": "two"}\n')
    (folder / "validation.jsonl").write_text('{"body": "three"}\n')
    options = {"dataset_name": str(folder), "streaming": streaming}
    assert list(read_texts(text_column_name="body", **options)) == ["one", "two"]
    assert list(read_texts(text_column_name="body", split="validation", **options)) == ["three"]
    with pytest.raises(InputError, match="--text_column_name"):
        list(read_texts(**options))
    with pytest.raises(InputError, match="--split"):
        list(read_texts(split="nosplit", **options))


def test_the_command_trains_and_saves_a_tokenizer(tmp_path, capsys):
    texts = [text for text in topics.values() if text.isascii()]
    (tmp_path / "corpus.jsonl").write_text("\n".join(json.dumps({"body": text}) for text in texts))
    folder = tmp_path / "new" / "tokenizer"
    flags = ["--text_column_name", "body", "--vocab_size", "500", "--max_length", "64", "--max_samples", "20"]
    main(["train-tokenizer", str(tmp_path / "corpus.jsonl"), *flags, "--output_dir", str(folder)])
    output = capsys.readouterr().out
    loaded = AutoTokenizer.from_pretrained(folder)
    direct = train_tokenizer(texts[:20], vocab_size=500)
    assert loaded.get_vocab() == direct.get_vocab()
    assert loaded.model_max_length == 64
    assert "500 tokens" in output and "20 documents" in output


def test_command_fails_before_reading_and_overwrites_nothing(tmp_path, capsys):
    (tmp_path / "tokenizer.json").write_text("precious")
    for arguments, words in (
        (["corpus.txt", "--output_dir", tmp_path], "already holds a tokenizer"),
        (["--output_dir", tmp_path / "new"], "--dataset_name"),
        (["corpus.txt", "--dataset_name", "x", "--output_dir", tmp_path / "new"], "--dataset_name"),
        ([__file__, "--output_dir", tmp_path / "new"], "pass files that all end in"),
    ):
        with pytest.raises(SystemExit):
            main(["train-tokenizer", *map(str, arguments)])
        assert words in capsys.readouterr().err
    assert (tmp_path / "tokenizer.json").read_text() == "precious"
