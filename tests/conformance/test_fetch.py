"""Tests that the common tests are fetched once, whole or not at all, and that a failure is one sentence."""

import io
import subprocess
import tarfile

import pytest

from . import fetch


def write_archive(path, files):
    """Writes a source archive with the given {name: text} under `transformers-1.2.3/`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(f"transformers-1.2.3/{name}")
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    return path


def pretend_pip(monkeypatch, files=None, returncode=0, stderr=""):
    """Replaces pip with a function that writes an archive of `files` (if any); returns the list of its calls."""
    calls = []

    def run(command, **kwargs):
        calls.append(command)
        if files is not None:
            folder = command[command.index("--dest") + 1]
            write_archive(fetch.Path(folder) / "transformers-1.2.3.tar.gz", files)
        return subprocess.CompletedProcess(command, returncode, stdout="", stderr=stderr)

    monkeypatch.setattr(fetch.subprocess, "run", run)
    return calls


def test_fetched_once_and_only_the_tests(tmp_path, monkeypatch):
    files = {"tests/test_modeling_common.py": "x = 1\n", "src/transformers/big.py": "y = 2\n", "README.md": "no"}
    calls = pretend_pip(monkeypatch, files)
    folder = fetch.fetch_common_tests(tmp_path, "1.2.3")
    assert folder == fetch.common_tests_folder(tmp_path, "1.2.3")
    assert (folder / "test_modeling_common.py").read_text() == "x = 1\n"
    assert sorted(path.name for path in folder.iterdir()) == ["__init__.py", "test_modeling_common.py"]
    assert not (folder.parent / "src" / "transformers" / "big.py").exists()
    assert fetch.fetch_common_tests(tmp_path, "1.2.3") == folder
    assert len(calls) == 1 and calls[0][-1] == "transformers==1.2.3" and "--no-deps" in calls[0]
    assert [path.name for path in tmp_path.iterdir()] == ["transformers-1.2.3"]


def test_half_an_archive_is_refused(tmp_path):
    archive = write_archive(tmp_path / "whole.tar.gz", {"tests/test_modeling_common.py": "x = 1\n" * 10_000})
    half = tmp_path / "half.tar.gz"
    half.write_bytes(archive.read_bytes()[: archive.stat().st_size // 2])
    with pytest.raises(RuntimeError, match=r"half\.tar\.gz is damaged"):
        fetch.unpack_common_tests(half, tmp_path / "out")


def test_failed_unpacking_leaves_nothing_behind(tmp_path, monkeypatch):
    pretend_pip(monkeypatch, {"README.md": "no tests in here"})
    with pytest.raises(RuntimeError, match="ships no common tests"):
        fetch.fetch_common_tests(tmp_path, "1.2.3")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_download_is_one_sentence(tmp_path, monkeypatch):
    pretend_pip(monkeypatch, returncode=1, stderr="WARNING: retrying\nERROR: No matching distribution found\n")
    with pytest.raises(RuntimeError, match=r"^pip .* transformers 1\.2\.3 \(ERROR: No matching .*\); run .*\.$"):
        fetch.fetch_common_tests(tmp_path, "1.2.3")


def test_paths_outside_the_folder_are_ignored(tmp_path):
    files = {"tests/test_modeling_common.py": "", "tests/../../outside.py": "bad"}
    fetch.unpack_common_tests(write_archive(tmp_path / "a.tar.gz", files), tmp_path / "out")
    assert not list(tmp_path.rglob("outside.py"))
