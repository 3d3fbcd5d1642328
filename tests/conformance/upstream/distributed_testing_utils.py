"""Stands in for the helpers that start one process per rank: gloo on a CPU, nccl on CUDA devices."""

import os
import socket
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
        # The ranks share the cores; more threads than cores only slow each other down.
        torch.set_num_threads(1)


def _run_rank(rank: int, function: Callable, args: tuple) -> None:
    function(rank, *args)
    # Not by returning: on busy cores, a rank was seen to abort while it tore its interpreter down, after its test had
    # passed. An error in the function is raised above and takes the ordinary way.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _start_rank_processes(function: Callable, args: tuple, nprocs: int) -> None:
    """Runs `function(rank, *args)` in `nprocs` fresh processes and waits; an error in one of them is raised here."""
    torch.multiprocessing.start_processes(_run_rank, args=(function, args), nprocs=nprocs, start_method="spawn")


def run_distributed(world_size: int) -> Callable:
    """A decorator: `function(rank, *args)` then runs in a process group of `world_size` fresh processes."""

    def decorate(function: Callable) -> Callable:
        def run(*args):
            with socket.socket() as free:
                free.bind(("localhost", 0))
                port = free.getsockname()[1]
            _start_rank_processes(_run_in_group, (world_size, port, function, args), world_size)

        return run

    return decorate


def _run_in_group(rank: int, world_size: int, port: int, function: Callable, args: tuple) -> None:
    group = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": world_size,
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": port,
    }
    os.environ.update({name: str(value) for name, value in group.items()})
    _set_rank_device(rank)
    dist.init_process_group(_get_distributed_backend())
    function(rank, *args)
    dist.barrier()
