"""Find finished runs of the training scripts, which fill the tables and figures."""

import json
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from transformers import AutoConfig, PreTrainedConfig

from hf_gmlp.errors import InputError
from hf_gmlp.training.run_folder import FINISHED, SETTINGS

from . import models  # noqa: F401  # runs of the baseline models open
from .counts import paper_parameters

NAMES = {"gmlp": "gMLP", "gmlp_vision": "gMLP", "bert": "BERT", "bert_relpos": "BERT with relative positions"}
NAMES |= {"text_mixer": "MLP-Mixer", "vit": "ViT", "deit": "DeiT"}
# Config fields that define a family of models.
KINDS = ("spatial_gating", "toeplitz", "spatial_heads", "stem", "content_attention", "pre_norm")
# Flags that may differ between the seeds of one setting. Each pretraining seed has its own folder.
SEEDS = {"seed", "data_seed", "output_dir", "model_name_or_path"}


def family(config: PreTrainedConfig) -> str:
    """Return the family of a model as shown in legends; models of one family differ only in size."""
    if config.model_type == "timm_wrapper":
        return f"timm {config.architecture.split('_')[0]}"
    name = "aMLP" if getattr(config, "attention_size", 0) else NAMES.get(config.model_type, config.model_type)
    default = type(config)()
    changed = [field for field in KINDS if getattr(config, field, None) != getattr(default, field, None)]
    return ", ".join([name, *(f"{field}={getattr(config, field)}" for field in changed)])


@dataclass(frozen=True)
class Run:
    """A finished run."""

    folder: Path  # holds all_results.json and config.json
    config: PreTrainedConfig
    results: dict[str, float]  # what the script printed at the end, such as "eval_perplexity"
    settings: dict  # flags by name, from settings.json

    @property
    def task(self) -> str:
        """ "mlm", "image", "squad_v1", "squad_v2", or a task of GLUE such as "sst2"; "" if unknown."""
        head = (self.config.architectures or [""])[0].rpartition("For")[2]
        if head == "QuestionAnswering":
            return "squad_v2" if "eval_HasAns_f1" in self.results else "squad_v1"
        if "eval_matched_accuracy" in self.results:
            return "mnli"
        return {"MaskedLM": "mlm", "ImageClassification": "image"}.get(head, self.settings.get("task_name") or "")

    @cached_property
    def millions(self) -> float:
        """Parameters in millions, as the paper counts them."""
        return paper_parameters(self.config) / 1e6

    @cached_property
    def steps(self) -> int | None:
        """Optimizer steps of the training, if there was one."""
        return read_json(self.folder / "trainer_state.json").get("global_step")

    @property
    def metric(self) -> str:
        """The name of the accuracy on the validation data; MNLI has two."""
        return "eval_matched_accuracy" if self.task == "mnli" else "eval_accuracy"

    @property
    def accuracy(self) -> float:
        """Accuracy on the validation data, from 0 to 1; 0 if there is none."""
        return self.results.get(self.metric, 0.0)


def find_runs(folders: Iterable[str | Path]) -> list[Run]:
    """Return every finished run in the folders and below them, sorted by path.

    Raises:
        InputError: A folder does not exist, or no run is found.
    """
    runs: dict[Path, Run] = {}
    for root in map(Path, folders):
        if not root.is_dir():
            raise InputError(f"There is no folder {root}. Pass existing folders of runs.")
        for path in sorted(root.rglob(FINISHED)):
            # A run that only evaluated has no config.json.
            if (path.parent / "config.json").is_file():
                config, settings = AutoConfig.from_pretrained(path.parent), read_json(path.with_name(SETTINGS))
                runs[path.resolve()] = Run(path.parent, config, read_json(path), settings)
    if not runs:
        raise InputError(f"There is no finished run in {', '.join(map(str, folders))}: no {FINISHED} and config.json.")
    return list(runs.values())


def read_json(path: Path) -> dict:
    """Return the contents of a JSON file, or an empty dictionary if it does not exist."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def pretraining(run: Run, runs: Iterable[Run]) -> Run | None:
    """Return the masked-language-model run in the folder that a fine-tuning started from, or that of its checkpoint."""
    path = Path(run.settings.get("model_name_or_path") or "").resolve()
    folder = path.parent if path.name.startswith("checkpoint-") else path
    return next((other for other in runs if other.task == "mlm" and other.folder.resolve() == folder), None)


def best_setting(runs: Iterable[Run], metric: str, best: Callable = max) -> tuple[list[Run], int]:
    """Group runs of one model and task by all settings but the seed; return the group with the best median of a metric
    (`best` is `max` or `min`), as the paper does, and the number of groups."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        settings = {name: value for name, value in run.settings.items() if name not in SEEDS}
        groups.setdefault(json.dumps(settings, sort_keys=True), []).append(run)
    return best(groups.values(), key=lambda group: statistics.median(run.results[metric] for run in group)), len(groups)
