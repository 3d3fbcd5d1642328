"""The text model `gMLP` of g-mlp-pytorch (lucidrains) as our masked or causal language model."""

from pathlib import Path

import torch

from ..errors import InputError
from ..models.modeling_gmlp import GMLPForCausalLM, GMLPForMaskedLM
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

KIND = "a text model of g-mlp-pytorch"
BLOCK = "layers.{}.fn.fn.fn"
# Our layer -> theirs.
LAYERS = {
    "model.embeddings.word_embeddings": "to_embed",
    "model.layers.{}.norm": "layers.{}.fn.norm",
    "model.layers.{}.proj_in": f"{BLOCK}.proj_in.0",
    "model.layers.{}.attention.qkv_proj": f"{BLOCK}.attn.to_qkv",
    "model.layers.{}.attention.out_proj": f"{BLOCK}.attn.to_out",
    "model.layers.{}.spatial_gating_unit.norm": f"{BLOCK}.sgu.norm",
    "model.layers.{}.spatial_gating_unit.proj": f"{BLOCK}.sgu",
    "model.layers.{}.proj_out": f"{BLOCK}.proj_out",
    "model.norm": "to_logits.0",
    "decoder": "to_logits.1",
}


def model_from_lucidrains(
    tensors: dict[str, torch.Tensor], path: str = "the state dict", causal: bool = False
) -> tuple[GMLPForCausalLM | GMLPForMaskedLM, list[str]]:
    """
    Our model with the weights of a state dict of `g_mlp_pytorch.gMLP`, and what there is to say about it.

    Args:
        path: Where they come from, for messages.
        causal: Whether their model was made with `causal=True`, which a state dict does not tell. It becomes a causal
            language model then, else a masked one.

    Raises:
        InputError: If these are not the tensors of such a model, or ours cannot do what it does.
    """
    first = BLOCK.format(0)
    vocab_size, hidden_size = shape_of(tensors, "to_embed.weight", 2, path, KIND)
    intermediate_size = shape_of(tensors, f"{first}.proj_in.0.weight", 2, path, KIND)[0]
    heads, tokens = shape_of(tensors, f"{first}.sgu.bias", 2, path, KIND)
    circulant = f"{first}.sgu.circulant_pos_x" in tensors
    attention_size = 0
    if f"{first}.attn.to_qkv.weight" in tensors:
        attention_size = shape_of(tensors, f"{first}.attn.to_qkv.weight", 2, path, KIND)[0] // 3
    if heads > 1:
        raise InputError(
            f"{path} has {heads} heads, a spatial matrix for each of {heads} groups of channels; a gMLP here has one "
            f"for all channels, as the paper has: it cannot be carried over."
        )
    model = build(
        GMLPForCausalLM if causal else GMLPForMaskedLM,
        path,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_hidden_layers=depth_of(tensors, "layers."),
        intermediate_size=intermediate_size,
        max_position_embeddings=tokens,
        attention_size=attention_size,
        is_causal=causal,
        **TEXT_FIELDS,
    )
    ours = model.state_dict()
    # Theirs has no bias here, ours a zero one.
    biases = {name: shape.shape for name, shape in ours.items() if name.endswith("qkv_proj.bias")}
    theirs = names_in(LAYERS, ours.keys() - biases.keys())
    expected = {their_name: tuple(ours[name].shape) for name, their_name in theirs.items()}
    units = [f"{BLOCK.format(i)}.sgu" for i in range(model.config.num_hidden_layers)]
    for unit in units:
        # The first axis is that of the heads.
        expected[f"{unit}.bias"] = (1, tokens)
        expected[f"{unit}.weight"] = (1, tokens) if circulant else (1, tokens, tokens)
        if circulant:
            expected[f"{unit}.circulant_pos_x"] = expected[f"{unit}.circulant_pos_y"] = (1, tokens)
    check_tensors(tensors, expected, path, KIND)
    tensors = dict(tensors)
    for unit in units:
        bias, weight = tensors[f"{unit}.bias"][0], tensors[f"{unit}.weight"][0]
        if circulant:
            x, y = tensors[f"{unit}.circulant_pos_x"][0], tensors[f"{unit}.circulant_pos_y"][0]
            weight = circulant_matrix(weight, x, y)
        # What stands above is hidden in a causal model, in theirs as in ours, and was never trained.
        tensors[f"{unit}.weight"], tensors[f"{unit}.bias"] = weight.tril() if causal else weight, bias
    dtype = tensors["to_embed.weight"].dtype
    converted = {name: tensors[their_name] for name, their_name in theirs.items()}
    model = fill(model, converted | {name: torch.zeros(shape, dtype=dtype) for name, shape in biases.items()})

    notes = [
        "Taken for granted, since a state dict does not tell: no shift_tokens, act the identity, "
        + ("causal (--causal)." if causal else "not causal (else give --causal)."),
        TOKENIZER_NOTE,
        "prob_survival is not carried over: drop_path_rate is 0.",
    ]
    if circulant:
        notes.append(
            "The circulant matrices (left context alone, scaled by two vectors of positions) are dense n x n matrices "
            "now, of the same values; trained on, they do not stay circulant."
        )
    return model, notes


def circulant_matrix(weight: torch.Tensor, pos_x: torch.Tensor, pos_y: torch.Tensor) -> torch.Tensor:
    """
    W[i, j] = weight[n - 1 + j - i] pos_x[i] pos_y[j] for j <= i and 0 above, the matrix that g-mlp-pytorch makes of its
    "circulant" weights.

    Args:
        weight, pos_x, pos_y: [n]

    Returns:
        [n, n]
    """
    n = weight.shape[0]
    offsets = torch.arange(n)[None, :] - torch.arange(n)[:, None]
    return (weight[(n - 1 + offsets).clamp(max=n - 1)] * pos_x[:, None] * pos_y[None, :]).tril()


def convert_lucidrains(source: str, out: str, *, causal: bool = False, license: str | None = None) -> list[str]:
    """
    Writes a state dict of `g_mlp_pytorch.gMLP` as a checkpoint of ours: config, weights, code and card.

    Args:
        source: A file.
        out: A new folder.
        causal: Whether the model was made with `causal=True`.
        license: The identifier of the weights' license, "unknown" by default.

    Returns:
        What there is to say about the result, in sentences.

    Raises:
        InputError: If the source cannot be read or converted, or `out` is not new.
    """
    check_new(out)
    model, notes = model_from_lucidrains(read_tensors(source), source, causal)
    return write_checkpoint(model, out, f"{KIND}, {Path(source).name}", notes, license)
