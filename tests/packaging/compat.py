"""Runs tests with the oldest and the newest torch and transformers: `python -m tests.packaging.compat [NAME ...]`.

NAME is one of the environments below. pyproject.toml says what is oldest; "oldest" has its lower bounds of everything.
The newest of both is what `make test` has. Each environment is a temporary folder of up to 7 GB: torch brings CUDA's
libraries on Linux, and does not import without them. PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu spares
them, where that index can be reached.
"""

import re
import shutil
import signal
import sys
import tempfile
import tomllib
from pathlib import Path

from .run import DISK_NEEDED, ROOT, call, end_early

# What goes along with torch.
TORCH = ("torch", "torchvision")
TESTS = ("tests/models", "tests/kernels", "tests/test_hub.py", "tests/test_cards.py", "tests/test_cli.py")
TESTS += ("tests/training/test_trainer.py", "tests/data/test_images.py", "tests/metrics")


def lower_bounds() -> dict[str, str]:
    """Requirements for the oldest version of everything that pyproject.toml names, by name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [project["optional-dependencies"][name] for name in ("train", "plots", "vision", "dev")]
    requirements = sum(extras, project["dependencies"])
    bounds = (re.match(r"([\w-]+)>=([\d.]+)", requirement) for requirement in requirements)
    return {bound[1]: f"{bound[1]}=={bound[2]}" for bound in bounds if bound}


def main():
    """Makes each environment in turn, installs the package into it, and tests it there."""
    oldest = lower_bounds()
    environments = {
        "oldest": list(oldest.values()),
        # Kernels are tested in Triton's interpreter, and the one of that time fails with NumPy 2.4.
        "oldest-torch": [*(oldest[name] for name in TORCH), "numpy<2.4"],
        "oldest-transformers": [oldest["transformers"]],
    }
    signal.signal(signal.SIGTERM, end_early)
    for name in sys.argv[1:] or environments:
        if name not in environments:
            sys.exit(f"There is no environment {name!r}: choose among {', '.join(environments)}.")
        if shutil.disk_usage(tempfile.gettempdir()).free < DISK_NEEDED:
            sys.exit(f"{tempfile.gettempdir()} has less than {DISK_NEEDED / 1e9:.0f} GB left: TMPDIR=... make compat")
        with tempfile.TemporaryDirectory(prefix="hf-gmlp-compat-") as folder:
            call(sys.executable, "-m", "venv", folder)
            python = Path(folder, "bin", "python")
            call(python, "-m", "pip", "install", "-qq", f"{ROOT}[dev]", *environments[name])
            call(python, "-m", "pip", "freeze", show=True)
            options = ("-q", "-n", "2", "--dist", "loadfile", "-p", "no:cacheprovider")
            call("env", "OMP_NUM_THREADS=1", python, "-m", "pytest", *options, *TESTS, show=True, cwd=ROOT)


if __name__ == "__main__":
    main()
