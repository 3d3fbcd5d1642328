"""Pretrain the models of Table 3 and others at a small size on one text, and fine-tune three on word matching.

paper/replication.md describes how to run it, what is trained, and when a claim is held. Every training is a call of
`python -m paper run`. The same command resumes an interrupted replication. It writes report.md and results.json into
the output folder. results.json is enough to resume on another machine: runs that it contains are not repeated.
"""

import hashlib
import json
import math
import statistics
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from transformers import TrainerState

from hf_gmlp.errors import InputError
from hf_gmlp.training.run_folder import FINISHED

from . import protocol
from .baselines import token_losses
from .corpus import prepare_text, write_pairs
from .protocol import MODELS, SEEDS, SELECTION_SEEDS, SIZES, TASK_MODELS, Setting
from .runs import read_json
from .trainings import DIVERGED, ROOT, as_typed, call


def replicate(
    size: str,
    train_file: list[str],
    validation_file: list[str],
    output_dir: Path | None = None,
    plan: bool = False,
    jobs: int = 2,
):
    """Make the remaining runs, `jobs` in parallel, and report on all; with `plan`, only print their commands.

    Raises:
        InputError: The flags contradict each other, or a training fails.
    """
    from . import report

    if validation_file and not train_file:
        raise InputError("--validation_file was passed without --train_file. Pass both or neither.")
    output = output_dir or Path("build") / f"replicate-{size}"
    earlier = read_json(output / "results.json")
    if earlier.get("size", size) != size:
        raise InputError(f"{output} has results of the size {earlier['size']}. Choose another --output_dir.")
    study = Study(size, output, prepare_text(train_file, validation_file, output / "data"), earlier)
    if earlier.get("text", study.checksums) != study.checksums:
        raise InputError(f"{output}/results.json was made from different text. Choose another --output_dir.")
    if plan:
        # Later runs depend on results that do not exist yet.
        for run in study.left():
            print(as_typed(run.command))
        return
    if study.left() and not (study.tokenizer / "tokenizer.json").is_file():
        command = ["-m", "hf_gmlp_cli", "train-tokenizer", str(study.text["train"])]
        command += ["--vocab_size", str(study.size.vocab_size), "--max_length", str(study.size.length), "--lowercase"]
        call([*command, "--output_dir", str(study.tokenizer)], output / "tokenizer.log")
    while runs := study.left():
        if runs[0].stage.startswith("task"):
            study.write_pairs()
        # The results of these runs decide the next ones.
        make_all(runs, jobs)
        report.write(report.collect(study), output)
    report.write(report.collect(study), output)
    print(f"All runs are finished. The report: {output / 'report.md'}")


@dataclass
class Run:
    """A training."""

    stage: str  # "selection", "pretraining", "task selection" or "task"
    key: dict  # identifies it within its stage: "model", "seed", "steps", "learning_rate" and "multiplier"
    folder: Path  # folder of its results
    command: list[str]  # the script and its arguments
    row: dict | None = None  # its row in an earlier results.json

    @property
    def diverged(self) -> Path:
        """Marker file of a training that diverged, so that it is not repeated."""
        return self.folder / "diverged"

    @property
    def is_finished(self) -> bool:
        return self.row is not None or (self.folder / FINISHED).is_file() or self.diverged.is_file()

    @cached_property
    def results(self) -> dict[str, float]:
        if self.row is not None:
            return {f"eval_{name}": self.row[name] for name in ("loss", "accuracy") if name in self.row}
        if self.diverged.is_file():
            return DIVERGED
        return json.loads((self.folder / FINISHED).read_text(encoding="utf-8"))

    @property
    def curve(self) -> list[list[float]]:
        """The training losses by step."""
        if self.row is not None:
            return self.row["curve"]
        if self.diverged.is_file():
            return [[self.key["steps"], math.inf]]
        history = TrainerState.load_from_json(str(self.folder / "trainer_state.json")).log_history
        return [[entry["step"], round(entry["loss"], 4)] for entry in history if "loss" in entry]


