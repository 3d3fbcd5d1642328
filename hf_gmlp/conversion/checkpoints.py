"""What all conversions share: tensors out of files, the check that they are the right ones, and a checkpoint of ours.

A project is described by a table from our layers to its layers, with {} for the number of a block. The tensors of a
file must be those of the table, no more and no less, in the shapes that a model of ours with the file's sizes has.
"""

import argparse
import functools
import pickle
import re
from collections.abc import Iterable
from pathlib import Path

import safetensors.torch
import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedConfig, PreTrainedModel

from ..cards import model_card
from ..errors import InputError

# Where training scripts put the weights in their checkpoints, averaged weights first: timm's order.
WRAPPERS = ("state_dict_ema", "model_ema", "state_dict", "model")
# What DistributedDataParallel and torch.compile put in front of every name.
PREFIXES = re.compile(r"^(_orig_mod\.|module\.)+")

# What the text models of other projects are, and their tensors do not say: blocks on bare embeddings, an untied
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
    "There is no tokenizer: take the one that the source was trained with, and set pad_token_id, bos_token_id and "
    "eos_token_id in config.json, which the source does not tell."
)


def read_tensors(path: str | Path) -> dict[str, torch.Tensor]:
    """
    The tensors of a .safetensors file, or of a file of torch.save (.pth, .pt, .bin), by name. The latter may be a
    training script's checkpoint, with the weights under one of `WRAPPERS`; nothing in it is executed.

    Raises:
        InputError: If there is no such file, it cannot be read, or it holds no tensors by name.
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
    for wrapper in WRAPPERS:
        if isinstance(content, dict) and isinstance(content.get(wrapper), dict):
            content = content[wrapper]
            break
    if not isinstance(content, dict) or not content or not all(isinstance(name, str) for name in content):
        raise InputError(f"{path} holds no tensors by name; save a state dict: torch.save(model.state_dict(), ...).")
    strange = [name for name, value in content.items() if not isinstance(value, torch.Tensor)]
    if strange:
        raise InputError(
            f"{path} holds more than tensors ({_few(strange)}); save a state dict: torch.save(model.state_dict(), ...)."
        )
    return {PREFIXES.sub("", name): tensor for name, tensor in content.items()}


def _read_pickle(path: Path) -> object:
    """The content of a file of torch.save, if that is tensors, plain Python values and argparse's flags."""
    try:
        # timm's training script saves its flags beside the weights.
        with torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        try:
            classes = torch.serialization.get_unsafe_globals_in_checkpoint(path)
        # It raises what the file makes it raise, and only adds to what is said.
        except Exception:
            classes = []
        if not classes:
            raise InputError(f"{path} cannot be read as a file of torch.save.") from error
        raise InputError(
            f"{path} holds objects ({_few(classes)}) and not tensors alone; opening them could run foreign code. "
            f"Where you trust the file, save its weights alone: torch.save(model.state_dict(), ...)."
        ) from error
    # A damaged file fails in many ways.
    except Exception as error:
        raise InputError(f"{path} cannot be read as a file of torch.save: {_first_line(error)}") from error


def shape_of(tensors: dict[str, torch.Tensor], name: str, dimensions: int, path: str, kind: str) -> torch.Size:
    """
    The shape of a tensor that the sizes of the model are read from.

    Raises:
        InputError: If there is none of that name with so many dimensions.
    """
    if name not in tensors:
        raise InputError(f"{path} is no checkpoint of {kind}: it has no tensor {name}, but {_few(list(tensors))}.")
    shape = tensors[name].shape
    if len(shape) != dimensions or 0 in shape:
        raise InputError(
            f"{path} is no checkpoint of {kind}: its tensor {name} has shape {list(shape)}, and not {dimensions} "
            f"dimensions."
        )
    return shape


def depth_of(tensors: dict[str, torch.Tensor], blocks: str) -> int:
    """One more than the highest number behind `blocks`, such as "blocks.", in the names of the tensors."""
    numbers = [re.match(rf"{re.escape(blocks)}(\d+)\.", name) for name in tensors]
    return max((int(number[1]) + 1 for number in numbers if number), default=0)


