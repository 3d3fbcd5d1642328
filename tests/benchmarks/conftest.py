"""The benchmarks are scripts, not a package."""

import importlib.util
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent.parent / "benchmarks"


@pytest.fixture(scope="session")
def load():
    """load(name) imports benchmarks/name.py."""

    def load_script(name: str):
        spec = importlib.util.spec_from_file_location(f"benchmark_{name}", FOLDER / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        # As for a script: its neighbors can be imported.
        sys.path.insert(0, str(FOLDER))
        try:
            spec.loader.exec_module(module)
        finally:
            sys.path.remove(str(FOLDER))
        return module

    return load_script


@pytest.fixture
def call(monkeypatch):
    """call(module, *flags) runs a script as the command line would."""

    def run(module, *flags):
        monkeypatch.setattr(sys, "argv", [module.__name__, *map(str, flags)])
        module.main()

    return run
