"""timm's gMLPs (`gmlp_ti16_224`, `gmlp_s16_224`, `gmlp_b16_224`) as ours, and ours as timm's."""

import math
from collections import Counter
from pathlib import Path

import safetensors.torch
import torch
from transformers import AutoConfig
from transformers.image_processing_utils import BaseImageProcessor

from ..errors import InputError, need, not_installed
from ..loading import open_model, reason
from ..models.configuration_gmlp import GMLPVisionConfig, as_pair
from ..models.modeling_gmlp import GMLPForImageClassification
from .checkpoints import (
    build,
    check_new,
    check_tensors,
    depth_of,
    fill,
    names_in,
    read_tensors,
    shape_of,
    summary,
    write_checkpoint,
)

KIND = "a gMLP of timm"
# Our layer -> timm's.
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
# What timm's gMLPs are, and no checkpoint of timm says.
FIXED = {
    "spatial_gating": "split",
    "toeplitz": False,
    "attention_size": 0,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-6,
    "spatial_layer_norm_eps": 1e-5,
    "pooling": "mean",
}
# How timm prepares images for them: the defaults of its file mlp_mixer.py.
PREPARATION = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5), "crop_pct": 0.875, "interpolation": "bicubic"}
RESAMPLING = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3}
# timm's name -> embed_dim, what its three gMLPs differ in.
NAMED = {"gmlp_ti16_224": 128, "gmlp_s16_224": 256, "gmlp_b16_224": 512}


def model_from_timm(
    tensors: dict[str, torch.Tensor], path: str = "the state dict", image_size: tuple[int, int] | None = None
) -> GMLPForImageClassification:
    """
    Our model with the weights of a state dict of timm's; all sizes are read from the tensors.

    Args:
        path: Where they come from, for messages.
        image_size: Height and width in pixels, needed when the number of tokens is no square number.

    Raises:
        InputError: If these are not the tensors of a gMLP of timm, or the image size does not fit them.
    """
    hidden_size, channels, *patch_size = shape_of(tensors, "stem.proj.weight", 4, path, KIND)
    intermediate_size = shape_of(tensors, "blocks.0.mlp_channels.fc1.weight", 2, path, KIND)[0]
    tokens = shape_of(tensors, "blocks.0.mlp_channels.gate.proj.bias", 1, path, KIND)[0]
    num_labels = shape_of(tensors, "head.weight", 2, path, KIND)[0]
    if image_size is None:
        side = math.isqrt(tokens)
        if side * side != tokens:
            raise InputError(
                f"{path} is for images of {tokens} patches, which make no square: say their size by --image_size H W."
            )
        image_size = (side * patch_size[0], side * patch_size[1])
    elif math.prod(image_size) != tokens * math.prod(patch_size):
        raise InputError(
            f"{path} is for images of {tokens} patches of {patch_size[0]}x{patch_size[1]} pixels, which do not make up "
            f"{image_size[0]}x{image_size[1]}: give another --image_size."
        )
    model = build(
        GMLPForImageClassification,
        path,
        hidden_size=hidden_size,
        num_hidden_layers=depth_of(tensors, "blocks."),
        intermediate_size=intermediate_size,
        # One number where one will do, as in the presets.
        image_size=image_size[0] if image_size[0] == image_size[1] else tuple(image_size),
        patch_size=patch_size[0] if patch_size[0] == patch_size[1] else tuple(patch_size),
        num_channels=channels,
        num_labels=num_labels,
        **FIXED,
    )
    ours = model.state_dict()
    theirs = names_in(LAYERS, ours)
    check_tensors(tensors, {theirs[name]: tensor.shape for name, tensor in ours.items()}, path, KIND)
    return fill(model, {name: tensors[theirs[name]] for name in ours})


def timm_state_dict(model: GMLPForImageClassification) -> dict[str, torch.Tensor]:
    """
    The weights of one of our models by timm's names, for `load_state_dict(..., strict=True)` of a gMLP of timm.

    Raises:
        InputError: If the model has something that timm's gMLPs have not.
    """
    check_config(model.config, "the model")
    state = model.state_dict()
    return {theirs: state[ours].contiguous() for ours, theirs in names_in(LAYERS, state).items()}


def check_config(config: GMLPVisionConfig, name: str):
    """
    Raises:
        InputError: If the config is not that of an image model in timm's form, naming all that differs.
    """
    if config.model_type != GMLPVisionConfig.model_type:
        raise InputError(f"{name} is of type {config.model_type!r}: timm has gMLPs for images only.")
    differing = [f"{key}={getattr(config, key)!r}" for key, value in FIXED.items() if getattr(config, key) != value]
    if differing:
        wanted = ", ".join(f"{key}={value!r}" for key, value in FIXED.items() if getattr(config, key) != value)
        raise InputError(f"{name} has {', '.join(differing)}; timm's gMLPs have {wanted} and nothing else.")


def image_processor(config: GMLPVisionConfig, preparation: dict) -> BaseImageProcessor:
    """
    The image processor that does what timm does for evaluation.

    Args:
        preparation: `mean`, `std`, `crop_pct` and `interpolation`, by timm's names.
    """
    # It imports Pillow, which weights for timm do not need.
    from ..data.processor import evaluation_processor

    mean, std = preparation["mean"], preparation["std"]
    if len(mean) != config.num_channels:
        mean, std = mean[:1] * config.num_channels, std[:1] * config.num_channels
    resample = RESAMPLING[preparation["interpolation"]]
    size = as_pair(config.image_size)
    # With Pillow, which is all that a conversion needs, and timm's own pixels.
    return evaluation_processor(
        size, crop_pct=preparation["crop_pct"], resample=resample, mean=mean, std=std, pillow=True
    )


