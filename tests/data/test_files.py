import bz2
import gzip

import pyarrow
import pytest

from hf_gmlp.data.files import FILE_KINDS, Access, file_kind, load_data, read_files, stream_rows
from hf_gmlp.errors import InputError


@pytest.fixture(params=[False, True], ids=["in memory", "stream"])
def options(request, tmp_path):
    return {"streaming": request.param, "access": Access(cache_dir=str(tmp_path / "cache"))}


@pytest.mark.parametrize(
    ("name", "content", "rows"),
    [
        ("a.csv", 'text\nNA\n"null, None"\n', [{"text": "NA"}, {"text": "null, None"}]),
        ("a.tsv", 'text\tlabel\nsay "no\tNA\n', [{"text": 'say "no', "label": "NA"}]),
        *[("a.csv", f'\ufefftext{s}label\n"a, b; c"{s}x\n', [{"text": "a, b; c", "label": "x"}]) for s in ",;\t"],
    ],
)
def test_tables_keep_words_such_as_null_and_may_have_any_separator(tmp_path, options, name, content, rows):
    (tmp_path / name).write_text(content, encoding="utf-8")
    assert list(read_files([tmp_path / name], **options)) == rows


def test_extensions_determine_the_kind_of_a_file():
    assert file_kind(["a.txt", "b.TXT"]) == "txt" and file_kind(["c.jsonl.gz"]) == "jsonl"
    for names in ([], ["d"], ["d.exe"], ["a.txt", "c.jsonl.gz"]):
        with pytest.raises(InputError, match=f"Cannot read {', '.join(names)}: .* txt, json"):
            file_kind(names)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", b'[{"text": "a"'),
        ("b.txt", b"caf\xe9\n"),
        ("c.txt.gz", gzip.compress(b"some text\n" * 1000)[:20]),
        ("f.csv", b"text\na,b\nc,d\n"),
        # By default, `datasets` would make JSON of the texts: "a" with its quotation marks.
        ("g.jsonl", b'{"text": "a"}\n{"text": 5}\n{"text": "b"}\n'),
        ("h.json", b'[{"text": "a"}, {"text": 5}]'),
        ("i.jsonl", b'{"text": "caf\xe9"}\n'),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_files_that_cannot_be_read_are_refused(tmp_path, options, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=name) as caught:
        read_files([tmp_path / name], **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["a.jsonl", "a.txt"])
def test_a_changed_file_is_read_again(tmp_path, name):
    access = Access(cache_dir=str(tmp_path / "cache"))
    for word in ("one", "two"):
        (tmp_path / name).write_text(f'{{"text": "{word}"}}\n' if name == "a.jsonl" else word)
        assert load_data(files={"train": [tmp_path / name]}, access=access)["train"]["text"][:] == [word]


def test_blank_lines_separate_documents(tmp_path, options):
    text = "\ufeffone\r\ntwo  \n \t\n\n\n  three\u2028still three\n\nfour"
    (tmp_path / "a.txt").write_text(text, encoding="utf-8", newline="")
    (tmp_path / "b.txt.bz2").write_bytes(bz2.compress(b"five\n"))
    paths = [tmp_path / "a.txt", tmp_path / "b.txt.bz2"]
    texts = [row["text"] for row in read_files(paths, **options)]
    assert texts == ["one\ntwo  ", "  three\u2028still three", "four", "five"]


def test_a_format_of_datasets_is_one_line(tmp_path, options, monkeypatch):
    table, path = pyarrow.table({"text": ["one", None], "row": [1, 2]}), tmp_path / "a.arrow"
    with pyarrow.OSFile(str(path), "wb") as file, pyarrow.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    monkeypatch.setitem(FILE_KINDS, "arrow", ("arrow", {}))
    assert list(read_files([path], **options)) == list(stream_rows(str(path))) == table.to_pylist()
    # Another extension of a known format is read in the same way: dates stay text.
    monkeypatch.setitem(FILE_KINDS, "ndjson", FILE_KINDS["jsonl"])
    (tmp_path / "a.ndjson").write_text('{"text": "one", "date": "2024-05-01"}\n')
    assert list(stream_rows(str(tmp_path / "a.ndjson"))) == [{"text": "one", "date": "2024-05-01"}]


def test_missing_data_are_refused(tmp_path):
    with pytest.raises(InputError, match="--dataset_name"):
        load_data()
    with pytest.raises(InputError, match="none en"):
        load_data(dataset_name=str(tmp_path / "none"), dataset_config_name="en")
