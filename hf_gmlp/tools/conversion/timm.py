"""Converts timm's gMLPs (`gmlp_ti16_224`, `gmlp_s16_224`, `gmlp_b16_224`) into image classifiers, and back."""

import functools
import math
from collections import Counter
from pathlib import Path

import safetensors.torch
from transformers import AutoModelForImageClassification, PreTrainedModel

from ...errors import InputError, first_line, need
from ...loading import LOADING_ERRORS, open_model
from ...models.modeling_gmlp import GMLPForImageClassification
from . import checkpoints
from .checkpoints import Tensors

KIND = "a gMLP of timm"
# Layer of this package -> layer of timm.
LAYERS = {
    "model.embeddings.projection": "stem.proj",
    "model.layers.{}.norm": "blocks.{}.norm",
    "model.layers.{}.proj_in": "blocks.{}.mlp_channels.fc1",
    "model.layers.{}.spatial_gating_unit.norm": "blocks.{}.mlp_channels.gate.norm",
    "model.layers.{}.spatial_gating_unit.proj": "blocks.{}.mlp_channels.gate.proj",
    "model.layers.{}.proj_out": "blocks.{}.mlp_channels.fc2",
    "model.norm": "norm",
    "classifier": "head",
}
# Properties of timm's gMLPs that its checkpoints do not show.
FIXED = {
    "spatial_gating": "split",
    "toeplitz": False,
    "spatial_heads": 1,
    "attention_size": 0,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-6,
    "spatial_layer_norm_eps": 1e-5,
    "stem": "patch",
    "pooling": "mean",
}


def model_from_timm(tensors: Tensors) -> PreTrainedModel:
    """Convert a state dict of timm into a GMLPForImageClassification. All sizes come from the tensors."""
    shape = functools.partial(checkpoints.shape, tensors, kind=KIND)
    hidden_size, channels, patch, _ = shape("stem.proj.weight", 4)
    # The patches of a square image. With other images, the shapes of W and b do not fit.
    side = math.isqrt(shape("blocks.0.mlp_channels.gate.proj.bias", 1)[0])
    sizes = {
        "hidden_size": hidden_size,
        "intermediate_size": shape("blocks.0.mlp_channels.fc1.weight", 2)[0],
        "image_size": side * patch,
        "patch_size": patch,
        "num_channels": channels,
        "num_labels": shape("head.weight", 2)[0],
    }
    return checkpoints.load(GMLPForImageClassification, tensors, LAYERS, KIND, **FIXED, **sizes)


def timm_state_dict(model: PreTrainedModel) -> Tensors:
    """Return weights by timm's names, or raise an InputError that says how a model differs from timm's gMLPs."""
    differing = {key: value for key, value in FIXED.items() if getattr(model.config, key, None) != value}
    if differing:
        have = ", ".join(f"{key}={getattr(model.config, key, None)!r}" for key in differing)
        fixed = ", ".join(f"{key}={value!r}" for key, value in differing.items())
        raise InputError(f"The model has {have}; timm's gMLPs have only {fixed}.")
    state = model.state_dict()
    return {name: state[own].contiguous() for own, name in checkpoints.source_names(LAYERS, state).items()}


def imagenet_labels() -> dict[int, str] | None:
    """Return the classes of ImageNet-1k, each with a unique name, as timm names them; None if it is not installed."""
    try:
        from timm.data import ImageNetInfo
    except ImportError:
        return None
    info = ImageNetInfo("imagenet-1k")
    names = info.label_descriptions()
    count = Counter(names)
    # A crane is a bird or a machine: WordNet's identifier distinguishes them.
    return {i: name if count[name] == 1 else f"{name} ({info.index_to_label_name(i)})" for i, name in enumerate(names)}


def convert_timm(source: str, out: str, *, license: str | None = None) -> list[str]:
    """Convert weights of timm into a checkpoint, and return sentences about it.

    Args:
        source: A file, or the name of a model, whose weights timm downloads.
        license: The identifier of the weights' license; by default, the one that timm states for a name.
    """
    # The image processor needs it.
    need("PIL")
    checkpoints.check_new(out)
    if Path(source).exists():
        tensors = checkpoints.read_tensors(source)
    else:
        need("timm")
        import timm

        try:
            pretrained = timm.create_model(source.removeprefix("timm/"), pretrained=True)
        except LOADING_ERRORS as error:
            fault = f"{source} is neither a file nor the name of a model of timm with weights"
            raise InputError(f"{fault}: {first_line(error).rstrip('.')}.") from error
        tensors, license = pretrained.state_dict(), license or pretrained.pretrained_cfg.get("license")
    model = model_from_timm(tensors)
    notes = [checkpoints.CLASSES_NOTE]
    labels = imagenet_labels() if model.config.num_labels == 1000 else None
    if labels is not None:
        model.config.id2label = labels
        model.config.label2id = {label: i for i, label in labels.items()}
        notes = ["The 1,000 classes are assumed to be those of ImageNet-1k, and have the names that timm gives them."]
    return checkpoints.write_checkpoint(model, out, f"timm's weights {Path(source).name}", notes, license)


def convert_to_timm(checkpoint: str, out: str) -> list[str]:
    """Convert the checkpoint of an image classifier with pooling="mean" into a new .safetensors file for timm."""
    if Path(out).suffix != ".safetensors":
        raise InputError(f"{out} must be a file that ends in .safetensors.")
    checkpoints.check_new(out)
    model = open_model(AutoModelForImageClassification, checkpoint)
    weights = timm_state_dict(model)
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    Path(out).write_bytes(safetensors.torch.save(weights, metadata={"format": "pt"}))
    return [f"{out}: open it with timm.create_model(..., checkpoint_path={out!r})."]
