"""Build the wheel and the source archive and use them in a new environment: `python -m tests.packaging.run [FOLDER]`.

Both are kept in FOLDER if it is passed. The environment is temporary and has only the declared dependencies: with all
extras, as in the environment for the tests, an undeclared import would go unnoticed. It takes up to 6 GB of disk with
the CUDA libraries that torch installs on Linux; TMPDIR=... chooses another disk.
"""

import os
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "hf_gmlp"
SDIST_FOLDERS = (PACKAGE, "benchmarks", "common", "docs", "examples", "paper", "recipes", "tests")
SDIST_FILES = (
    *("CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE", "Makefile", "README.md", "pyproject.toml"),
    "hf_gmlp_cli.py",
    *(path.name for path in ROOT.glob("run_*.py")),
)


def files_under(folder: str) -> set[str]:
    """Return the files in a folder of the working tree, as archives name them, without caches and hidden files."""
    paths = (path.relative_to(ROOT) for path in (ROOT / folder).rglob("*") if path.is_file())
    return {
        path.as_posix() for path in paths if not any(part == "__pycache__" or part[0] == "." for part in path.parts)
    }


def check_wheel(path: Path):
    """Check that the wheel holds the complete package and nothing else."""
    archive = zipfile.ZipFile(path)
    names = {name for name in archive.namelist() if not name.endswith("/")}
    packed = {name for name in names if not PurePosixPath(name).parts[0].endswith(".dist-info")}
    recipes = {f"{PACKAGE}/{name}" for name in files_under("recipes") | files_under("paper/recipes")}
    # Recipes of the paper's baseline models are only in a checkout.
    recipes = {name for name in recipes if "relpos" not in name and "mixer-mlm" not in name}
    compare(path, packed, files_under(PACKAGE) | {"hf_gmlp_cli.py"} | recipes)
    if not any(name.endswith(".dist-info/licenses/LICENSE") for name in names):
        sys.exit(f"{path.name} lacks the LICENSE.")
    (metadata,) = (archive.read(name).decode() for name in names if name.endswith(".dist-info/METADATA"))
    dead = re.findall(r"\]\((?!https?://|#)[^)]*\)", metadata.partition("\n\n")[2])
    if dead:
        sys.exit(f"The description in {path.name} has links that a package index cannot resolve: {', '.join(dead)}.")


def check_sdist(path: Path):
    """Check that the source archive holds the package and everything for testing and training."""
    with tarfile.open(path) as archive:
        names = {str(PurePosixPath(*PurePosixPath(entry.name).parts[1:])) for entry in archive if entry.isfile()}
    # The build adds files at the top.
    packed = {name for name in names if name in SDIST_FILES or name.partition("/")[0] in SDIST_FOLDERS}
    expected = set(SDIST_FILES).union(*map(files_under, SDIST_FOLDERS))
    # The log of measurements is only in a checkout.
    compare(path, packed, {name for name in expected if not name.startswith("docs/log/")})


def compare(path: Path, packed: set[str], expected: set[str]):
    """Exit with the names of files that the archive lacks, or that should not be in it."""
    for verb, names in (("lacks", expected - packed), ("should not have", packed - expected)):
        if names:
            sys.exit(f"{path.name} {verb} {len(names)} files, such as {', '.join(sorted(names)[:5])}.")
    print(f"{path.name}: {len(packed)} files, {path.stat().st_size / 1e3:.0f} kB", flush=True)


def call(*command: str | Path, show: bool = False, **options):
    """Run a command and print its time, and with `show` its output. Exit if the command fails."""
    print("$", *command, flush=True)
    start = time.monotonic()
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    if show or done.returncode:
        print(done.stdout, end="")
    if done.returncode:
        sys.exit(f"The command above failed with exit code {done.returncode}.")
    print(f"  {time.monotonic() - start:.0f} s", flush=True)


def main():
    """Build the archives, check their contents, install them and use them."""
    with tempfile.TemporaryDirectory(prefix="hf-gmlp-package-") as folder:
        scratch = Path(folder)
        # This builds the wheel from the unpacked source archive, so it also shows that the archive is complete.
        dist = Path(sys.argv[1]).resolve() if sys.argv[1:] else scratch / "dist"
        call(sys.executable, "-m", "build", "--outdir", dist, ROOT)
        (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
        call(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)
        check_wheel(wheel)
        check_sdist(sdist)

        call(sys.executable, "-m", "venv", scratch / "venv")
        python = scratch / "venv" / "bin" / "python"
        install = (python, "-m", "pip", "install", "-qq")
        call(*install, wheel)
        # In an empty folder and without PYTHONPATH, Python cannot find the working tree.
        (scratch / "empty").mkdir()
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment |= {"HF_HOME": str(scratch / "hf_home"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        use_wheel = Path(__file__).with_name("use_wheel.py")
        call(python, "-I", use_wheel, show=True, cwd=scratch / "empty", env=environment)

        call(*install, "--no-deps", "--force-reinstall", sdist)
        call(python.with_name("hf-gmlp"), "--version", show=True, cwd=scratch / "empty", env=environment)
    print("The wheel and the source archive work with only their declared dependencies.")


if __name__ == "__main__":
    main()
