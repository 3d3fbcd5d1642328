"""Run the paper's comparisons at a small size: every model of Table 3 and more, on the same text, with several seeds.

    make replicate
    make replicate ARGS="--train_file a.txt b.jsonl.gz --validation_file c.txt d.jsonl.gz"
    make replicate ARGS="--single sst2-train.jsonl sst2-validation.jsonl --pair rte-train.jsonl rte-validation.jsonl"
    make replicate ARGS="--size tiny"

paper/replication.md says what is trained and when a claim counts as held. Every training is a plain call of run_mlm.py
or run_glue.py. --minutes limits the time of a call, and the same command continues where the last one stopped. The
output folder gets a report of what is finished: report.md, with tables, verdicts and pictures.
"""

import argparse
import json
import math
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# The package, in case it is not installed, and the demo, for its text.
sys.path[:0] = [str(ROOT), str(ROOT / "paper"), str(ROOT / "examples")]

import protocol  # noqa: E402
from protocol import FINETUNED, POOLINGS, SEEDS, SIZES, SYSTEMS, TASKS  # noqa: E402

from hf_gmlp import errors  # noqa: E402
from hf_gmlp.errors import InputError  # noqa: E402
from hf_gmlp.training.run_folder import FINISHED  # noqa: E402


def main():
    arguments = parse_arguments()
    # Ends the trainings too: otherwise they would run beside those of the next call.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    errors.run(lambda: replicate(arguments))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    files = {"nargs": "+", "default": [], "metavar": "FILE"}
    parser.add_argument("--size", choices=SIZES, default="small", help="size of all models (default: small)")
    parser.add_argument("--train_file", **files, help="text to train on (default: Python's documentation of itself)")
    parser.add_argument("--validation_file", **files, help="text to evaluate on (default: 1/20 of the training text)")
    for task in ("single", "pair"):
        words = f"files of a classification of {TASKS[task]}, to fine-tune on"
        parser.add_argument(f"--{task}", nargs=2, metavar=("TRAIN", "VALIDATION"), help=words)
    names = f"models to train, out of {', '.join(SYSTEMS)} (default: all); claims about other models are left out"
    parser.add_argument("--models", nargs="+", choices=SYSTEMS, default=list(SYSTEMS), metavar="NAME", help=names)
    parser.add_argument("--minutes", type=float, metavar="M", help="start no training after M minutes")
    parser.add_argument("--jobs", type=int, metavar="N", help="trainings at a time (default: 2, or 1 on a GPU)")
    parser.add_argument("--output_dir", type=Path, help="default: build/replicate-SIZE")
    parser.add_argument("--plan", action="store_true", help="print the commands that are left, and stop")
    arguments = parser.parse_args()
    arguments.output_dir = arguments.output_dir or Path("build") / f"replicate-{arguments.size}"
    return arguments


def replicate(arguments: argparse.Namespace):
    check_arguments(arguments)
    # Imports that take seconds, now that the arguments are in order.
    import report
    import torch
    import transformers
    from datasets import disable_progress_bars

    disable_progress_bars()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    study = prepare(arguments)
    if arguments.plan:
        # Later runs depend on results that do not exist yet.
        for run in study.left():
            print(shown(run.command))
        return
    jobs = arguments.jobs or (1 if torch.accelerator.is_available() else min(2, os.cpu_count() or 1))
    deadline = time.monotonic() + 60 * arguments.minutes if arguments.minutes else None
    if not (study.output / "tokenizer" / "tokenizer.json").is_file():
        call(study.tokenizer_command(), study.output / "logs" / "tokenizer.log")
    while (runs := study.left()) and run_all(runs, jobs, deadline):
        # These results decide the next runs.
        pass
    report.write(report.collect(study), study.output)
    report.draw_models(study, study.output)
    words = "Some runs are left: the same command continues." if study.left() else "All runs are finished."
    print(f"{words} The report: {study.output / 'report.md'}")


