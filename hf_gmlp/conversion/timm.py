"""Converts timm's gMLPs (`gmlp_ti16_224`, `gmlp_s16_224`, `gmlp_b16_224`) into image classifiers, and back."""

from collections import Counter
from pathlib import Path

import safetensors.torch
import torch

from ..errors import InputError, first_line, need, not_installed
from ..loading import open_config, open_model
from ..models.configuration_gmlp import GMLPVisionConfig, as_pair
from ..models.modeling_gmlp import GMLPForImageClassification
from . import checkpoints

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
# timm's three gMLPs -> embed_dim.
NAMED = {"gmlp_ti16_224": 128, "gmlp_s16_224": 256, "gmlp_b16_224": 512}


def model_from_timm(
    tensors: dict[str, torch.Tensor], path: str = "the state dict", image_size: tuple[int, int] | None = None
) -> GMLPForImageClassification:
    """
    Converts a state dict of timm. All sizes come from the tensors.

    Args:
        path: Where the tensors come from, for messages.
        image_size: Height and width in pixels, required if the number of tokens is not a square number.

    Raises:
        InputError: If these are not the tensors of a gMLP of timm, or the image size does not fit them.
    """
    source = checkpoints.Source(tensors, path, KIND)
    hidden_size, channels, *patch = source.shape("stem.proj.weight", 4)
    model = source.build(
        GMLPForImageClassification,
        "blocks.",
        hidden_size=hidden_size,
        intermediate_size=source.shape("blocks.0.mlp_channels.fc1.weight", 2)[0],
        num_channels=channels,
        num_labels=source.shape("head.weight", 2)[0],
        **source.image_fields(source.shape("blocks.0.mlp_channels.gate.proj.bias", 1)[0], patch, image_size),
        **FIXED,
    )
    state = model.state_dict()
    names = checkpoints.names_in(LAYERS, state)
    source.check({name: state[own].shape for own, name in names.items()})
    return checkpoints.fill(model, {own: tensors[name] for own, name in names.items()})


def timm_state_dict(model: GMLPForImageClassification) -> dict[str, torch.Tensor]:
    """Returns weights by timm's names, or raises an InputError if the model differs from timm's gMLPs."""
    check_config(model.config, "the model")
    state = model.state_dict()
    return {name: state[own].contiguous() for own, name in checkpoints.names_in(LAYERS, state).items()}


def check_config(config: GMLPVisionConfig, name: str):
    """Raises an InputError if a config differs from that of timm's gMLPs, naming all differences."""
    if config.model_type != GMLPVisionConfig.model_type:
        raise InputError(f"{name} is of type {config.model_type!r}: timm's gMLPs are image models.")
    differing = {key: value for key, value in FIXED.items() if getattr(config, key) != value}
    if differing:
        found = ", ".join(f"{key}={getattr(config, key)!r}" for key in differing)
        fixed = ", ".join(f"{key}={value!r}" for key, value in differing.items())
        raise InputError(f"{name} has {found}; timm's gMLPs have only {fixed}.")


def imagenet_labels() -> dict[int, str] | None:
    """Returns the classes of ImageNet-1k, each with a unique name, as timm names them; None if it is not installed."""
    try:
        from timm.data import ImageNetInfo
    except ImportError:
        return None
    info = ImageNetInfo("imagenet-1k")
    names = info.label_descriptions()
    count = Counter(names)
    # A crane is a bird or a machine: WordNet's identifier distinguishes them.
    return {i: name if count[name] == 1 else f"{name} ({info.index_to_label_name(i)})" for i, name in enumerate(names)}


def pretrained(name: str) -> tuple[dict[str, torch.Tensor], dict, str | None]:
    """Returns tensors, preparation of images and license of a model of timm, or raises an InputError."""
    try:
        import timm
    except ImportError as error:
        raise InputError(f"There is no file {name}. For names of models: {not_installed('timm')}") from error
    name = name.removeprefix("timm/")
    if name.split(".")[0] not in NAMED:
        raise InputError(f"{name!r} is neither a file nor a gMLP of timm. Those are: {', '.join(NAMED)}.")
    try:
        model = timm.create_model(name, pretrained=True)
    # The network and timm's registry raise errors of many kinds.
    except Exception as error:
        raise InputError(
            f"timm does not provide the weights of {name!r} ({first_line(error)}): give a file of weights instead."
        ) from error
    preparation = {key: model.pretrained_cfg[key] for key in checkpoints.PREPARATION}
    return model.state_dict(), preparation, model.pretrained_cfg.get("license")


