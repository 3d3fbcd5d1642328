"""Recipes: YAML files of flags, which may include each other. Later values override earlier ones."""

import argparse
import itertools
import json
import re
from pathlib import Path
from typing import Any

import yaml

from ..errors import InputError, first_line

# Flags that name data -> the kind of their source.
SOURCES = {"dataset_name": "Hub", "dataset_config_name": "Hub"}
SOURCES |= {f"{split}_{kind}": kind for split in ("train", "validation", "test") for kind in ("file", "dir")}


class _Loader(yaml.SafeLoader):
    """YAML loader that refuses repeated keys, of which YAML's own would keep the last, and reads 1e-6 as a number."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict:
        keys = [key.value for key, _ in node.value]
        if len({*keys}) < len(keys):
            raise yaml.YAMLError(f"a key is repeated among {', '.join(keys)}")
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9.]+[eE][-+]?[0-9]+$"), None)


def command_line(argv: list[str]) -> list[str]:
    """Return a command line whose leading recipes are replaced by their flags.

    All --config_overrides become one, as JSON. Data named by later recipes and flags replace those of earlier ones.
    """
    paths = list(itertools.takewhile(lambda word: word.endswith((".yaml", ".yml")), argv))
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config_overrides", "--config-overrides", action="append", default=[])
    typed, flags = parser.parse_known_args(argv[len(paths) :])
    overrides: list[dict] = [{"config_overrides": text} for text in typed.config_overrides]
    typed_names = {word[2:].partition("=")[0].replace("-", "_"): word for word in flags if word.startswith("--")}
    recipe = merge(*(read_recipe(find_recipe(path)) for path in paths), *overrides, typed_names)
    recipe_flags: list[str] = []
    for name, value in recipe.items():
        if isinstance(value, list):
            recipe_flags += [f"--{name}", *map(str, value)]
        elif value is not None and name not in typed_names:
            recipe_flags.append(f"--{name}={json.dumps(value) if isinstance(value, dict) else value}")
    return recipe_flags + flags


def find_recipe(name: str) -> Path:
    """Return the file of a recipe, or the project's own of that name if there is none here."""
    # An installed package contains the recipes; in a checkout, they are beside it.
    own = [folder / name for folder in Path(__file__).parents[1:3]]
    return next((path for path in (Path(name), *own) if path.is_file()), Path(name))


def read_recipe(path: Path, including: tuple[Path, ...] = ()) -> dict[str, object]:
    """Return a recipe as a mapping from flags to values, merged with the recipes that it names under `include`, whose
    paths are relative to its own.

    Args:
        including: The recipes that include this one, directly or not.

    Raises:
        InputError: If it is not a mapping in UTF-8, or includes itself.
    """
    try:
        recipe = _parse(path.read_text(encoding="utf-8-sig"), str(path))
    except UnicodeDecodeError as error:
        raise InputError(f"{path} cannot be read: {first_line(error)}.") from error
    included = recipe.pop("include", None) or []
    names = included if isinstance(included, list) else [included]
    if path.resolve() in including or not all(isinstance(name, str) for name in names):
        raise InputError(f"{path} cannot be read: a recipe includes other recipes, by their paths.")
    including = (*including, path.resolve())
    return merge(*(read_recipe(path.parent / name, including) for name in names), recipe)


def merge(*recipes: dict) -> dict[str, object]:
    """Merge recipes: later values override earlier ones (null is "no value"), --config_overrides are merged key by key,
    and data of another kind of source are dropped.
    """
    merged: dict = {}
    for recipe in recipes:
        kinds = {SOURCES[name] for name, value in recipe.items() if name in SOURCES and value is not None}
        merged = {name: value for name, value in merged.items() if not kinds or SOURCES.get(name) in (None, *kinds)}
        for name, value in recipe.items():
            if name == "config_overrides" and value is not None:
                old, new = merged.get(name) or {}, parse_overrides(value) if isinstance(value, str) else value
                # A null removes an earlier value; without one, it is kept as the value null.
                value = {key: item for key, item in (old | new).items() if item is not None or old.get(key) is None}
            merged[name] = value
    return merged


def parse_overrides(text: str) -> dict[str, object]:
    """Return --config_overrides, `key=value` pairs or JSON, as a mapping; raise InputError if it is neither."""
    # Pairs in braces are a mapping in YAML.
    pairs = re.sub(r"(^|,)(\s*\w+\s*)=(?=\s*\S)", r"\1\2: ", text)
    return _parse(text if text.startswith("{") else f"{{{pairs}}}", f"--config_overrides {text[:200]}")


def _parse(text: str, source: str) -> dict[str, Any]:
    try:
        content = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise InputError(f"{source} cannot be read: {' '.join(str(error).split())}.") from error
    if not isinstance(content, dict):
        raise InputError(f"{source} cannot be read: names must have values, as in 'learning_rate: 1e-4'.")
    return content
