"""What all conversions share: reading tensors from files, loading them into a model, and writing a checkpoint.

Each project is described by a table from the layers of this package to its own, with {} for the number of a block. A
file must hold exactly the tensors of the table, in the shapes of a model with the file's sizes.
"""

import argparse
import functools
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from transformers import PreTrainedModel

from ...cards import model_card
from ...errors import InputError, first_line, need
from ...loading import LOADING_ERRORS
from ...models.configuration_gmlp import GMLPVisionConfig, as_pair

Tensors = dict[str, torch.Tensor]

# Keys under which training scripts save the weights. Averaged weights come first, as in timm.
WRAPPERS = ("state_dict_ema", "model_ema", "state_dict", "model")
# DistributedDataParallel and torch.compile put these in front of every name.
PREFIXES = re.compile(r"^(_orig_mod\.|module\.)+")
CLASSES_NOTE = "The classes have no names: LABEL_0 and so on (id2label and label2id in config.json)."


def read_tensors(path: str | Path) -> Tensors:
    """Read the tensors of a .safetensors file or of a file of torch.save, by name. Nothing in it is executed.

    The file may be a training script's checkpoint, with the weights under one of `WRAPPERS`.
    """
    try:
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
    except (*LOADING_ERRORS, LookupError) as error:
        advice = "save a state dict, torch.save(model.state_dict(), ...)"
        raise InputError(f"{path} cannot be read as tensors ({advice}): {first_line(error).rstrip('.')}.") from error


def shape(tensors: Tensors, name: str, dimensions: int, kind: str) -> torch.Size:
    """Return the shape of a tensor that every checkpoint of this kind has."""
    sizes = tensors[name].shape if name in tensors else torch.Size()
    if len(sizes) != dimensions or 0 in sizes:
        raise InputError(f"This is not a checkpoint of {kind}: it has no tensor {name} of {dimensions} dimensions.")
    return sizes


def source_names(layers: dict[str, str], names: Iterable[str]) -> dict[str, str]:
    """Map this package's names of tensors to those of the project that `layers` describes."""
    mapped = {}
    for name in names:
        layer, _, kind = name.rpartition(".")
        mapped[name] = layers[re.sub(r"\d+", "{}", layer)].format(*re.findall(r"\d+", layer)) + f".{kind}"
    return mapped


def load(
    model_class: type[PreTrainedModel], tensors: Tensors, layers: dict[str, str], kind: str, **fields
) -> PreTrainedModel:
    """Return a model with these weights in their own dtype (the widest of several), in eval mode.

    Args:
        tensors: The weights by the project's names, in the shapes of this package.
        layers: The table of the project.
        kind: The project's model in words.
        fields: Fields of the config, except the number of blocks.

    Raises:
        InputError: If tensors are missing, unknown, of another shape than in the model or not floating-point.
    """
    blocks = [int(number) for name in tensors for number in re.findall(r"\b(?:blocks|layers)\.(\d+)\.", name)]
    model = model_class(model_class.config_class(num_hidden_layers=max(blocks) + 1, **fields))
    state = model.state_dict()
    names = source_names(layers, state)
    expected = {names[own]: list(tensor.shape) for own, tensor in state.items()}
    actual = {name: list(t.shape) if t.is_floating_point() else t.dtype for name, t in tensors.items()}
    wrong = [
        f"{name} ({actual.get(name, 'nothing')} instead of {expected.get(name, 'nothing')})"
        for name in sorted(actual.keys() | expected.keys())
        if actual.get(name) != expected.get(name)
    ]
    if wrong:
        raise InputError(f"{len(wrong)} tensors are not those of {kind}, such as {', '.join(wrong[:4])}.")
    model.to(functools.reduce(torch.promote_types, (tensor.dtype for tensor in tensors.values())))
    model.load_state_dict({own: tensors[name] for own, name in names.items()})
    return model.eval()


def check_new(out: str | Path):
    """Raise an InputError if `out` is a file, or a folder that is not empty."""
    if Path(out).is_file() or (Path(out).is_dir() and any(Path(out).iterdir())):
        raise InputError(f"{out} exists already: choose a new name.")


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

        size, half = as_pair(model.config.image_size), [0.5] * model.config.num_channels
        processor = evaluation_processor(size, mean=half, std=half)
        assumed = f"images of {size[0]}x{size[1]} pixels, with values from -1 to 1 (preprocessor_config.json)"
        notes = [*notes, f"Assumed: {assumed}."]
    origin = f"The weights were converted from {source}; they were not trained with hf_gmlp.\n"
    card = model_card(model, Path(out).name, license=license or "unknown", source="\n- ".join([origin, *notes]))
    model.save_pretrained(out)
    card.save(Path(out, "README.md"))
    if processor is not None:
        processor.save_pretrained(out)
    if not license:
        notes = [*notes, "The license of the weights is unknown, as the card says (--license)."]
    return [f"{out}: open it with {model._auto_class}.", *notes]
