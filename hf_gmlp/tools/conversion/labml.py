"""Conversion of the text model of labml.ai's annotated gMLP into a causal language model."""

import functools
from pathlib import Path

from transformers import PreTrainedModel

from ...models.modeling_gmlp import GMLPForCausalLM
from . import checkpoints
from .checkpoints import Tensors

KIND = "a gMLP of labml_nn"
# Names of layers: this package -> labml's AutoregressiveTransformer, which contains an Encoder of GMLPBlocks.
LAYERS = {
    "model.embeddings.word_embeddings": "src_embed",
    "model.layers.{}.norm": "encoder.layers.{}.norm",
    "model.layers.{}.proj_in": "encoder.layers.{}.proj1",
    "model.layers.{}.spatial_gating_unit.norm": "encoder.layers.{}.sgu.norm",
    "model.layers.{}.spatial_gating_unit.proj": "encoder.layers.{}.sgu",
    "model.layers.{}.proj_out": "encoder.layers.{}.proj2",
    "model.norm": "encoder.norm",
    "decoder": "generator.projection",
}


def model_from_labml(tensors: Tensors) -> tuple[PreTrainedModel, list[str]]:
    """Convert the state dict of labml_nn's AutoregressiveTransformer with GMLPBlock.

    Returns:
        The model, and sentences about it.
    """
    shape = functools.partial(checkpoints.shape, tensors, kind=KIND)
    vocab_size, hidden_size = shape("src_embed.weight", 2)
    fields = {
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "intermediate_size": shape("encoder.layers.0.proj1.weight", 2)[0],
        "max_position_embeddings": shape("encoder.layers.0.sgu.bias", 1)[0],
        "is_causal": True,
    }
    # Both models mask the weights above the diagonal, which were therefore never trained.
    tensors = {name: tensor.tril() if name.endswith("sgu.weight") else tensor for name, tensor in tensors.items()}
    shared = checkpoints.TEXT_FIELDS | checkpoints.LAYER_FIELDS
    model = checkpoints.load(GMLPForCausalLM, tensors, LAYERS, KIND, **shared, **fields)
    notes = [
        "The mask over W, which the source receives at run time, is assumed to be the causal one.",
        checkpoints.TOKENIZER_NOTE,
    ]
    return model, notes


def convert_labml(source: str, out: str, *, license: str | None = None) -> list[str]:
    """Convert a file into a checkpoint, and return sentences about it."""
    checkpoints.check_new(out)
    model, notes = model_from_labml(checkpoints.read_tensors(source))
    return checkpoints.write_checkpoint(model, out, f"{KIND}, {Path(source).name}", notes, license)
