"""Recipes, YAML files of flags that may include each other, and --config_overrides, merged key by key."""

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
# Flags that describe a data set on the Hub and do not apply to files.
_OF_DATASET = {"dataset_config_name", *(f"{split}_split_name" for split in _SPLITS)}


class _Loader(yaml.SafeLoader):
    """YAML loader that refuses repeated keys, and aliases, by which a short file can describe endless data. As in YAML
    1.2, 1e-6 is a number, and "no", a value of --save_strategy, is text.
    """

    yaml_implicit_resolvers = {
        letter: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:bool"]
        for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_node(self, parent, index):
        if self.check_event(yaml.AliasEvent):
            raise ValueError("it has an alias (*name): write the value out")
        return super().compose_node(parent, index)

    def construct_mapping(self, node, deep=False):
        keys = [key.value for key, _ in node.value]
        if len(set(keys)) < len(keys):
            raise ValueError(f"a key is repeated among {', '.join(map(str, keys))}")
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9.]+[eE][-+]?[0-9]+$"), None)
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("(true|True|TRUE|false|False|FALSE)$"), list("tTfF"))


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
    # An empty list means the default, like null, since a command line cannot express it.
    return [word for name, value in recipe.items() if value not in (None, []) for word in _words(name, value)] + flags


def find_recipe(name: str) -> Path:
    """Return the file of a recipe: for "recipes/..." or "paper/recipes/...", the project's own if none is here."""
    path = Path(name)
    shipped = RECIPES.parent / path
    return shipped if path.parts[0] in ("recipes", "paper") and not path.exists() and shipped.is_file() else path


def read_recipe(path: Path, including: tuple[Path, ...] = ()) -> dict[str, object]:
    """Return a recipe as a mapping from flags to values, merged with the recipes that it names under `include`, whose
    paths are relative to its own.

    Args:
        including: The files that include it.

    Raises:
        InputError: If a file is missing, includes itself, or is not a mapping.
    """
    if path.resolve() in including:
        raise InputError(f"{path} includes itself: remove it from `include`.")
    check_file(path)
    try:
        content = _read_yaml(path.read_text(encoding="utf-8-sig"))
        if not isinstance(content, dict):
            raise ValueError("it must map flags to values, one per line, such as 'learning_rate: 1e-4'")
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as a recipe: {error}.") from error
    recipe = {_name(name): value for name, value in content.items()}
    if isinstance(recipe.get("config_overrides"), str):
        recipe["config_overrides"] = parse_overrides(recipe["config_overrides"])
    included = _list(recipe.pop("include", []))
    including = (*including, path.resolve())
    return merge(*(read_recipe(path.parent / str(name), including) for name in included), recipe)


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
        replaced |= _OF_DATASET
    for name in replaced:
        earlier.pop(name, None)


def parse_overrides(text: str) -> dict[str, object]:
    """Return --config_overrides, `key=value` pairs or JSON, as a mapping; raise InputError if it is neither."""
    try:
        if text.lstrip().startswith("{"):
            return json.loads(text)
        pairs = [pair.partition("=") for pair in re.split(r",(?=\s*\w+\s*=)", text.strip(" ,")) if pair]
        if wrong := ["".join(pair) for pair in pairs if not all(map(str.strip, pair))]:
            raise ValueError(f"{wrong[0]!r} is not key=value")
        if len({key.strip() for key, *_ in pairs}) < len(pairs):
            raise ValueError("it has a key twice")
        return {key.strip(): _read_yaml(value) for key, _, value in pairs}
    except ValueError as error:
        form = "key=value pairs with commas between them, or as JSON"
        raise InputError(f"--config_overrides {text[:200]} cannot be read as {form}: {error}.") from error


def _read_yaml(text: str) -> object:
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error


def _words(name: str, value: object) -> list[str]:
    """Return a flag and its values as words of a command line."""
    words = [json.dumps(item, default=str) if isinstance(item, dict) else str(item) for item in _list(value)]
    # A separate word that starts with a minus would be parsed as a flag.
    return [f"--{name}={words[0]}"] if words and words[0].startswith("-") else [f"--{name}", *words]


def _name(flag: object) -> str:
    return str(flag).removeprefix("--").replace("-", "_")


def _list(value: object) -> list:
    return value if isinstance(value, list) else [value]
