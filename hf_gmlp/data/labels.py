"""Labels of sentences and images: those of a column, those of a checkpoint, and how they are written into a config."""

import copy
import logging
import math
import re
from collections.abc import Mapping
from typing import NamedTuple

import torch
from datasets import ClassLabel, Dataset
from transformers import PreTrainedConfig, PreTrainedModel

from ..errors import InputError

logger = logging.getLogger(__name__)

# As `problem_type` of a config has them: a number, one class, or any number of classes per row.
REGRESSION, ONE_CLASS, CLASSES = "regression", "single_label_classification", "multi_label_classification"

# Text that says that there is no label; "None" and "NA" may be names.
_MISSING = ("", "nan", "null")
_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*")
_WHOLE = re.compile(r"\s*\+?(-?\d+)(?:\.0*)?\s*")


class Labels(NamedTuple):
    """What is told of a row."""

    names: list[str] | None
    """The names of the class ids; None where the labels are numbers to be predicted."""
    problem_type: str
    """`REGRESSION`, `ONE_CLASS` or `CLASSES`."""


def read_labels(dataset: Dataset, column: str, split: str) -> list:
    """
    The labels as they are given, by name where the column knows the names: None where one is missing, a list where a
    row may have several.

    Raises:
        InputError: If one is infinite, or is neither a name, a number, a boolean nor a list of these.
    """
    feature = getattr(dataset.features[column], "feature", dataset.features[column])

    def label(value: object, row: int) -> object:
        if isinstance(feature, ClassLabel) and isinstance(value, int):
            return feature.names[value] if 0 <= value < len(feature.names) else None
        if (isinstance(value, float) and math.isinf(value)) or not isinstance(value, int | float | str | None):
            raise InputError(
                f"Row {row} of the {data_of(split)} has the label {value!r}, neither a name nor a finite number."
            )
        # NaN is the one value that differs from itself.
        missing = value != value or (isinstance(value, str) and value.strip().lower() in _MISSING)
        return None if missing else value

    values = [
        [label(one, row) for one in value] if isinstance(value, list) else label(value, row)
        for row, value in enumerate(dataset[column], start=1)
    ]
    for row, value in enumerate(values, start=1):
        if isinstance(value, list) and None in value:
            raise InputError(f"Row {row} of the {data_of(split)} has an empty label in its list: take it out.")
    return values


def find_labels(feature: object, values: list, split: str, do_regression: bool | None = None) -> Labels:
    """
    What a column's labels are: numbers to be predicted if one has a fraction or `do_regression` says so, else classes,
    as the column's feature names them or sorted: numbers by value, names by the alphabet.

    Raises:
        InputError: If there are no labels, numbers and names are mixed, names are hardly to be told apart, or lists
            hold fractions or are to be numbers.
    """
    several = any(isinstance(value, list) for value in values)
    problem_type = CLASSES if several else ONE_CLASS
    if several and do_regression:
        raise InputError(f"The {data_of(split)} have lists of labels, and --do_regression takes one number per row.")
    feature = getattr(feature, "feature", feature)
    if isinstance(feature, ClassLabel) and not do_regression:
        if not all(name.strip() for name in feature.names):
            raise InputError(f"The {data_of(split)} have a class without a name: name it.")
        return Labels(list(feature.names), problem_type)
    rows: dict[str, int] = {}
    kinds: dict[str, tuple[int, object]] = {}
    fraction = False
    for row, value in enumerate(values, start=1):
        for one in value if isinstance(value, list) else [] if value is None else [value]:
            kind = "boolean" if isinstance(one, bool) else "number" if is_number(one) else "name"
            kinds.setdefault(kind, (row, one))
            rows.setdefault(label_name(one), row)
            fraction |= kind == "number" and not float(one).is_integer()
    if not rows:
        raise InputError(f"The {data_of(split)} have no labels.")
    if do_regression or (do_regression is None and fraction and kinds.keys() == {"number"} and not several):
        return Labels(None, REGRESSION)
    if len(kinds) > 1:
        (row, value), (other_row, other) = list(kinds.values())[:2]
        raise InputError(
            f"The labels of the {data_of(split)} mix {' and '.join(f'{kind}s' for kind in kinds)}, such as {value!r} "
            f"in row {row} and {other!r} in row {other_row}: write all of them in one way."
        )
    if several and fraction:
        raise InputError(f"The lists of labels of the {data_of(split)} must hold names or whole numbers.")
    alike: dict[str, str] = {}
    for name, row in rows.items():
        other = alike.setdefault(name.strip().casefold(), name)
        if other != name:
            raise InputError(
                f"Rows {rows[other]} and {row} of the {data_of(split)} have the labels {other!r} and {name!r}, which "
                f"differ only in case or in white space: write them alike."
            )
    return Labels(sorted(rows, key=float if "number" in kinds else None), problem_type)


def is_number(value: object) -> bool:
    """Whether a label is a number, or text that is written like one."""
    return isinstance(value, int | float) or _NUMBER.fullmatch(value) is not None


def in_known_order(labels: Labels, known: Labels | None, train: bool) -> Labels:
    """The classes in the checkpoint's order, if it has the same, or if it has more and nothing is trained."""
    if known is None or None in (labels.names, known.names) or labels.problem_type != known.problem_type:
        return labels
    given, told = set(labels.names), set(known.names)
    return known if given == told or (not train and given <= told) else labels


