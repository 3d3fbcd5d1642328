# Copyright 2026 The hf_gmlp authors. Licensed under the Apache License, Version 2.0.
"""Configurations of gMLP and aMLP ("Pay Attention to MLPs", Liu et al., 2021, https://arxiv.org/abs/2105.08050).

`GMLPConfig` describes text models, `GMLPVisionConfig` image models. Every checkpoint contains this file.
"""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig
from transformers.activations import ACT2FN
from transformers.backbone_utils import BackboneConfigMixin

from .heads import check_fields, check_probabilities, check_sizes, full_auto_map
from .spatial_gating import SPATIAL_GATINGS

if TYPE_CHECKING:
    # Never executed, but transformers follows the relative imports that it reads, so that it saves all of the code with
    # a config alone, and loads all of it.
    from .modeling_gmlp import GMLPModel  # noqa: F401


@strict
class GMLPBaseConfig(PreTrainedConfig):
    """
    The gMLP block (paper, section 2 and Figures 1 and 6), which text and vision models share.

    Raises:
        huggingface_hub.errors.StrictDataclassError: At construction, loading, and when a model is built, for an unknown
            gating or activation, an odd `intermediate_size` with a split, or a size, rate or type out of range.
    """

    _auto_class = "AutoConfig"
    # Auto class -> class of modeling_gmlp.py, written into every config.json: any checkpoint opens as any head.
    code_map: ClassVar[dict[str, str]] = {}
    # The gating unit between the channel projections needs all channels, since it halves and normalizes them.
    base_model_tp_plan: ClassVar[dict[str, str]] = {
        "layers.*.proj_in": "colwise_gather_output",
        "layers.*.proj_out": "rowwise_split_input",
    }

    hidden_size: int = 512
    """d_model, the width of a token between blocks."""
    num_hidden_layers: int = 48
    """L, the number of blocks."""
    intermediate_size: int = 3072
    """d_ffn, the width after the first channel projection and *before* the split."""
    spatial_gating: str = "split"
    """How s(Z) uses the spatial projection f (Table 3): "split", Z1 * f(Z2), the spatial gating unit; "multiplicative",
    Z * f(Z); "additive", Z + f(Z); or "linear", f(Z). `SPATIAL_GATINGS` takes more."""
    toeplitz: bool = False
    """Whether W[i, j] depends only on j - i, so that W has 2n - 1 weights instead of n * n (Appendix C). Over a grid of
    h x w patches it depends on the offsets of rows and columns, with (2h - 1)(2w - 1) weights."""
    spatial_heads: int = 1
    """H, the groups of channels that have a W and b of their own; 1 in the paper. It must divide the channels that the
    spatial projection sees, `intermediate_size` / 2 after a split."""
    is_causal: bool = False
    """Whether a token sees only itself and earlier ones, in W and in tiny attention. It is read in every forward pass.
    `GMLPForCausalLM` sets it."""
    attention_size: int = 0
    """Width of the single-head tiny attention that turns a gMLP into an aMLP (Figure 6); 0 for none."""
    hidden_act: str = "gelu"
    """The activation after the first channel projection."""
    hidden_dropout_prob: float | int = 0.0
    """Dropout on the embeddings and on the output of every block."""
    activation_dropout: float | int = 0.0
    """Dropout after the activation ("GeLU dropout" in the paper's tables)."""
    attention_probs_dropout_prob: float | int = 0.0
    """Dropout on the weights of the tiny attention."""
    drop_path_rate: float | int = 0.0
    """Stochastic depth: the probability of dropping the last block, 1 - survival probability. It grows linearly with
    depth."""
    initializer_range: float | int = 0.02
    """Standard deviation of the initial channel projections and embeddings."""
    spatial_initializer_range: float | int = 1e-6
    """Standard deviation of the initial W, near zero: with b at one, every block starts as a feed-forward network."""
    layer_norm_eps: float | int = 1e-6
    """Of the LayerNorm before every block and of the final one."""
    spatial_layer_norm_eps: float | int = 1e-5
    """Of the LayerNorm in front of the spatial projection."""

    def __post_init__(self, **kwargs):
        if type(self).__module__ == __name__:
            # A subclass from elsewhere has other files and its own map.
            kwargs["auto_map"] = full_auto_map(type(self), self.code_map, kwargs.get("auto_map"))
        super().__post_init__(**kwargs)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs):
        # Early checkpoints saved it.
        config_dict = {key: value for key, value in config_dict.items() if key != "gating_implementation"}
        config = super().from_dict(config_dict, **kwargs)
        # The library sets keywords after it has validated the rest.
        (config[0] if isinstance(config, tuple) else config).validate()
        return config

    @property
    def spatial_size(self) -> int:
        """Channels that the spatial projection sees: d_ffn / 2 after a split, d_ffn without one."""
        splits = SPATIAL_GATINGS[self.spatial_gating].splits
        return self.intermediate_size // 2 if splits else self.intermediate_size

    def validate_block(self):
        check_sizes(self, "hidden_size", "num_hidden_layers", "intermediate_size")
        known = f"must be one of {', '.join(map(repr, SPATIAL_GATINGS))}"
        check_fields(self, ("spatial_gating",), SPATIAL_GATINGS.__contains__, known)
        if SPATIAL_GATINGS[self.spatial_gating].splits:
            even = f'must be even with `spatial_gating="{self.spatial_gating}"`, which halves the channels'
            check_fields(self, ("intermediate_size",), lambda size: size % 2 == 0, even)
        check_sizes(self, "spatial_heads")
        divides = f"must divide the {self.spatial_size} channels of the spatial projection"
        check_fields(self, ("spatial_heads",), lambda heads: self.spatial_size % heads == 0, divides)
        check_fields(self, ("attention_size",), lambda size: size >= 0, "must be at least 0 (no attention)")
        check_fields(
            self, ("hidden_act",), ACT2FN.__contains__, "must be an activation of transformers, such as 'gelu'"
        )
        names = ("initializer_range", "spatial_initializer_range", "layer_norm_eps", "spatial_layer_norm_eps")
        check_fields(self, names, lambda value: 0 <= value < math.inf, "must be a finite number of at least 0")
        check_probabilities(self, "hidden_dropout_prob", "activation_dropout", "attention_probs_dropout_prob")
        rule = "must be at least 0 and below 1 (1 - p for the paper's survival probability p)"
        check_fields(self, ("drop_path_rate",), lambda rate: 0 <= rate < 1, rule)

    @classmethod
    def from_preset(cls, name: str, **overrides):
        """The configuration of an architecture that comes with the package hf_gmlp, with some fields changed:
        `from_preset("amlp-base", num_labels=3)`. `hf-gmlp presets` lists the names. Raises a ValueError if there is no
        preset of that name for this class, or no field of a given name."""
        folder = Path(__file__).parent.parent / "presets"
        known = sorted(path.parent.name for path in folder.glob("*/config.json"))
        if name not in known:
            choice = f"choose one of {', '.join(known)}" if known else "the package hf_gmlp has presets: install it"
            raise ValueError(f"There is no preset {name!r}; {choice}.")
        fields = json.loads((folder / name / "config.json").read_text(encoding="utf-8"))
        if fields["model_type"] != cls.model_type:
            raise ValueError(f"The preset {name!r} is of the type {fields['model_type']!r}, not a `{cls.__name__}`.")
        config, unknown = cls.from_dict(fields, return_unused_kwargs=True, **overrides)
        if unknown:
            raise ValueError(f"`{cls.__name__}` has no field {', '.join(map(repr, unknown))}.")
        return config


