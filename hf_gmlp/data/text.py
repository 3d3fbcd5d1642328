"""Text for language modeling: from the Hub or from files to sequences of token ids, ready for a collator."""

import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

import numpy as np
import pyarrow as pa
from datasets import Dataset, IterableDataset
from transformers import PreTrainedTokenizerBase as Tokenizer

from ..errors import InputError
from .documents import TEXT_FEATURES
from .files import BATCH_BYTES, GROUP_SIZE, Access, in_batches, load_data, reading
from .stream import SequenceStream

# Where a long text may be cut for the tokenizer: after the end of a line, or before the space of a word.
_CUT = re.compile(r"(?<=\S\n)(?=\S)|(?<=\S)(?= \S)")
# Characters on either side of a cut that show whether it changes the tokens.
_SURROUNDINGS = 200

_NOWHERE = np.zeros((1, 2), dtype=np.int32)

Texts = Iterable[str | None]
Sequences = dict[str, list[np.ndarray]]


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
    access: Access = Access(),
    train: bool = True,
    validate: bool = True,
) -> dict[str, Dataset | IterableDataset]:
    """Returns the documents of "train" and "validation", as far as they are asked for, in a column "text".

    Blank lines separate the documents of a .txt file; with `line_by_line`, every line is one. Without validation data,
    a random `validation_split_percentage` of the training documents is held out, or the first `max_eval_samples` of a
    stream, even if only one part is asked for. The validation part of a stream is held in memory.

    Files that neither part needs are not read. Raises an InputError if no data are named, they cannot be read, there is
    no column of text, or there are too few documents for both parts.
    """
    files = {split: paths for split, paths in (("train", train_files), ("validation", validation_files)) if paths}
    if not files and dataset_name is None:
        raise InputError("Name the data: either --dataset_name, or --train_file and perhaps --validation_file.")
    options = {"streaming": streaming, "access": access}
    given: Mapping = files or load_data(dataset_name=dataset_name, dataset_config_name=dataset_config_name, **options)
    held_apart = "validation" in given
    if "train" not in given and (train or not held_apart):
        raise InputError("There are no training data: give --train_file, or a data set with a split 'train'.")
    needed = ["train"] if train or not held_apart else []
    needed += ["validation"] if validate and held_apart else []
    if files:
        named = {split: files[split] for split in needed}
        given = load_data(files=named, lines=line_by_line, text_columns=[text_column], **options)
    splits = {split: text_rows(given[split], text_column, f"the {split} data", access) for split in needed}

    if streaming and (validate or not held_apart):
        count = max_eval_samples or 1000
        with reading(["The stream"], "text"):
            rows = list(itertools.islice(splits[needed[-1]], count if held_apart else count + 1))
        if not held_apart:
            if len(rows) <= count:
                remedy = "lower --max_eval_samples, give more text, or give a --validation_file"
                raise InputError(f"The stream has no text after the first {count}, which are held out: {remedy}.")
            splits["train"] = splits["train"].skip(count)
        splits["validation"] = Dataset.from_list(rows[:count], features=TEXT_FEATURES)
    elif not held_apart:
        number, share = len(splits["train"]), validation_split_percentage / 100
        if math.ceil(number * share) >= number:
            remedy = "lower --validation_split_percentage, or give a --validation_file"
            raise InputError(
                f"Holding out {100 * share:g} % of {number} document(s) leaves none to train on: {remedy}."
            )
        splits["train"], splits["validation"] = splits["train"].train_test_split(share, seed=seed).values()
    if validate and not streaming and max_eval_samples is not None:
        splits["validation"] = splits["validation"].take(min(max_eval_samples, len(splits["validation"])))
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
        given = ", ".join(columns) or "nothing at all"
        raise InputError(f"There is no column {text_column!r} in {where} but {given}: name one with --text_column.")
    data = data.select_columns([text_column])
    if text_column != "text":
        data = data.rename_column(text_column, "text")
    if getattr((data.features or {}).get("text"), "dtype", None) in ("string", "large_string", "string_view"):
        return data
    function = partial(_as_text, name=f"The column {text_column!r} of {where}")
    options = {} if isinstance(data, IterableDataset) else {"load_from_cache_file": not access.overwrite_cache}
    return data.map(function, features=TEXT_FEATURES, **options)


