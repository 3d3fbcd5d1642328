"""Sentences and pairs of them, with a label each: from GLUE, the Hub or files, to token ids ready for a collator."""

from collections.abc import Iterable
from dataclasses import dataclass

from datasets import ClassLabel, Dataset, load_dataset
from transformers import PreTrainedTokenizerBase

from ..errors import InputError
from .files import file_kind, read_files

GLUE = "nyu-mll/glue"


@dataclass(frozen=True)
class Task:
    """One of GLUE's nine tasks."""

    columns: tuple[str, ...]
    """The column of the sentence, or the two of the pair."""
    labels: tuple[str, ...] | None
    """The names of the labels 0, 1, ...; None where the label is a number to be predicted."""
    metrics: tuple[str, ...]
    """Modules of hf_gmlp/metrics; runs are compared by the first."""
    tests: dict[str, str]
    """Each test split with the name under which the leaderboard takes its predictions."""
    validations: tuple[str, ...] = ("validation",)
    """The validation splits."""
    submits_names: bool = False
    """Whether the leaderboard takes the names of the labels, not their numbers."""


_PAIR = ("sentence1", "sentence2")
_ENTAILMENT = ("entailment", "not_entailment")
TASKS = {
    "cola": Task(("sentence",), ("unacceptable", "acceptable"), ("matthews_correlation",), {"test": "CoLA"}),
    "mnli": Task(
        ("premise", "hypothesis"),
        ("entailment", "neutral", "contradiction"),
        ("accuracy",),
        {"test_matched": "MNLI-m", "test_mismatched": "MNLI-mm", "test_ax": "AX"},
        validations=("validation_matched", "validation_mismatched"),
        submits_names=True,
    ),
    "mrpc": Task(_PAIR, ("not_equivalent", "equivalent"), ("f1", "accuracy"), {"test": "MRPC"}),
    "qnli": Task(("question", "sentence"), _ENTAILMENT, ("accuracy",), {"test": "QNLI"}, submits_names=True),
    "qqp": Task(("question1", "question2"), ("not_duplicate", "duplicate"), ("f1", "accuracy"), {"test": "QQP"}),
    "rte": Task(_PAIR, _ENTAILMENT, ("accuracy",), {"test": "RTE"}, submits_names=True),
    "sst2": Task(("sentence",), ("negative", "positive"), ("accuracy",), {"test": "SST-2"}),
    "stsb": Task(_PAIR, None, ("spearman", "pearson"), {"test": "STS-B"}),
    "wnli": Task(_PAIR, ("not_entailment", "entailment"), ("accuracy",), {"test": "WNLI"}),
}
CLASSIFICATION_METRICS = ("accuracy", "f1")
REGRESSION_METRICS = ("spearman", "pearson")

# Columns looked for where neither a task nor a flag names them; pairs first.
_KNOWN_COLUMNS = sorted({task.columns for task in TASKS.values()} | {("text",)}, key=lambda names: (-len(names), names))


@dataclass
class Sentences:
    """What `load_sentences` gives."""

    splits: dict[str, Dataset]
    """ "train", "validation" and "test" (of MNLI: "validation_matched" and so on), each with the columns "sentence1",
    "sentence2" if there are pairs, and "labels": class ids or numbers. An unlabeled test split has no "labels"."""
    labels: list[str] | None
    """The names of the class ids; None where the labels are numbers to be predicted."""


def find_task(name: str | None) -> Task | None:
    """
    The GLUE task of that name; None for None.

    Raises:
        InputError: If there is no such task.
    """
    if name is not None and name.lower() not in TASKS:
        raise InputError(f"GLUE has no task {name!r}; --task_name is one of {', '.join(TASKS)}.")
    return TASKS[name.lower()] if name is not None else None


