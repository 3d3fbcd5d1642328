"""Labels of sentences and images: found in a column, turned into class ids, and written into a config."""

import logging
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
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
    columns: Collection[str],
    label_column: str,
    flag: str,
    labels: Labels | None = None,
    *,
    known: Labels | None,
    train: bool,
    do_regression: bool | None = None,
    numbered: Sequence[str] | None = None,
) -> tuple[Labels, dict[str, Dataset]]:
    """Return what is predicted, and the splits with only `columns`, which `flag` names, and "labels" (`label_ids`).

    Test data without labels have no such column. What is predicted is by default what `find_labels` finds in the first
    split, in the order of `known`, what the checkpoint predicts, if that has the same classes (untrained: or more).

    Raises:
        InputError: If a column, a value or all rows are missing, or as `find_labels` and `label_ids` do.
    """
    if label_column in columns:
        raise InputError(f"--{flag} names {label_column!r}, which is the column of the labels: name another.")
    for split, dataset in splits.items():
        _check_columns(dataset, data_of(split), columns, None if split.startswith("test") else label_column, flag)
    labeled = [split for split, dataset in splits.items() if label_column in dataset.column_names]
    values = {split: read_labels(splits[split], label_column) for split in labeled}
    if labels is None:
        first = next(iter(splits))
        labels = find_labels(splits[first].features[label_column], values[first], first, do_regression)
    if known is not None and known.names and labels.names and known.problem_type == labels.problem_type:
        found, trained = set(labels.names), set(known.names)
        if found == trained or (found < trained and not train):
            labels = known
    # GLUE's test data have -1 for a missing label.
    missing = [None] if "-1" in (labels.names or ()) else [None, "-1"]
    results = {}
    for split, dataset in splits.items():
        results[split] = dataset.select_columns(list(columns))
        if not split.startswith("test") or any(value not in missing for value in values.get(split, ())):
            # In a new column: mapped in place, it may turn back into strings.
            results[split] = results[split].add_column("labels", label_ids(values[split], labels, split, numbered))
    return labels, results


def _check_columns(dataset: Dataset, data: str, columns: Collection[str], label_column: str | None, flag: str):
    """Raise an InputError if a column is missing, or has no rows or an empty one."""
    for column in columns if label_column is None else (*columns, label_column):
        if column not in dataset.column_names:
            present, flags = ", ".join(dataset.column_names), f"--{flag} and --label_column_name"
            raise InputError(f"The {data} have no column {column!r} but {present}: name yours with {flags}.")
    if len(dataset) == 0:
        raise InputError(f"The {data} have no rows.")
    for column in columns:
        empty = dataset.data.column(column).is_null().index(True).as_py()
        if empty >= 0:
            raise InputError(f"Row {empty + 1} of the {data} has nothing in the column {column!r}.")


