"""Pretrain every model of Table 3 and more at a small size, on the same text, with several seeds.

paper/replication.md says how to run it, what is trained, and when a claim is held. Every training is a call of
run_mlm.py. The same command continues where the last one stopped. The output folder gets report.md.
"""

import json
import math
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from hf_gmlp.errors import InputError
from hf_gmlp.training.run_folder import FINISHED

from . import protocol
from .baselines import token_losses
from .corpus import prepare_text
from .protocol import MODELS, MORE_SEEDS, SEEDS, SIZES

ROOT = Path(__file__).resolve().parent.parent


def replicate(
    size: str,
    train_file: list[str],
    validation_file: list[str],
    output_dir: Path | None = None,
    plan: bool = False,
    jobs: int = 2,
):
    """Make the runs that are left, `jobs` at a time, and report on all; with `plan`, print their commands instead.

    Raises:
        InputError: The flags contradict each other, or a training fails.
    """
    from . import report

    if validation_file and not train_file:
        raise InputError("--validation_file needs --train_file. Pass both or neither.")
    output = output_dir or Path("build") / f"replicate-{size}"
    study = Study(size, output, prepare_text(train_file, validation_file, output / "data"))
    if plan:
        # Later runs depend on results that do not exist yet.
        print(*(as_typed(run.command) for run in study.left()), sep="\n")
        return
    if not (study.tokenizer / "tokenizer.json").is_file():
        command = ["-m", "hf_gmlp.tools.cli", "train-tokenizer", str(study.text["train"])]
        command += ["--vocab_size", str(study.size.vocab_size), "--max_length", str(study.size.length)]
        call([*command, "--output_dir", str(study.tokenizer)], output / "tokenizer.log")
    while runs := study.left():
        # Their results decide the next runs.
        make_all(runs, jobs)
        report.write(report.collect(study), output)
    report.write(report.collect(study), output)
    print(f"All runs are finished. The report: {output / 'report.md'}")


@dataclass
class Run:
    """A training."""

    stage: str  # "selection", "pretraining" or "dense"
    key: dict  # what tells it from others of its stage: "model", "seed", "steps", "learning_rate" and "multiplier"
    folder: Path  # where its results are
    command: list[str]  # the script and its arguments

    @property
    def diverged(self) -> Path:
        """A file that marks a training that diverged and is not to be repeated."""
        return self.folder / "diverged"

    @property
    def is_finished(self) -> bool:
        return (self.folder / FINISHED).is_file() or self.diverged.is_file()

    @cached_property
    def results(self) -> dict[str, float]:
        if self.diverged.is_file():
            return {"eval_loss": math.inf, "eval_perplexity": math.inf}
        return json.loads((self.folder / FINISHED).read_text(encoding="utf-8"))


