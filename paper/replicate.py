"""Pretrain the models of Table 3 and others at a small size on one text, and fine-tune three on word matching.

paper/replication.md describes how to run it, what is trained, and when a claim is held. Every training is a call of
`python -m paper run`. The same command resumes an interrupted replication. It writes report.md and results.json into
the output folder. results.json is enough to resume on another machine: runs that it contains are not repeated.
"""

import hashlib
import math
import statistics
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from transformers import TrainerState

from common.baselines import token_losses
from common.machine import circumstances
from hf_gmlp.data.files import stream_rows
from hf_gmlp.errors import InputError
from hf_gmlp.tokenizer import train_tokenizer

from . import protocol, report
from .corpus import prepare_text, write_pairs
from .protocol import MODELS, SEEDS, SELECTION_SEEDS, SIZES, TASK_MODELS, Setting, Size, join_overrides
from .runs import read_json
from .trainings import map_jobs, search, train


def replicate(size: str, train_file: list[str], validation_file: list[str], output_dir: Path | None, jobs: int) -> None:
    """Make the remaining runs, and report on all; the arguments are the flags of `python -m paper replicate`.

    Raises:
        InputError: The flags contradict each other, or a training fails.
    """
    if validation_file and not train_file:
        raise InputError("--validation_file was passed without --train_file. Pass both or neither.")
    output = output_dir or Path("build") / f"replicate-{size}"
    earlier = read_json(output / "results.json")
    if earlier.get("size", size) != size:
        raise InputError(f"{output} has results of the size {earlier['size']}. Choose another --output_dir.")
    study = Study(size, output, prepare_text(train_file, validation_file, output / "data"), earlier)
    if earlier.get("text", study.checksums) != study.checksums:
        raise InputError(f"{output}/results.json was made from different text. Choose another --output_dir.")
    make_tokenizer(study.size, study.text["train"], output)
    for stage in (study.search_settings, study.pretrain, study.search_task_settings, study.fine_tune):
        stage(jobs)
        report.write(study.numbers(), output)
    print(f"All runs are finished. The report: {output / 'report.md'}")


def make_tokenizer(size: Size, text: Path, output: Path) -> Path:
    """Train a tokenizer on the training text, unless the folder has one, and return its path."""
    tokenizer = output / "tokenizer"
    if not (tokenizer / "tokenizer.json").is_file():
        texts = (row["text"] for row in stream_rows(str(text)))
        options = {"vocab_size": size.vocab_size, "max_length": size.length}
        train_tokenizer(texts, lowercase=True, **options).save_pretrained(tokenizer)
    return tokenizer


def pretraining_flags(size: Size, tokenizer: Path, text: Path, held_out: Path) -> dict[str, object]:
    """Return the flags for the text and the batches of a pretraining."""
    return {
        "tokenizer_name": tokenizer,
        "train_file": text,
        "validation_file": held_out,
        "max_seq_length": size.length,
        "global_batch_size": size.batch_size,
        "per_device_train_batch_size": size.batch_size,
        "per_device_eval_batch_size": 4 * size.batch_size,
        **dict(size.flags),
    }


