"""Recipes: YAML files of flags, which may include each other. Later values override earlier ones."""

import argparse
import itertools
import json
import re
from collections.abc import Collection
from pathlib import Path

import yaml

from ..data.files import check_file
from ..errors import InputError

# Recipes are in the package if it is installed, and beside it in a checkout.
_FOLDERS = (Path(__file__).parents[1] / "recipes", Path(__file__).parents[2] / "recipes")
RECIPES = next((folder for folder in _FOLDERS if folder.is_dir()), _FOLDERS[0])

_SPLITS = ("train", "validation", "test")
# Flags that name data -> the kind of their source.
SOURCES = {"dataset_name": "Hub"} | {f"{split}_{kind}": kind for split in _SPLITS for kind in ("file", "dir")}


class _Loader(yaml.SafeLoader):
    """YAML loader that refuses repeated keys, of which YAML's own would keep the last, and reads 1e-6 as a number."""

    def construct_mapping(self, node, deep=False):
        keys = [key.value for key, _ in node.value]
        if len({*keys}) < len(keys):
            raise yaml.YAMLError(f"a key is repeated among {', '.join(keys)}")
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9.]+[eE][-+]?[0-9]+$"), None)


def command_line(argv: list[str]) -> list[str]:
    """Return a command line whose leading recipes are replaced by their flags.

    All --config_overrides become one, as JSON. Data named by later recipes and flags replace those of earlier ones.
    """
    paths = list(itertools.takewhile(lambda word: word.lower().endswith((".yaml", ".yml")), argv))
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, usage="--config_overrides key=value,key=value")
    parser.add_argument("--config_overrides", "--config-overrides", action="append", default=[])
    typed, flags = parser.parse_known_args(argv[len(paths) :])
    overrides: list[dict] = [{"config_overrides": parse_overrides(text)} for text in typed.config_overrides]
    recipe = merge(*(read_recipe(find_recipe(path)) for path in paths), *overrides)
    drop_replaced_data(recipe, [_name(word.partition("=")[0]) for word in flags if word.startswith("--")])
    words: list[str] = []
    for name, value in recipe.items():
        values = [json.dumps(item) if isinstance(item, dict) else str(item) for item in _list(value)]
        if value is not None and values:
            # A separate word that starts with a minus would be parsed as a flag.
            words += [f"--{name}={values[0]}"] if values[0].startswith("-") else [f"--{name}", *values]
    return words + flags


def find_recipe(name: str) -> Path:
    """Return the file of a recipe: for "recipes/..." or "paper/recipes/...", the project's own if none is here."""
    path, own = Path(name), RECIPES.parent / name
    return own if path.parts[0] in ("recipes", "paper") and not path.exists() and own.is_file() else path


def read_recipe(path: Path, including: tuple[Path, ...] = ()) -> dict[str, object]:
    """Return a recipe as a mapping from flags to values, merged with the recipes that it names under `include`, whose
    paths are relative to its own.

    Args:
        including: The files that include it.

    Raises:
        InputError: If a file is missing, includes itself, or is not a mapping.
    """
    check_file(path)
    including = (*including, path.resolve())
    content = _read_mapping(path.read_text(encoding="utf-8-sig"), f"{path} cannot be read as a recipe")
    recipe = {_name(name): value for name, value in content.items()}
    if isinstance(recipe.get("config_overrides"), str):
        recipe["config_overrides"] = parse_overrides(str(recipe["config_overrides"]))
    included = [path.parent / name for name in _list(recipe.pop("include", []))]
    if any(other.resolve() in including for other in included):
        raise InputError(f"{path} includes itself: remove it from `include`.")
    return merge(*(read_recipe(other, including) for other in included), recipe)


def merge(*recipes: dict[str, object]) -> dict[str, object]:
    """Merge recipes: later values override earlier ones (null is "no value"), and mappings are merged key by key."""
    merged: dict[str, object] = {}
    for recipe in recipes:
        drop_replaced_data(merged, [name for name, value in recipe.items() if value is not None])
        for name, value in recipe.items():
            old = merged.get(name)
            if isinstance(value, dict) and isinstance(old, dict):
                # A null removes an earlier value; without one, it is kept as the value null.
                value = {key: new for key, new in (old | value).items() if new is not None or old.get(key) is None}
            merged[name] = value
    return merged


def drop_replaced_data(earlier: dict[str, object], later: Collection[str]):
    """Remove the data, and flags that describe them, from `earlier` if `later` flags name another kind of source."""
    kinds = {SOURCES[name] for name in later if name in SOURCES}
    replaced = {name for name in earlier if kinds and SOURCES.get(name) not in (None, *kinds)}
    if earlier.get("dataset_name") is not None and "dataset_name" in replaced:
        replaced.add("dataset_config_name")
    for name in replaced:
        earlier.pop(name, None)


def parse_overrides(text: str) -> dict[str, object]:
    """Return --config_overrides, `key=value` pairs or JSON, as a mapping; raise InputError if it is neither."""
    problem = f"--config_overrides {text[:200]} cannot be read as key=value pairs with commas between them, or as JSON"
    if text.lstrip().startswith("{"):
        return _read_mapping(text, problem)
    pairs = re.split(r",(?=\s*\w+\s*=)", text.strip(" ,"))
    # A key without a value is not replaced, since YAML would make it null.
    lines = [re.sub(r"^\s*(\w+)\s*=(?=\s*\S)", r"\1: ", pair) for pair in pairs]
    return _read_mapping("\n".join(lines) or "{}", problem)


def _read_mapping(text: str, problem: str) -> dict[str, object]:
    try:
        content = json.loads(text) if text.lstrip().startswith("{") else yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(f"{problem}: {' '.join(str(error).split())}.") from error
    if not isinstance(content, dict):
        raise InputError(f"{problem}: names must have values, as in 'learning_rate: 1e-4'.")
    return content


def _name(flag: object) -> str:
    return str(flag).removeprefix("--").replace("-", "_")


def _list(value: object) -> list:
    return value if isinstance(value, list) else [value]
