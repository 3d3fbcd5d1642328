"""Recipes: YAML files of flags, which build on each other."""

import json
from collections.abc import Iterable
from pathlib import Path

import yaml

from ..errors import InputError

RECIPE_ENDINGS = (".yaml", ".yml", ".json")


def recipe_flags(paths: Iterable[str | Path]) -> list[str]:
    """The command-line flags that some recipes stand for, the later of which win over the earlier."""
    recipe: dict[str, object] = {}
    for path in paths:
        recipe = merge(recipe, read_recipe(Path(path)))
    flags = []
    for name, value in recipe.items():
        values = value if isinstance(value, list) else [value]
        if value is not None:
            flags += [f"--{name}", *(json.dumps(v) if isinstance(v, dict) else str(v) for v in values)]
    return flags


def merge(earlier: dict[str, object], later: dict[str, object]) -> dict[str, object]:
    """One recipe over another: values replace each other, but mappings are merged key by key; null takes one away."""
    merged = earlier | later
    for name, value in later.items():
        if isinstance(value, dict) and isinstance(earlier.get(name), dict):
            merged[name] = earlier[name] | value
    return merged


def read_recipe(path: Path) -> dict[str, object]:
    raise NotImplementedError
