"""The model card of a gMLP or aMLP: what it is, how to load it, what it was trained on, and its results.

The text is in card.md, a Jinja template.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import yaml
from huggingface_hub import EvalResult, HfApi, ModelCard, ModelCardData
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
from safetensors import SafetensorError, safe_open
from transformers import PreTrainedModel

from .markdown import escape, markdown_table
from .models.configuration_gmlp import as_pair

if TYPE_CHECKING:
    # Takes seconds, and only training needs it.
    from transformers import Trainer

logger = logging.getLogger(__name__)

UNSTATED = "The license of the weights is not stated."
UNREADABLE = (ValueError, TypeError, AttributeError, yaml.YAMLError)
# Metadata about the training: attributes of ModelCardData, and keys in the file.
TRAINING_FIELDS = {"datasets": "datasets", "base_model": "base_model", "eval_results": "model-index"}
# Arguments of `push_to_hub` that `save_pretrained` does not take.
PUSH_ARGUMENTS = (
    *("repo_id", "commit_message", "commit_description", "private"),
    *("revision", "create_pr", "tags", "license"),
)
HYPERPARAMETERS = (
    *("learning_rate", "lr_scheduler_type", "warmup_steps", "optim", "adam_beta1", "adam_beta2", "adam_epsilon"),
    *("weight_decay", "max_grad_norm", "spatial_lr_multiplier", "label_smoothing_factor", "seed"),
)
# A model that differs from a card's in one of these config fields is a different model.
SAME_FIELDS = (
    *("model_type", "max_position_embeddings", "image_size", "patch_size", "id2label", "pooling"),
    *("spatial_gating", "toeplitz", "attention_size", "is_causal", "mask_padding", "vocab_size"),
)

SENTENCE = '"A sentence to try."'
# Model class -> (the Hub's pipeline tag, the task in words, arguments of an example call of the pipeline).
TASKS = {
    "GMLPModel": ("feature-extraction", "text encoder", ""),
    "GMLPForMaskedLM": ("fill-mask", "masked language model", '"The capital of France is [MASK]."'),
    "GMLPForCausalLM": ("text-generation", "causal language model", '"Once upon a time", max_new_tokens=5'),
    "GMLPForSequenceClassification": ("text-classification", "text classifier", SENTENCE),
    "GMLPForTokenClassification": ("token-classification", "token classifier", SENTENCE),
    "GMLPForQuestionAnswering": ("question-answering", "extractive question-answering model", ""),
    "GMLPForMultipleChoice": ("multiple-choice", "multiple-choice model", ""),
    "GMLPVisionModel": ("image-feature-extraction", "image encoder", ""),
    "GMLPVisionBackbone": ("image-feature-extraction", "image backbone", ""),
    "GMLPForImageClassification": ("image-classification", "image classifier", '"picture.jpg"'),
}
GATINGS = {
    "split": "split, Z1 · f(Z2) (the spatial gating unit)",
    "multiplicative": "multiplicative, Z · f(Z)",
    "additive": "additive, Z + f(Z)",
    "linear": "linear, f(Z)",
}


@dataclass
class TrainingRecord:
    """What a training script knows and a checkpoint does not."""

    # The data in words: its name or files, splits and sizes.
    dataset: str
    hyperparameters: dict[str, object] = field(default_factory=dict)
    # Results on held-out data, by name.
    metrics: dict[str, float] = field(default_factory=dict)
    # The command line that trained the model.
    command: str | None = None
    # Identifiers on the Hub of the dataset and of the checkpoint that the training started from, if they are there.
    dataset_id: str | None = None
    base_model: str | None = None
    # The language of the data, such as "en".
    language: str | None = None

    def __post_init__(self):
        # Trainer's timings are not results, and neither is a loss that is not a number.
        timings = ("runtime", "per_second", "epoch", "preparation_time", "step")
        self.metrics = {
            name.removeprefix("eval_"): float(value)
            for name, value in self.metrics.items()
            if isinstance(value, (int, float)) and math.isfinite(value) and not name.endswith(timings)
        }


def model_card(
    model: PreTrainedModel,
    name: str,
    *,
    training: TrainingRecord | None = None,
    tags: list[str] | None = None,
    license: str | None = None,
    source: str | None = None,
) -> ModelCard:
    """
    Returns the card of a gMLP or aMLP, which states only what is known.

    Args:
        name: Where the model will be found: a repository such as "me/my-gmlp", or a folder.
        training: How it was trained. Without it, the card in the folder that the model was loaded from is carried over
            if the weights are still the same.
        license: The identifier of the weights' license, such as "mit".
        source: Where converted weights come from, in Markdown.
    """
    earlier = _card_of_origin(model) if training is None else None
    data = _metadata(model, name, training, tags, license)
    carried_over = ""
    if earlier is not None and _is_own(earlier):
        # What it says about the weights is still true. Everything else is written anew.
        kept = ("## Source", "## Training", "## Results")
        sections = re.split(r"\n(?=## )", _unsigned(earlier.text))
        carried_over = "\n\n".join(section.strip() for section in sections if section.startswith(kept))
        for key in TRAINING_FIELDS:
            setattr(data, key, getattr(earlier.data, key))
    card = ModelCard.from_template(
        data,
        template_path=str(Path(__file__).with_name("card.md")),
        **_facts(model),
        name=name,
        quoted=json.dumps(name, ensure_ascii=False),
        source=source,
        carried_over=carried_over,
        training=training,
        license_sentence=_license(license),
        escape=escape,
        fence=_fence,
        table=_table,
    )
    card.text = f"\n{_signed(card.text.strip())}"
    return card if earlier is None else filled_in(earlier, card)


def filled_in(earlier: ModelCard, card: ModelCard) -> ModelCard:
    """
    Returns the `earlier` card, completed from a new one. What a person wrote stays: all metadata, and any text that
    is not exactly as this module or transformers wrote it. A generated text and its metadata are replaced.
    """
    fields, new, text = earlier.data.to_dict(), card.data.to_dict(), earlier.text
    if _is_own(earlier) or _is_blank(earlier):
        # Metadata about an earlier training is not true of this one.
        fields = {key: value for key, value in fields.items() if key not in TRAINING_FIELDS.values()} | new
        text = card.text
        if "license" in fields and "license" not in new:
            text = _signed(_unsigned(text).replace(UNSTATED, _license(fields["license"])))
    else:
        fields = new | fields
    fields["tags"] = list(dict.fromkeys([*(earlier.data.tags or []), *(card.data.tags or [])]))
    data = ModelCardData(**fields, ignore_metadata_errors=True)
    return ModelCard(f"---\n{data.to_yaml()}\n---\n\n{text.strip()}\n")


def push_to_hub(
    model: PreTrainedModel,
    repo_id: str,
    *,
    commit_message: str | None = None,
    commit_description: str | None = None,
    private: bool | None = None,
    token: bool | str | None = None,
    revision: str | None = None,
    create_pr: bool = False,
    max_shard_size: int | str = "50GB",
    tags: list[str] | None = None,
    license: str | None = None,
) -> str:
    """
    Uploads weights, config, code and a model card, which completes the card in the repository, if there is one. Takes
    the arguments of `PreTrainedModel.push_to_hub`, and `license`, the identifier of the weights' license.
    """
    if has_adapter(model):
        # Only the adapter is uploaded, and this card would describe a model.
        options = {"commit_message": commit_message, "commit_description": commit_description, "private": private}
        options |= {"token": token, "revision": revision, "create_pr": create_pr, "tags": tags}
        return PreTrainedModel.push_to_hub(model, repo_id, max_shard_size=max_shard_size, **options)
    api = HfApi(token=token)
    repo_id = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
    if revision is not None and not create_pr and not revision.startswith("refs/"):
        api.create_branch(repo_id, branch=revision, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder, max_shard_size=max_shard_size)
        card = model_card(model, repo_id, tags=[*(model.model_tags or []), *(tags or [])], license=license)
        write_card(card, Path(folder), _repository_card(api, repo_id, None if create_pr else revision))
        return api.upload_folder(
            repo_id=repo_id,
            folder_path=folder,
            commit_message=commit_message or "Upload model",
            commit_description=commit_description,
            revision=revision,
            create_pr=create_pr,
        )


def save_and_push(
    model: PreTrainedModel, save_directory: str | Path, is_main_process: bool, state_dict: dict | None, **kwargs
):
    """`PreTrainedModel.save_pretrained`, followed by `push_to_hub`; takes the arguments of both."""
    upload = {name: kwargs.pop(name) for name in PUSH_ARGUMENTS if name in kwargs}
    model.save_pretrained(save_directory, is_main_process, state_dict, **kwargs)
    if is_main_process:
        shared = {name: kwargs[name] for name in ("token", "max_shard_size") if name in kwargs}
        model.push_to_hub(upload.pop("repo_id", None) or Path(save_directory).resolve().name, **shared, **upload)


def has_adapter(model: PreTrainedModel) -> bool:
    """Returns whether `model.add_adapter` or `model.load_adapter` was called, so that only adapters are saved."""
    return getattr(model, "_hf_peft_config_loaded", False)


def hyperparameters(trainer: Trainer) -> dict[str, object]:
    """Returns the hyperparameters of a Trainer that a card lists."""
    args, state = trainer.args, trainer.state
    values = {
        "steps": state.global_step,
        "epochs": round(state.epoch or 0.0, 2),
        "global batch size": trainer.get_total_train_batch_size(args),
        "precision": "bf16" if args.bf16 else "fp16" if args.fp16 else "fp32",
    } | {key: getattr(args, key, None) for key in HYPERPARAMETERS}
    return {key: getattr(value, "value", value) for key, value in values.items() if value is not None}


def write_trainer_card(trainer: Trainer, card: ModelCard, *, pushing: bool = True):
    """
    Writes README.md into a Trainer's output folder, completing the card that is there. If the folder is to be pushed,
    completes the card in the repository too; if either of them cannot be read, none is uploaded.
    """
    folder = Path(trainer.args.output_dir)
    readme = folder / "README.md"
    earlier = [readme if readme.is_file() else None]
    if pushing := pushing and trainer.hub_model_id is not None:
        api = HfApi(token=trainer.args.hub_token)
        earlier.append(_repository_card(api, trainer.hub_model_id, trainer.args.hub_revision))
    if not write_card(card, folder, *earlier) and pushing and readme.is_file():
        # A Trainer does not upload files whose names start with an underscore.
        readme.replace(folder / "_README.md")


def write_card(card: ModelCard, folder: Path, *earlier: Path | None) -> bool:
    """
    Writes README.md into a folder, completing earlier cards, of which the last takes precedence. If one of them cannot
    be read, writes nothing and returns False.
    """
    for path in filter(None, earlier):
        try:
            card = filled_in(ModelCard.load(path, ignore_metadata_errors=True), card)
        except UNREADABLE as error:
            logger.warning("The existing model card cannot be read and is left unchanged: %s", error)
            return False
    partial = folder / "README.md.partial"
    partial.write_text(str(card), encoding="utf-8")
    partial.replace(folder / "README.md")
    return True


def preset_name(config) -> str | None:
    """Returns the preset that a config equals, if there is one (and the package's presets are available)."""
    for path in sorted((Path(__file__).parent / "presets").glob("*/config.json")):
        fields = json.loads(path.read_text(encoding="utf-8"))
        fields.pop("drop_path_rate", None)
        if all(getattr(config, key, None) == value for key, value in fields.items()):
            return path.parent.name
    return None


def _repository_card(api: HfApi, repo_id: str, revision: str | None) -> Path | None:
    """Downloads the card of a repository, if it has one."""
    try:
        return Path(api.hf_hub_download(repo_id, "README.md", revision=revision))
    except LocalEntryNotFoundError:
        # The Hub did not answer, so there may be a card.
        raise
    except EntryNotFoundError:
        return None


def _card_of_origin(model: PreTrainedModel) -> ModelCard | None:
    """Returns the card in the folder that a model was loaded from, if it is still the same model."""
    folder = Path(model.config.name_or_path or "")
    if not model.config.name_or_path or not (folder / "README.md").is_file() or not _has_weights_of(model, folder):
        return None
    try:
        return ModelCard.load(folder / "README.md", ignore_metadata_errors=True)
    except UNREADABLE:
        return None


def _has_weights_of(model: PreTrainedModel, folder: Path) -> bool:
    """Returns whether all weights of a model, and its sizes, are those in a folder."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        files = [safe_open(path, framework="pt") for path in sorted(folder.glob("*.safetensors"))]
    except (OSError, ValueError, SafetensorError):
        return False
    own = json.loads(model.config.to_json_string(use_diff=False))
    differs = any(own.get(key) != value for key, value in config.items() if key in SAME_FIELDS)
    weights, saved = model.state_dict(), {key: file for file in files for key in file.keys()}
    # A file holds tied weights only once.
    untied = weights.keys() - set(getattr(model, "all_tied_weights_keys", None) or {})
    if differs or config.get("architectures") != [type(model).__name__] or not untied <= saved.keys() <= weights.keys():
        return False
    if any(weight.is_meta for weight in weights.values()):
        return False
    return all(
        torch.equal(file.get_tensor(key).to(weights[key].dtype), weights[key].detach().cpu())
        for key, file in saved.items()
    )


def _is_own(card: ModelCard) -> bool:
    """Returns whether this module wrote the text of a card, and nobody has changed it since."""
    return card.text.strip() == _signed(_unsigned(card.text)).strip()


def _is_blank(card: ModelCard) -> bool:
    """Returns whether a card is the unchanged form that transformers uploads with a tokenizer or a processor."""
    line = "This is the model card of a 🤗 transformers model that has been pushed on the Hub."
    description = f"{line} This model card has been automatically generated."
    return card.text.strip() == ModelCard.from_template(ModelCardData(), model_description=description).text.strip()


def _signed(text: str) -> str:
    return f"{text}\n\n<!-- hf_gmlp {hashlib.sha256(text.encode()).hexdigest()[:16]} -->\n"


def _unsigned(text: str) -> str:
    """Returns a text without its last line, where the signature is."""
    return text.strip().rpartition("\n")[0].strip()


def _license(license: object) -> str:
    return f"The license of the weights is {escape(license)}." if license else UNSTATED


def _task(model) -> tuple[str, str, str]:
    """Returns the entry in TASKS of a model's class or of its nearest parent that has one."""
    return next(TASKS[parent.__name__] for parent in type(model).__mro__ if parent.__name__ in TASKS)


def _metadata(model, name, training, tags, license) -> ModelCardData:
    pipeline_tag, task, example = _task(model)
    training = training or TrainingRecord(dataset="")
    results = [
        EvalResult(
            task_type=pipeline_tag,
            task_name=task,
            dataset_type=training.dataset_id or "local",
            dataset_name=training.dataset or "not named",
            metric_type=metric,
            metric_value=round(value, 6),
        )
        for metric, value in training.metrics.items()
    ]
    # The example is English, and shown on the model's page.
    widget = example.partition('", ')[0].strip('"')
    shown = widget and training.language == "en" and pipeline_tag != "image-classification"
    family = "amlp" if model.config.attention_size else "gmlp"
    return ModelCardData(
        language=training.language,
        license=license,
        base_model=training.base_model,
        library_name="transformers",
        pipeline_tag=pipeline_tag,
        tags=list(dict.fromkeys([family, "arxiv:2105.08050", *(tags or [])])),
        datasets=[training.dataset_id] if training.dataset_id else None,
        model_name=name,
        eval_results=results or None,
        **({"widget": [{"text": widget}]} if shown else {}),
    )


def _table(header: tuple[str, str], rows: dict[str, object], form: str = "{}") -> str:
    return markdown_table([header, *((escape(key), escape(form.format(value))) for key, value in rows.items())])


def _fence(text: str) -> str:
    """Returns a fence for code, longer than any in the code itself."""
    return "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))


def _facts(model) -> dict[str, object]:
    """Returns what the template card.md says about a model."""
    config, vision = model.config, model.config.model_type == "gmlp_vision"
    pipeline_tag, task, example = _task(model)
    spatial_weights = "Toeplitz (2n - 1" if config.toeplitz else "dense (n x n"
    if vision and config.toeplitz:
        spatial_weights = "Toeplitz over the grid ({} x {}".format(*(2 * side - 1 for side in config.grid_size))
    heads = config.spatial_heads
    return {
        "config": config,
        "vision": vision,
        "pipeline_tag": pipeline_tag,
        "task": task,
        "example": example,
        "auto_class": model._auto_class,
        "preset": preset_name(config),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "spatial_weights": spatial_weights
        + (" per block)" if heads == 1 else f" for each of {heads} heads in a block)"),
        "gating": escape(GATINGS.get(config.spatial_gating, config.spatial_gating)),
        "labels": list(config.id2label.values()) if type(model).__name__.endswith("Classification") else [],
        "image_size": as_pair(config.image_size) if vision else None,
    }