def load_sentences(
    *,
    task_name: str | None = None,
    dataset_name: str | None = None,
    dataset_config_name: str | None = None,
    train_files: list[str] | None = None,
    validation_files: list[str] | None = None,
    test_files: list[str] | None = None,
    text_columns: list[str] | None = None,
    label_column: str = "label",
    do_regression: bool | None = None,
    known_labels: list[str] | None = None,
    train: bool = True,
    validate: bool = True,
    test: bool = False,
    max_samples: dict[str, int | None] | None = None,
    cache_dir: str | None = None,
) -> Sentences:
    """
    The data of a GLUE task, of a data set on the Hub, or of files.

    Labels may be names, whole numbers or booleans (classes), or fractions (regression). The order of the classes is
    that of the task, else that of the data set's own names, else sorted: numbers by value, names by the alphabet. A
    checkpoint that has the same classes keeps its order.

    Args:
        text_columns: One column, or two of a pair; by default the task's, else those that GLUE's tasks use, or "text".
        do_regression: Whether labels are numbers to be predicted; by default, without a task, if they have fractions.
        known_labels: The classes of the checkpoint, in its order, or none if it is a regressor; what counts where there
            are no training data.
        train, validate, test: What is needed. Training files are read in any case, for their labels.
        max_samples: At most so many rows of "train", "validation" and "test", the first ones.

    Raises:
        InputError: If no data or two kinds of it are named, something needed is missing, a file cannot be read or is
            empty, a column or label is missing, or a label is none of the training data's.
    """
    task = find_task(task_name)
    files = {"train": train_files, "validation": validation_files, "test": test_files}
    if (dataset_name is not None or task is None) and (dataset_name is None) == (not any(files.values())):
        raise InputError(
            "Name the data: --task_name for a task of GLUE, --dataset_name for other data of the Hub, or files by "
            "--train_file, --validation_file and --test_file."
        )
    needed = {"train": train, "validation": validate, "test": test}
    # Training data tell the labels, also where nothing is trained.
    wanted = [kind for kind in needed if needed[kind] or (kind == "train" and files["train"])]
    if any(files.values()):
        splits = _read_files({kind: files[kind] for kind in wanted}, task, cache_dir)
    elif dataset_name is not None:
        splits = _read_hub(dataset_name, dataset_config_name, task, wanted, cache_dir)
    else:
        splits = _read_hub(GLUE, task_name.lower(), task, wanted, cache_dir)

    columns = _text_columns(splits, task, text_columns)
    for split, dataset in splits.items():
        _check_rows(dataset, split, columns, label_column)
    values = {
        split: label_values(dataset, label_column)
        for split, dataset in splits.items()
        if label_column in dataset.column_names
    }
    if task is not None:
        labels = list(task.labels) if task.labels is not None else None
    else:
        labels = _find_labels(splits, values, label_column, do_regression, known_labels)
    numbers = {str(number): name for number, name in enumerate(task.labels)} if task is not None and labels else {}
    if labels is not None and known_labels is not None and sorted(labels) == sorted(known_labels):
        labels = known_labels

    # After the labels were collected from all rows.
    limits = max_samples or {}
    for split, dataset in splits.items():
        limit = limits.get(split.partition("_")[0])
        rows = len(dataset) if limit is None else min(limit, len(dataset))
        names = [f"sentence{number}" for number in range(1, len(columns) + 1)]
        sentences = dataset.select_columns(list(columns)).select(range(rows))
        sentences = sentences.rename_columns({old: new for old, new in zip(columns, names) if old != new})
        if split in values and not (split.startswith("test") and _unlabeled(values[split], labels)):
            # A new column: one that is mapped in place may turn back into strings.
            ids = label_ids(values[split], labels, numbers, split)
            sentences = sentences.add_column("labels", ids[:rows])
        splits[split] = sentences
    return Sentences(splits, labels)


