"""Blocks for causal language modeling: from the raw bytes of files, and into batches."""

import bisect
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from ...errors import InputError
from ...tokenizer import FIRST_BYTE, end_of_text
from ...training.files import COMPRESSIONS, FILE_KINDS, check_file
from ..mlm.masking import pad_rows
from ..packing import restarting_positions


class CausalCollator:
    """Batches blocks whose labels are their tokens, which a causal language model shifts by one; the first token of a
    block is not a label, since nothing predicts it. Shorter blocks are padded on the right.

    With `separate_documents`, a batch also has "position_ids", which restart at each end-of-text token, and
    "shift_labels", with which the last token of a document still predicts that it ends.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, separate_documents: bool = False):
        self.border = end_of_text(tokenizer) if separate_documents else None
        pad = tokenizer.pad_token_id
        # GPT-2's tokenizer has no padding token. Any token will do: it is hidden by the mask and not a label.
        self.pad_token_id = end_of_text(tokenizer) if pad is None else pad

    def __call__(self, examples: list[dict]) -> dict[str, torch.Tensor]:
        blocks = [example["input_ids"] for example in examples]
        rows = [{"input_ids": ids, "labels": np.concatenate([[-100], ids[1:]])} for ids in blocks]
        if self.border is None:
            return pad_rows(rows, self.pad_token_id)
        for row in rows:
            row["position_ids"] = restarting_positions(row["input_ids"] == self.border)
        batch = pad_rows(rows, self.pad_token_id)
        return batch | {"shift_labels": torch.nn.functional.pad(batch["labels"][:, 1:], (0, 1), value=-100)}


class ByteBlocks(torch.utils.data.Dataset):
    """The bytes of files as blocks of tokens of `byte_tokenizer`, as `pack_causal` makes them of a document.

    They are read on demand, and no byte is changed, dropped or added, in UTF-8 or not. Each of the `files` (path, first
    byte, and the byte after the last) is a document, with the token `end_of_text` before it: no block continues into
    the next file. The end of a file, if shorter than a block, is dropped, or kept with `keep_remainder`; only the first
    `max_samples` blocks are kept.
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
        self.files, self.ends, self.length = [], [], 0
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


def are_raw_bytes(paths: list[str] | None) -> bool:
    """Whether to read files byte by byte: plain text, or anything else that is not a table of documents."""
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
    """Returns training and validation blocks of the raw bytes of files, None for a part that is not asked for.

    Without validation files, the last `validation_split_percentage` of the bytes of every training file are held out.
    Raises an InputError if a file is missing, empty, compressed, or a table, or a part does not fill one block.
    """
    if train and not train_files:
        raise InputError("There are no training data: give --train_file.")
    sizes = {}
    for path in map(Path, [*(train_files or []), *(validation_files or [])]):
        if not are_raw_bytes([path]):
            raise InputError(f"{path} has documents, but other files are read as bytes: give documents for both.")
        check_file(path)
        if path.suffix.lower().lstrip(".") in COMPRESSIONS:
            raise InputError(f"{path} is compressed, so its bytes are not the text's: decompress it first.")
        sizes[str(path)] = path.stat().st_size

    def blocks(part: str, paths: list[str], begin: float, end: float, **options) -> ByteBlocks:
        spans = [(path, round(sizes[path] * begin), round(sizes[path] * end)) for path in map(str, map(Path, paths))]
        made = ByteBlocks(spans, end_of_text(tokenizer), block_size, **options)
        if len(made) == 0:
            remedy = "give more text, or lower --block_size"
            raise InputError(f"The {part} text does not fill one block of {block_size} tokens: {remedy}.")
        return made

    border = 1.0 if validation_files else 1 - validation_split_percentage / 100
    paths, begin = (validation_files, 0.0) if validation_files else (train_files, border)
    options = {"keep_remainder": True, "max_samples": max_eval_samples}
    return (
        blocks("training", train_files, 0.0, border, max_samples=max_train_samples) if train else None,
        blocks("validation", paths, begin, 1.0, **options) if validate else None,
    )
