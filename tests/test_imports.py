"""The packages of hf_gmlp import each other in one direction, so that a change is felt only above it."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "hf_gmlp"
# Package -> the packages whose modules it may import, besides its own. Modules outside of packages are "base".
BELOW = {
    "models": set(),
    "metrics": set(),
    "presets": {"base", "models"},
    "base": {"models"},
    "data": {"base", "metrics", "models"},
    "tools": {"base", "data", "metrics", "models", "presets"},
    "training": {"base", "data", "metrics", "models", "presets"},
    "tasks": {"base", "data", "metrics", "models", "presets", "training"},
}


def imported(path: Path) -> set[str]:
    """Return the packages of hf_gmlp that a module imports anywhere, in functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            folder = path.parents[node.level - 1].relative_to(PACKAGE).parts
            parts = [*folder, *(node.module or "").split(".")] if node.module else list(folder)
            found |= {parts[0]} if parts else {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom | ast.Import):
            names = [node.module] if isinstance(node, ast.ImportFrom) else [name.name for name in node.names]
            found |= {name for name in names if name.split(".")[0] in ("hf_gmlp", "paper")}
    return {name if name in BELOW or "." in name or name in ("hf_gmlp", "paper") else "base" for name in found}


@pytest.mark.parametrize("package", BELOW)
def test_imports_go_one_way(package):
    folder = PACKAGE if package == "base" else PACKAGE / package
    paths = folder.glob("[!_]*.py") if package == "base" else folder.rglob("*.py")
    imports = {path.name: imported(path) - BELOW[package] - {package} for path in paths}
    assert imports and {name: packages for name, packages in imports.items() if packages} == {}
