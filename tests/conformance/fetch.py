"""Fetch the common tests of transformers: the `tests/` folder of the source archive of the installed version.

No wheel contains them, and this repository has no copy: they are kept in `build/conformance`, which git ignores.
"""

import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import version
from pathlib import Path

CACHE_FOLDER = Path(__file__).resolve().parents[2] / "build" / "conformance"
VERSION = version("transformers")
TESTS_FOLDER = CACHE_FOLDER / f"transformers-{VERSION}" / "tests"


def fetch_common_tests():
    """Fetch the common tests into `TESTS_FOLDER`, unless it exists.

    Raises:
        RuntimeError: pip cannot download the archive, or the archive holds no common tests.
    """
    if TESTS_FOLDER.is_dir():
        return
    CACHE_FOLDER.mkdir(parents=True, exist_ok=True)
    # The complete folder is moved into place in one step, so that an interrupted run leaves no incomplete one.
    with tempfile.TemporaryDirectory(dir=CACHE_FOLDER, prefix="unfinished-") as scratch:
        unpack_common_tests(download_source_archive(scratch), Path(scratch))
        Path(scratch, TESTS_FOLDER.parent.name).rename(TESTS_FOLDER.parent)


def download_source_archive(folder: str) -> Path:
    """Download the archive with pip, which checks its hash, into `folder`; raise RuntimeError if pip fails."""
    # With `--no-binary :all:`, pip would build even setuptools from source to read the archive's metadata.
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-binary", "transformers", "--dest", folder, f"transformers=={VERSION}"]
    result = subprocess.run(command, capture_output=True, text=True)
    archives = sorted(Path(folder).glob("transformers-*.tar.gz"))
    if result.returncode != 0 or not archives:
        raise RuntimeError(
            f"pip cannot download the source archive of transformers {VERSION}; run this once where pip reaches a "
            f"package index.\n{result.stderr}"
        )
    return archives[0]


def unpack_common_tests(archive: Path, folder: Path):
    """Unpack `transformers-X/tests` of a source archive into `folder`."""
    root = folder / TESTS_FOLDER.parent.name
    with tarfile.open(archive) as tar:
        members = [x for x in tar.getmembers() if x.name.startswith(f"{root.name}/tests/") and x.name.endswith(".py")]
        tar.extractall(folder, members, filter="data")
    if not (root / "tests" / "test_modeling_common.py").is_file():
        raise RuntimeError(f"{archive.name} has no tests/test_modeling_common.py: this version ships no common tests.")

    # Two of the files load `src/transformers`, and get the installed transformers if there is any file to load.
    for package in (root / "tests", root / "src" / "transformers"):
        package.mkdir(parents=True, exist_ok=True)
        (package / "__init__.py").touch()
