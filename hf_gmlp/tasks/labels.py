"""Labels of sentences and images: those of a column, those of a checkpoint, and those written into a config."""

import logging
import re
from collections.abc import Sequence
from typing import NamedTuple

from datasets import ClassLabel, Dataset, Value
from transformers import PreTrainedConfig

from ..errors import InputError

logger = logging.getLogger(__name__)

# The values of a config's `problem_type`: a number, one class, or any number of classes per row.
REGRESSION, ONE_CLASS, CLASSES = "regression", "single_label_classification", "multi_label_classification"

# Text for a missing label; "None" and "NA" may be names.
_MISSING = ("", "nan", "null")
_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*")
_WHOLE = re.compile(r"\s*\+?(-?\d+)(?:\.0*)?\s*")


class Labels(NamedTuple):
    """The names of the class ids, None for numbers; and `REGRESSION`, `ONE_CLASS` or `CLASSES`."""

    names: list[str] | None
    problem_type: str


class LabeledData(NamedTuple):
    """Splits such as "train" and "validation_matched", with a column "labels" if they have any; and `Labels`."""

    splits: dict[str, Dataset]
    labels: list[str] | None
    problem_type: str


def number_labels(
    splits: dict[str, Dataset],
    columns: Sequence[str],
    label_column: str,
    flag: str,
    labels: Labels | None = None,
    *,
    known: Labels | None,
    train: bool,
    do_regression: bool | None = None,
    numbered: Sequence[str] | None = None,
) -> tuple[Labels, dict[str, Dataset]]:
    """Returns what is predicted, by default what `find_labels` finds in the first split, and the splits with only the
    `columns`, which the `flag` names, and "labels" (`label_ids`), except test data without labels.

    The order of `known`, what the checkpoint predicts, is kept if it has the same classes, or more and is not trained.
    Raises an InputError if a column or a value is missing or there are no rows, or as `find_labels` and `label_ids` do.
    """
    if len({*columns, label_column}) <= len(columns):
        raise InputError(f"The columns {', '.join(columns)} and {label_column}, of the label, must be different.")
    values = {}
    for split, dataset in splits.items():
        data = data_of(split)
        for column in columns if split.startswith("test") else (*columns, label_column):
            if column not in dataset.column_names:
                present, flags = ", ".join(dataset.column_names), f"--{flag} and --label_column_name"
                raise InputError(f"The {data} have no column {column!r} but {present}: name yours with {flags}.")
        if len(dataset) == 0:
            raise InputError(f"The {data} have no rows.")
        for column in columns:
            empty = dataset.data.column(column).is_null().index(True).as_py()
            if empty >= 0:
                raise InputError(f"Row {empty + 1} of the {data} has nothing in the column {column!r}.")
        if label_column in dataset.column_names:
            values[split] = read_labels(dataset, label_column)
    if labels is None:
        first = next(iter(splits))
        labels = find_labels(splits[first].features[label_column], values[first], first, do_regression)
    if known is not None and known.problem_type == labels.problem_type != REGRESSION:
        found, trained = set(labels.names), set(known.names)
        labels = known if found == trained or (not train and found < trained) else labels
    # GLUE's test data have -1 for a missing label.
    none = {None} if "-1" in (labels.names or ()) else {None, "-1"}
    numbered_splits = {}
    for split, dataset in splits.items():
        dataset, names = dataset.select_columns(list(columns)), values.get(split, [None])
        if not split.startswith("test") or any(isinstance(name, list) or name not in none for name in names):
            # In a new column: mapped in place, it may turn back into strings.
            dataset = dataset.add_column("labels", label_ids(names, labels, split, numbered))
        numbered_splits[split] = dataset
    return labels, numbered_splits


def read_labels(dataset: Dataset, column: str) -> list:
    """Returns the name of every row's label, None for a missing one, or a list of names for several.

    1, 1.0, "1" and "1.0" are the same name; "007" and "7" are not.
    """
    feature = getattr(dataset.features[column], "feature", dataset.features[column])
    if not isinstance(feature, ClassLabel | Value):
        raise InputError(f"The column {column!r} must hold labels, not {feature}: name it with --label_column_name.")

    def name(value: object) -> str | None:
        if isinstance(feature, ClassLabel) and isinstance(value, int):
            return feature.names[value] if 0 <= value < len(feature.names) else None
        text = "" if value is None else str(value)
        whole = _WHOLE.fullmatch(text)
        return whole[1] if whole else None if text.strip().lower() in _MISSING else text

    return [[name(one) for one in value] if isinstance(value, list) else name(value) for value in dataset[column]]


def find_labels(feature: object, values: list, split: str, do_regression: bool | None = None) -> Labels:
    """Finds what a column's labels are: numbers to predict if any has a fraction or with `do_regression`, else classes,
    in the order of the column's feature or sorted (numbers by value). Raises an InputError if there are none, numbers
    and names are mixed, or names differ only in case or white space.
    """
    data, several = f"The labels of the {data_of(split)}", any(isinstance(value, list) for value in values)
    problem_type = CLASSES if several else ONE_CLASS
    feature = getattr(feature, "feature", feature)
    if isinstance(feature, ClassLabel) and not do_regression:
        return Labels(list(feature.names), problem_type)
    found = (name for value in values for name in (value if isinstance(value, list) else [value]))
    names = list(dict.fromkeys(name for name in found if name is not None))
    numbers = [name for name in names if _NUMBER.fullmatch(name)]
    if not names:
        raise InputError(f"{data} are missing.")
    fraction = any(not float(number).is_integer() for number in numbers)
    if do_regression or (do_regression is None and fraction and len(numbers) == len(names) and not several):
        return Labels(None, REGRESSION)
    if 0 < len(numbers) < len(names) or (several and fraction):
        raise InputError(f"{data} must be names or whole numbers, not both or fractions, got {listed(names)}.")
    check_names(names, data)
    return Labels(sorted(names, key=float if numbers else None), problem_type)


