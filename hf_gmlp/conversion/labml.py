"""Converts the text model of labml.ai's annotated gMLP into a causal language model."""

import functools

import torch

from ..errors import InputError
from ..models.modeling_gmlp import GMLPForCausalLM
from . import checkpoints

KIND = "a gMLP of labml_nn"
# Layer of this package -> layer of labml's: GMLPBlock inside Encoder inside AutoregressiveTransformer.
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
POSITIONS = "src_embed.positional_encodings"


def model_from_labml(
    tensors: dict[str, torch.Tensor], path: str = "the state dict", drop_positions: bool = False
) -> tuple[GMLPForCausalLM, list[str]]:
    """
    Converts the state dict of labml_nn's AutoregressiveTransformer with GMLPBlock. Returns the model, and sentences
    about it.

    Args:
        path: Where the tensors come from, for messages.
        drop_positions: Leave out position encodings that the source adds to its embeddings.

    Raises:
        InputError: If these are not the tensors of such a model, or it has position encodings.
    """
    source = checkpoints.Source(tensors, path, KIND)
    # labml's embeddings with position encodings are one layer deeper, and are scaled.
    positions = "src_embed.linear.weight" in tensors
    layers = LAYERS | ({"model.embeddings.word_embeddings": "src_embed.linear"} if positions else {})
    vocab_size, hidden_size = source.shape(layers["model.embeddings.word_embeddings"] + ".weight", 2)
    model = source.build(
        GMLPForCausalLM,
        "encoder.layers.",
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=source.shape("encoder.layers.0.proj1.weight", 2)[0],
        max_position_embeddings=source.shape("encoder.layers.0.sgu.bias", 1)[0],
        is_causal=True,
        **checkpoints.TEXT_FIELDS,
    )
    state = model.state_dict()
    names = checkpoints.names_in(layers, state)
    expected = {name: state[own].shape for own, name in names.items()}
    if positions:
        expected[POSITIONS] = (source.shape(POSITIONS, 3)[0], 1, hidden_size)
    source.check(expected)
    if positions and not drop_positions:
        raise InputError(
            f"{path} adds position encodings to its embeddings ({POSITIONS}), which a gMLP does not have: its logits "
            "would differ. To convert the rest and continue training, give --drop_positions."
        )
    converted = {own: tensors[name] for own, name in names.items()}
    for name in converted:
        # Weights above the diagonal are masked in both models, and were never trained.
        if name.endswith("spatial_gating_unit.proj.weight"):
            converted[name] = converted[name].tril()
    notes = [
        "The mask over W, which the source receives at run time, is assumed to be the causal one.",
        checkpoints.TOKENIZER_NOTE,
    ]
    if positions:
        embeddings = "model.embeddings.word_embeddings.weight"
        converted[embeddings] = converted[embeddings] * hidden_size**0.5
        notes.append(
            "The position encodings of the source are left out, so the logits are not the source's: continue training "
            "before use. The source's factor on the embeddings, the square root of d_model, is in the weights."
        )
    return checkpoints.fill(model, converted), notes


def convert_labml(source: str, out: str, *, drop_positions: bool = False, license: str | None = None) -> list[str]:
    """Converts a file into a checkpoint. See `checkpoints.convert`."""
    model_from = functools.partial(model_from_labml, drop_positions=drop_positions)
    return checkpoints.convert(model_from, KIND, source, out, license)
