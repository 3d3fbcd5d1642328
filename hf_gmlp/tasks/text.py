"""Text for language modeling: from the Hub or from files to sequences of token ids, ready for a collator."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from functools import partial

import numpy as np
from datasets import Dataset, Features, IterableDataset, List, Value
from transformers import PreTrainedTokenizerBase as Tokenizer

from ..errors import InputError
from ..tokenizer import end_of_text
from ..training.arguments import DataArguments, flag
from ..training.files import BATCH_BYTES, GROUP_SIZE, Access, hold_out, in_batches, load_data, reading
from ..training.stream import SequenceStream

_NOWHERE = np.zeros((1, 2), dtype=np.int32)

_TEXT = Features({"text": Value("large_string")})

Texts = Iterable[str | None]
Sequences = dict[str, list[np.ndarray]]


@dataclass
class TextArguments(DataArguments):
    """The text to train a language model on."""

    text_column: str = flag("Name of the text column.", "text")
    separate_documents: bool = flag("Hide the documents in one sequence from each other (gMLP and aMLP only).", False)
    validation_split_percentage: int = flag(
        "Percentage of documents to hold out if there are no validation data.", 5, interval="(0, 100)"
    )
    streaming: bool = flag("Stream the data set instead of downloading it.", False)

    def description(self, train: object, validation: Sized | None, sequence_length: int) -> str:
        """The data in words, for the model card: name and number of sequences, if known."""
        sizes = []
        up_to = "up to " if getattr(self, "line_by_line", False) else ""
        if train is not None:
            size = f"{len(train):,}" if isinstance(train, Sized) else "a stream of"
            sizes.append(f"{size} training sequences of {up_to}{sequence_length} tokens")
        if validation is not None:
            sizes.append(f"{len(validation):,} held out")
        return f"{self.data_name()}: {', '.join(sizes)}."


def load_texts(
    arguments: TextArguments, *, train: bool = True, validate: bool = True, seed: int = 42, access: Access = Access()
) -> dict[str, Dataset | IterableDataset]:
    """Returns the documents of "train" and "validation", as far as they are asked for, in a column "text".

    Blank lines separate the documents of a .txt file; with `line_by_line`, every line is one. Without validation data,
    a random `validation_split_percentage` of the training documents is held out, or the first `max_eval_samples` of a
    stream, even if only one part is asked for. Files that neither part needs are not read.
    """
    files, streaming, column = arguments.files(), arguments.streaming, arguments.text_column
    options = {"streaming": streaming, "access": access}
    names = {"dataset_name": arguments.dataset_name, "dataset_config_name": arguments.dataset_config_name}
    loaded: Mapping = files or load_data(**names, **options)
    held_apart = "validation" in loaded
    if "train" not in loaded and (train or not held_apart):
        raise InputError("There are no training data: give --train_file, or a data set with a split 'train'.")
    needed = ["train"] if train or not held_apart else []
    needed += ["validation"] if validate and held_apart else []
    if files:
        options |= {"lines": getattr(arguments, "line_by_line", False), "text_columns": [column]}
        loaded = load_data(files={split: files[split] for split in needed}, **options)
    splits = {split: text_rows(loaded[split], column, f"the {split} data", access) for split in needed}

    limit = arguments.max_eval_samples
    if streaming and (validate or not held_apart):
        count = limit or 1000
        with reading(["The stream"], "text"):
            rows = list(itertools.islice(splits[needed[-1]], count if held_apart else count + 1))
        if not held_apart:
            if len(rows) <= count:
                remedy = "lower --max_eval_samples, give more text, or give a --validation_file"
                raise InputError(f"The stream has no text after the first {count}, which are held out: {remedy}.")
            splits["train"] = splits["train"].skip(count)
        splits["validation"] = Dataset.from_list(rows[:count], features=_TEXT)
    elif not held_apart:
        fraction = arguments.validation_split_percentage / 100
        splits |= hold_out(splits["train"], fraction, seed, "validation_split_percentage")
    if validate and not streaming and limit is not None:
        splits["validation"] = splits["validation"].take(min(limit, len(splits["validation"])))
    return {split: splits[split] for split, asked in (("train", train), ("validation", validate)) if asked}


def text_rows(
    data: Dataset | IterableDataset, text_column: str, where: str, access: Access = Access()
) -> Dataset | IterableDataset:
    """Keeps only the column of text, as "text": numbers as they are written, None where there is nothing.

    Raises an InputError about `where` if there is no such column or (for a stream, during reading) it holds no text.
    """
    # A stream may not know its columns before its first row.
    columns = data.column_names or list(next(iter(data), {}))
    if text_column not in columns:
        present = ", ".join(columns) or "nothing at all"
        raise InputError(f"There is no column {text_column!r} in {where} but {present}: name one with --text_column.")
    data = data.select_columns([text_column])
    if text_column != "text":
        data = data.rename_column(text_column, "text")
    if getattr((data.features or {}).get("text"), "dtype", None) in ("string", "large_string", "string_view"):
        return data
    options = {} if isinstance(data, IterableDataset) else {"load_from_cache_file": not access.overwrite_cache}
    return data.map(partial(_as_text, where=where), features=_TEXT, **options)


def _as_text(row: dict, where: str) -> dict[str, str | None]:
    value = row["text"]
    if isinstance(value, list | dict | bytes):
        raise InputError(f"The column of {where} has a {type(value).__name__} in it: name text with --text_column.")
    # pandas writes NaN, which differs from itself, for a missing number.
    return {"text": None if value is None or value != value else str(value)}


def tokenize(
    texts: Mapping[str, Dataset | IterableDataset],
    tokenizer: Tokenizer,
    max_seq_length: int,
    arguments: TextArguments,
    *,
    causal: bool = False,
    seed: int = 0,
    access: Access = Access(),
) -> tuple[Dataset | SequenceStream | None, Dataset | None]:
    """Turns the parts that `load_texts` gave into training and validation sequences; a missing part gives None.

    The sequences are arrays "input_ids" and, for whole-word masking, "offset_mapping". They are packed documents, lines
    (`line_by_line`), or blocks for a causal language model (`causal`). No validation token is left out; of the training
    sequences the first `max_train_samples` are kept. Those of a stream are a `SequenceStream`, whose order depends on
    `seed`. Raises an InputError if there are no sequences.
    """
    line_by_line, offsets = (getattr(arguments, name, False) for name in ("line_by_line", "whole_word_mask"))
    max_train_samples = arguments.max_train_samples
    if offsets and not tokenizer.is_fast:
        raise InputError("The tokenizer has no character offsets: use a fast one, or leave out --whole_word_mask.")
    make = pack_causal if causal else partial(tokenize_lines if line_by_line else pack, offsets=offsets)
    make = partial(make, tokenizer=tokenizer, max_seq_length=max_seq_length)
    features = {"input_ids": List(Value("int32"))}
    if offsets:
        features["offset_mapping"] = List(List(Value("int32"), length=2))

    def sequences(documents: Dataset, part: str) -> Dataset:
        # A thousand texts, or fewer long ones.
        batch_size = BATCH_BYTES * documents.data.num_rows // max(documents.data.nbytes, 1)
        options = {"batched": True, "batch_size": max(1, min(1000, batch_size)), "features": Features(features)}
        options |= {"input_columns": ["text"], "remove_columns": ["text"], "desc": "Tokenizing"}
        options |= {"num_proc": arguments.preprocessing_num_workers, "load_from_cache_file": not access.overwrite_cache}
        made = documents.map(partial(make, keep_remainder=part != "training"), **options)
        if len(made) == 0:
            if line_by_line or part != "training" or not any(map(has_text, documents["text"])):
                raise InputError(f"The {part} text is blank: give a file, or name a --text_column, with words in it.")
            remedy = "or lower --block_size" if causal else "lower --max_seq_length, or use --line_by_line"
            size = f"one sequence of {max_seq_length} tokens"
            raise InputError(f"The {part} text does not fill {size}: give more text, {remedy}.")
        return made.with_format("numpy")

    train = texts.get("train")
    validation = sequences(texts["validation"], "validation") if "validation" in texts else None
    if isinstance(train, IterableDataset):
        train = SequenceStream(train, make, max_samples=max_train_samples, seed=seed)
    elif train is not None:
        train = sequences(train, "training")
        if max_train_samples is not None:
            train = train.take(min(max_train_samples, len(train)))
    return train, validation


def pack(
    documents: Texts, tokenizer: Tokenizer, max_seq_length: int, *, offsets: bool = False, keep_remainder: bool = False
) -> Sequences:
    """Joins documents with [SEP] between them and cuts them into sequences [CLS] ... [SEP] of exactly `max_seq_length`
    tokens, without padding or truncation. The end, if shorter, is dropped, or kept with `keep_remainder`. Returns
    "input_ids" [m] and perhaps "offset_mapping" [m, 2] of each sequence.
    """
    first, last = np.array([[tokenizer.cls_token_id], [tokenizer.sep_token_id]], dtype=np.int32)
    # Only between documents: each sequence ends in a [SEP] anyway.
    ids, spans = (column[1:] for column in _join(documents, tokenizer, last, offsets=offsets))
    body = max_seq_length - 2
    starts = range(0, len(ids) if keep_remainder else len(ids) // body * body, body)
    packed = {"input_ids": [np.concatenate([first, ids[start : start + body], last]) for start in starts]}
    if offsets:
        bodies = (spans[start : start + body] for start in starts)
        packed["offset_mapping"] = [np.concatenate([_NOWHERE, body, _NOWHERE]) for body in bodies]
    return packed


def pack_causal(
    documents: Texts, tokenizer: Tokenizer, max_seq_length: int, *, keep_remainder: bool = False
) -> Sequences:
    """Joins documents with the end-of-text token before each and cuts them into blocks ("input_ids" [m]) of exactly
    `max_seq_length` tokens. The end, if shorter, is dropped, or kept with `keep_remainder`.

    Every token of every document is predicted exactly once: a block starts with the last token of the block before,
    and a document with the end-of-text token, as a text generated from nothing does.
    """
    ids, _ = _join(documents, tokenizer, np.array([end_of_text(tokenizer)], dtype=np.int32))
    predictions, step = len(ids) - 1, max_seq_length - 1
    starts = range(0, predictions if keep_remainder else predictions // step * step, step)
    return {"input_ids": [ids[start : start + max_seq_length] for start in starts]}


def tokenize_lines(
    texts: Texts, tokenizer: Tokenizer, max_seq_length: int, *, offsets: bool = False, keep_remainder: bool = False
) -> Sequences:
    """Makes each text that is not blank a truncated sequence [CLS] ... [SEP]; the columns are those of `pack`."""
    encoded = list(_encode(texts, tokenizer, offsets=offsets, truncation=True, max_length=max_seq_length))
    lines = {"input_ids": [ids for ids, _ in encoded]}
    return lines | ({"offset_mapping": [spans for _, spans in encoded]} if offsets else {})


def _join(
    documents: Texts, tokenizer: Tokenizer, border: np.ndarray, *, offsets: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """The tokens of all documents, `border` before each, and, with `offsets`, their characters in the document."""
    ids, spans = [border[:0]], [_NOWHERE[:0]]
    for document_ids, document_spans in _encode(documents, tokenizer, offsets=offsets, add_special_tokens=False):
        ids += [border, document_ids]
        spans += [_NOWHERE, document_spans]
    return np.concatenate(ids), np.concatenate(spans)


def _encode(texts: Texts, tokenizer: Tokenizer, *, offsets: bool, **options) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """For each text that is not blank its tokens [m] and, with `offsets`, the characters of each [m, 2]; else none."""
    options |= {"return_offsets_mapping": offsets, "return_attention_mask": False, "return_token_type_ids": False}
    for group in in_batches(filter(has_text, texts), GROUP_SIZE):
        # Not verbose: a tokenizer warns of documents longer than a sequence.
        encoded = tokenizer(group, verbose=False, **options)
        for i, ids in enumerate(encoded["input_ids"]):
            spans = encoded["offset_mapping"][i] if offsets else []
            yield np.array(ids, dtype=np.int32), np.array(spans, dtype=np.int32).reshape(-1, 2)


def has_text(text: str | None) -> bool:
    """Whether a text holds more than white space."""
    return bool(text) and not text.isspace()


def count_bytes(documents: Texts) -> int:
    """Returns the number of UTF-8 bytes of the documents that are not blank, which `pack_causal` packs."""
    return sum(len(text.encode("utf-8")) for text in documents if has_text(text))
