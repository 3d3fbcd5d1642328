"""Converts g-mlp-pytorch's models (lucidrains): `gMLP` into a masked or causal language model, and `gMLPVision` into an
image classifier."""

import functools
import math
from collections.abc import Callable

import torch

from ...errors import InputError
from ...models.configuration_gmlp import as_pair
from ...models.modeling_gmlp import GMLPForCausalLM, GMLPForImageClassification, GMLPForMaskedLM
from . import checkpoints
from .checkpoints import Tensors

KIND = "a gMLP of g-mlp-pytorch"
# Only image models have it: a linear layer over flattened patches, [D, C * h * w].
PATCHES = "to_patch_embed.1.weight"


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


def model_from_lucidrains(
    tensors: Tensors, causal: bool = False, image_size: tuple[int, int] | None = None
) -> tuple[GMLPForCausalLM | GMLPForMaskedLM | GMLPForImageClassification, list[str]]:
    """Convert a state dict of `g_mlp_pytorch.gMLP` or `gMLPVision`.

    Args:
        tensors: The state dict.
        causal: Whether a text model was made with `causal=True`, which its state dict does not show.
        image_size: Height and width of images in pixels, required if the number of patches is not a square number.

    Returns:
        The model, and sentences about it.
    """
    shape, vision = functools.partial(checkpoints.shape, tensors, kind=KIND), PATCHES in tensors
    if causal if vision else image_size:
        raise InputError("--causal is for text models, and --image_size for image models.")
    # Blocks of text models have one more layer around them, which shifts tokens.
    block = "layers.{}.fn.fn" if vision else "layers.{}.fn.fn.fn"
    first = block.format(0)
    # The source has no bias here, so it becomes zero.
    biases = {
        name.replace("weight", "bias"): weight.new_zeros(len(weight))
        for name, weight in tensors.items()
        if name.endswith(".attn.to_qkv.weight")
    }
    tensors = biases | tensors
    heads, tokens = shape(f"{first}.sgu.bias", 2)
    circulant = f"{first}.sgu.circulant_pos_x" in tensors
    qkv = f"{first}.attn.to_qkv.weight"
    if vision:
        model_class = GMLPForImageClassification
        fields, notes = image_fields(shape, tokens, image_size)
    else:
        model_class = GMLPForCausalLM if causal else GMLPForMaskedLM
        fields, notes = text_fields(shape, tokens, causal)
    model = checkpoints.build(
        model_class,
        tensors,
        intermediate_size=shape(f"{first}.proj_in.0.weight", 2)[0],
        spatial_heads=heads,
        attention_size=shape(qkv, 2)[0] // 3 if qkv in tensors else 0,
        **fields,
    )
    units = [f"{block.format(i)}.sgu" for i in range(model.config.num_hidden_layers)]
    # A single head has an axis too.
    other: dict[str, tuple[int, ...]] = {f"{unit}.bias": (heads, tokens) for unit in units}
    for unit in units:
        other[f"{unit}.weight"] = (heads, tokens) if circulant else (heads, tokens, tokens)
        if circulant:
            other[f"{unit}.circulant_pos_x"] = other[f"{unit}.circulant_pos_y"] = (heads, tokens)
    if vision:
        other[PATCHES] = tensors[PATCHES].shape
    checkpoints.check(model, tensors, layer_names(block), KIND, other)
    for unit in units:
        weight = tensors[f"{unit}.weight"]
        if circulant:
            weight = circulant_matrix(weight, tensors[f"{unit}.circulant_pos_x"], tensors[f"{unit}.circulant_pos_y"])
        # Weights above the diagonal are masked in both causal models, and were never trained.
        tensors[f"{unit}.weight"] = weight.tril() if causal else weight
    notes.append("prob_survival is not converted: drop_path_rate is 0.")
    if circulant:
        notes.append("The circulant matrices became dense ones of the same values, and do not stay circulant.")
    return checkpoints.fill(model, tensors, layer_names(block)), notes


def text_fields(shape: Callable, tokens: int, causal: bool) -> tuple[dict, list[str]]:
    """Return fields of the config of a text model of n tokens, and sentences about it."""
    vocab_size, hidden_size = shape("to_embed.weight", 2)
    sizes = {"vocab_size": vocab_size, "hidden_size": hidden_size, "max_position_embeddings": tokens}
    assumed = "causal (--causal)" if causal else "not causal (otherwise pass --causal)"
    notes = [f"Assumed: no shift_tokens, act the identity, {assumed}.", checkpoints.TOKENIZER_NOTE]
    return {**checkpoints.TEXT_FIELDS, **sizes, "is_causal": causal}, notes


def image_fields(shape: Callable, tokens: int, image_size: tuple[int, int] | None) -> tuple[dict, list[str]]:
    """Return fields of the config of an image model of n patches, and sentences about it."""
    hidden_size, values = shape(PATCHES, 2)
    side = math.isqrt(values // 3)
    if values != 3 * side * side:
        raise InputError(f"The patches have {values} values: only square patches of three channels are converted.")
    sizes = checkpoints.image_fields(tokens, (side, side), image_size)
    fields = {"hidden_size": hidden_size, "num_labels": shape("to_logits.2.weight", 2)[0], "pooling": "mean"}
    epsilons = {"layer_norm_eps": 1e-5, "spatial_layer_norm_eps": 1e-5}
    height, width = as_pair(sizes["image_size"])
    assumed = f"images of {height}x{width} pixels (--image_size), square patches of three channels, pixels from -1 to 1"
    return fields | epsilons | sizes, [f"Assumed: {assumed} (preprocessor_config.json).", checkpoints.CLASSES_NOTE]


def circulant_matrix(weight: torch.Tensor, pos_x: torch.Tensor, pos_y: torch.Tensor) -> torch.Tensor:
    """Return the matrices [H, n, n] that g-mlp-pytorch makes of its "circulant" weights, all [H, n].

    W[i, j] = weight[n - 1 + j - i] pos_x[i] pos_y[j] for j <= i, and 0 above the diagonal.
    """
    index = torch.arange(weight.shape[1])
    columns = (index[-1] + index - index[:, None]).clamp(max=index[-1])
    return (weight[:, columns] * pos_x[:, :, None] * pos_y[:, None, :]).tril()


def convert_lucidrains(source: str, out: str, *, license: str | None = None, **options) -> list[str]:
    """Convert a file into a checkpoint. For options, see `model_from_lucidrains`."""
    convert = functools.partial(model_from_lucidrains, **options)
    return checkpoints.convert_file(source, out, KIND, license, convert)
