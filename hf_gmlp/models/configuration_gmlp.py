# Copyright 2026 The hf_gmlp authors. Licensed under the Apache License, Version 2.0.
"""Configurations of gMLP and aMLP ("Pay Attention to MLPs", Liu et al., 2021, https://arxiv.org/abs/2105.08050).

`GMLPConfig` describes text models, `GMLPVisionConfig` image models. Every saved checkpoint contains this file.
"""

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig
from transformers.backbone_utils import BackboneConfigMixin
from transformers.utils.type_validators import activation_fn_key, interval, probability

if TYPE_CHECKING:
    # Never executed: transformers copies the files of all imports, so a config is saved with the code of the models.
    from .modeling_gmlp import GMLPModel  # noqa: F401


@strict
class GMLPBaseConfig(PreTrainedConfig):
    """Configuration of the gMLP block (paper, section 2, Figures 1 and 6), which text and image models share.

    Raises:
        huggingface_hub.errors.StrictDataclassError: If a field has a wrong type or value, or if fields conflict. Fields
            are also checked when they are set; conflicts of an edited config, by its `validate()`.
    """

    _auto_class = "AutoConfig"
    # Auto class -> class in modeling_gmlp.py. Every config.json contains this map, so that any head can be loaded.
    code_map: ClassVar[dict[str, str]] = {}
    # Tensor parallelism: every device needs all channels, since the gating unit splits and normalizes them.
    base_model_tp_plan: ClassVar[dict[str, str]] = {
        "layers.*.proj_in": "colwise_gather_output",
        "layers.*.proj_out": "rowwise_split_input",
    }

    hidden_size: int = interval(min=1)(default=512)
    """d_model, the width of a token between blocks."""
    num_hidden_layers: int = interval(min=1)(default=48)
    """L, the number of blocks."""
    intermediate_size: int = interval(min=1)(default=3072)
    """d_ffn, the width after the first channel projection and *before* the split."""
    spatial_gating: Literal["split", "multiplicative", "additive", "linear"] = "split"
    """The form of s(Z), where f is the spatial projection (Table 3): "split", Z1 * f(Z2), the spatial gating unit;
    "multiplicative", Z * f(Z); "additive", Z + f(Z); or "linear", f(Z)."""
    toeplitz: bool = False
    """Whether W[i, j] depends only on j - i, so that W has 2n - 1 weights instead of n * n (Appendix C). Over a grid of
    h x w patches, it depends on row and column offsets and has (2h - 1)(2w - 1) weights."""
    spatial_heads: int = interval(min=1)(default=1)
    """H, the number of groups of channels, each with its own W and b; 1 in the paper. It must divide `spatial_size`.
    With as many heads as channels, a Toeplitz W is the depthwise convolution of cgMLP (Sakuma et al., 2021)."""
    is_causal: bool = False
    """Whether a token sees only itself and earlier ones, in W and in tiny attention. `GMLPForCausalLM` sets it. A
    change takes effect in the next forward pass."""
    attention_size: int = interval(min=0)(default=0)
    """Width of the single-head tiny attention that makes a gMLP an aMLP (Figure 6); 0 for none."""
    hidden_act: str = activation_fn_key(default="gelu")
    """The activation after the first channel projection."""
    hidden_dropout_prob: float | int = probability(default=0.0)
    """Dropout on the embeddings and on the output of every block."""
    activation_dropout: float | int = probability(default=0.0)
    """Dropout after the activation ("GeLU dropout" in the paper's tables)."""
    attention_probs_dropout_prob: float | int = probability(default=0.0)
    """Dropout on the weights of the tiny attention."""
    drop_path_rate: float | int = interval(min=0.0, max=1.0, exclude_max=True)(default=0.0)
    """Stochastic depth: the probability of dropping the last block (1 - the paper's survival probability). For earlier
    blocks, it decreases linearly."""
    normalize_pooled: bool = False
    """Whether the classifiers of sequences and images divide their input, the pooled vector, by its length (L2)."""
    initializer_range: float | int = interval(min=0.0)(default=0.02)
    """Standard deviation of the initial channel projections and embeddings."""
    spatial_initializer_range: float | int = interval(min=0.0)(default=1e-6)
    """Standard deviation of the initial W. With W near zero and b at one, a new block is a feed-forward network."""
    layer_norm_eps: float | int = interval(min=0.0)(default=1e-6)
    """Epsilon of the LayerNorm before every block and of the final one."""
    spatial_layer_norm_eps: float | int = interval(min=0.0)(default=1e-5)
    """Epsilon of the LayerNorm before the spatial projection."""

    def __post_init__(self, **kwargs) -> None:
        # Early checkpoints have this field, which no longer has an effect.
        kwargs.pop("gating_implementation", None)
        if type(self).__module__ == __name__:
            # Skip subclasses in other files, which have their own map. Keep entries for other classes (tokenizers).
            module, code_map = __name__.rpartition(".")[2], self.code_map
            models = module.replace("configuration", "modeling")
            auto_map = {auto: f"{models}.{name}" for auto, name in code_map.items()}
            for auto, name in (kwargs.get("auto_map") or {}).items():
                if str(name).rpartition(".")[2] not in code_map.values():
                    auto_map[auto] = name
            kwargs["auto_map"] = auto_map | {"AutoConfig": f"{module}.{type(self).__name__}"}
        super().__post_init__(**kwargs)

    @property
    def spatial_size(self) -> int:
        """E, the channels of the spatial projection: d_ffn / 2 with a split, d_ffn without one."""
        return self.intermediate_size // 2 if self.spatial_gating == "split" else self.intermediate_size

    def validate_channels(self) -> None:
        """Check that the split and the heads divide the channels."""
        divisor = self.spatial_heads * (2 if self.spatial_size < self.intermediate_size else 1)
        if self.intermediate_size % divisor:
            raise ValueError(
                f"`intermediate_size` must be a multiple of {divisor} (`spatial_heads`, doubled for the split), got "
                f"{self.intermediate_size}."
            )


