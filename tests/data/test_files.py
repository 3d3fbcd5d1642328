import bz2
import csv
import gzip
import io
import json
import lzma

import pyarrow
import pytest
import zstandard
from datasets import ClassLabel, Dataset, Features, Value
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hf_gmlp.data.files import FILE_KINDS, Access, file_kind, read_files, stream_rows
from hf_gmlp.data.source import Source
from hf_gmlp.errors import InputError


@pytest.fixture(params=[False, True], ids=["in memory", "stream"])
def options(request, tmp_path):
    return {"streaming": request.param, "access": Access(cache_dir=str(tmp_path / "cache"))}


@pytest.mark.parametrize(
    ("name", "content", "rows"),
    [
        ("a.csv", 'text\nNA\n"null, None"\n', [{"text": "NA"}, {"text": "null, None"}]),
        ("a.tsv", 'text\tlabel\nsay "no\tNA\n', [{"text": 'say "no', "label": "NA"}]),
        (
            "a.csv",
            ",text\n\n0,a\n ,\n1\n",
            [{"Unnamed: 0": a, "text": b} for a, b in (("0", "a"), (" ", ""), ("1", ""))],
        ),
        ("a.csv", "text\na\n\nb", [{"text": "a"}, {"text": ""}, {"text": "b"}]),
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
        assert Source({"train": [tmp_path / name]}, access=access).load()["train"]["text"][:] == [word]


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
        Source().load()
    with pytest.raises(InputError, match="none en: there is no such folder, and on the Hub: "):
        Source(dataset_name=str(tmp_path / "none"), dataset_config_name="en").load()


def read(path, access):
    """Return the rows that training and predict read, the latter as text."""
    trained = read_files([path], access=access).to_list()
    assert list(read_files([path], streaming=True)) == trained
    return trained, [as_text(row) for row in stream_rows(str(path))]


def as_text(value):
    if isinstance(value, dict):
        return {key: as_text(item) for key, item in value.items()}
    if isinstance(value, list):
        return [as_text(item) for item in value]
    return value if value is None else str(value)


def filled(rows):
    """Add the columns that other rows have."""
    names = dict.fromkeys(name for row in rows for name in row)
    return [dict.fromkeys(names) | row for row in rows]


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=9)
NUMBERS = st.one_of(st.integers(-(2**70), 2**70), st.floats(allow_nan=False), st.booleans())
DATES = st.sampled_from(["2024-01-01", "2024-01-01T10:00:00Z", "NA", "null", "1.0", "007"])
SCALARS = st.one_of(st.none(), TEXTS, NUMBERS, DATES)
FIELDS = {"data": st.lists(TEXTS, min_size=1, max_size=2), "label": SCALARS, "number": NUMBERS}
ROWS = st.lists(st.fixed_dictionaries({"text": TEXTS}, optional=FIELDS), min_size=1, max_size=4)
EXAMPLES = settings(
    deadline=None, max_examples=60, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@EXAMPLES
@given(ROWS, st.sampled_from(["lines", "list", "data"]))
def test_training_and_predict_read_the_same_json(tmp_path_factory, rows, form):
    folder = tmp_path_factory.mktemp("json")
    content = {"lines": "\n".join(map(json.dumps, rows)), "list": json.dumps(rows), "data": json.dumps({"data": rows})}
    (folder / "a.jsonl").write_text(content[form], encoding="utf-8")
    trained, predicted = read(folder / "a.jsonl", Access(str(folder)))
    assert trained == filled(predicted) and predicted == [as_text(row) for row in rows]


@EXAMPLES
@given(st.lists(st.tuples(TEXTS, SCALARS), min_size=1, max_size=4))
def test_training_and_predict_read_the_same_csv(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("csv")
    with open(folder / "a.csv", "w", encoding="utf-8", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows([("text", "label"), *rows])
    trained, predicted = read(folder / "a.csv", Access(str(folder)))
    cells = ["" if value is None else str(value) for row in rows for value in row]
    assert trained == predicted and [value for row in trained for value in row.values()] == cells


@pytest.mark.parametrize(
    ("content", "rows"),
    [
        # Rows of JSON lines are never searched for rows.
        ('{"data": [1, 2]}\n{"data": [3]}', [{"data": ["1", "2"]}, {"data": ["3"]}]),
        ('{"paragraphs": ["a"]}\n{"paragraphs": ["b"]}', [{"paragraphs": ["a"]}, {"paragraphs": ["b"]}]),
        ('{"x": 1}\n{"x": 2.5, "y": {"z": null}}', [{"x": "1", "y": None}, {"x": "2.5", "y": {"z": None}}]),
        ('{"x": 0}\n\n{"x": "1"}', [{"x": "0"}, {"x": "1"}]),
        ('{"data": [{"x": 1}, {"x": "1"}], "version": "2"}', [{"x": "1"}, {"x": "1"}]),
        ('{"text": "one row", "data": [1, 2]}', [{"text": "one row", "data": ["1", "2"]}]),
        ('{"x": "2024-01-01"}\n{"x": "2024-01-02"}', [{"x": "2024-01-01"}, {"x": "2024-01-02"}]),
        ('["one", "two"]', [{"text": "one"}, {"text": "two"}]),
    ],
)
def test_values_stay_as_they_are_in_the_file(tmp_path, content, rows):
    (tmp_path / "a.jsonl").write_text(content)
    trained, predicted = read(tmp_path / "a.jsonl", Access(str(tmp_path)))
    assert trained == rows == filled(predicted)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", '{"text": {"0": "a", "1": "b"}, "label": {"0": 1, "1": 0}}', 'orient="records"'),
        ("a.json", '{"text": {"0": "a"}}', 'orient="records"'),
        ("a.json", '{"text": ["a", "b"], "label": [1, 0]}', 'orient="records"'),
        ("a.json", '[["a", 1], ["b", 0]]', 'row 1 is a list: .*orient="records"'),
        ("a.jsonl", '{"text": "a"}\n[1]', "row 2 is a list"),
        ("a.jsonl", '{"text": "a"}\n\n{"text": "b"}\n{"text": \n', "line 4: Expecting value"),
        (
            "a.jsonl",
            '{"text": "a"}\n{"text": ["b"]}',
            "Only some rows of .* have lists or objects in the column 'text'",
        ),
        ("a.json", "", "a.json has no rows"),
        ("a.jsonl", "\n", "a.jsonl has no rows"),
        ("a.csv", "text,label\n", "a.csv has no rows"),
        ("a.csv", "text,label\na,b\nc,d,e\n", "line 3 has 3 cells"),
        ("a.csv", 'text,label\n"a,b\nc,d\n', "unexpected end of data"),
        ("a.csv", "text,text\na,b\n", "two columns have the same name"),
    ],
)
def test_other_json_and_empty_files_are_refused(tmp_path, options, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=message):
        read_files([tmp_path / name], **options)


def test_later_rows_of_a_long_file_may_have_other_columns(tmp_path, options, monkeypatch):
    monkeypatch.setattr("hf_gmlp.data.files.CHUNK_ROWS", 2)
    rows = [{"text": f"t{number}"} | ({"extra": [str(number)]} if number > 6 else {}) for number in range(9)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    read_rows = list(read_files([tmp_path / "a.jsonl"], **options))
    assert [{name: value for name, value in row.items() if value is not None} for row in read_rows] == rows


COMPRESS = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zst": zstandard.compress}


@pytest.mark.parametrize("kind", COMPRESS)
def test_compressed_files_are_recognized_by_their_content(tmp_path, options, kind):
    lines = "".join(f'{{"text": "\xe9 {number}"}}\n' for number in range(5000)).encode()
    content = COMPRESS[kind](lines)
    for name in (f"a.jsonl.{kind}", "a.jsonl", "a.jsonl.gz"):
        (tmp_path / name).write_bytes(content)
        assert [row["text"] for row in read_files([tmp_path / name], **options)] == [f"\xe9 {i}" for i in range(5000)]
    for size in (len(content) // 2, len(content) - 5):
        (tmp_path / f"b.txt.{kind}").write_bytes(content[:size])
        with pytest.raises(InputError, match="cannot be read"):
            list(read_files([tmp_path / f"b.txt.{kind}"], **options))
        with pytest.raises(InputError, match="cannot be read"):
            list(stream_rows(str(tmp_path / f"b.txt.{kind}")))
    table = io.StringIO("sep=;\na;b\n1;2,3\n").read().encode()
    (tmp_path / f"a.csv.{kind}").write_bytes(COMPRESS[kind](table))
    assert list(read_files([tmp_path / f"a.csv.{kind}"], **options)) == [{"a": "1", "b": "2,3"}]


def test_patterns_are_expanded(tmp_path, options):
    for name in ("b", "a", "[c]"):
        (tmp_path / f"{name}.txt").write_text(name)
    assert [row["text"] for row in read_files([tmp_path / "?.txt"], **options)] == ["a", "b"]
    assert [row["text"] for row in stream_rows(str(tmp_path / "*.txt"))] == ["[c]", "a", "b"]
    assert [row["text"] for row in stream_rows(str(tmp_path / "[c].txt"))] == ["[c]"]
    with pytest.raises(InputError, match=r"No file matches .*\*.jsonl"):
        read_files([tmp_path / "*.jsonl"], **options)


def test_other_encodings_are_offered_and_read(tmp_path, options):
    (tmp_path / "a.csv").write_text("text;label\nStraße;für\n", encoding="cp1252")
    for read_rows in (
        lambda **o: read_files([tmp_path / "a.csv"], **options, **o),
        lambda **o: stream_rows(str(tmp_path / "a.csv"), **o),
    ):
        with pytest.raises(InputError, match="a.csv .* not UTF-8: .*--encoding, such as cp1252"):
            list(read_rows())
        assert list(read_rows(encoding="cp1252")) == [{"text": "Straße", "label": "für"}]
        with pytest.raises(InputError, match="no encoding 'none'"):
            list(read_rows(encoding="none"))


def test_classes_of_parquet_have_their_names(tmp_path):
    features = Features({"text": Value("string"), "label": ClassLabel(names=["z", "a"])})
    Dataset.from_dict({"text": ["x", "y"], "label": [0, -1]}, features).to_parquet(tmp_path / "a.parquet")
    assert [row["label"] for row in stream_rows(str(tmp_path / "a.parquet"))] == ["z", None]


def test_a_parquet_file_without_rows_is_named(tmp_path):
    for name, texts in (("rows", ["a"]), ("empty", [])):
        Dataset.from_dict({"text": texts}, Features(text=Value("string"))).to_parquet(tmp_path / f"{name}.parquet")
    with pytest.raises(InputError, match="empty.parquet has no rows"):
        read_files([tmp_path / "empty.parquet"])
    assert read_files([tmp_path / "empty.parquet", tmp_path / "rows.parquet"])["text"][:] == ["a"]
