"""The model card of a gMLP or aMLP: what it is, how to load it, and what it was trained on with what result."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from huggingface_hub import EvalResult, HfApi, ModelCard, ModelCardData
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, Trainer

logger = logging.getLogger(__name__)

PAPER = "https://arxiv.org/abs/2105.08050"
UNSTATED = "The license of the weights is not stated."
# Fields of the metadata that are about one training.
OF_TRAINING = ("datasets", "base_model", "eval_results")
# What `push_to_hub` takes and `save_pretrained` does not.
PUSH_ARGUMENTS = (
    *("repo_id", "commit_message", "commit_description", "private"),
    *("revision", "create_pr", "tags", "license"),
)
HYPERPARAMETERS = (
    *("learning_rate", "lr_scheduler_type", "warmup_steps", "optim", "adam_beta1", "adam_beta2", "adam_epsilon"),
    *("weight_decay", "max_grad_norm", "spatial_lr_multiplier", "label_smoothing_factor", "seed"),
)
# Fields of a config that a card speaks of: a model that differs in one of them is not the one that the card is about.
SAME_FIELDS = (
    *("model_type", "max_position_embeddings", "image_size", "patch_size", "id2label", "pooling"),
    *("spatial_gating", "toeplitz", "attention_size", "is_causal", "mask_padding", "vocab_size"),
)

# Model class -> (the Hub's pipeline tag, task in words, Auto class, a call that shows it).
TASKS = {
    "GMLPModel": ("feature-extraction", "text encoder", "AutoModel", ""),
    "GMLPForMaskedLM": ("fill-mask", "masked language model", "AutoModelForMaskedLM", "text"),
    "GMLPForCausalLM": ("text-generation", "causal language model", "AutoModelForCausalLM", "text"),
    "GMLPForSequenceClassification": (
        "text-classification",
        "text classifier",
        "AutoModelForSequenceClassification",
        "text",
    ),
    "GMLPForTokenClassification": (
        "token-classification",
        "token classifier",
        "AutoModelForTokenClassification",
        "text",
    ),
    "GMLPForQuestionAnswering": (
        "question-answering",
        "extractive question answering model",
        "AutoModelForQuestionAnswering",
        "",
    ),
    "GMLPForMultipleChoice": ("multiple-choice", "multiple choice model", "AutoModelForMultipleChoice", ""),
    "GMLPVisionModel": ("image-feature-extraction", "image encoder", "AutoModel", ""),
    "GMLPVisionBackbone": ("image-feature-extraction", "image backbone", "AutoBackbone", ""),
    "GMLPForImageClassification": (
        "image-classification",
        "image classifier",
        "AutoModelForImageClassification",
        "image",
    ),
}
# Tasks whose page on the Hub has an example to try.
WIDGETS = ("fill-mask", "text-generation", "text-classification", "token-classification")
GATINGS = {
    "split": "split, Z1 * f(Z2): the spatial gating unit",
    "multiplicative": "multiplicative, Z * f(Z)",
    "additive": "additive, Z + f(Z)",
    "linear": "linear, f(Z)",
}


@dataclass
class TrainingRecord:
    """What a training script knows and a checkpoint does not."""

    dataset: str
    """The data in words: its name or files, splits and sizes."""
    hyperparameters: dict[str, object] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    """Results on held-out data, by name."""
    command: str | None = None
    """The command line that trained the model."""
    dataset_id: str | None = None
    """The data's identifier on the Hub, if it is there."""
    base_model: str | None = None
    """The identifier on the Hub of the checkpoint that the training began with, if it is there."""
    language: str | None = None
    """The language of the data, such as "en"."""

    def __post_init__(self):
        # What Trainer adds is no result, and a loss that is not a number is none either.
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
    The card of a model about to be saved or pushed. It says nothing that is not known.

    Args:
        model: A gMLP, with any head.
        name: Where it will be found: a repository such as "me/my-gmlp", or a folder.
        training: What it was trained on. Without it, the card in the folder that the model was loaded from goes along,
            if the weights are still those; if not, the card says that the training was not recorded.
        tags: More tags for the Hub.
        license: The identifier of the weights' license, such as "mit"; by default, the card names none.
        source: Where weights that were not trained here come from, in Markdown.
    """
    data = _card_data(model, name, training, tags, license)
    sections = [
        _introduction(model, name),
        _architecture(model),
        *([f"## Source\n\n{source}"] if source else []),
        _loading(model, name),
        _training(training),
        _limits(model),
        f"## License\n\n{_stated(license)} The code that travels with them: Apache 2.0.",
        _CITATION,
    ]
    card = ModelCard(f"---\n{data.to_yaml()}\n---\n\n{_signed(_joined(sections))}")
    earlier = None if training is not None else _card_of_origin(model)
    if earlier is None:
        return card
    if _is_own(earlier):
        # Where its weights come from is true of this model; all else may be said anew.
        kept = ("## Source", "## Training", "## Results")
        told = [section for section in _split(earlier.text) if section.startswith(kept)]
        sections = [section for section in _split(card.text) if not section.startswith("## Training")]
        place = next(i for i, section in enumerate(sections) if section.startswith("## Limits"))
        card.text = _signed(_joined([*sections[:place], *told, *sections[place:]]))
        for name in OF_TRAINING:
            setattr(card.data, name, getattr(earlier.data, name))
    return filled_in(earlier, card)


def filled_in(earlier: ModelCard, card: ModelCard) -> ModelCard:
    """
    A card that is there already, with what it lacks. What a person wrote stays: a text that is not, to the letter, one
    that this file or transformers wrote, and every field of the metadata. A text that nobody wrote gives way to the new
    one, and so do the fields that this file writes.

    Args:
        earlier: As it was loaded.
        card: What would be written if there were none.
    """
    there, new = earlier.data.to_dict(), card.data.to_dict()
    text = earlier.text
    if _is_own(earlier) or _is_blank(earlier):
        # What another training was about is not true of this one.
        there = {key: value for key, value in there.items() if key not in ("datasets", "base_model", "model-index")}
        fields = there | new
        text = card.text
        if "license" in there and "license" not in new:
            sections = [section.replace(UNSTATED, _stated(there["license"])) for section in _split(card.text)]
            text = _signed(_joined(sections))
    else:
        fields = new | there
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
    Upload weights, config, code and a model card. A card that is in the repository already is filled in
    (`filled_in`); if there is none, `model_card` writes one.

    Args are those of `PreTrainedModel.push_to_hub`, and `license`, the identifier of the weights' license.

    Returns:
        What `huggingface_hub` says of the commit.
    """
    if has_adapter(model):
        # Only the adapter is uploaded, of which this card would say that it is a model.
        from transformers import PreTrainedModel

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