def convert_timm(
    source: str, out: str, *, image_size: tuple[int, int] | None = None, license: str | None = None
) -> list[str]:
    """
    Converts weights of timm, a name or a file, into a checkpoint: a new folder with config, weights, code, image
    processor and card. Returns sentences about it.

    Args:
        image_size: Height and width in pixels, for a file for images that are not square.
        license: The identifier of the weights' license; by default, the one that timm states for a name.

    Raises:
        InputError: If the source cannot be found, read or converted, or `out` is not new.
    """
    checkpoints.check_new(out)
    need("PIL")
    if Path(source).exists() or Path(source).suffix in ENDINGS:
        tensors, preparation, source_license = checkpoints.read_tensors(source), checkpoints.PREPARATION, None
    else:
        tensors, preparation, source_license = pretrained(source)
    model = model_from_timm(tensors, source, image_size)
    notes = [checkpoints.CLASSES_NOTE]
    labels = imagenet_labels() if model.config.num_labels == 1000 else None
    if labels is not None:
        model.config.id2label = labels
        model.config.label2id = {label: i for i, label in labels.items()}
        notes = ["The 1,000 classes are assumed to be those of ImageNet-1k, and have the names that timm gives them."]
    processor = checkpoints.image_processor(model.config, preparation)
    if not hasattr(processor, "crop_pct"):
        notes.append("Images are resized to the full image size, without timm's crop of the center.")
    origin = f"timm's weights {Path(source).name}"
    return checkpoints.write_checkpoint(model, out, origin, notes, license or source_license, processor)


def convert_to_timm(checkpoint: str, out: str) -> list[str]:
    """
    Converts the checkpoint of an image classifier with pooling="mean" (a folder or a name on the Hub) into a state dict
    of timm, in a new file with one of the `ENDINGS`. Returns sentences about it.

    Raises:
        InputError: If the checkpoint cannot be opened or differs from timm's gMLPs, or `out` is not such a file.
    """
    if Path(out).suffix not in ENDINGS:
        raise InputError(f"{out} must be a file that ends in {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}.")
    checkpoints.check_new(out)
    config = open_config(checkpoint)
    check_config(config, checkpoint)
    model, _ = open_model(GMLPForImageClassification, checkpoint)
    state = timm_state_dict(model)
    try:
        Path(out).parent.mkdir(parents=True, exist_ok=True)
        if out.endswith(".safetensors"):
            safetensors.torch.save_file(state, out, metadata={"format": "pt"})
        else:
            torch.save(state, out)
    except OSError as error:
        raise InputError(f"{out} cannot be written: {error}") from error
    return [f"{out}: {checkpoints.summary(model)}.", f"In timm: {timm_call(config, out)}"]


def timm_call(config: GMLPVisionConfig, out: str) -> str:
    """Returns the Python call that makes timm's model of the same sizes, and loads the file if it can."""
    image_size, channels = as_pair(config.image_size), config.num_channels
    task = f"img_size={image_size}, in_chans={channels}, num_classes={config.num_labels}"
    width, ratio = config.hidden_size, config.intermediate_size / config.hidden_size
    sizes = {"patch_size": as_pair(config.patch_size), "num_blocks": config.num_hidden_layers, "mlp_ratio": ratio}
    name = next((name for name, embed_dim in NAMED.items() if embed_dim == width), None)
    if name is not None and sizes == {"patch_size": (16, 16), "num_blocks": 30, "mlp_ratio": 6}:
        return f'timm.create_model("{name}", {task}, checkpoint_path="{out}")'
    arguments = ", ".join(f"{key}={value}" for key, value in (sizes | {"embed_dim": width}).items())
    return f"MlpMixer({task}, {arguments}, block_layer=SpatialGatingBlock, mlp_layer=GatedMlp) of timm.models.mlp_mixer"