def check_arguments(arguments: argparse.Namespace):
    """Raises InputError for what can be refused before anything is read."""
    for name in ("minutes", "jobs"):
        value = getattr(arguments, name)
        if value is not None and not value > 0:
            raise InputError(f"--{name} must be above 0, got {value}.")
    if arguments.validation_file and not arguments.train_file:
        raise InputError("--validation_file needs --train_file. Name both or neither.")
    if arguments.output_dir.exists() and not arguments.output_dir.is_dir():
        raise InputError(f"--output_dir {arguments.output_dir} is a file. Name a folder.")
    from hf_gmlp.training.files import file_kind

    for path in (*arguments.train_file, *arguments.validation_file, *(arguments.single or ()), *(arguments.pair or ())):
        file_kind([path])


def prepare(arguments: argparse.Namespace) -> "Study":
    """Writes the data of a study into its folder, and returns its plan."""
    import corpus

    size, output = SIZES[arguments.size], arguments.output_dir
    text = corpus.prepare_text(arguments.train_file, arguments.validation_file, size.length, output / "data")
    tasks = {"repeated": corpus.prepare_pairs(text, size.pairs, output / "data")}
    for task in ("single", "pair"):
        if getattr(arguments, task):
            tasks[task] = corpus.prepare_task(task, getattr(arguments, task), output / "data")
    return Study(arguments.size, output, text, tasks, [name for name in SYSTEMS if name in arguments.models])


@dataclass
class Run:
    """
    A training.

    Attributes:
        stage: "selection", "pretraining", "dense", "finetuning-selection" or "finetuning".
        key: What tells it from others of its stage, such as "model" and "seed".
        folder: Where its results are.
        command: The script and its arguments.
    """

    stage: str
    key: dict
    folder: Path
    command: list[str]

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
            return {"eval_loss": math.inf, "eval_perplexity": math.inf, "eval_accuracy": 0.0}
        return json.loads((self.folder / FINISHED).read_text(encoding="utf-8"))

    def __str__(self) -> str:
        return f"{self.stage}: " + ", ".join(f"{name} {value}" for name, value in self.key.items())


