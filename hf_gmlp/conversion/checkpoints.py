"""What all conversions share: reading tensors from files, checking them, and writing a checkpoint.

A table from the layers of this package to those of another project, with {} for the number of a block, describes the
project. A file must hold exactly the tensors of the table, in the shapes of a model with the file's sizes.
"""

import argparse
import functools
import math
import pickle
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedModel
from transformers.image_processing_utils import BaseImageProcessor

from ..cards import model_card
from ..errors import InputError, first_line, need
from ..models.configuration_gmlp import GMLPVisionConfig, as_pair

# Where training scripts put the weights in their checkpoints. Averaged weights come first, as in timm.
WRAPPERS = ("state_dict_ema", "model_ema", "state_dict", "model")
# DistributedDataParallel and torch.compile put these in front of every name.
PREFIXES = re.compile(r"^(_orig_mod\.|module\.)+")
SAVE = "save a state dict: torch.save(model.state_dict(), ...)"

# Properties of other projects' text models that their tensors do not show: blocks on bare embeddings, an untied
# decoder, PyTorch's epsilon.
TEXT_FIELDS = {
    "type_vocab_size": 0,
    "toeplitz": False,
    "mlm_transform": False,
    "tie_word_embeddings": False,
    "layer_norm_eps": 1e-5,
    "spatial_layer_norm_eps": 1e-5,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
TOKENIZER_NOTE = (
    "There is no tokenizer. Use the one that the source was trained with, and set pad_token_id, bos_token_id and "
    "eos_token_id in config.json, which the source does not contain."
)
CLASSES_NOTE = "The classes have no names: LABEL_0 and so on (id2label and label2id in config.json)."
# How timm prepares images for its gMLPs: the defaults of its mlp_mixer.py.
PREPARATION = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5), "crop_pct": 0.875, "interpolation": "bicubic"}
RESAMPLING = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3}


@dataclass
class Source:
    """The tensors of another project's checkpoint, the path that they come from, and the kind of model expected."""

    tensors: dict[str, torch.Tensor]
    path: str
    kind: str

    def shape(self, name: str, dimensions: int) -> torch.Size:
        """Returns the shape of a tensor, or raises an InputError if there is none with that name and dimensionality."""
        wrong = f"{self.path} is not a checkpoint of {self.kind}:"
        if name not in self.tensors:
            raise InputError(f"{wrong} it has no tensor {name}; it has {_few(list(self.tensors))}.")
        shape = self.tensors[name].shape
        if len(shape) != dimensions or 0 in shape:
            raise InputError(f"{wrong} its tensor {name} has shape {list(shape)}, not {dimensions} dimensions.")
        return shape

    def image_fields(self, tokens: int, patch: Iterable[int], image_size: tuple[int, int] | None) -> dict:
        """
        Returns the `image_size` and `patch_size` of a config, for a number of patches and their height and width. The
        image is taken as a square if `image_size`, its height and width, is None.

        Raises:
            InputError: If the patches do not make such an image.
        """
        (rows, columns), side = patch, math.isqrt(tokens)
        patches = f"{self.path} is for images of {tokens} patches of {rows}x{columns} pixels"
        if image_size is None and side * side != tokens:
            raise InputError(f"{patches}, which are not a square: give their size with --image_size H W.")
        height, width = image_size or (side * rows, side * columns)
        if height * width != tokens * rows * columns:
            raise InputError(f"{patches}, which do not make {height}x{width} pixels: give another --image_size.")
        # One number if possible, as in the presets.
        return {
            "image_size": height if height == width else (height, width),
            "patch_size": rows if rows == columns else (rows, columns),
        }

    def build(self, model_class: type[PreTrainedModel], blocks: str, **fields) -> PreTrainedModel:
        """
        Returns a model on the "meta" device, with the expected shapes. `blocks` precedes the number of a block in the
        names of the tensors, such as "blocks."; `fields` are those of the config without the depth.

        Raises:
            InputError: If the sizes do not make a model.
        """
        numbers = [re.match(rf"{re.escape(blocks)}(\d+)\.", name) for name in self.tensors]
        depth = max((int(number[1]) + 1 for number in numbers if number), default=0)
        try:
            config = model_class.config_class(num_hidden_layers=depth, **fields)
        except StrictDataclassError as error:
            raise InputError(f"{self.path} has sizes that do not make a gMLP: {error.__cause__ or error}") from error
        with torch.device("meta"):
            return model_class(config)

    def check(self, expected: dict[str, Iterable[int]]):
        """Raises an InputError if tensors are missing, unknown, of a wrong shape or not floating-point."""
        shapes = {name: list(tensor.shape) for name, tensor in self.tensors.items()}
        known = {name: list(shape) for name, shape in expected.items() if name in shapes}
        findings = {
            "missing": [name for name in expected if name not in shapes],
            "unknown": [name for name in shapes if name not in expected],
            "of a wrong shape": [
                f"{name} {shapes[name]} instead of {shape}" for name, shape in known.items() if shapes[name] != shape
            ],
            "not floating-point": [name for name in known if not self.tensors[name].is_floating_point()],
        }
        faults = [f"{len(names)} {what} ({_few(names)})" for what, names in findings.items() if names]
        if faults:
            raise InputError(f"{self.path} does not have the tensors of {self.kind}: {'; '.join(faults)}.")


