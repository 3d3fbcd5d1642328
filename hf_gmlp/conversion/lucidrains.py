"""Converts the text model `gMLP` of g-mlp-pytorch (lucidrains) into a masked or causal language model."""

import functools

import torch

from ..errors import InputError
from ..models.modeling_gmlp import GMLPForCausalLM, GMLPForMaskedLM
from . import checkpoints

KIND = "a text model of g-mlp-pytorch"
BLOCK = "layers.{}.fn.fn.fn"
# Layer of this package -> layer of g-mlp-pytorch.
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
    Converts a state dict of `g_mlp_pytorch.gMLP`. Returns the model, and sentences about it.

    Args:
        path: Where the tensors come from, for messages.
        causal: Whether the source was made with `causal=True`, which its state dict does not show. It then becomes a
            causal language model, otherwise a masked one.

    Raises:
        InputError: If these are not the tensors of such a model, or it has several heads.
    """
    source, first = checkpoints.Source(tensors, path, KIND), BLOCK.format(0)
    vocab_size, hidden_size = source.shape("to_embed.weight", 2)
    heads, tokens = source.shape(f"{first}.sgu.bias", 2)
    circulant = f"{first}.sgu.circulant_pos_x" in tensors
    attentive = f"{first}.attn.to_qkv.weight" in tensors
    if heads > 1:
        raise InputError(
            f"{path} has {heads} heads, with a spatial matrix for each of {heads} groups of channels. It cannot be "
            "converted: a gMLP here has one matrix for all channels, as in the paper."
        )
    model = source.build(
        GMLPForCausalLM if causal else GMLPForMaskedLM,
        "layers.",
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=source.shape(f"{first}.proj_in.0.weight", 2)[0],
        max_position_embeddings=tokens,
        attention_size=source.shape(f"{first}.attn.to_qkv.weight", 2)[0] // 3 if attentive else 0,
        is_causal=causal,
        **checkpoints.TEXT_FIELDS,
    )
    state = model.state_dict()
    # The source has no bias here, so it becomes zero.
    biases = {name: tensor.shape for name, tensor in state.items() if name.endswith("qkv_proj.bias")}
    names = checkpoints.names_in(LAYERS, state.keys() - biases.keys())
    expected = {name: state[own].shape for own, name in names.items()}
    units = [f"{BLOCK.format(i)}.sgu" for i in range(model.config.num_hidden_layers)]
    for unit in units:
        # The first axis is that of the heads.
        expected[f"{unit}.bias"] = (1, tokens)
        expected[f"{unit}.weight"] = (1, tokens) if circulant else (1, tokens, tokens)
        if circulant:
            expected[f"{unit}.circulant_pos_x"] = expected[f"{unit}.circulant_pos_y"] = (1, tokens)
    source.check(expected)
    tensors = dict(tensors)
    for unit in units:
        bias, weight = tensors[f"{unit}.bias"][0], tensors[f"{unit}.weight"][0]
        if circulant:
            x, y = tensors[f"{unit}.circulant_pos_x"][0], tensors[f"{unit}.circulant_pos_y"][0]
            weight = circulant_matrix(weight, x, y)
        # Weights above the diagonal are masked in both causal models, and were never trained.
        tensors[f"{unit}.weight"], tensors[f"{unit}.bias"] = weight.tril() if causal else weight, bias
    dtype = tensors["to_embed.weight"].dtype
    converted = {own: tensors[name] for own, name in names.items()}
    converted |= {name: torch.zeros(shape, dtype=dtype) for name, shape in biases.items()}
    notes = [
        "Assumed, since a state dict does not show it: no shift_tokens, act the identity, "
        + ("causal (--causal)." if causal else "not causal (otherwise give --causal)."),
        checkpoints.TOKENIZER_NOTE,
        "prob_survival is not converted: drop_path_rate is 0.",
    ]
    if circulant:
        notes.append(
            "The circulant matrices (left context only, scaled by two vectors of positions) became dense n x n "
            "matrices with the same values. If you continue training, they do not stay circulant."
        )
    return checkpoints.fill(model, converted), notes


def circulant_matrix(weight: torch.Tensor, pos_x: torch.Tensor, pos_y: torch.Tensor) -> torch.Tensor:
    """
    Returns the matrix [n, n] that g-mlp-pytorch makes of its "circulant" weights, all [n]:
    W[i, j] = weight[n - 1 + j - i] pos_x[i] pos_y[j] for j <= i, and 0 above the diagonal.
    """
    n = weight.shape[0]
    offsets = torch.arange(n)[None, :] - torch.arange(n)[:, None]
    return (weight[(n - 1 + offsets).clamp(max=n - 1)] * pos_x[:, None] * pos_y[None, :]).tril()


def convert_lucidrains(source: str, out: str, *, causal: bool = False, license: str | None = None) -> list[str]:
    """Converts a file into a checkpoint. See `checkpoints.convert`."""
    model_from = functools.partial(model_from_lucidrains, causal=causal)
    return checkpoints.convert(model_from, KIND, source, out, license)
