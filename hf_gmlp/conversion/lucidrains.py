"""Converts g-mlp-pytorch's models (lucidrains): `gMLP` into a masked or causal language model, and `gMLPVision` into an
image classifier."""

import functools
import math

import torch

from ..errors import InputError
from ..models.configuration_gmlp import as_pair
from ..models.modeling_gmlp import GMLPForCausalLM, GMLPForImageClassification, GMLPForMaskedLM
from . import checkpoints

KIND = "a gMLP of g-mlp-pytorch"
# Only image models have it.
PATCHES = "to_patch_embed.1.weight"


def layer_names(block: str) -> dict[str, str]:
    """Layer of this package -> layer of g-mlp-pytorch, whose blocks have this name."""
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
    tensors: dict[str, torch.Tensor],
    path: str = "the state dict",
    causal: bool = False,
    image_size: tuple[int, int] | None = None,
    patch_size: tuple[int, int] | None = None,
) -> tuple[GMLPForCausalLM | GMLPForMaskedLM | GMLPForImageClassification, list[str]]:
    """
    Converts a state dict of `g_mlp_pytorch.gMLP` or `gMLPVision`. Returns the model, and sentences about it.

    Args:
        path: Where the tensors come from, for messages.
        causal: Whether a text model was made with `causal=True`, which its state dict does not show. It then becomes a
            causal language model, otherwise a masked one.
        image_size: Height and width of images in pixels, required if the number of patches is not a square number.
        patch_size: Height and width of patches in pixels, required if they are not squares of three channels.

    Raises:
        InputError: If these are not the tensors of such a model, or the options do not fit them.
    """
    source, vision = checkpoints.Source(tensors, path, KIND), PATCHES in tensors
    # Blocks of text models have one more layer around them, which shifts tokens.
    block = "layers.{}.fn.fn" if vision else "layers.{}.fn.fn.fn"
    first = block.format(0)
    if vision and causal:
        raise InputError(f"{path} is an image model, which is not causal: leave out --causal.")
    if not vision and (image_size or patch_size):
        raise InputError(f"{path} is not an image model: leave out --image_size and --patch_size.")
    if vision:
        model_class = GMLPForImageClassification
        fields, notes = image_fields(source, first, image_size, patch_size)
    else:
        model_class = GMLPForCausalLM if causal else GMLPForMaskedLM
        fields, notes = text_fields(source, first, causal)
    heads, tokens = source.shape(f"{first}.sgu.bias", 2)
    circulant = f"{first}.sgu.circulant_pos_x" in tensors
    attentive = f"{first}.attn.to_qkv.weight" in tensors
    model = source.build(
        model_class,
        "layers.",
        intermediate_size=source.shape(f"{first}.proj_in.0.weight", 2)[0],
        spatial_heads=heads,
        attention_size=source.shape(f"{first}.attn.to_qkv.weight", 2)[0] // 3 if attentive else 0,
        **fields,
    )
    state = model.state_dict()
    # The source has no bias here, so it becomes zero.
    biases = {name: tensor.shape for name, tensor in state.items() if name.endswith("qkv_proj.bias")}
    names = checkpoints.names_in(layer_names(block), state.keys() - biases.keys())
    expected = {name: state[own].shape for own, name in names.items()}
    units = [f"{block.format(i)}.sgu" for i in range(model.config.num_hidden_layers)]
    for unit in units:
        # A single head has an axis too.
        expected[f"{unit}.bias"] = (heads, tokens)
        expected[f"{unit}.weight"] = (heads, tokens) if circulant else (heads, tokens, tokens)
        if circulant:
            expected[f"{unit}.circulant_pos_x"] = expected[f"{unit}.circulant_pos_y"] = (heads, tokens)
    if vision:
        # A linear layer over flattened patches, [D, C * h * w].
        expected[PATCHES] = tensors[PATCHES].shape
    source.check(expected)
    tensors = dict(tensors)
    for unit in units:
        weight = tensors[f"{unit}.weight"]
        if circulant:
            weight = circulant_matrix(weight, tensors[f"{unit}.circulant_pos_x"], tensors[f"{unit}.circulant_pos_y"])
        # Weights above the diagonal are masked in both causal models, and were never trained.
        tensors[f"{unit}.weight"] = weight.tril() if causal else weight
    # A single head has no axis here, and the linear layer over patches becomes a convolution.
    converted = {own: tensors[name].reshape(state[own].shape) for own, name in names.items()}
    dtype = converted["model.norm.weight"].dtype
    converted |= {name: torch.zeros(shape, dtype=dtype) for name, shape in biases.items()}
    notes.append("prob_survival is not converted: drop_path_rate is 0.")
    if circulant:
        notes.append(
            "The circulant matrices (left context only, scaled by two vectors of positions) became dense n x n "
            "matrices with the same values. If you continue training, they do not stay circulant."
        )
    return checkpoints.fill(model, converted), notes


