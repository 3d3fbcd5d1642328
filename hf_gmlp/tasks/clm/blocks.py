"""Blocks for causal language modeling: from the raw bytes of files, and into batches."""

import bisect
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from ...errors import InputError
from ...tokenizer import FIRST_BYTE, end_of_text
from ...training.files import COMPRESSIONS, FILE_KINDS, check_file
from ..packing import pad_rows, restarting_positions
from .arguments import CLMArguments


class CausalCollator:
    """Batches blocks whose labels are their tokens, which a causal language model shifts by one.

    The first token of a block is not a label, since nothing predicts it. Shorter blocks are padded on the right. With
    `separate_documents`, a batch also has "position_ids", which restart at each end-of-text token, and "shift_labels",
    with which the last token of a document still predicts that it ends. With a `max_length`, all batches are as long.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, separate_documents: bool = False, max_length: int | None = None
    ):
        self.max_length = max_length
        self.separator = end_of_text(tokenizer) if separate_documents else None
        pad = tokenizer.pad_token_id
        # GPT-2's tokenizer has no padding token. Any token will do: it is hidden by the mask and not a label.
        self.pad_token_id = end_of_text(tokenizer) if pad is None else pad

    def __call__(self, examples: list[dict]) -> dict[str, torch.Tensor]:
        blocks = [np.asarray(example["input_ids"]) for example in examples]
        rows = [{"input_ids": ids, "labels": np.concatenate([[-100], ids[1:]])} for ids in blocks]
        if self.separator is None:
            return pad_rows(rows, self.pad_token_id, self.max_length)
        for row in rows:
            row["position_ids"] = restarting_positions(row["input_ids"] == self.separator)
        batch = pad_rows(rows, self.pad_token_id, self.max_length)
        return batch | {"shift_labels": torch.nn.functional.pad(batch["labels"][:, 1:], (0, 1), value=-100)}


class ByteBlocks(torch.utils.data.Dataset):
    """The bytes of files as blocks of tokens of `byte_tokenizer`, as `pack_causal` makes them of a document.

    They are read on demand, and no byte is changed, dropped or added, in UTF-8 or not. Each file is a document, with
    the token `end_of_text` before it: no block continues into the next file.

    Args:
        files: Path, first byte, and the byte after the last.
        keep_remainder: Whether to keep the end of a file that is shorter than a block.
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
        self.end_of_text, self.block_size = end_of_text, block_size
        # A block predicts all of its tokens except the first.
        step = block_size - 1
        self.files: list[tuple[str, int, int]] = []
        # The number of blocks up to the end of each file.
        self.ends: list[int] = []
        self.length = 0
        for path, start, stop in files:
            size = stop - start if keep_remainder else (stop - start) // step * step
            if max_samples is not None:
                size = min(size, (max_samples - self.length) * step)
            self.length += -(-size // step)
            self.files.append((path, start, start + size))
            self.ends.append(self.length)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        index = range(self.length)[index]
        number = bisect.bisect_right(self.ends, index)
        path, start, stop = self.files[number]
        block = index - (self.ends[number - 1] if number else 0)
        # A block starts with the token before its predictions: the end-of-text token at the start of a file.
        first = start + block * (self.block_size - 1)
        with open(path, "rb") as file:
            file.seek(first - (block > 0))
            data = file.read(min(first + self.block_size - 1, stop) - file.tell())
        ids = np.frombuffer(data, dtype=np.uint8).astype(np.int64) + FIRST_BYTE
        return {"input_ids": ids if block else np.concatenate([[self.end_of_text], ids])}

    @property
    def num_bytes(self) -> int:
        """The number of bytes that the blocks predict."""
        return sum(stop - start for _, start, stop in self.files)


def are_raw_bytes(arguments: CLMArguments) -> bool:
    """Return whether to read the files byte by byte: with `byte_level`, if none is a table of documents."""
    tables = set(FILE_KINDS) - {"txt"}
    paths = [Path(path) for files in arguments.files().values() for path in files]
    endings = {suffix.lower().lstrip(".") for path in paths for suffix in path.suffixes[-2:]}
    return arguments.byte_level and bool(paths) and not endings & tables


def load_bytes(
    arguments: CLMArguments, tokenizer: PreTrainedTokenizerBase, block_size: int, *, train: bool, validate: bool
) -> tuple[ByteBlocks | None, ByteBlocks | None]:
    """Return training and validation blocks of the raw bytes of files, None for a part that is not asked for.

    Without validation files, the last `validation_split_percentage` of the bytes of every training file are held out.
    Raises an InputError if a file is missing, empty or compressed, or a part does not fill one block.
    """
    train_files, validation_files = arguments.train_file or [], arguments.validation_file or []
    for path in map(Path, [*train_files, *validation_files]):
        check_file(path)
        if path.suffix.lower().lstrip(".") in COMPRESSIONS:
            raise InputError(f"{path} is compressed, so its bytes are not the text's: decompress it first.")

    def blocks(paths: list[str], begin: float, end: float, **options) -> ByteBlocks:
        """Return the blocks of the bytes between two fractions of each file."""
        sizes = [Path(path).stat().st_size for path in paths]
        files = [(path, round(size * begin), round(size * end)) for path, size in zip(paths, sizes)]
        dataset = ByteBlocks(files, end_of_text(tokenizer), block_size, **options)
        if len(dataset) == 0:
            source = ", ".join(paths) or "no file"
            raise InputError(f"The text of {source} does not fill one block of {block_size} tokens.")
        return dataset

    end = 1.0 if validation_files else 1 - arguments.validation_split_percentage / 100
    train_dataset = eval_dataset = None
    if train:
        train_dataset = blocks(train_files, 0.0, end, max_samples=arguments.max_train_samples)
    if validate:
        begin, paths = (0.0, validation_files) if validation_files else (end, train_files)
        eval_dataset = blocks(paths, begin, 1.0, keep_remainder=True, max_samples=arguments.max_eval_samples)
    return train_dataset, eval_dataset