@strict
class GMLPConfig(GMLPBaseConfig):
    """Configuration of the text models (paper, section 4). The defaults are those of gMLP-base in the paper's Table 5.

    ```python
    >>> from hf_gmlp import GMLPConfig, GMLPForMaskedLM

    >>> model = GMLPForMaskedLM(GMLPConfig(num_hidden_layers=6, hidden_size=128, intermediate_size=512))
    ```
    """

    model_type = "gmlp"
    # In an evaluation, Trainer would otherwise gather the caches of all batches.
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

    vocab_size: int = interval(min=1)(default=32000)
    """V, the number of tokens in the vocabulary; 32K cased SentencePieces in the paper."""
    max_position_embeddings: int = interval(min=1)(default=512)
    """n, the maximum number of tokens. The name is that of transformers; there are no position embeddings."""
    spatial_reach: int | None = None
    """k, the reach of a Toeplitz W: W has 2k - 1 weights, for offsets below k in both directions, and is zero beyond.
    `None` means n, as in the paper. A model trained on k tokens can be extended to any n without training."""
    type_vocab_size: int = interval(min=0)(default=2)
    """Number of segments, as in BERT; 0 for no segment embeddings."""
    toeplitz: bool = True
    """Whether W[i, j] depends only on j - i, as in the paper's language experiments (Appendix C)."""
    mask_padding: bool = True
    """Whether an `attention_mask` hides padding from W and tiny attention, so that a sequence has the same output in
    every batch. The paper leaves padding visible (section 4). Causal models and packed rows always hide it."""
    mlm_transform: bool = True
    """Whether a dense layer, activation and LayerNorm, as in BERT, precede the masked-language-model decoder."""
    sparse_prediction: bool = False
    """Whether masked-language-model training computes logits only at labeled positions."""
    pooling: Literal["cls", "mean", "max"] = "cls"
    """Input of the classifiers: the first token (the last in a causal model), or the mean or maximum of all tokens."""
    classifier_dropout: float | int | None = None
    """Dropout before the classifier; `None` for `hidden_dropout_prob`."""
    pad_token_id: int | None = 0
    """[PAD] in this project's tokenizers."""
    bos_token_id: int | None = 2
    """[CLS] in this project's tokenizers."""
    eos_token_id: int | list[int] | None = 3
    """[SEP] in this project's tokenizers."""
    tie_word_embeddings: bool = True
    """Whether decoders share the weight of the token embeddings."""

    @property
    def classifier_rate(self) -> float:
        """Dropout before the classifier."""
        return self.hidden_dropout_prob if self.classifier_dropout is None else self.classifier_dropout

    def validate_reach(self) -> None:
        """Check that a reach is at most n and that W is Toeplitz."""
        n, reach = self.max_position_embeddings, self.spatial_reach
        if reach is not None and not (self.toeplitz and 1 <= reach <= n):
            raise ValueError(
                f"`spatial_reach` must be from 1 to `max_position_embeddings` ({n}) and needs a Toeplitz W, got "
                f"{reach} with `toeplitz={self.toeplitz}`."
            )


