"""Converts timm's gMLPs (`gmlp_ti16_224`, `gmlp_s16_224`, `gmlp_b16_224`) into image classifiers, and back."""

import functools
from collections import Counter
from pathlib import Path

import safetensors.torch

from ...errors import InputError, need
from ...loading import open_config, open_model
from ...models.configuration_gmlp import GMLPVisionConfig
from ...models.modeling_gmlp import GMLPForImageClassification
from ...training.files import reading
from . import checkpoints
from .checkpoints import Tensors

KIND = "a gMLP of timm"
ENDINGS = (".safetensors", ".pth", ".pt", ".bin")
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


def model_from_timm(tensors: Tensors, image_size: tuple[int, int] | None = None) -> GMLPForImageClassification:
    """Convert a state dict of timm. All sizes come from the tensors.

    Args:
        tensors: The state dict.
        image_size: Height and width in pixels, required if the number of patches is not a square number.
    """
    shape = functools.partial(checkpoints.shape, tensors, kind=KIND)
    hidden_size, channels, *patch = shape("stem.proj.weight", 4)
    model = checkpoints.build(
        GMLPForImageClassification,
        tensors,
        hidden_size=hidden_size,
        intermediate_size=shape("blocks.0.mlp_channels.fc1.weight", 2)[0],
        num_channels=channels,
        num_labels=shape("head.weight", 2)[0],
        **checkpoints.image_fields(shape("blocks.0.mlp_channels.gate.proj.bias", 1)[0], patch, image_size),
        **FIXED,
    )
    checkpoints.check(model, tensors, LAYERS, KIND)
    return checkpoints.fill(model, tensors, LAYERS)


def timm_state_dict(model: GMLPForImageClassification) -> Tensors:
    """Return weights by timm's names, or raise an InputError if the model differs from timm's gMLPs."""
    check_config(model.config)
    state = model.state_dict()
    return {name: state[own].contiguous() for own, name in checkpoints.source_names(LAYERS, state).items()}


def check_config(config: GMLPVisionConfig):
    """Raise an InputError that names all differences if a config differs from that of timm's gMLPs."""
    fields = {"model_type": GMLPVisionConfig.model_type, **FIXED}
    differing = {key: value for key, value in fields.items() if getattr(config, key, None) != value}
    if differing:
        have = ", ".join(f"{key}={getattr(config, key, None)!r}" for key in differing)
        fixed = ", ".join(f"{key}={value!r}" for key, value in differing.items())
        raise InputError(f"The model has {have}; timm's gMLPs have only {fixed}.")


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


def convert_timm(
    source: str, out: str, *, image_size: tuple[int, int] | None = None, license: str | None = None
) -> list[str]:
    """Convert weights of timm into a checkpoint, and return sentences about it.

    Args:
        source: A file, or the name of a model, whose weights timm downloads.
        image_size: Height and width in pixels, for a file for images that are not square.
        license: The identifier of the weights' license; by default, the one that timm states for a name.
    """
    # The image processor needs it.
    need("PIL")
    checkpoints.check_new(out)
    if Path(source).exists() or Path(source).suffix in ENDINGS:
        tensors = checkpoints.read_tensors(source)
    else:
        need("timm")
        import timm

        with reading([source], "a file or as a name of timm with weights"):
            pretrained = timm.create_model(source.removeprefix("timm/"), pretrained=True)
        tensors, license = pretrained.state_dict(), license or pretrained.pretrained_cfg.get("license")
    model = model_from_timm(tensors, image_size)
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
    check_config(open_config(checkpoint))
    model = open_model(GMLPForImageClassification, checkpoint)
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    Path(out).write_bytes(safetensors.torch.save(timm_state_dict(model), metadata={"format": "pt"}))
    return [f"{out}: open it with timm.create_model(..., checkpoint_path={out!r})."]
