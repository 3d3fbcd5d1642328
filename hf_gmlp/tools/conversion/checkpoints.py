"""What all conversions share: reading tensors from files, checking them, and writing a checkpoint.

Each project is described by a table from the layers of this package to its own, with {} for the number of a block. A
file must hold exactly the tensors of the table, in the shapes of a model with the file's sizes.
"""

import argparse
import functools
import math
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedModel

from ...cards import model_card
from ...errors import InputError, need
from ...models.configuration_gmlp import GMLPVisionConfig, as_pair
from ...training.files import reading

Tensors = dict[str, torch.Tensor]

# Where training scripts put the weights. Averaged weights come first, as in timm.
WRAPPERS = ("state_dict_ema", "model_ema", "state_dict", "model")
# DistributedDataParallel and torch.compile put these in front of every name.
PREFIXES = re.compile(r"^(_orig_mod\.|module\.)+")
SAVE = "save a state dict, torch.save(model.state_dict(), ...)"

# What the tensors of other projects' text models do not show: bare embeddings, an untied decoder, PyTorch's epsilon.
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
TOKENIZER_NOTE = "There is no tokenizer: add the source's, and set its pad, bos and eos_token_id in config.json."
CLASSES_NOTE = "The classes have no names: LABEL_0 and so on (id2label and label2id in config.json)."


def read_tensors(path: str | Path) -> Tensors:
    """Read the tensors of a .safetensors file or of a file of torch.save, by name. Nothing in it is executed.

    The file may be a training script's checkpoint, with the weights under one of `WRAPPERS`.
    """
    # A corrupted file fails in many ways.
    with reading([path], f"tensors ({SAVE})"):
        if Path(path).suffix == ".safetensors":
            content: Any = safetensors.torch.load_file(path)
        else:
            # timm's training script saves its flags with the weights.
            with torch.serialization.safe_globals([argparse.Namespace]):
                content = torch.load(path, map_location="cpu", weights_only=True)
        if isinstance(content, dict):
            wrapped = [content[key] for key in WRAPPERS if isinstance(content.get(key), dict)]
            content = wrapped[0] if wrapped else content
        if not isinstance(content, dict) or not all(isinstance(tensor, torch.Tensor) for tensor in content.values()):
            raise ValueError("it does not hold tensors by name")
        return {PREFIXES.sub("", name): tensor for name, tensor in content.items()}


def shape(tensors: Tensors, name: str, dimensions: int, kind: str) -> torch.Size:
    """Return the shape of a tensor that every checkpoint of this kind has."""
    found = tensors[name].shape if name in tensors else torch.Size()
    if len(found) != dimensions or 0 in found:
        raise InputError(f"This is not a checkpoint of {kind}: it has no tensor {name} of {dimensions} dimensions.")
    return found


def image_fields(tokens: int, patch: Iterable[int], image_size: tuple[int, int] | None) -> dict:
    """Return `image_size` and `patch_size` of a config, for a number of patches and their height and width.

    If `image_size` is None, the image is taken as a square.
    """
    (rows, columns), side = patch, math.isqrt(tokens)
    height, width = image_size or (side * rows, side * columns)
    if height * width != tokens * rows * columns:
        patches = f"{tokens} patches of {rows}x{columns} pixels do not make {height}x{width} pixels"
        raise InputError(f"{patches}: pass another --image_size H W.")
    # One number if possible, as in the presets.
    sizes = {"image_size": (height, width), "patch_size": (rows, columns)}
    return {name: size[0] if size[0] == size[1] else size for name, size in sizes.items()}


def build(model_class: type[PreTrainedModel], tensors: Tensors, **fields) -> PreTrainedModel:
    """Build a model on the "meta" device, for its shapes, with as many blocks as the tensors have."""
    numbers = [re.search(r"\b(?:blocks|layers)\.(\d+)\.", name) for name in tensors]
    depth = max((int(number[1]) + 1 for number in numbers if number), default=0)
    try:
        config = model_class.config_class(num_hidden_layers=depth, **fields)
    except StrictDataclassError as error:
        raise InputError(f"The sizes do not make a gMLP: {error.__cause__ or error}") from error
    with torch.device("meta"):
        return model_class(config)


