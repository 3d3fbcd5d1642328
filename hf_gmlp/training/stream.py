"""Training sequences of a streamed corpus: endless, shuffled, and resumable at any sequence."""

import copy
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import IterableDataset

from ..errors import InputError
from .files import BATCH_BYTES, reading


class SequenceStream(torch.utils.data.IterableDataset):
    """Endless training sequences of a streamed corpus, each sampled at random from a buffer.

    In every epoch (one reading of the corpus) each sequence comes exactly once. The stream saves its state, including
    the buffer, so that a resumed run sees every sequence exactly once without reading the corpus again from its start.

    Args:
        documents: Rows with a column "text".
        make_sequences: Turns a list of texts into columns of sequences, as `pack` does. Rows have these and "epoch".
        max_samples: Maximum number of sequences in an epoch.
        buffer_size: Number of sequences to sample the next from.
        batch_size: Characters that are tokenized together, or slightly more.
        seed: Determines the order.
    """

    def __init__(
        self,
        documents: IterableDataset,
        make_sequences: Callable[[list[str | None]], dict[str, list[np.ndarray]]],
        *,
        max_samples: int | None = None,
        buffer_size: int = 10_000,
        batch_size: int = BATCH_BYTES,
        seed: int = 0,
    ):
        self.documents, self.make_sequences, self.max_samples = documents, make_sequences, max_samples
        self.buffer_size, self.batch_size = buffer_size, batch_size
        # A DataLoader reads fewer sequences than this ahead of the training.
        self.read_ahead = max(buffer_size, 20_000)
        random = np.random.default_rng(seed).bit_generator.state
        self.start: dict[str, Any] = {"documents": None, "buffer": [], "random": random}
        self.start |= {"yielded": 0, "epoch": 0, "read": 0, "skip": 0}
        self.snapshots: deque[dict] = deque([self.start])

    def __iter__(self) -> Iterator[dict]:
        yield from itertools.islice(self._read(), self.start["skip"], None)

    def _read(self) -> Iterator[dict]:
        now, buffer, random = dict(self.start), list(self.start["buffer"]), np.random.default_rng()
        random.bit_generator.state = now["random"]
        self.snapshots.clear()
        while True:
            # A copy: a data set with a loaded state would start there in every epoch.
            corpus = copy.deepcopy(self.documents)
            if now["documents"] is not None:
                corpus.load_state_dict(now["documents"])
            for texts in self._batches(corpus):
                self.snapshots.append(now | {"buffer": list(buffer), "random": random.bit_generator.state})
                while len(self.snapshots) > 1 and self.snapshots[1]["yielded"] <= now["yielded"] - self.read_ahead:
                    self.snapshots.popleft()
                columns = self.make_sequences(texts)
                rows = [dict(zip(columns, row)) for row in zip(*columns.values())]
                if self.max_samples is not None:
                    rows = rows[: self.max_samples - now["read"]]
                now["documents"] = corpus.state_dict()
                now["read"] += len(rows)
                for row in rows:
                    if len(buffer) < self.buffer_size:
                        buffer.append(row)
                        continue
                    index = random.integers(len(buffer))
                    row, buffer[index] = buffer[index], row
                    now["yielded"] += 1
                    yield row | {"epoch": now["epoch"]}
                if now["read"] == self.max_samples:
                    break
            if now["read"] == 0:
                raise InputError("The streamed training text gives no sequence: add text, or lower --max_eval_samples.")
            # The epoch ends only when the buffer is empty.
            for index in random.permutation(len(buffer)):
                yield buffer[index] | {"epoch": now["epoch"]}
            now["yielded"] += len(buffer)
            now |= {"documents": None, "read": 0, "epoch": now["epoch"] + 1}
            buffer.clear()

    def _batches(self, corpus: IterableDataset) -> Iterator[list[str | None]]:
        """Yield lists of texts with a total of `batch_size` characters or slightly more."""
        batch: list[str | None] = []
        size = 0
        with reading(["The streamed training text"], "text"):
            for row in corpus:
                batch.append(row["text"])
                size += len(row["text"] or "")
                if size >= self.batch_size:
                    yield batch
                    batch, size = [], 0
        if batch:
            yield batch

    def save_state(self, path: str | Path, yielded: int):
        """Write what `load_state` needs to continue after the first `yielded` sequences."""
        snapshot = max((s for s in self.snapshots if s["yielded"] <= yielded), key=lambda s: s["yielded"])
        # Joined: a file of ten thousand small tensors takes seconds to write and to read.
        buffer = {}
        for name in snapshot["buffer"][0] if snapshot["buffer"] else ():
            rows = [row[name] for row in snapshot["buffer"]]
            buffer[name] = {"values": torch.from_numpy(np.concatenate(rows)), "lengths": [len(row) for row in rows]}
        torch.save(snapshot | {"buffer": buffer, "skip": yielded - snapshot["yielded"]}, path)

    def load_state(self, path: str | Path):
        """Let the next iteration continue after the sequences that were yielded when `save_state` wrote the file."""
        state = torch.load(path, weights_only=True)
        columns = {name: torch.split(column["values"], column["lengths"]) for name, column in state["buffer"].items()}
        rows = [{name: values.numpy() for name, values in zip(columns, row)} for row in zip(*columns.values())]
        self.start = state | {"buffer": rows}
