"""Text for language modeling: from the Hub or from files, to sequences of token ids ready for a collator."""

from collections.abc import Iterable
from pathlib import Path

from datasets import Dataset, DatasetDict, IterableDataset, IterableDatasetDict, load_dataset
from transformers import PreTrainedTokenizerBase

from ..errors import InputError

# File ending -> builder of the `datasets` library.
FILE_FORMATS = {"txt": "text", "json": "json", "jsonl": "json", "csv": "csv", "parquet": "parquet"}


def file_format(paths: Iterable[str | Path]) -> str:
    """
    The `datasets` builder for some files.

    Raises:
        InputError: If there are none, one does not exist or is empty, or they are not of one known kind.
    """
    formats = set()
    for path in map(Path, paths):
        if not path.is_file():
            raise InputError(f"There is no file {path}.")
        if path.stat().st_size == 0:
            raise InputError(f"The file {path} is empty.")
        ending = path.suffix.lower().lstrip(".")
        if ending not in FILE_FORMATS:
            raise InputError(f"{path} is of no known kind; give files that end in {', '.join(FILE_FORMATS)}.")
        formats.add(FILE_FORMATS[ending])
    if len(formats) != 1:
        raise InputError("Give at least one file, and files of one kind: txt, json(l), csv or parquet.")
    return formats.pop()


def load_texts(
    *,
    dataset_name: str | None = None,
    dataset_config_name: str | None = None,
    train_files: list[str] | None = None,
    validation_files: list[str] | None = None,
    text_column: str = "text",
    line_by_line: bool = False,
    streaming: bool = False,
    validation_split_percentage: int = 5,
    max_eval_samples: int | None = None,
    seed: int = 42,
    cache_dir: str | None = None,
) -> DatasetDict | IterableDatasetDict:
    """
    Training and validation documents, as a column "text".

    In a .txt file, documents are parted by empty lines; with `line_by_line`, every line is one. Without validation
    data, `validation_split_percentage` of the training documents are held out, drawn with `seed`; of a stream, the
    first `max_eval_samples`.

    Returns:
        "train" and "validation"; a stream's "validation" is small and held in memory.

    Raises:
        InputError: If no data or two kinds of it are named, a file is missing, empty or of an unknown kind, or there
            is no text column.
    """
    if (dataset_name is None) == (not train_files and not validation_files):
        raise InputError("Name the data: either --dataset_name, or --train_file and perhaps --validation_file.")
    if dataset_name is not None:
        source: dict = {"path": dataset_name, "name": dataset_config_name}
    else:
        files = {"train": train_files or [], "validation": validation_files or []}
        kind = file_format([*files["train"], *files["validation"]])
        source = {"path": kind, "data_files": {split: paths for split, paths in files.items() if paths}}
        if kind == "text":
            source["sample_by"] = "line" if line_by_line else "paragraph"
    loaded = load_dataset(**source, streaming=streaming, cache_dir=cache_dir)

    splits = {}
    for split in ("train", "validation"):
        if split not in loaded:
            continue
        # A stream may not know its columns before its first row.
        columns = loaded[split].column_names or list(next(iter(loaded[split]), {}))
        if text_column not in columns:
            raise InputError(
                f"The {split} data has no column {text_column!r} but {', '.join(columns) or 'nothing at all'}. Name "
                f"the one with the text by --text_column."
            )
        splits[split] = loaded[split].select_columns([text_column])
        if text_column != "text":
            splits[split] = splits[split].rename_column(text_column, "text")

    if "validation" not in splits and streaming:
        held_out = max_eval_samples or 1000
        splits["validation"] = splits["train"].take(held_out)
        splits["train"] = splits["train"].skip(held_out)
    elif "validation" not in splits:
        if len(splits["train"]) < 2:
            raise InputError("A single document cannot be split in two: give a --validation_file.")
        share = validation_split_percentage / 100
        parts = splits["train"].train_test_split(test_size=share, seed=seed)
        splits = {"train": parts["train"], "validation": parts["test"]}
    if streaming:
        rows = list(splits["validation"].take(max_eval_samples or 1000))
        splits["validation"] = Dataset.from_list(rows)
    elif max_eval_samples is not None:
        splits["validation"] = splits["validation"].select(range(min(max_eval_samples, len(splits["validation"]))))
    return IterableDatasetDict(splits) if streaming else DatasetDict(splits)