@dataclass
class Study:
    """The runs of the protocol. Those that depend on results are known when these are there."""

    size_name: str
    output: Path
    text: dict[str, Path]
    tasks: dict[str, dict[str, Path]]
    models: list[str]

    @property
    def size(self) -> protocol.Size:
        return SIZES[self.size_name]

    def stages(self) -> Iterator[list[Run]]:
        """Yields the runs of each stage, up to the first that is not finished: it decides what comes after."""
        for stage in (self.selections, self.pretrainings, self.finetuning_selections, self.finetunings, self.dense):
            runs = stage()
            yield runs
            if not all(run.is_finished for run in runs):
                return

    def left(self) -> list[Run]:
        """Returns the runs that can be made now: what is left of the first unfinished stage."""
        return [run for runs in self.stages() for run in runs if not run.is_finished]

    def finished(self) -> list[Run]:
        return [run for runs in self.stages() for run in runs if run.is_finished]

    def tokenizer_command(self) -> list[str]:
        command = ["-m", "hf_gmlp.tools.cli", "train-tokenizer", str(self.text["train"])]
        command += ["--vocab_size", str(self.size.vocab_size), "--max_length", str(self.size.length)]
        return [*command, "--output_dir", str(self.output / "tokenizer")]

    def selections(self) -> list[Run]:
        """Short pretrainings with every setting of every model that has its own, evaluated on the development text."""
        names = {protocol.SETTINGS_OF.get(name, name) for name in self.models}
        return [run for name in SYSTEMS if name in names for run in self._selection(name)]

    def _selection(self, name: str) -> list[Run]:
        settings = [(rate, by) for rate in self.size.learning_rates for by in protocol.MULTIPLIERS]
        return [
            self._pretraining("selection", name, setting, 0, self.size.selection_steps, self.size.batch_size)
            for setting in settings
        ]

    def setting(self, name: str) -> tuple[float, float]:
        """Returns the learning rate and the multiplier chosen for a model."""
        runs = self._selection(protocol.SETTINGS_OF.get(name, name))
        return protocol.choose(
            {(run.key["learning_rate"], run.key["multiplier"]): run.results["eval_loss"] for run in runs}
        )

    def pretrainings(self) -> list[Run]:
        """The runs of the table of perplexities: first the seeds of all models, then more for those that need them."""
        names = [name for name in self.models if name != "gmlp-dense"]
        runs = [self.pretraining(name, seed) for seed in SEEDS for name in names]
        if not all(run.is_finished for run in runs):
            return runs
        # Only these seeds decide who gets more: with the others, a decision could be taken back.
        losses = {name: [self.pretraining(name, seed).results["eval_loss"] for seed in SEEDS] for name in names}
        wide = protocol.too_wide(protocol.pretraining_findings(losses, self.yardsticks["unigram"]))
        more = [name for name in names if name in {*FINETUNED, *wide}]
        return runs + [self.pretraining(name, seed) for seed in protocol.MORE_SEEDS for name in more]

    def pretraining(self, name: str, seed: int) -> Run:
        return self._pretraining("pretraining", name, self.setting(name), seed, self.size.steps, self.size.batch_size)

    @cached_property
    def yardsticks(self) -> dict[str, float]:
        """Losses on the evaluation text, in nats per masked token, of predicting by frequency and by neighbors."""
        from yardsticks import token_losses

        return token_losses(self.output / "tokenizer", self.text["train"], self.text["evaluation"], self.size.length)

    def counts(self, name: str) -> tuple[int, int]:
        """Returns the parameters and FLOPs of a model, as the paper counts them."""
        from hf_gmlp.tools.analysis.counts import paper_flops, paper_parameters

        config = SYSTEMS[name].config(self.size, self.size.vocab_size)
        return paper_parameters(config), paper_flops(config)

    def dense(self) -> list[Run]:
        """W without the Toeplitz prior and its twin, in large batches, for two lengths of training."""
        if not {"gmlp", "gmlp-dense"} <= {*self.models}:
            return []
        return [
            self._pretraining("dense", name, self.setting(name), seed, steps, self.size.dense_batch_size)
            for seed in SEEDS
            for steps in self.size.dense_steps
            for name in ("gmlp-dense", "gmlp")
        ]

    def _pretraining(self, stage: str, name: str, setting: tuple, seed: int, steps: int, batch_size: int) -> Run:
        size, (rate, multiplier) = self.size, setting
        overrides = SYSTEMS[name].overrides(size)
        flags = {
            "config_name": SYSTEMS[name].preset,
            "config_overrides": ",".join(f"{key}={str(value).lower()}" for key, value in overrides.items()),
            "tokenizer_name": self.output / "tokenizer",
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
        }
        key = {"model": name, "seed": seed, "steps": steps, "learning_rate": rate, "multiplier": multiplier}
        where = f"{name}/{rate:g}-x{multiplier:g}" if stage == "selection" else f"{name}/{steps}-seed-{seed}"
        return self._run(stage, key, where, "pretraining", flags)

    def finetuning_selections(self) -> list[Run]:
        """Fine-tunings with every learning rate and pooling, evaluated on the development rows."""
        return [run for task in self.tasks for name in self.finetuned for run in self._finetuning_selection(task, name)]

    @property
    def finetuned(self) -> list[str]:
        return [name for name in FINETUNED if name in self.models]

    def _finetuning_selection(self, task: str, name: str) -> list[Run]:
        settings = [(rate, pooling) for rate in protocol.FINETUNE_LEARNING_RATES for pooling in POOLINGS]
        return [self._finetuning("finetuning-selection", task, name, *setting, 1) for setting in settings]

    def finetuning_rates(self, task: str, name: str) -> dict[str, float]:
        """Returns the learning rate with the best development accuracy for each pooling."""
        runs = self._finetuning_selection(task, name)
        of = {pooling: [run for run in runs if run.key["pooling"] == pooling] for pooling in POOLINGS}
        best = {pooling: max(members, key=lambda run: run.results["eval_accuracy"]) for pooling, members in of.items()}
        return {pooling: run.key["learning_rate"] for pooling, run in best.items()}

    def finetunings(self) -> list[Run]:
        """Each seed starts from the pretraining of the same seed."""
        return [
            self._finetuning("finetuning", task, name, rate, pooling, seed)
            for task in self.tasks
            for seed in (*SEEDS, *protocol.MORE_SEEDS)
            for name in self.finetuned
            for pooling, rate in self.finetuning_rates(task, name).items()
        ]

    def _finetuning(self, stage: str, task: str, name: str, rate: float, pooling: str, seed: int) -> Run:
        held_out = self.tasks[task]["development" if stage == "finetuning-selection" else "evaluation"]
        flags = {
            "model_name_or_path": self.pretraining(name, seed).folder,
            "config_overrides": f"pooling={pooling}",
            "train_file": self.tasks[task]["train"],
            "validation_file": held_out,
            "do_predict": True,
            "test_file": held_out,
            "max_seq_length": self.size.length,
            "learning_rate": rate,
            "logging_steps": 50,
        }
        if self.size_name == "tiny":
            flags["max_steps"] = 4
        key = {"task": task, "model": name, "seed": seed, "learning_rate": rate, "pooling": pooling}
        where = f"{task}/{name}-{pooling}/" + (f"{rate:g}" if stage == "finetuning-selection" else f"seed-{seed}")
        return self._run(stage, key, where, "finetuning", flags)

    def _run(self, stage: str, key: dict, where: str, recipe: str, flags: dict) -> Run:
        script = ROOT / ("run_mlm.py" if recipe == "pretraining" else "run_glue.py")
        folder = self.output / stage / where
        flags |= {"seed": key["seed"], "data_seed": key["seed"], **dict(self.size.flags), "output_dir": folder}
        command = [str(script), str(ROOT / "paper" / "recipes" / "replicate" / f"{recipe}.yaml")]
        for flag, value in flags.items():
            command += [f"--{flag}", str(value)]
        return Run(stage, key, folder, command)


