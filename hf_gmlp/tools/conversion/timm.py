"""Conversion of timm's gMLPs (`gmlp_ti16_224`, `gmlp_s16_224`, `gmlp_b16_224`) into image classifiers."""

import functools
import math
from collections import Counter
from pathlib import Path

from transformers import PreTrainedModel

from ...errors import InputError, first_line, need
from ...loading import LOADING_ERRORS
from ...models.modeling_gmlp import GMLPForImageClassification
from . import checkpoints
from .checkpoints import Tensors

KIND = "a gMLP of timm"
# Names of layers: this package -> timm.
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


def model_from_timm(tensors: Tensors) -> PreTrainedModel:
    """Convert a state dict of timm into a GMLPForImageClassification, with all sizes from the tensors."""
    shape = functools.partial(checkpoints.shape, tensors, kind=KIND)
    hidden_size, channels, patch, _ = shape("stem.proj.weight", 4)
    # Images are assumed to be square. For other images, loading fails because W and b have other shapes.
    side = math.isqrt(shape("blocks.0.mlp_channels.gate.proj.bias", 1)[0])
    # Fields that are left out have the same defaults as in timm.
    fields = {
        "pooling": "mean",
        "hidden_size": hidden_size,
        "intermediate_size": shape("blocks.0.mlp_channels.fc1.weight", 2)[0],
        "image_size": side * patch,
        "patch_size": patch,
        "num_channels": channels,
        "num_labels": shape("head.weight", 2)[0],
    }
    return checkpoints.load(GMLPForImageClassification, tensors, LAYERS, KIND, **fields)


def imagenet_labels() -> dict[int, str] | None:
    """Return the classes of ImageNet-1k with timm's names, made unique; None if timm is not installed."""
    try:
        from timm.data import ImageNetInfo
    except ImportError:
        return None
    info = ImageNetInfo("imagenet-1k")
    names = info.label_descriptions()
    count = Counter(names)
    # WordNet's identifier distinguishes classes of the same name, such as the bird and the machine "crane".
    return {i: name if count[name] == 1 else f"{name} ({info.index_to_label_name(i)})" for i, name in enumerate(names)}


def convert_timm(source: str, out: str, *, license: str | None = None) -> list[str]:
    """Convert weights of timm into a checkpoint, and return sentences about it.

    Args:
        source: A file, or the name of a model, whose weights timm downloads.
        license: The identifier of the weights' license; by default, the one that timm states for a name.
    """
    # The image processor needs Pillow: fail before the weights are downloaded.
    need("PIL")
    checkpoints.check_new(out)
    if Path(source).exists():
        tensors = checkpoints.read_tensors(source)
    else:
        import timm

        try:
            pretrained = timm.create_model(source.removeprefix("timm/"), pretrained=True)
        except LOADING_ERRORS as error:
            fault = f"{source} is neither a file nor the name of a timm model with weights"
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
