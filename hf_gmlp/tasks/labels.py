"""Labels of sentences and images: found in a column, turned into class ids, and written into a config."""

import logging
import re
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from datasets import ClassLabel, Dataset, Value
from transformers import PreTrainedConfig

from ..errors import InputError, listed

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

    def __str__(self) -> str:
        if self.names is None:
            return "a number"
        several = "a list from" if self.problem_type == CLASSES else "one of"
        return f"{several} {len(self.names)} classes ({listed(self.names)})"


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
) -> tuple[dict[str, Dataset], Labels]:
    """Return the splits with only `columns`, which `flag` names, and "labels" (`label_ids`), and what is predicted.

    Test data without labels have no such column. What is predicted is by default what `find_labels` finds in the first
    split, in the order of `known`, what the checkpoint predicts, if that has the same classes (untrained: or more).

    Args:
        numbered: Classes that the data may also name by their number; by default placeholders such as "LABEL_0".

    Raises:
        InputError: If a column, a value or all rows are missing, or as `find_labels` and `label_ids` do.
    """
    for split, dataset in splits.items():
        _check_columns(dataset, split, [*columns, *([] if split.startswith("test") else [label_column])], flag)
    if numbered is None and labels is not None and labels.names == _placeholders(labels):
        numbered = labels.names
    labeled = [split for split, dataset in splits.items() if label_column in dataset.column_names]
    values = {split: read_labels(splits[split], label_column, numbered or ()) for split in labeled}
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
            results[split] = results[split].add_column("labels", label_ids(values[split], labels, split))
    return results, labels


def _check_columns(dataset: Dataset, split: str, columns: list[str], flag: str):
    """Raise an InputError if a column is missing, or has no rows or an empty one."""
    if len(dataset) == 0:
        raise InputError(f"The {split} data have no rows.")
    for column in columns:
        if column not in dataset.column_names:
            present, flags = ", ".join(dataset.column_names), f"--{flag} and --label_column_name"
            raise InputError(f"The {split} data have no column {column!r} but {present}: name yours with {flags}.")
        empty = dataset.data.column(column).is_null().index(True).as_py()
        if empty >= 0:
            raise InputError(f"Row {empty + 1} of the {split} data has nothing in the column {column!r}.")


def read_labels(dataset: Dataset, column: str, numbered: Sequence[str] = ()) -> list:
    """Return the name of each row's label, None for a missing one, a list of names for several, or, in a column of
    dictionaries, the probability of each name.

    1, 1.0, "1" and "1.0" are the same name, or the second of the `numbered` names; "007" and "7" are not.
    """
    feature = getattr(dataset.features[column], "feature", dataset.features[column])
    if isinstance(feature, dict):
        return list(dataset[column])
    if not isinstance(feature, ClassLabel | Value):
        raise InputError(f"The column {column!r} must hold labels, not {feature}: name it with --label_column_name.")
    by_number: dict[str | None, str] = {str(number): name for number, name in enumerate(numbered)}

    def name(value: object) -> str | None:
        if isinstance(feature, ClassLabel) and isinstance(value, int):
            text = feature.names[value] if 0 <= value < len(feature.names) else None
        else:
            text = None if value is None or str(value).strip().lower() in _MISSING else str(value)
            whole = _WHOLE.fullmatch(text or "")
            text = whole[1] if whole else text
        return by_number.get(text, text)

    return [[name(one) for one in value] if isinstance(value, list) else name(value) for value in dataset[column]]