def save_pretrained(
    model: PreTrainedModel,
    save_directory: str | Path,
    is_main_process: bool = True,
    state_dict: dict | None = None,
    push_to_hub: bool = False,
    **kwargs,
):
    """
    `PreTrainedModel.save_pretrained`; with `push_to_hub`, the model goes to the Hub as by `push_to_hub`, whose
    arguments it takes too.
    """
    from transformers import PreTrainedModel

    upload = {name: kwargs.pop(name) for name in PUSH_ARGUMENTS if push_to_hub and name in kwargs}
    PreTrainedModel.save_pretrained(model, save_directory, is_main_process, state_dict, **kwargs)
    if push_to_hub and is_main_process:
        shared = {name: kwargs[name] for name in ("token", "max_shard_size") if name in kwargs}
        model.push_to_hub(upload.pop("repo_id", None) or Path(save_directory).resolve().name, **shared, **upload)
    trainer = sys.modules.get("transformers.trainer")
    if trainer is not None and trainer.Trainer.create_model_card is not create_model_card:
        # A Trainer saves its model before it writes a card.
        create_model_card.of_other_models = trainer.Trainer.create_model_card
        trainer.Trainer.create_model_card = create_model_card


def create_model_card(trainer: Trainer, *args, **kwargs):
    """`Trainer.create_model_card`, which for a gMLP writes the card of this file, with what the trainer knows."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    if has_adapter(model) or not any(parent.__name__ in TASKS for parent in type(model).__mro__):
        create_model_card.of_other_models(trainer, *args, **kwargs)
    elif trainer.is_world_process_zero():
        folder = Path(trainer.args.output_dir)
        datasets = kwargs.get("dataset_tags") or []
        record = TrainingRecord(
            dataset=str(kwargs.get("dataset") or ""),
            hyperparameters=hyperparameters(trainer),
            metrics=next((entry for entry in reversed(trainer.state.log_history) if "eval_loss" in entry), {}),
            dataset_id=datasets if isinstance(datasets, str) else next(iter(datasets), None),
            base_model=kwargs.get("finetuned_from"),
            language=kwargs.get("language"),
        )
        tags = kwargs.get("tags")
        name = trainer.hub_model_id or folder.resolve().name
        tags = [tags] if isinstance(tags, str) else tags
        card = model_card(model, name, training=record, tags=tags, license=kwargs.get("license"))
        write_trainer_card(trainer, card)


def has_adapter(model: PreTrainedModel) -> bool:
    """Whether `model.add_adapter` or `model.load_adapter` was called: then only adapters are saved."""
    return getattr(model, "_hf_peft_config_loaded", False)


def hyperparameters(trainer: Trainer) -> dict[str, object]:
    """What a card says of how a Trainer trained."""
    args, state = trainer.args, trainer.state
    values = {key: getattr(args, key, None) for key in HYPERPARAMETERS}
    return {
        "steps": state.global_step,
        "epochs": round(state.epoch or 0.0, 2),
        "global batch size": trainer.get_total_train_batch_size(args),
        "precision": "bf16" if args.bf16 else "fp16" if args.fp16 else "fp32",
    } | {key: getattr(value, "value", value) for key, value in values.items() if value is not None}


def write_trainer_card(trainer: Trainer, card: ModelCard, *, pushing: bool = True):
    """
    Writes README.md into a Trainer's output folder, with what the card there says.

    Args:
        pushing: If the folder is for the Hub: with what the card in the repository says, too. Where one of the two
            cannot be read, none is uploaded.
    """
    folder = Path(trainer.args.output_dir)
    readme = folder / "README.md"
    earlier = [readme if readme.is_file() else None]
    if pushing := pushing and trainer.hub_model_id is not None:
        api = HfApi(token=trainer.args.hub_token)
        earlier.append(_repository_card(api, trainer.hub_model_id, trainer.args.hub_revision))
    if not write_card(card, folder, *earlier) and pushing and readme.is_file():
        # A Trainer uploads all but what begins so.
        readme.replace(folder / "_README.md")


def write_card(card: ModelCard, folder: Path, *earlier: Path | None) -> bool:
    """
    Writes README.md into a folder, with what earlier cards say, the last one above all. If one of them cannot be read,
    nothing is written.

    Returns:
        Whether it was written.
    """
    for path in filter(None, earlier):
        try:
            card = filled_in(ModelCard.load(path, ignore_metadata_errors=True), card)
        except (ValueError, TypeError, AttributeError, yaml.YAMLError) as error:
            logger.warning("The card that is there cannot be read, and stays as it is: %s", error)
            return False
    partial = folder / "README.md.partial"
    partial.write_text(str(card), encoding="utf-8")
    partial.replace(folder / "README.md")
    return True


def _repository_card(api: HfApi, repo_id: str, revision: str | None) -> Path | None:
    """The card that a repository has, if it has one."""
    try:
        return Path(api.hf_hub_download(repo_id, "README.md", revision=revision))
    except LocalEntryNotFoundError:
        # The Hub did not answer: it may have one.
        raise
    except EntryNotFoundError:
        return None


def _card_of_origin(model: PreTrainedModel) -> ModelCard | None:
    """The card in the folder that a model was loaded from, if it is still the same model."""
    folder = Path(model.config.name_or_path or "")
    if not model.config.name_or_path or not (folder / "README.md").is_file() or not _has_weights_of(model, folder):
        return None
    try:
        return ModelCard.load(folder / "README.md", ignore_metadata_errors=True)
    except (ValueError, TypeError, AttributeError, yaml.YAMLError):
        return None


def _has_weights_of(model: PreTrainedModel, folder: Path) -> bool:
    """Whether the weights of a model are, all of them, those in a folder, and its sizes, too."""
    import torch
    from safetensors import SafetensorError, safe_open

    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        files = [safe_open(path, framework="pt") for path in sorted(folder.glob("*.safetensors"))]
    except (OSError, ValueError, SafetensorError):
        return False
    if config.get("architectures") != [type(model).__name__]:
        return False
    own = json.loads(model.config.to_json_string(use_diff=False))
    if any(own.get(key) != value for key, value in config.items() if key in SAME_FIELDS):
        return False
    weights, found = model.state_dict(), set()
    for file in files:
        for key in file.keys():
            weight = weights.get(key)
            if weight is None or weight.is_meta:
                return False
            saved = file.get_tensor(key)
            if saved.shape != weight.shape or not torch.equal(saved.to(weight.dtype), weight.detach().cpu()):
                return False
            found.add(key)
    # Tied weights are in the file once.
    tied = set(getattr(model, "all_tied_weights_keys", None) or {})
    return bool(found) and not {key for key in weights if key not in found} - tied


def _is_own(card: ModelCard) -> bool:
    """Whether the text of a card is one that this file wrote, unchanged."""
    body, _, line = card.text.strip().rpartition("\n")
    return line == _signature(body.strip())


def _is_blank(card: ModelCard) -> bool:
    """Whether the text of a card is the form that transformers uploads with a tokenizer or a processor, unchanged."""
    line = "This is the model card of a 🤗 transformers model that has been pushed on the Hub. "
    if line not in card.text:
        return False
    description = f"{line}This model card has been automatically generated."
    form = ModelCard.from_template(ModelCardData(), model_description=description)
    return card.text.strip() == form.text.strip()


def _signed(text: str) -> str:
    return f"{text.strip()}\n\n{_signature(text.strip())}\n"


def _signature(text: str) -> str:
    return f"<!-- hf_gmlp {hashlib.sha256(text.encode()).hexdigest()[:16]} -->"


def _stated(license: object) -> str:
    return f"The weights: {_cell(license)}." if license else UNSTATED


def _joined(sections: list[str]) -> str:
    return "\n\n".join(section.strip() for section in sections)


def _split(text: str) -> list[str]:
    """The sections of a text of this file, without its signature."""
    body = text.strip().rpartition("\n")[0]
    return re.split(r"\n(?=## )", body)


def _cell(value: object) -> str:
    """A name within Markdown, as text: it starts no cell, no line, no tag and no emphasis."""
    text = " ".join(str(value).split())
    return re.sub(r"([\\`*\[<|])", r"\\\1", text)


def preset_name(config) -> str | None:
    """The named architecture of the paper that a config has, if it has one (and the package's presets are at hand)."""
    for path in sorted((Path(__file__).parent / "presets").glob("*/config.json")):
        fields = json.loads(path.read_text(encoding="utf-8"))
        fields.pop("drop_path_rate", None)
        if all(getattr(config, key, None) == value for key, value in fields.items()):
            return path.parent.name
    return None


def _task(model) -> tuple[str, str, str, str]:
    """The entry in TASKS of a model's class, or of the class that it was made from."""
    return next(TASKS[parent.__name__] for parent in type(model).__mro__ if parent.__name__ in TASKS)


def _family(config) -> str:
    return "aMLP" if config.attention_size else "gMLP"


def _card_data(model, name, training, tags, license) -> ModelCardData:
    pipeline_tag, task, _, _ = _task(model)
    results = None
    if training is not None and training.metrics:
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
    language = training.language if training is not None else None
    # The example is English.
    example = _example(pipeline_tag).partition('", ')[0].strip('"') if language == "en" else ""
    return ModelCardData(
        language=language,
        license=license,
        base_model=training.base_model if training is not None else None,
        library_name="transformers",
        pipeline_tag=pipeline_tag,
        tags=list(dict.fromkeys([_family(model.config).lower(), "arxiv:2105.08050", *(tags or [])])),
        datasets=[training.dataset_id] if training is not None and training.dataset_id else None,
        model_name=name,
        eval_results=results,
        **({"widget": [{"text": example}]} if example and pipeline_tag in WIDGETS else {}),
    )


def _introduction(model, name: str) -> str:
    _, task, _, _ = _task(model)
    family = _family(model.config)
    attention = (
        f"blocks in which a static projection over the tokens gates the channels, helped by one attention head of "
        f"width {model.config.attention_size}"
        if model.config.attention_size
        else "blocks in which a static projection over the tokens gates the channels, without self-attention"
    )
    return f"# {_cell(name)}\n\nThis {task} is an {family}".replace("an gMLP", "a gMLP") + (
        f", the architecture of [Pay Attention to MLPs]({PAPER}): {attention}."
    )


def _architecture(model) -> str:
    config = model.config
    parameters = sum(parameter.numel() for parameter in model.parameters())
    rows = [
        ("preset", preset_name(config) or "none of the paper's, sizes below"),
        ("parameters", f"{parameters / 1e6:.2f} M"),
        ("blocks L", config.num_hidden_layers),
        ("width d_model", config.hidden_size),
        ("width inside a block d_ffn", config.intermediate_size),
        ("spatial gating", GATINGS.get(config.spatial_gating, config.spatial_gating)),
        ("spatial weights", "Toeplitz (2n - 1 per block)" if config.toeplitz else "dense (n x n per block)"),
        ("tiny attention", f"one head of width {config.attention_size}" if config.attention_size else "none"),
        ("tokens n", config.max_position_embeddings),
    ]
    if config.model_type == "gmlp_vision":
        rows += [("image size", config.image_size), ("patch size", config.patch_size), ("pooling", config.pooling)]
    else:
        rows += [
            ("direction", "causal: no token sees a later one" if config.is_causal else "both ways"),
            ("vocabulary", config.vocab_size),
            ("padding", "hidden" if config.mask_padding else "visible"),
            ("pooling", config.pooling),
        ]
    if type(model).__name__.endswith("Classification"):
        labels = [_cell(label) for label in config.id2label.values()]
        rows.append(("labels", ", ".join(labels[:10]) + (f" and {len(labels) - 10} more" if len(labels) > 10 else "")))
    table = "\n".join(f"| {key} | {value} |" for key, value in rows)
    return f"## Architecture\n\n| | |\n| --- | --- |\n{table}"


def _loading(model, name: str) -> str:
    pipeline_tag, _, auto_class, kind = _task(model)
    image = model.config.model_type == "gmlp_vision"
    processor, variable = ("AutoImageProcessor", "processor") if image else ("AutoTokenizer", "tokenizer")
    quoted = json.dumps(name, ensure_ascii=False)
    code = [
        f"from transformers import {auto_class}, {processor}",
        "",
        f"model = {auto_class}.from_pretrained({quoted}, trust_remote_code=True)",
        # A folder without a tokenizer class is asked for its model's, whose code it brings.
        f"{variable} = {processor}.from_pretrained({quoted}" + ("" if image else ", trust_remote_code=True") + ")",
    ]
    if kind:
        example = _example(pipeline_tag)
        argument = "image_processor" if kind == "image" else "tokenizer"
        code[0] += ", pipeline"
        code += [
            "",
            f'pipe = pipeline("{pipeline_tag}", model=model, {argument}={variable})',
            f"print(pipe({example}))",
        ]
    return (
        "## How to load\n\n```python\n" + "\n".join(code) + "\n```\n\n"
        "The model's code comes with the checkpoint. Where the package `hf_gmlp` is installed, `import hf_gmlp` "
        "replaces `trust_remote_code=True`. The checkpoint opens as any other Auto class too; a head that it does not "
        "have must then be trained."
    )


def _example(pipeline_tag: str) -> str:
    """The arguments of a call that shows a pipeline."""
    return {
        "fill-mask": '"The capital of France is [MASK]."',
        "text-generation": '"Once upon a time", max_new_tokens=5',
        "image-classification": '"picture.jpg"',
    }.get(pipeline_tag, '"A sentence to try."')


def _training(training: TrainingRecord | None) -> str:
    if training is None:
        return "## Training\n\nData, hyper-parameters and results were not recorded with this checkpoint."
    parts = [f"## Training\n\n**Data.** {_cell(training.dataset) if training.dataset else 'Not recorded.'}"]
    if training.command:
        # A flag may hold a fence of its own.
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", training.command)), default=0))
        parts.append(f"**Command.**\n\n{fence}bash\n{training.command}\n{fence}")
    if training.hyperparameters:
        rows = "\n".join(f"| {key} | {_cell(value)} |" for key, value in training.hyperparameters.items())
        parts.append(f"**Hyper-parameters.**\n\n| | |\n| --- | --- |\n{rows}")
    if training.metrics:
        rows = "\n".join(f"| {_cell(key)} | {value:.4g} |" for key, value in training.metrics.items())
        parts.append(f"## Results on held-out data\n\n| | |\n| --- | --- |\n{rows}")
    return "\n\n".join(parts)


def _limits(model) -> str:
    config = model.config
    if config.model_type == "gmlp_vision":
        text = (
            f"Images must be of size {config.image_size}, which the image processor sees to. "
            "`model.resize_image_size(...)` makes the model take another size; train it on after that."
        )
    else:
        generation = ", prompt and what is generated together" if type(model).__name__ == "GMLPForCausalLM" else ""
        text = (
            f"A sequence has at most {config.max_position_embeddings} tokens{generation}; padding goes on either side. "
            "`model.resize_position_embeddings(...)` makes room for more; train it on after that."
        )
    return f"## Limits\n\n{text} The model knows what its training data shows, with the biases of that data."


_CITATION = """## Citation

```bibtex
@article{liu2021pay,
  title   = {Pay Attention to {MLPs}},
  author  = {Liu, Hanxiao and Dai, Zihang and So, David R. and Le, Quoc V.},
  journal = {arXiv preprint arXiv:2105.08050},
  year    = {2021}
}
```"""
