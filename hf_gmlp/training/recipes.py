"""Recipes: YAML files of flags, which build on each other, and overrides of a config, which are merged key by key."""

import json
import math
import re
from pathlib import Path

import yaml

from ..data.files import check_file, reading
from ..errors import InputError

RECIPE_ENDINGS = (".yaml", ".yml", ".json")


class _Loader(yaml.SafeLoader):
    """YAML of plain values: each key once and text, no tags, and no aliases, which may stand for more than fits."""

    yaml_implicit_resolvers = {}

    def compose_node(self, parent, index):
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent) or event.tag is not None:
            self.refuse(event.start_mark, "there is an alias (*) or a tag (!): write the value itself, or quote it")
        return super().compose_node(parent, index)

    def construct_mapping(self, node, deep=False):
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                self.refuse(key_node.start_mark, f"the key {key} is not text: quote it")
            if key in seen:
                self.refuse(key_node.start_mark, f"{key} is named twice: leave one out")
            seen.add(key)
        return super().construct_mapping(node, deep)

    def refuse(self, mark, problem):
        raise yaml.constructor.ConstructorError(problem=problem, problem_mark=mark)


# As YAML 1.1 reads them, but that 1e-6 is a number, and 12:30, 010 and 2026-01-01 are text.
for _tag, _pattern in {
    "null": r"~|null|Null|NULL|",
    "bool": r"yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF",
    "int": r"[-+]?(?:0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)",
    "float": r"[-+]?(?:(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+|\.(?:inf|Inf|INF))"
    r"|\.(?:nan|NaN|NAN)",
}.items():
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"(?:{_pattern})$"), None)


def command_line(argv: list[str]) -> list[str]:
    """
    A command line whose first words may be recipes, as flags alone: the later wins over the earlier, and flags over
    recipes. All `--config_overrides` are merged key by key.

    Raises:
        InputError: If a recipe or the text of `--config_overrides` cannot be read.
    """
    count = next((i for i, word in enumerate(argv) if not word.lower().endswith(RECIPE_ENDINGS)), len(argv))
    recipe: dict[str, object] = {}
    for path in argv[:count]:
        recipe = merge(recipe, read_recipe(Path(path)))
    flags, texts = [], []
    words = iter(argv[count:])
    for word in words:
        flag, equals, text = word.partition("=")
        if flag.replace("-", "_") != "__config_overrides" or (text := text if equals else next(words, None)) is None:
            flags.append(word)
        else:
            texts.append(text)
    if len(texts) == 1 and recipe.get("config_overrides") is None:
        # As it was typed.
        recipe["config_overrides"] = texts.pop()
    for text in texts:
        recipe = merge(recipe, {"config_overrides": parse_overrides(text)})
    return [word for name, value in recipe.items() if value is not None for word in _words(name, value)] + flags


def _words(name: str, value: object) -> list[str]:
    """A flag and its values."""
    values = [json.dumps(one) if isinstance(one, dict) else str(one) for one in _list(value)]
    # A single value is not taken for a flag, whatever it begins with.
    return [f"--{name}={values[0]}"] if values[0].startswith("-") else [f"--{name}", *values]


def _list(value: object) -> list:
    return value if isinstance(value, list) else [value]


def merge(earlier: dict[str, object], later: dict[str, object]) -> dict[str, object]:
    """
    One recipe over another: values replace each other, but mappings are merged key by key. In a mapping null takes away
    what the earlier one has, and is a value like any other where it has nothing.
    """
    merged = earlier | later
    for name, value in later.items():
        before = earlier.get(name)
        if isinstance(value, dict) and isinstance(before, dict):
            taken = {key for key, one in value.items() if one is None and before.get(key) is not None}
            merged[name] = {key: one for key, one in (before | value).items() if key not in taken}
    return merged


