"""Sentences and pairs of them, with a label each: from GLUE, the Hub or files, to token ids ready for a collator."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from datasets import Dataset, Value
from transformers import PreTrainedTokenizerBase

from ..errors import InputError
from .files import Access, load_data
from .labels import (
    ONE_CLASS,
    REGRESSION,
    Labels,
    data_of,
    find_labels,
    in_known_order,
    label_ids,
    label_name,
    placeholder_numbers,
    read_labels,
)

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
# Columns looked for where neither a task nor a flag names them; pairs first.
_KNOWN_COLUMNS = sorted({task.columns for task in TASKS.values()} | {("text",)}, key=lambda names: (-len(names), names))


@dataclass
class Sentences:
    """What `load_sentences` gives."""

    splits: dict[str, Dataset]
    """ "train", "validation" and "test" (of MNLI: "validation_matched" and so on), each with the columns "sentence1",
    "sentence2" if there are pairs, and "labels" as `label_ids` makes them. An unlabeled test split has no "labels"."""
    labels: list[str] | None
    """The names of the class ids; None where the labels are numbers to be predicted."""
    problem_type: str
    """As in a config."""


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
    split_names: Mapping[str, str | None] | None = None,
    text_columns: list[str] | None = None,
    delimiter: str | None = None,
    label_column: str = "label",
    do_regression: bool | None = None,
    known: Labels | None = None,
    train: bool = True,
    validate: bool = True,
    test: bool = False,
    max_samples: Mapping[str, int | None] | None = None,
    shuffle_seed: int | None = None,
    access: Access = Access(),
) -> Sentences:
    """
    The data of a GLUE task, of a data set on the Hub, or of files.

    Labels are what `find_labels` says of the training data. The order of the classes is that of the task, else that of
    the data set's own names, else sorted; a checkpoint that has the same classes keeps its order.

    Args:
        split_names: Split of a data set on the Hub to be taken for "train", "validation" and "test", where it has
            another name.
        text_columns: One column, or two of a pair; by default the task's, else those that GLUE's tasks use, or "text".
        delimiter: Join the columns, of which there may then be any number, to one sentence, with this between them.
        do_regression: Whether labels are numbers to be predicted; by default, without a task, if they have fractions.
        known: What the checkpoint was trained to tell; what counts where there are no training data.
        train, validate, test: What is needed. Training files are read in any case, for their labels.
        max_samples: At most so many rows of "train", "validation" and "test", the first ones.
        shuffle_seed: Seed to shuffle the training rows with beforehand.

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
    named = {kind: name for kind, name in (split_names or {}).items() if name is not None}
    if named and any(files.values()):
        raise InputError(f"--{next(iter(named))}_split_name is for a data set of the Hub, and files are given.")
    needed = {"train": train, "validation": validate, "test": test}
    # Training data tell the labels, also where nothing is trained.
    wanted = [kind for kind in needed if needed[kind] or (kind == "train" and files["train"])]
    if any(files.values()):
        texts = text_columns or {column for columns in _KNOWN_COLUMNS for column in columns}
        splits = load_data(files=_files({kind: files[kind] for kind in wanted}, task), access=access,
                           text_columns=sorted({*texts, label_column}))  # fmt: skip
    elif dataset_name is not None:
        splits = _read_hub(dataset_name, dataset_config_name, task, wanted, named, access)
    else:
        splits = _read_hub(GLUE, task_name.lower(), task, wanted, named, access)

    columns = _text_columns(splits, task, text_columns)
    if label_column in columns or len(set(columns)) < len(columns):
        raise InputError(f"The columns {', '.join((*columns, label_column))} of texts and labels must be different.")
    for split, dataset in splits.items():
        _check_rows(dataset, split, columns, label_column)
    values = {
        split: read_labels(dataset, label_column, split)
        for split, dataset in splits.items()
        if label_column in dataset.column_names
    }
    if task is not None:
        if do_regression not in (None, task.labels is None):
            raise InputError(f"--do_regression {str(do_regression).lower()} does not fit --task_name {task_name}.")
        labels = Labels(list(task.labels), ONE_CLASS) if task.labels is not None else Labels(None, REGRESSION)
    elif "train" in splits:
        labels = find_labels(splits["train"].features[label_column], values["train"], "train", do_regression)
    elif do_regression or (known is not None and (known.names is not None or do_regression is None)):
        labels = Labels(None, REGRESSION) if do_regression else known
    else:
        raise InputError(
            "Nothing tells which labels there are: give --task_name, a --train_file, or a checkpoint that was trained "
            "as a classifier."
        )
    numbers = {str(number): name for number, name in enumerate((task and task.labels) or ())}
    numbers = numbers or placeholder_numbers(labels.names)
    labels = in_known_order(labels, known, train)

    # After the labels were collected from all rows.
    for split, dataset in splits.items():
        sentences = dataset.select_columns(list(columns))
        names = [f"sentence{number}" for number in range(1, len(columns) + 1)]
        if delimiter is not None:
            joined = [delimiter.join(map(str, row)) for row in zip(*(dataset[column] for column in columns))]
            sentences = Dataset.from_dict({"sentence1": joined})
        else:
            sentences = sentences.rename_columns({old: new for old, new in zip(columns, names) if old != new})
        if split in values and not (split.startswith("test") and _unlabeled(values[split], labels)):
            # A new column: one that is mapped in place may turn back into strings.
            sentences = sentences.add_column("labels", label_ids(values[split], labels, split, numbers))
        if split == "train" and shuffle_seed is not None:
            sentences = sentences.shuffle(seed=shuffle_seed)
        limit = (max_samples or {}).get(split.partition("_")[0])
        splits[split] = sentences if limit is None else sentences.select(range(min(limit, len(sentences))))
    return Sentences(splits, *labels)


