# Copyright 2026 The hf_gmlp authors. Licensed under the Apache License, Version 2.0.
"""Configurations of gMLP and aMLP ("Pay Attention to MLPs", Liu et al., 2021, https://arxiv.org/abs/2105.08050).

`GMLPConfig` describes text models, `GMLPVisionConfig` image models. Every checkpoint contains this file.
"""

import dataclasses
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
    The gMLP block (paper, section 2 and Figures 1 and 6), which text and vision models share. Each field is explained
    beside it.

    Raises:
        huggingface_hub.errors.StrictDataclassError: At construction, for an unknown gating or activation, an odd
            `intermediate_size` with a split, or a size, rate or type out of range.
    """

    _auto_class = "AutoConfig"
    _gating_implementation: ClassVar[str] = "auto"
    # Auto class -> class of modeling_gmlp.py, written into every config.json: any checkpoint opens as any head.
    code_map: ClassVar[dict[str, str]] = {}
    # Tensor parallelism splits the channel projections. The gating unit between them needs all channels, since it
    # halves and normalizes them.
    base_model_tp_plan: ClassVar[dict[str, str]] = {
        "layers.*.proj_in": "colwise_gather_output",
        "layers.*.proj_out": "rowwise_split_input",
    }

    hidden_size: int = 512  # d_model, the width of a token between blocks
    num_hidden_layers: int = 48  # L, the number of blocks
    intermediate_size: int = 3072  # d_ffn, the width after the first channel projection and *before* the split
    # How s(Z) uses the spatial projection f, the four rows of Table 3: "split", Z1 * f(Z2) (the spatial gating unit),
    # "multiplicative", Z * f(Z), "additive", Z + f(Z), or "linear", f(Z). `SPATIAL_GATINGS` takes more.
    spatial_gating: str = "split"
    # Whether W[i, j] depends only on j - i, so that W has 2n - 1 weights instead of n * n (Appendix C).
    toeplitz: bool = False
    # Whether a token sees only itself and earlier ones, in W and in tiny attention. Models read this in every forward
    # pass, so it may change at any time. `GMLPForCausalLM` sets it.
    is_causal: bool = False
    # Width of the single-head tiny attention that turns a gMLP into an aMLP (Figure 6); 0 for none.
    attention_size: int = 0
    hidden_act: str = "gelu"  # the activation after the first channel projection
    hidden_dropout_prob: float | int = 0.0  # on the embeddings and on the output of every block
    activation_dropout: float | int = 0.0  # after the activation ("GeLU dropout" in the paper's tables)
    attention_probs_dropout_prob: float | int = 0.0  # on the weights of the tiny attention
    # Stochastic depth: the probability of dropping the last block, 1 - survival probability. It grows linearly from the
    # first block to the last.
    drop_path_rate: float | int = 0.0
    initializer_range: float | int = 0.02  # standard deviation of the initial channel projections and embeddings
    # Standard deviation of the initial W. W starts near zero and b at one, so that every block starts as a plain
    # feed-forward network.
    spatial_initializer_range: float | int = 1e-6
    layer_norm_eps: float | int = 1e-6  # of the LayerNorm before every block and of the final one
    spatial_layer_norm_eps: float | int = 1e-5  # of the LayerNorm in front of the spatial projection

    def __post_init__(self, **kwargs):
        if type(self).__module__ == __name__:
            # A subclass from elsewhere has other files and its own map.
            kwargs["auto_map"] = full_auto_map(type(self), self.code_map, kwargs.get("auto_map"))
        super().__post_init__(**kwargs)

    @property
    def gating_implementation(self) -> str:
        """How blocks compute: "naive", the paper's equations, or "auto", what the installed package measured to be
        fastest. Like `attn_implementation`, a keyword of construction and loading that is never saved."""
        return self._gating_implementation

    @gating_implementation.setter
    def gating_implementation(self, name: str):
        self._gating_implementation = name

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs):
        # Early checkpoints saved it.
        config_dict = {key: value for key, value in config_dict.items() if key != "gating_implementation"}
        return super().from_dict(config_dict, **kwargs)

    def to_dict(self) -> dict[str, Any]:
        fields = super().to_dict()
        fields.pop("_gating_implementation", None)
        # PEFT's prompt tuning reads this.
        return fields | {"num_attention_heads": self.num_attention_heads}

    def to_diff_dict(self) -> dict[str, Any]:
        """What config.json holds."""
        fields = super().to_diff_dict()
        fields.pop("num_attention_heads")
        return fields

    @property
    def num_attention_heads(self) -> int:
        """Tiny attention has a single head."""
        return 1

    @num_attention_heads.setter
    def num_attention_heads(self, number: int):
        if number != 1:
            raise ValueError(f"`num_attention_heads` must be 1, the single head of a tiny attention, got {number}.")

    @property
    def spatial_size(self) -> int:
        """Channels that the spatial projection sees: d_ffn / 2 after a split, d_ffn without one."""
        splits = SPATIAL_GATINGS[self.spatial_gating].splits
        return self.intermediate_size // 2 if splits else self.intermediate_size

    def validate_block(self):
        check_sizes(self, "hidden_size", "num_hidden_layers", "intermediate_size")
        if self.spatial_gating not in SPATIAL_GATINGS:
            raise ValueError(
                f"There is no `spatial_gating` {self.spatial_gating!r}. Choose one of: "
                f"{', '.join(map(repr, SPATIAL_GATINGS))}."
            )
        if SPATIAL_GATINGS[self.spatial_gating].splits and self.intermediate_size % 2:
            raise ValueError(
                f'`spatial_gating="{self.spatial_gating}"` halves the channels, so `intermediate_size` must be '
                f"even, got {self.intermediate_size}. Make it even or choose another gating."
            )
        if self.attention_size < 0:
            raise ValueError(
                f"`attention_size` is the width of the tiny attention and cannot be negative, got "
                f"{self.attention_size}. Use 0 for a gMLP without attention, 64 or 128 for the paper's aMLPs."
            )
        if self.hidden_act not in ACT2FN:
            raise ValueError(
                f"`hidden_act` {self.hidden_act!r} is not an activation of transformers. Choose one such as 'gelu'."
            )
        names = ("initializer_range", "spatial_initializer_range", "layer_norm_eps", "spatial_layer_norm_eps")
        check_fields(self, names, lambda value: 0 <= value < math.inf, "must be a finite number of at least 0")
        check_probabilities(self, "hidden_dropout_prob", "activation_dropout", "attention_probs_dropout_prob")
        if not 0 <= self.drop_path_rate < 1:
            raise ValueError(
                f"`drop_path_rate` is the probability of dropping the last block, at least 0 and below 1, got "
                f"{self.drop_path_rate}. The paper's survival probability p is `drop_path_rate = 1 - p`."
            )

    @classmethod
    def from_preset(cls, name: str, **overrides):
        """
        The configuration of a named architecture of the paper, such as `"amlp-base"`, with some fields changed:
        `from_preset("amlp-base", num_labels=3)`. `hf-gmlp presets` lists the names.

        Raises:
            ValueError: If there is no preset of that name for this class, or no field of a given name.
        """
        folder = Path(__file__).parent.parent / "presets"
        known = {path.parent.name: path for path in sorted(folder.glob("*/config.json"))}
        if not known:
            raise ValueError("Presets come with the package hf_gmlp: install it and use its classes.")
        if name not in known:
            raise ValueError(f"There is no preset {name!r}. Choose one of: {', '.join(known)}.")
        fields = json.loads(known[name].read_text(encoding="utf-8"))
        if fields["model_type"] != cls.model_type:
            owners = {owner.model_type: f"`{owner.__name__}`" for owner in (GMLPConfig, GMLPVisionConfig)}
            other = owners.get(fields["model_type"], f"the model type {fields['model_type']!r}")
            raise ValueError(f"The preset {name!r} belongs to {other}, not to `{cls.__name__}`.")
        known_fields = {field.name for field in dataclasses.fields(cls)}
        known_fields |= {name for name in ("out_features", "out_indices") if hasattr(cls, name)}
        # Keywords of transformers that are not fields.
        known_fields |= {"num_labels", "gating_implementation", "attn_implementation", "name_or_path", "use_cache"}
        unknown = [key for key in overrides if key not in known_fields]
        if unknown:
            raise ValueError(f"`{cls.__name__}` has no field {', '.join(map(repr, unknown))}.")
        # Not `from_dict`, which sets overrides after validation.
        return cls(**(fields | overrides))


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
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values"]
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

    vocab_size: int = 32000  # the paper's has 32K cased SentencePieces
    # n, the longest sequence. There are no position embeddings: this is the name that other code looks for.
    max_position_embeddings: int = 512
    type_vocab_size: int = 2  # segments A and B, as in BERT; 0 for no segment embeddings
    toeplitz: bool = True  # as in the paper's language experiments
    # With an `attention_mask`, hide padding from W and tiny attention, so that a sequence has the same output alone,
    # padded, or in any batch. The paper leaves padding visible (section 4). Causal models always hide it.
    mask_padding: bool = True
    # BERT's dense, activation and LayerNorm in front of the masked-language-model decoder; not in causal models.
    mlm_transform: bool = True
    # In training, compute masked-language-model logits only at the labeled positions: [labeled positions, vocab_size].
    sparse_prediction: bool = False
    # The classifiers' input: the first token (the last of a causal model), or the mean or maximum over all but padding.
    pooling: Literal["cls", "mean", "max"] = "cls"
    classifier_dropout: float | int | None = None  # `None` for `hidden_dropout_prob`
    # [PAD], [CLS] and [SEP] of the project's tokenizer.
    pad_token_id: int | None = 0
    bos_token_id: int | None = 2
    eos_token_id: int | list[int] | None = 3
    tie_word_embeddings: bool = True

    def validate_text(self):
        check_sizes(self, "vocab_size", "max_position_embeddings")
        if self.type_vocab_size < 0:
            raise ValueError(f"`type_vocab_size` must be at least 0 (no segments), got {self.type_vocab_size}.")
        check_probabilities(self, "classifier_dropout")


@strict
class GMLPVisionConfig(BackboneConfigMixin, GMLPBaseConfig):
    """
    Configuration of the image models (paper, section 3). The defaults are gMLP-S of the paper's Table 1. `toeplitz` and
    `is_causal` must be off: patches form a grid, and have no first and no last.

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
    image_size: int | list[int] | tuple[int, int] = 224  # pixels of a square, or (height, width)
    patch_size: int | list[int] | tuple[int, int] = 16  # likewise; it must divide `image_size`
    num_channels: int = 3
    # "cls" follows ViT: a [CLS] token in front of the patches (n = 197 at 224 pixels) and dense and tanh before the
    # classifier, which gives the parameter counts of Table 1. "mean" averages the patches (n = 196), as in timm.
    pooling: Literal["cls", "mean"] = "cls"
    classifier_dropout: float | int = 0.0
    apply_layernorm: bool = True  # whether the feature maps of `GMLPVisionBackbone` go through the final LayerNorm
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
        if self.toeplitz:
            raise ValueError(
                "`toeplitz=True` is for text: in an image, the distance between two patches is not the difference of "
                "their places in the sequence. Leave it off."
            )
        if self.is_causal:
            raise ValueError("`is_causal=True` is for text: the patches of an image all see each other. Leave it off.")
        check_sizes(self, "num_channels")
        for name in ("image_size", "patch_size"):
            if not isinstance(getattr(self, name), int) and len(getattr(self, name)) != 2:
                raise ValueError(f"`{name}` must be one number or (height, width), got {getattr(self, name)}.")
        for side, pixels, patch in zip(("height", "width"), as_pair(self.image_size), as_pair(self.patch_size)):
            if patch < 1 or pixels < 1 or pixels % patch:
                raise ValueError(
                    f"The image {side} must be a positive multiple of the patch {side}, got {pixels} and {patch} "
                    f"pixels. Change `image_size` or `patch_size`."
                )
        check_probabilities(self, "classifier_dropout")


def as_pair(size: int | list[int] | tuple[int, int]) -> tuple[int, int]:
    """(height, width) of a size that may be given as one number."""
    return (size, size) if isinstance(size, int) else (size[0], size[1])


__all__ = ["GMLPConfig", "GMLPVisionConfig"]
