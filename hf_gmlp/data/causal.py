"""Blocks for causal language modeling: from the raw bytes of files, and into batches."""

import bisect
import itertools
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from ..errors import InputError
from .files import COMPRESSIONS, FILE_KINDS, check_file
from .masking import pad_rows
from .text import end_of_text
from .tokenizer import FIRST_BYTE


class CausalCollator:
    """
    Blocks as a batch whose labels are its tokens: a causal language model moves them by one itself. Nothing predicts
    the first, so that it is no label; shorter blocks are padded on the right.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        pad = tokenizer.pad_token_id
        # GPT-2's tokenizer has no padding token. Any will do: it is hidden by the mask, and no label.
        self.pad_token_id = end_of_text(tokenizer) if pad is None else pad

    def __call__(self, examples: list[dict]) -> dict[str, torch.Tensor]:
        blocks = [example["input_ids"] for example in examples]
        rows = [{"input_ids": ids, "labels": np.concatenate([[-100], ids[1:]])} for ids in blocks]
        return pad_rows(rows, self.pad_token_id)


class ByteBlocks(torch.utils.data.Dataset):
    """
    The bytes of files as blocks of tokens of `byte_tokenizer`: what `pack_causal` makes of one document, but read from
    the files when they are asked for, whatever their size, and with not a byte changed, dropped or added, be they UTF-8
    or not. Each file is a document: a block does not go on in the next file.

    Args:
        files: Path, first byte, and the byte behind the last.
        end_of_text: The token in front of every file.
        block_size: Tokens per block.
        keep_remainder: Keep what is left at the end of a file as a shorter block.
        max_samples: Keep the first so many blocks only.
    """

    def __init__(
        self,
        files: list[tuple[str, int, int]],
        end_of_text: int,
        block_size: int,
        *,
        keep_remainder: bool = False,
        max_samples: int | None = None,
    ):
        self.files, self.end_of_text, self.block_size = files, end_of_text, block_size
        # A block predicts all of its tokens but the first, as many as a file has bytes.
        step = block_size - 1
        sizes = [stop - start for _, start, stop in files]
        blocks = [-(-size // step) if keep_remainder else size // step for size in sizes]
        self.ends = list(itertools.accumulate(blocks))
        self.length = self.ends[-1] if max_samples is None else min(max_samples, self.ends[-1])

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        if not 0 <= index < self.length:
            raise IndexError(f"There are {self.length} blocks, and none of number {index}.")
        number = bisect.bisect_right(self.ends, index)
        path, start, stop = self.files[number]
        block = index - (self.ends[number - 1] if number else 0)
        # One byte behind the step is where the first byte stands, since the end-of-text token is in front of it.
        first = start + block * (self.block_size - 1) - 1
        last = min(first + self.block_size, stop)
        with open(path, "rb") as file:
            file.seek(max(first, start))
            data = np.frombuffer(file.read(last - max(first, start)), dtype=np.uint8)
        ids = data.astype(np.int64) + FIRST_BYTE
        return {"input_ids": ids if block else np.concatenate([[self.end_of_text], ids])}

    @property
    def num_bytes(self) -> int:
        """The bytes that the blocks predict."""
        if self.length < self.ends[-1]:
            return sum(len(self[index]["input_ids"]) - 1 for index in range(self.length))
        return sum(stop - start for _, start, stop in self.files)


def are_raw_bytes(paths: list[str] | None) -> bool:
    """Whether files are to be read byte by byte: plain text, or anything that is no table of documents."""
    tables = set(FILE_KINDS) - {"txt"}
    endings = {suffix.lower().lstrip(".") for path in paths or [] for suffix in Path(path).suffixes[-2:]}
    return bool(paths) and not endings & tables


def load_bytes(
    train_files: list[str] | None,
    validation_files: list[str] | None,
    tokenizer: PreTrainedTokenizerBase,
    block_size: int,
    *,
    validation_split_percentage: int = 5,
    max_train_samples: int | None = None,
    max_eval_samples: int | None = None,
    train: bool = True,
    validate: bool = True,
) -> tuple[ByteBlocks | None, ByteBlocks | None]:
    """
    Training and validation blocks of the raw bytes of files. Without validation files, the last
    `validation_split_percentage` of the bytes of every training file are held out.

    Args:
        train, validate: Which parts are asked for; the other is None.

    Raises:
        InputError: If a file is missing, empty, packed, or a table of documents, or a part does not fill one block.
    """
    if train and not train_files:
        raise InputError("There are no training data: give --train_file.")
    given = [*(train_files or []), *(validation_files or [])]
    tables = [path for path in given if not are_raw_bytes([path])]
    if tables:
        raise InputError(
            f"Other files of this run are read byte by byte, and {', '.join(tables)} would be read as documents: give "
            f"plain text files for both, or documents for both."
        )
    for path in map(Path, given):
        check_file(path)
        if path.suffix.lower().lstrip(".") in COMPRESSIONS:
            raise InputError(f"{path} is packed, and its bytes are not the text's: unpack it first.")

    def span(paths: list[str], begin: float = 0.0, end: float = 1.0) -> list[tuple[str, int, int]]:
        sizes = [Path(path).stat().st_size for path in paths]
        return [(str(path), round(size * begin), round(size * end)) for path, size in zip(paths, sizes)]

    border = 1.0 if validation_files else 1 - validation_split_percentage / 100
    token = end_of_text(tokenizer)
    blocks = held_out = None
    if train:
        blocks = ByteBlocks(span(train_files, end=border), token, block_size, max_samples=max_train_samples)
    if validate:
        spans = span(validation_files) if validation_files else span(train_files, begin=border)
        held_out = ByteBlocks(spans, token, block_size, keep_remainder=True, max_samples=max_eval_samples)
    for part, made in (("training", blocks), ("validation", held_out)):
        if made is not None and len(made) == 0:
            raise InputError(
                f"The {part} text does not fill one block of {block_size} tokens: give more text, or lower "
                f"--block_size."
            )
    return blocks, held_out
