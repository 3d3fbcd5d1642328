"""Finished runs of the training scripts, found under folders: what tables and figures are filled from."""

import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from transformers import AutoConfig, PreTrainedConfig

from hf_gmlp.errors import InputError
from hf_gmlp.tools.analysis.counts import paper_parameters
from hf_gmlp.training.run_folder import FINISHED, SETTINGS


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
        settings: Flags by name, from settings.json.
    """

    folder: Path
    name: str
    config: PreTrainedConfig
    results: dict[str, float]
    settings: dict

    @property
    def task(self) -> str | None:
        """ "mlm", "image", "squad_v1", "squad_v2", or a task of GLUE such as "sst2"; None if unknown."""
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
        """Optimizer steps of the training."""
        path = self.folder / "trainer_state.json"
        return read_json(path).get("global_step") if path.is_file() else None

    @property
    def accuracy(self) -> float | None:
        """Accuracy on the validation data (MNLI: the matched ones), from 0 to 1, if there is one."""
        return self.results.get("eval_matched_accuracy", self.results.get("eval_accuracy"))


def find_runs(folders: Iterable[str | Path]) -> list[Run]:
    """
    Return every finished run in the folders and below them, sorted by path. Unfinished runs, and evaluations without a
    model, are skipped.

    Raises:
        InputError: A folder does not exist, no run is found, or a file of a run cannot be read.
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
            settings = read_json(folder / SETTINGS) if (folder / SETTINGS).is_file() else {}
            runs[folder.resolve()] = Run(folder, name, config, read_json(path), settings)
    if not runs:
        places = ", ".join(map(str, folders))
        raise InputError(f"There is no finished run in {places}: no folder with {FINISHED} and config.json.")
    return list(runs.values())


def pretraining(run: Run, runs: Iterable[Run]) -> Run | None:
    """Return the masked-language-model run in the folder that a fine-tuning started from, or that of its checkpoint."""
    path = Path(run.settings.get("model_name_or_path") or "").resolve()
    folders = {path, path.parent} if path.name.startswith("checkpoint-") else {path}
    return next((other for other in runs if other.task == "mlm" and other.folder.resolve() in folders), None)


def best_setting(
    runs: Iterable[Run], value: Callable[[Run], float], best: Callable = max, names: Sequence[str] | None = None
) -> tuple[list[Run], int]:
    """
    Group runs by their settings (those of `names`, by default all but the seed and the folder), as the paper does.
    Return the group with the best median of `value`, and the number of groups.
    """
    groups: dict[str, list[Run]] = {}
    for run in runs:
        kept = names or sorted(run.settings.keys() - {"seed", "output_dir"})
        groups.setdefault(json.dumps([(name, run.settings.get(name)) for name in kept], sort_keys=True), []).append(run)
    return best(groups.values(), key=lambda members: statistics.median(map(value, members))), len(groups)


def read_json(path: Path) -> dict:
    """Return the contents of a JSON file; raise InputError if it is corrupted."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
