"""Run tests with the oldest and the newest torch and transformers: `python -m tests.packaging.compat [NAME ...]`.

NAME is one of the environments below; without it all of them run. "oldest" has the lower bounds of everything in
pyproject.toml. `make test` has the newest versions. Each environment is a temporary folder of up to 7 GB, as torch
needs CUDA's libraries on Linux; PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu avoids them.
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
    }
    for name in sys.argv[1:] or environments:
        with tempfile.TemporaryDirectory(prefix="hf-gmlp-compat-") as folder:
            call(sys.executable, "-m", "venv", folder)
            python = Path(folder, "bin", "python")
            install = (python, "-m", "pip", "install", "-qq")
            # Since 25.1, pip knows dependency groups.
            call(*install, "--upgrade", "pip")
            call(*install, f"{ROOT}[train,vision]", "--group", f"{ROOT}/pyproject.toml:dev", *environments[name])
            call(python, "-m", "pip", "freeze", show=True)
            options = ("-q", "-n", "2", "--dist", "loadfile", "-p", "no:cacheprovider")
            call("env", "OMP_NUM_THREADS=1", python, "-m", "pytest", *options, *TESTS, show=True, cwd=ROOT)


if __name__ == "__main__":
    main()
