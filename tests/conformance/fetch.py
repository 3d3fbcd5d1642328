"""Fetches the common tests of transformers: the `tests/` folder of the source archive of the installed version.

They are in no wheel and are not ours to copy, so they are fetched once and kept under `build/conformance`, which git
ignores.
"""

import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import version
from pathlib import Path

CACHE_FOLDER = Path(__file__).resolve().parents[2] / "build" / "conformance"
# What the suite cannot do without: an archive that lacks it is not the one we are looking for.
REQUIRED_FILE = "test_modeling_common.py"


def common_tests_folder(cache_folder: Path = CACHE_FOLDER, transformers_version: str | None = None) -> Path:
    """Returns the folder where the fetched common tests lie, or would lie: `<cache>/transformers-X/tests`."""
    return Path(cache_folder) / f"transformers-{transformers_version or version('transformers')}" / "tests"


def fetch_common_tests(cache_folder: Path = CACHE_FOLDER, transformers_version: str | None = None) -> Path:
    """Fetches the common tests of transformers unless they are there already.

    Args:
        cache_folder: Where fetched versions are kept.
        transformers_version: The version to fetch; the installed one by default.

    Returns:
        The folder with `test_modeling_common.py` and its companions.

    Raises:
        RuntimeError: pip could not download the archive, or the archive holds no common tests.
    """
    transformers_version = transformers_version or version("transformers")
    tests_folder = common_tests_folder(cache_folder, transformers_version)
    if tests_folder.is_dir():
        return tests_folder

    cache_folder = Path(cache_folder)
    cache_folder.mkdir(parents=True, exist_ok=True)
    # Everything happens in a scratch folder, and the finished tree is moved into place in one step: a run that is
    # cut short leaves nothing that a later run could mistake for the whole.
    with tempfile.TemporaryDirectory(dir=cache_folder, prefix="unfinished-") as scratch:
        archive = download_source_archive(transformers_version, Path(scratch) / "download")
        unpacked = unpack_common_tests(archive, Path(scratch) / "unpacked")
        try:
            unpacked.parent.rename(tests_folder.parent)
        except OSError:
            # Another run may have put the same version there meanwhile; anything else is a real error.
            if not tests_folder.is_dir():
                raise
    return tests_folder


def download_source_archive(transformers_version: str, folder: Path) -> Path:
    """Downloads the source archive of one transformers version with pip, from the index pip is set up for.

    Args:
        transformers_version: For instance "5.23.0".
        folder: Where pip puts the archive.

    Returns:
        The archive. pip has checked its hash.

    Raises:
        RuntimeError: pip failed, for instance without network.
    """
    # `--no-binary` names transformers alone: with `:all:` pip would build setuptools from source, only to read the
    # archive's metadata.
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-binary", "transformers", "--dest", str(folder), f"transformers=={transformers_version}"]
    result = subprocess.run(command, capture_output=True, text=True)
    archives = sorted(folder.glob("transformers-*.tar.gz")) if folder.is_dir() else []
    if result.returncode != 0 or not archives:
        said = [line.strip() for line in (result.stderr + result.stdout).splitlines() if line.strip()]
        errors = [line for line in said if line.startswith("ERROR")] or said
        raise RuntimeError(
            f"The common tests of transformers {transformers_version} are not at hand and pip could not download its "
            f"source archive ({errors[-1] if errors else 'pip said nothing'}); run this once where pip reaches a "
            "package index that has this version."
        )
    return archives[0]


def unpack_common_tests(archive: Path, folder: Path) -> Path:
    """Unpacks the `tests/` folder of a transformers source archive, and nothing else of it.

    Args:
        archive: `transformers-X.tar.gz`.
        folder: Where to unpack; made here.

    Returns:
        `folder/tests`.

    Raises:
        RuntimeError: the archive is damaged or holds no common tests.
    """
    tests_folder = folder / "tests"
    try:
        with tarfile.open(archive) as tar:
            for member in tar.getmembers():
                # transformers-X/tests/<file>
                _, _, path = member.name.partition("/")
                if member.isfile() and path.startswith("tests/") and path.endswith(".py") and ".." not in path:
                    target = folder / path
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(tar.extractfile(member).read())
    except (tarfile.TarError, EOFError, OSError) as error:
        raise RuntimeError(f"{archive.name} is damaged ({error}); run again to download it anew.") from error
    if not (tests_folder / REQUIRED_FILE).is_file():
        raise RuntimeError(f"{archive.name} has no tests/{REQUIRED_FILE}: this version ships no common tests.")

    # Two of the files load "the transformers beside them", and get the installed one if there is a file to load.
    for package in (tests_folder, folder / "src" / "transformers"):
        package.mkdir(parents=True, exist_ok=True)
        (package / "__init__.py").touch()
    return tests_folder
