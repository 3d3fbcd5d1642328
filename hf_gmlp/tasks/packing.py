"""Batches: rows padded on the right, and several documents or samples in one row that do not see each other."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch.nn.functional import pad
from transformers import PreTrainedTokenizerBase


def pad_rows(
    rows: Sequence[Mapping[str, np.ndarray]], pad_token_id: int, length: int | None = None
) -> dict[str, torch.Tensor]:
    """Pad rows of "input_ids", "labels" and perhaps "position_ids" [m] on the right, by default to the longest of them;
    the labels of padding are -100.

    Returns:
        The columns [batch, length], and an "attention_mask" if there is padding.
    """
    lengths = torch.tensor([len(row["input_ids"]) for row in rows])
    length = int(lengths.max()) if length is None else length
    batch = {}
    for name, value in {"input_ids": pad_token_id, "labels": -100, "position_ids": 0}.items():
        if name in rows[0]:
            columns = [torch.as_tensor(row[name]).long() for row in rows]
            batch[name] = torch.stack([pad(column, (0, length - len(column)), value=value) for column in columns])
    mask = torch.arange(length) < lengths[:, None]  # [batch, length]
    return batch if mask.all() else batch | {"attention_mask": mask.long()}


def restarting_positions(starts: np.ndarray) -> np.ndarray:
    """Return `position_ids` [m] that count from 0 at the first token and wherever `starts` [m] is true."""
    positions = np.arange(len(starts))
    return positions - np.maximum.accumulate(np.where(starts, positions, 0))


class PackingCollator:
    """Joins tokenized samples to one row without padding, for models that take packed documents.

    A batch has "input_ids", "position_ids" and perhaps "token_type_ids" [1, N]; "labels" and other columns that are not
    per token keep a row for each sample [k, ...].
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self.per_token = set(tokenizer.model_input_names)

    def __call__(self, samples: Sequence[Mapping]) -> dict[str, torch.Tensor]:
        batch = {}
        for key in samples[0].keys() - {"attention_mask"}:
            values = [torch.as_tensor(sample[key]) for sample in samples]
            name = "labels" if key == "label" else key
            batch[name] = torch.cat(values)[None] if key in self.per_token else torch.stack(values)
        positions = [torch.arange(len(sample["input_ids"])) for sample in samples]
        return batch | {"position_ids": torch.cat(positions)[None]}
