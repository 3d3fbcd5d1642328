"""Labels of texts and images: read from a column, converted to class ids, held out by class, written into a config."""

import ast
import json
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from datasets import ClassLabel, Dataset, Value
from transformers import PreTrainedConfig

from ..errors import InputError, listed

logger = logging.getLogger(__name__)

# The values of a config's `problem_type`: a number, one class, or any number of classes per row.
REGRESSION, ONE_CLASS, CLASSES = "regression", "single_label_classification", "multi_label_classification"
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
# The square of a larger error is infinite in float32.
LARGEST_NUMBER = 1e18


class Labels(NamedTuple):
    """The names of the class ids, None for numbers; and `REGRESSION`, `ONE_CLASS` or `CLASSES`."""

    names: list[str] | None
    problem_type: str

    def __str__(self) -> str:
        kind = "any of" if self.problem_type == CLASSES else "one of"
        return f"{kind} {len(self.names)} classes ({listed(self.names)})" if self.names else "a number"


def number_labels(
    splits: dict[str, Dataset],
    columns: Mapping[str, str],
    label_column: str,
    labels: Labels | None = None,
    *,
    trained: Labels | None,
    train: bool,
    do_regression: bool | None = None,
) -> tuple[dict[str, Dataset], Labels]:
    """Return the splits with only `columns`, renamed, and "labels" (see `label_ids`), and what the labels are.

    Test data without labels get no such column.

    Args:
        columns: Old and new names of the columns to keep.
        labels: What the labels are, by default what `find_labels` finds in the first split. The data may also have the
            numbers of these classes instead of their names.
        trained: What the checkpoint predicts. The order of its classes is kept if the data have the same ones or,
            without training, fewer.

    Raises:
        InputError: If a column, text or label is missing, or a label is unknown.
    """
    values = {}
    for split, dataset in splits.items():
        check_columns(dataset, split, columns, None if split.startswith("test") else label_column)
        if label_column in dataset.column_names:
            values[split] = read_labels(dataset, label_column, (labels and labels.names) or ())
    if labels is None:
        split, dataset = next(iter(splits.items()))
        labels = find_labels(dataset.features[label_column], values[split], do_regression)
    if trained and trained.names and labels.names and trained.problem_type == labels.problem_type:
        names, trained_names = set(labels.names), set(trained.names)
        if names == trained_names or (names < trained_names and not train):
            labels = trained
    # GLUE's test data have -1 for a missing label.
    unlabeled = [None] if "-1" in (labels.names or ()) else [None, "-1", "-1.0"]
    results = {}
    for split, dataset in splits.items():
        results[split] = dataset.select_columns(list(columns)).rename_columns(dict(columns))
        if not split.startswith("test") or any(value not in unlabeled for value in values.get(split, ())):
            ids = label_ids(values[split], labels, split, label_column)
            # A new column is needed, since `map` may convert ids in a column of strings back to strings.
            results[split] = results[split].add_column("labels", ids)
            logger.info("Labels of the %s data, column %r: %s", split, label_column, count_labels(ids, labels))
            if split == "train" and labels.problem_type == ONE_CLASS and len(dataset) == len(labels.names or ()):
                logger.warning("Every row has a class of its own: is the column %r the label?", label_column)
    return results, labels


def check_columns(dataset: Dataset, split: str, columns: Iterable[str], label_column: str | None = None) -> None:
    """Raise an InputError if there are no rows, or a column is missing or one of `columns` lacks a value."""
    if len(dataset) == 0:
        raise InputError(f"The {split} data have no rows.")
    names = dataset.column_names
    for column in (*columns, label_column):
        if column is not None and column not in names:
            raise InputError(
                f"The {split} data have no column {column!r}: name yours, one of {', '.join(names)}, with a flag. "
                "Several columns of 0 and 1 must be one column of lists, such as [0, 1, 0]."
            )
    for column in columns:
        empty = dataset.data.column(column).is_null().index(True).as_py()
        if empty >= 0:
            raise InputError(f"Row {empty + 1} of the {split} data has nothing in the column {column!r}.")


def read_labels(dataset: Dataset, column: str, class_names: Sequence[str] = ()) -> list:
    """Return the `label_names` of a column, or its dictionaries of probabilities."""
    feature = getattr(dataset.features[column], "feature", dataset.features[column])
    values = dataset[column][:]
    if isinstance(feature, dict):
        return values
    if not isinstance(feature, ClassLabel | Value):
        raise InputError(f"The column {column!r} must hold labels, not {feature}: name it with --label_column_name.")
    return label_names(values, class_names, feature.names if isinstance(feature, ClassLabel) else ())


