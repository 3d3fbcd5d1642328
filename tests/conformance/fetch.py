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
# An archive without this file holds no common tests.
REQUIRED_FILE = "test_modeling_common.py"


def common_tests_folder(cache_folder: Path = CACHE_FOLDER, transformers_version: str | None = None) -> Path:
    """Return the folder for the common tests, whether it exists or not: `<cache>/transformers-X/tests`."""
    return cache_folder / f"transformers-{transformers_version or version('transformers')}" / "tests"


def fetch_common_tests(cache_folder: Path = CACHE_FOLDER, transformers_version: str | None = None) -> Path:
    """Return the folder of the common tests (by default of the installed version), and fetch them if needed.

    Raises:
        RuntimeError: pip cannot download the archive, or the archive holds no common tests.
    """
    transformers_version = transformers_version or version("transformers")
    tests_folder = common_tests_folder(cache_folder, transformers_version)
    if tests_folder.is_dir():
        return tests_folder

    cache_folder.mkdir(parents=True, exist_ok=True)
    # The complete folder is moved into place in one step, so that an interrupted run leaves no incomplete one.
    with tempfile.TemporaryDirectory(dir=cache_folder, prefix="unfinished-") as scratch:
        archive = download_source_archive(transformers_version, Path(scratch) / "download")
        unpack_common_tests(archive, Path(scratch) / "unpacked").parent.rename(tests_folder.parent)
    return tests_folder


def download_source_archive(transformers_version: str, folder: Path) -> Path:
    """Download the archive with pip, which checks its hash, into `folder`; raise RuntimeError if pip fails."""
    # With `--no-binary :all:`, pip would build even setuptools from source to read the archive's metadata.
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-binary", "transformers", "--dest", str(folder), f"transformers=={transformers_version}"]
    result = subprocess.run(command, capture_output=True, text=True)
    archives = sorted(folder.glob("transformers-*.tar.gz"))
    if result.returncode != 0 or not archives:
        raise RuntimeError(
            f"pip cannot download the source archive of transformers {transformers_version}; run this once where pip "
            f"reaches a package index.\n{result.stderr}"
        )
    return archives[0]


def unpack_common_tests(archive: Path, folder: Path) -> Path:
    """Unpack `tests/` of a source archive into a new `folder`, and return `folder/tests`."""
    tests_folder = folder / "tests"
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            # transformers-X/tests/<file>
            _, _, path = member.name.partition("/")
            if member.isfile() and path.startswith("tests/") and path.endswith(".py") and ".." not in path:
                target = folder / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(tar.extractfile(member).read())
    if not (tests_folder / REQUIRED_FILE).is_file():
        raise RuntimeError(f"{archive.name} has no tests/{REQUIRED_FILE}: this version ships no common tests.")

    # Two of the files load `src/transformers`, and get the installed transformers if there is any file to load.
    for package in (tests_folder, folder / "src" / "transformers"):
        package.mkdir(parents=True, exist_ok=True)
        (package / "__init__.py").touch()
    return tests_folder
