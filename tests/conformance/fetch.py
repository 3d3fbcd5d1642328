"""Fetch the common tests of transformers: the `tests/` folder of the source archive of the installed version.

They are in no wheel and are not copied into this repository: they stay under `build/conformance`, which git ignores.
"""

import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import version
from pathlib import Path

CACHE_FOLDER = Path(__file__).resolve().parents[2] / "build" / "conformance"
TRANSFORMERS = f"transformers-{version('transformers')}"
TESTS_FOLDER = CACHE_FOLDER / TRANSFORMERS / "tests"


def fetch_common_tests():
    """Fetch the common tests into `TESTS_FOLDER`, unless they are there already.

    Raises:
        RuntimeError: pip cannot download the archive.
    """
    if TESTS_FOLDER.is_dir():
        return
    CACHE_FOLDER.mkdir(parents=True, exist_ok=True)
    # The complete tree is moved into place in one step, so an interrupted run leaves nothing half done.
    with tempfile.TemporaryDirectory(dir=CACHE_FOLDER, prefix="unfinished-") as scratch:
        archive = download_source_archive(Path(scratch) / "download")
        unpack_common_tests(archive, Path(scratch) / "unpacked")
        (Path(scratch) / "unpacked").rename(TESTS_FOLDER.parent)


def download_source_archive(folder: Path) -> Path:
    """Download the archive with pip, which checks its hash, into `folder`; raise RuntimeError if pip fails."""
    # With `--no-binary :all:` pip would also build setuptools from source, only to read the archive's metadata.
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-binary", "transformers", "--dest", str(folder), TRANSFORMERS.replace("-", "==")]
    result = subprocess.run(command, capture_output=True, text=True)
    archives = sorted(folder.glob("transformers-*.tar.gz"))
    if result.returncode != 0 or not archives:
        raise RuntimeError(
            f"pip cannot download the source archive of {TRANSFORMERS}. Run this once where pip reaches a package "
            f"index.\n{result.stderr}"
        )
    return archives[0]


def unpack_common_tests(archive: Path, folder: Path):
    """Unpack only `tests/` of a source archive into `folder`, which is created."""
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            # transformers-X/tests/<file>
            _, _, path = member.name.partition("/")
            if member.isfile() and path.startswith("tests/") and path.endswith(".py") and ".." not in path:
                target = folder / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(tar.extractfile(member).read())
    # Two of the files load the package at `src/transformers`; this file makes them use the installed one.
    for package in (folder / "tests", folder / "src" / "transformers"):
        package.mkdir(parents=True, exist_ok=True)
        (package / "__init__.py").touch()
