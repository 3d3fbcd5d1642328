# Copyright 2026 The hf_gmlp authors. Licensed under the Apache License, Version 2.0.
"""Configurations of the text models that the gMLP paper compares with and that transformers lacks (section 4.1).

Every checkpoint contains this file.
"""

from typing import TYPE_CHECKING, ClassVar, Literal

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from .heads import check_fields, check_probabilities, check_sizes, full_auto_map

if TYPE_CHECKING:
    # Never executed, but transformers follows the relative imports that it reads, so that it saves all of the code with
    # a config alone, and loads all of it.
    from .modeling_baselines import BertRelposModel  # noqa: F401


@strict
class BaselineConfig(PreTrainedConfig):
    """What the baselines share, with BERT's names."""

    _auto_class = "AutoConfig"
    base_model_fsdp_plan: ClassVar[dict[str, str]] = {
        "embeddings.word_embeddings": "free_full_weight",
        "layers.*": "free_full_weight",
    }

    vocab_size: int = 32000  # the paper's has 32K cased SentencePieces
    hidden_size: int = 768  # d_model, the width of a token between layers
    num_hidden_layers: int = 12  # L, the number of layers, each with one part that mixes tokens and one that does not
    intermediate_size: int = 3072  # d_ffn, the width inside the feed-forward part of a layer
    max_position_embeddings: int = 128  # n, the longest sequence; there are no position embeddings
    type_vocab_size: int = 2  # segments A and B
    hidden_act: str = "gelu"  # inside both kinds of MLP and in the masked-language-model head
    hidden_dropout_prob: float | int = 0.0  # on the embeddings and on the output of every part of a layer
    classifier_dropout: float | int | None = None  # `None` for `hidden_dropout_prob`
    pooling: Literal["cls", "mean", "max"] = "cls"  # what classifiers read: the first token, or all except padding
    sparse_prediction: bool = False  # masked-language-model logits in training: at the labeled positions only
    initializer_range: float = 0.02  # standard deviation of all initial weights
    layer_norm_eps: float = 1e-12
    # [PAD], [CLS] and [SEP] of the project's tokenizer.
    pad_token_id: int | None = 0
    bos_token_id: int | None = 2
    eos_token_id: int | list[int] | None = 3
    tie_word_embeddings: bool = True

    def __post_init__(self, **kwargs):
        if type(self).__module__ == __name__:
            # A subclass from elsewhere has other files and its own map.
            kwargs["auto_map"] = full_auto_map(type(self), self.code_map(), kwargs.get("auto_map"))
        super().__post_init__(**kwargs)

    @classmethod
    def code_map(cls) -> dict[str, str]:
        """Auto class -> class of modeling_baselines.py."""
        name = cls.__name__.removesuffix("Config")
        heads = ("ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
        code_map = {"AutoModel": f"{name}Model", "AutoModelForPreTraining": f"{name}ForMaskedLM"}
        return code_map | {f"AutoModel{head}": f"{name}{head}" for head in heads}

    def validate_sizes(self):
        check_sizes(self, "vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size")
        check_sizes(self, "max_position_embeddings", "type_vocab_size")
        check_probabilities(self, "hidden_dropout_prob", "classifier_dropout")


@strict
class BertRelposConfig(BaselineConfig):
    """BERT without position embeddings and with T5's relative position biases, separate in each layer and head. The
    defaults are the paper's "BERT base + rel pos" (Table 3). Sequences may be longer than `max_position_embeddings`."""

    model_type = "bert_relpos"

    num_attention_heads: int = 12  # must divide `hidden_size`
    # Whether there are queries and keys. Without them, attention is the softmax of the position biases alone, the
    # paper's "BERT base + rel pos - attn"; values and output projection stay.
    content_attention: bool = True
    # Put the LayerNorms before attention and MLP, and one after the last layer, instead of after every sum. This makes
    # deep models easier to train; not in the paper.
    pre_norm: bool = False
    relative_attention_num_buckets: int = 32  # biases per head; half of them for each direction
    relative_attention_max_distance: int = 128  # from here on, all distances share a bias
    attention_probs_dropout_prob: float | int = 0.0

    def validate_attention(self):
        check_sizes(self, "num_attention_heads")
        heads, buckets = self.num_attention_heads, self.relative_attention_num_buckets
        rule = f"must be a multiple of `num_attention_heads`, {heads}"
        check_fields(self, ("hidden_size",), lambda size: size % heads == 0, rule)
        is_valid = lambda number: number > 0 and number % 4 == 0  # noqa: E731
        check_fields(self, ("relative_attention_num_buckets",), is_valid, "must be a multiple of 4")
        rule = f"must be above a quarter of `relative_attention_num_buckets`, {buckets}"
        check_fields(self, ("relative_attention_max_distance",), lambda distance: distance > buckets // 4, rule)
        check_probabilities(self, "attention_probs_dropout_prob")


@strict
class TextMixerConfig(BaselineConfig):
    """MLP-Mixer (https://arxiv.org/abs/2105.01601) over tokens of text, without position encodings, as in the paper's
    Table 3. Its caption says d_ffn = 3072, which makes 140 M parameters; the default of 2304 makes its 112 M."""

    model_type = "text_mixer"
    base_model_fsdp_plan: ClassVar[dict[str, str]] = BaselineConfig.base_model_fsdp_plan | {"norm": "keep_full_weight"}

    num_hidden_layers: int = 24
    intermediate_size: int = 2304
    spatial_intermediate_size: int = 384  # d_spatial, the width inside the MLP over the tokens
    layer_norm_eps: float = 1e-6

    def validate_mixer(self):
        check_sizes(self, "spatial_intermediate_size")


__all__ = ["BertRelposConfig", "TextMixerConfig"]
