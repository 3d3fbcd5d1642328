"""Blocks for causal language modeling: from the raw bytes of files, and into batches."""

from pathlib import Path

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Dataset
from transformers import PreTrainedTokenizerBase

from ...errors import InputError
from ...tokenizer import FIRST_BYTE, end_of_text
from ...training.files import COMPRESSIONS, FILE_KINDS, check_file, ending
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


class ByteBlocks(Dataset):
    """Bytes `start` to `stop` of a file as blocks of tokens of `byte_tokenizer`, as `pack_causal` makes them of a
    document: the token `end_of_text` comes first, and a block starts with the last token of the block before.

    They are read on demand, and no byte is changed, dropped or added, in UTF-8 or not.
    """

    def __init__(self, path: str, start: int, stop: int, end_of_text: int, block_size: int):
        self.path, self.start, self.stop, self.end_of_text = path, start, stop, end_of_text
        # A block predicts all of its tokens except the first.
        self.step = block_size - 1

    def __len__(self) -> int:
        return -(-(self.stop - self.start) // self.step)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        first = self.start + self.step * range(len(self))[index]
        begin, end = max(first - 1, self.start), min(first + self.step, self.stop)
        ids = np.fromfile(self.path, dtype=np.uint8, count=end - begin, offset=begin).astype(np.int64) + FIRST_BYTE
        return {"input_ids": ids if begin < first else np.concatenate([[self.end_of_text], ids])}


def are_raw_bytes(arguments: CLMArguments) -> bool:
    """Return whether to read the files byte by byte: with `byte_level`, if none is a table of documents."""
    endings = {ending(Path(path)) for paths in arguments.files().values() for path in paths}
    return arguments.byte_level and bool(endings) and not endings & (FILE_KINDS.keys() - {"txt"})


def load_bytes(
    arguments: CLMArguments, tokenizer: PreTrainedTokenizerBase, block_size: int, *, train: bool, validate: bool
) -> tuple[ConcatDataset | None, ConcatDataset | None]:
    """Return training and validation blocks of the raw bytes of files, None for a part that is not asked for.

    Each file is a document, whose blocks are a `ByteBlocks`. Without validation files, the last
    `validation_split_percentage` of the bytes of every training file are held out. A training block is never shorter
    than `block_size`. Raises an InputError if a file is missing, empty or compressed, or a part does not fill a block.
    """
    train_files, validation_files = arguments.train_file or [], arguments.validation_file or []
    for path in map(Path, [*train_files, *validation_files]):
        check_file(path)
        if path.suffix.lower().lstrip(".") in COMPRESSIONS:
            raise InputError(f"{path} is compressed, so its bytes are not the text's: decompress it first.")

    def blocks(paths: list[str], begin: float, end: float, limit: int | None, *, keep_remainder: bool) -> ConcatDataset:
        """Return the first `limit` blocks of the bytes between two fractions of each file."""
        files: list[ByteBlocks] = []
        for path in paths:
            size, step = Path(path).stat().st_size, block_size - 1
            start, stop = round(size * begin), round(size * end)
            if not keep_remainder:
                stop -= (stop - start) % step
            if limit is not None:
                stop = min(stop, start + (limit - sum(map(len, files))) * step)
            files.append(ByteBlocks(path, start, stop, end_of_text(tokenizer), block_size))
        if not any(map(len, files)):
            source = ", ".join(paths) or "no file"
            raise InputError(f"The text of {source} does not fill one block of {block_size} tokens.")
        return ConcatDataset(files)

    end = 1.0 if validation_files else 1 - arguments.validation_split_percentage / 100
    train_dataset = eval_dataset = None
    if train:
        train_dataset = blocks(train_files, 0.0, end, arguments.max_train_samples, keep_remainder=False)
    if validate:
        begin, paths = (0.0, validation_files) if validation_files else (end, train_files)
        eval_dataset = blocks(paths, begin, 1.0, arguments.max_eval_samples, keep_remainder=True)
    return train_dataset, eval_dataset