def tokenize(
    dataset: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int,
    *,
    pad_to_max_length: bool = False,
    num_proc: int | None = None,
) -> Dataset:
    """
    BERT's input: [CLS] A [SEP], or [CLS] A [SEP] B [SEP] with the segments 0 and 1. The longer sentence of a pair is
    cut first.

    Args:
        dataset: A split of `Sentences`.
        pad_to_max_length: Pad here, all sequences to the same length; by default the collator does it for each batch.

    Returns:
        What the tokenizer gives ("input_ids", "token_type_ids", "attention_mask"), and "labels" if they were there.
    """
    columns = [column for column in ("sentence1", "sentence2") if column in dataset.column_names]

    def tokenize_batch(batch: dict) -> dict:
        # A column of numbers is text too.
        sentences = [[str(text) for text in batch[column]] for column in columns]
        return dict(
            tokenizer(
                *sentences,
                truncation="longest_first",
                max_length=max_seq_length,
                padding="max_length" if pad_to_max_length else False,
            )
        )

    return dataset.map(tokenize_batch, batched=True, remove_columns=columns, num_proc=num_proc, desc="Tokenizing")


def texts(dataset: Dataset) -> Iterable[str]:
    """All sentences of a split, for the training of a tokenizer."""
    for row in dataset:
        yield from (str(row[column]) for column in ("sentence1", "sentence2") if column in row)


def _split_names(task: Task | None) -> dict[str, tuple[str, ...]]:
    return {
        "train": ("train",),
        "validation": task.validations if task is not None else ("validation",),
        "test": tuple(task.tests) if task is not None else ("test",),
    }


def _read_files(files: dict[str, list[str] | None], task: Task | None, cache_dir: str | None) -> dict[str, Dataset]:
    names = _split_names(task)
    splits = {}
    for kind, paths in files.items():
        if not paths:
            raise InputError(f"There are no {data_of(kind)}: give --{kind}_file.")
        if len(names[kind]) == 1:
            splits[kind] = paths
            continue
        if len(paths) > len(names[kind]):
            known = ", ".join(data_of(name) for name in names[kind])
            raise InputError(f"--{kind}_file has {len(paths)} files; at most these can be told apart: {known}.")
        splits |= {name: [path] for name, path in zip(names[kind], paths)}
    # All are looked at before the first is read.
    for paths in splits.values():
        file_kind(paths)
    return {split: read_files(paths, cache_dir=cache_dir) for split, paths in splits.items()}


def _read_hub(
    name: str, config_name: str | None, task: Task | None, wanted: list[str], cache_dir: str | None
) -> dict[str, Dataset]:
    title = f"{name} {config_name or ''}".strip()
    try:
        loaded = load_dataset(name, config_name, cache_dir=cache_dir)
        if task is TASKS["mnli"] and name == GLUE and "test" in wanted:
            loaded["test_ax"] = load_dataset(GLUE, "ax", split="test", cache_dir=cache_dir)
    except (OSError, ValueError) as error:
        raise InputError(f"{title} cannot be loaded from the Hub: {error}") from error
    splits = {}
    for kind in wanted:
        found = [split for split in _split_names(task)[kind] if split in loaded]
        if not found:
            raise InputError(f"{title} has no {kind} split but {', '.join(loaded)}; save what you need as files.")
        splits |= {split: loaded[split] for split in found}
    return splits


def _text_columns(splits: dict[str, Dataset], task: Task | None, named: list[str] | None) -> tuple[str, ...]:
    split, dataset = next(iter(splits.items()))
    if named:
        return tuple(named)
    if task is not None:
        return task.columns
    for columns in _KNOWN_COLUMNS:
        if set(columns) <= set(dataset.column_names):
            return columns
    raise InputError(
        f"Which columns hold the sentences? The {data_of(split)} have {', '.join(dataset.column_names)}: name one, or "
        f"the two of a pair, by --text_column_names."
    )


def _check_rows(dataset: Dataset, split: str, columns: tuple[str, ...], label_column: str):
    required = list(columns) if split.startswith("test") else [*columns, label_column]
    for column in required:
        if column not in dataset.column_names:
            raise InputError(
                f"The {data_of(split)} have no column {column!r} but {', '.join(dataset.column_names)}. Name yours by "
                f"--text_column_names and --label_column_name."
            )
    if len(dataset) == 0:
        raise InputError(f"The {data_of(split)} have no rows.")
    for column in columns:
        if dataset.data.column(column).null_count:
            row = next(number for number, text in enumerate(dataset[column], start=1) if text is None)
            raise InputError(f"Row {row} of the {data_of(split)} has nothing in the column {column!r}.")


