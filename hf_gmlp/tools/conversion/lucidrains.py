"""Conversion of g-mlp-pytorch's `gMLP` into a language model, and of its `gMLPVision` into an image classifier."""

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from ...errors import InputError
from ...models.modeling_gmlp import GMLPForCausalLM, GMLPForImageClassification, GMLPForMaskedLM
from . import checkpoints
from .checkpoints import Tensors

KIND = "a gMLP of g-mlp-pytorch"
# A linear layer over flattened patches, [D, C * h * w], which only image models have.
PATCHES = "to_patch_embed.1.weight"
# Fields that the tensors of text models do not show: bare embeddings, an untied decoder, no special tokens.
TEXT_FIELDS = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))
TEXT_FIELDS |= {"type_vocab_size": 0, "mlm_transform": False, "tie_word_embeddings": False}
# A dense W and PyTorch's epsilon.
LAYER_FIELDS = {"toeplitz": False, "layer_norm_eps": 1e-5, "spatial_layer_norm_eps": 1e-5}
TOKENIZER_NOTE = "There is no tokenizer: add the source's, and set its pad, bos and eos_token_id in config.json."


def layer_names(block: str) -> dict[str, str]:
    """Return the table from layers of this package to those of g-mlp-pytorch, whose blocks have this name."""
    return {
        "model.layers.{}.norm": "layers.{}.fn.norm",
        "model.layers.{}.proj_in": f"{block}.proj_in.0",
        "model.layers.{}.attention.qkv_proj": f"{block}.attn.to_qkv",
        "model.layers.{}.attention.out_proj": f"{block}.attn.to_out",
        "model.layers.{}.spatial_gating_unit.norm": f"{block}.sgu.norm",
        "model.layers.{}.spatial_gating_unit.proj": f"{block}.sgu",
        "model.layers.{}.proj_out": f"{block}.proj_out",
        "model.norm": "to_logits.0",
        "model.embeddings.word_embeddings": "to_embed",
        "model.embeddings.projection": "to_patch_embed.1",
        "decoder": "to_logits.1",
        "classifier": "to_logits.2",
    }


def model_from_lucidrains(tensors: Tensors, causal: bool = False) -> tuple[PreTrainedModel, list[str]]:
    """Convert a state dict of `g_mlp_pytorch.gMLP` or `gMLPVision`.

    Args:
        tensors: The state dict.
        causal: Whether a text model was made with `causal=True`, which its state dict does not show.

    Returns:
        A GMLPForMaskedLM, GMLPForCausalLM or GMLPForImageClassification, and sentences about it.
    """
    shape, vision = functools.partial(checkpoints.shape, tensors, kind=KIND), PATCHES in tensors
    if causal and vision:
        raise InputError("--causal is for text models, not for image models: leave it out.")
    # Blocks of text models have one more layer around them, which shifts tokens.
    block = "layers.{}.fn.fn" if vision else "layers.{}.fn.fn.fn"
    first = block.format(0)
    heads, tokens = shape(f"{first}.sgu.bias", 2)
    qkv = f"{first}.attn.to_qkv.weight"
    fields: dict[str, Any] = {
        "intermediate_size": shape(f"{first}.proj_in.0.weight", 2)[0],
        "spatial_heads": heads,
        "attention_size": shape(qkv, 2)[0] // 3 if qkv in tensors else 0,
        **LAYER_FIELDS,
    }
    notes = ["prob_survival is not converted: drop_path_rate is 0."]
    model_class: type[PreTrainedModel]
    if vision:
        model_class, fields = GMLPForImageClassification, fields | image_fields(shape, tokens)
        notes = [checkpoints.CLASSES_NOTE, *notes]
    else:
        model_class = GMLPForCausalLM if causal else GMLPForMaskedLM
        vocab_size, hidden_size = shape("to_embed.weight", 2)
        sizes = {"vocab_size": vocab_size, "hidden_size": hidden_size, "max_position_embeddings": tokens}
        fields |= TEXT_FIELDS | sizes | {"is_causal": causal}
        assumed = "causal (--causal)" if causal else "not causal (otherwise pass --causal)"
        notes = [f"Assumed: no shift_tokens, act the identity, {assumed}.", TOKENIZER_NOTE, *notes]
    tensors = own_shapes(tensors, causal)
    return checkpoints.load(model_class, tensors, layer_names(block), KIND, **fields), notes


def image_fields(shape: Callable, tokens: int) -> dict:
    """Return fields of the config of an image model of n patches."""
    hidden_size, values = shape(PATCHES, 2)
    side = math.isqrt(values // 3)
    if values != 3 * side * side:
        raise InputError(f"The patches have {values} values: only square patches of three channels are converted.")
    # The image is assumed to be square. Otherwise, loading fails because W and b have other shapes.
    sizes = {"image_size": math.isqrt(tokens) * side, "patch_size": side}
    return {"hidden_size": hidden_size, "num_labels": shape("to_logits.2.weight", 2)[0], "pooling": "mean"} | sizes


def own_shapes(tensors: Tensors, causal: bool) -> Tensors:
    """Return the tensors in the shapes of this package."""
    converted = {}
    for name, tensor in tensors.items():
        unit = name.removesuffix(".weight")
        if name == PATCHES:
            side = math.isqrt(tensor.shape[1] // 3)
            tensor = tensor.unflatten(1, (3, side, side))
        elif name.endswith(".attn.to_qkv.weight"):
            # The source has no bias here.
            converted[f"{unit}.bias"] = tensor.new_zeros(len(tensor))
        elif name.endswith(".sgu.weight"):
            # Weights above the diagonal are masked in both causal models, and were never trained.
            tensor = tensor.tril() if causal else tensor
        # In the source, even a single head has an axis.
        converted[name] = tensor.squeeze(0) if name.endswith((".sgu.weight", ".sgu.bias")) else tensor
    return converted


def convert_lucidrains(source: str, out: str, *, causal: bool = False, license: str | None = None) -> list[str]:
    """Convert a file into a checkpoint, and return sentences about it. For `causal`, see `model_from_lucidrains`."""
    checkpoints.check_new(out)
    model, notes = model_from_lucidrains(checkpoints.read_tensors(source), causal)
    return checkpoints.write_checkpoint(model, out, f"{KIND}, {Path(source).name}", notes, license)
