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
    eager_attention_forward,
    first_index,
    pair_mask_options,
    pool_tokens,
)


class FeedForward(nn.Sequential):
    """A two-layer MLP over the last dimension: [..., size] -> [..., size]"""

    def __init__(self, size: int, intermediate_size: int, config: BaselineConfig):
        super().__init__()
        self.proj_in = nn.Linear(size, intermediate_size)
        self.activation = ACT2FN[config.hidden_act]
        self.proj_out = nn.Linear(intermediate_size, size)


# ---------------------------------------------------------------------------------------------------------------------
# BERT with relative position biases


def relative_position_bucket(offset: torch.Tensor, num_buckets: int, max_distance: int) -> torch.Tensor:
    """T5's bucket, from 0 to num_buckets - 1, for each offset: index of the key minus index of the query. Half of the
    buckets is for each direction: in it, one half for single distances, and one for ranges that grow by a constant
    factor up to `max_distance`. All distances from there on share the last."""
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
        if offsets.device.type == "xla":
            # XLA has no strided views: `unfold` would copy to the host and back.
            index = torch.arange(length, device=offsets.device)
            return self.biases(buckets).T[:, length - 1 + index - index[:, None]][None]
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

        # Without queries and keys, another implementation has nothing to compute.
        query = key = None
        attend: Callable = eager_attention_forward
        if self.q_proj is not None and self.k_proj is not None:
            query, key = heads(self.q_proj(hidden_states)), heads(self.k_proj(hidden_states))
            attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)
        value = heads(self.v_proj(hidden_states))
        kwargs["dropout"] = self.config.attention_probs_dropout_prob if self.training else 0.0
        kwargs["position_bias"] = self.position_bias(hidden_states.shape[1])
        output, weights = attend(self, query, key, value, attention_mask, scaling=self.scaling, **kwargs)
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
    _input_embed_layer = "word_embeddings"  # in `embeddings` of the base model


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
        """What the layers take in place of `attention_mask`."""
        options = pair_mask_options(attention_mask)
        return create_bidirectional_mask(self.config, hidden_states, attention_mask, **options)

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        seq_idx: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPoolingAndCrossAttentions:
        r"""Takes `input_ids` [B, m] or `inputs_embeds` [B, m, D], of at most n tokens in a TextMixer; `attention_mask`
        [B, m], 1 for tokens and 0 for padding on either side; and `token_type_ids` [B or 1, m], the segment of each
        token, by default 0. Returns `last_hidden_state` [B, m, D] and `pooler_output` [B, D]. Raises a ValueError for
        inputs of another shape, and for positions, packed documents and caches, which are for a gMLP."""
        shape = check_inputs(input_ids, inputs_embeds).shape[:2]
        if any(packing is not None for packing in (position_ids, seq_idx, kwargs.get("cu_seq_lens_q"))):
            raise ValueError("This model reads a row as one document, and counts its tokens: leave `position_ids` out.")
        if kwargs.get("past_key_values") is not None:
            raise ValueError("There is no cache for `past_key_values`: in place of prefix tuning, use prompt tuning.")
        hidden_states = self.embeddings(input_ids, token_type_ids, inputs_embeds)
        layer_mask = self.mask_of_layers(attention_mask, hidden_states)
        # Attention also takes masks between pairs of tokens, which do not describe padding.
        padding_mask = None
        if isinstance(attention_mask, torch.Tensor) and attention_mask.dim() == 2:
            padding_mask = attention_mask.expand(shape)
        for layer in self.layers:
            hidden_states = layer(hidden_states, layer_mask, **kwargs)
        hidden_states, pooled = self.norm(hidden_states), None
        if self.pooler is not None:
            pooled = self.pooler(pool_tokens(hidden_states, padding_mask, self.config.pooling))
        return BaseModelOutputWithPoolingAndCrossAttentions(last_hidden_state=hidden_states, pooler_output=pooled)


class BertRelposModel(BaselineModel):
    """BERT with relative position biases."""

    config: BertRelposConfig
    layer_class = BertRelposLayer
    normalize_embeddings = True


class TextMixerModel(BaselineModel):
    """MLP-Mixer."""

    config: TextMixerConfig
    layer_class = TextMixerLayer
    normalize_embeddings = False

    def mask_of_layers(self, attention_mask, hidden_states):
        shape, n = hidden_states.shape[:2], self.config.max_position_embeddings
        if shape[1] > n:
            raise ValueError(f"The sequences have {shape[1]} tokens and the model takes up to {n}: truncate them.")
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


__all__ = sorted({*BertRelposConfig.code_map().values(), *TextMixerConfig.code_map().values()})
