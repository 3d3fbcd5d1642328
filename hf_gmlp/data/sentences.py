"""Sentences and pairs of sentences: their columns, and their token ids."""

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from datasets import Dataset, Value
from pyarrow.compute import list_value_length
from transformers import PreTrainedTokenizerBase as Tokenizer

from ..errors import InputError
from .labels import ONE_CLASS, REGRESSION, Labels, hold_out_rows, number_labels
from .source import Source

logger = logging.getLogger(__name__)


# Columns that are text unless a flag names others: those of GLUE's tasks, and "text". Pairs come first.
KNOWN_TEXT_COLUMNS: tuple[tuple[str, ...], ...] = (
    ("premise", "hypothesis"),
    ("question", "sentence"),
    ("question1", "question2"),
    ("sentence1", "sentence2"),
    ("sentence",),
    ("text",),
)
KNOWN_PAIRS = tuple(columns for columns in KNOWN_TEXT_COLUMNS if len(columns) == 2)
# The column of labels, unless a flag names another: the first of these.
LABEL_COLUMNS = ("label", "labels", "category", "class", "target", "sentiment")
# The names of the columns of text in the datasets of a run.
TEXT_COLUMNS = ("sentence1", "sentence2")


def check_text_columns(names: Sequence[str]) -> None:
    """Raise an InputError if --text_column_names has more than two columns, or one twice."""
    if len(names) > 2 or len(set(names)) < len(names):
        raise InputError(f"--text_column_names takes one or two columns, without repetition, got {', '.join(names)}.")


def find_label_column(names: Collection[str]) -> str:
    """Return the first of `LABEL_COLUMNS` among the names of all columns, else "label"."""
    return next((name for name in LABEL_COLUMNS if name in names), "label")


def find_text_columns(
    names: Collection[str], label_column: str | None, text_columns: Sequence[str] | None = None
) -> Sequence[str]:
    """Return the column of text, or the two of a pair, among the `names` of all columns.

    They are those passed, else the first of `KNOWN_TEXT_COLUMNS`, else the only column besides ids and the label.

    Raises:
        InputError: If it is not clear which columns hold text, or one of them is missing or holds the label.
    """
    others = [name for name in names if name not in (label_column, "id", "idx")]
    known = next((columns for columns in KNOWN_TEXT_COLUMNS if {*columns} <= {*others}), None)
    columns = text_columns or known or others
    if not (text_columns or known or len(others) == 1) or label_column in columns or not {*columns} <= {*names}:
        raise InputError(
            f"Cannot take the text from {', '.join(columns)}: the columns are {', '.join(names)}, and the label is "
            f"{label_column!r}. Name the text with --text_column_names, and the label with --label_column_name."
        )
    return columns


def text_columns_of(dataset: Dataset) -> list[list[str]]:
    """Return the texts of each of the `TEXT_COLUMNS` that a dataset has; missing values are "", numbers are text."""
    columns = [dataset[name][:] for name in TEXT_COLUMNS if name in dataset.column_names]
    return [["" if value is None else str(value) for value in column] for column in columns]


def text_parts(row: Mapping[str, object], columns: Sequence[str], separator: str | None = None) -> tuple[str, ...]:
    """Return the texts of some columns of a row, a pair for example; with a `separator` joined into one text."""
    values = ["" if row.get(column) is None else str(row[column]) for column in columns]
    return tuple(values) if separator is None else (separator.join(filter(str.strip, values)),)


def tokenize_sentences(
    dataset: Dataset, tokenizer: Tokenizer, length: int, num_proc: int | None = None, overwrite_cache: bool = False
) -> Dataset:
    """Tokenize the `TEXT_COLUMNS` as BERT's input, [CLS] A [SEP] or [CLS] A [SEP] B [SEP], of at most `length` tokens.

    The longer sentence of a pair is truncated first. The column "labels" is kept.
    """
    if tokenizer.pad_token is None:
        raise InputError("The tokenizer has no padding token: set its pad_token, and save it again.")
    columns = [column for column in TEXT_COLUMNS if column in dataset.column_names]

    def tokenize_batch(batch: dict) -> dict:
        # Columns of numbers are accepted as text too.
        sentences = [[str(text) for text in batch[column]] for column in columns]
        return dict(tokenizer(*sentences, truncation="longest_first", max_length=length))

    options = {"num_proc": num_proc, "load_from_cache_file": not overwrite_cache}
    removed = [*columns, *({"row"} & set(dataset.column_names))]
    return dataset.map(tokenize_batch, batched=True, remove_columns=removed, desc="Tokenizing", **options)


def sequence_lengths(rows: Dataset) -> np.ndarray:
    """Return the number of tokens of each row [N]."""
    return list_value_length(rows.with_format("arrow")[:]["input_ids"]).to_numpy()


def truncation_note(lengths: np.ndarray, length: int) -> str | None:
    """Return in words how many rows have `length` tokens, to which longer ones are truncated; None if no row has."""
    if count := int((lengths >= length).sum()):
        return f"{count} of {len(lengths)} rows have {length} tokens or more, of which the first {length} are used"
    return None