def tokenize(
    dataset: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int,
    *,
    pad_to_max_length: bool = False,
    num_proc: int | None = None,
    access: Access = Access(),
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

    return dataset.map(
        tokenize_batch,
        batched=True,
        remove_columns=columns,
        num_proc=num_proc,
        load_from_cache_file=not access.overwrite_cache,
        desc="Tokenizing",
    )


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


def _files(files: dict[str, list[str] | None], task: Task | None) -> dict[str, list[str]]:
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
    return splits


def _read_hub(
    name: str,
    config_name: str | None,
    task: Task | None,
    wanted: list[str],
    named: Mapping[str, str],
    access: Access,
) -> dict[str, Dataset]:
    title = f"{name} {config_name or ''}".strip()
    loaded = dict(load_data(dataset_name=name, dataset_config_name=config_name, access=access))
    if task is TASKS["mnli"] and name == GLUE and "test" in wanted and "test" not in named:
        loaded["test_ax"] = load_data(dataset_name=GLUE, dataset_config_name="ax", access=access)["test"]
    splits = {}
    for kind in wanted:
        known = _split_names(task)[kind]
        if kind in named:
            found = {named[kind] if named[kind] in known else kind: named[kind]}
        else:
            found = {split: split for split in known if split in loaded}
        if not found or not set(found.values()) <= loaded.keys():
            raise InputError(
                f"{title} has no split {named.get(kind, kind)} but {', '.join(loaded)}: name one by "
                f"--{kind}_split_name, or save what you need as files."
            )
        splits |= {split: loaded[place] for split, place in found.items()}
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
        feature = dataset.features[column]
        if not isinstance(feature, Value) or feature.dtype.endswith("binary"):
            raise InputError(f"The column {column!r} of the {data_of(split)} must hold text, and holds {feature}.")
        if dataset.data.column(column).null_count:
            row = next(number for number, text in enumerate(dataset[column], start=1) if text is None)
            raise InputError(f"Row {row} of the {data_of(split)} has nothing in the column {column!r}.")


def _unlabeled(values: list, labels: Labels) -> bool:
    """Whether test data come without labels: with none at all or, as GLUE's, with -1 throughout."""
    known = "-1" in (labels.names or ())
    return all(value is None or (not known and label_name(value) == "-1") for value in values)
