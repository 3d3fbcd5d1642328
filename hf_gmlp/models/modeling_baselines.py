# Copyright 2026 The hf_gmlp authors. Licensed under the Apache License, Version 2.0.
"""The text models that the gMLP paper compares with and that transformers lacks (section 4.1).

- BertRelpos: BERT with T5's relative position biases, separate in each layer and head, and no position embeddings.
  Without `config.content_attention`, the softmax sees only the biases: "- attn" in the paper's Table 3.
- TextMixer: MLP-Mixer, in which an MLP over the tokens takes the place of attention.

Shapes: B batch, m tokens (m <= n = config.max_position_embeddings), D hidden_size, H heads. Every checkpoint contains
this file and its two neighbors, which need only torch and transformers.
"""

import math
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F
from transformers import PreTrainedModel
from transformers.activations import ACT2FN
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from .configuration_baselines import BaselineConfig, BertRelposConfig, TextMixerConfig
from .heads import (
    ForMaskedLM,
    ForQuestionAnswering,
    ForSequenceClassification,
    ForTokenClassification,
    Pooler,
    TextEmbeddings,
    check_inputs,
    check_mask,
    document_numbers,
    eager_attention_forward,
    first_index,
    is_readable,
    pool_tokens,
)


class FeedForward(nn.Module):
    """A two-layer MLP over the last dimension: [..., size] -> [..., size]"""

    def __init__(self, size: int, intermediate_size: int, config: BaselineConfig):
        super().__init__()
        self.proj_in = nn.Linear(size, intermediate_size)
        self.activation = ACT2FN[config.hidden_act]
        self.proj_out = nn.Linear(intermediate_size, size)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.proj_out(self.activation(self.proj_in(hidden_states)))


# ---------------------------------------------------------------------------------------------------------------------
# BERT with relative position biases


def relative_position_bucket(offset: torch.Tensor, num_buckets: int, max_distance: int) -> torch.Tensor:
    """
    T5's bucket, from 0 to num_buckets - 1, for each offset: place of the key minus place of the query. Each direction
    has half of the buckets, one half of them for single distances and the other for ranges that grow by a constant
    factor. All distances from `max_distance` on share the last bucket.
    """
    per_direction = num_buckets // 2
    single = per_direction // 2
    distance = offset.abs()
    # From 0 at the first distance of a range to 1 at the maximum. The clamp avoids the logarithm of 0.
    growth = torch.log(distance.clamp(min=single).float() / single) / math.log(max_distance / single)
    ranged = single + (growth * (per_direction - single)).long()
    bucket = torch.where(distance < single, distance, ranged.clamp(max=per_direction - 1))
    return bucket + per_direction * (offset > 0).long()


class RelativePositionBias(nn.Module):
    """One bias per bucket and head, as a matrix over queries and keys: m -> [1, H, m, m]"""

    def __init__(self, config: BertRelposConfig):
        super().__init__()
        self.max_distance = config.relative_attention_max_distance
        self.biases = nn.Embedding(config.relative_attention_num_buckets, config.num_attention_heads)

    def forward(self, length: int) -> torch.Tensor:
        offsets = torch.arange(1 - length, length, device=self.biases.weight.device)
        buckets = relative_position_bucket(offsets, self.biases.num_embeddings, self.max_distance)
        # Row i of the matrix is the window of m of the biases [H, 2m - 1] that starts at offset -i; `unfold` lists the
        # windows from the last row to the first.
        return self.biases(buckets).T.unfold(1, length, 1).flip(1)[None]