class Study:
    """The runs of the protocol at one size, in a folder. Each stage needs the results of the stages before it.

    Attributes:
        rows: One dictionary for each finished run, as in results.json.
        earlier: Rows of an earlier results.json that are not among `rows` yet, by stage and key.
        settings: Best learning rate and multiplier of each model.
        task_settings: The same for the word-matching task.
        steps: Steps of the longest pretrainings.
    """

    def __init__(self, size_name: str, output: Path, text: dict[str, Path], earlier: Mapping) -> None:
        self.size_name, self.size, self.output, self.text = size_name, SIZES[size_name], output, text
        self.tokenizer = output / "tokenizer"
        self.pairs = {part: output / "data" / f"pairs-{part}.jsonl" for part in text}
        self.checksums = {part: hashlib.sha256(path.read_bytes()).hexdigest() for part, path in text.items()}
        keys = ("stage", "model", "seed", "steps", "learning_rate", "multiplier")
        self.earlier = {tuple(row[key] for key in keys): row for row in earlier.get("runs", ())}
        self.earlier_baselines = earlier.get("baselines")
        self.rows: list[dict] = []
        self.settings: dict[str, Setting] = {}
        self.task_settings: dict[str, Setting] = {}
        self.steps = 0

    @cached_property
    def baselines(self) -> dict[str, dict[str, float]]:
        """Losses of the count models on the development and evaluation text, in nats per masked token."""
        return self.earlier_baselines or {
            part: token_losses(self.tokenizer, self.text["train"], self.text[part], self.size.length)
            for part in ("development", "evaluation")
        }

    def numbers(self) -> dict:
        """Return all numbers of the finished runs, as `report.write` writes them."""
        return {
            "circumstances": circumstances("transformers", "datasets", "hf_gmlp"),
            "size": self.size_name,
            "text": self.checksums,
            "baselines": self.baselines,
            "counts": report.count_models(self.size),
            "runs": [*self.rows, *self.earlier.values()],
        }

    def search_settings(self, jobs: int) -> None:
        """Choose each model's learning rate and multiplier by its loss on the development text."""
        # Measure the count model once, before the searches start in parallel.
        counts = self.baselines["development"]["bigram_context"]
        for name, (rows, setting) in zip(MODELS, map_jobs(self.search, [(name, counts) for name in MODELS], jobs)):
            self.rows += rows
            self.settings[name] = setting

    def search(self, name: str, counts: float) -> tuple[list[dict], Setting]:
        """Return the runs of a model's search, and the best of the settings with the largest number of steps.

        Args:
            counts: The loss of the bigram-context baseline on the development text.
        """
        rows: list[dict] = []
        losses: dict[Setting, float] = {}
        for steps in self.size.selection_steps:
            start, losses = protocol.choose(losses) if losses else MODELS[name].start, {}
            while settings := protocol.next_settings(losses, start):
                # If trainings of this length are too short, do not finish the search at this length.
                if losses and steps < self.size.selection_steps[-1] and min(losses.values()) >= counts:
                    break
                for setting in settings:
                    pair = [self.run("selection", name, setting, seed, steps) for seed in SELECTION_SEEDS]
                    losses[setting] = statistics.fmean(row["loss"] for row in pair)
                    rows += pair
            if min(losses.values()) < counts:
                break
        return rows, protocol.choose(losses)

    def pretrain(self, jobs: int) -> None:
        """Make the runs of the perplexity table, and those of the next length if the loss of a model still falls."""
        for steps in self.size.steps:
            self.steps = steps
            runs = [("pretraining", name, self.settings[name], seed, steps) for seed in SEEDS for name in MODELS]
            rows = map_jobs(self.run, runs, jobs)
            self.rows += rows
            curves = {name: [row["curve"] for row in rows if row["model"] == name] for name in MODELS}
            if all(statistics.fmean(map(protocol.fall, seeds)) < protocol.FALL for seeds in curves.values()):
                break

    def search_task_settings(self, jobs: int) -> None:
        """Choose the settings of each model that is fine-tuned, by its accuracy on the development pairs."""
        # A pair for each sample of the longest fine-tuning, and those for evaluation.
        counts = (32 * self.size.task_steps[1], 2000, 5000)
        write_pairs(self.tokenizer, dict(zip(self.pairs.values(), counts)), self.size.words)

        def choose(name: str) -> tuple[list[dict], Setting]:
            rows: list[dict] = []

            def error(setting: Setting) -> float:
                rows.append(self.run("task selection", name, setting, SEEDS[0], self.size.task_steps[0]))
                return 1 - rows[-1]["accuracy"]

            return rows, search(protocol.TASK_START, error)

        for name, (rows, setting) in zip(TASK_MODELS, map_jobs(choose, [(name,) for name in TASK_MODELS], jobs)):
            self.rows += rows
            self.task_settings[name] = setting

    def fine_tune(self, jobs: int) -> None:
        """Make the reported fine-tunings on the word-matching task."""
        steps = self.size.task_steps[1]
        runs = [("task", name, self.task_settings[name], seed, steps) for seed in SEEDS for name in TASK_MODELS]
        self.rows += map_jobs(self.run, runs, jobs)

    def run(self, stage: str, name: str, setting: Setting, seed: int, steps: int) -> dict:
        """Return the row of a run in results.json, making the run if it is not finished.

        Args:
            stage: "selection", "pretraining", "task selection" or "task".
        """
        key = {"model": name, "seed": seed, "steps": steps, "learning_rate": setting[0], "multiplier": setting[1]}
        if row := self.earlier.pop((stage, *key.values()), None):
            return row
        folder, results = self.train(stage, name, setting, seed, steps)
        row = {"stage": stage, **key, "minutes": results.get("train_runtime", 0.0) / 60}
        if stage.startswith("task"):
            return row | {"accuracy": results["eval_accuracy"]}
        row["loss"] = results["eval_loss"]
        if stage == "selection":
            return row
        if not math.isfinite(row["loss"]):
            return row | {"curve": [[steps, math.inf]]}
        history = TrainerState.load_from_json(str(folder / "trainer_state.json")).log_history
        return row | {"curve": [[entry["step"], round(entry["loss"], 4)] for entry in history if "loss" in entry]}

    def train(self, stage: str, name: str, setting: Setting, seed: int, steps: int) -> tuple[Path, Mapping[str, float]]:
        """Return the folder and the results of a training, running it first if it is not finished."""
        rate, multiplier = setting
        folder = self.output / stage.replace(" ", "-") / name / f"{rate:g}-x{multiplier:g}-{steps}-seed-{seed}"
        flags: dict[str, object]
        if stage.startswith("task"):
            # An earlier results.json has the results of the pretraining, but not its weights.
            pretrained, _ = self.train("pretraining", name, self.settings[name], seed, self.steps)
            task, recipe = "glue", "pairs"
            flags = {"model_name_or_path": pretrained, "train_file": self.pairs["train"]}
            flags["validation_file"] = self.pairs["evaluation" if stage == "task" else "development"]
            flags["max_seq_length"] = self.size.length
        else:
            task, recipe = "mlm", "pretraining"
            held_out = self.text["development" if stage == "selection" else "evaluation"]
            flags = pretraining_flags(self.size, self.tokenizer, self.text["train"], held_out)
            overrides = join_overrides(MODELS[name].overrides(self.size))
            flags |= {"config_name": MODELS[name].preset, "config_overrides": overrides}
        flags |= {"learning_rate": rate, "spatial_lr_multiplier": multiplier, "seed": seed, "data_seed": seed}
        flags |= {"max_steps": steps, "logging_steps": max(1, steps // 100)}
        return folder, train(folder, task, f"paper/recipes/replicate/{recipe}.yaml", flags)
