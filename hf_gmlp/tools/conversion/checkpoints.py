"""Steps of all conversions: read tensors from a file, load them into a model, and write a checkpoint.

A table describes each project: names of layers in this package -> names in the project, with {} for the number of a
block. A file must hold exactly the tensors of the table, in the shapes of a model with the file's sizes.
"""

import functools
import re
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from transformers import PreTrainedModel

from ...cards import model_card
from ...errors import InputError, first_line
from ...loading import LOADING_ERRORS
from ...models.configuration_gmlp import GMLPVisionConfig, as_pair

Tensors = dict[str, torch.Tensor]

# Config fields of text models that their tensors do not determine.
TEXT_FIELDS = {
    "type_vocab_size": 0,
    "mlm_transform": False,
    "tie_word_embeddings": False,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
# Config fields of the blocks of all projects except timm.
LAYER_FIELDS = {"toeplitz": False, "layer_norm_eps": 1e-5, "spatial_layer_norm_eps": 1e-5}
TOKENIZER_NOTE = "There is no tokenizer: add the original one, and set pad_, bos_ and eos_token_id in config.json."
CLASSES_NOTE = "The classes have no names: LABEL_0 and so on (id2label and label2id in config.json)."


def read_tensors(path: str | Path) -> Tensors:
    """Return the tensors of a .safetensors file or of a file of torch.save, by name, without executing code in it."""
    try:
        if Path(path).suffix == ".safetensors":
            content: Any = safetensors.torch.load_file(path)
        else:
            content = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(content, dict) or not all(isinstance(tensor, torch.Tensor) for tensor in content.values()):
            raise ValueError("it does not hold tensors by name")
        return content
    except LOADING_ERRORS as error:
        advice = "save a state dict, torch.save(model.state_dict(), ...)"
        raise InputError(f"{path} cannot be read as tensors ({advice}): {first_line(error).rstrip('.')}.") from error


def shape(tensors: Tensors, name: str, dimensions: int, kind: str) -> torch.Size:
    """Return the shape of a tensor that every checkpoint of this kind has."""
    size = tensors[name].shape if name in tensors else torch.Size()
    if len(size) != dimensions or 0 in size:
        raise InputError(f"This is not a checkpoint of {kind}: it has no tensor {name} of {dimensions} dimensions.")
    return size


def load(
    model_class: type[PreTrainedModel], tensors: Tensors, layers: dict[str, str], kind: str, **fields
) -> PreTrainedModel:
    """Return a model in eval mode with these weights, in their dtype (the widest if there are several).

    Args:
        tensors: The weights by the project's names, in the shapes of this package.
        layers: The table of the project.
        kind: Description of the project's model, for messages.
        fields: Config fields other than the number of blocks.

    Raises:
        InputError: If tensors are missing, unknown or not floating-point, or have the wrong shape.
    """
    blocks = [int(number) for name in tensors for number in re.findall(r"\b(?:blocks|layers)\.(\d+)\.", name)]
    model = model_class(model_class.config_class(num_hidden_layers=max(blocks) + 1, **fields))
    state, names = model.state_dict(), {}
    for key in state:
        layer, _, tensor_name = key.rpartition(".")
        source = layers[re.sub(r"\d+", "{}", layer)].format(*re.findall(r"\d+", layer))
        names[key] = f"{source}.{tensor_name}"
    expected = {names[key]: list(tensor.shape) for key, tensor in state.items()}
    actual = {name: list(t.shape) if t.is_floating_point() else t.dtype for name, t in tensors.items()}
    wrong = [
        f"{name} ({actual.get(name, 'nothing')} instead of {expected.get(name, 'nothing')})"
        for name in sorted(actual.keys() | expected.keys())
        if actual.get(name) != expected.get(name)
    ]
    if wrong:
        raise InputError(f"{len(wrong)} tensors are not those of {kind}, such as {', '.join(wrong[:4])}.")
    model.to(functools.reduce(torch.promote_types, (tensor.dtype for tensor in tensors.values())))
    model.load_state_dict({key: tensors[name] for key, name in names.items()})
    return model.eval()


def check_new(out: str | Path):
    """Raise an InputError if `out` is a file, or a folder that is not empty."""
    if Path(out).is_file() or (Path(out).is_dir() and any(Path(out).iterdir())):
        raise InputError(f"{out} exists already: choose a new name.")


def write_checkpoint(model: PreTrainedModel, out: str, source: str, notes: list[str], license: str | None) -> list[str]:
    """Write config, weights, code, card, and for images timm's processor for evaluation; return sentences about it.

    Args:
        source: Description of the converted file, for the card.
        notes: Sentences about the model, for the card.
    """
    processor = None
    if isinstance(model.config, GMLPVisionConfig):
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
        notes = [*notes, "The license of the weights is unknown; set it with --license."]
    return [f"{out}: open it with {model._auto_class}.", *notes]
