"""The memory that a forward pass keeps for its backward pass."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class _Results(TorchDispatchMode):
    """Weak references to the storages of all results of operators."""

    def __init__(self) -> None:
        super().__init__()
        self.storages: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None) -> Any:
        result = operator(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                reference = StorageWeakRef(storage)
                self.storages[reference.cdata] = reference, storage.nbytes()
        return result


def kept_bytes(forward: Callable[[], torch.Tensor], tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes that a forward pass keeps for its backward pass, with or without activation checkpointing.

    Args:
        forward: Returns a loss.
        tensors: Parameters and inputs, which are not counted.
    """
    own = {StorageWeakRef(tensor.untyped_storage()).cdata for tensor in tensors}
    with _Results() as results:
        loss = forward()
    kept = sum(size for key, (storage, size) in results.storages.items() if key not in own and not storage.expired())
    del loss
    return kept
