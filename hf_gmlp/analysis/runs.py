"""Finished runs of the training scripts, found under folders: what tables and figures are filled from."""

import itertools
import json
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForImageClassification, PreTrainedConfig

from ..errors import InputError
from .counts import paper_parameters

# As in training/trainer.py, which takes seconds to import.
FINISHED = "all_results.json"
SETTINGS = "settings.json"


@dataclass(frozen=True)
class Run:
    """
    A finished run: its folder holds all_results.json and config.json.

    Attributes:
        folder: Where it lies.
        name: The folder, seen from the one that was searched.
        config: Of the model.
        results: What the script printed at the end, as "eval_perplexity".
        settings: Flags by name, as far as the run noted them: settings.json, else the command in its model card.
    """

    folder: Path
    name: str
    config: PreTrainedConfig
    results: dict[str, float]
    settings: dict

    @property
    def task(self) -> str | None:
        """
        "mlm", "image", a task of GLUE as "sst2", "squad_v1" or "squad_v2"; None of a classifier of unknown task.
        """
        head = (self.config.architectures or [""])[0]
        if head.endswith("ForMaskedLM"):
            return "mlm"
        if head.endswith("ForImageClassification"):
            return "image"
        if head.endswith("ForQuestionAnswering"):
            return "squad_v2" if "eval_HasAns_f1" in self.results else "squad_v1"
        if "eval_matched_accuracy" in self.results:
            return "mnli"
        return self.settings.get("task_name")

    @property
    def family(self) -> str:
        """The kind of model, by the paper's names: runs of one family differ in size alone."""
        return family(self.config)

    @cached_property
    def parameters(self) -> int:
        """Parameters as the paper counts them; of an image model all of the classifier's."""
        return parameters(self.config)

    @cached_property
    def steps(self) -> int | None:
        """Optimizer steps of the training; None if it noted none."""
        try:
            state = json.loads((self.folder / "trainer_state.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return state.get("global_step")

    @property
    def accuracy(self) -> float | None:
        """Accuracy on the validation data, from 0 to 1; on MNLI's matched ones. None where there is none."""
        return self.results.get("eval_matched_accuracy", self.results.get("eval_accuracy"))


def find_runs(folders: Iterable[str | Path]) -> list[Run]:
    """
    Every finished run in the folders and below them, sorted by path. Unfinished ones, and evaluations without a model
    of their own, are passed over.

    Raises:
        InputError: If a folder does not exist, no run is found, or a file of one cannot be read.
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
            results = _read_json(path)
            try:
                config = AutoConfig.from_pretrained(folder)
            except (OSError, ValueError) as error:
                raise InputError(f"{folder / 'config.json'} cannot be read: {error}") from error
            runs[folder.resolve()] = Run(folder, name, config, results, _settings(folder))
    if not runs:
        raise InputError(
            f"There is no finished run in {', '.join(map(str, folders))}: a finished one has {FINISHED} and "
            f"config.json in its folder."
        )
    return list(runs.values())


def pretraining(run: Run, runs: Iterable[Run]) -> Run | None:
    """
    The masked-language-model run that a fine-tuning began with: the one in the folder that the fine-tuning was given,
    or, where runs were moved, the one of the same sizes whose name ends the path given. None if there is no such run.
    """
    given = run.settings.get("model_name_or_path")
    if not given:
        return None
    # A checkpoint within the folder of a run stands for the run.
    parts = tuple(part for part in Path(given).parts if not part.startswith("checkpoint-"))
    candidates = [one for one in runs if one.task == "mlm" and _sizes(one.config) == _sizes(run.config)]
    for one in candidates:
        if one.folder.resolve() == Path(*parts).resolve():
            return one
    named = [one for one in candidates if parts[-len(Path(one.name).parts) :] == Path(one.name).parts]
    longest = max((len(Path(one.name).parts) for one in named), default=0)
    named = [one for one in named if len(Path(one.name).parts) == longest]
    return named[0] if len(named) == 1 else None


def family(config: PreTrainedConfig) -> str:
    """The kind of a model, by the paper's names; models of one family differ in size alone."""
    if config.model_type in ("gmlp", "gmlp_vision"):
        name = "aMLP" if config.attention_size else "gMLP"
        if config.spatial_gating != "split":
            name = f"{config.spatial_gating.capitalize()} {name}"
        return f"{name}, dense W" if config.model_type == "gmlp" and not config.toeplitz else name
    if config.model_type == "bert_relpos":
        return "BERT + rel pos" if config.content_attention else "BERT + rel pos - attn"
    if config.model_type == "timm_wrapper":
        return f"timm {config.architecture.split('_')[0]}"
    return {"bert": "BERT", "text_mixer": "MLP-Mixer", "vit": "ViT", "deit": "DeiT"}.get(
        config.model_type, config.model_type
    )


def parameters(config: PreTrainedConfig) -> int:
    """Parameters as the paper counts them (`paper_parameters`); of any image model the whole classifier's."""
    if config.model_type != "gmlp_vision" and (config.architectures or [""])[0].endswith("ForImageClassification"):
        with torch.device("meta"):
            model = AutoModelForImageClassification.from_config(config)
        return sum(parameter.numel() for parameter in model.parameters())
    return paper_parameters(config)


def _sizes(config: PreTrainedConfig) -> tuple:
    names = ("model_type", "num_hidden_layers", "hidden_size", "intermediate_size", "attention_size", "toeplitz")
    return tuple(getattr(config, name, None) for name in (*names, "spatial_gating", "content_attention", "vocab_size"))


def _settings(folder: Path) -> dict:
    if (folder / SETTINGS).is_file():
        return _read_json(folder / SETTINGS)
    try:
        card = (folder / "README.md").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return {}
    programs = ("python run_", "python -m hf_gmlp.scripts.", "hf-gmlp run ")
    command = next((line for line in card.splitlines() if line.startswith(programs)), "")
    try:
        words = shlex.split(command)
    except ValueError:
        return {}
    # Flags with one value; the others are of no interest here.
    return {flag.removeprefix("--"): value for flag, value in itertools.pairwise(words) if flag.startswith("--")}


def _read_json(path: Path) -> dict:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
