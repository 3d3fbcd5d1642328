"""Conversion of timm's gMLPs and of g-mlp-pytorch's `gMLP` and `gMLPVision` into checkpoints of this package.

Tensors get this package's names and shapes, which show all sizes of the model. A strict `load_state_dict` then names
every tensor that is missing, unexpected or of another shape.
"""

import math
import re
import textwrap
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from transformers import PreTrainedModel

from ..cards import model_card
from ..errors import InputError, hub_reason
from ..loading import LOADING_ERRORS
from ..models.configuration_gmlp import GMLPVisionConfig, as_pair
from ..models.modeling_gmlp import GMLPForCausalLM, GMLPForImageClassification, GMLPForMaskedLM

Tensors = dict[str, torch.Tensor]

# What to replace in the names of timm and, from `to_embed` on, of g-mlp-pytorch, in this order.
NAMES = {
    r"^stem\.proj": "model.embeddings.projection",
    r"^blocks\.": "model.layers.",
    r"\.mlp_channels\.fc1\.": ".proj_in.",
    r"\.mlp_channels\.gate\.": ".spatial_gating_unit.",
    r"\.mlp_channels\.fc2\.": ".proj_out.",
    r"^norm\.": "model.norm.",
    r"^head\.": "classifier.",
    r"^to_embed\.": "model.embeddings.word_embeddings.",
    r"^to_patch_embed\.1\.": "model.embeddings.projection.",
    # Blocks of text models have one more layer around them, which shifts tokens.
    r"^layers\.(\d+)\.(fn\.)+": r"model.layers.\1.",
    r"\.proj_in\.0\.": ".proj_in.",
    r"\.attn\.to_(qkv|out)\.": r".attention.\1_proj.",
    r"\.sgu\.(?!norm)": ".spatial_gating_unit.proj.",
    r"\.sgu\.": ".spatial_gating_unit.",
    r"^to_logits\.0\.": "model.norm.",
    r"^to_logits\.1\.": "decoder.",
    r"^to_logits\.2\.": "classifier.",
}
# A dense W and PyTorch's epsilon; in text models, bare embeddings, an untied decoder and no special tokens.
LAYER_FIELDS: dict[str, Any] = {"toeplitz": False, "layer_norm_eps": 1e-5, "spatial_layer_norm_eps": 1e-5}
TEXT_FIELDS = LAYER_FIELDS | {"type_vocab_size": 0, "mlm_transform": False, "tie_word_embeddings": False}
TEXT_FIELDS |= dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))


def convert_timm(source: str, out: str, *, license: str | None = None) -> list[str]:
    """Convert a file, or the weights that timm downloads for a name, into a checkpoint; return sentences about it.

    Args:
        license: The identifier of the weights' license; by default, the one that timm states for a name.
    """
    # The image processor needs Pillow: fail before the weights are downloaded.
    import PIL  # noqa: F401

    if Path(source).exists():
        model, notes = model_from_timm(read_tensors(source)), list[str]()
    else:
        import timm

        try:
            pretrained = timm.create_model(source.removeprefix("timm/"), pretrained=True)
        except LOADING_ERRORS as error:
            why = hub_reason(error)
            raise InputError(f"{source} is neither a file nor a timm model with weights: {why}.") from error
        model, license = model_from_timm(pretrained.state_dict()), license or pretrained.pretrained_cfg.get("license")
        info = timm.data.ImageNetInfo("imagenet-1k")
        names = info.label_descriptions()
        # WordNet's identifier distinguishes classes of the same name, such as the bird and the machine "crane".
        names = [n if names.count(n) == 1 else f"{n} ({info.index_to_label_name(i)})" for i, n in enumerate(names)]
        model.config.id2label = dict(enumerate(names))
        model.config.label2id = {name: i for i, name in enumerate(names)}
        notes = ["The classes are those of ImageNet-1k, with the names that timm gives them."]
    return write_checkpoint(model, out, f"timm's weights {Path(source).name}", notes, license)


def convert_lucidrains(source: str, out: str, *, causal: bool = False, license: str | None = None) -> list[str]:
    """Convert a file of g-mlp-pytorch into a checkpoint, and return sentences about it.

    Args:
        causal: Whether a text model was made with `causal=True`, which the file does not show.
    """
    model = model_from_lucidrains(read_tensors(source), causal)
    assumed = f"Assumed: no shift_tokens, act the identity, causal={causal} (--causal), prob_survival 1."
    tokenizer = "There is no tokenizer: add the source's, and set its pad, bos and eos_token_id in config.json."
    notes = [assumed] if isinstance(model.config, GMLPVisionConfig) else [assumed, tokenizer]
    return write_checkpoint(model, out, f"a gMLP of g-mlp-pytorch, {Path(source).name}", notes, license)


def model_from_timm(tensors: Tensors) -> PreTrainedModel:
    """Convert a state dict of timm, whose other fields have the defaults of the config."""
    return load(GMLPForImageClassification, rename(tensors))