def shown(command: list[str]) -> str:
    """Returns a command as you type it."""
    words = [os.path.relpath(word) if os.path.isabs(word) else word for word in command]
    return shlex.join(["python", *words])


stopping = threading.Event()
running: set[subprocess.Popen] = set()


def call(command: list[str], log: Path):
    """Runs a script of the project and keeps its output in `log`, whose last line is the error if it fails."""
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    # Several trainings that each take all cores are slower than several with one core each.
    environment.setdefault("OMP_NUM_THREADS", "1")
    with open(log, "w", encoding="utf-8") as file:
        process = subprocess.Popen([sys.executable, *command], stdout=file, stderr=subprocess.STDOUT, env=environment)
        running.add(process)
        if stopping.is_set():
            process.terminate()
        code = process.wait()
        running.discard(process)
    if code != 0 and not stopping.is_set():
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        words = lines[-1].removeprefix("Error: ") if lines else "nothing"
        raise InputError(f"{shown(command)} failed; {log} says: {words}")


def make(run: Run):
    """Makes a run, and marks it if it diverges."""
    try:
        call(run.command, run.folder.with_name(f"{run.folder.name}.log"))
    except InputError as error:
        if "The training diverged" not in str(error):
            raise
        run.diverged.touch()


def run_all(runs: list[Run], jobs: int, deadline: float | None) -> bool:
    """
    Makes runs, `jobs` at a time, and starts none after the deadline. If one fails, or at an interrupt, all end. Returns
    whether all were made.
    """
    done = []
    print(f"\n{runs[0].stage}: {len(runs)} runs, {jobs} at a time", flush=True)

    def make_in_time(run: Run):
        if stopping.is_set() or (deadline is not None and time.monotonic() > deadline):
            return
        started = time.monotonic()
        make(run)
        if not stopping.is_set():
            done.append(run)
            name = "eval_perplexity" if "eval_perplexity" in run.results else "eval_accuracy"
            quality = f"{name.removeprefix('eval_')} {run.results[name]:.4g} ({time.monotonic() - started:.0f} s)"
            print(f"[{len(done):3}/{len(runs)}] {time.strftime('%H:%M:%S')}  {run}: {quality}", flush=True)

    pool = ThreadPoolExecutor(jobs)
    try:
        for future in [pool.submit(make_in_time, run) for run in runs]:
            future.result()
    except BaseException:
        stopping.set()
        for process in list(running):
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
    return len(done) == len(runs)


if __name__ == "__main__":
    main()
