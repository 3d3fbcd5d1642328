import pytest

from hf_gmlp.data.files import file_kind, read_files
from hf_gmlp.errors import InputError


@pytest.mark.parametrize("streaming", [False, True])
def test_words_that_pandas_takes_for_missing_stay_words(tmp_path, streaming):
    (tmp_path / "a.csv").write_text('text\nNA\n"null, None"\n')
    (tmp_path / "a.tsv").write_text('text\tlabel\nsay "no\tNA\n')
    options = {"streaming": streaming, "cache_dir": str(tmp_path / "cache")}
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
        ([tmp_path / "d"], "of no known kind"),
        ([tmp_path / "a.txt", tmp_path / "c.jsonl.gz"], "one kind at a time, got jsonl, txt"),
    ]:
        with pytest.raises(InputError, match=message):
            file_kind(paths)