def find_labels(feature: object, values: list, split: str, do_regression: bool | None = None) -> Labels:
    """Return what the labels of a column are.

    They are numbers to predict with `do_regression`, or by default if any has a fraction; else classes, in the order of
    the column's `feature` or sorted (numbers by value). Raises an InputError if numbers and names are mixed, or two
    names look the same.
    """
    if isinstance(feature, dict):
        check_names(feature, f"The labels of the {split} data")
        return Labels(list(feature), ONE_CLASS)
    problem_type = CLASSES if any(isinstance(value, list) for value in values) else ONE_CLASS
    feature = getattr(feature, "feature", feature)
    if isinstance(feature, ClassLabel) and not do_regression:
        return Labels(list(feature.names), problem_type)
    every = (name for value in values for name in (value if isinstance(value, list) else [value]))
    names = [name for name in dict.fromkeys(every) if name is not None]
    numbers = [name for name in names if _NUMBER.fullmatch(name)]
    fraction = next((name for name in numbers if not float(name).is_integer()), None)
    if do_regression is None and fraction is not None:
        do_regression = True
        logger.info("Labels such as %s are numbers to predict; for classes: --do_regression false", fraction)
    if do_regression:
        return Labels(None, REGRESSION)
    if 0 < len(numbers) < len(names):
        raise InputError(f"The labels of the {split} data must be either names or numbers, got {listed(names)}.")
    check_names(names, f"The labels of the {split} data")
    return Labels(sorted(names, key=float if numbers else None), problem_type)


def check_names(names: Iterable[str], where: str):
    """Raise an InputError if two names differ only in case, white space or the Unicode form of a character."""
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(" ".join(unicodedata.normalize("NFKC", name).casefold().split()), name)
        if other != name:
            raise InputError(f"{where} must differ in more than case or white space: {other!r} and {name!r} (in NFKC).")


def label_ids(values: list, labels: Labels, split: str) -> list:
    """Return the class id of each row; for `REGRESSION` the number; for `CLASSES` 1.0 for its classes, 0.0 for others.

    A row of the training data may have a dictionary of probabilities instead, such as a teacher's for distillation: it
    becomes their list. Raises an InputError if a row has no label, an unknown one, or one of the wrong kind.
    """
    ids = {name: number for number, name in enumerate(labels.names or [])}
    result: list = []
    for row, value in enumerate(values, start=1):
        several = isinstance(value, list)
        chosen = value if several else [value]
        soft = isinstance(value, dict)
        if soft:
            # A name that another row has is None here.
            value = {name: probability for name, probability in value.items() if probability is not None}
            fits = split == "train" and labels.problem_type == ONE_CLASS and value.keys() <= ids.keys()
            fits = fits and min(value.values(), default=-1) >= 0 and abs(sum(value.values()) - 1) < 1e-3
        elif labels.names is None:
            fits = not several and _NUMBER.fullmatch(value or "") is not None
        else:
            fits = several == (labels.problem_type == CLASSES) and set(chosen) <= ids.keys()
        if not fits:
            found = "no label" if value is None else f"the label {value!r}, which is not {labels}"
            raise InputError(f"Row {row} of the {split} data has {found}.")
        if soft:
            result.append([float(value.get(name, 0)) for name in ids])
        elif several:
            result.append([float(name in chosen) for name in ids])
        else:
            result.append(float(value) if labels.names is None else ids[value])
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
        InputError: If it may not get one, or would learn a single class.
    """
    known, names = trained_labels(config, head), labels.names or ["value"]
    if train and labels.problem_type == ONE_CLASS and len(names) < 2:
        raise InputError(f"The training data have only the label {names[0]!r}; there must be two or more.")
    new = False
    if known is not None and known != labels:
        new = known != Labels(_placeholders(labels), labels.problem_type)
        if new and not (train and new_classifier):
            facts = f"{config.name_or_path or 'The model'} was trained to predict {known}, but the data have {labels}"
            advice = "give it a new classifier with --do_train --ignore_mismatched_sizes"
            raise InputError(f"{facts}: evaluate it on its own labels (numbers with --do_regression), or {advice}.")
        logger.info("The classes take the names of the data: %s", labels)
    config.id2label = dict(enumerate(names))
    config.label2id = {name: number for number, name in enumerate(names)}
    config.problem_type = labels.problem_type
    return new


def _placeholders(labels: Labels) -> list[str]:
    """Return the default names of transformers for these labels, which say nothing about the classes."""
    return [f"LABEL_{number}" for number in range(len(labels.names or []))]
