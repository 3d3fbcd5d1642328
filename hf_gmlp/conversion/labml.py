"""The text model of labml.ai's annotated gMLP as our causal language model."""

from pathlib import Path

import torch

from ..errors import InputError
from ..models.modeling_gmlp import GMLPForCausalLM
from .checkpoints import (
    TEXT_FIELDS,
    TOKENIZER_NOTE,
    build,
    check_new,
    check_tensors,
    depth_of,
    fill,
    names_in,
    read_tensors,
    shape_of,
    write_checkpoint,
)

KIND = "a gMLP of labml_nn"
# Our layer -> theirs: GMLPBlock inside Encoder inside AutoregressiveTransformer.
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
    Our model with the weights of a state dict of labml_nn's AutoregressiveTransformer with GMLPBlock, and what there is
    to say about it.

    Args:
        path: Where they come from, for messages.
        drop_positions: Go on without the position encodings that are added to the embeddings in the source.

    Raises:
        InputError: If these are not the tensors of such a model, or it has position encodings.
    """
    layers = LAYERS
    # Their embeddings with position encodings hold the table one layer deeper, and scale it.
    positions = "src_embed.linear.weight" in tensors
    if positions:
        layers = LAYERS | {"model.embeddings.word_embeddings": "src_embed.linear"}
    embeddings = layers["model.embeddings.word_embeddings"] + ".weight"
    vocab_size, hidden_size = shape_of(tensors, embeddings, 2, path, KIND)
    intermediate_size = shape_of(tensors, "encoder.layers.0.proj1.weight", 2, path, KIND)[0]
    tokens = shape_of(tensors, "encoder.layers.0.sgu.bias", 1, path, KIND)[0]
    model = build(
        GMLPForCausalLM,
        path,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_hidden_layers=depth_of(tensors, "encoder.layers."),
        intermediate_size=intermediate_size,
        max_position_embeddings=tokens,
        is_causal=True,
        **TEXT_FIELDS,
    )
    ours = model.state_dict()
    theirs = names_in(layers, ours)
    expected = {their_name: tuple(ours[name].shape) for name, their_name in theirs.items()}
    if positions:
        length = shape_of(tensors, POSITIONS, 3, path, KIND)[0]
        expected[POSITIONS] = (length, 1, hidden_size)
    check_tensors(tensors, expected, path, KIND)
    if positions and not drop_positions:
        raise InputError(
            f"{path} adds position encodings to its embeddings ({POSITIONS}), for which a gMLP has no place: without "
            f"them the logits are others. To have the rest all the same, to train on, give --drop_positions."
        )
    converted = {name: tensors[their_name] for name, their_name in theirs.items()}
    for name in converted:
        # What stands above is hidden, in theirs as in ours, and was never trained.
        if name.endswith("spatial_gating_unit.proj.weight"):
            converted[name] = converted[name].tril()
    notes = [
        "The source's mask over W, given to it at run time, is taken for the causal one.",
        TOKENIZER_NOTE,
    ]
    if positions:
        converted["model.embeddings.word_embeddings.weight"] = tensors[embeddings] * hidden_size**0.5
        notes.append(
            "The position encodings of the source are left out, so the logits are not the source's: train on before "
            "use. Its factor on the embeddings, the root of d_model, is in the weights."
        )
    return fill(model, converted), notes


def convert_labml(source: str, out: str, *, drop_positions: bool = False, license: str | None = None) -> list[str]:
    """
    Writes a state dict of labml_nn's autoregressive gMLP as a checkpoint of ours: config, weights, code and card.

    Args:
        source: A file.
        out: A new folder.
        drop_positions: As in `model_from_labml`.
        license: The identifier of the weights' license, "unknown" by default.

    Returns:
        What there is to say about the result, in sentences.

    Raises:
        InputError: If the source cannot be read or converted, or `out` is not new.
    """
    check_new(out)
    model, notes = model_from_labml(read_tensors(source), source, drop_positions)
    return write_checkpoint(model, out, f"{KIND}, {Path(source).name}", notes, license)
