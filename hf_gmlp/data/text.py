"""Text for language modeling: from the Hub or from files, to sequences of token ids ready for a collator."""

from collections.abc import Iterable
from functools import partial

from datasets import Dataset, DatasetDict, IterableDataset, IterableDatasetDict, load_dataset
from transformers import PreTrainedTokenizerBase

from ..errors import InputError
from .files import file_kind, read_files
from .stream import SequenceStream


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
        try:
            loaded = load_dataset(dataset_name, dataset_config_name, streaming=streaming, cache_dir=cache_dir)
        except (OSError, ValueError) as error:
            raise InputError(f"The data set {dataset_name} cannot be loaded from the Hub: {error}") from error
    else:
        files = {"train": train_files, "validation": validation_files}
        files = {split: paths for split, paths in files.items() if paths}
        kinds = {split: file_kind(paths) for split, paths in files.items()}
        sample_by = {"sample_by": "line" if line_by_line else "paragraph"}
        loaded = {
            split: read_files(
                paths, streaming=streaming, cache_dir=cache_dir, **(sample_by if kinds[split] == "txt" else {})
            )
            for split, paths in files.items()
        }

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

    if "train" not in splits:
        raise InputError("There are no training data: give --train_file.")
    if "validation" not in splits and streaming:
        held_out = max_eval_samples or 1000
        splits["validation"] = splits["train"].take(held_out)
        splits["train"] = splits["train"].skip(held_out)
    elif "validation" not in splits:
        if len(splits["train"]) < 2:
            raise InputError("A single document cannot be split in two: give a --validation_file.")
        share = validation_split_percentage / 100
        check_share(share)
        parts = splits["train"].train_test_split(test_size=share, seed=seed)
        splits = {"train": parts["train"], "validation": parts["test"]}
    if streaming:
        rows = list(splits["validation"].take(max_eval_samples or 1000))
        splits["validation"] = Dataset.from_list(rows)
    elif max_eval_samples is not None:
        splits["validation"] = splits["validation"].select(range(min(max_eval_samples, len(splits["validation"]))))
    return IterableDatasetDict(splits) if streaming else DatasetDict(splits)


def check_share(share: float):
    """
    Raises:
        InputError: If a share to hold out is none of the training data or all of them.
    """
    if not 0 < share < 1:
        raise InputError(
            f"--validation_split_percentage is above 0 and below 100, got {share * 100:g}; to train on all of the "
            f"data, give a --validation_file."
        )


def tokenize(
    texts: DatasetDict | IterableDatasetDict,
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int,
    *,
    line_by_line: bool = False,
    causal: bool = False,
    offsets: bool = False,
    max_train_samples: int | None = None,
    num_proc: int | None = None,
    seed: int = 0,
) -> tuple[Dataset | SequenceStream, Dataset]:
    """
    What `load_texts` gave as training and validation sequences, packed or line by line. No validation token is left
    out; of the training sequences the first `max_train_samples` are kept.

    Args:
        causal: Pack for a causal language model (`pack_causal`), which has no lines and no offsets.
        offsets: Also give "offset_mapping", which whole-word masking needs.
        seed: Of the order of a stream.

    Returns:
        Columns "input_ids" and, unless `causal`, "special_tokens_mask"; the training sequences of a stream are a
        `SequenceStream`.

    Raises:
        InputError: If no sequence comes out.
    """
    make = pack_causal if causal else partial(tokenize_lines if line_by_line else pack, offsets=offsets)

    def sequences(documents: Dataset, keep_remainder: bool) -> Dataset:
        return documents.map(
            lambda batch: make(batch["text"], tokenizer, max_seq_length, keep_remainder=keep_remainder),
            batched=True,
            remove_columns=["text"],
            num_proc=num_proc,
            desc="Tokenizing",
        )

    validation = sequences(texts["validation"], keep_remainder=True)
    if isinstance(texts["train"], IterableDataset):
        train = SequenceStream(
            texts["train"],
            lambda documents: make(documents, tokenizer, max_seq_length),
            max_samples=max_train_samples,
            seed=seed,
        )
    else:
        train = sequences(texts["train"], keep_remainder=False)
        if max_train_samples is not None:
            train = train.take(min(max_train_samples, len(train)))
        _check_not_empty("training", train, max_seq_length, causal)
    _check_not_empty("validation", validation, max_seq_length, causal)
    return train, validation


def _check_not_empty(name: str, sequences: Dataset, max_seq_length: int, causal: bool):
    if len(sequences) == 0:
        remedy = "or lower --block_size" if causal else "lower --max_seq_length, or use --line_by_line"
        raise InputError(
            f"The {name} text does not fill one sequence of {max_seq_length} tokens: give more text, {remedy}."
        )


