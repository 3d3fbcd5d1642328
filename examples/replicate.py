"""Run the paper's comparisons in small: every model of Table 3 and more, on the same text, with several seeds.

    make replicate
    make replicate ARGS="--train_file train.txt --validation_file validation.txt --seeds 1 2 3 4 5"
    make replicate ARGS="--single sst2-train.jsonl sst2-validation.jsonl --pair rte-train.jsonl rte-validation.jsonl"
    make replicate ARGS="--size gpu --steps 2000 --seeds 1"

docs/replication.md says what is trained and when a claim counts as held. Every training is a plain call of run_mlm.py
or run_glue.py. The report, with tables, verdicts, pictures and all commands, is report.md in the output folder. The
same command goes on with what was cut off, and finished runs are kept.
"""

import argparse
import ast
import csv
import datetime
import hashlib
import json
import os
import platform
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# The package, where it is not installed, for this script and those that it starts.
sys.path.insert(0, str(ROOT))

from hf_gmlp import errors  # noqa: E402
from hf_gmlp.analysis import replication  # noqa: E402
from hf_gmlp.analysis.replication import FINETUNED, SIZES, SYSTEMS, TABLE3  # noqa: E402
from hf_gmlp.errors import InputError  # noqa: E402

PROBE_STEPS = 30
# A training text of fewer sequences, or fewer to evaluate on, says nothing.
LEAST_SEQUENCES = {"train": 200, "validation": 20}
TASKS = {"single": "one sentence", "pair": "two sentences"}

stopping = threading.Event()
running: set[subprocess.Popen] = set()


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
    parser.add_argument("--train_file", metavar="FILE", help="text (default: what Python says of itself)")
    parser.add_argument("--validation_file", metavar="FILE", help="held-out text (default: a twentieth of the former)")
    for task, words in TASKS.items():
        parser.add_argument(
            f"--{task}",
            nargs=2,
            metavar=("TRAIN", "VALIDATION"),
            help=f"files of a classification of {words} each, to fine-tune on",
        )
        parser.add_argument(f"--{task}_task", metavar="NAME", help="what GLUE calls it, as sst2 or rte, if it does")
    parser.add_argument(
        "--models",
        nargs="+",
        choices=SYSTEMS,
        default=list(SYSTEMS),
        metavar="NAME",
        help=f"some of {', '.join(SYSTEMS)} (default: all); claims about others are left out",
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3], metavar="N", help="default: 1 2 3")
    parser.add_argument("--steps", type=int, metavar="N", help="of every pretraining (default: the recipe's)")
    parser.add_argument("--finetune_steps", type=int, metavar="N", help="of every fine-tuning, likewise")
    parser.add_argument(
        "--minutes",
        type=float,
        metavar="M",
        help="time for everything: lowers the steps, for all models alike, before the first run (default: 40 for the "
        "size small, no limit for others)",
    )
    parser.add_argument("--learning_rate", type=float, metavar="X", help="of every pretraining, likewise the recipe's")
    parser.add_argument("--vocab_size", type=int, metavar="N", help="tokens, likewise the recipe's")
    parser.add_argument("--jobs", type=int, metavar="N", help="trainings side by side (default: 2, or 1 on a GPU)")
    parser.add_argument("--output_dir", type=Path, help="default: build/replicate-SIZE")
    parser.add_argument("--plan", action="store_true", help="measure, say what would be run and how long, and stop")
    arguments = parser.parse_args()
    if arguments.output_dir is None:
        arguments.output_dir = Path("build") / f"replicate-{arguments.size}"
    if arguments.minutes is None and arguments.size == "small":
        arguments.minutes = 40.0
    return arguments