def model_from_lucidrains(tensors: Tensors, causal: bool = False) -> PreTrainedModel:
    """Convert a state dict of g-mlp-pytorch into a GMLPForMaskedLM, GMLPForCausalLM or GMLPForImageClassification."""
    converted: Tensors = {}
    is_image = "to_patch_embed.1.weight" in tensors
    for name, tensor in rename(tensors).items():
        if name == "model.embeddings.projection.weight":
            # A linear layer over flattened patches: [D, C * h * w].
            values, side = tensor.shape[1], math.isqrt(tensor.shape[1] // 3)
            if values != 3 * side * side:
                raise InputError(f"The patches have {values} values: only square ones of three channels are converted.")
            tensor = tensor.unflatten(1, (3, side, side))
        elif name.endswith(".attention.qkv_proj.weight"):
            # The source has no bias here.
            converted[name.removesuffix("weight") + "bias"] = tensor.new_zeros(len(tensor))
        elif name.endswith(".spatial_gating_unit.proj.weight") and causal and not is_image:
            # Weights above the diagonal are masked in both causal models, and were never trained.
            tensor = tensor.tril()
        # In the source, even a single head has an axis.
        converted[name] = tensor.squeeze(0) if ".spatial_gating_unit.proj." in name else tensor
    if is_image:
        return load(GMLPForImageClassification, converted, **LAYER_FIELDS)
    return load(GMLPForCausalLM if causal else GMLPForMaskedLM, converted, **TEXT_FIELDS)


def rename(tensors: Tensors) -> Tensors:
    """Give tensors the names of this package."""
    for pattern, own in NAMES.items():
        tensors = {re.sub(pattern, own, name): tensor for name, tensor in tensors.items()}
    return tensors


def load(model_class: type[PreTrainedModel], tensors: Tensors, **fields: Any) -> PreTrainedModel:
    """Return a model of these tensors, which show all sizes for texts or square images, with other `fields`."""
    block = "model.layers.0"
    try:
        intermediate_size, hidden_size = tensors[f"{block}.proj_in.weight"].shape
        *heads, n = tensors[f"{block}.spatial_gating_unit.proj.bias"].shape
        if model_class is GMLPForImageClassification:
            _, channels, patch, _ = tensors["model.embeddings.projection.weight"].shape
            fields |= {"num_channels": channels, "patch_size": patch, "image_size": math.isqrt(n) * patch}
            fields |= {"num_labels": len(tensors["classifier.weight"]), "pooling": "mean"}
        else:
            vocab_size = len(tensors["model.embeddings.word_embeddings.weight"])
            fields |= {"vocab_size": vocab_size, "max_position_embeddings": n}
        fields |= {"hidden_size": hidden_size, "intermediate_size": intermediate_size, "spatial_heads": (*heads, 1)[0]}
        fields["num_hidden_layers"] = len({name.split(".")[2] for name in tensors if name.startswith("model.layers.")})
        fields["attention_size"] = len(tensors.get(f"{block}.attention.qkv_proj.weight", ())) // 3
        model = model_class(model_class.config_class(**fields)).to(tensors[f"{block}.proj_in.weight"].dtype)
        model.load_state_dict(tensors)
    except (*LOADING_ERRORS, LookupError) as error:
        wrong = textwrap.shorten(str(error), 500, placeholder=" ...")
        raise InputError(f"These tensors, with the names of this package, are not those of a gMLP: {wrong}") from error
    return model.eval()


def read_tensors(path: str | Path) -> Tensors:
    """Read the state dict in a .safetensors file or a file of torch.save. Nothing in it is executed."""
    try:
        if Path(path).suffix == ".safetensors":
            return safetensors.torch.load_file(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(content, dict) or not all(isinstance(value, torch.Tensor) for value in content.values()):
            raise ValueError("it holds more than tensors by name")
        return content
    except (*LOADING_ERRORS, LookupError) as error:
        why = hub_reason(error)
        raise InputError(f"{path} is no state dict as torch.save(model.state_dict(), ...) writes it: {why}.") from error


def write_checkpoint(model: PreTrainedModel, out: str, source: str, notes: list[str], license: str | None) -> list[str]:
    """Write a checkpoint, with a card and for images timm's processor, to a new folder; return sentences about it."""
    if Path(out).exists():
        raise InputError(f"{out} exists already: choose a new folder.")
    if isinstance(model.config, GMLPVisionConfig):
        from ..processor import evaluation_processor

        size, half = as_pair(model.config.image_size), [0.5] * model.config.num_channels
        evaluation_processor(size, mean=half, std=half).save_pretrained(out)
        assumed = f"Assumed: images of {size[0]}x{size[1]} pixels, with values from -1 to 1 (preprocessor_config.json)."
        notes = [*notes, assumed]
    origin = f"The weights were converted from {source}; they were not trained with hf_gmlp.\n"
    card = model_card(model, Path(out).name, license=license or "unknown", source="\n- ".join([origin, *notes]))
    model.save_pretrained(out)
    card.save(Path(out, "README.md"))
    return [f"{out}: open it with {model._auto_class}.", *notes]