@dataclass
class Study:
    """The runs of the protocol at one size, in a folder. Those that depend on results are known when these exist."""

    size_name: str
    output: Path
    text: dict[str, Path]

    @property
    def size(self) -> protocol.Size:
        return SIZES[self.size_name]

    @property
    def tokenizer(self) -> Path:
        return self.output / "tokenizer"

    def runs(self) -> Iterator[Run]:
        """Yield the runs of each stage, up to the first that is not finished: it decides what comes after."""
        for stage in (self.selections, self.pretrainings, self.dense):
            runs = stage()
            yield from runs
            if not all(run.is_finished for run in runs):
                return

    def left(self) -> list[Run]:
        """Return the runs that can be made now: what is left of the first unfinished stage."""
        return [run for run in self.runs() if not run.is_finished]

    @cached_property
    def baselines(self) -> dict[str, float]:
        """Losses of the count models on the evaluation text, in nats per masked token."""
        return token_losses(self.tokenizer, self.text["train"], self.text["evaluation"], self.size.length)

    def selections(self) -> list[Run]:
        """Return short trainings with every setting of every model that has its own, evaluated on development text."""
        return [run for name in MODELS if name not in protocol.SETTINGS_OF for run in self.selection(name)]

    def selection(self, name: str) -> list[Run]:
        settings = [(rate, multiplier) for rate in self.size.learning_rates for multiplier in protocol.MULTIPLIERS]
        return [self.run("selection", name, setting, 0, self.size.selection_steps) for setting in settings]

    def setting(self, name: str) -> tuple[float, float]:
        """Return the learning rate and the multiplier chosen for a model."""
        runs = self.selection(protocol.SETTINGS_OF.get(name, name))
        losses = {(run.key["learning_rate"], run.key["multiplier"]): run.results["eval_loss"] for run in runs}
        return protocol.choose(losses)

    def pretrainings(self) -> list[Run]:
        """Return the runs of the table of perplexities: the seeds of all models, then more for those that need them."""
        names = [name for name in MODELS if name != "gmlp-dense"]
        runs = [self.pretraining(name, seed) for seed in SEEDS for name in names]
        if not all(run.is_finished for run in runs):
            return runs
        # Only these seeds decide who gets more: with the others, a decision could be taken back.
        losses = {name: [self.pretraining(name, seed).results["eval_loss"] for seed in SEEDS] for name in names}
        wide = protocol.too_wide(protocol.pretraining_findings(losses, self.baselines["unigram"]))
        more = [name for name in names if name in {*protocol.FIVE_SEEDS, *wide}]
        return runs + [self.pretraining(name, seed) for seed in MORE_SEEDS for name in more]

    def pretraining(self, name: str, seed: int) -> Run:
        return self.run("pretraining", name, self.setting(name), seed, self.size.steps)

    def dense(self) -> list[Run]:
        """Return W without the Toeplitz prior and its twin, in large batches, for two lengths of training."""
        return [
            self.run("dense", name, self.setting(name), seed, steps)
            for seed in SEEDS
            for steps in self.size.dense_steps
            for name in ("gmlp-dense", "gmlp")
        ]

    def run(self, stage: str, name: str, setting: tuple[float, float], seed: int, steps: int) -> Run:
        """Return the training of a model with a learning rate and a multiplier."""
        size, (rate, multiplier) = self.size, setting
        directory = f"{rate:g}-x{multiplier:g}" if stage == "selection" else f"{steps}-seed-{seed}"
        folder = self.output / stage / name / directory
        overrides = MODELS[name].overrides(size)
        batch_size = size.dense_batch_size if stage == "dense" else size.batch_size
        flags = {
            "config_name": MODELS[name].preset,
            "config_overrides": ",".join(f"{key}={str(value).lower()}" for key, value in overrides.items()),
            "tokenizer_name": self.tokenizer,
            "train_file": self.text["train"],
            "validation_file": self.text["development" if stage == "selection" else "evaluation"],
            "max_seq_length": size.length,
            "global_batch_size": batch_size,
            "per_device_train_batch_size": batch_size,
            "per_device_eval_batch_size": 4 * size.batch_size,
            "learning_rate": rate,
            "spatial_lr_multiplier": multiplier,
            "max_steps": steps,
            "logging_steps": max(1, steps // 100),
            "seed": seed,
            "data_seed": seed,
            **dict(size.flags),
            "output_dir": folder,
        }
        command = [str(ROOT / "run_mlm.py"), str(ROOT / "paper" / "recipes" / "replicate" / "pretraining.yaml")]
        command += [word for flag, value in flags.items() for word in (f"--{flag}", str(value))]
        key = {"model": name, "seed": seed, "steps": steps, "learning_rate": rate, "multiplier": multiplier}
        return Run(stage, key, folder, command)


def as_typed(command: list[str]) -> str:
    """Return a command as you type it."""
    words = [os.path.relpath(word) if os.path.isabs(word) else word for word in command]
    return shlex.join(["python", *words])


def call(command: list[str], log: Path):
    """Run a script of the project and keep its output in `log`, whose last line is the error if it fails."""
    log.parent.mkdir(parents=True, exist_ok=True)
    # Several trainings that each use all cores are slower than several with one core each.
    environment = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **os.environ, "PYTHONPATH": str(ROOT)}
    with open(log, "w", encoding="utf-8") as file:
        process = subprocess.run([sys.executable, *command], stdout=file, stderr=subprocess.STDOUT, env=environment)
    if process.returncode:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or [""]
        raise InputError(f"{as_typed(command)} failed; {log} ends with: {lines[-1].removeprefix('Error: ')}")


def make(run: Run):
    """Make a run, and mark it if it diverges."""
    try:
        call(run.command, run.folder.with_name(f"{run.folder.name}.log"))
    except InputError as error:
        if "The training diverged" not in str(error):
            raise
        run.diverged.touch()
    key = ", ".join(f"{name} {value}" for name, value in run.key.items())
    print(f"{time.strftime('%H:%M:%S')}  {key}: perplexity {run.results['eval_perplexity']:.4g}", flush=True)


def make_all(runs: list[Run], jobs: int):
    """Make runs, `jobs` at a time, and start none after a failure."""
    print(f"\n{runs[0].stage}: {len(runs)} runs, {jobs} at a time", flush=True)
    with ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(make, run) for run in runs]
        try:
            for future in futures:
                future.result()
        finally:
            pool.shutdown(cancel_futures=True)