def texts(dataset: Dataset) -> Iterator[str]:
    """Yield the text of each row, with pairs joined, to train a tokenizer. Nothing is read before the first text."""
    yield from map(" ".join, zip(*text_columns_of(dataset)))


def load_sentences(
    source: Source,
    kinds: Sequence[str] = ("train",),
    *,
    parts: Mapping[str, Sequence[str]] | None = None,
    text_columns: Sequence[str] | None = None,
    label_column: str | None = None,
    labels: Labels | None = None,
    trained: Labels | None = None,
    do_regression: bool | None = None,
    held_out: float = 0.1,
    max_rows: Mapping[str, int | None] | None = None,
) -> tuple[dict[str, Dataset], Labels, list[str], str]:
    """Read sentences or pairs, and number their labels.

    The training files are always read, since they have all classes. Validation data that are needed but missing are
    held out of the training data; the column "row" is then the number of a row there.

    Args:
        kinds: The data needed: "train", "validation" and "test".
        parts: The names of the splits of a kind that has several, such as the two validation splits of MNLI.
        text_columns, label_column: By default, see `find_text_columns` and `find_label_column`.
        labels: What the labels are, by default what the training data have, else `trained`.
        trained, do_regression: As in `number_labels`.
        held_out: Fraction of each class to hold out.
        max_rows: Maximum number of rows by kind, the first ones. No class is missing, since labels are numbered before.

    Returns:
        The splits, such as "validation_matched", with the columns "sentence1", for pairs "sentence2", and "labels";
        what the labels are; and the names of the columns of text and of the label in the data.

    Raises:
        InputError: If something needed is missing or unreadable, or as in `number_labels`.
    """
    train = "train" in kinds
    read = kinds if train or "train" not in source.files else ["train", *kinds]
    names = {kind: (parts or {}).get(kind, (kind,)) for kind in read}
    splits = _read_splits(source, names)
    missing = [kind for kind in read if not splits.keys() & set(names[kind])]
    holds_out = train and missing == ["validation"]
    if missing and not holds_out:
        raise InputError(f"There are no {missing[0]} data: pass --{missing[0]}_file, or a dataset with that split.")
    all_columns = next(iter(splits.values())).column_names
    label_column = label_column or find_label_column(all_columns)
    columns = find_text_columns(all_columns, label_column, text_columns)
    logger.info("Texts: %s", " and ".join(columns))
    if labels is None and "train" not in splits:
        labels = Labels(None, REGRESSION) if do_regression else trained
        if labels is None:
            raise InputError("The labels are unknown: pass --task_name, a --train_file, or a trained classifier.")
    options: dict = {"trained": trained, "train": train, "do_regression": do_regression}
    splits, labels = number_labels(splits, dict(zip(columns, TEXT_COLUMNS)), label_column, labels, **options)
    if holds_out:
        if labels.problem_type == ONE_CLASS and isinstance(splits["train"]["labels"][0], list):
            raise InputError("Probabilities cannot be held out: pass --validation_file with class names.")
        splits["train"], splits["validation"] = hold_out_rows(splits["train"], held_out)
    if not train:
        # It was read only for its labels.
        splits.pop("train", None)
    for split, rows in splits.items():
        for name, column in zip(TEXT_COLUMNS, columns):
            feature = rows.features[name]
            if not isinstance(feature, Value) or feature.dtype.endswith("binary"):
                raise InputError(f"The column {column!r} must hold text, not {feature}: use --text_column_names.")
        pairs = enumerate(zip(*text_columns_of(rows)), start=1)
        if blank := [number for number, parts in pairs if not all(map(str.strip, parts))]:
            logger.warning("%d row(s) of the %s data have no text, such as row %d", len(blank), split, blank[0])
        splits[split] = _first_rows(rows, (max_rows or {}).get(split.partition("_")[0]), split)
    return splits, labels, list(columns), label_column


def _read_splits(source: Source, names: Mapping[str, Sequence[str]]) -> dict[str, Dataset]:
    """Return the named splits of each kind that exist. If a kind has several splits, each has a file of its own."""
    files: dict[str, Sequence[str]] = {}
    for kind, splits in names.items():
        paths = source.files.get(kind, [])
        if len(paths) > len(splits) > 1:
            raise InputError(f"--{kind}_file has {len(paths)} files: pass at most one each for {', '.join(splits)}.")
        parts = [paths] if len(splits) == 1 else [[path] for path in paths]
        files |= {split: part for split, part in zip(splits, parts) if part}
    # All columns are text, since texts may look like numbers.
    loaded = replace(source, files=files).load() if files or not source.files else {}
    return {split: loaded[split] for splits in names.values() for split in splits if split in loaded}


def _first_rows(rows: Dataset, limit: int | None, split: str) -> Dataset:
    """Return at most `limit` rows, with a warning if they have one class and all rows have several."""
    kept = rows.take(min(limit or len(rows), len(rows)))
    if "labels" in rows.column_names:
        classes, kept_classes = (len(set(map(str, part["labels"]))) for part in (rows, kept))
        if kept_classes == 1 < classes:
            logger.warning("The first %d rows of the %s data have only one class: shuffle the file", limit, split)
    return kept
