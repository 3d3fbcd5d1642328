"""Run the paper's comparisons in small: every model of Table 3 and more, on the same text, with several seeds.

    make replicate
    make replicate ARGS="--train_file a.txt b.jsonl.gz --validation_file c.txt d.jsonl.gz"
    make replicate ARGS="--single sst2-train.jsonl sst2-validation.jsonl --pair rte-train.jsonl rte-validation.jsonl"
    make replicate ARGS="--size tiny"

docs/replication.md says what is trained and when a claim counts as held. Every training is a plain call of run_mlm.py
or run_glue.py. The size small takes five hours of two cores; --minutes cuts that into pieces: the same command goes on
where it was cut off. The report of what is finished, with tables, verdicts and pictures, is report.md in the output
folder.
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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# The package, where it is not installed, for this script and those that it starts; and the demo, for its text.
sys.path[:0] = [str(ROOT), str(ROOT / "paper"), str(ROOT / "examples")]

import protocol  # noqa: E402
from protocol import FINETUNED, SIZES, SYSTEMS, TASKS  # noqa: E402

from hf_gmlp import errors  # noqa: E402
from hf_gmlp.errors import InputError  # noqa: E402

RECIPES = ROOT / "recipes" / "replicate"


def main():
    arguments = parse_arguments()
    # Ends the trainings too: left alone, they would go on beside those of the next call.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    errors.run(lambda: replicate(arguments))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--size", choices=SIZES, default="small", help="of all models (default: small)")
    parser.add_argument(
        "--train_file", nargs="+", default=[], metavar="FILE", help="text (default: what Python says of itself)"
    )
    parser.add_argument(
        "--validation_file",
        nargs="+",
        default=[],
        metavar="FILE",
        help="text to evaluate on (default: a twentieth of the former)",
    )
    for task in ("single", "pair"):
        parser.add_argument(
            f"--{task}",
            nargs=2,
            metavar=("TRAIN", "VALIDATION"),
            help=f"files of a classification of {TASKS[task]}, to fine-tune on",
        )
    parser.add_argument(
        "--models",
        nargs="+",
        choices=SYSTEMS,
        default=list(SYSTEMS),
        metavar="NAME",
        help=f"some of {', '.join(SYSTEMS)} (default: all); claims about others are left out",
    )
    parser.add_argument("--minutes", type=float, metavar="M", help="begin no training after so many minutes")
    parser.add_argument("--jobs", type=int, metavar="N", help="trainings side by side (default: 2, or 1 on a GPU)")
    parser.add_argument("--output_dir", type=Path, help="default: build/replicate-SIZE")
    parser.add_argument("--plan", action="store_true", help="print the commands that are left, and stop")
    arguments = parser.parse_args()
    arguments.output_dir = arguments.output_dir or Path("build") / f"replicate-{arguments.size}"
    return arguments


def replicate(arguments: argparse.Namespace):
    check_arguments(arguments)
    # Imports of seconds, now that the arguments are in order.
    import torch
    import transformers
    from datasets import disable_progress_bars

    disable_progress_bars()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    study = prepare(arguments)
    jobs = arguments.jobs or (1 if torch.accelerator.is_available() else min(2, os.cpu_count() or 1))
    if arguments.plan:
        # What is chosen by results that are not there yet cannot be told.
        for run in study.left():
            print(shown(run.command))
        return
    deadline = time.monotonic() + 60 * arguments.minutes if arguments.minutes else None
    if not (study.output / "tokenizer" / "tokenizer.json").is_file():
        call(study.tokenizer_command(), study.output / "logs" / "tokenizer.log")
    while (runs := study.left()) and run_all(runs, jobs, deadline):
        # What is chosen by these is known now.
        pass
    import report

    results = report.collect(study)
    report.write(results, study.output)
    report.draw_models(study, study.output)
    words = "Not all is run yet: the same command goes on." if study.left() else "All is run."
    print(f"{words} The report: {study.output / 'report.md'}")


def check_arguments(arguments: argparse.Namespace):
    """What can be said before anything is read."""
    for name in ("minutes", "jobs"):
        value = getattr(arguments, name)
        if value is not None and not value > 0:
            raise InputError(f"--{name} must be above 0, got {value}.")
    if arguments.validation_file and not arguments.train_file:
        raise InputError("There is a --validation_file without a --train_file: name both, or none.")
    if arguments.output_dir.exists() and not arguments.output_dir.is_dir():
        raise InputError(f"--output_dir {arguments.output_dir} is a file: name a folder.")
    from hf_gmlp.data.files import file_kind

    named = (*arguments.train_file, *arguments.validation_file, *(arguments.single or ()), *(arguments.pair or ()))
    for path in named:
        file_kind([path])


def prepare(arguments: argparse.Namespace) -> "Study":
    """The data of a study, written into its folder, and its plan."""
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
    One training.

    Attributes:
        stage: "selection", "pretraining", "dense", "finetuning-selection" or "finetuning".
        key: What tells it from others of its stage, by name, as "model" and "seed".
        folder: Where its results are.
        command: The script and its words.
    """

    stage: str
    key: dict
    folder: Path
    command: list[str]

    @property
    def diverged(self) -> Path:
        """A file that says that the training diverged, and is not to be made again."""
        return self.folder / "diverged"

    @property
    def is_finished(self) -> bool:
        return (self.folder / "all_results.json").is_file() or self.diverged.is_file()

    @cached_property
    def results(self) -> dict[str, float]:
        if self.diverged.is_file():
            return {"eval_loss": math.inf, "eval_perplexity": math.inf, "eval_accuracy": 0.0}
        return json.loads((self.folder / "all_results.json").read_text(encoding="utf-8"))

    def __str__(self) -> str:
        return f"{self.stage}: " + ", ".join(f"{name} {value}" for name, value in self.key.items())