def label_names(values: Sequence, class_names: Sequence[str] = (), feature_names: Sequence[str] = ()) -> list:
    """Return the name of each label, a list of names, or None if it is missing.

    Numbers of the `class_names` are replaced by these names, and integers of a ClassLabel by its `feature_names`.
    """
    by_number = {str(number): name for number, name in enumerate(class_names)}
    if by_number.keys() & set(class_names):
        # The names are numbers themselves, such as 1 to 5 stars.
        by_number = {}

    def name(value: object) -> str | None:
        if feature_names and isinstance(value, int):
            value = feature_names[value] if 0 <= value < len(feature_names) else None
        text = "" if value is None else str(value).strip()
        # "None" and "NA" may be names.
        return None if text.lower() in ("", "nan", "null") else by_number.get(text, text)

    cells = {value: _cell_list(value) for value in values if isinstance(value, str) and name(value) is not None}
    if cells and None not in cells.values():
        values = [cells.get(value) if isinstance(value, str) else value for value in values]
    lists = [value for value in values if isinstance(value, list)]
    items, sizes = {str(item) for value in lists for item in value}, {*map(len, lists)}
    is_vector = len(sizes) == 1 and max(sizes) > 1 and not feature_names
    # A class that no training row has is no class of the model.
    is_vector = is_vector and (len(class_names) in sizes or {*class_names} <= {*map(str, range(*sizes))})
    if is_vector and items <= {"0", "1", "0.0", "1.0"}:
        logger.info("Each label is a list of %d zeros and ones: the classes are its positions, from 0", *sizes)
        positions = [[number for number, item in enumerate(value or ()) if float(item)] for value in values]
        values = [new if isinstance(value, list) else value for new, value in zip(positions, values)]
    return [[name(item) for item in value] if isinstance(value, list) else name(value) for value in values]


def _cell_list(cell: str) -> list | None:
    """Return the list in a cell of a csv file, in JSON or as Python writes it, such as "['joy', 'love']", or None."""
    for parse in (json.loads, ast.literal_eval):
        try:
            items = parse(cell)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        # numpy writes ['a' 'b'], which for Python is ['ab'].
        is_exact = parse is json.loads or "".join(repr(items).split()) == "".join(cell.split())
        if isinstance(items, list) and is_exact and all(isinstance(item, str | int | float) for item in items):
            return items
    return None


def find_labels(feature: object, values: list, do_regression: bool | None = None) -> Labels:
    """Return what the labels of a column are: numbers with `do_regression` or, by default, if all are numbers and some
    have a decimal point or an exponent; else classes, in the order of the column's `feature`, or sorted.
    """
    if isinstance(feature, dict):
        return Labels(list(feature), ONE_CLASS)
    problem_type = CLASSES if any(isinstance(value, list) for value in values) else ONE_CLASS
    feature = getattr(feature, "feature", feature)
    if isinstance(feature, ClassLabel) and not do_regression:
        return Labels(list(feature.names), problem_type)
    names = sorted({name for value in values for name in (value if isinstance(value, list) else [value])} - {None})
    are_numbers = all(map(NUMBER.fullmatch, names))
    if are_numbers and problem_type == CLASSES and any(float(name) % 1 for name in names):
        raise InputError(
            f"The labels are lists of fractions, such as {names[0]}: write the probabilities of a row as an object "
            'with the names of the classes, such as {"no": 0.2, "yes": 0.8}.'
        )
    if do_regression is None and problem_type == ONE_CLASS and names:
        others = [name for name in names if not NUMBER.fullmatch(name)]
        # A decimal comma, or a few rows such as "n/a", would make classes of numbers.
        numbers = [name for name in names if NUMBER.fullmatch(name.replace(",", "."))]
        if others and len(numbers) > len(names) / 2 and re.search("[.,]", "".join(numbers)):
            raise InputError(f"The labels are numbers, except for {listed(others)}: correct or remove these rows.")
        do_regression = are_numbers and any(re.search("[.eE]", name) for name in names)
    if do_regression:
        if len(names) == 1:
            raise InputError(f"All rows have the number {names[0]}, from which nothing can be learned: add other rows.")
        return Labels(None, REGRESSION)
    return Labels(sorted(names, key=float) if are_numbers else names, problem_type)


def label_converter(labels: Labels) -> Callable[[Any], Any]:
    """Return a function from a label, as `read_labels` returns it, to its class id; for `REGRESSION` to its number; for
    `CLASSES` to 1.0 for each of its classes and 0.0 for the others; to None if the `labels` do not include it.
    """
    ids = {name: number for number, name in enumerate(labels.names or [])}

    def convert(label: Any) -> Any:
        if labels.problem_type == CLASSES and isinstance(label, list):
            names = {*label}
            return [float(name in names) for name in ids] if names <= ids.keys() else None
        if labels.problem_type == CLASSES or not isinstance(label, str):
            return None
        if labels.problem_type == ONE_CLASS:
            return ids.get(label)
        return float(label) if NUMBER.fullmatch(label) and abs(float(label)) < LARGEST_NUMBER else None

    return convert