def source_names(layers: dict[str, str], names: Iterable[str]) -> dict[str, str]:
    """Map this package's names of tensors to those of the project that `layers` describes."""
    mapped = {}
    for name in names:
        layer, _, kind = name.rpartition(".")
        mapped[name] = layers[re.sub(r"\d+", "{}", layer)].format(*re.findall(r"\d+", layer)) + f".{kind}"
    return mapped


def check(model: PreTrainedModel, tensors: Tensors, layers: dict[str, str], kind: str, other: dict | None = None):
    """Raise an InputError if tensors are missing, unknown, of another shape than in the model or not floating-point.

    Args:
        other: Shapes that differ from the model's, or of tensors that it does not have.
    """
    state = model.state_dict()
    wanted = {name: state[own].shape for own, name in source_names(layers, state).items()} | (other or {})
    wanted = {name: list(size) for name, size in wanted.items()}
    have = {name: list(t.shape) if t.is_floating_point() else t.dtype for name, t in tensors.items()}
    wrong = [
        f"{name} ({have.get(name, 'nothing')} instead of {wanted.get(name, 'nothing')})"
        for name in sorted(have.keys() | wanted.keys())
        if have.get(name) != wanted.get(name)
    ]
    if wrong:
        raise InputError(f"{len(wrong)} tensors are not those of {kind}, such as {', '.join(wrong[:4])}.")


def fill(model: PreTrainedModel, tensors: Tensors, layers: dict[str, str]) -> PreTrainedModel:
    """Give a model of `build` copies of its weights in their own dtype (the widest of several), and set eval mode."""
    state = model.state_dict()
    dtype = functools.reduce(torch.promote_types, (tensor.dtype for tensor in tensors.values()))
    for own, name in source_names(layers, state).items():
        state[own] = tensors[name].reshape(state[own].shape).to(dtype, copy=True).contiguous()
    model.load_state_dict(state, strict=True, assign=True)
    return model.eval()


def check_new(out: str | Path):
    """Raise an InputError if there is a file with that name, or a folder that is not empty."""
    if Path(out).is_file() or (Path(out).is_dir() and any(Path(out).iterdir())):
        raise InputError(f"{out} exists already: choose a new name.")


def convert_file(
    source: str, out: str, kind: str, license: str | None, convert: Callable[[Tensors], tuple[PreTrainedModel, list]]
) -> list[str]:
    """Convert a file into a checkpoint with a function from tensors to a model and sentences about it."""
    check_new(out)
    model, notes = convert(read_tensors(source))
    return write_checkpoint(model, out, f"{kind}, {Path(source).name}", notes, license)


def write_checkpoint(model: PreTrainedModel, out: str, source: str, notes: list[str], license: str | None) -> list[str]:
    """Write config, weights, code, card, and for images timm's processor for evaluation; return sentences about it.

    Args:
        source: What was converted, in words, for the card.
        notes: Sentences about the model, for the card.
    """
    processor = None
    if isinstance(model.config, GMLPVisionConfig):
        need("PIL")
        from ...processor import evaluation_processor

        half = [0.5] * model.config.num_channels
        processor = evaluation_processor(as_pair(model.config.image_size), mean=half, std=half)
        if not hasattr(processor, "crop_pct"):
            notes = [*notes, "Images are resized to the full image size, without timm's crop of the center."]
    # A sentence, and a list.
    origin = f"The weights were converted from {source}; they were not trained with hf_gmlp.\n"
    card = model_card(model, Path(out).name, license=license or "unknown", source="\n- ".join([origin, *notes]))
    model.save_pretrained(out)
    card.save(Path(out, "README.md"))
    if processor is not None:
        processor.save_pretrained(out)
    if not license:
        notes = [*notes, "The license of the weights is unknown, as the card says (--license)."]
    return [f"{out}: open it with {model._auto_class}.", *notes]