def label_name(value: object) -> str:
    """1, 1.0, "1" and "1.0" are one label; "007" is another than "7"."""
    if isinstance(value, str):
        whole = _WHOLE.fullmatch(value)
        return whole[1] if whole else value
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def label_ids(values: list, labels: Labels, split: str, numbers: Mapping[str, str] | None = None) -> list:
    """
    Of every row the class id; of `REGRESSION` the number; of `CLASSES` 1.0 for every class that it has, else 0.0.

    Args:
        numbers: Names of labels that are known by number too.

    Raises:
        InputError: If a row has no label, one that is not known or no number, several for one, or one twice.
    """
    names = labels.names or []
    ids = {name: number for number, name in enumerate(names)}
    ids = {number: ids[name] for number, name in (numbers or {}).items()} | ids
    several = labels.problem_type == CLASSES
    result: list = []
    for row, value in enumerate(values, start=1):
        where = f"Row {row} of the {data_of(split)} has"
        if value is None:
            raise InputError(f"{where} no label.")
        if isinstance(value, list) != several:
            raise InputError(f"{where} the label {value!r}, which must {'' if several else 'not '}be a list.")
        if labels.names is None:
            if not is_number(value):
                raise InputError(f"{where} the label {value!r}, which is not a number.")
            result.append(float(value))
            continue
        found = [label_name(one) for one in (value if several else [value])]
        unknown = [name for name in found if name not in ids]
        if unknown:
            known = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
            raise InputError(f"{where} the label {unknown[0]!r}, which is none of {known}.")
        chosen = [ids[name] for name in found]
        if len(set(chosen)) < len(chosen):
            raise InputError(f"{where} a label twice: {value}; list the labels that it has, each once.")
        result.append([float(number in chosen) for number in range(len(names))] if several else chosen[0])
    return result


def placeholder_numbers(names: list[str] | None) -> dict[str, str]:
    """The ids that stand for names of transformers' own, "LABEL_0" and so on; none if there are other names."""
    made = {str(number): f"LABEL_{number}" for number in range(len(names or ()))}
    return made if list(made.values()) == names else {}


def trained_labels(config: PreTrainedConfig, head: str) -> Labels | None:
    """
    What a checkpoint was trained to tell, in its order; None of one that has no such head.

    Args:
        head: The end of its class's name: "ForSequenceClassification" or "ForImageClassification".
    """
    if not any(name.endswith(head) for name in config.architectures or ()):
        return None
    problem_type = config.problem_type or (REGRESSION if config.num_labels == 1 else ONE_CLASS)
    names = [str(config.id2label.get(number, f"LABEL_{number}")) for number in range(config.num_labels)]
    return Labels(None if problem_type == REGRESSION else names, problem_type)


def set_labels(config: PreTrainedConfig, labels: Labels, head: str, *, train: bool, new_classifier: bool) -> bool:
    """
    Writes the labels into a config: `id2label`, `label2id`, `problem_type`.

    Args:
        head: As for `trained_labels`.
        train: Whether there will be a training.
        new_classifier: Whether a checkpoint that was trained to tell something else gets a new classifier.

    Returns:
        Whether it gets one: by `draw_classifier`.

    Raises:
        InputError: If the checkpoint was trained to tell something else, and does not get a new classifier; if it is no
            classifier and nothing is trained; or if there is one class to be learned.
    """
    known = trained_labels(config, head)
    names = ["value"] if labels.names is None else labels.names
    if known is None and not train:
        raise InputError(
            f"{config.name_or_path or 'A new model'} is no trained classifier: train it first, with --do_train."
        )
    if train and labels.problem_type == ONE_CLASS and len(names) < 2:
        raise InputError(f"The training data have only the label {names[0]!r}; there must be two or more.")
    fits = known is not None and known.problem_type == labels.problem_type and config.num_labels == len(names)
    # Two lists of the thousand classes of ImageNet differ in a few words.
    equal = fits and sum(a == b for a, b in zip(known.names or names, names)) >= 0.99 * len(names)
    new = known is not None and not equal and not (fits and placeholder_numbers(known.names))
    if new and not (train and new_classifier):
        advice = "give it a new classifier by --ignore_mismatched_sizes" if train else "evaluate it on its own classes"
        if fits:
            advice += ", or write these into id2label of its config.json if they are other names of the same classes"
        if known.names is None:
            advice += ", or give --do_regression if the labels are numbers to be predicted"
        raise InputError(
            f"The checkpoint {config.name_or_path} was trained to tell {_words(known)}, and the data have "
            f"{_words(labels)}: {advice}."
        )
    if new:
        logger.info("The classifier is new, for %s", _words(labels))
    elif fits and known != labels:
        logger.info("The classes of %s take the names of the data: %s", config.name_or_path, ", ".join(names[:10]))
    config.id2label = dict(enumerate(names))
    config.label2id = {name: number for number, name in enumerate(names)}
    config.problem_type = labels.problem_type
    return new


def _words(labels: Labels) -> str:
    if labels.names is None:
        return "numbers"
    several = "any of " if labels.problem_type == CLASSES else ""
    more = ", ..." if len(labels.names) > 5 else ""
    return f"{several}{len(labels.names)} classes ({', '.join(labels.names[:5])}{more})"


@torch.no_grad()
def draw_classifier(model: PreTrainedModel):
    """Draws anew the weights whose shapes depend on the number of classes."""
    config = copy.deepcopy(model.config)
    fresh = type(model)(config).state_dict()
    config.num_labels += 1
    with torch.device("meta"):
        larger = type(model)(config).state_dict()
    for name, weight in model.state_dict().items():
        if weight.shape != larger[name].shape:
            weight.copy_(fresh[name])


def data_of(split: str) -> str:
    """ "validation_matched" as "validation data (matched)"."""
    kind, _, part = split.partition("_")
    kind = {"train": "training"}.get(kind, kind)
    return f"{kind} data" + (f" ({part})" if part else "")