def replicate(arguments: argparse.Namespace):
    started = time.monotonic()
    check_arguments(arguments)
    output = arguments.output_dir
    # Imports of seconds, now that the arguments are in order.
    import torch
    import transformers

    from hf_gmlp.training.recipes import read_recipe

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if arguments.jobs is None:
        arguments.jobs = 1 if torch.accelerator.is_available() else min(2, os.cpu_count() or 1)
    recipe = read_recipe(recipe_path(arguments.size))
    finetune_recipe = read_recipe(recipe_path(f"{arguments.size}-finetune"))
    tasks = {task: read_task(task, arguments) for task in TASKS if getattr(arguments, task)}

    output.mkdir(parents=True, exist_ok=True)
    text = prepare_text(arguments, SIZES[arguments.size].length)
    settings = {
        "size": arguments.size,
        "vocab_size": arguments.vocab_size or recipe["vocab_size"],
        "learning_rate": arguments.learning_rate or recipe["learning_rate"],
        "train_file": fingerprint([text["train"]]),
        "validation_file": fingerprint([text["validation"]]),
    }
    plan = read_plan(output / "plan.json", settings, arguments)
    for task in tasks:
        known = plan.setdefault("tasks", {}).setdefault(task, fingerprint(getattr(arguments, task)))
        if known != fingerprint(getattr(arguments, task)):
            raise InputError(f"{output} holds fine-tunings on other --{task} files. Choose another --output_dir.")

    study = Study(arguments, text, plan, settings["vocab_size"])
    write_plan(study)
    print_models(study)
    if not (output / "tokenizer" / "tokenizer.json").is_file():
        call(study.tokenizer_command(), output / "logs" / "tokenizer.log")
    if "steps" not in plan:
        wanted = arguments.steps or recipe["max_steps"], arguments.finetune_steps or finetune_recipe["max_steps"]
        plan["steps"], plan["finetune_steps"] = wanted
        if arguments.minutes is not None or arguments.plan:
            fit_into_time(study, tasks, wanted, started)
    if arguments.plan:
        return
    write_plan(study)

    runs = [study.pretraining(name, seed) for seed in arguments.seeds for name in study.models]
    print(f"\nPretraining: {len(runs)} runs of {plan['steps']} steps, {arguments.jobs} at a time", flush=True)
    run_all(runs, arguments.jobs)
    finetunings = [
        study.finetuning(task, name, seed) for task in tasks for seed in arguments.seeds for name in study.finetuned
    ]
    if finetunings:
        print(f"\nFine-tuning: {len(finetunings)} runs of {plan['finetune_steps']} steps", flush=True)
        run_all(finetunings, arguments.jobs)
    for task, words in TASKS.items():
        if task not in tasks:
            print(f"No fine-tuning on {words}: name two files by --{task} TRAIN VALIDATION.", flush=True)

    failed = write_report(study, tasks)
    print((output / "report.md").read_text(encoding="utf-8").split("## Commands")[0])
    print(f"Everything is in {output}; the report: {output / 'report.md'}")
    if failed:
        raise InputError(f"{', '.join(failed)} could not be drawn; the reasons are above.")


def check_arguments(arguments: argparse.Namespace):
    """What can be said before anything is read."""
    for name in ("steps", "finetune_steps", "minutes", "learning_rate", "vocab_size", "jobs"):
        value = getattr(arguments, name)
        if value is not None and not value > 0:
            raise InputError(f"--{name} must be above 0, got {value}.")
    if len(set(arguments.seeds)) < len(arguments.seeds):
        raise InputError(f"--seeds names a seed twice: {', '.join(map(str, arguments.seeds))}.")
    if arguments.validation_file is not None and arguments.train_file is None:
        raise InputError("There is a --validation_file without a --train_file: name both, or none.")
    if arguments.output_dir.exists() and not arguments.output_dir.is_dir():
        raise InputError(f"--output_dir {arguments.output_dir} is a file: name a folder.")
    from hf_gmlp.data.files import file_kind

    for path in (arguments.train_file, arguments.validation_file, *(arguments.single or ()), *(arguments.pair or ())):
        if path is not None:
            file_kind([path])


def recipe_path(name: str) -> Path:
    return ROOT / "recipes" / "replicate" / f"{name}.yaml"


