"""Sentences and pairs of them, with a label each: from GLUE, the Hub or files, to token ids ready for a collator."""

from collections.abc import Sequence
from typing import Any

import pandas
from datasets import Dataset, Value
from transformers import PreTrainedTokenizerBase as Tokenizer

from ...errors import InputError
from ...training.files import Access, load_data
from ..classification import hold_out
from ..labels import ONE_CLASS, REGRESSION, Labels, number_labels
from .arguments import TASKS, GlueArguments

GLUE = "nyu-mll/glue"

# Columns to look for where neither a task nor a flag names them; pairs first.
_KNOWN_COLUMNS: list[Sequence[str]] = sorted(
    {task.columns for task in TASKS.values()} | {("text",)}, key=lambda names: (-len(names), names)
)
TEXT_COLUMNS = ("sentence1", "sentence2")
LABEL_COLUMNS = ("label", "labels", "category", "class", "target", "sentiment")


def load_sentences(
    arguments: GlueArguments,
    kinds: Sequence[str] = ("train", "validation"),
    *,
    known: Labels | None = None,
    access: Access = Access(),
) -> tuple[dict[str, Dataset], Labels]:
    """Return a GLUE task, a data set on the Hub, or files as columns "sentence1", for pairs "sentence2", and "labels".

    The labels are those of the task, else those in the training files, which are always read, else `known`, what the
    checkpoint predicts, whose order is kept for the same classes. Validation data that are needed but not named are
    held out of the training data; "row" is then the number of a row there.

    Args:
        kinds: Those needed of "train", "validation" and "test".

    Returns:
        The splits, such as "train" and "validation_matched", and their labels.

    Raises:
        InputError: If something needed is missing or unreadable, or as `number_labels`.
    """
    task, train = arguments.task(), "train" in kinds
    read = kinds if train or not arguments.train_file else ["train", *kinds]
    names = {kind: task.splits(kind) if task else (kind,) for kind in read}
    holds_out = bool(train and arguments.train_file and not arguments.validation_file and names.pop("validation", None))
    splits = (_read_files if arguments.files() else _read_hub)(arguments, names, access)
    first = next(iter(splits))
    columns, label_column = _find_columns(arguments, first, splits[first].column_names)
    labels = None
    if task is not None:
        labels = Labels(list(task.labels), ONE_CLASS) if task.labels else Labels(None, REGRESSION)
    elif "train" not in splits:
        labels = Labels(None, REGRESSION) if arguments.do_regression else known
        if labels is None:
            raise InputError("The labels are unknown: give --task_name, a --train_file, or a trained classifier.")
    options: dict[str, Any] = {"known": known, "train": train, "do_regression": arguments.do_regression}
    splits, labels = number_labels(splits, columns, label_column, labels, **options)
    if holds_out:
        splits["train"], splits["validation"] = hold_out(splits["train"], arguments.train_val_split)
    if not train:
        # Read for its labels alone.
        splits.pop("train", None)
    for split, dataset in splits.items():
        dataset = _name_columns(dataset, columns, split, arguments.text_column_delimiter)
        if split == "train" and arguments.shuffle_train_dataset:
            dataset = dataset.shuffle(seed=arguments.shuffle_seed)
        # Rows are cut after the labels are collected, so that no class is missing.
        limit = arguments.max_samples()[split.partition("_")[0]]
        splits[split] = dataset if limit is None else dataset.take(min(limit, len(dataset)))
    return splits, labels


def _read_files(arguments: GlueArguments, names: dict[str, tuple[str, ...]], access: Access) -> dict[str, Dataset]:
    """Read the files of each kind; where a task has several such splits, each file is one of them."""
    files: dict[str, list[str]] = {}
    for kind, splits in names.items():
        paths = arguments.files().get(kind, [])
        if not paths:
            raise InputError(f"There are no {kind} data: give --{kind}_file.")
        if len(paths) > len(splits) > 1:
            raise InputError(f"--{kind}_file has {len(paths)} files; there are at most {', '.join(splits)}.")
        files |= {split: [path] for split, path in zip(splits, paths)} if len(splits) > 1 else {kind: paths}
    texts = arguments.text_column_names or [column for columns in _KNOWN_COLUMNS for column in columns]
    labels = [arguments.label_column_name] if arguments.label_column_name else LABEL_COLUMNS
    return dict(load_data(files=files, access=access, text_columns=sorted({*texts, *labels})))