def text_fields(source: checkpoints.Source, block: str, causal: bool) -> tuple[dict, list[str]]:
    """Returns fields of the config of a text model whose first block has this name, and sentences about it."""
    vocab_size, hidden_size = source.shape("to_embed.weight", 2)
    fields = {
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "max_position_embeddings": source.shape(f"{block}.sgu.bias", 2)[1],
        "is_causal": causal,
    }
    notes = [
        "Assumed, since a state dict does not show it: no shift_tokens, act the identity, "
        + ("causal (--causal)." if causal else "not causal (otherwise give --causal)."),
        checkpoints.TOKENIZER_NOTE,
    ]
    return fields | checkpoints.TEXT_FIELDS, notes


def image_fields(
    source: checkpoints.Source, block: str, image_size: tuple[int, int] | None, patch_size: tuple[int, int] | None
) -> tuple[dict, list[str]]:
    """As `text_fields`, of an image model. For the sizes, see `model_from_lucidrains`."""
    hidden_size, values = source.shape(PATCHES, 2)
    side = math.isqrt(values // 3)
    patch = patch_size or (side, side)
    channels = values // max(math.prod(patch), 1) if patch_size else 3
    if channels * math.prod(patch) != values:
        wanted = "squares of 3 channels" if patch_size is None else f"{patch[0]}x{patch[1]} pixels"
        raise InputError(
            f"{source.path} has patches of {values} values, which do not make {wanted}: give their size with "
            "--patch_size H W."
        )
    fields = {
        "hidden_size": hidden_size,
        "num_channels": channels,
        "num_labels": source.shape("to_logits.2.weight", 2)[0],
        "pooling": "mean",
        "layer_norm_eps": 1e-5,
        "spatial_layer_norm_eps": 1e-5,
        **source.image_fields(source.shape(f"{block}.sgu.bias", 2)[1], patch, image_size),
    }
    notes = [
        "Assumed, since a state dict does not show it: images of {}x{} pixels (--image_size) with {} channels, in "
        "patches of {}x{} (--patch_size), scaled to [-1, 1] (preprocessor_config.json).".format(
            *as_pair(fields["image_size"]), channels, *patch
        ),
        checkpoints.CLASSES_NOTE,
    ]
    return fields, notes


def circulant_matrix(weight: torch.Tensor, pos_x: torch.Tensor, pos_y: torch.Tensor) -> torch.Tensor:
    """
    Returns the matrices [H, n, n] that g-mlp-pytorch makes of its "circulant" weights, all [H, n]:
    W[i, j] = weight[n - 1 + j - i] pos_x[i] pos_y[j] for j <= i, and 0 above the diagonal.
    """
    index = torch.arange(weight.shape[1])
    columns = (index[-1] + index - index[:, None]).clamp(max=index[-1])
    return (weight[:, columns] * pos_x[:, :, None] * pos_y[:, None, :]).tril()


def convert_lucidrains(source: str, out: str, *, license: str | None = None, **options) -> list[str]:
    """Converts a file into a checkpoint. For options, see `model_from_lucidrains`; otherwise `checkpoints.convert`."""
    return checkpoints.convert(functools.partial(model_from_lucidrains, **options), KIND, source, out, license)