class BertRelposAttention(nn.Module):
    """Multi-head attention with relative position biases, with or without the content: [B, m, D] -> [B, m, D]"""

    def __init__(self, config: BertRelposConfig):
        super().__init__()
        self.config = config
        self.is_causal = False
        self.head_size = config.hidden_size // config.num_attention_heads
        self.scaling = self.head_size**-0.5
        self.q_proj = nn.Linear(config.hidden_size, config.hidden_size) if config.content_attention else None
        self.k_proj = nn.Linear(config.hidden_size, config.hidden_size) if config.content_attention else None
        self.v_proj = nn.Linear(config.hidden_size, config.hidden_size)
        self.out_proj = nn.Linear(config.hidden_size, config.hidden_size)
        self.position_bias = RelativePositionBias(config)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        def heads(x: torch.Tensor) -> torch.Tensor:  # [B, m, D] -> [B, H, m, D / H]
            return x.unflatten(-1, (-1, self.head_size)).transpose(1, 2)

        query = key = None
        # Without queries and keys, another implementation has nothing to compute.
        attention_interface: Callable = eager_attention_forward
        if self.config.content_attention:
            query, key = heads(self.q_proj(hidden_states)), heads(self.k_proj(hidden_states))
            attention_interface = ALL_ATTENTION_FUNCTIONS.get_interface(
                self.config._attn_implementation, eager_attention_forward
            )
        value = heads(self.v_proj(hidden_states))
        kwargs["dropout"] = self.config.attention_probs_dropout_prob if self.training else 0.0
        kwargs["position_bias"] = self.position_bias(hidden_states.shape[1])
        output, weights = attention_interface(self, query, key, value, attention_mask, scaling=self.scaling, **kwargs)
        return self.out_proj(output.flatten(2)), weights


class BertRelposLayer(GradientCheckpointingLayer):
    """BERT's layer, attention and then the MLP: [B, m, D] -> [B, m, D]. The LayerNorms come after the sums or, with
    `pre_norm`, before attention and MLP."""

    def __init__(self, config: BertRelposConfig):
        super().__init__()
        self.pre_norm = config.pre_norm
        self.attention = BertRelposAttention(config)
        self.attention_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.mlp = FeedForward(config.hidden_size, config.intermediate_size, config)
        self.mlp_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,  # as the attention implementation takes it
        **kwargs: Unpack[TransformersKwargs],
    ) -> torch.Tensor:
        if self.pre_norm:
            attention_output = self.attention(self.attention_norm(hidden_states), attention_mask, **kwargs)[0]
            hidden_states = hidden_states + self.dropout(attention_output)
            return hidden_states + self.dropout(self.mlp(self.mlp_norm(hidden_states)))
        attention_output = self.attention(hidden_states, attention_mask, **kwargs)[0]
        hidden_states = self.attention_norm(hidden_states + self.dropout(attention_output))
        return self.mlp_norm(hidden_states + self.dropout(self.mlp(hidden_states)))


# ---------------------------------------------------------------------------------------------------------------------
# MLP-Mixer


class TextMixerLayer(GradientCheckpointingLayer):
    """Mixer's layer, an MLP over the tokens and one over the channels, both pre-norm: [B, m, D] -> [B, m, D]"""

    def __init__(self, config: TextMixerConfig):
        super().__init__()
        self.max_length = config.max_position_embeddings
        self.token_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.token_mlp = FeedForward(config.max_position_embeddings, config.spatial_intermediate_size, config)
        self.channel_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.channel_mlp = FeedForward(config.hidden_size, config.intermediate_size, config)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(
        self,
        hidden_states: torch.Tensor,
        padding_mask: torch.Tensor | None = None,  # [B, m], 1 for tokens and 0 for padding
        **kwargs: Unpack[TransformersKwargs],
    ) -> torch.Tensor:
        hidden_states = hidden_states + self.dropout(self.mix_tokens(self.token_norm(hidden_states), padding_mask))
        return hidden_states + self.dropout(self.channel_mlp(self.channel_norm(hidden_states)))

    def mix_tokens(self, x: torch.Tensor, padding_mask: torch.Tensor | None) -> torch.Tensor:
        """The MLP over the tokens, hiding padding from all tokens: [B, m, D] -> [B, m, D]"""
        length = x.shape[1]
        if padding_mask is not None:
            # After the LayerNorm, whose bias would otherwise take the place of the zeros. Padding in front goes behind,
            # so that a sequence begins with the first row and column of both matrices.
            first = first_index(padding_mask)
            x = roll(x * padding_mask[..., None].to(x.dtype), first)
        # Zeros up to n have the effect of using the leading part of both matrices.
        x = F.pad(x.transpose(1, 2), (0, self.max_length - length))
        # Transposed before the slice: `torch.export` refuses the length n where the last dimension is sliced.
        x = self.token_mlp(x).transpose(1, 2)[:, :length]
        return x if padding_mask is None else roll(x, -first)