def label_ids(
    values: list, labels: Labels, split: str, column: str | None = None, files: Sequence[str | None] = ()
) -> list:
    """Return what `label_converter` returns for each row; for a dictionary of probabilities (a teacher's, in training
    data) their list. An InputError names the first row without such a label, or its file.
    """
    result, convert = [], label_converter(labels)
    for row, value in enumerate(values, start=1):
        is_soft = isinstance(value, dict) and split == "train"
        result.append(_probabilities(value, labels.names or []) if is_soft else convert(value))
        if result[-1] is None:
            expected = f"a number below {LARGEST_NUMBER:g}" if labels.problem_type == REGRESSION else labels
            wrong = "no label" if value is None else f"the label {value!r}, which is not {expected}"
            where = f"Row {row} of the {split} data" + (f", column {column!r}," if column else "")
            raise InputError(f"{(files and files[row - 1]) or where} has {wrong}: correct it.")
    return result


def _probabilities(label: dict, names: list[str]) -> list[float] | None:
    """Return the probabilities of the classes in a label; None if they are not probabilities of these classes."""
    # `datasets` adds the names that only other rows have, with None.
    values = [str(label.get(name) or 0) for name in names]
    row = [float(value) for value in values if NUMBER.fullmatch(value)]
    is_valid = label.keys() <= {*names} and len(row) == len(names) and min(row) >= 0 and abs(sum(row) - 1) < 1e-3
    return row if is_valid else None


def count_labels(ids: list, labels: Labels) -> str:
    """Return in one line what the labels are, with the number of rows of the most frequent classes."""
    if labels.names is None:
        return f"numbers from {min(ids):g} to {max(ids):g}"
    counts = np.sum(ids, axis=0) if isinstance(ids[0], list) else np.bincount(ids, minlength=len(labels.names))
    ranked = Counter(dict(zip(labels.names, counts))).most_common()
    return f"{len(ranked)} classes: {listed([f'{name} {count:.0f}' for name, count in ranked], 12)}"


def config_labels(config: PreTrainedConfig) -> Labels:
    """Return the labels of a classifier's config."""
    problem_type = config.problem_type or (REGRESSION if config.num_labels == 1 else ONE_CLASS)
    names = [name for _, name in sorted(config.id2label.items())]
    return Labels(None if problem_type == REGRESSION else names, problem_type)


def trained_labels(config: PreTrainedConfig, head: str) -> Labels | None:
    """Return what a checkpoint was trained to predict, None if it has no `head` such as "ForImageClassification".

    The names of unnamed classes ("LABEL_10") are their numbers ("10").
    """
    if not any(name.endswith(head) for name in config.architectures or ()):
        return None
    names, problem_type = config_labels(config)
    return Labels(names and [name.removeprefix("LABEL_") for name in names], problem_type)


def set_labels(config: PreTrainedConfig, labels: Labels, head: str, *, train: bool, new_classifier: bool) -> bool:
    """Write the labels into a config, and return whether the checkpoint was trained for other labels, so that it gets
    a new classifier if their number differs; an InputError if it may not get one.
    """
    trained, names = trained_labels(config, head), labels.names or ["value"]
    if train and labels.problem_type == ONE_CLASS and len(names) < 2:
        raise InputError(f"The training data have only the label {names[0]!r}; there must be two or more.")
    # A checkpoint with unnamed classes gets the names of the data.
    unnamed = Labels([str(number) for number in range(len(names))], labels.problem_type)
    has_other_labels = trained not in (None, labels, unnamed)
    if has_other_labels and not (train and new_classifier):
        raise InputError(
            f"The model predicts {trained}, but the data have {labels}: use its own labels (numbers: --do_regression), "
            "or train a new classifier with --ignore_mismatched_sizes."
        )
    config.id2label = dict(enumerate(names))
    config.label2id = {name: number for number, name in config.id2label.items()}
    config.problem_type = labels.problem_type
    return has_other_labels


def hold_out_rows(dataset: Dataset, fraction: float, seed: int = 0) -> tuple[Dataset, Dataset]:
    """Split off the same fraction of each class, or of each range of numbers, to within one row. A class with a single
    row keeps it for training. Both parts have a new column "row", the number of the row in `dataset`, from 1.
    """
    labels = dataset["labels"][:]
    # Hold out every k-th row, in the order of classes or numbers, and in random order within a class.
    rows = np.array(sorted(np.random.default_rng(seed).permutation(len(labels)), key=labels.__getitem__))
    positions = ((np.arange(round(fraction * len(rows))) + 0.5) / fraction).astype(int)
    sizes = Counter(map(str, labels))
    is_number = isinstance(labels[0], float)
    chosen = rows[positions[positions < len(rows)]].tolist()
    held_out = {row for row in chosen if is_number or sizes[str(labels[row])] > 1}
    if not held_out or len(held_out) == len(dataset):
        raise InputError(f"{len(dataset)} training samples, or their classes, are too few to hold some out: add rows.")
    counts = len(held_out), len(dataset) - len(held_out)
    logger.info("Validation: %d rows held out, the same fraction of each class; %d are left to train on", *counts)
    dataset = dataset.add_column("row", range(1, len(dataset) + 1))
    train = dataset.select([row for row in range(len(dataset)) if row not in held_out])
    return train, dataset.select(sorted(held_out))
