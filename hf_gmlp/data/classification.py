"""Sentences and pairs of them, with a label each: from GLUE, the Hub or files, to token ids ready for a collator."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from datasets import Dataset, Value
from transformers import PreTrainedTokenizerBase

from ..errors import InputError
from .files import Access, load_data
from .labels import ONE_CLASS, REGRESSION, LabeledData, Labels, data_of, number_labels

GLUE = "nyu-mll/glue"


@dataclass(frozen=True)
class Task:
    """One of GLUE's nine tasks: the columns of the sentence or the pair; the names of the labels 0, 1, ..., None for
    numbers to predict; metrics of hf_gmlp/metrics, the first of which compares runs; the test splits, each with the
    leaderboard's name for its predictions, which may be names of labels or their numbers.
    """

    columns: tuple[str, ...]
    labels: tuple[str, ...] | None
    metrics: tuple[str, ...]
    tests: dict[str, str]
    validations: tuple[str, ...] = ("validation",)
    submits_names: bool = False


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
# Columns to look for where neither a task nor a flag names them; pairs first.
_KNOWN_COLUMNS = sorted({task.columns for task in TASKS.values()} | {("text",)}, key=lambda names: (-len(names), names))


def find_task(name: str | None) -> Task | None:
    """Returns the GLUE task of that name, None for None; an InputError if there is no such task."""
    if name is None or name.lower() in TASKS:
        return TASKS.get((name or "").lower())
    raise InputError(f"GLUE has no task {name!r}; --task_name is one of {', '.join(TASKS)}.")


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
) -> LabeledData:
    """Returns a GLUE task, a data set on the Hub, or files as columns "sentence1", for pairs "sentence2", and "labels".

    The labels are those of the task, or else what `find_labels` finds in the training data.

    Args:
        split_names: Names of the "train", "validation" and "test" splits of a data set on the Hub if they differ.
        text_columns: One column, or two for a pair; by default the task's, or else those of any GLUE task, or "text".
        delimiter: Join any number of columns to one sentence, with this between them.
        do_regression: Whether labels are numbers to predict; by default, without a task, if any has a fraction.
        known: What the checkpoint predicts: its order is kept for the same classes, and it replaces training data.
        train, validate, test: What is needed. Training files are always read, for their labels.
        max_samples: Maximum number of rows of "train", "validation" and "test", from the start.
        shuffle_seed: Seed for shuffling the training rows beforehand.

    Raises an InputError if no data are named, something needed is missing or unreadable, a column or label is missing,
    or there is a label that the training data do not have.
    """
    task = find_task(task_name)
    files = {"train": train_files, "validation": validation_files, "test": test_files}
    if task is None and dataset_name is None and not any(files.values()):
        raise InputError("Name the data: --task_name for GLUE, --dataset_name for the Hub, or --train_file and so on.")
    named = {kind: name for kind, name in (split_names or {}).items() if name is not None}
    # The training data define the labels, even if nothing is trained.
    needed = {"train": train or train_files, "validation": validate, "test": test}
    wanted = [kind for kind in needed if needed[kind]]
    if any(files.values()):
        if named:
            raise InputError(f"--{next(iter(named))}_split_name is for a data set on the Hub, not for files.")
        texts = text_columns or {column for columns in _KNOWN_COLUMNS for column in columns}
        files = _files({kind: files[kind] for kind in wanted}, task)
        splits = load_data(files=files, access=access, text_columns=sorted({*texts, label_column}))
    elif dataset_name is not None:
        splits = _read_hub(dataset_name, dataset_config_name, task, wanted, named, access)
    else:
        splits = _read_hub(GLUE, task_name.lower(), task, wanted, named, access)

    labels = None
    if task is not None:
        labels = Labels(task.labels and list(task.labels), ONE_CLASS if task.labels else REGRESSION)
        if do_regression not in (None, task.labels is None):
            raise InputError(f"--do_regression {str(do_regression).lower()} does not fit --task_name {task_name}.")
    elif "train" not in splits:
        labels = Labels(None, REGRESSION) if do_regression else known
        if labels is None or (labels.names is None and do_regression is False):
            raise InputError("The labels are unknown: give --task_name, a --train_file, or a trained classifier.")
    columns = _text_columns(splits, task, text_columns)
    options = {"known": known, "train": train, "do_regression": do_regression, "numbered": task and task.labels}
    labels, ids = number_labels(splits, columns, label_column, "text_column_names", labels, **options)
    # Only now, since the labels come from all rows.
    for split, dataset in splits.items():
        for column in columns:
            feature = dataset.features[column]
            if not isinstance(feature, Value) or feature.dtype.endswith("binary"):
                raise InputError(f"The column {column!r} of the {data_of(split)} must hold text, not {feature}.")
        if delimiter is not None:
            joined = [delimiter.join(map(str, row)) for row in zip(*(dataset[column] for column in columns))]
            sentences = Dataset.from_dict({"sentence1": joined})
        else:
            names = {column: f"sentence{number}" for number, column in enumerate(columns, start=1)}
            sentences = dataset.select_columns(list(columns)).rename_columns(names)
        if split in ids:
            # In a new column: mapped in place, it may turn back into strings.
            sentences = sentences.add_column("labels", ids[split])
        if split == "train" and shuffle_seed is not None:
            sentences = sentences.shuffle(seed=shuffle_seed)
        limit = (max_samples or {}).get(split.partition("_")[0])
        splits[split] = sentences if limit is None else sentences.take(min(limit, len(sentences)))
    return LabeledData(splits, *labels)


def tokenize(
    dataset: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int,
    *,
    pad_to_max_length: bool = False,
    num_proc: int | None = None,
    access: Access = Access(),
) -> Dataset:
    """Turns a split of `load_sentences` into BERT's input: [CLS] A [SEP], or [CLS] A [SEP] B [SEP] with the segments 0
    and 1. The longer sentence of a pair is truncated first. "labels" stay.

    With `pad_to_max_length`, all sequences get the same length; otherwise the collator pads each batch.
    """
    columns = [column for column in ("sentence1", "sentence2") if column in dataset.column_names]
    padding = "max_length" if pad_to_max_length else False

    def tokenize_batch(batch: dict) -> dict:
        # A column of numbers is text too.
        sentences = [[str(text) for text in batch[column]] for column in columns]
        return dict(tokenizer(*sentences, truncation="longest_first", max_length=max_seq_length, padding=padding))

    return dataset.map(
        tokenize_batch,
        batched=True,
        remove_columns=columns,
        num_proc=num_proc,
        load_from_cache_file=not access.overwrite_cache,
        desc="Tokenizing",
    )


def texts(dataset: Dataset) -> Iterable[str]:
    """Yields all sentences of a split, for training a tokenizer."""
    for row in dataset:
        yield from (str(row[column]) for column in ("sentence1", "sentence2") if column in row)


def _split_names(task: Task | None, kind: str) -> tuple[str, ...]:
    if task is None or kind == "train":
        return (kind,)
    return task.validations if kind == "validation" else tuple(task.tests)


def _files(files: dict[str, list[str] | None], task: Task | None) -> dict[str, list[str]]:
    """The files of each split: for a task with several validation or test splits, one file each."""
    splits = {}
    for kind, paths in files.items():
        names = _split_names(task, kind)
        if not paths:
            raise InputError(f"There are no {data_of(kind)}: give --{kind}_file.")
        if len(paths) > len(names) > 1:
            known = ", ".join(data_of(name) for name in names)
            raise InputError(f"--{kind}_file has {len(paths)} files; there are at most {known}.")
        splits |= {kind: paths} if names == (kind,) else {name: [path] for name, path in zip(names, paths)}
    return splits


def _read_hub(
    name: str, config_name: str | None, task: Task | None, wanted: list[str], named: Mapping[str, str], access: Access
) -> dict[str, Dataset]:
    loaded = dict(load_data(dataset_name=name, dataset_config_name=config_name, access=access))
    if task is TASKS["mnli"] and name == GLUE and "test" in wanted and "test" not in named:
        loaded["test_ax"] = load_data(dataset_name=GLUE, dataset_config_name="ax", access=access)["test"]
    splits = {}
    for kind in wanted:
        known = _split_names(task, kind)
        found = [split for split in ([named[kind]] if kind in named else known) if split in loaded]
        if not found:
            title, remedy = f"{name} {config_name or ''}".strip(), f"name one with --{kind}_split_name, or give files"
            raise InputError(f"{title} has no split {named.get(kind, kind)} but {', '.join(loaded)}: {remedy}.")
        splits |= {split if split in known else kind: loaded[split] for split in found}
    return splits


def _text_columns(splits: dict[str, Dataset], task: Task | None, named: list[str] | None) -> tuple[str, ...]:
    if named or task is not None:
        return tuple(named or task.columns)
    split, dataset = next(iter(splits.items()))
    for columns in _KNOWN_COLUMNS:
        if set(columns) <= set(dataset.column_names):
            return columns
    given = ", ".join(dataset.column_names)
    raise InputError(f"Name the columns of the sentences with --text_column_names: the {data_of(split)} have {given}.")