def read_task(task: str, arguments: argparse.Namespace) -> dict:
    """
    Of a fine-tuning's validation data, which are checked: samples, share of the commonest label, and the first of
    moderate length.
    """
    from datasets import disable_progress_bars

    from hf_gmlp.data.classification import load_sentences

    disable_progress_bars()
    files = getattr(arguments, task)
    data = load_sentences(
        task_name=getattr(arguments, f"{task}_task"),
        train_files=[files[0]],
        validation_files=[files[1]],
        train=True,
        validate=True,
    )
    columns = ["sentence1", "sentence2"] if task == "pair" else ["sentence1"]
    for dataset, path in zip(data.splits.values(), files):
        found = sum(name.startswith("sentence") for name in dataset.column_names)
        if found != len(columns):
            raise InputError(f"{path} has {found} sentence(s) a sample; --{task} takes {TASKS[task]}.")
    if data.labels is None or len(data.labels) < 2:
        raise InputError(f"{files[0]} has no two labels to tell apart: --{task} takes a classification.")
    validation = list(data.splits.values())[1]
    labels = list(validation["labels"])
    samples = ([str(row[column]) for column in columns] for row in validation)
    return {
        "samples": len(labels),
        "majority": max(labels.count(label) for label in set(labels)) / len(labels),
        "sample": next((sample for sample in samples if drawable(sample, SIZES[arguments.size].length)), None),
    }


def drawable(sample: list[str], length: int) -> bool:
    """Whether a pair is of a length that one can look at and that fits into a model, and no flag."""
    # A small vocabulary takes two or three tokens for a word.
    return 5 <= sum(len(words.split()) for words in sample) <= min(30, length // 4) and not any(
        words.startswith("-") for words in sample
    )


def prepare_text(arguments: argparse.Namespace, length: int) -> dict[str, Path]:
    """
    The training and the validation text. Without files, that is what Python's reference and its standard library say;
    of a training file alone, every twentieth document (or line, if there are few documents) is held out.
    """
    from datasets import disable_progress_bars

    from hf_gmlp.data.text import load_texts

    disable_progress_bars()
    folder = arguments.output_dir / "data"
    files = {"train": folder / "train.txt", "validation": folder / "validation.txt"}
    if arguments.validation_file is not None:
        files = {"train": Path(arguments.train_file), "validation": Path(arguments.validation_file)}
        loaded = load_texts(train_files=[arguments.train_file], validation_files=[arguments.validation_file])
        documents = {split: loaded[split]["text"] for split in files}
    else:
        if arguments.train_file is None:
            found = list(standard_library())
        else:
            twice = load_texts(train_files=[arguments.train_file], validation_files=[arguments.train_file])
            found = [document for document in twice["train"]["text"] if document and not document.isspace()]
            if len(found) < 20:
                found = [line for document in found for line in document.splitlines() if line.strip()]
        documents = {
            "train": [document for number, document in enumerate(found) if number % 20 != 7],
            "validation": found[7::20],
        }
        folder.mkdir(parents=True, exist_ok=True)
        for split, path in files.items():
            text = "\n\n".join(documents[split])
            if path.is_file() and path.read_text(encoding="utf-8") != text:
                raise InputError(
                    f"{arguments.output_dir} holds a replication with another text: choose another folder."
                )
            path.write_text(text, encoding="utf-8")
    for split, least in LEAST_SEQUENCES.items():
        words = count_words(documents[split], least * length)
        if words < least * length:
            where = arguments.train_file if arguments.validation_file is None else files[split]
            text = "training" if split == "train" else "validation"
            raise InputError(
                f"The {text} text of {where or 'this Python'} has {words:,} words; the size "
                f"{arguments.size} needs {least * length:,} of them. Give more text, or --size tiny."
            )
    return files


def count_words(documents: list[str], enough: int) -> int:
    """The words of some documents; the counting ends where there are enough."""
    words = 0
    for document in documents:
        words += len((document or "").split())
        if words >= enough:
            break
    return words


def standard_library() -> Iterator[str]:
    """Documents: the topics of Python's reference, then the descriptions in every module of its standard library."""
    from demo import split_topics

    for documents in split_topics():
        yield from documents
    library = Path(sysconfig.get_path("stdlib"))
    left_out = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3"}
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for path in sorted(library.rglob("*.py")):
        if left_out & set(path.relative_to(library).parts):
            continue
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (OSError, SyntaxError, ValueError):
            # Some modules are there to be wrong.
            continue
        described = (ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, kinds))
        lines = (line.strip() for words in described if words for line in words.splitlines())
        document = "\n".join(line for line in lines if line)
        if document:
            yield document


def fingerprint(paths: list) -> str:
    """Of the contents of some files."""
    digest = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()[:16]