def pack(
    documents: list[str | None],
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int,
    *,
    offsets: bool = False,
    keep_remainder: bool = False,
) -> dict[str, list]:
    """
    Documents laid end to end, [SEP] between them, and cut into sequences [CLS] ... [SEP] of exactly `max_seq_length`
    tokens: no padding, no truncation. What is left at the end, less than one sequence, is dropped, or, with
    `keep_remainder`, kept as a shorter one.

    Returns:
        "input_ids", "special_tokens_mask" (1 where nothing may be masked) and perhaps "offset_mapping", a list each.
    """
    encoded = _encode(documents, tokenizer, offsets=offsets, add_special_tokens=False)
    ids: list[int] = []
    spans: list[tuple[int, int]] = []
    for i, document in enumerate(encoded["input_ids"]):
        # Between documents, not after the last: each sequence ends in a [SEP] of its own.
        ids += ([tokenizer.sep_token_id] if ids else []) + document
        if offsets:
            spans += ([(0, 0)] if spans else []) + encoded["offset_mapping"][i]
    body = max_seq_length - 2
    starts = range(0, len(ids) if keep_remainder else len(ids) // body * body, body)
    packed = {
        "input_ids": [[tokenizer.cls_token_id, *ids[start : start + body], tokenizer.sep_token_id] for start in starts],
    }
    if offsets:
        packed["offset_mapping"] = [[(0, 0), *spans[start : start + body], (0, 0)] for start in starts]
    special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    packed["special_tokens_mask"] = [[int(token in special) for token in row] for row in packed["input_ids"]]
    return packed


def pack_causal(
    documents: list[str | None],
    tokenizer: PreTrainedTokenizerBase,
    block_size: int,
    *,
    keep_remainder: bool = False,
) -> dict[str, list]:
    """
    Documents laid end to end, the end-of-text token in front of each, and cut into blocks of exactly `block_size`
    tokens. What is left at the end is dropped, or, with `keep_remainder`, kept as a shorter block.

    Every token of every document is predicted once and no more: the first of a document from the end-of-text token,
    which is also where a text begins that is generated from nothing; and the first of a block as the last of the block
    before, which ends with it too. There is no [CLS] and no token at the end of a block, for a block may begin and end
    anywhere, as a prompt does.

    Returns:
        "input_ids".
    """
    ids: list[int] = []
    for document in _encode(documents, tokenizer, offsets=False, add_special_tokens=False)["input_ids"]:
        ids += [end_of_text(tokenizer), *document]
    predictions, step = len(ids) - 1, block_size - 1
    starts = range(0, predictions if keep_remainder else predictions // step * step, step)
    return {"input_ids": [ids[start : start + block_size] for start in starts]}


def end_of_text(tokenizer: PreTrainedTokenizerBase) -> int:
    """
    The token that parts documents for a causal language model.

    Raises:
        InputError: If the tokenizer has none.
    """
    token = tokenizer.sep_token_id if tokenizer.eos_token_id is None else tokenizer.eos_token_id
    if token is None:
        raise InputError("The tokenizer has no end-of-text token: set its eos_token, and save it again.")
    return token


def count_bytes(documents: Iterable[str | None]) -> int:
    """The UTF-8 bytes of what `pack_causal` packs: of the documents that are not blank."""
    return sum(len(text.encode("utf-8")) for text in documents if text and not text.isspace())


def tokenize_lines(
    texts: list[str | None],
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int,
    *,
    offsets: bool = False,
    keep_remainder: bool = False,
) -> dict[str, list]:
    """Each text that is not blank as one sequence [CLS] ... [SEP], truncated; columns as those of `pack`."""
    return _encode(
        texts, tokenizer, offsets=offsets, truncation=True, max_length=max_seq_length, return_special_tokens_mask=True
    )


def _encode(
    texts: list[str | None], tokenizer: PreTrainedTokenizerBase, *, offsets: bool, **options
) -> dict[str, list]:
    """What the tokenizer says of the texts that are not blank."""
    texts = [text for text in texts if text and not text.isspace()]
    columns = ["input_ids", *(["offset_mapping"] if offsets else [])]
    columns += ["special_tokens_mask"] if "return_special_tokens_mask" in options else []
    # A tokenizer takes no empty list; and it warns of documents longer than a sequence unless told not to.
    encoded = tokenizer(texts, return_offsets_mapping=offsets, verbose=False, **options) if texts else {}
    return {column: list(encoded.get(column, [])) for column in columns}