@strict
class GMLPVisionConfig(BackboneConfigMixin, GMLPBaseConfig):
    """Configuration of the image models (paper, section 3). The defaults are those of gMLP-S in the paper's Table 1.

    ```python
    >>> from hf_gmlp import GMLPVisionConfig, GMLPForImageClassification

    >>> model = GMLPForImageClassification(GMLPVisionConfig(image_size=32, patch_size=4, num_labels=10))
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

    is_causal: Literal[False] = False
    """Always off, since patches have no order."""
    hidden_size: int = interval(min=1)(default=256)
    num_hidden_layers: int = interval(min=1)(default=30)
    intermediate_size: int = interval(min=1)(default=1536)
    image_size: int | list[int] | tuple[int, int] = 224
    """Pixels of a square, or (height, width)."""
    patch_size: int | list[int] | tuple[int, int] = 16
    """Pixels of a square, or (height, width); it must divide `image_size`."""
    num_channels: int = interval(min=1)(default=3)
    """Channels of an image."""
    stem: Literal["patch", "conv"] = "patch"
    """The layers that embed patches: "patch", one convolution, as in ViT; or "conv", an early-convolution stem (Xiao et
    al., 2021, https://arxiv.org/abs/2106.14881), which needs a square patch whose side is a power of 2."""
    pooling: Literal["cls", "mean"] = "cls"
    """Input of the classifier: "cls", as in ViT, a [CLS] token before the patches (n = 197 at 224 pixels), then dense
    and tanh, which gives the parameter counts of Table 1; or "mean", as in timm, the mean of the patches (n = 196)."""
    classifier_dropout: float | int = probability(default=0.0)
    """Dropout before the classifier."""
    apply_layernorm: bool = True
    """Whether `GMLPVisionBackbone` applies the final LayerNorm to its feature maps."""
    reshape_hidden_states: bool = True
    """Whether feature maps are [B, D, rows, columns] without the [CLS] token, or sequences [B, n, D] with it, for depth
    heads (DPT, Depth Anything)."""
    # The feature maps of `GMLPVisionBackbone`, by default the output of the last block: "stem" or 0 is the input of the
    # first block, "stage3" or 3 the output of the third.
    _out_features: list[str] | None = None
    _out_indices: list[int] | None = None

    def __post_init__(self, **kwargs) -> None:
        out_features, out_indices = kwargs.pop("out_features", None), kwargs.pop("out_indices", None)
        if out_features is not None or out_indices is not None:
            self.set_output_features_output_indices(out_features, out_indices)
        super().__post_init__(**kwargs)

    @property
    def stage_names(self) -> list[str]:
        """The feature maps that a backbone can return: the input of the first block and the output of every block."""
        return ["stem", *(f"stage{number}" for number in range(1, self.num_hidden_layers + 1))]

    # Unless they are set, these two follow the number of blocks and are not saved.
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
        """Number of tokens before the patches: 1 with a [CLS] token, else 0."""
        return 1 if self.pooling == "cls" else 0

    @property
    def max_position_embeddings(self) -> int:
        """n, the number of tokens."""
        rows, columns = self.grid_size
        return rows * columns + self.num_prefix_tokens

    def validate_image(self) -> None:
        """Check that patches fill the image, and that the stem and W suit them."""
        sizes = (as_pair(self.image_size), as_pair(self.patch_size))
        if any(patch < 1 or size < 1 or size % patch for size, patch in zip(*sizes)):
            raise ValueError(f"`image_size` must be a multiple of `patch_size`, got {sizes[0]} and {sizes[1]}.")
        height, width = sizes[1]
        if self.stem == "conv" and (height != width or height & (height - 1)):
            raise ValueError(f'`stem="conv"` needs a `patch_size` of 1, 2, 4, 8, ..., got {self.patch_size}.')
        if self.toeplitz and self.pooling == "cls":
            raise ValueError('`toeplitz` needs `pooling="mean"` for images: a [CLS] token has no offset on the grid.')
        if not self.reshape_hidden_states and self.pooling != "cls":
            raise ValueError('`reshape_hidden_states=False` needs `pooling="cls"`: depth heads expect a [CLS] token.')


def as_pair(size: int | list[int] | tuple[int, int]) -> tuple[int, int]:
    """Return a size as (height, width), where one number means a square."""
    height, width = (size, size) if isinstance(size, int) else size
    return height, width


__all__ = ["GMLPConfig", "GMLPVisionConfig"]