@strict
class GMLPConfig(GMLPBaseConfig):
    """
    Configuration of the text models (paper, section 4). The defaults are gMLP-base of the paper's Table 5.

    ```python
    >>> from hf_gmlp import GMLPConfig, GMLPForMaskedLM

    >>> model = GMLPForMaskedLM(GMLPConfig(num_hidden_layers=6, hidden_size=128, intermediate_size=512))
    ```
    """

    model_type = "gmlp"
    # Trainer would gather it from all batches of an evaluation.
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values", "cache"]
    code_map: ClassVar[dict[str, str]] = {
        "AutoModel": "GMLPModel",
        "AutoModelForPreTraining": "GMLPForMaskedLM",
        "AutoModelForMaskedLM": "GMLPForMaskedLM",
        "AutoModelForCausalLM": "GMLPForCausalLM",
        "AutoModelForSequenceClassification": "GMLPForSequenceClassification",
        "AutoModelForTokenClassification": "GMLPForTokenClassification",
        "AutoModelForQuestionAnswering": "GMLPForQuestionAnswering",
        "AutoModelForMultipleChoice": "GMLPForMultipleChoice",
    }
    base_model_tp_plan: ClassVar[dict[str, str]] = GMLPBaseConfig.base_model_tp_plan | {
        "embeddings.word_embeddings": "embedding_rowwise",
    }
    base_model_fsdp_plan: ClassVar[dict[str, str]] = {
        "embeddings.word_embeddings": "free_full_weight",
        "layers.*": "free_full_weight",
        "norm": "keep_full_weight",
    }

    vocab_size: int = 32000
    """The paper's has 32K cased SentencePieces."""
    max_position_embeddings: int = 512
    """n, the longest sequence. There are no position embeddings: this is the name that other code looks for."""
    type_vocab_size: int = 2
    """Segments, as in BERT; 0 for no segment embeddings."""
    toeplitz: bool = True
    """As in the base class; on, as in the paper's language experiments."""
    mask_padding: bool = True
    """Whether an `attention_mask` hides padding from W and tiny attention, so that a sequence has the same output alone
    or in any batch. The paper leaves padding visible (section 4). Causal models and packed rows always hide it."""
    mlm_transform: bool = True
    """Whether BERT's dense, activation and LayerNorm precede the masked-language-model decoder."""
    sparse_prediction: bool = False
    """Whether masked-language-model logits are computed only at the labeled positions in training."""
    pooling: Literal["cls", "mean", "max"] = "cls"
    """The classifiers' input: the first token (the last of a causal model), or mean or maximum of all but padding."""
    classifier_dropout: float | int | None = None
    """Dropout before the classifier; `None` for `hidden_dropout_prob`."""
    pad_token_id: int | None = 0
    """[PAD] of the project's tokenizer."""
    bos_token_id: int | None = 2
    """[CLS] of the project's tokenizer."""
    eos_token_id: int | list[int] | None = 3
    """[SEP] of the project's tokenizer."""
    tie_word_embeddings: bool = True
    """Whether decoders share the weight of the embeddings."""

    def validate_text(self):
        check_sizes(self, "vocab_size", "max_position_embeddings")
        check_fields(self, ("type_vocab_size",), lambda size: size >= 0, "must be at least 0 (no segments)")
        check_probabilities(self, "classifier_dropout")