def read_tensors(path: str | Path) -> dict[str, torch.Tensor]:
    """
    Returns the tensors of a .safetensors file or of a file of torch.save (.pth, .pt, .bin), by name. The latter may be
    a training script's checkpoint, with the weights under one of `WRAPPERS`; nothing in it is executed.

    Raises:
        InputError: If there is no such file, it cannot be read, or it does not hold tensors by name.
    """
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path} is a folder: name the file of weights in it.")
    if not path.is_file():
        raise InputError(f"There is no file {path}.")
    if path.suffix == ".safetensors":
        try:
            content = safetensors.torch.load_file(path)
        except (OSError, safetensors.SafetensorError) as error:
            raise InputError(f"{path} cannot be read as safetensors: {error}") from error
    else:
        content = _read_pickle(path)
    if isinstance(content, dict):
        content = next((content[key] for key in WRAPPERS if isinstance(content.get(key), dict)), content)
    if not isinstance(content, dict) or not content or not all(isinstance(name, str) for name in content):
        raise InputError(f"{path} does not hold tensors by name: {SAVE}.")
    strange = [name for name, value in content.items() if not isinstance(value, torch.Tensor)]
    if strange:
        raise InputError(f"{path} holds more than tensors ({_few(strange)}): {SAVE}.")
    return {PREFIXES.sub("", name): tensor for name, tensor in content.items()}


def _read_pickle(path: Path) -> object:
    """Returns the content of a file of torch.save: tensors, plain Python values and argparse's flags."""
    try:
        # timm's training script saves its flags with the weights.
        with torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        try:
            classes = torch.serialization.get_unsafe_globals_in_checkpoint(path)
        # The file decides what is raised here.
        except Exception:
            classes = []
        if not classes:
            raise InputError(f"{path} cannot be read as a file of torch.save.") from error
        raise InputError(
            f"{path} holds objects ({_few(classes)}), and opening them could run foreign code. If you trust the file, "
            f"load it and {SAVE}."
        ) from error
    # A damaged file fails in many ways.
    except Exception as error:
        raise InputError(f"{path} cannot be read as a file of torch.save: {first_line(error)}") from error


def names_in(layers: dict[str, str], names: Iterable[str]) -> dict[str, str]:
    """Maps this package's names of tensors to those of the project that `layers` describes."""
    found = {}
    for name in names:
        layer, _, kind = name.rpartition(".")
        found[name] = layers[re.sub(r"\d+", "{}", layer)].format(*re.findall(r"\d+", layer)) + f".{kind}"
    return found


