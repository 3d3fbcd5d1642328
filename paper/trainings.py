"""Trainings with the project's scripts that an experiment makes once, and searches among their settings.

A training has a folder. If it is finished there, its results are read; if it was interrupted, the script continues from
the last checkpoint. So the command of an experiment can be repeated until all of its trainings are finished.
"""

import math
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from hf_gmlp.errors import InputError
from hf_gmlp.training.run_folder import FINISHED

from . import protocol
from .protocol import Setting
from .runs import read_json

ROOT = Path(__file__).resolve().parent.parent
DIVERGED = {"eval_loss": math.inf, "eval_perplexity": math.inf, "eval_accuracy": 0.0}


def train(folder: Path, task: str, recipe: str, flags: Mapping[str, object]) -> dict[str, float]:
    """Return the results of a training, and make it first if it is not finished.

    Args:
        folder: Its --output_dir.
        task: As in `python -m paper run`.
        recipe: A file in paper/recipes, without ".yaml".
        flags: More flags of the script; a list has several words.

    Raises:
        InputError: The script fails, other than by diverging.
    """
    diverged = folder / "diverged"
    if not (folder / FINISHED).is_file() and not diverged.is_file():
        command = ["-m", "paper", "run", task, str(ROOT / "paper" / "recipes" / f"{recipe}.yaml")]
        for name, value in {**flags, "output_dir": folder}.items():
            command += [f"--{name}", *map(str, value if isinstance(value, list) else [value])]
        try:
            call(command, folder.with_name(f"{folder.name}.log"))
        except InputError as error:
            if "The training diverged" not in str(error):
                raise
            diverged.touch()
        results = read_json(folder / FINISHED) or DIVERGED
        metric = "eval_accuracy" if task == "glue" else "eval_loss"
        print(f"{time.strftime('%H:%M:%S')}  {folder}: {metric} {results[metric]:.4f}", flush=True)
    return read_json(folder / FINISHED) or DIVERGED


def call(command: list[str], log: Path):
    """Run a script of the project and append its output to `log`, whose last line is the error if it fails."""
    log.parent.mkdir(parents=True, exist_ok=True)
    # Several trainings that each use all cores are slower than several with one core each.
    environment = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **os.environ, "PYTHONPATH": str(ROOT)}
    with open(log, "a", encoding="utf-8") as file:
        process = subprocess.run([sys.executable, *command], stdout=file, stderr=subprocess.STDOUT, env=environment)
    if process.returncode:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or [""]
        raise InputError(f"{as_typed(command)} failed; {log} ends with: {lines[-1].removeprefix('Error: ')}")


def as_typed(command: list[str]) -> str:
    """Return a command as you type it."""
    words = [os.path.relpath(word) if os.path.isabs(word) else word for word in command]
    return shlex.join(["python", *words])


def search(start: Setting, measure: Callable[[Setting], float]) -> Setting:
    """Return the setting with the least loss that is below those of its neighbors: half and twice the learning rate, a
    fifth and five times the multiplier.

    Args:
        start: The learning rate and the multiplier for positional weights to begin with.
        measure: Returns the development loss of a setting.
    """
    losses: dict[Setting, float] = {}
    while settings := protocol.next_settings(losses, start):
        for setting in settings:
            losses[setting] = measure(setting)
    return protocol.choose(losses)
