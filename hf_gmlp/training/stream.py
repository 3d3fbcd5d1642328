"""Endless batches of a streamed corpus, whose position is stored in checkpoints.

The stream is a `datasets.IterableDataset`, whose shards (the files) are split among processes and their workers. The
workers read, tokenize, pack and shuffle; `torchdata` keeps track of their positions.
"""

import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from datasets import IterableDataset
from datasets.distributed import split_dataset_by_node
from torchdata.stateful_dataloader import StatefulDataLoader
from transformers import TrainingArguments

from ..data.files import reading
from ..errors import InputError

logger = logging.getLogger(__name__)

# torchdata causes this warning in every run.
warnings.filterwarnings("ignore", "'set_vital' is deprecated")


class StreamLoader(StatefulDataLoader):
    """Endless batches of one process: in every epoch, each row of its shards comes once, in a new order.

    Since the batches do not end, no process waits for another that has fewer rows.
    """

    def __init__(self, stream: IterableDataset, collator: Callable, args: TrainingArguments) -> None:
        self.epoch, self.processes = 0, args.world_size
        super().__init__(
            split_dataset_by_node(stream, args.process_index, args.world_size),
            batch_size=args.train_batch_size,
            collate_fn=collator,
            num_workers=args.dataloader_num_workers,
            pin_memory=args.dataloader_pin_memory,
            prefetch_factor=args.dataloader_prefetch_factor,
            multiprocessing_context=args.dataloader_multiprocessing_context,
            drop_last=args.dataloader_drop_last,
        )

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        is_empty = False
        while True:
            self.dataset.set_epoch(self.epoch)
            if hasattr(self.collate_fn, "set_epoch"):
                self.collate_fn.set_epoch(self.epoch)
            was_empty, is_empty = is_empty, True
            with reading(["The stream"], "text"):
                for batch in super().__iter__():
                    is_empty = False
                    yield batch
            # A single empty epoch is normal for a run that resumes at the end of an epoch.
            if is_empty and was_empty:
                raise InputError("The stream has no sequence for this process: add text, or files for every process.")
            self.epoch += 1

    def save(self, folder: Path, process: int) -> None:
        """Write the position after the last batch. Each process has its own file."""
        folder.mkdir(parents=True, exist_ok=True)
        state = {"processes": self.processes, "workers": self.num_workers, "epoch": self.epoch}
        torch.save(state | {"loader": self.state_dict()}, folder / f"stream-{process}.pt")

    def load(self, folder: Path, process: int) -> None:
        """Continue after the last batch before `save`; with another number of readers, restart the corpus."""
        path = folder / f"stream-{process}.pt"
        state: dict[str, Any] = torch.load(path, weights_only=True) if path.is_file() else {}
        readers = (self.processes, self.num_workers)
        if (state.get("processes"), state.get("workers")) != readers:
            message = "%s has no position in the stream for %d process(es) with %d worker(s): the stream restarts"
            logger.warning(message, folder, *readers)
            return
        self.epoch = state["epoch"]
        self.load_state_dict(state["loader"])
