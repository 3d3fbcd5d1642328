"""Batches of a streamed corpus, without an end, and with a position that a checkpoint keeps.

The stream is a `datasets.IterableDataset`, whose shards (the files) are split by process and by worker. The workers
read, tokenize, pack and shuffle; `torchdata` keeps their positions.
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

from ..errors import InputError
from .files import reading

logger = logging.getLogger(__name__)

# torchdata gives this warning in every run.
warnings.filterwarnings("ignore", "'set_vital' is deprecated")
SOURCE = "The streamed training text"


class StreamLoader(StatefulDataLoader):
    """Batches of one process, epoch after epoch: in each, every row of its shards comes once, in another order.

    Without an end, no process waits for another that has fewer rows.
    """

    def __init__(self, stream: IterableDataset, collator: Callable, args: TrainingArguments):
        self.epoch, self.processes = 0, args.world_size
        say_what_shards_cost(stream.num_shards, args.world_size, args.dataloader_num_workers)
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
            with reading([SOURCE], "text"):
                for batch in super().__iter__():
                    is_empty = False
                    yield batch
            # A run may resume at the end of an epoch.
            if is_empty and was_empty:
                raise InputError(f"{SOURCE} gives no sequence: add text, or files for every process.")
            self.epoch += 1

    def save(self, folder: Path, process: int):
        """Write the position behind the last batch, of each process to a file of its own."""
        folder.mkdir(parents=True, exist_ok=True)
        state = {"processes": self.processes, "workers": self.num_workers, "epoch": self.epoch}
        torch.save(state | {"loader": self.state_dict()}, folder / f"stream-{process}.pt")

    def load(self, folder: Path, process: int):
        """Continue behind the batches before `save`; from the start of the corpus with another number of readers."""
        path = folder / f"stream-{process}.pt"
        state: dict[str, Any] = torch.load(path, weights_only=True) if path.is_file() else {}
        readers = (self.processes, self.num_workers)
        if (state.get("processes"), state.get("workers")) != readers:
            words = "%s has no position in the stream for %d process(es) with %d worker(s): it begins again"
            logger.warning(words, folder, *readers)
            return
        self.epoch = state["epoch"]
        self.load_state_dict(state["loader"])


def say_what_shards_cost(shards: int, processes: int, workers: int):
    """Log what it costs if the shards cannot be split evenly among all processes, or do not suffice for all workers."""
    split = shards % processes == 0
    if not split:
        words = "The stream has %d file(s) for %d processes: each process reads and tokenizes all of them, and keeps %s"
        logger.warning(words, shards, processes, "its part. Make the number of files a multiple of the processes")
    idle = workers - (shards // processes if split else shards)
    if idle > 0:
        logger.warning("The stream has %d file(s): %d of %d workers in each process have none", shards, idle, workers)