def imagenet_labels() -> dict[int, str] | None:
    """The classes of ImageNet-1k as timm names them, each name once; `None` where timm is not installed."""
    try:
        from timm.data import ImageNetInfo
    except ImportError:
        return None
    info = ImageNetInfo("imagenet-1k")
    names = info.label_descriptions()
    count = Counter(names)
    # Cranes are birds and machines: WordNet's identifier tells them apart.
    return {i: name if count[name] == 1 else f"{name} ({info.index_to_label_name(i)})" for i, name in enumerate(names)}


def pretrained(name: str) -> tuple[dict[str, torch.Tensor], dict, str | None]:
    """
    Tensors, preparation of images and license of a model that timm downloads (or finds in the cache).

    Raises:
        InputError: If timm is not installed, has no gMLP of that name or no weights for it, or cannot get them.
    """
    try:
        import timm
    except ImportError as error:
        raise InputError(f"There is no file {name}, and for names of models {not_installed('timm')}") from error
    name = name.removeprefix("timm/")
    if name.split(".")[0] not in NAMED:
        raise InputError(f"{name!r} is neither a file nor a gMLP of timm, which are: {', '.join(NAMED)}.")
    try:
        model = timm.create_model(name, pretrained=True)
    # From the network and from timm's registry, of many kinds.
    except Exception as error:
        raise InputError(
            f"timm does not give the weights of {name!r}: {str(error).strip().splitlines()[0]} Where it has none, or "
            f"without a network, give a file of weights."
        ) from error
    preparation = {key: model.pretrained_cfg[key] for key in PREPARATION}
    return model.state_dict(), preparation, model.pretrained_cfg.get("license")


def convert_timm(
    source: str, out: str, *, image_size: tuple[int, int] | None = None, license: str | None = None
) -> list[str]:
    """
    Writes timm's weights as a checkpoint of ours: config, weights, code, image processor and card.

    Args:
        source: A name of timm's, or a file.
        out: A new folder.
        image_size: Height and width in pixels, where the file is for images that are not square.
        license: The identifier of the weights' license; by default what timm says, "unknown" of a file.

    Returns:
        What there is to say about the result, in sentences.

    Raises:
        InputError: If the source cannot be had, read or converted, or `out` is not new.
    """
    check_new(out)
    need("PIL")
    if Path(source).exists() or Path(source).suffix in (".safetensors", ".pth", ".pt", ".bin"):
        tensors, preparation, source_license = read_tensors(source), PREPARATION, None
    else:
        tensors, preparation, source_license = pretrained(source)
    model = model_from_timm(tensors, source, image_size)
    notes = []
    labels = imagenet_labels() if model.config.num_labels == 1000 else None
    if labels is not None:
        model.config.id2label = labels
        model.config.label2id = {label: i for i, label in labels.items()}
        notes.append("The 1,000 classes are taken for those of ImageNet-1k, and named as timm names them.")
    else:
        notes.append("The classes have no names: LABEL_0 and so on (id2label and label2id in config.json).")
    processor = image_processor(model.config, preparation)
    if not hasattr(processor, "crop_pct"):
        notes.append("Images are resized to the whole image size, without timm's crop of the center.")
    report = write_checkpoint(model, out, f"timm's weights {Path(source).name}", notes, license or source_license)
    processor.save_pretrained(out)
    return report


def convert_to_timm(checkpoint: str, out: str) -> list[str]:
    """
    Writes a checkpoint of ours as a state dict of timm's.

    Args:
        checkpoint: Folder or name on the Hub of an image classifier with pooling="mean".
        out: A new file, .safetensors, .pth, .pt or .bin.

    Returns:
        What there is to say about the result, in sentences.

    Raises:
        InputError: If there is no such checkpoint, timm cannot have it, or `out` is not new or of no such kind.
    """
    if Path(out).suffix not in (".safetensors", ".pth", ".pt", ".bin"):
        raise InputError(f"{out} is to be a file that ends in .safetensors, .pth, .pt or .bin.")
    check_new(out)
    try:
        config = AutoConfig.from_pretrained(checkpoint)
    except Exception as error:
        raise InputError(f"{checkpoint} cannot be opened: {reason(checkpoint, 'config.json', error)}.") from error
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
    return [f"{out}: {summary(model)}.", f"In timm: {timm_call(config, out)}"]


def timm_call(config: GMLPVisionConfig, out: str) -> str:
    """The Python call that makes timm's model of the same sizes, with the weights of the file where it can."""
    fields = {}
    if as_pair(config.image_size) != (224, 224):
        fields["img_size"] = as_pair(config.image_size)
    fields |= {"in_chans": config.num_channels} if config.num_channels != 3 else {}
    fields |= {"num_classes": config.num_labels} if config.num_labels != 1000 else {}
    for name, embed_dim in NAMED.items():
        sizes = (config.hidden_size, config.intermediate_size, config.num_hidden_layers, as_pair(config.patch_size))
        if sizes == (embed_dim, 6 * embed_dim, 30, (16, 16)):
            said = "".join(f", {key}={value}" for key, value in fields.items())
            return f'timm.create_model("{name}"{said}, checkpoint_path="{out}")'
    fields |= {
        "patch_size": as_pair(config.patch_size),
        "num_blocks": config.num_hidden_layers,
        "embed_dim": config.hidden_size,
        "mlp_ratio": config.intermediate_size / config.hidden_size,
    }
    said = ", ".join(f"{key}={value}" for key, value in fields.items())
    return f"MlpMixer({said}, block_layer=SpatialGatingBlock, mlp_layer=GatedMlp) of timm.models.mlp_mixer"
