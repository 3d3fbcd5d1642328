"""Training sequences of a streamed corpus: endless, shuffled, and resumable at any sequence."""

import copy
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from datasets import IterableDataset

from ..errors import InputError
from .files import BATCH_BYTES, in_batches, reading


class SequenceStream(torch.utils.data.IterableDataset):
    """Endless training sequences of a streamed corpus, which is tokenized on the way. Each next sequence is drawn at
    random from a buffer; in every epoch (one reading of the corpus) each sequence comes exactly once.

    The stream saves its state, including the buffer, so that a resumed run sees every sequence exactly once without
    reading the corpus again from its start. Each row has the columns of `make_sequences`, such as `pack`, and
    "epoch". An epoch has at most `max_samples` sequences.
    """

    def __init__(
        self,
        documents: IterableDataset,
        make_sequences: Callable[[list[str | None]], dict[str, list]],
        *,
        max_samples: int | None = None,
        buffer_size: int = 10_000,
        documents_per_batch: int = 1000,
        seed: int = 0,
    ):
        self.documents, self.make_sequences, self.max_samples = documents, make_sequences, max_samples
        self.buffer_size, self.documents_per_batch = buffer_size, documents_per_batch
        # A DataLoader reads fewer sequences than this ahead of the training.
        self.read_ahead = max(buffer_size, 20_000)
        random = np.random.default_rng(seed).bit_generator.state
        self.start = {"documents": None, "buffer": [], "random": random, "yielded": 0, "epoch": 0, "read": 0}
        self.skip = 0
        self.snapshots: deque[dict] = deque([self.start])

    def __iter__(self) -> Iterator[dict]:
        yield from itertools.islice(self._read(), self.skip, None)

    def _read(self) -> Iterator[dict]:
        now, buffer, random = dict(self.start), list(self.start["buffer"]), np.random.default_rng()
        random.bit_generator.state = now["random"]
        self.snapshots.clear()
        while True:
            # A copy: a data set with a loaded state would start there in every epoch.
            corpus = copy.deepcopy(self.documents)
            if now["documents"] is not None:
                corpus.load_state_dict(now["documents"])
            batch = {"count": self.documents_per_batch, "size_of": lambda text: len(text or "")}
            for texts in in_batches(_texts(corpus), BATCH_BYTES, **batch):
                self._remember(now | {"buffer": list(buffer), "random": random.bit_generator.state})
                rows = self._make_rows(texts)
                if self.max_samples is not None:
                    rows = rows[: self.max_samples - now["read"]]
                now["documents"] = corpus.state_dict()
                now["read"] += len(rows)
                for row in rows:
                    if len(buffer) < self.buffer_size:
                        buffer.append(row)
                        continue
                    place = random.integers(len(buffer))
                    row, buffer[place] = buffer[place], row
                    now["yielded"] += 1
                    yield row | {"epoch": now["epoch"]}
                if now["read"] == self.max_samples:
                    break
            if now["read"] == 0:
                raise InputError("The streamed training text does not give a single sequence: it is empty or blank.")
            # The epoch ends only when the buffer is empty.
            while buffer:
                place = random.integers(len(buffer))
                buffer[place], buffer[-1] = buffer[-1], buffer[place]
                now["yielded"] += 1
                yield buffer.pop() | {"epoch": now["epoch"]}
            now |= {"documents": None, "read": 0, "epoch": now["epoch"] + 1}

    def _make_rows(self, texts: list[str | None]) -> list[dict[str, np.ndarray]]:
        columns = self.make_sequences(texts)
        # Copies: a row that waits in the buffer must not keep the whole batch in memory.
        return [
            {name: np.array(values, dtype=np.int32) for name, values in zip(columns, row)}
            for row in zip(*columns.values())
        ]

    def _remember(self, snapshot: dict):
        self.snapshots.append(snapshot)
        while len(self.snapshots) > 1 and self.snapshots[1]["yielded"] <= snapshot["yielded"] - self.read_ahead:
            self.snapshots.popleft()

    def save_state(self, path: str | Path, yielded: int):
        """Writes what `load_state` needs to continue after the first `yielded` sequences."""
        snapshot = max((s for s in self.snapshots if s["yielded"] <= yielded), key=lambda s: s["yielded"])
        buffer = {}
        for name in snapshot["buffer"][0] if snapshot["buffer"] else ():
            rows = [row[name] for row in snapshot["buffer"]]
            buffer[name] = {"values": torch.from_numpy(np.concatenate(rows)), "lengths": [len(row) for row in rows]}
        torch.save(snapshot | {"buffer": buffer, "skip": yielded - snapshot["yielded"]}, path)

    def load_state(self, path: str | Path):
        """Continues the next iteration where `save_state` was told to."""
        state = torch.load(path, weights_only=True)
        self.skip = state.pop("skip")
        columns = {name: torch.split(column["values"], column["lengths"]) for name, column in state["buffer"].items()}
        rows = [{name: values.numpy() for name, values in zip(columns, row)} for row in zip(*columns.values())]
        self.start = state | {"buffer": rows}


def _texts(corpus: IterableDataset) -> Iterator[str | None]:
    with reading(["The streamed training text"], "text"):
        for row in corpus:
            yield row["text"]
