"""Labeled sentences and pairs of sentences: from GLUE, the Hub or files to token ids."""

import logging
from collections.abc import Mapping, Sequence

import pandas
from datasets import Dataset, Value
from pyarrow.compute import list_value_length
from transformers import PreTrainedTokenizerBase as Tokenizer

from ..errors import InputError
from .files import LABEL_COLUMNS, Access, known_text_columns

logger = logging.getLogger(__name__)


TEXT_COLUMNS = ("sentence1", "sentence2")


def find_columns(
    names: Sequence[str], split: str, text_columns: Sequence[str] | None = None, label_column: str | None = None
) -> tuple[Sequence[str], str]:
    """Return the columns of text and of labels among the `names` of a split's columns.

    They are those passed, else `known_text_columns`, else the only column besides the label.
    """
    label = label_column or next((name for name in LABEL_COLUMNS if name in names), "label")
    if text_columns:
        if label in text_columns:
            raise InputError(f"The column {label!r} cannot be both text and label: name others.")
        return text_columns, label
    others = [name for name in names if name != label]
    columns = known_text_columns(others)
    if columns is None and (len(others) != 1 or label not in names):
        flags = "the text column with --text_column_names, and the label column with --label_column_name"
        raise InputError(f"The {split} data have the columns {', '.join(names)}: name {flags}.")
    return columns or others, label


def name_columns(dataset: Dataset, columns: Sequence[str], split: str) -> Dataset:
    """Rename the columns of text to "sentence1" and "sentence2"."""
    for column in columns:
        feature = dataset.features[column]
        if not isinstance(feature, Value) or feature.dtype.endswith("binary"):
            fault = f"The column {column!r} of the {split} data must hold text, not {feature}"
            raise InputError(f"{fault}: name yours with --text_column_names.")
        if blank := sum(not str(text).strip() for text in dataset[column][:]):
            logger.warning("%d row(s) of the %s data have no text in the column %r", blank, split, column)
    return dataset.rename_columns(dict(zip(columns, TEXT_COLUMNS)))


def tokenize(
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


def report_truncation(datasets: Mapping[str, Dataset], length: int):
    """Log how many of the tokenized rows have `length` tokens, to which longer ones were truncated."""
    for split, dataset in datasets.items():
        lengths = list_value_length(dataset.with_format("arrow")[:]["input_ids"]).to_numpy()
        if count := int((lengths >= length).sum()):
            fact = f"with {length} tokens or more, of which the first {length} are used (--max_seq_length)"
            logger.info("Rows of the %s data %s: %d of %d", split, fact, count, len(dataset))


def texts(dataset: Dataset) -> list[str]:
    """Return the text of each row, with pairs joined, to train a tokenizer and for the baseline."""
    columns = [dataset[column] for column in TEXT_COLUMNS if column in dataset.column_names]
    return [" ".join(map(str, row)) for row in zip(*columns)]


def visible_columns(dataset: Dataset) -> pandas.DataFrame:
    """Return the texts of an evaluated split and the number of each row in its file, for `write_report`."""
    names = [name for name in ("row", *TEXT_COLUMNS) if name in dataset.column_names]
    table = dataset.select_columns(names).to_pandas()
    if "row" not in table:
        table.insert(0, "row", range(1, len(table) + 1))
    return table.rename(columns={"sentence1": "text", "sentence2": "text_pair"})
