"""Resumable trainings with the project's scripts, and the search for their settings.

Each training has its own folder. A finished training is not repeated, and an interrupted one resumes from its last
checkpoint, so the command of an experiment can be repeated until all of its trainings are finished.
"""

import math
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hf_gmlp.errors import InputError
from hf_gmlp.training.run_folder import FINISHED

from . import protocol
from .protocol import Setting
from .runs import read_json

ROOT = Path(__file__).resolve().parent.parent
DIVERGED = {"eval_loss": math.inf, "eval_perplexity": math.inf, "eval_accuracy": 0.0}


def train(folder: Path, task: str, recipe: str, flags: Mapping[str, object]) -> dict[str, float]:
    """Return the results of a training, running it first if it is not finished.

    Args:
        folder: The --output_dir of the training.
        task: The task argument of `python -m paper run`.
        recipe: Path of a recipe in the repository, or "" for none.
        flags: Additional flags of the script; a list becomes several arguments.

    Raises:
        InputError: The script fails for a reason other than divergence.
    """
    # Marks a training that diverged, so that it is not repeated.
    diverged = folder / "diverged"
    if not (folder / FINISHED).is_file() and not diverged.is_file():
        command = ["-m", "paper", "run", task, *([str(ROOT / recipe)] if recipe else [])]
        for name, value in {**flags, "output_dir": folder}.items():
            command += [f"--{name}", *map(str, value if isinstance(value, list) else [value])]
        try:
            call(command, folder.with_name(f"{folder.name}.log"))
        except InputError as error:
            if "The training diverged" not in str(error):
                raise
            diverged.touch()
        results = read_json(folder / FINISHED) or DIVERGED
        metric = "eval_loss" if task == "mlm" else "eval_accuracy"
        print(f"{time.strftime('%H:%M:%S')}  {folder}: {metric} {results[metric]:.4f}", flush=True)
    return read_json(folder / FINISHED) or DIVERGED


def call(command: list[str], log: Path) -> None:
    """Run a script of the project and append its output to `log`; on failure, raise its last line as InputError."""
    log.parent.mkdir(parents=True, exist_ok=True)
    # Parallel trainings are faster with one core each than with all cores each.
    environment = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **os.environ, "PYTHONPATH": str(ROOT)}
    with open(log, "a", encoding="utf-8") as file:
        process = subprocess.run([sys.executable, *command], stdout=file, stderr=subprocess.STDOUT, env=environment)
    if process.returncode:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or [""]
        raise InputError(f"python {shlex.join(command)} failed; {log} ends with: {lines[-1].removeprefix('Error: ')}")


def map_jobs(function: Callable, arguments: list[tuple], jobs: int) -> list:
    """Return the result of a function for each tuple of arguments, running `jobs` calls in parallel. After a failure,
    start no others.
    """
    with ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(function, *each) for each in arguments]
        try:
            return [future.result() for future in futures]
        finally:
            pool.shutdown(cancel_futures=True)


def search(start: Setting, measure: Callable[[Setting], float]) -> Setting:
    """Search until the best setting has lower loss than all of its neighbors, and return it. The neighbors are half and
    twice the learning rate, and a fifth and five times the multiplier.

    Args:
        start: Initial learning rate and multiplier for positional weights.
        measure: Returns the development loss of a setting.
    """
    losses: dict[Setting, float] = {}
    while settings := protocol.next_settings(losses, start):
        for setting in settings:
            losses[setting] = measure(setting)
    return protocol.choose(losses)
