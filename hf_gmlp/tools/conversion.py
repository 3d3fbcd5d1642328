"""Conversion of timm's gMLPs and of g-mlp-pytorch's `gMLP` and `gMLPVision` into checkpoints of this package.

Tensors get this package's names and shapes, which show all sizes of the model. A strict `load_state_dict` then names
every tensor that is missing, unexpected or of another shape.
"""

import argparse
import functools
import math
import re
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from transformers import PreTrainedModel

from ..cards import model_card
from ..errors import InputError, first_line, need
from ..loading import LOADING_ERRORS
from ..models.configuration_gmlp import GMLPVisionConfig, as_pair
from ..models.modeling_gmlp import GMLPForCausalLM, GMLPForImageClassification, GMLPForMaskedLM

Tensors = dict[str, torch.Tensor]

# Keys under which training scripts save the weights. Averaged weights come first, as in timm.
WRAPPERS = ("state_dict_ema", "model_ema", "state_dict", "model")
# DistributedDataParallel and torch.compile put these in front of every name.
PREFIXES = re.compile(r"^(_orig_mod\.|module\.)+")
# What to replace in the names of other projects, in this order.
TIMM = {
    r"^stem\.proj": "model.embeddings.projection",
    r"^blocks\.": "model.layers.",
    r"\.mlp_channels\.fc1\.": ".proj_in.",
    r"\.mlp_channels\.gate\.": ".spatial_gating_unit.",
    r"\.mlp_channels\.fc2\.": ".proj_out.",
    r"^norm\.": "model.norm.",
    r"^head\.": "classifier.",
}
LUCIDRAINS = {
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
CLASSES_NOTE = "The classes have no names: LABEL_0 and so on (id2label and label2id in config.json)."


def convert_timm(source: str, out: str, *, license: str | None = None) -> list[str]:
    """Convert weights of timm into a checkpoint, and return sentences about it.

    Args:
        source: A file, or the name of a model, whose weights timm downloads.
        license: The identifier of the weights' license; by default, the one that timm states for a name.
    """
    # The image processor needs Pillow: fail before the weights are downloaded.
    need("PIL")
    check_new(out)
    if Path(source).exists():
        tensors = read_tensors(source)
    else:
        import timm

        try:
            pretrained = timm.create_model(source.removeprefix("timm/"), pretrained=True)
        except LOADING_ERRORS as error:
            why = first_line(error).rstrip(".")
            raise InputError(f"{source} is neither a file nor a timm model with weights: {why}.") from error
        tensors, license = pretrained.state_dict(), license or pretrained.pretrained_cfg.get("license")
    model = model_from_timm(tensors)
    notes = [CLASSES_NOTE]
    if labels := imagenet_labels() if model.config.num_labels == 1000 else None:
        model.config.id2label = labels
        model.config.label2id = {label: i for i, label in labels.items()}
        notes = ["The 1,000 classes are assumed to be those of ImageNet-1k, and have the names that timm gives them."]
    return write_checkpoint(model, out, f"timm's weights {Path(source).name}", notes, license)


def convert_lucidrains(source: str, out: str, *, causal: bool = False, license: str | None = None) -> list[str]:
    """Convert a file of g-mlp-pytorch into a checkpoint, and return sentences about it.

    Args:
        causal: Whether a text model was made with `causal=True`, which the file does not show.
    """
    check_new(out)
    model = model_from_lucidrains(read_tensors(source), causal)
    notes = ["prob_survival is not converted: drop_path_rate is 0."]
    if isinstance(model.config, GMLPVisionConfig):
        notes = [CLASSES_NOTE, *notes]
    else:
        assumed = "causal (--causal)" if causal else "not causal (otherwise pass --causal)"
        tokenizer = "There is no tokenizer: add the source's, and set its pad, bos and eos_token_id in config.json."
        notes = [f"Assumed: no shift_tokens, act the identity, {assumed}.", tokenizer, *notes]
    return write_checkpoint(model, out, f"a gMLP of g-mlp-pytorch, {Path(source).name}", notes, license)


def model_from_timm(tensors: Tensors) -> PreTrainedModel:
    """Convert a state dict of timm into a GMLPForImageClassification."""
    # Fields that the tensors do not show have the same defaults as in timm.
    return load(GMLPForImageClassification, rename(tensors, TIMM))


def model_from_lucidrains(tensors: Tensors, causal: bool = False) -> PreTrainedModel:
    """Convert a state dict of g-mlp-pytorch into a GMLPForMaskedLM, GMLPForCausalLM or GMLPForImageClassification."""
    converted: Tensors = {}
    for name, tensor in rename(tensors, LUCIDRAINS).items():
        if name == "model.embeddings.projection.weight":
            # A linear layer over flattened patches: [D, C * h * w].
            values, side = tensor.shape[1], math.isqrt(tensor.shape[1] // 3)
            if values != 3 * side * side:
                raise InputError(f"The patches have {values} values: only square ones of three channels are converted.")
            tensor = tensor.unflatten(1, (3, side, side))
        elif name.endswith(".attention.qkv_proj.weight"):
            # The source has no bias here.
            converted[name.removesuffix("weight") + "bias"] = tensor.new_zeros(len(tensor))
        elif name.endswith(".spatial_gating_unit.proj.weight") and causal:
            # Weights above the diagonal are masked in both causal models, and were never trained.
            tensor = tensor.tril()
        # In the source, even a single head has an axis.
        converted[name] = tensor.squeeze(0) if ".spatial_gating_unit.proj." in name else tensor
    if "model.embeddings.projection.weight" in converted:
        if causal:
            raise InputError("--causal is for text models, not for image models: leave it out.")
        return load(GMLPForImageClassification, converted, **LAYER_FIELDS)
    model_class = GMLPForCausalLM if causal else GMLPForMaskedLM
    return load(model_class, converted, is_causal=causal, **TEXT_FIELDS)


def rename(tensors: Tensors, table: dict[str, str]) -> Tensors:
    """Give tensors the names of this package."""
    renamed = {}
    for name, tensor in tensors.items():
        for pattern, own in table.items():
            name = re.sub(pattern, own, name)
        renamed[name] = tensor
    return renamed


def load(model_class: type[PreTrainedModel], tensors: Tensors, **fields: Any) -> PreTrainedModel:
    """Return a model of these tensors in their own dtype (the widest of several), in eval mode.

    Args:
        tensors: A state dict of the class, which shows all sizes. Images are assumed to be square.
        fields: Other fields of the config.
    """
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
    except (KeyError, ValueError) as error:
        raise InputError(f"These are not the tensors of such a gMLP; missing or misshapen: {error}.") from error
    fields |= {"hidden_size": hidden_size, "intermediate_size": intermediate_size, "spatial_heads": (*heads, 1)[0]}
    fields["num_hidden_layers"] = len({name.split(".")[2] for name in tensors if name.startswith("model.layers.")})
    fields["attention_size"] = len(tensors.get(f"{block}.attention.qkv_proj.weight", ())) // 3
    model = model_class(model_class.config_class(**fields))
    model.to(functools.reduce(torch.promote_types, (tensor.dtype for tensor in tensors.values())))
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        wrong = textwrap.shorten(str(error).partition(":")[2], 500, placeholder=" ...")
        raise InputError(f"These tensors, with the names of this package, do not make a gMLP. {wrong}") from error
    return model.eval()


def read_tensors(path: str | Path) -> Tensors:
    """Read the tensors of a .safetensors file or of a file of torch.save, by name. Nothing in it is executed.

    The file may be a training script's checkpoint, with the weights under one of `WRAPPERS`.
    """
    try:
        if Path(path).suffix == ".safetensors":
            content: Any = safetensors.torch.load_file(path)
        else:
            # timm's training script saves its flags with the weights.
            with torch.serialization.safe_globals([argparse.Namespace]):
                content = torch.load(path, map_location="cpu", weights_only=True)
        if isinstance(content, dict):
            content = next((content[key] for key in WRAPPERS if isinstance(content.get(key), dict)), content)
        tensors = content.values() if isinstance(content, dict) else [None]
        if not all(isinstance(tensor, torch.Tensor) and tensor.is_floating_point() for tensor in tensors):
            raise ValueError("it does not hold floating-point tensors by name")
        return {PREFIXES.sub("", name): tensor for name, tensor in content.items()}
    except (*LOADING_ERRORS, LookupError) as error:
        why = first_line(error).rstrip(".")
        raise InputError(f"{path} is no state dict as torch.save(model.state_dict(), ...) writes it: {why}.") from error


def imagenet_labels() -> dict[int, str] | None:
    """Return the classes of ImageNet-1k with timm's names, made unique; None if timm is not installed."""
    try:
        from timm.data import ImageNetInfo
    except ImportError:
        return None
    info = ImageNetInfo("imagenet-1k")
    names = info.label_descriptions()
    count = Counter(names)
    # WordNet's identifier distinguishes classes of the same name, such as the bird and the machine "crane".
    return {i: name if count[name] == 1 else f"{name} ({info.index_to_label_name(i)})" for i, name in enumerate(names)}


def check_new(out: str | Path):
    """Raise an InputError if `out` is a file, or a folder that is not empty."""
    if Path(out).is_file() or (Path(out).is_dir() and any(Path(out).iterdir())):
        raise InputError(f"{out} exists already: choose a new name.")


def write_checkpoint(model: PreTrainedModel, out: str, source: str, notes: list[str], license: str | None) -> list[str]:
    """Write config, weights, code, card, and for images timm's processor for evaluation; return sentences about it.

    Args:
        source: What was converted, in words, for the card.
        notes: Sentences about the model, for the card.
    """
    if isinstance(model.config, GMLPVisionConfig):
        from ..processor import evaluation_processor

        size, half = as_pair(model.config.image_size), [0.5] * model.config.num_channels
        evaluation_processor(size, mean=half, std=half).save_pretrained(out)
        pixels = f"{size[0]}x{size[1]} pixels, with values from -1 to 1"
        notes = [*notes, f"Assumed: images of {pixels} (preprocessor_config.json)."]
    origin = f"The weights were converted from {source}; they were not trained with hf_gmlp.\n"
    card = model_card(model, Path(out).name, license=license or "unknown", source="\n- ".join([origin, *notes]))
    model.save_pretrained(out)
    card.save(Path(out, "README.md"))
    if not license:
        notes = [*notes, "The license of the weights is unknown, as the card says (--license)."]
    return [f"{out}: open it with {model._auto_class}.", *notes]