def _read_hub(arguments: GlueArguments, names: dict[str, tuple[str, ...]], access: Access) -> dict[str, Dataset]:
    name, config_name = arguments.dataset_name, arguments.dataset_config_name
    if name is None and arguments.task_name is not None:
        name, config_name = GLUE, arguments.task_name.lower()
    loaded = dict(load_data(dataset_name=name, dataset_config_name=config_name, access=access))
    if "test_ax" in names.get("test", ()) and name == GLUE and arguments.test_split_name is None:
        loaded["test_ax"] = load_data(dataset_name=GLUE, dataset_config_name="ax", access=access)["test"]
    splits: dict[str, Dataset] = {}
    for kind, usual in names.items():
        chosen = getattr(arguments, f"{kind}_split_name")
        found = [split for split in ([chosen] if chosen else usual) if split in loaded]
        if not found:
            advice = f"name one with --{kind}_split_name, or give files"
            raise InputError(f"{name} has no split {chosen or kind} but {', '.join(loaded)}: {advice}.")
        splits |= {split if split in usual else kind: loaded[split] for split in found}
    return splits


def _find_columns(arguments: GlueArguments, split: str, present: list[str]) -> tuple[Sequence[str], str]:
    """Return the columns of text and of labels: those of flags or the task, or with usual names; or the only other one.

    Args:
        present: The columns of the first split, `split`.
    """
    label = arguments.label_column_name or next((name for name in LABEL_COLUMNS if name in present), "label")
    task, others = arguments.task(), [name for name in present if name != label]
    usual: list[Sequence[str]] = [columns for columns in _KNOWN_COLUMNS if set(columns) <= set(others)]
    if chosen := arguments.text_column_names or (task.columns if task else None):
        return chosen, label
    if not usual and not (len(others) == 1 and label in present):
        flags = "the text column with --text_column_names, and the label column with --label_column_name"
        raise InputError(f"The {split} data have the columns {', '.join(present)}: name {flags}.")
    return (usual or [others])[0], label


def _name_columns(dataset: Dataset, columns: Sequence[str], split: str, delimiter: str | None) -> Dataset:
    """Rename the columns of text to "sentence1" and "sentence2", or join them with the delimiter as "sentence1"."""
    for column in columns:
        feature = dataset.features[column]
        if not isinstance(feature, Value) or feature.dtype.endswith("binary"):
            raise InputError(f"The column {column!r} of the {split} data must hold text, not {feature}.")
    if delimiter is None:
        return dataset.rename_columns({column: f"sentence{i}" for i, column in enumerate(columns, start=1)})
    joined = [delimiter.join(map(str, row)) for row in zip(*(dataset[column] for column in columns))]
    return dataset.remove_columns(list(columns)).add_column("sentence1", joined)


def tokenize(
    dataset: Dataset, tokenizer: Tokenizer, length: int, arguments: GlueArguments, access: Access = Access()
) -> Dataset:
    """Turn a split of `load_sentences` into BERT's input: [CLS] A [SEP], or [CLS] A [SEP] B [SEP].

    The longer sentence of a pair is truncated first, to at most `length` tokens in all. "labels" stay.
    """
    columns = [column for column in TEXT_COLUMNS if column in dataset.column_names]

    def tokenize_batch(batch: dict) -> dict:
        # A column of numbers is text too.
        sentences = [[str(text) for text in batch[column]] for column in columns]
        return dict(tokenizer(*sentences, truncation="longest_first", max_length=length))

    options = {"num_proc": arguments.preprocessing_num_workers, "load_from_cache_file": not access.overwrite_cache}
    removed = [*columns, *({"row"} & set(dataset.column_names))]
    return dataset.map(tokenize_batch, batched=True, remove_columns=removed, desc="Tokenizing", **options)


def texts(dataset: Dataset) -> list[str]:
    """Return each row's text, those of a pair joined: to train a tokenizer, and for the baseline."""
    columns = [dataset[column] for column in TEXT_COLUMNS if column in dataset.column_names]
    return [" ".join(map(str, row)) for row in zip(*columns)]


def visible_columns(dataset: Dataset) -> pandas.DataFrame:
    """Return the texts of an evaluated split, and the number of each row in its file, for `write_report`."""
    names = [name for name in ("row", *TEXT_COLUMNS) if name in dataset.column_names]
    table = dataset.select_columns(names).to_pandas()
    if "row" not in table:
        table.insert(0, "row", range(1, len(table) + 1))
    return table.rename(columns={"sentence1": "text", "sentence2": "text_pair"})