def _as_text(row: dict, name: str) -> dict[str, str | None]:
    value = row["text"]
    if isinstance(value, list | dict | bytes):
        raise InputError(
            f"{name} has a {type(value).__name__} in it and must be text: name another with --text_column."
        )
    # pandas writes NaN, which differs from itself, for a missing number.
    return {"text": None if value is None or value != value else str(value)}


def tokenize(
    texts: Mapping[str, Dataset | IterableDataset],
    tokenizer: Tokenizer,
    max_seq_length: int,
    *,
    line_by_line: bool = False,
    causal: bool = False,
    offsets: bool = False,
    max_train_samples: int | None = None,
    num_proc: int | None = None,
    seed: int = 0,
    access: Access = Access(),
) -> tuple[Dataset | SequenceStream | None, Dataset | None]:
    """Turns the parts that `load_texts` gave into training and validation sequences; a missing part gives None.

    The sequences are arrays "input_ids" and, with `offsets`, which whole-word masking needs, "offset_mapping". They are
    packed documents, lines (`line_by_line`), or blocks for a causal language model (`causal`). No validation token is
    left out; of the training sequences the first `max_train_samples` are kept. Those of a stream are a
    `SequenceStream`, whose order depends on `seed`.

    Raises an InputError if there are no sequences, or the tokenizer lacks what they need.
    """
    if offsets and not tokenizer.is_fast:
        raise InputError("The tokenizer does not know where its tokens stand: leave out --whole_word_mask.")
    make = pack_causal if causal else partial(tokenize_lines if line_by_line else pack, offsets=offsets)
    make = partial(make, tokenizer=tokenizer, max_seq_length=max_seq_length)

    def sequences(documents: Dataset, part: str) -> Dataset:
        # A thousand texts, or fewer long ones.
        batch_size = BATCH_BYTES * documents.data.num_rows // max(documents.data.nbytes, 1)
        made = documents.with_format("arrow").map(
            partial(_table, make=partial(make, keep_remainder=part != "training")),
            batched=True,
            batch_size=max(1, min(1000, batch_size)),
            remove_columns=["text"],
            num_proc=num_proc,
            load_from_cache_file=not access.overwrite_cache,
            desc="Tokenizing",
        )
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