def read_labels(dataset: Dataset, column: str) -> list:
    """Return the name of each row's label, None for a missing one, or a list of names for several.

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
    """Return what the labels of a column are.

    They are numbers to predict with `do_regression`, or by default if any has a fraction; else classes, in the order of
    the column's `feature` or sorted (numbers by value). Raises an InputError if there are none, numbers and names are
    mixed, or two names look the same (`check_names`).
    """
    where, several = f"The labels of the {data_of(split)}", any(isinstance(value, list) for value in values)
    problem_type = CLASSES if several else ONE_CLASS
    feature = getattr(feature, "feature", feature)
    if isinstance(feature, ClassLabel) and not do_regression:
        return Labels(list(feature.names), problem_type)
    counts = Counter(name for value in values for name in (value if isinstance(value, list) else [value]))
    names = [name for name in counts if name is not None]
    numbers = [name for name in names if _NUMBER.fullmatch(name)]
    fractions = [name for name in numbers if not float(name).is_integer()]
    if not names:
        raise InputError(f"{where} are missing.")
    if do_regression:
        return Labels(None, REGRESSION)
    if 0 < len(numbers) < len(names) or (several and fractions):
        raise InputError(f"{where} must be names or whole numbers, not both or fractions, got {listed(names)}.")
    if fractions and do_regression is None:
        words = (
            "%s are numbers to predict, since %d of %d have a fraction, such as %s; for classes: --do_regression false"
        )
        logger.info(words, where, sum(counts[name] for name in fractions), len(values), fractions[0])
        return Labels(None, REGRESSION)
    check_names(names, where)
    return Labels(sorted(names, key=float if numbers else None), problem_type)


def check_names(names: Iterable[str], where: str):
    """Raise an InputError if two names differ only in case, white space or the Unicode form of a character."""
    seen: dict[str, str] = {}
    for name in names:
        # NFKC also turns a no-break space into a space.
        other = seen.setdefault(" ".join(unicodedata.normalize("NFKC", name).casefold().split()), name)
        if other != name:
            raise InputError(f"{where} must differ in more than case or white space: {other!r} and {name!r} (in NFKC).")


def label_ids(values: list, labels: Labels, split: str, numbered: Sequence[str] | None = None) -> list:
    """Return the class id of each row; for `REGRESSION` the number; for `CLASSES` 1.0 for its classes, 0.0 for others.

    The names in `numbered`, by default placeholders such as "LABEL_0", also go by their number. Raises an InputError if
    a row has no label, an unknown one, or one of the wrong kind.
    """
    names, several = labels.names or [], labels.problem_type == CLASSES
    ids = {name: number for number, name in enumerate(names)}
    numbered = numbered or (names if names == _placeholders(len(names)) else [])
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
                check_names([*names, name or ""], f"{where} an unknown label. Labels")
                raise InputError(f"{where} the label {name!r}, which is not one of {listed(names, 10)}.")
        if several:
            chosen = {ids[name] for name in value}
            result.append([float(number in chosen) for number in range(len(names))])
        else:
            result.append(ids[value])
    return result


def trained_labels(config: PreTrainedConfig, head: str) -> Labels | None:
    """Return what a checkpoint was trained to predict; None if it has no `head`, such as "ForImageClassification"."""
    if not any(name.endswith(head) for name in config.architectures or ()):
        return None
    problem_type = config.problem_type or (REGRESSION if config.num_labels == 1 else ONE_CLASS)
    names = [str(config.id2label.get(number, f"LABEL_{number}")) for number in range(config.num_labels)]
    return Labels(None if problem_type == REGRESSION else names, problem_type)


def set_labels(config: PreTrainedConfig, labels: Labels, head: str, *, train: bool, new_classifier: bool) -> bool:
    """Write the labels into a config: `id2label`, `label2id` and `problem_type`.

    Returns:
        Whether the checkpoint was trained for other labels: its classifier is new if its size changes.

    Raises:
        InputError: If it may not get one, is no classifier and is not trained, or would learn a single class.
    """
    known, names = trained_labels(config, head), labels.names or ["value"]
    title = config.name_or_path or "The model"
    if known is None and not train:
        raise InputError(f"{title} is not a trained classifier: train it first, with --do_train.")
    if train and labels.problem_type == ONE_CLASS and len(names) < 2:
        raise InputError(f"The training data have only the label {names[0]!r}; there must be two or more.")
    new = False
    if known is not None and known != labels:
        new = known != Labels(_placeholders(len(names)), labels.problem_type)
        if new and not (train and new_classifier):
            facts = f"{title} was trained to predict {_words(known)}, but the data have {_words(labels)}"
            advice = "give it a new classifier with --do_train --ignore_mismatched_sizes"
            raise InputError(f"{facts}: evaluate it on its own labels (numbers with --do_regression), or {advice}.")
        logger.info("The classes take the names of the data: %s", _words(labels))
    config.id2label = dict(enumerate(names))
    config.label2id = {name: number for number, name in enumerate(names)}
    config.problem_type = labels.problem_type
    return new


def _placeholders(count: int) -> list[str]:
    """Return the default names of transformers, which say nothing about the classes."""
    return [f"LABEL_{number}" for number in range(count)]


def _words(labels: Labels) -> str:
    if labels.names is None:
        return "numbers"
    several = "any of " if labels.problem_type == CLASSES else ""
    return f"{several}{len(labels.names)} classes ({listed(labels.names)})"


def listed(names: list[str], most: int = 5) -> str:
    """Return the first names, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def data_of(split: str) -> str:
    """Return "validation_matched" as "validation data (matched)"."""
    kind, _, part = split.partition("_")
    kind = {"train": "training"}.get(kind, kind)
    return f"{kind} data" + (f" ({part})" if part else "")