def roll(x: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
    """Moves each row of x [B, m, ...] towards its front by its number of steps [B], which may be negative. What leaves
    at one end comes back at the other."""
    index, length = torch.arange(x.shape[1], device=x.device) + steps[:, None], x.shape[1]
    # Not `%`: the ONNX exporter does not support it with a symbolic length.
    index = torch.where(index < 0, index + length, torch.where(index < length, index, index - length))
    return x[torch.arange(x.shape[0], device=x.device)[:, None], index]


# ---------------------------------------------------------------------------------------------------------------------
# The models


class BaselinePreTrainedModel(PreTrainedModel):
    """What all models of this file share. The initial weights are those of transformers: normal, with zero biases."""

    config: BaselineConfig
    base_model_prefix = "model"
    input_modalities = ("text",)
    supports_gradient_checkpointing = True
    _no_split_modules = ["BertRelposLayer", "TextMixerLayer"]
    _supports_sdpa = True
    _can_compile_fullgraph = True
    _can_record_outputs = {"hidden_states": GradientCheckpointingLayer, "attentions": BertRelposAttention}

    def get_input_embeddings(self) -> nn.Embedding:
        return self.base_model.embeddings.word_embeddings

    def set_input_embeddings(self, value: nn.Embedding):
        self.base_model.embeddings.word_embeddings = value


class BaselineModel(BaselinePreTrainedModel):
    """Embeddings, layers, a norm, and a pooler unless `add_pooling_layer=False`."""

    _auto_class = "AutoModel"
    layer_class: type[nn.Module]
    normalize_embeddings: bool

    def __init__(self, config: BaselineConfig, add_pooling_layer: bool = True):
        super().__init__(config)
        pre_norm = getattr(config, "pre_norm", True)
        self.embeddings = TextEmbeddings(config, normalize=self.normalize_embeddings)
        self.layers = nn.ModuleList(self.layer_class(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps) if pre_norm else nn.Identity()
        self.pooler = Pooler(config) if add_pooling_layer else None
        self.post_init()

    def mask_of_layers(self, attention_mask: torch.Tensor | None, hidden_states: torch.Tensor) -> torch.Tensor | None:
        """What the layers take in place of `attention_mask`. Raises a ValueError for inputs that they cannot take."""
        raise NotImplementedError

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        seq_idx: torch.LongTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPoolingAndCrossAttentions:
        r"""
        Args:
            input_ids: [B, m]; a TextMixer needs m <= n.
            attention_mask: [B, m], 1 for tokens and 0 for padding, on either side.
            token_type_ids: [B or 1, m], the segment of each token; all 0 by default.
            inputs_embeds: [B, m, D], in place of `input_ids`.
            position_ids, seq_idx: [B or 1, m], as in a gMLP, but a row holds one document, counted from its first token
                that is not padding.

        Returns:
            `last_hidden_state` [B, m, D] and `pooler_output` [B, D].

        Raises:
            ValueError: If not exactly one of `input_ids` and `inputs_embeds` is given, if a row has several documents
                or a cache is given, or if a TextMixer gets too long a sequence or a mask that is not [B, m].
        """
        shape = check_inputs(input_ids, inputs_embeds).shape[:2]
        hidden_states = self.embeddings(input_ids, token_type_ids, inputs_embeds)
        layer_mask = self.mask_of_layers(attention_mask, hidden_states)
        # Attention also takes masks between pairs of tokens, which do not describe padding.
        is_padding_mask = torch.is_tensor(attention_mask) and attention_mask.dim() == 2
        padding_mask = attention_mask.expand(shape) if is_padding_mask else None
        if kwargs.get("past_key_values") is not None:
            raise ValueError(
                f"A {type(self).__name__} has no `past_key_values`. In place of prefix tuning, use prompt tuning or "
                f"LoRA."
            )
        cu_seq_lens = kwargs.pop("cu_seq_lens_q", None)
        numbers = document_numbers(shape, padding_mask, position_ids, seq_idx, cu_seq_lens)
        if numbers is not None or not count_from_first(position_ids, padding_mask):
            raise ValueError(
                "This model reads a row as one document, counted from its first token. Give each document a row of its "
                "own, and leave `position_ids` out."
            )
        for layer in self.layers:
            hidden_states = layer(hidden_states, layer_mask, **kwargs)
        hidden_states, pooled = self.norm(hidden_states), None
        if self.pooler is not None:
            pooled = self.pooler(pool_tokens(hidden_states, padding_mask, self.config.pooling))
        return BaseModelOutputWithPoolingAndCrossAttentions(last_hidden_state=hidden_states, pooler_output=pooled)


def count_from_first(position_ids: torch.Tensor | None, padding_mask: torch.Tensor | None) -> bool:
    """Whether positions count the tokens of a row from its first that is not padding. Compiled models do not look."""
    if position_ids is None or not is_readable(position_ids):
        return True
    index = torch.arange(position_ids.shape[1], device=position_ids.device)
    if padding_mask is None:
        return torch.equal(position_ids, index.expand_as(position_ids))
    return not ((position_ids != index - first_index(padding_mask)[:, None]) & (padding_mask != 0)).any()


class BertRelposModel(BaselineModel):
    """BERT with relative position biases."""

    config: BertRelposConfig
    layer_class = BertRelposLayer
    normalize_embeddings = True

    def mask_of_layers(self, attention_mask, hidden_states):
        return create_bidirectional_mask(config=self.config, inputs_embeds=hidden_states, attention_mask=attention_mask)


class TextMixerModel(BaselineModel):
    """MLP-Mixer."""

    config: TextMixerConfig
    layer_class = TextMixerLayer
    normalize_embeddings = False

    def mask_of_layers(self, attention_mask, hidden_states):
        shape = hidden_states.shape[:2]
        if shape[1] > self.config.max_position_embeddings:
            raise ValueError(
                f"The sequences have {shape[1]} tokens and the model takes up to {self.config.max_position_embeddings} "
                f"(`config.max_position_embeddings`). Truncate them, or train a model with a larger n."
            )
        check_mask(attention_mask, shape)
        return attention_mask


# ---------------------------------------------------------------------------------------------------------------------
# The heads (heads.py)


class BertRelposHeadModel(BaselinePreTrainedModel):
    config: BertRelposConfig
    base_model_class = BertRelposModel


class BertRelposForMaskedLM(ForMaskedLM, BertRelposHeadModel): ...


class BertRelposForSequenceClassification(ForSequenceClassification, BertRelposHeadModel): ...


class BertRelposForTokenClassification(ForTokenClassification, BertRelposHeadModel): ...


class BertRelposForQuestionAnswering(ForQuestionAnswering, BertRelposHeadModel): ...


class TextMixerHeadModel(BaselinePreTrainedModel):
    config: TextMixerConfig
    base_model_class = TextMixerModel


class TextMixerForMaskedLM(ForMaskedLM, TextMixerHeadModel): ...


class TextMixerForSequenceClassification(ForSequenceClassification, TextMixerHeadModel): ...


class TextMixerForTokenClassification(ForTokenClassification, TextMixerHeadModel): ...


class TextMixerForQuestionAnswering(ForQuestionAnswering, TextMixerHeadModel): ...


__all__ = [
    "BertRelposForMaskedLM",
    "BertRelposForQuestionAnswering",
    "BertRelposForSequenceClassification",
    "BertRelposForTokenClassification",
    "BertRelposModel",
    "TextMixerForMaskedLM",
    "TextMixerForQuestionAnswering",
    "TextMixerForSequenceClassification",
    "TextMixerForTokenClassification",
    "TextMixerModel",
]
