"""The model card of a gMLP or aMLP: what it is, how to load it, and what it was trained on with what result."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from huggingface_hub import EvalResult, HfApi, ModelCard, ModelCardData

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PAPER = "https://arxiv.org/abs/2105.08050"
DEFAULT_LICENSE = "apache-2.0"

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
    "GMLPForImageClassification": (
        "image-classification",
        "image classifier",
        "AutoModelForImageClassification",
        "image",
    ),
}
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


def model_card(
    model: PreTrainedModel,
    name: str,
    *,
    training: TrainingRecord | None = None,
    tags: list[str] | None = None,
    license: str | None = None,
) -> ModelCard:
    """
    The card of a model about to be saved or pushed.

    Args:
        model: A gMLP, with any head.
        name: Where it will be found: a repository such as "me/my-gmlp", or a folder.
        training: What it was trained on. Without it, the card in the folder that the model was loaded from is taken
            over if there is one; if not, the card says that the training was not recorded.
        tags: More tags for the Hub.
        license: The identifier of the weights' license; that of the card taken over, or Apache 2.0, by default.
    """
    earlier = Path(model.config.name_or_path or "") / "README.md"
    if training is None and model.config.name_or_path and earlier.is_file():
        card = ModelCard.load(earlier)
        if card.data.model_name:
            # Where this file wrote the name, and nowhere else: a folder may be called "out".
            old = card.data.model_name
            card.text = card.text.replace(f"# {old}\n", f"# {name}\n").replace(f'"{old}"', f'"{name}"')
            card.data.model_name = name
        card.data.tags = list(dict.fromkeys([*(card.data.tags or []), *(tags or [])]))
        if license is not None:
            card.text = card.text.replace(f"The weights: {card.data.license}.", f"The weights: {license}.")
            card.data.license = license
        return card
    data = _card_data(model, name, training, tags, license or DEFAULT_LICENSE)
    sections = [
        _introduction(model, name),
        _architecture(model),
        _loading(model, name),
        _training(training),
        _limits(model),
        f"## License\n\nThe weights: {data.license}. The code that travels with them: Apache 2.0.",
        _CITATION,
    ]
    return ModelCard(f"---\n{data.to_yaml()}\n---\n\n" + "\n\n".join(sections) + "\n")


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
    Upload weights, config, code and a model card that is filled in. If the model was loaded from a folder with a
    card in it (the training scripts write one), that card goes along; otherwise one is made from the config.

    Args are those of `PreTrainedModel.push_to_hub`, and `license`, the identifier of the weights' license.

    Returns:
        What `huggingface_hub` says of the commit.
    """
    api = HfApi(token=token)
    repo_id = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
    if revision is not None and not create_pr:
        api.create_branch(repo_id, branch=revision, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder, max_shard_size=max_shard_size)
        card = model_card(model, repo_id, tags=[*(model.model_tags or []), *(tags or [])], license=license)
        card.save(f"{folder}/README.md")
        return api.upload_folder(
            repo_id=repo_id,
            folder_path=folder,
            commit_message=commit_message or "Upload model",
            commit_description=commit_description,
            revision=revision,
            create_pr=create_pr,
        )


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
                dataset_name=training.dataset,
                metric_type=metric,
                metric_value=round(value, 6),
            )
            for metric, value in training.metrics.items()
        ]
    return ModelCardData(
        license=license,
        library_name="transformers",
        pipeline_tag=pipeline_tag,
        tags=list(dict.fromkeys([_family(model.config).lower(), "arxiv:2105.08050", *(tags or [])])),
        datasets=[training.dataset_id] if training is not None and training.dataset_id else None,
        model_name=name,
        eval_results=results,
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
    return f"# {name}\n\nThis {task} is an {family}".replace("an gMLP", "a gMLP") + (
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
        labels = [str(label) for label in config.id2label.values()]
        rows.append(("labels", ", ".join(labels[:10]) + (f" and {len(labels) - 10} more" if len(labels) > 10 else "")))
    table = "\n".join(f"| {key} | {value} |" for key, value in rows)
    return f"## Architecture\n\n| | |\n| --- | --- |\n{table}"


def _loading(model, name: str) -> str:
    pipeline_tag, _, auto_class, kind = _task(model)
    processor = "AutoImageProcessor" if model.config.model_type == "gmlp_vision" else "AutoTokenizer"
    variable = "processor" if processor == "AutoImageProcessor" else "tokenizer"
    code = [
        f"from transformers import {auto_class}, {processor}",
        "",
        f'model = {auto_class}.from_pretrained("{name}", trust_remote_code=True)',
        f'{variable} = {processor}.from_pretrained("{name}")',
    ]
    if kind:
        example = {
            "fill-mask": '"The capital of France is [MASK]."',
            "text-generation": '"Once upon a time", max_new_tokens=5',
            "image-classification": '"picture.jpg"',
        }.get(pipeline_tag, '"A sentence to try."')
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


def _training(training: TrainingRecord | None) -> str:
    if training is None:
        return "## Training\n\nData, hyper-parameters and results were not recorded with this checkpoint."
    parts = [f"## Training\n\n**Data.** {training.dataset}"]
    if training.command:
        parts.append(f"**Command.**\n\n```bash\n{training.command}\n```")
    if training.hyperparameters:
        rows = "\n".join(f"| {key} | {value} |" for key, value in training.hyperparameters.items())
        parts.append(f"**Hyper-parameters.**\n\n| | |\n| --- | --- |\n{rows}")
    if training.metrics:
        rows = "\n".join(f"| {key} | {value:.4g} |" for key, value in training.metrics.items())
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