def _table(documents: pa.Table, make: Callable[[Texts], Sequences]) -> pa.Table:
    """Sequences as a table of lists of numbers, or of pairs of them."""
    columns = {}
    for name, rows in make(text.as_py() for text in documents["text"]).items():
        borders = np.cumsum([0, *map(len, rows)], dtype=np.int32)
        pairs = name == "offset_mapping"
        values = pa.array(np.concatenate([np.empty((0, 2) if pairs else 0, np.int32), *rows]).reshape(-1))
        values = pa.FixedSizeListArray.from_arrays(values, 2) if pairs else values
        columns[name] = pa.ListArray.from_arrays(pa.array(borders), values)
    return pa.table(columns)


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
    and a document with the end-of-text token, as a text generated from nothing does. There is no [CLS] and no token at
    the end of a block, since a block may begin and end anywhere, as a prompt does.
    """
    ids, _ = _join(documents, tokenizer, np.array([end_of_text(tokenizer)], dtype=np.int32))
    predictions, step = len(ids) - 1, max_seq_length - 1
    starts = range(0, predictions if keep_remainder else predictions // step * step, step)
    return {"input_ids": [ids[start : start + max_seq_length] for start in starts]}


def tokenize_lines(
    texts: Texts, tokenizer: Tokenizer, max_seq_length: int, *, offsets: bool = False, keep_remainder: bool = False
) -> Sequences:
    """Makes each text that is not blank a truncated sequence [CLS] ... [SEP]; the columns are those of `pack`."""
    lines: Sequences = {"input_ids": []} | ({"offset_mapping": []} if offsets else {})
    for group in in_batches(filter(has_text, texts), GROUP_SIZE):
        for encoded in _encode(group, tokenizer, offsets=offsets, truncation=True, max_length=max_seq_length):
            for column, values in zip(lines.values(), encoded):
                column.append(values)
    return lines


def _join(
    documents: Texts, tokenizer: Tokenizer, border: np.ndarray, *, offsets: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """The tokens of all documents, `border` before each, and, with `offsets`, where in its document each stands."""
    ids, spans = [border[:0]], [_NOWHERE[:0]]
    pieces = (piece for text in filter(has_text, documents) for piece in cut(text, tokenizer))
    for group in in_batches(pieces, GROUP_SIZE, size_of=lambda item: len(item[1])):
        encoded = _encode([piece for _, piece in group], tokenizer, offsets=offsets, add_special_tokens=False)
        for (place, _), (piece_ids, piece_spans) in zip(group, encoded):
            ids += [border, piece_ids] if place == 0 else [piece_ids]
            spans += [_NOWHERE, piece_spans] if place == 0 else [piece_spans + place]
    return np.concatenate(ids), np.concatenate(spans)


def cut(text: str, tokenizer: Tokenizer) -> Iterator[tuple[int, str]]:
    """
    Cuts a text longer than `GROUP_SIZE` into pieces of about a quarter of that, each with its place in the text, whose
    tokens together are those of the whole text. A text that has no such places is not cut.
    """
    start = 0
    while len(text) - start > GROUP_SIZE:
        places = (match.start() for match in _CUT.finditer(text, start + GROUP_SIZE // 4))
        # A tokenizer may join the text on both sides of one place, but not of the next.
        end = next((place for place in itertools.islice(places, 16) if _is_border(text, place, tokenizer)), None)
        if end is None:
            break
        yield start, text[start:end]
        start = end
    yield start, text[start:]


def _is_border(text: str, place: int, tokenizer: Tokenizer) -> bool:
    """Whether a cut at this place leaves the tokens around it unchanged."""
    left, right = text[max(0, place - _SURROUNDINGS) : place], text[place : place + _SURROUNDINGS]
    before, after, whole = tokenizer([left, right, left + right], add_special_tokens=False, verbose=False)["input_ids"]
    return before + after == whole


def _encode(
    texts: list[str], tokenizer: Tokenizer, *, offsets: bool, **options
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """For each text its tokens [m] and, with `offsets`, the characters that each stands for [m, 2]; else none."""
    options |= {"return_offsets_mapping": offsets, "return_attention_mask": False, "return_token_type_ids": False}
    # Not verbose: a tokenizer warns of documents longer than a sequence.
    encoded = tokenizer(texts, verbose=False, **options)
    for i, ids in enumerate(encoded["input_ids"]):
        spans = encoded["offset_mapping"][i] if offsets else []
        yield np.array(ids, dtype=np.int32), np.array(spans, dtype=np.int32).reshape(-1, 2)


def has_text(text: str | None) -> bool:
    """Whether a text holds more than white space."""
    return bool(text) and not text.isspace()


def end_of_text(tokenizer: Tokenizer) -> int:
    """Returns the token that separates documents for a causal language model; an InputError if there is none."""
    token = tokenizer.sep_token_id if tokenizer.eos_token_id is None else tokenizer.eos_token_id
    if token is None:
        raise InputError("The tokenizer has no end-of-text token: set its eos_token, and save it again.")
    return token


def count_bytes(documents: Texts) -> int:
    """Returns the number of UTF-8 bytes of the documents that are not blank, which `pack_causal` packs."""
    return sum(len(text.encode("utf-8")) for text in documents if has_text(text))
