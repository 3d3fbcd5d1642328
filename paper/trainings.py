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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
        recipe: A file of the repository; "" for none.
        flags: More flags of the script; a list has several words.

    Raises:
        InputError: The script fails, other than by diverging.
    """
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


@dataclass(frozen=True)
class System:
    """A model of an experiment, and how it is pretrained."""

    preset: str
    sizes: str  # what differs from the preset, as --config_overrides
    flags: Mapping[str, object]  # of the script
    recipe: str = "paper/recipes/experiments/pretraining.yaml"
    # Muon's learning rate in units of that of the other weights; 0 for none.
    muon: float = 5

    def pretrain(self, folder: Path, setting: Setting, seed: int, steps: int) -> tuple[Path, float]:
        """Return the folder of a training below `folder`, and its loss on held-out text."""
        rate, multiplier = setting
        folder = folder / self.preset / f"{rate:g}-x{multiplier:g}-{steps}-seed-{seed}"
        flags = {"config_name": self.preset, "config_overrides": self.sizes, **self.flags}
        flags |= {"learning_rate": rate, "spatial_lr_multiplier": multiplier}
        flags |= {"muon_learning_rate": self.muon * rate} if self.muon else {}
        flags |= {"max_steps": steps, "logging_steps": max(1, steps // 100), "seed": seed, "data_seed": 0}
        return folder, train(folder, "mlm", self.recipe, flags)["eval_loss"]

    def study(
        self, output: Path, seeds: Sequence[int], steps: int, search_steps: int, start: Setting = (1e-3, 5.0)
    ) -> list[tuple[Path, float]]:
        """Search learning rate and multiplier, and return the folder and the loss of a training with each seed."""
        chosen = search(start, lambda setting: self.pretrain(output / "search", setting, 11, search_steps)[1])
        print(f"{output} {self.preset}: learning rate {chosen[0]:g}, multiplier {chosen[1]:g}", flush=True)
        return [self.pretrain(output / "reported", chosen, seed, steps) for seed in seeds]


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
