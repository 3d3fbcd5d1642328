"""Rows padded on the right, and the positions of several documents in one row."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch.nn.functional import pad


def pad_rows(
    rows: Sequence[Mapping[str, np.ndarray]], pad_token_id: int, length: int | None = None
) -> dict[str, torch.Tensor]:
    """Pad rows of "input_ids", "labels" and possibly "position_ids" [m] on the right to `length`, by default that of
    the longest row. The labels of padding are -100.

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
    """Return `position_ids` [m] that restart from 0 at the first token and wherever `starts` [m] is true."""
    positions = np.arange(len(starts))
    return positions - np.maximum.accumulate(np.where(starts, positions, 0))
