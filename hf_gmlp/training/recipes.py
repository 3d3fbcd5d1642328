"""Recipes: YAML files of flags, which may include each other; and overrides of a config, merged key by key."""

import itertools
import json
import math
import re
from pathlib import Path

import yaml

from ..errors import InputError
from .files import check_file, reading

RECIPE_ENDINGS = (".yaml", ".yml", ".json")
# In an installed package, and in a checkout.
_FOLDERS = (Path(__file__).parents[1] / "recipes", Path(__file__).parents[2] / "recipes")
RECIPES = next((folder for folder in _FOLDERS if folder.is_dir()), _FOLDERS[0])

# Flags that name data, by kind of source, and flags that describe a data set on the Hub and do not apply to files.
_SOURCES = (("dataset_name",), ("train_file", "validation_file", "test_file"), ("train_dir", "validation_dir"))
_OF_DATASET = ("dataset_config_name", "streaming", *(f"{part}_split_name" for part in ("train", "validation", "test")))

# A quoted text, in which nothing is a key, or the key of a `key=value` pair.
_KEY = re.compile(r"""(?<![^\s=:,\[{])("(?:\\.|[^"\\])*"|'[^']*')|(^|,)\s*([^\s=,'"{}\[\]]+)\s*=""")


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node, deep=False):
        keys = set()
        for key_node, value_node in node.value:
            key = self.construct_object(key_node, deep=True)
            empty = node.flow_style and value_node.value == "" and value_node.style is None
            if not isinstance(key, str) or key in keys or empty:
                line = key_node.start_mark.line + 1
                raise ValueError(f"the key {key!r} must be text, unique, and have a value, in line {line}")
            keys.add(key)
        return super().construct_mapping(node, deep)


# YAML 1.1 reads 1e-6, and JSON's NaN, as text.
_NUMBER = re.compile(r"(?:[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+|[-+]\.[0-9]+|NaN|-?Infinity)$")
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _NUMBER, None)


def command_line(argv: list[str]) -> list[str]:
    """
    Turns recipes at the start of a command line into flags, and merges all --config_overrides key by key. Data named by
    flags replace those of the recipes.
    """
    paths = list(itertools.takewhile(lambda word: word.lower().endswith(RECIPE_ENDINGS), argv))
    recipe = merge(*(read_recipe(find_recipe(path)) for path in paths))
    flags, typed, texts, words = [], set(), [], iter(argv[len(paths) :])
    for word in words:
        flag, equals, text = word.partition("=")
        name = flag.replace("-", "_").removeprefix("__")
        typed.add(name if flag.startswith("--") else None)
        if name != "config_overrides" or (text := text if equals else next(words, None)) is None:
            flags.append(word)
        else:
            texts.append(text)
    drop_replaced_data(recipe, typed)
    if len(texts) == 1 and recipe.get("config_overrides") is None:
        # As it was typed.
        recipe["config_overrides"] = texts.pop()
    given = []
    for name, value in merge(recipe, *({"config_overrides": parse_overrides(text)} for text in texts)).items():
        values = [json.dumps(one) if isinstance(one, dict) else str(one) for one in _list(value) if one is not None]
        # So that a negative number is not read as a flag.
        if len(values) == 1 and values[0].startswith("-"):
            given.append(f"--{name}={values[0]}")
        elif values:
            given += [f"--{name}", *values]
    return given + flags


def find_recipe(name: str) -> Path:
    """Returns the file of a recipe: if "recipes/..." or "paper/recipes/..." is not here, the project's file."""
    path = Path(name)
    shipped = RECIPES.parent / path
    return shipped if path.parts[0] in ("recipes", "paper") and not path.exists() and shipped.is_file() else path


def merge(*recipes: dict[str, object]) -> dict[str, object]:
    """
    Merges recipes: the last wins, but mappings are merged key by key, and null in them removes an earlier value. Data
    that a recipe names replace those of the recipes before it.
    """
    merged: dict[str, object] = {}
    for recipe in recipes:
        drop_replaced_data(merged, {name for name, value in recipe.items() if value is not None})
        for name, value in recipe.items():
            old = merged.get(name)
            if isinstance(value, dict) and isinstance(old, dict):
                value = {key: one for key, one in (old | value).items() if one is not None or old.get(key) is None}
            merged[name] = value
    return merged


def drop_replaced_data(earlier: dict[str, object], later: set[str]):
    """
    Removes data from `earlier` values if the `later` flags name data from another kind of source: a data set on the
    Hub, files, or folders. What describes a removed data set, such as its configuration, is removed with it. A GLUE
    task stays: without its data set, it says which columns, labels and metrics files have.
    """
    if not any(later.intersection(names) for names in _SOURCES):
        return
    for names in _SOURCES:
        if not later.intersection(names):
            removed = [earlier.pop(name, None) for name in names]
            if names == ("dataset_name",) and removed != [None]:
                for name in _OF_DATASET:
                    earlier.pop(name, None)


def read_recipe(path: Path, within: tuple[Path, ...] = ()) -> dict[str, object]:
    """
    A recipe as a mapping from flags to values. Under `include` it may name other recipes, by paths relative to its own,
    and override their values; null removes a value.

    Raises:
        InputError: If a file is missing, includes itself (`within` are the files that include it), or does not map
            flags to values, lists of values, or mappings to either.
    """
    if path.resolve() in [one.resolve() for one in within]:
        raise InputError(f"{within[-1]} includes {path}, which includes it too: remove one of the two.")
    check_file(path)
    with reading([path], "a recipe"):
        content = _read_yaml(path.read_text(encoding="utf-8-sig"))
        if not isinstance(content, dict):
            raise ValueError("it must map flags to values, one per line, such as 'learning_rate: 1e-4'")
        # `learning-rate` is the same flag.
        recipe = {name.replace("-", "_"): value for name, value in content.items()}
        if len(recipe) < len(content):
            raise ValueError("a flag is named twice, with - and with _: leave one out")
        if isinstance(recipe.get("config_overrides"), str):
            recipe["config_overrides"] = parse_overrides(recipe["config_overrides"])
        for name, value in recipe.items():
            if not all(map(_is_plain, value.values() if isinstance(value, dict) else [value])):
                raise ValueError(f"{name} must be a finite value, a list of them, or a mapping to values and lists")
    included = [path.parent / str(name) for name in _list(recipe.pop("include", []))]
    return merge(*(read_recipe(other, (*within, path)) for other in included), recipe)


def parse_overrides(text: str) -> dict[str, object]:
    """--config_overrides as a mapping, from `key=value` pairs or JSON; raises InputError if it is neither."""
    with reading([f"--config_overrides {text[:200]}"], "key=value pairs with commas between them, or as JSON"):
        if not text.lstrip().startswith("{"):
            # As a mapping of YAML, of which JSON is a part.
            text = "{" + _KEY.sub(lambda part: part[1] or f"{part[2]}{part[3]}: ", text) + "\n}"
        # Passed on as JSON, which has only finite numbers.
        return json.loads(json.dumps(_read_yaml(text), allow_nan=False))


def _read_yaml(text: str) -> object:
    try:
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        reason = f"{error.problem}, in line {error.problem_mark.line + 1}"
    # Outside of the handler: the first line of that error says less.
    raise ValueError(reason)


def _is_plain(value: object) -> bool:
    finite = [isinstance(one, str | int) or (isinstance(one, float) and math.isfinite(one)) for one in _list(value)]
    return value is None or (len(finite) > 0 and all(finite))


def _list(value: object) -> list:
    return value if isinstance(value, list) else [value]
