"""Imports go in one direction, so that a change is felt only above it."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "hf_gmlp"
# Package of hf_gmlp -> the packages that it may import. Modules outside of packages are "base".
BELOW = {
    "models": set(),
    "presets": {"base", "models"},
    "base": {"data", "models"},
    "metrics": {"base", "data", "models"},
    "data": {"base", "metrics", "models"},
    "tools": {"base", "data", "metrics", "models", "presets"},
    "training": {"base", "data", "metrics", "models", "presets"},
    "tasks": {"base", "data", "metrics", "models", "presets", "training"},
    "classify": {"base", "data", "metrics", "models", "presets", "tasks", "training"},
}
# Folder of the repository -> the folders that it may import. Tests and hooks of the documentation import anything.
FOLDERS = {
    "hf_gmlp": set(),
    "common": {"hf_gmlp"},
    "benchmarks": {"common", "hf_gmlp"},
    "examples": {"common", "hf_gmlp"},
    "paper": {"common", "hf_gmlp"},
}


def modules_imported(path: Path) -> set[tuple[str, ...]]:
    """Return the parts of the names that a module imports anywhere, in functions too. Relative ones start with "."."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {tuple(name.name.split(".")) for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            folder = (".", *path.parents[node.level - 1].relative_to(ROOT).parts) if node.level else ()
            module = node.module.split(".") if node.module else ()
            names |= {(*folder, *module, name.name) for name in node.names}
    return names


def folders_with_code(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.is_dir() and any(path.glob("*.py"))}


def test_all_folders_are_listed():
    assert folders_with_code(PACKAGE) <= BELOW.keys()
    assert folders_with_code(ROOT) == FOLDERS.keys() | {"docs", "tests"}


@pytest.mark.parametrize("package", [package for package in BELOW if package == "base" or (PACKAGE / package).is_dir()])
def test_imports_of_the_package_go_one_way(package):
    paths = list(PACKAGE.glob("[!_]*.py") if package == "base" else (PACKAGE / package).rglob("*.py"))
    imports = {}
    for path in paths:
        names = modules_imported(path)
        packages = {name[2] if name[2] in BELOW else "base" for name in names if name[:2] == (".", "hf_gmlp")}
        # Published code has no other name for itself than ".", and hf_gmlp imports nothing that is not installed.
        absolute = {".".join(name) for name in names if name[0] in FOLDERS}
        imports[path.name] = absolute | packages - BELOW[package] - {package}
    assert paths and {name: packages for name, packages in imports.items() if packages} == {}


@pytest.mark.parametrize("folder", [folder for folder in FOLDERS if folder != "hf_gmlp"])
def test_imports_of_other_folders_go_one_way(folder):
    paths = list((ROOT / folder).rglob("*.py"))
    imports = {path.name: {name[0] for name in modules_imported(path)} & FOLDERS.keys() for path in paths}
    wrong = {name: folders - FOLDERS[folder] - {folder} for name, folders in imports.items()}
    assert paths and {name: folders for name, folders in wrong.items() if folders} == {}
