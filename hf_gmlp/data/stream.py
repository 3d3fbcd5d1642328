"""Training sequences of a streamed corpus, endless, shuffled, and resumable at any sequence."""

import copy
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from datasets import IterableDataset

from ..errors import InputError

Row = dict[str, np.ndarray]


class SequenceStream(torch.utils.data.IterableDataset):
    """
    Endless training sequences of a streamed corpus: documents are tokenized on the way, and each next sequence is
    drawn at random from a buffer. In every epoch (reading of the corpus) each sequence comes once.

    It can say where it is, the buffer included, so that a resumed run sees every sequence once and none twice without
    reading the corpus again from its start.

    Args:
        documents: A column "text".
        make_sequences: From a list of documents to columns of sequences, as `hf_gmlp.data.text.pack` does.
        max_samples: Read so many sequences per epoch only.
        buffer_size: Sequences among which the next one is drawn.
        documents_per_batch: Documents that are tokenized together.
        seed: Of the drawing.

    Yields:
        The columns of `make_sequences`, and "epoch".

    Raises:
        InputError: While reading, if the corpus does not give a single sequence.
    """

    def __init__(
        self,
        documents: IterableDataset,
        make_sequences: Callable[[list[str]], dict[str, list]],
        *,
        max_samples: int | None = None,
        buffer_size: int = 10_000,
        documents_per_batch: int = 1000,
        seed: int = 0,
    ):
        self.documents, self.make_sequences, self.max_samples = documents, make_sequences, max_samples
        self.buffer_size, self.documents_per_batch = buffer_size, documents_per_batch
        # A DataLoader reads ahead of the training, by less than this many sequences.
        self.read_ahead = max(buffer_size, 20_000)
        self.start = {
            "documents": None,
            "buffer": [],
            "random": np.random.default_rng(seed).bit_generator.state,
            "yielded": 0,
            "epoch": 0,
            "read": 0,
        }
        self.skip = 0
        self.snapshots: deque[dict] = deque([self.start])

    def __iter__(self) -> Iterator[dict]:
        yield from itertools.islice(self._read(), self.skip, None)

    def _read(self) -> Iterator[dict]:
        documents, buffer = self.start["documents"], list(self.start["buffer"])
        yielded, epoch, read = self.start["yielded"], self.start["epoch"], self.start["read"]
        random = np.random.default_rng()
        random.bit_generator.state = self.start["random"]
        self.snapshots.clear()
        while True:
            # A copy: a data set that was told where to start would start there in every epoch.
            corpus = copy.deepcopy(self.documents)
            if documents is not None:
                corpus.load_state_dict(documents)
            source = iter(corpus)
            more = True
            while more:
                self._remember(
                    {
                        "documents": documents,
                        "buffer": list(buffer),
                        "random": random.bit_generator.state,
                        "yielded": yielded,
                        "epoch": epoch,
                        "read": read,
                    }
                )
                rows, more = self._next_rows(source, read)
                documents = corpus.state_dict()
                read += len(rows)
                for row in rows:
                    if len(buffer) < self.buffer_size:
                        buffer.append(row)
                        continue
                    place = random.integers(len(buffer))
                    row, buffer[place] = buffer[place], row
                    yielded += 1
                    yield row | {"epoch": epoch}
            if read == 0:
                raise InputError("The streamed training text does not give a single sequence: it is empty or blank.")
            # The buffer is emptied before the corpus begins anew, so that an epoch is an epoch.
            while buffer:
                place = random.integers(len(buffer))
                buffer[place], buffer[-1] = buffer[-1], buffer[place]
                yielded += 1
                yield buffer.pop() | {"epoch": epoch}
            documents, read, epoch = None, 0, epoch + 1

    def _next_rows(self, source: Iterator[dict], read: int) -> tuple[list[Row], bool]:
        """The sequences of the next documents, and whether there may be more."""
        texts = [document["text"] for document in itertools.islice(source, self.documents_per_batch)]
        columns = self.make_sequences(texts)
        names = list(columns)
        rows = [
            {name: np.array(values, dtype=np.int32) for name, values in zip(names, row)}
            for row in zip(*columns.values())
        ]
        if self.max_samples is not None:
            rows = rows[: self.max_samples - read]
        full = self.max_samples is not None and read + len(rows) >= self.max_samples
        return rows, len(texts) == self.documents_per_batch and not full

    def _remember(self, snapshot: dict):
        self.snapshots.append(snapshot)
        while len(self.snapshots) > 1 and self.snapshots[1]["yielded"] <= snapshot["yielded"] - self.read_ahead:
            self.snapshots.popleft()

    def save_state(self, path: str | Path, yielded: int):
        """Writes what `load_state` needs to go on after the first `yielded` sequences."""
        snapshot = max((s for s in self.snapshots if s["yielded"] <= yielded), key=lambda s: s["yielded"])
        buffer = {
            name: {
                "values": torch.from_numpy(np.concatenate([row[name] for row in snapshot["buffer"]])),
                "lengths": [len(row[name]) for row in snapshot["buffer"]],
            }
            for name in (snapshot["buffer"][0] if snapshot["buffer"] else {})
        }
        torch.save(snapshot | {"buffer": buffer, "skip": yielded - snapshot["yielded"]}, path)

    def load_state(self, path: str | Path):
        """Makes the next iteration go on where `save_state` was told."""
        state = torch.load(path, weights_only=True)
        columns = {name: torch.split(column["values"], column["lengths"]) for name, column in state["buffer"].items()}
        rows = [{name: values.numpy() for name, values in zip(columns, row)} for row in zip(*columns.values())]
        self.skip = state.pop("skip")
        self.start = state | {"buffer": rows}
