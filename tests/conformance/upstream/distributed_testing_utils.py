"""Replacement of the functions that start one process per rank, with gloo on a CPU and nccl on CUDA devices."""

import multiprocessing
import os
import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
from transformers.testing_utils import torch_device


def _get_distributed_device_type() -> str:
    return "cuda" if torch_device == "cuda" else "cpu"


def _get_distributed_backend() -> str:
    return "nccl" if torch_device == "cuda" else "gloo"


def _get_rank_device(rank: int) -> torch.device:
    return torch.device("cuda", rank) if torch_device == "cuda" else torch.device("cpu")


def _set_rank_device(rank: int) -> None:
    if torch_device == "cuda":
        torch.cuda.set_device(rank)
    else:
        # The ranks share the cores; more threads than cores would only slow each other down.
        torch.set_num_threads(1)


def _run_rank(rank: int, function: Callable, args: tuple) -> None:
    function(rank, *args)
    # Skip the cleanup of the interpreter, during which a torch thread that still runs may abort the process although
    # its test has passed. Errors in the function are raised above.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _start_rank_processes(function: Callable, args: tuple, nprocs: int) -> None:
    """Run `function(rank, *args)` in `nprocs` new processes, wait for them, and raise an error of any of them."""
    # Importing torch and transformers in every rank would take many seconds, so ranks are forked from a server that has
    # imported both once. CUDA does not survive a fork.
    method = "spawn" if torch_device == "cuda" else "forkserver"
    multiprocessing.set_forkserver_preload([function.__module__])
    torch.multiprocessing.start_processes(_run_rank, args=(function, args), nprocs=nprocs, start_method=method)


def run_distributed(world_size: int) -> Callable:
    """Return a decorator that runs `function(rank, *args)` in a process group of `world_size` new processes."""

    def decorate(function: Callable) -> Callable:
        def run(*args):
            # This process serves the store until all ranks have ended, so that no other process gets its port, and no
            # rank loses the store when rank 0 ends first.
            store = dist.TCPStore("localhost", 0, world_size=None, is_master=True, wait_for_workers=False)
            _start_rank_processes(_run_in_group, (world_size, store.host, store.port, function, args), world_size)

        return run

    return decorate


def _run_in_group(rank: int, world_size: int, host: str, port: int, function: Callable, args: tuple) -> None:
    _set_rank_device(rank)
    # transformers reads these.
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world_size))
    store = dist.TCPStore(host, port, world_size=None, is_master=False)
    dist.init_process_group(_get_distributed_backend(), store=store, rank=rank, world_size=world_size)
    function(rank, *args)
    dist.barrier()