def read_plan(path: Path, settings: dict, arguments: argparse.Namespace) -> dict:
    """The plan that an earlier call fixed for this folder, else a new one without steps."""
    plan = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else settings
    wanted = settings | {
        name: getattr(arguments, name) for name in ("steps", "finetune_steps") if getattr(arguments, name) is not None
    }
    for name, value in wanted.items():
        if plan.get(name, value) != value:
            what = "another text" if name.endswith("_file") else f"{name} {plan[name]}, now it is {value}"
            raise InputError(f"{path.parent} holds a replication with {what}. Choose another --output_dir.")
    if "steps" in plan:
        print(f"Going on with the plan in {path}: {plan['steps']} steps.", flush=True)
    return dict(plan)


def write_plan(study: "Study"):
    (study.output / "plan.json").write_text(json.dumps(study.plan, indent=2) + "\n", encoding="utf-8")


@dataclass
class Run:
    """One training: its words, folder and command, and the seconds it took in this call."""

    words: str
    folder: Path
    command: list[str]
    log: Path
    seconds: float = 0.0

    def results(self) -> dict[str, float]:
        return json.loads((self.folder / "all_results.json").read_text(encoding="utf-8"))


@dataclass
class Study:
    """What is run: arguments, text, plan, and from them every command."""

    arguments: argparse.Namespace
    text: dict[str, Path]
    plan: dict
    vocab_size: int
    pictures: list[tuple[str, str]] = field(default_factory=list)

    @property
    def output(self) -> Path:
        return self.arguments.output_dir

    @property
    def seeds(self) -> list[int]:
        return self.arguments.seeds

    @property
    def models(self) -> list[str]:
        """In the order of the tables."""
        return [name for name in SYSTEMS if name in self.arguments.models]

    @property
    def finetuned(self) -> list[str]:
        return [name for name in FINETUNED if name in self.arguments.models]

    @property
    def size(self) -> replication.Size:
        return SIZES[self.arguments.size]

    def tokenizer_command(self) -> list[str]:
        command = [
            "-m",
            "hf_gmlp.cli",
            "train-tokenizer",
            str(self.text["train"]),
            "--vocab_size",
            str(self.vocab_size),
        ]
        return [*command, "--max_length", str(self.size.length), "--output_dir", str(self.output / "tokenizer")]

    def pretraining(self, name: str, seed: int, steps: int | None = None) -> Run:
        """A pretraining; with `steps`, one to measure the time by."""
        where = Path("mlm" if steps is None else "probe/mlm", f"seed-{seed}", name)
        overrides = SYSTEMS[name].overrides(self.size)
        flags = {
            "config_name": SYSTEMS[name].preset,
            "config_overrides": ",".join(f"{key}={str(value).lower()}" for key, value in overrides.items()),
            "tokenizer_name": self.output / "tokenizer",
            "train_file": self.text["train"],
            "validation_file": self.text["validation"],
            "learning_rate": self.plan["learning_rate"],
        }
        return self._run(
            "run_mlm.py", recipe_path(self.arguments.size), flags, where, seed, steps or self.plan["steps"]
        )

    def finetuning(self, task: str, name: str, seed: int, steps: int | None = None) -> Run:
        """A fine-tuning of the pretraining with the same seed; with `steps`, one to measure the time by."""
        probe = Path("" if steps is None else "probe")
        train, validation = getattr(self.arguments, task)
        flags = {
            "model_name_or_path": self.output / probe / "mlm" / f"seed-{seed}" / name,
            "train_file": train,
            "validation_file": validation,
        }
        if getattr(self.arguments, f"{task}_task"):
            flags["task_name"] = getattr(self.arguments, f"{task}_task")
        recipe = recipe_path(f"{self.arguments.size}-finetune")
        where = probe / task / f"seed-{seed}" / name
        return self._run("run_glue.py", recipe, flags, where, seed, steps or self.plan["finetune_steps"])

    def _run(self, script: str, recipe: Path, flags: dict, where: Path, seed: int, steps: int) -> Run:
        flags |= {"max_steps": steps, "logging_steps": max(1, steps // 20), "seed": seed, "data_seed": seed}
        flags["output_dir"] = self.output / where
        command = [str(ROOT / script), str(recipe)]
        for flag, value in flags.items():
            command += [f"--{flag}", str(value)]
        log = self.output / "logs" / f"{'-'.join(where.parts)}.log"
        return Run(f"{where.parent.parent.name} {where.name}, seed {seed}", self.output / where, command, log)


def shown(command: list[str]) -> str:
    """A command as one types it."""
    words = [os.path.relpath(word) if os.path.isabs(word) else word for word in command]
    return shlex.join(["python", *words])


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


def run_all(runs: list[Run], jobs: int, quiet: bool = False):
    """Makes the runs that are not finished, `jobs` at a time. If one fails, or at an interrupt, all end."""
    lock, done = threading.Lock(), 0

    def make(run: Run):
        nonlocal done
        finished = (run.folder / "all_results.json").is_file()
        if stopping.is_set():
            return
        if not finished:
            started = time.monotonic()
            call(run.command, run.log)
            if stopping.is_set():
                return
            run.seconds = time.monotonic() - started
            for checkpoint in run.folder.glob("checkpoint-*"):
                shutil.rmtree(checkpoint)
        with lock:
            done += 1
            if not quiet:
                results = run.results()
                perplexity = "eval_perplexity" in results
                quality = (
                    f"perplexity {results['eval_perplexity']:.2f}"
                    if perplexity
                    else (f"accuracy {100 * accuracy(results):.1f} %")
                )
                spent = "finished before" if finished else f"{run.seconds:.0f} s"
                now = datetime.datetime.now().strftime("%H:%M:%S")
                print(f"[{done:3}/{len(runs)}] {now}  {run.words:<34} {quality}  ({spent})", flush=True)

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


def accuracy(results: dict[str, float]) -> float:
    """Of a fine-tuning, on MNLI on its matched samples."""
    return results.get("eval_matched_accuracy", results.get("eval_accuracy", float("nan")))


def print_models(study: Study):
    """The models with their sizes, as the paper counts them."""
    print(f"Size {study.arguments.size}: sequences of {study.size.length} tokens, {study.vocab_size} SentencePieces")
    print(f"  {'':<32}{'L':>4}{'d_model':>9}{'d_ffn':>7}{'params':>11}{'FLOPs':>10}")
    for name in study.models:
        config, parameters, flops = counted(study, name)
        sizes = f"{config.num_hidden_layers:>4}{config.hidden_size:>9}{config.intermediate_size:>7}"
        print(f"  {SYSTEMS[name].title:<32}{sizes}{parameters / 1e6:>9.3f} M{flops / 1e9:>8.3g} B")
    sys.stdout.flush()


def counted(study: Study, name: str) -> tuple:
    """Config, parameters and FLOPs of a model."""
    from hf_gmlp.analysis.counts import paper_flops, paper_parameters

    config = SYSTEMS[name].config(study.size, study.vocab_size)
    return config, paper_parameters(config), paper_flops(config)


def fit_into_time(study: Study, tasks: dict, wanted: tuple[int, int], started: float):
    """Measures a few steps of every model, as many at a time as later, and lowers the plan's steps, for all alike."""
    arguments, seed = study.arguments, study.seeds[0]
    print(f"\nMeasuring {PROBE_STEPS} steps of every model ...", flush=True)
    probes = [study.pretraining(name, seed, PROBE_STEPS) for name in study.models]
    shutil.rmtree(study.output / "probe", ignore_errors=True)
    run_all(probes, arguments.jobs, quiet=True)
    tuned = [(task, name) for task in tasks for name in study.finetuned]
    finetune_probes = [study.finetuning(*one, seed, PROBE_STEPS) for one in tuned]
    run_all(finetune_probes, arguments.jobs, quiet=True)

    def per_step(runs: list[Run]) -> float:
        return sum(run.results()["train_runtime"] for run in runs) / PROBE_STEPS

    for run in probes + finetune_probes:
        milliseconds = 1000 * run.results()["train_runtime"] / PROBE_STEPS
        words = f"{run.folder.parent.parent.name} {run.folder.name}"
        print(
            f"  {words:<32}{milliseconds:7.0f} ms a step, {run.seconds - run.results()['train_runtime']:5.1f} s besides"
        )
    seeds = len(study.seeds)
    # Of one call with every seed, all runs together.
    costs = {
        "fixed": seeds * sum(run.seconds - run.results()["train_runtime"] for run in probes + finetune_probes),
        "per_step": seeds * per_step(probes),
        "per_finetune_step": seeds * per_step(finetune_probes),
    }
    shutil.rmtree(study.output / "probe")
    plan = study.plan
    if arguments.minutes is not None:
        left = arguments.minutes - (time.monotonic() - started) / 60
        plan["steps"], plan["finetune_steps"] = replication.fit_steps(*wanted, left, arguments.jobs, **costs)
        if plan["steps"] < 10:
            least = (costs["fixed"] + 10 * costs["per_step"]) / 0.9 / arguments.jobs / 60 + 1
            raise InputError(
                f"{arguments.minutes:g} minutes are too short for {seeds} seed(s) of {len(study.models)} models: even "
                f"ten steps each take {least:.0f}. Give more --minutes, fewer --seeds, or a smaller --size."
            )
    seconds = costs["fixed"] + plan["steps"] * costs["per_step"] + plan["finetune_steps"] * costs["per_finetune_step"]
    words = f"{plan['steps']} steps of pretraining and {plan['finetune_steps']} of fine-tuning"
    if (plan["steps"], plan["finetune_steps"]) != wanted:
        words += f", lowered from {wanted[0]} and {wanted[1]} for all models to fit into {arguments.minutes:g} minutes"
    if plan["steps"] < wanted[0] / 4:
        words += " (so few teach little: give more --minutes, or a machine that does nothing else)"
    print(f"Plan: {words}; about {seconds / arguments.jobs / 60:.0f} minutes, {arguments.jobs} run(s) at a time.")


def write_report(study: Study, tasks: dict) -> list[str]:
    """Writes report.md and table.csv and draws the pictures. Returns the pictures that failed."""
    from demo import unigram_perplexity
    from transformers import AutoTokenizer

    output, seeds = study.output, study.seeds
    results = {name: [study.pretraining(name, seed).results() for seed in seeds] for name in study.models}
    tokenizer = AutoTokenizer.from_pretrained(output / "tokenizer")
    unigram = unigram_perplexity(tokenizer, study.text["train"], study.text["validation"], study.size.length)
    dense = [study.pretraining("gmlp-dense", seed).folder for seed in seeds if "gmlp-dense" in study.models]
    shares = [toeplitz_share(folder) for folder in dense]
    losses = {name: [result["eval_loss"] for result in results[name]] for name in study.models}
    findings = replication.pretraining_findings(losses, [centered for _, centered in shares])
    accuracies = {
        task: {
            name: [accuracy(study.finetuning(task, name, seed).results()) for seed in seeds] for name in study.finetuned
        }
        for task in tasks
    }
    findings += replication.finetuning_findings(accuracies, {task: tasks[task]["samples"] for task in tasks})
    failed = draw(study, tasks)

    header, *rows = pretraining_rows(study, results)
    table3 = sum(system.name in study.models for system in TABLE3)
    first = results[study.models[0]][0]
    parts = [
        "# The paper's comparisons in small",
        protocol(study, first["epoch"], *count_runs(study, tasks)),
        "## Table 3",
        f"Perplexity of the {first['eval_predicted_tokens']:,} masked tokens of the held-out text: mean ± standard "
        f"deviation over the seeds {', '.join(map(str, seeds))}. By the frequency of each token alone it would be "
        f"{unigram:.1f}. FLOPs are those of one sequence forward.",
        replication.markdown_table([header, *rows[:table3]]),
    ]
    if rows[table3:]:
        parts += ["What the other claims need:", replication.markdown_table([header, *rows[table3:]])]
    if tasks and study.finetuned:
        parts += ["## Fine-tuning", "Accuracy in percent, mean ± standard deviation over the seeds."]
        parts += finetuning_parts(study, tasks, accuracies)
    missing = [TASKS[task] for task in TASKS if task not in tasks]
    if missing:
        parts.append(f"There was no fine-tuning on {' nor on '.join(missing)}: no files were given.")
    if findings:
        parts += [
            "## Claims",
            "Differences are in nats of held-out loss (of accuracies, in shares), with the 95 % interval over the "
            "seeds; above zero is what the paper says.",
            replication.markdown_table(
                [["claim", "paper", "here", "verdict"], *([f.claim, f.paper, f.measured, f.verdict] for f in findings)]
            ),
        ]
    if shares:
        parts.append(
            f"The Toeplitz share is that of W without its mean, which is Toeplitz whatever was learned; with the mean "
            f"it is {statistics.fmean(whole for whole, _ in shares):.3f}."
        )
    drawn = [(name, words) for name, words in study.pictures if name not in failed]
    parts += ["## Pictures", *(f"{words}:\n\n![{words}]({name})" for name, words in drawn)]
    parts += [f"Not drawn: {', '.join(failed)}."] if failed else []
    parts += ["## Commands", "```bash\n" + "\n".join(commands(study, tasks)) + "\n```"]
    (output / "report.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return failed


def pretraining_rows(study: Study, results: dict[str, list[dict]]) -> list[list]:
    """The table of perplexities, header first; written with all digits into table.csv too."""
    rows = [["model", "perplexity, paper", "perplexity, here", "by seed", "params, paper", "params, here", "FLOPs"]]
    digits = [["model", "paper_perplexity", "mean_perplexity", "std_perplexity", "parameters", "flops"]]
    digits[0] += [f"seed_{seed}" for seed in study.seeds]
    for name, finished in results.items():
        system = SYSTEMS[name]
        values = [result["eval_perplexity"] for result in finished]
        _, parameters, flops = counted(study, name)
        printed = [system.perplexity or "", f"{system.parameters} M" if system.parameters else ""]
        by_seed = ", ".join(f"{value:.2f}" for value in values)
        counts = [f"{parameters / 1e6:.3f} M", f"{flops / 1e9:.3g} B"]
        rows.append([system.title, printed[0], replication.spread(values), by_seed, printed[1], *counts])
        deviation = statistics.stdev(values) if len(values) > 1 else ""
        digits.append([name, printed[0], statistics.fmean(values), deviation, parameters, flops, *values])
    with open(study.output / "table.csv", "w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(digits)
    return rows


def finetuning_parts(study: Study, tasks: dict, accuracies: dict[str, dict[str, list[float]]]) -> list[str]:
    """The table of accuracies, and what it cannot say."""
    rows = [["task", "commonest label", *(SYSTEMS[name].title for name in study.finetuned)]]
    notes = []
    for task, by_model in accuracies.items():
        samples, majority = tasks[task]["samples"], tasks[task]["majority"]
        files = " and ".join("/".join(Path(path).parts[-2:]) for path in getattr(study.arguments, task))
        cells = [replication.spread([100 * value for value in by_model[name]], 1) for name in study.finetuned]
        rows.append([f"{TASKS[task]} ({files}, {samples} held out)", f"{100 * majority:.1f}", *cells])
        # Two standard errors of a share among so many samples.
        if max(map(statistics.fmean, by_model.values())) < majority + 2 * (majority * (1 - majority) / samples) ** 0.5:
            notes.append(
                f"On {TASKS[task]} no model is ahead of the commonest label by more than the noise of {samples} "
                f"samples: what the claims say about this task says nothing about the models."
            )
    return [replication.markdown_table(rows), *notes]


def toeplitz_share(folder: Path) -> tuple[float, float]:
    """
    Of a model's W, mean over the blocks: the share of the squared weights that a Toeplitz matrix has, and the same of W
    without its mean, which is Toeplitz whatever was learned.
    """
    from hf_gmlp.analysis.filters import load_spatial_model
    from hf_gmlp.analysis.toeplitz import shift_invariant_share, spatial_matrices

    matrices = spatial_matrices(load_spatial_model(folder))
    whole = [shift_invariant_share(matrix) for matrix in matrices]
    centered = [shift_invariant_share(matrix - matrix.mean()) for matrix in matrices]
    return statistics.fmean(whole), statistics.fmean(centered)


def draw(study: Study, tasks: dict) -> list[str]:
    """Draws the pictures by `hf-gmlp plot`, of the first seed where they show one. Returns those that failed."""
    from hf_gmlp import cli

    output, seed = study.output, study.seeds[0]

    def folder(name: str) -> str:
        return str(study.pretraining(name, seed).folder)

    table3 = [folder(system.name) for system in TABLE3 if system.name in study.models]
    # Of the models that have several sizes or are fine-tuned; more would hide each other.
    names = [name for name in ("gmlp-half", "gmlp-double", *FINETUNED) if name in study.models]
    trained = [str(study.pretraining(name, each).folder) for name in names for each in study.seeds]
    trained += [str(output / task) for task in tasks]
    pictures = []
    if table3:
        pictures.append(("training", f"Training of the models of Table 3, seed {seed}", table3))
    if "gmlp" in study.models:
        pictures.append(("filters", "Spatial filters of the gMLP (Figure 4)", [folder("gmlp")]))
    if "gmlp-dense" in study.models:
        words = "Spatial matrices of the gMLP without the Toeplitz prior (Figure 9)"
        pictures.append(("matrices", words, [folder("gmlp-dense")]))
    if {"gmlp-half", "gmlp", "gmlp-double"} <= set(study.models):
        pictures.append(("scaling", "Scaling with depth (Figures 5 and 8)", ["--runs", *trained]))
    if study.finetuned and any(getattr(study.arguments, f"{task}_task") for task in tasks):
        pictures.append(("transfer", "Pretraining against fine-tuning (Figure 7)", ["--runs", *trained]))
    if "pair" in tasks and "amlp" in study.models and tasks["pair"]["sample"] is not None:
        tuned = str(study.finetuning("pair", "amlp", seed).folder)
        words = "Tiny attention of the aMLP over a pair (Figure 10)"
        pictures.append(("attention", words, [tuned, "--sentences", *tasks["pair"]["sample"]]))
    failed = []
    for name, words, flags in pictures:
        study.pictures.append((f"{name}.png", words))
        try:
            cli.main(["plot", name, "--output", str(output / f"{name}.png"), *flags])
        except SystemExit:
            # It said why, on stderr.
            failed.append(f"{name}.png")
    return failed


def protocol(study: Study, epochs: float, runs: int, seconds: float) -> str:
    """What was done, where and when."""
    import datasets
    import torch
    import transformers

    import hf_gmlp

    plan, arguments = study.plan, study.arguments
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else processor()
    steps = f"{plan['steps']:,} steps each ({epochs:.1f} epochs)"
    return "\n".join(
        [
            f"- Date: {datetime.date.today():%d %B %Y}. The {runs} runs took {seconds / 60:.0f} minutes, without "
            f"their starting.",
            f"- Machine: {device}, {os.cpu_count()} cores, {arguments.jobs} training(s) at a time.",
            f"- Versions: Python {platform.python_version()}, torch {torch.__version__}, transformers "
            f"{transformers.__version__}, datasets {datasets.__version__}, hf_gmlp {hf_gmlp.__version__}.",
            f"- Text: {arguments.train_file or 'what Python says of itself (its reference and its standard library)'}, "
            f"held out {arguments.validation_file or 'every twentieth document'}; {plan['vocab_size']} SentencePieces.",
            f"- Size {arguments.size}: n = {study.size.length}; {steps}, learning rate {plan['learning_rate']:g}, "
            f"otherwise recipes/replicate/{arguments.size}.yaml; seeds {', '.join(map(str, study.seeds))}.",
        ]
    )


def count_runs(study: Study, tasks: dict) -> tuple[int, float]:
    """Runs, and seconds that they trained and evaluated."""
    runs = [study.pretraining(name, seed) for name in study.models for seed in study.seeds]
    for task in tasks:
        runs += [study.finetuning(task, name, seed) for name in study.finetuned for seed in study.seeds]
    results = [run.results() for run in runs]
    return len(runs), sum(result["train_runtime"] + result["eval_runtime"] for result in results)


def processor() -> str:
    """The name of the processor, as far as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def commands(study: Study, tasks: dict) -> list[str]:
    """Every command, of one seed: the others differ in the seed and the folders alone."""
    seed = study.seeds[0]
    runs = [study.pretraining(name, seed) for name in study.models]
    runs += [study.finetuning(task, name, seed) for task in tasks for name in study.finetuned]
    whole = [shown([sys.argv[0], *sys.argv[1:]]), f"# which calls, for seed {seed}:"]
    return whole + [shown(command) for command in (study.tokenizer_command(), *(run.command for run in runs))]


if __name__ == "__main__":
    main()
