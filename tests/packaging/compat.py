"""Run tests with other versions of Python, torch and transformers: `python3.13 -m tests.packaging.compat [NAME ...]`.

NAME is one of the environments below. "oldest" has the lower bounds of everything in pyproject.toml; "newest" runs all
fast tests with the newest versions. Without a NAME, Python 3.11 runs all but "newest", since `make test` has these
versions; a newer Python runs "newest" alone, since old versions of packages have no wheels for it. Each environment is
a temporary folder of up to 8 GB, as torch needs CUDA's libraries on Linux; PIP_EXTRA_INDEX_URL=
https://download.pytorch.org/whl/cpu avoids them.
"""

import re
import sys
import tempfile
import tomllib
from pathlib import Path

from .run import ROOT, call

# The versions of these two must match.
TORCH = ("torch", "torchvision")
TESTS = ("tests/models", "tests/test_hub.py", "tests/test_cards.py", "tests/tools/test_cli.py", "tests/metrics")
TESTS += ("tests/tools/test_conversion.py", "tests/paper/test_models.py", "tests/training/test_trainer.py")
TESTS += ("tests/data/test_images.py", "tests/tasks/test_glue.py")


def lower_bounds() -> dict[str, str]:
    """Return requirements for the oldest version of each package in pyproject.toml, by name."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    lists = settings["project"]["optional-dependencies"] | settings["dependency-groups"]
    requirements = settings["project"]["dependencies"] + lists["train"] + lists["vision"] + lists["dev"]
    bounds = (re.match(r"([\w-]+)>=([\d.]+)", requirement) for requirement in requirements)
    return {bound[1]: f"{bound[1]}=={bound[2]}" for bound in bounds if bound}


def main():
    """Make each environment in turn, install the package there, and test it."""
    oldest = lower_bounds()
    environments = {
        "oldest": list(oldest.values()),
        "oldest-torch": [oldest[name] for name in TORCH],
        "oldest-transformers": [oldest["transformers"]],
        "newest": [],
    }
    defaults = ["newest"] if sys.version_info >= (3, 12) else [name for name in environments if name != "newest"]
    for name in sys.argv[1:] or defaults:
        extras, groups, tests = "train,vision", ["dev"], TESTS
        if name == "newest":
            extras, groups, tests = "export,serve", ["dev", "docs"], ("-m", "not slow and not heavy")
        with tempfile.TemporaryDirectory(prefix="hf-gmlp-compat-") as folder:
            call(sys.executable, "-m", "venv", folder)
            python = Path(folder, "bin", "python")
            install = (python, "-m", "pip", "install", "-qq")
            # Since 25.1, pip knows dependency groups.
            call(*install, "--upgrade", "pip")
            flags = [flag for group in groups for flag in ("--group", f"{ROOT}/pyproject.toml:{group}")]
            call(*install, f"{ROOT}[{extras}]", *flags, *environments[name])
            call(python, "-m", "pip", "freeze", show=True)
            options = ("-q", "-n", "2", "--dist", "loadfile", "-p", "no:cacheprovider")
            call("env", "OMP_NUM_THREADS=1", python, "-m", "pytest", *options, *tests, show=True, cwd=ROOT)


if __name__ == "__main__":
    main()