def label_values(dataset: Dataset, column: str) -> list:
    """The labels as they are given, by name where the column knows the names; None where one is missing."""
    feature = dataset.features[column]
    values = dataset[column][:]
    if isinstance(feature, ClassLabel):
        return [None if value is None or value < 0 else feature.names[value] for value in values]
    if values and isinstance(values[0], list | dict):
        raise InputError(f"The column {column!r} must have one label per row, got {values[0]!r}.")
    # NaN is the one value that differs from itself.
    return [None if value == "" or value != value else value for value in values]


def _find_labels(
    splits: dict[str, Dataset],
    values: dict[str, list],
    label_column: str,
    do_regression: bool | None,
    known_labels: list[str] | None,
) -> list[str] | None:
    """The names of the classes where no task tells them; None for regression."""
    if "train" not in splits and (do_regression or known_labels is not None):
        return None if do_regression else known_labels or None
    if "train" not in splits:
        raise InputError(
            "Nothing tells which labels there are: give --task_name, a --train_file, or a checkpoint that was trained "
            "as a classifier."
        )
    feature = splits["train"].features[label_column]
    given = {value for value in values["train"] if value is not None}
    if do_regression or (do_regression is None and any(isinstance(value, float) for value in given)):
        return None
    labels = class_names(feature, given)
    if len(labels) < 2 and not isinstance(feature, ClassLabel):
        raise InputError(
            f"The training data have only the label {labels[0]!r} in {label_column!r}; there must be two or more."
            if labels
            else f"The training data have no labels in the column {label_column!r}."
        )
    return labels


def class_names(feature: object, values: Iterable) -> list[str]:
    """
    The classes of a column of labels: as its feature names them, else the values that there are, sorted: numbers by
    value, names by the alphabet.
    """
    if isinstance(feature, ClassLabel):
        return list(feature.names)
    given = {value for value in values if value is not None}
    if all(isinstance(value, int | float) for value in given):
        return [label_name(value) for value in sorted(given)]
    return sorted({label_name(value) for value in given})


def label_name(value) -> str:
    """1, 1.0 and "1" are one label."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _unlabeled(values: list, labels: list[str] | None) -> bool:
    """Whether test data come without labels: with none at all or, as GLUE's, with -1 throughout."""
    return all(value is None or (value == -1 and "-1" not in (labels or ())) for value in values)


def label_ids(values: list, labels: list[str] | None, numbers: dict[str, str], split: str) -> list[int] | list[float]:
    """
    Class ids (or numbers, where `labels` is None).

    Args:
        numbers: Names of the labels that a task knows by number.
    """
    ids = {} if labels is None else {name: number for number, name in enumerate(labels)}
    ids |= {number: ids[name] for number, name in numbers.items()}
    result = []
    for row, value in enumerate(values, start=1):
        if value is None:
            raise InputError(f"Row {row} of the {data_of(split)} has no label.")
        if labels is None:
            try:
                result.append(float(value))
            except ValueError as error:
                raise InputError(f"Row {row} of the {data_of(split)} has the label {value!r}, no number.") from error
        elif label_name(value) in ids:
            result.append(ids[label_name(value)])
        else:
            known = ", ".join(labels[:10]) + (", ..." if len(labels) > 10 else "")
            raise InputError(f"Row {row} of the {data_of(split)} has the label {value!r}, which is none of {known}.")
    return result


def data_of(split: str) -> str:
    """ "validation_matched" as "validation data (matched)"."""
    kind, _, part = split.partition("_")
    kind = {"train": "training"}.get(kind, kind)
    return f"{kind} data" + (f" ({part})" if part else "")