def pack(
    dataset: Dataset | IterableDataset,
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int,
    *,
    keep_remainder: bool = False,
    num_proc: int | None = None,
) -> Dataset | IterableDataset:
    """
    Documents laid end to end, [SEP] between them, and cut into sequences [CLS] ... [SEP] of exactly `max_seq_length`
    tokens: no padding, no truncation. What is left of each thousand documents (less than one sequence) is dropped,
    or, with `keep_remainder`, kept as a shorter sequence.

    Args:
        dataset: A column "text".

    Returns:
        Columns "input_ids" and "special_tokens_mask" (1 where nothing may be masked).
    """
    body = max_seq_length - 2

    def pack_batch(batch: dict) -> dict:
        texts = [text for text in batch["text"] if text and not text.isspace()]
        stream: list[int] = []
        # An empty list is no input to a tokenizer. It would warn of documents longer than a sequence: not verbose.
        for ids in tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"] if texts else []:
            stream += ids
            stream.append(tokenizer.sep_token_id)
        # The last [SEP] is put back with the sequence's own.
        stream = stream[:-1]
        end = len(stream) if keep_remainder else len(stream) // body * body
        sequences = [
            [tokenizer.cls_token_id, *stream[start : start + body], tokenizer.sep_token_id]
            for start in range(0, end, body)
        ]
        return {
            "input_ids": sequences,
            "special_tokens_mask": [special_tokens_mask(ids, tokenizer) for ids in sequences],
        }

    return _map(dataset, pack_batch, num_proc, "Tokenizing and packing")


def tokenize_lines(
    dataset: Dataset | IterableDataset,
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int,
    *,
    num_proc: int | None = None,
) -> Dataset | IterableDataset:
    """
    Each non-empty text as one sequence [CLS] ... [SEP], truncated to `max_seq_length` tokens.

    Returns:
        Columns "input_ids" and "special_tokens_mask".
    """

    def tokenize_batch(batch: dict) -> dict:
        texts = [text for text in batch["text"] if text and not text.isspace()]
        if not texts:
            return {"input_ids": [], "special_tokens_mask": []}
        encoded = tokenizer(texts, truncation=True, max_length=max_seq_length, return_special_tokens_mask=True)
        return {key: encoded[key] for key in ("input_ids", "special_tokens_mask")}

    return _map(dataset, tokenize_batch, num_proc, "Tokenizing line by line")


def tokenize(
    texts: DatasetDict | IterableDatasetDict,
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int,
    *,
    line_by_line: bool = False,
    max_train_samples: int | None = None,
    num_proc: int | None = None,
) -> tuple[Dataset | IterableDataset, Dataset]:
    """
    What `load_texts` gave as training and validation sequences, packed or line by line. No validation token is left
    out, and of the training sequences the first `max_train_samples` are kept.

    Raises:
        InputError: If no sequence comes out.
    """
    if line_by_line:
        train = tokenize_lines(texts["train"], tokenizer, max_seq_length, num_proc=num_proc)
        validation = tokenize_lines(texts["validation"], tokenizer, max_seq_length, num_proc=num_proc)
    else:
        train = pack(texts["train"], tokenizer, max_seq_length, num_proc=num_proc)
        validation = pack(texts["validation"], tokenizer, max_seq_length, keep_remainder=True, num_proc=num_proc)
    if max_train_samples is not None:
        train = train.take(max_train_samples)
    for name, sequences in (("training", train), ("validation", validation)):
        if isinstance(sequences, Dataset) and len(sequences) == 0:
            raise InputError(
                f"The {name} text does not fill one sequence of {max_seq_length} tokens: give more text, lower "
                f"--max_seq_length, or use --line_by_line."
            )
    return train, validation


def special_tokens_mask(ids: list[int], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """1 for [CLS], [SEP], [PAD] and their like, 0 for text."""
    special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    return [int(token in special) for token in ids]


def _map(dataset, function, num_proc: int | None, description: str):
    if isinstance(dataset, IterableDataset):
        return dataset.map(function, batched=True, remove_columns=["text"])
    return dataset.map(function, batched=True, remove_columns=["text"], num_proc=num_proc, desc=description)