def check_names(names: Sequence[str], where: str):
    """Raises an InputError if two names differ only in case, or in white space at their ends."""
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(name.strip().casefold(), name)
        if other != name:
            raise InputError(f"{where} must differ in more than case or white space: {other!r} and {name!r}.")


def label_ids(values: list, labels: Labels, split: str, numbered: Sequence[str] | None = None) -> list:
    """Returns for every row the class id; for `REGRESSION` the number; for `CLASSES` 1.0 for each of its classes and
    0.0 for the others. The names in `numbered`, by default placeholders such as "LABEL_0", also go by their number.

    Raises an InputError if a row has no label, an unknown one, one that is not a number, or several for one.
    """
    names, several = labels.names or [], labels.problem_type == CLASSES
    ids = {name: number for number, name in enumerate(names)}
    numbered = numbered or (names if _are_placeholders(names) else [])
    ids = {str(number): ids[name] for number, name in enumerate(numbered)} | ids
    result: list = []
    for row, value in enumerate(values, start=1):
        where = f"Row {row} of the {data_of(split)} has"
        if value is None:
            raise InputError(f"{where} no label.")
        if isinstance(value, list) != several:
            raise InputError(f"{where} the label {value!r}, which must {'' if several else 'not '}be a list.")
        if labels.names is None:
            if not _NUMBER.fullmatch(value):
                raise InputError(f"{where} the label {value!r}, which is not a number.")
            result.append(float(value))
            continue
        for name in value if several else [value]:
            if name not in ids:
                raise InputError(f"{where} the label {name!r}, which is not one of {listed(names, 10)}.")
        chosen = {ids[name] for name in value} if several else ids[value]
        result.append([float(number in chosen) for number in range(len(names))] if several else chosen)
    return result


def trained_labels(config: PreTrainedConfig, head: str) -> Labels | None:
    """Returns what a checkpoint was trained to predict; None if it has no `head`, such as "ForImageClassification"."""
    if not any(name.endswith(head) for name in config.architectures or ()):
        return None
    problem_type = config.problem_type or (REGRESSION if config.num_labels == 1 else ONE_CLASS)
    names = [str(config.id2label.get(number, f"LABEL_{number}")) for number in range(config.num_labels)]
    return Labels(None if problem_type == REGRESSION else names, problem_type)


def set_labels(config: PreTrainedConfig, labels: Labels, head: str, *, train: bool, new_classifier: bool) -> bool:
    """Writes the labels into a config (`id2label`, `label2id`, `problem_type`), and returns whether the checkpoint was
    trained for other labels and must get a new classifier from `load_model`.

    Raises an InputError if it must but may not (`new_classifier`), is not a classifier and is not trained, or would
    learn a single class.
    """
    known, title = trained_labels(config, head), config.name_or_path
    names = ["value"] if labels.names is None else labels.names
    if known is None and not train:
        raise InputError(f"{title or 'A new model'} is not a trained classifier: train it first, with --do_train.")
    if train and labels.problem_type == ONE_CLASS and len(names) < 2:
        raise InputError(f"The training data have only the label {names[0]!r}; there must be two or more.")
    fits = known is not None and known.problem_type == labels.problem_type and config.num_labels == len(names)
    # Two lists of ImageNet's thousand classes differ in a few words.
    equal = fits and sum(a == b for a, b in zip(known.names or names, names)) >= 0.99 * len(names)
    new = known is not None and not equal and not (fits and _are_placeholders(known.names))
    if new and not (train and new_classifier):
        advice = "train a new classifier with --ignore_mismatched_sizes" if train else "evaluate it on its own classes"
        if fits:
            advice += ", or, if these are other names of the same classes, write them into id2label of its config.json"
        elif known.names is None:
            advice += ", or give --do_regression if the labels are numbers to predict"
        facts = f"was trained to predict {_words(known)}, but the data have {_words(labels)}"
        raise InputError(f"The checkpoint {title} {facts}: {advice}.")
    if new or (fits and known != labels):
        logger.info("The %s: %s", "classifier is new" if new else "classes take the names of the data", _words(labels))
    config.id2label = dict(enumerate(names))
    config.label2id = {name: number for number, name in enumerate(names)}
    config.problem_type = labels.problem_type
    return new


def _are_placeholders(names: list[str]) -> bool:
    """Whether these are the default names of transformers."""
    return names == [f"LABEL_{number}" for number in range(len(names))]


def _words(labels: Labels) -> str:
    if labels.names is None:
        return "numbers"
    several = "any of " if labels.problem_type == CLASSES else ""
    return f"{several}{len(labels.names)} classes ({listed(labels.names)})"


def listed(names: list[str], most: int = 5) -> str:
    """Returns the first names, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def data_of(split: str) -> str:
    """Returns "validation_matched" as "validation data (matched)"."""
    kind, _, part = split.partition("_")
    kind = {"train": "training"}.get(kind, kind)
    return f"{kind} data" + (f" ({part})" if part else "")