@dataclass
class Study:
    """Every run of the protocol, as far as it is known: what is chosen by runs is known when these are finished."""

    size_name: str
    output: Path
    text: dict[str, Path]
    tasks: dict[str, dict[str, Path]]
    models: list[str]

    @property
    def size(self) -> protocol.Size:
        return SIZES[self.size_name]

    def left(self) -> list[Run]:
        """The runs that can be made now: those of the first stage that is not finished, the longest first."""
        for stage in (self.selections, self.pretrainings, self.finetuning_selections, self.finetunings, self.dense):
            if unfinished := [run for run in stage() if not run.is_finished]:
                return unfinished
        return []

    def finished(self) -> list[Run]:
        """The finished runs of all stages, as far as these are known."""
        found = []
        for stage in (self.selections, self.pretrainings, self.finetuning_selections, self.finetunings, self.dense):
            runs = stage()
            found += [run for run in runs if run.is_finished]
            if stage != self.dense and not all(run.is_finished for run in runs):
                # What comes after is chosen by these.
                break
        return found

    def tokenizer_command(self) -> list[str]:
        command = ["-m", "hf_gmlp.cli", "train-tokenizer", str(self.text["train"])]
        command += ["--vocab_size", str(self.size.vocab_size), "--max_length", str(self.size.length)]
        return [*command, "--output_dir", str(self.output / "tokenizer")]

    def selections(self) -> list[Run]:
        """Short pretrainings with every setting of every model that has its own, evaluated on the development text."""
        return [run for name in self._chosen_by() for run in self._selection(name)]

    def _chosen_by(self) -> list[str]:
        return sorted({protocol.SETTINGS_OF.get(name, name) for name in self.models}, key=list(SYSTEMS).index)

    def _selection(self, name: str) -> list[Run]:
        settings = [(rate, by) for rate in self.size.learning_rates for by in protocol.MULTIPLIERS]
        return [
            self._pretraining("selection", name, setting, 0, self.size.selection_steps, self.size.batch_size)
            for setting in settings
        ]

    def setting(self, name: str) -> tuple[float, float]:
        """The learning rate and the multiplier chosen for a model."""
        runs = self._selection(protocol.SETTINGS_OF.get(name, name))
        losses = {(run.key["learning_rate"], run.key["multiplier"]): run.results["eval_loss"] for run in runs}
        return protocol.choose(losses)

    def pretrainings(self) -> list[Run]:
        """What the table of perplexities is made of: first the seeds of all, then more where they are asked for."""
        names = [name for name in self.models if name != "gmlp-dense"]
        runs = self._seeds(names, protocol.SEEDS)
        if not all(run.is_finished for run in runs):
            return runs
        wide = protocol.too_wide(protocol.pretraining_findings(self.losses(), self.yardsticks["unigram"]))
        return runs + self._seeds([name for name in names if name in {*FINETUNED, *wide}], protocol.MORE_SEEDS)

    def _seeds(self, names: list[str], seeds: tuple[int, ...]) -> list[Run]:
        return [self.pretraining(name, seed) for seed in seeds for name in names]

    def pretraining(self, name: str, seed: int) -> Run:
        return self._pretraining("pretraining", name, self.setting(name), seed, self.size.steps, self.size.batch_size)

    def losses(self) -> dict[str, list[float]]:
        """The held-out losses of the finished pretrainings by model, in the order of the seeds."""
        found = {}
        for name in self.models:
            if name == "gmlp-dense" or not all(
                run.is_finished for run in self._selection(protocol.SETTINGS_OF.get(name, name))
            ):
                continue
            runs = [self.pretraining(name, seed) for seed in (*protocol.SEEDS, *protocol.MORE_SEEDS)]
            if losses := [run.results["eval_loss"] for run in runs if run.is_finished]:
                found[name] = losses
        return found

    @cached_property
    def yardsticks(self) -> dict[str, float]:
        """Losses on the evaluation text, in nats per masked token, of predicting by frequency and by neighbors."""
        from yardsticks import token_losses

        return token_losses(self.output / "tokenizer", self.text["train"], self.text["evaluation"], self.size.length)

    def counts(self, name: str) -> tuple[int, int]:
        """Parameters and FLOPs, as the paper counts them."""
        from hf_gmlp.analysis.counts import paper_flops, paper_parameters

        config = SYSTEMS[name].config(self.size, self.size.vocab_size)
        return paper_parameters(config), paper_flops(config)

    def dense(self) -> list[Run]:
        """W without the Toeplitz prior and its twin, in large batches, for two lengths of training."""
        if not {"gmlp", "gmlp-dense"} <= {*self.models}:
            return []
        return [
            self._pretraining("dense", name, self.setting(name), seed, steps, self.size.dense_batch_size)
            for seed in protocol.SEEDS
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
        return self._run(stage, key, where, "run_mlm.py", flags)

    def finetuned(self) -> list[str]:
        return [name for name in FINETUNED if name in self.models]

    def finetuning_selections(self) -> list[Run]:
        """Fine-tunings with every learning rate and pooling, evaluated on the development rows."""
        return [
            run for task in self.tasks for name in self.finetuned() for run in self._finetuning_selection(task, name)
        ]

    def _finetuning_selection(self, task: str, name: str) -> list[Run]:
        settings = [(rate, pooling) for rate in protocol.FINETUNE_LEARNING_RATES for pooling in protocol.POOLINGS]
        return [self._finetuning("finetuning-selection", task, name, *setting, 1) for setting in settings]

    def finetuning_choices(self, task: str, name: str) -> dict[str, tuple[float, float]]:
        """For each pooling, the learning rate with the best development accuracy and that accuracy."""
        chosen = {}
        for run in self._finetuning_selection(task, name):
            rate, accuracy = run.key["learning_rate"], run.results["eval_accuracy"]
            if accuracy > chosen.get(run.key["pooling"], (0.0, -1.0))[1]:
                chosen[run.key["pooling"]] = rate, accuracy
        return chosen

    def finetunings(self) -> list[Run]:
        """Each seed begins with the pretraining of the same seed."""
        return [
            self._finetuning("finetuning", task, name, rate, pooling, seed)
            for task in self.tasks
            for seed in (*protocol.SEEDS, *protocol.MORE_SEEDS)
            for name in self.finetuned()
            for pooling, (rate, _) in self.finetuning_choices(task, name).items()
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
        return self._run(stage, key, where, "run_glue.py", flags)

    def _run(self, stage: str, key: dict, where: str, script: str, flags: dict) -> Run:
        recipe = RECIPES / ("pretraining.yaml" if script == "run_mlm.py" else "finetuning.yaml")
        folder = self.output / stage / where
        flags |= {"seed": key["seed"], "data_seed": key["seed"], **dict(self.size.flags), "output_dir": folder}
        command = [str(ROOT / script), str(recipe)]
        for flag, value in flags.items():
            command += [f"--{flag}", str(value)]
        return Run(stage, key, folder, command)


def shown(command: list[str]) -> str:
    """A command as one types it."""
    words = [os.path.relpath(word) if os.path.isabs(word) else word for word in command]
    return shlex.join(["python", *words])


stopping = threading.Event()
running: set[subprocess.Popen] = set()


def call(command: list[str], log: Path):
    """Runs one of the project's scripts and keeps what it says; its last words are the error if it fails."""
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    # Several trainings, each of which would take all cores, are slower than each with one.
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
        raise InputError(
            f"{shown(command)} failed; {log} says: {lines[-1].removeprefix('Error: ') if lines else 'nothing'}"
        )


def run_all(runs: list[Run], jobs: int, deadline: float | None) -> bool:
    """
    Makes runs, `jobs` at a time, and begins none after the deadline. If one fails, or at an interrupt, all end.

    Returns:
        Whether all were made.
    """
    lock, done = threading.Lock(), 0
    print(f"\n{runs[0].stage}: {len(runs)} runs, {jobs} at a time", flush=True)

    def make(run: Run):
        nonlocal done
        if stopping.is_set() or (deadline is not None and time.monotonic() > deadline):
            return
        started = time.monotonic()
        try:
            call(run.command, run.folder.with_name(f"{run.folder.name}.log"))
        except InputError as error:
            if "The training diverged" not in str(error):
                raise
            run.diverged.touch()
        if stopping.is_set():
            return
        with lock:
            done += 1
            name = "eval_perplexity" if "eval_perplexity" in run.results else "eval_accuracy"
            quality = f"{name.removeprefix('eval_')} {run.results[name]:.4g}"
            now = time.strftime("%H:%M:%S")
            print(f"[{done:3}/{len(runs)}] {now}  {run}: {quality} ({time.monotonic() - started:.0f} s)", flush=True)

    pool = ThreadPoolExecutor(jobs)
    try:
        for future in [pool.submit(make, run) for run in runs]:
            future.result()
    except BaseException:
        stopping.set()
        for process in list(running):
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
    return done == len(runs)


if __name__ == "__main__":
    main()
