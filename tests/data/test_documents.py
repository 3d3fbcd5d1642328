import bz2

import pytest

from hf_gmlp.data import documents as documents_module
from hf_gmlp.data.files import Access, read_files

TEXT = "\ufeffone\r\ntwo  \n \t\n\n\n  three\u2028still three\n\nfour"


@pytest.mark.parametrize("streaming", [False, True])
def test_blank_lines_separate_documents(tmp_path, streaming, monkeypatch):
    # Every batch has one document.
    monkeypatch.setattr(documents_module, "BATCH_BYTES", 1)
    (tmp_path / "a.txt").write_text(TEXT, encoding="utf-8", newline="")
    (tmp_path / "b.txt.bz2").write_bytes(bz2.compress(b"five\n"))
    paths = [tmp_path / "a.txt", tmp_path / "b.txt.bz2"]
    options = {"streaming": streaming, "access": Access(cache_dir=str(tmp_path / "cache"))}
    found = [row["text"] for row in read_files(paths, **options)]
    assert found == ["one\ntwo  ", "  three\u2028still three", "four", "five"]
    found = [row["text"] for row in read_files(paths, lines=True, **options)]
    assert found == ["one", "two  ", "  three\u2028still three", "four", "five"]