def fill(model: PreTrainedModel, tensors: dict[str, torch.Tensor]) -> PreTrainedModel:
    """
    Gives a model of `Source.build` its weights, by this package's names, as copies in their own dtype (the widest, if
    there are several), and sets eval mode.
    """
    dtype = functools.reduce(torch.promote_types, (tensor.dtype for tensor in tensors.values()))
    tensors = {name: tensor.to(dtype, copy=True).contiguous() for name, tensor in tensors.items()}
    model.load_state_dict(tensors, strict=True, assign=True)
    return model.eval()


def image_processor(config: GMLPVisionConfig, preparation: dict = PREPARATION) -> BaseImageProcessor:
    """Returns the image processor that does what timm does for evaluation; for `preparation`, see `PREPARATION`."""
    need("PIL")
    # Imports Pillow, which other conversions do not need.
    from ..data.processor import evaluation_processor

    mean, std = preparation["mean"], preparation["std"]
    if len(mean) != config.num_channels:
        mean, std = mean[:1] * config.num_channels, std[:1] * config.num_channels
    return evaluation_processor(
        as_pair(config.image_size),
        crop_pct=preparation["crop_pct"],
        resample=RESAMPLING[preparation["interpolation"]],
        mean=mean,
        std=std,
        # For timm's exact pixels, and because a conversion needs no torchvision.
        pillow=True,
    )


def check_new(out: str | Path):
    """Raises an InputError if there is a file with that name, or a folder that is not empty."""
    out = Path(out)
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise InputError(f"{out} exists already: choose a new name.")


def convert(model_from: Callable, kind: str, source: str, out: str, license: str | None) -> list[str]:
    """
    Converts a file into a checkpoint: a new folder with config, weights, code, card and, for images, an image
    processor. Returns sentences about it.

    Args:
        model_from: Makes a model and sentences about it from tensors and their path.

    Raises:
        InputError: If the source cannot be read or converted, or `out` is not new.
    """
    check_new(out)
    model, notes = model_from(read_tensors(source), source)
    processor = image_processor(model.config) if isinstance(model.config, GMLPVisionConfig) else None
    return write_checkpoint(model, out, f"{kind}, {Path(source).name}", notes, license, processor)


def write_checkpoint(
    model: PreTrainedModel,
    out: str | Path,
    source: str,
    notes: list[str],
    license: str | None,
    processor: BaseImageProcessor | None = None,
) -> list[str]:
    """Writes config, weights, code, a card that names the source (in words), and the image processor of an image model.
    Returns sentences about the result."""
    out = Path(out)
    # A sentence, and a list.
    origin = f"The weights were converted from {source}; they were not trained with hf_gmlp.\n"
    card = model_card(model, out.name, license=license or "unknown", source="\n- ".join([origin, *notes]))
    try:
        model.save_pretrained(out)
        card.save(out / "README.md")
        if processor is not None:
            processor.save_pretrained(out)
    except OSError as error:
        raise InputError(f"{out} cannot be written: {error}") from error
    if not license:
        notes = [*notes, "The license of the weights is unknown, as the card says (--license)."]
    return [f"{out}: {summary(model)}. Open it with {model._auto_class}.", *notes]


def summary(model: PreTrainedModel) -> str:
    """Returns the sizes of a model in words."""
    config = model.config
    attention = f", attention {config.attention_size}" if config.attention_size else ""
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return (
        f"{config.num_hidden_layers} blocks, d_model {config.hidden_size}, d_ffn {config.intermediate_size}, "
        f"n {config.max_position_embeddings}{attention}, {parameters / 1e6:.2f} M parameters"
    )


def _few(names: list[str], count: int = 4) -> str:
    return ", ".join(names[:count]) + (f" and {len(names) - count} more" if len(names) > count else "")