def read_recipe(path: Path, within: tuple[Path, ...] = ()) -> dict[str, object]:
    """
    A recipe as a mapping from flags to values. Under `include` it may name other recipes, by paths relative to its
    own, which it builds on and whose values it overrides; null takes a value away.

    Args:
        within: The recipes that include this one.

    Raises:
        InputError: If a file is missing, includes itself, or is not a mapping from flags to values, lists of values, or
            mappings of either.
    """
    if within and not path.is_file():
        raise InputError(f"{within[-1]} includes {path}, which is not a file.")
    if path.resolve() in [one.resolve() for one in within]:
        raise InputError(f"{within[-1]} includes {path}, which includes it too: take one of the two out.")
    check_file(path)
    with reading([path], "a recipe"):
        recipe = _read_yaml(path.read_bytes().decode("utf-8-sig"))
        if not isinstance(recipe, dict):
            raise ValueError("it must map flags to values, one a line, such as 'learning_rate: 1e-4'")
        # `learning-rate` is the same flag.
        recipe = _once([(name.replace("-", "_"), value) for name, value in recipe.items()])
        included = _list(recipe.pop("include", []))
        if not all(isinstance(other, str) for other in included):
            raise ValueError("include must be the name of a file, or a list of names")
        if isinstance(recipe.get("config_overrides"), str):
            recipe["config_overrides"] = parse_overrides(recipe["config_overrides"])
        for name, value in recipe.items():
            if not all(map(_is_plain, value.values() if isinstance(value, dict) else [value])):
                raise ValueError(f"{name} must be a finite value, a list of such, or one mapping to values and lists")
    merged: dict[str, object] = {}
    for other in included:
        merged = merge(merged, read_recipe(path.parent / other, (*within, path)))
    return merge(merged, recipe)


def _is_plain(value: object) -> bool:
    if isinstance(value, list):
        return len(value) > 0 and not any(isinstance(one, list) or one is None or not _is_plain(one) for one in value)
    return value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))


def parse_overrides(text: str) -> dict[str, object]:
    """
    The text of --config_overrides as a mapping: a JSON object, or `key=value` pairs parted by commas, each value as in
    a recipe. Commas within brackets or quotation marks part nothing.

    Raises:
        InputError: If it is neither, a key is named twice, or a number is not finite.
    """
    try:
        if text.lstrip().startswith("{"):
            overrides = json.loads(text, object_pairs_hook=_once)
        else:
            overrides = _once([_pair(item) for item in map(str.strip, _split(text)) if item])
        # It is handed on as JSON, which has finite numbers only.
        json.dumps(overrides, allow_nan=False)
        return overrides
    except (ValueError, RecursionError) as error:
        raise InputError(f"--config_overrides cannot be read: {str(error).rstrip('.')}; got {text[:200]}.") from error


def _pair(item: str) -> tuple[str, object]:
    key, _, value = (part.strip() for part in item.partition("="))
    if not key or not value:
        raise ValueError(f"it must be key=value pairs parted by commas, not {item!r}")
    return key, _read_yaml(value)


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    named = [key for key, _ in pairs]
    for key in set(named):
        if named.count(key) > 1:
            raise ValueError(f"{key} is named twice: leave one out")
    return dict(pairs)


def _split(text: str) -> list[str]:
    """The parts of a text between the commas that stand neither in brackets nor in quotation marks."""
    parts, awaited = [""], ""
    for sign in text:
        if sign == awaited[-1:]:
            awaited = awaited[:-1]
        elif awaited[-1:] not in ("'", '"'):
            awaited += {"[": "]", "{": "}", "'": "'", '"': '"'}.get(sign, "")
            if sign in "]}":
                raise ValueError(f"a {sign} closes nothing")
        if sign == "," and not awaited:
            parts.append("")
        else:
            parts[-1] += sign
    if awaited:
        raise ValueError(f"a {awaited[-1]} is missing")
    return parts


def _read_yaml(text: str) -> object:
    """
    Raises:
        ValueError: What is wrong, in one line.
    """
    try:
        return _Loader(text).get_single_data()
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        reason = str(error).splitlines()[0] if mark is None else f"{error.problem}, in line {mark.line + 1}"
    raise ValueError(reason)