def build(model_class: type[PreTrainedModel], path: str, **fields) -> PreTrainedModel:
    """
    A model without weights ("meta" device), whose shapes are the expected ones.

    Raises:
        InputError: If the sizes found in the file, or given with it, make no model.
    """
    try:
        config = model_class.config_class(**fields)
    except StrictDataclassError as error:
        raise InputError(f"{path} has sizes that make no gMLP: {error.__cause__ or error}") from error
    with torch.device("meta"):
        return model_class(config)


def names_in(layers: dict[str, str], names: Iterable[str]) -> dict[str, str]:
    """Our names of tensors -> those of the project that `layers` describes."""
    found = {}
    for name in names:
        layer, _, kind = name.rpartition(".")
        found[name] = layers[re.sub(r"\d+", "{}", layer)].format(*re.findall(r"\d+", layer)) + f".{kind}"
    return found


def check_tensors(tensors: dict[str, torch.Tensor], expected: dict[str, tuple[int, ...]], path: str, kind: str):
    """
    Raises:
        InputError: If tensors are missing, unknown, of another shape than expected or not of floating point.
    """
    wrong = [
        f"{name} {list(tensors[name].shape)} in place of {list(shape)}"
        for name, shape in expected.items()
        if name in tensors and tensors[name].shape != torch.Size(shape)
    ]
    findings = {
        "missing": [name for name in expected if name not in tensors],
        "unknown": [name for name in tensors if name not in expected],
        "of a wrong shape": wrong,
        "not of floating point": [
            name for name in expected if name in tensors and not tensors[name].is_floating_point()
        ],
    }
    said = [f"{len(names)} {what} ({_few(names)})" for what, names in findings.items() if names]
    if said:
        raise InputError(f"{path} does not have the tensors of {kind}: {'; '.join(said)}.")


def fill(model: PreTrainedModel, tensors: dict[str, torch.Tensor]) -> PreTrainedModel:
    """
    Gives a model of `build` its weights, by our names, as copies and in their own dtype (the widest, if several), and
    sets eval mode.
    """
    dtype = functools.reduce(torch.promote_types, (tensor.dtype for tensor in tensors.values()))
    tensors = {name: tensor.to(dtype, copy=True).contiguous() for name, tensor in tensors.items()}
    model.load_state_dict(tensors, strict=True, assign=True)
    return model.eval()


def check_new(out: str | Path):
    """
    Raises:
        InputError: If there is a file of that name, or a folder with something in it.
    """
    out = Path(out)
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise InputError(f"{out} exists already; choose a new name for what is to be written.")


def write_checkpoint(
    model: PreTrainedModel, out: str | Path, source: str, notes: list[str], license: str | None
) -> list[str]:
    """
    Writes config, weights, code and a model card that names the source.

    Args:
        source: What the weights were before, in words.
        notes: What somebody must know who uses them, in sentences.
        license: The identifier of the weights' license.

    Returns:
        What there is to say about the result, in sentences.
    """
    out = Path(out)
    said = "\n".join(f"- {note}" for note in notes)
    origin = f"The weights were converted from {source}; they were not trained by hf_gmlp.\n\n{said}".strip()
    card = model_card(model, out.name, license=license or "unknown", source=origin)
    try:
        model.save_pretrained(out)
        card.save(out / "README.md")
    except OSError as error:
        raise InputError(f"{out} cannot be written: {error}") from error
    report = [f"{out}: {summary(model)}. It opens with {model._auto_class}.", *notes]
    return report if license else [*report, "The license of the weights is not known: the card says so (--license)."]


def summary(model: PreTrainedModel) -> str:
    """The sizes of a model in words."""
    config: PreTrainedConfig = model.config
    attention = f", attention {config.attention_size}" if config.attention_size else ""
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return (
        f"{config.num_hidden_layers} blocks, d_model {config.hidden_size}, d_ffn {config.intermediate_size}, "
        f"n {config.max_position_embeddings}{attention}, {parameters / 1e6:.2f} M parameters"
    )


def _few(names: list[str], count: int = 4) -> str:
    """The first names, and how many more there are."""
    return ", ".join(names[:count]) + (f" and {len(names) - count} more" if len(names) > count else "")


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
