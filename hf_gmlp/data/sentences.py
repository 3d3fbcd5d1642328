"""Sentences and pairs of sentences: their columns, and their token ids."""

import logging
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import pandas
from datasets import Dataset, Value
from transformers import PreTrainedTokenizerBase as Tokenizer

from ..errors import InputError
from .files import Access

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


def check_texts(dataset: Dataset, columns: Sequence[str]) -> None:
    """Raise an InputError if one of the `TEXT_COLUMNS`, which had the names `columns`, holds something else."""
    for name, column in zip(TEXT_COLUMNS, columns):
        feature = dataset.features[name]
        if not isinstance(feature, Value) or feature.dtype.endswith("binary"):
            raise InputError(f"The column {column!r} must hold text, not {feature}: name another, --text_column_names.")


def text_columns_of(dataset: Dataset) -> list[list[str]]:
    """Return the texts of each of the `TEXT_COLUMNS` that a dataset has; missing values are "", numbers are text."""
    columns = [dataset[name][:] for name in TEXT_COLUMNS if name in dataset.column_names]
    return [["" if value is None else str(value) for value in column] for column in columns]


def text_parts(row: Mapping[str, object], columns: Sequence[str], separator: str | None = None) -> tuple[str, ...]:
    """Return the texts of some columns of a row, a pair for example; with a `separator` joined into one text."""
    values = ["" if row[column] is None else str(row[column]) for column in columns]
    return tuple(values) if separator is None else (separator.join(filter(str.strip, values)),)


def blank_rows(dataset: Dataset) -> list[int]:
    """Return the indices of the rows without text in one of the `TEXT_COLUMNS`."""
    return [index for index, values in enumerate(zip(*text_columns_of(dataset))) if not all(map(str.strip, values))]


def tokenize_sentences(
    dataset: Dataset, tokenizer: Tokenizer, length: int, num_proc: int | None = None, access: Access = Access()
) -> Dataset:
    """Tokenize the `TEXT_COLUMNS` as BERT's input: [CLS] A [SEP], or [CLS] A [SEP] B [SEP].

    The longer sentence of a pair is truncated first, to at most `length` tokens in all. The column "labels" is kept.
    """
    columns = [column for column in TEXT_COLUMNS if column in dataset.column_names]

    def tokenize_batch(batch: dict) -> dict:
        # Columns of numbers are accepted as text too.
        sentences = [[str(text) for text in batch[column]] for column in columns]
        return dict(tokenizer(*sentences, truncation="longest_first", max_length=length))

    options = {"num_proc": num_proc, "load_from_cache_file": not access.overwrite_cache}
    removed = [*columns, *({"row"} & set(dataset.column_names))]
    return dataset.map(tokenize_batch, batched=True, remove_columns=removed, desc="Tokenizing", **options)


def truncation_note(lengths: np.ndarray, length: int) -> str | None:
    """Return in words how many rows have `length` tokens, to which longer ones are truncated; None if no row has."""
    if count := int((lengths >= length).sum()):
        return f"{count} of {len(lengths)} rows have {length} tokens or more, of which the first {length} are used"
    return None


def texts(dataset: Dataset) -> list[str]:
    """Return the text of each row, with pairs joined, to train a tokenizer and for the baseline."""
    return [" ".join(values) for values in zip(*text_columns_of(dataset))]


def visible_columns(dataset: Dataset) -> pandas.DataFrame:
    """Return the texts of an evaluated split and the number of each row in its file, for `write_report`."""
    names = [name for name in ("row", *TEXT_COLUMNS) if name in dataset.column_names]
    table = dataset.select_columns(names).to_pandas()
    if "row" not in table:
        table.insert(0, "row", range(1, len(table) + 1))
    return table.rename(columns={"sentence1": "text", "sentence2": "text_pair"})