@strict
class GMLPVisionConfig(BackboneConfigMixin, GMLPBaseConfig):
    """
    Configuration of the image models (paper, section 3). The defaults are gMLP-S of the paper's Table 1. For a few
    thousand images, "gmlp-mini4-32" has what the paper's lack: `toeplitz`, `spatial_heads` and `stem="conv"`.

    ```python
    >>> from hf_gmlp import GMLPVisionConfig, GMLPForImageClassification

    >>> model = GMLPForImageClassification(GMLPVisionConfig.from_preset("gmlp-ti16-224", num_labels=10))
    ```
    """

    model_type = "gmlp_vision"
    code_map: ClassVar[dict[str, str]] = {
        "AutoModel": "GMLPVisionModel",
        "AutoModelForImageClassification": "GMLPForImageClassification",
        "AutoBackbone": "GMLPVisionBackbone",
    }
    base_model_fsdp_plan: ClassVar[dict[str, str]] = {
        "embeddings": "free_full_weight",
        "layers.*": "free_full_weight",
        "norm": "keep_full_weight",
    }

    hidden_size: int = 256
    num_hidden_layers: int = 30
    intermediate_size: int = 1536
    image_size: int | list[int] | tuple[int, int] = 224
    """Pixels of a square, or (height, width)."""
    patch_size: int | list[int] | tuple[int, int] = 16
    """Likewise; it must divide `image_size`."""
    num_channels: int = 3
    """Channels of an image."""
    stem: Literal["patch", "conv"] = "patch"
    """What makes patches: "patch", one convolution, as in ViT; or "conv", an early-convolution stem (Xiao et al., 2021,
    https://arxiv.org/abs/2106.14881), which needs a square patch whose side is a power of 2."""
    pooling: Literal["cls", "mean"] = "cls"
    """"cls" follows ViT: a [CLS] token in front of the patches (n = 197 at 224 pixels) and dense and tanh before the
    classifier, which gives the parameter counts of Table 1. "mean" averages the patches (n = 196), as in timm."""
    classifier_dropout: float | int = 0.0
    """Dropout before the classifier."""
    apply_layernorm: bool = True
    """Whether the feature maps of `GMLPVisionBackbone` go through the final LayerNorm."""
    # What `GMLPVisionBackbone` returns, given as `out_features` or `out_indices`: "stem" or 0 is the input of the first
    # block, "stage3" or 3 the output of the third. By default the last.
    _out_features: list[str] | None = None
    _out_indices: list[int] | None = None

    def __post_init__(self, **kwargs):
        out_features, out_indices = kwargs.pop("out_features", None), kwargs.pop("out_indices", None)
        if out_features is not None or out_indices is not None:
            self.set_output_features_output_indices(out_features, out_indices)
        super().__post_init__(**kwargs)

    @property
    def stage_names(self) -> list[str]:
        """What a backbone can return: the input of the first block and the output of every block."""
        return ["stem", *(f"stage{number}" for number in range(1, self.num_hidden_layers + 1))]

    # Unless they are set, these follow changes of the depth and are not saved.
    @BackboneConfigMixin.out_features.getter
    def out_features(self) -> list[str]:
        return self._out_features or self.stage_names[-1:]

    @BackboneConfigMixin.out_indices.getter
    def out_indices(self) -> list[int]:
        return self._out_indices or [self.num_hidden_layers]

    def to_dict(self) -> dict[str, Any]:
        fields = super().to_dict()
        if self._out_features is None:
            del fields["out_features"], fields["out_indices"]
        return fields

    @property
    def grid_size(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        (height, width), (patch_height, patch_width) = as_pair(self.image_size), as_pair(self.patch_size)
        return height // patch_height, width // patch_width

    @property
    def num_prefix_tokens(self) -> int:
        """Tokens in front of the patches: the [CLS] token, or none."""
        return 1 if self.pooling == "cls" else 0

    @property
    def max_position_embeddings(self) -> int:
        """n, the number of tokens that the spatial projection mixes."""
        rows, columns = self.grid_size
        return rows * columns + self.num_prefix_tokens

    def validate_vision(self):
        check_fields(self, ("is_causal",), lambda on: not on, "must be off for images: patches have no order")
        if self.toeplitz and self.pooling == "cls":
            raise ValueError('`toeplitz` needs `pooling="mean"` for images: a [CLS] token has no offset on the grid.')
        check_sizes(self, "num_channels")
        is_size = lambda size: isinstance(size, int) or len(size) == 2  # noqa: E731
        check_fields(self, ("image_size", "patch_size"), is_size, "must be one number or (height, width)")
        for side, size, patch in zip(("height", "width"), as_pair(self.image_size), as_pair(self.patch_size)):
            if patch < 1 or size < 1 or size % patch:
                rule = f"`image_size` must be a multiple of the patch {side} (`patch_size`)"
                raise ValueError(f"{rule}, got {size} and {patch}.")
        height, width = as_pair(self.patch_size)
        if self.stem == "conv" and (height != width or height & (height - 1)):
            raise ValueError(f'`stem="conv"` needs a `patch_size` of 1, 2, 4, 8, ..., got {self.patch_size}.')
        check_probabilities(self, "classifier_dropout")


def as_pair(size: int | list[int] | tuple[int, int]) -> tuple[int, int]:
    """(height, width) of a size that may be given as one number."""
    return (size, size) if isinstance(size, int) else (size[0], size[1])


__all__ = ["GMLPConfig", "GMLPVisionConfig"]
