import bz2
import gzip

import pytest

from hf_gmlp.errors import InputError
from hf_gmlp.training.files import Access, file_kind, in_batches, load_data, read_files


@pytest.mark.parametrize("streaming", [False, True])
def test_words_such_as_null_stay_words(tmp_path, streaming):
    (tmp_path / "a.csv").write_text('text\nNA\n"null, None"\n')
    (tmp_path / "a.tsv").write_text('text\tlabel\nsay "no\tNA\n')
    options = {"streaming": streaming, "access": Access(cache_dir=str(tmp_path / "cache"))}
    assert list(read_files([tmp_path / "a.csv"], **options)) == [{"text": "NA"}, {"text": "null, None"}]
    assert list(read_files([tmp_path / "a.tsv"], **options)) == [{"text": 'say "no', "label": "NA"}]


def test_kinds(tmp_path):
    for name in ("a.txt", "b.TXT", "c.jsonl.gz", "d"):
        (tmp_path / name).write_text("x")
    assert file_kind([tmp_path / "a.txt", tmp_path / "b.TXT"]) == "txt"
    assert file_kind([tmp_path / "c.jsonl.gz"]) == "jsonl"
    for paths, message in [
        ([], "at least one file"),
        ([tmp_path], "is a folder"),
        ([tmp_path / "none.txt"], "no file"),
        ([tmp_path / "d"], "of an unknown kind"),
        ([tmp_path / "a.txt", tmp_path / "c.jsonl.gz"], "one kind at a time, got jsonl, txt"),
    ]:
        with pytest.raises(InputError, match=message):
            file_kind(paths)


@pytest.mark.parametrize("streaming", [False, True])
def test_bad_files_are_explained_in_one_sentence(tmp_path, streaming):
    packed = gzip.compress(b"some text\n" * 1000)
    for name, content, message in [
        ("a.json", b'[{"text": "a"', "a.json cannot be read as json: "),
        ("b.txt", b"caf\xe9\n", "b.txt cannot be read as txt: it is not UTF-8"),
        ("c.txt.gz", packed[: len(packed) // 2], "c.txt.gz cannot be read as txt: "),
        ("d.txt.gz", b"plain", "d.txt.gz cannot be read as txt: "),
        ("e.parquet", b"PAR1", "e.parquet cannot be read as parquet: "),
        ("f.csv", b"text\na,b\nc,d\n", "f.csv cannot be read as csv: .*leads to a loss of data"),
    ]:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=message) as error:
            read_files([tmp_path / name], streaming=streaming, access=Access(cache_dir=str(tmp_path / "cache")))
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["a.jsonl", "a.txt"])
def test_a_changed_file_is_read_again(tmp_path, name):
    path, access = tmp_path / name, Access(cache_dir=str(tmp_path / "cache"))
    for word in ("one", "two"):
        path.write_text(f'{{"text": "{word}"}}\n' if name == "a.jsonl" else word)
        assert load_data(files={"train": [path]}, access=access)["train"]["text"][:] == [word]


TEXT = "\ufeffone\r\ntwo  \n \t\n\n\n  three\u2028still three\n\nfour"


@pytest.mark.parametrize("streaming", [False, True])
def test_blank_lines_separate_documents(tmp_path, streaming):
    (tmp_path / "a.txt").write_text(TEXT, encoding="utf-8", newline="")
    (tmp_path / "b.txt.bz2").write_bytes(bz2.compress(b"five\n"))
    paths = [tmp_path / "a.txt", tmp_path / "b.txt.bz2"]
    options = {"streaming": streaming, "access": Access(cache_dir=str(tmp_path / "cache"))}
    found = [row["text"] for row in read_files(paths, **options)]
    assert found == ["one\ntwo  ", "  three\u2028still three", "four", "five"]
    found = [row["text"] for row in read_files(paths, lines=True, **options)]
    assert found == ["one", "two  ", "  three\u2028still three", "four", "five"]


def test_no_data_and_no_such_data_set(tmp_path):
    with pytest.raises(InputError, match="Name the data"):
        load_data()
    with pytest.raises(InputError, match="The data set .*none en cannot be loaded: "):
        load_data(dataset_name=str(tmp_path / "none"), dataset_config_name="en")


def test_batches_are_limited_in_size_and_count():
    texts = ["aaa", "b", "", "cc", "ddddd", "e"]
    assert list(in_batches(texts, 4)) == [["aaa", "b"], ["", "cc", "ddddd"], ["e"]]
    assert list(in_batches(texts, 100, count=4)) == [texts[:4], texts[4:]]
    assert list(in_batches([(1, "ab"), (2, "c")], 2, size_of=lambda item: len(item[1]))) == [[(1, "ab")], [(2, "c")]]
    assert list(in_batches([], 4)) == []