@dataclass
class Study:
    """The runs of the protocol at one size, in a folder. Later runs are known once the results they need exist."""

    size_name: str
    output: Path
    text: dict[str, Path]
    earlier: dict = field(default_factory=dict)  # the contents of an earlier results.json
    # Caches the searches that are finished.
    found: dict[str, tuple[list["Run"], dict[Setting, float]]] = field(default_factory=dict)

    @property
    def size(self) -> protocol.Size:
        return SIZES[self.size_name]

    @property
    def tokenizer(self) -> Path:
        return self.output / "tokenizer"

    def runs(self) -> Iterator[Run]:
        """Yield the runs of each stage up to the first unfinished one, whose results decide the later stages."""
        for stage in (self.selections, self.pretrainings, self.task_selections, self.tasks):
            runs = stage()
            yield from runs
            if not all(run.is_finished for run in runs):
                return

    def left(self) -> list[Run]:
        """Return the runs that can start now: the remaining ones of the first unfinished stage."""
        return [run for run in self.runs() if not run.is_finished]

    @cached_property
    def checksums(self) -> dict[str, str]:
        """SHA-256 of each part of the text."""
        return {part: hashlib.sha256(path.read_bytes()).hexdigest() for part, path in self.text.items()}

    @cached_property
    def baselines(self) -> dict[str, dict[str, float]]:
        """Losses of the count models on the development and evaluation text, in nats per masked token."""
        return self.earlier.get("baselines") or {
            part: token_losses(self.tokenizer, self.text["train"], self.text[part], self.size.length)
            for part in ("development", "evaluation")
        }

    @cached_property
    def rows(self) -> dict[tuple, dict]:
        """The earlier runs by stage and key."""
        keys = ("stage", "model", "seed", "steps", "learning_rate", "multiplier")
        return {tuple(row[key] for key in keys): row for row in self.earlier.get("runs", ())}

    def search(self, name: str) -> tuple[list[Run], dict[Setting, float]]:
        """Return the trainings of a model's search, and the losses of those with the largest number of steps."""
        if name in self.found:
            return self.found[name]
        runs: list[Run] = []
        losses: dict[Setting, float] = {}
        for steps in self.size.selection_steps:
            start, losses = protocol.choose(losses) if losses else MODELS[name].start, {}
            while settings := protocol.next_settings(losses, start):
                # If trainings of this length are too short, do not finish the search at this length.
                if losses and steps < self.size.selection_steps[-1] and not self.is_ahead_of_counting(losses):
                    break
                for setting in settings:
                    pair = [self.pretrain("selection", name, setting, seed, steps) for seed in SELECTION_SEEDS]
                    runs += pair
                    if all(run.is_finished for run in pair):
                        losses[setting] = statistics.fmean(run.results["eval_loss"] for run in pair)
                if not all(run.is_finished for run in runs):
                    return runs, losses
            if self.is_ahead_of_counting(losses):
                break
        self.found[name] = runs, losses
        return runs, losses

    def is_ahead_of_counting(self, losses: Mapping[Setting, float]) -> bool:
        """Return whether the best setting has a lower development loss than the count model."""
        return min(losses.values()) < self.baselines["development"]["bigram_context"]

    def selections(self) -> list[Run]:
        """Return the trainings of every model's search, evaluated on the development text."""
        return [run for name in MODELS for run in self.search(name)[0]]

    def pretrainings(self) -> list[Run]:
        """Return the runs of the perplexity table, or those of the next length if the loss of a model still falls."""
        runs: list[Run] = []
        for steps in self.size.steps:
            longer = {name: [self.pretraining(name, seed, steps) for seed in SEEDS] for name in MODELS}
            runs += [longer[name][index] for index in range(len(SEEDS)) for name in MODELS]
            if all(self.has_settled(seeds) for seeds in longer.values() if all(run.is_finished for run in seeds)):
                break
        runs = [run for run in runs if run.is_finished or run.key["steps"] == steps]
        # The remaining fine-tunings need the weights of the longest pretrainings, not only their results.
        finished = {(name, seed) for stage, name, seed, *_ in self.rows if stage == "task"}
        for index, run in enumerate(runs):
            name, seed = run.key["model"], run.key["seed"]
            if name in TASK_MODELS and run.key["steps"] == steps and (name, seed) not in finished:
                runs[index] = replace(run, row=None)
        return runs

    def has_settled(self, runs: list[Run]) -> bool:
        """Return whether the training loss of a model, averaged over its seeds, no longer falls."""
        return statistics.fmean(protocol.fall(run.curve) for run in runs) < protocol.FALL

    def pretraining(self, name: str, seed: int, steps: int) -> Run:
        return self.pretrain("pretraining", name, protocol.choose(self.search(name)[1]), seed, steps)

    @cached_property
    def pretrained(self) -> dict[tuple[str, int], Run]:
        """The longest pretraining of each model and seed, once all of them are finished."""
        return {(run.key["model"], run.key["seed"]): run for run in self.pretrainings()}

    def pretrain(self, stage: str, name: str, setting: Setting, seed: int, steps: int) -> Run:
        """Return the pretraining of a model with a learning rate and a multiplier."""
        size, overrides = self.size, MODELS[name].overrides(self.size)
        flags = {
            "config_name": MODELS[name].preset,
            "config_overrides": ",".join(f"{key}={str(value).lower()}" for key, value in overrides.items()),
            "tokenizer_name": self.tokenizer,
            "train_file": self.text["train"],
            "validation_file": self.text["development" if stage == "selection" else "evaluation"],
            "max_seq_length": size.length,
            "global_batch_size": size.batch_size,
            "per_device_train_batch_size": size.batch_size,
            "per_device_eval_batch_size": 4 * size.batch_size,
            **dict(size.flags),
        }
        return self.run("mlm", "pretraining", flags, stage, name, setting, seed, steps)

    def task_search(self, name: str) -> tuple[list[Run], dict[Setting, float]]:
        """Return the fine-tunings of a model's search, and their errors on the development pairs."""
        runs: list[Run] = []
        errors: dict[Setting, float] = {}
        while settings := protocol.next_settings(errors, protocol.TASK_START):
            tried = [self.fine_tuning("task selection", name, setting, SEEDS[0]) for setting in settings]
            runs += tried
            if not all(run.is_finished for run in tried):
                break
            errors |= dict(zip(settings, (1 - run.results["eval_accuracy"] for run in tried)))
        return runs, errors

    def task_selections(self) -> list[Run]:
        """Return the fine-tunings of every model's search."""
        return [run for name in TASK_MODELS for run in self.task_search(name)[0]]

    def tasks(self) -> list[Run]:
        """Return the reported fine-tunings on the word-matching task."""
        return [
            self.fine_tuning("task", name, protocol.choose(self.task_search(name)[1]), seed)
            for seed in SEEDS
            for name in TASK_MODELS
        ]

    @property
    def pairs(self) -> dict[str, Path]:
        """The files of the word-matching task by part."""
        parts = ("train", "development", "evaluation")
        return {part: self.output / "data" / f"pairs-{part}.jsonl" for part in parts}

    def write_pairs(self):
        """Write word-matching pairs: one per sample of the longest fine-tuning, and those for evaluation."""
        counts = (32 * self.size.task_steps[1], 2000, 5000)
        write_pairs(self.tokenizer, dict(zip(self.pairs.values(), counts)), self.size.words)

    def fine_tuning(self, stage: str, name: str, setting: Setting, seed: int) -> Run:
        """Return the fine-tuning of a pretrained model on the word-matching task."""
        flags = {
            "model_name_or_path": self.pretrained[name, seed].folder,
            "train_file": self.pairs["train"],
            "validation_file": self.pairs["evaluation" if stage == "task" else "development"],
            "max_seq_length": self.size.length,
        }
        steps = self.size.task_steps[stage == "task"]
        return self.run("glue", "pairs", flags, stage, name, setting, seed, steps)

    def run(
        self,
        task: str,
        recipe: str,
        flags: Mapping[str, object],
        stage: str,
        name: str,
        setting: Setting,
        seed: int,
        steps: int,
    ) -> Run:
        """Return the training of a task with a recipe, its own flags, and those common to all runs."""
        rate, multiplier = setting
        folder = self.output / stage.replace(" ", "-") / name / f"{rate:g}-x{multiplier:g}-{steps}-seed-{seed}"
        shared = {
            "learning_rate": rate,
            "spatial_lr_multiplier": multiplier,
            "max_steps": steps,
            "logging_steps": max(1, steps // 100),
            "seed": seed,
            "data_seed": seed,
            "output_dir": folder,
        }
        command = ["-m", "paper", "run", task, str(ROOT / "paper" / "recipes" / "replicate" / f"{recipe}.yaml")]
        command += [word for flag, value in {**flags, **shared}.items() for word in (f"--{flag}", str(value))]
        key = {"model": name, "seed": seed, "steps": steps, "learning_rate": rate, "multiplier": multiplier}
        return Run(stage, key, folder, command, self.rows.get((stage, *key.values())))


def make(run: Run):
    """Execute a run, and mark it if it diverges."""
    try:
        call(run.command, run.folder.with_name(f"{run.folder.name}.log"))
    except InputError as error:
        if "The training diverged" not in str(error):
            raise
        run.diverged.touch()
    key = ", ".join(f"{name} {value}" for name, value in run.key.items())
    metric = "eval_perplexity" if "eval_perplexity" in run.results else "eval_accuracy"
    print(f"{time.strftime('%H:%M:%S')}  {key}: {metric} {run.results[metric]:.4g}", flush=True)


def make_all(runs: list[Run], jobs: int):
    """Execute runs, `jobs` in parallel. After a failure, start no others."""
    print(f"\n{runs[0].stage}: {len(runs)} runs, {jobs} at a time", flush=True)
    with ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(make, run) for run in runs]
        try:
            for future in futures:
                future.result()
        finally:
            pool.shutdown(cancel_futures=True)
