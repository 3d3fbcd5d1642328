"""Finished runs of the training scripts, found under folders: what tables and figures are filled from."""

import itertools
import json
import re
import shlex
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from transformers import AutoConfig, PreTrainedConfig

from hf_gmlp.errors import InputError
from hf_gmlp.tools.analysis.counts import paper_parameters
from hf_gmlp.training.run_folder import FINISHED, SETTINGS

# What makes two models the same, for finding the pretraining of a fine-tuning.
SIZES = ("model_type", "num_hidden_layers", "hidden_size", "intermediate_size", "attention_size", "toeplitz")
SIZES += ("spatial_gating", "content_attention", "vocab_size")


def family(config: PreTrainedConfig) -> str:
    """Return the kind of a model, as a legend names it; models of one family differ only in size."""
    if config.model_type in ("gmlp", "gmlp_vision"):
        name = "aMLP" if config.attention_size else "gMLP"
        if config.spatial_gating != "split":
            name = f"{config.spatial_gating.capitalize()} {name}"
        images = config.model_type == "gmlp_vision"
        if config.toeplitz == images:
            name += ", with Toeplitz prior" if images else ", without Toeplitz prior"
        if config.spatial_heads > 1:
            name += f", {config.spatial_heads} spatial heads"
        return f"{name}, convolutional stem" if images and config.stem == "conv" else name
    if config.model_type == "bert_relpos":
        return f"BERT with relative positions{'' if config.content_attention else ', without attention'}"
    if config.model_type == "timm_wrapper":
        return f"timm {config.architecture.split('_')[0]}"
    names = {"bert": "BERT", "text_mixer": "MLP-Mixer", "vit": "ViT", "deit": "DeiT"}
    return names.get(config.model_type, config.model_type.replace("_", " "))


@dataclass(frozen=True)
class Run:
    """
    A finished run.

    Attributes:
        folder: Holds all_results.json and config.json.
        name: The folder, relative to the one that was searched.
        config: Of the model.
        results: What the script printed at the end, such as "eval_perplexity".
        settings: Flags by name, as far as the run noted them.
    """

    folder: Path
    name: str
    config: PreTrainedConfig
    results: dict[str, float]
    settings: dict

    @property
    def task(self) -> str | None:
        """
        "mlm", "image", a task of GLUE such as "sst2", "squad_v1" or "squad_v2"; None for a classifier of unknown task.
        """
        head = (self.config.architectures or [""])[0]
        if head.endswith("ForMaskedLM"):
            return "mlm"
        if head.endswith("ForImageClassification"):
            return "image"
        if head.endswith("ForQuestionAnswering"):
            return "squad_v2" if "eval_HasAns_f1" in self.results else "squad_v1"
        return "mnli" if "eval_matched_accuracy" in self.results else self.settings.get("task_name")

    @cached_property
    def millions(self) -> float:
        """Parameters in millions, as the paper counts them."""
        return paper_parameters(self.config) / 1e6

    @property
    def size(self) -> tuple[str, float]:
        """The family of the model, and its parameters in millions."""
        return family(self.config), self.millions

    @cached_property
    def steps(self) -> int | None:
        """Optimizer steps of the training, if it noted them."""
        path = self.folder / "trainer_state.json"
        return read_json(path).get("global_step") if path.is_file() else None

    @property
    def accuracy(self) -> float | None:
        """Accuracy on the validation data (MNLI: the matched ones), from 0 to 1, if there is one."""
        return self.results.get("eval_matched_accuracy", self.results.get("eval_accuracy"))


def find_runs(folders: Iterable[str | Path]) -> list[Run]:
    """
    Returns every finished run in the folders and below them, sorted by path. Unfinished runs, and evaluations without
    a model, are skipped.

    Raises:
        InputError: If a folder does not exist, no run is found, or a file of a run cannot be read.
    """
    runs: dict[Path, Run] = {}
    for root in map(Path, folders):
        if not root.is_dir():
            raise InputError(f"There is no folder {root} to look for runs in.")
        for path in sorted(root.rglob(FINISHED)):
            folder = path.parent
            if not (folder / "config.json").is_file() or folder.resolve() in runs:
                continue
            name = str(folder.relative_to(root)) if folder != root else root.resolve().name
            try:
                config = AutoConfig.from_pretrained(folder)
            except (OSError, ValueError) as error:
                raise InputError(f"{folder / 'config.json'} cannot be read: {error}") from error
            runs[folder.resolve()] = Run(folder, name, config, read_json(path), _settings(folder))
    if not runs:
        raise InputError(
            f"There is no finished run in {', '.join(map(str, folders))}: no folder with {FINISHED} and config.json."
        )
    return list(runs.values())


def pretraining(run: Run, runs: Iterable[Run]) -> Run | None:
    """
    Returns the masked-language-model run that a fine-tuning started from: the one in the folder that the fine-tuning
    was given or, if runs were moved, the one of the same sizes whose name is the end of that path.
    """
    given = run.settings.get("model_name_or_path")
    if not given:
        return None
    # A checkpoint within the folder of a run stands for the run.
    parts = tuple(part for part in Path(given).parts if not part.startswith("checkpoint-"))
    candidates = [one for one in runs if one.task == "mlm" and _sizes(one) == _sizes(run)]
    for one in candidates:
        if one.folder.resolve() == Path(*parts).resolve():
            return one
    named = [one for one in candidates if parts[-len(Path(one.name).parts) :] == Path(one.name).parts]
    longest = max((len(Path(one.name).parts) for one in named), default=0)
    named = [one for one in named if len(Path(one.name).parts) == longest]
    return named[0] if len(named) == 1 else None


def best_setting(
    runs: Iterable[Run], value: Callable[[Run], float], best: Callable = max, names: Sequence[str] | None = None
) -> tuple[list[Run], int]:
    """
    Groups runs by their settings (those of `names`, by default all but the seed and the folder), as the paper does.
    Returns the group with the best median of `value`, and the number of groups.
    """
    groups: dict[str, list[Run]] = {}
    for run in runs:
        kept = names or sorted(run.settings.keys() - {"seed", "output_dir"})
        groups.setdefault(json.dumps([(name, run.settings.get(name)) for name in kept], sort_keys=True), []).append(run)
    return best(groups.values(), key=lambda members: statistics.median(map(value, members))), len(groups)


def read_json(path: Path) -> dict:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error


def _sizes(run: Run) -> list:
    return [getattr(run.config, name, None) for name in SIZES]


def _settings(folder: Path) -> dict:
    """The flags in settings.json, or else those with one value in the command of the model card."""
    if (folder / SETTINGS).is_file():
        return read_json(folder / SETTINGS)
    card = folder / "README.md"
    text = card.read_text(encoding="utf-8", errors="replace") if card.is_file() else ""
    command = re.search(r"^(python run_|hf-gmlp run ).*$", text, flags=re.MULTILINE)
    words = shlex.split(command[0]) if command else []
    return {flag.removeprefix("--"): value for flag, value in itertools.pairwise(words) if flag.startswith("--")}
