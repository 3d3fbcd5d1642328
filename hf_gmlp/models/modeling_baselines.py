# Copyright 2026 The hf_gmlp authors. Licensed under the Apache License, Version 2.0.
"""The text models that the gMLP paper compares with and that transformers lacks (section 4.1).

- BertRelpos: BERT with T5's relative position biases, of their own in every layer and head, and no position embeddings.
  Without `config.content_attention`, the softmax sees the biases alone: "- attn" in the paper's Table 3.
- TextMixer: MLP-Mixer, in which an MLP over the tokens takes the place of attention.

Read from top to bottom, this file follows the data: embeddings -> layers of either kind -> models -> heads (heads.py).

Shapes: B batch, m tokens (m <= n = config.max_position_embeddings), D hidden_size, H heads, V vocab_size.
This file is saved with every checkpoint and needs only torch and transformers.
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
    TextModelOutput,
    first_places,
    packed_documents,
    pool_tokens,
    shift,
)


class TextEmbeddings(nn.Module):
    """Token and segment embeddings without positions: [B, m] -> [B, m, D]. BERT normalizes them, Mixer does not."""

    def __init__(self, config: BaselineConfig, normalize: bool):
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps) if normalize else nn.Identity()
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(
        self,
        input_ids: torch.Tensor | None = None,  # [B, m]
        token_type_ids: torch.Tensor | None = None,  # [B, m]
        inputs_embeds: torch.Tensor | None = None,  # [B, m, D]
    ) -> torch.Tensor:
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("Give the model either `input_ids` or `inputs_embeds`, and not both.")
        embeddings = self.word_embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        if token_type_ids is None:
            token_type_ids = torch.zeros(embeddings.shape[:2], dtype=torch.long, device=embeddings.device)
        return self.dropout(self.norm(embeddings + self.token_type_embeddings(token_type_ids)))


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
    The bucket of T5 that an offset falls into. Half of the buckets are for each direction; of these, one half is for
    single distances and the other for ranges that grow by a constant factor, the last one open-ended.

    Args:
        offset: Place of the key minus place of the query, any shape, integers.
        num_buckets: Number of buckets, a multiple of 4.
        max_distance: From here on, all distances share a bucket.

    Returns:
        Integers of the same shape, from 0 to num_buckets - 1.
    """
    per_direction = num_buckets // 2
    single = per_direction // 2
    distance = offset.abs()
    # From 0 at the first distance of a range to 1 at the maximal one. The clamp keeps the logarithm of 0 away.
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
        # [H, 2m - 1], one bias per offset. Row i of the matrix is the window of m of them that starts at offset -i, and
        # `unfold` lists the windows from the last row to the first.
        return self.biases(buckets).T.unfold(1, length, 1).flip(1)[None]


def eager_attention_forward(
    module: nn.Module,
    query: torch.Tensor | None,  # [B, H, m, D / H]
    key: torch.Tensor | None,  # [B, H, m, D / H]
    value: torch.Tensor,  # [B, H, m, D / H]
    attention_mask: torch.Tensor | None,  # [B, 1, m, m]: True to see, or 0 to see and very negative to hide
    scaling: float,
    dropout: float = 0.0,
    position_bias: torch.Tensor | None = None,  # [1, H, m, m]
    **kwargs: Unpack[TransformersKwargs],
) -> tuple[torch.Tensor, torch.Tensor]:
    """
    The plain form of attention, which can also give its weights: ([B, m, H, D / H], [B, H, m, m]). Without query and
    key, the softmax is of the position biases alone.
    """
    scores = position_bias
    if query is not None:
        scores = scores + torch.matmul(query, key.transpose(2, 3)) * scaling
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        # The mask that other attention implementations take, if the model was set to one.
        scores = torch.where(attention_mask, scores, torch.finfo(scores.dtype).min)
    elif attention_mask is not None:
        scores = scores + attention_mask
    weights = F.softmax(scores, dim=-1, dtype=torch.float32).to(value.dtype)
    # Biases alone are the same for all samples; dropout is not.
    weights = F.dropout(weights.expand(value.shape[0], -1, -1, -1), p=dropout, training=module.training)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


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
        # Where nothing is compared with anything, there is nothing for another implementation to do.
        attention_interface: Callable = eager_attention_forward
        if self.config.content_attention:
            query, key = heads(self.q_proj(hidden_states)), heads(self.k_proj(hidden_states))
            attention_interface = ALL_ATTENTION_FUNCTIONS.get_interface(
                self.config._attn_implementation, eager_attention_forward
            )
        value = heads(self.v_proj(hidden_states))
        output, weights = attention_interface(
            self,
            query,
            key,
            value,
            attention_mask,
            dropout=self.config.attention_probs_dropout_prob if self.training else 0.0,
            scaling=self.scaling,
            position_bias=self.position_bias(hidden_states.shape[1]),
            **kwargs,
        )
        return self.out_proj(output.flatten(2)), weights


class BertRelposLayer(GradientCheckpointingLayer):
    """
    BERT's layer, attention and then the MLP, each with the LayerNorm after the sum or, with `pre_norm`, before
    itself: [B, m, D] -> [B, m, D]
    """

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
        attention_mask: torch.Tensor | None = None,  # what the attention implementation wants
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
            # After the LayerNorm: before it, the norm's bias would take the place of the zeros. Padding in front goes
            # behind, so that a sequence begins with the first row and column of both matrices.
            first = first_places(padding_mask)
            x = shift(x * padding_mask[..., None].to(x.dtype), first)
        # Zeros up to n: the same as the leading part of both matrices.
        x = F.pad(x.transpose(1, 2), (0, self.max_length - length))
        # Moved before the cut: `torch.export` refuses the length n where the last dimension is sliced.
        x = self.token_mlp(x).transpose(1, 2)[:, :length]
        return x if padding_mask is None else shift(x, -first)


# ---------------------------------------------------------------------------------------------------------------------
# The models


class BaselinePreTrainedModel(PreTrainedModel):
    """What all models of this file share. The initial weights are the library's: normal, with biases of zero."""

    config: BaselineConfig
    base_model_prefix = "model"
    input_modalities = ("text",)
    supports_gradient_checkpointing = True
    _no_split_modules = ["BertRelposLayer", "TextMixerLayer"]
    _supports_sdpa = True
    _can_compile_fullgraph = True
    # Layers of either kind are checkpointed, and nothing else is.
    _can_record_outputs = {"hidden_states": GradientCheckpointingLayer, "attentions": BertRelposAttention}

    def pool(self, hidden_states: torch.Tensor, padding_mask: torch.Tensor | None) -> torch.Tensor | None:
        """The pooler's output, by `config.pooling`: [B, m, D] -> [B, D]"""
        if self.pooler is None:
            return None
        if not torch.is_tensor(padding_mask) or padding_mask.dim() != 2:
            # A mask between pairs of tokens, which attention takes as well, says nothing of padding.
            padding_mask = None
        return self.pooler(pool_tokens(hidden_states, padding_mask, self.config.pooling))

    def check_inputs(self, kwargs: dict, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None):
        """
        Takes what tells of packed documents out of `kwargs`.

        Raises:
            ValueError: If a row has several documents, or a cache is given, as by prefix tuning.
        """
        if kwargs.get("past_key_values") is not None:
            raise ValueError(
                f"A {type(self).__name__} has no `past_key_values`. In place of prefix tuning, use prompt tuning or "
                f"LoRA."
            )
        if not torch.is_tensor(attention_mask) or attention_mask.shape != hidden_states.shape[:2]:
            attention_mask = None
        if packed_documents(kwargs, hidden_states.shape[:2], attention_mask, hidden_states.device) is not None:
            raise ValueError("This model reads a row as one document. Give each document a row of its own.")

    def get_input_embeddings(self) -> nn.Embedding:
        return self.base_model.embeddings.word_embeddings

    def set_input_embeddings(self, value: nn.Embedding):
        self.base_model.embeddings.word_embeddings = value


class BertRelposModel(BaselinePreTrainedModel):
    """BERT with relative position biases: embeddings, layers, and a pooler unless `add_pooling_layer=False`."""

    config: BertRelposConfig
    _auto_class = "AutoModel"

    def __init__(self, config: BertRelposConfig, add_pooling_layer: bool = True):
        super().__init__(config)
        self.embeddings = TextEmbeddings(config, normalize=True)
        self.layers = nn.ModuleList(BertRelposLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps) if config.pre_norm else nn.Identity()
        self.pooler = Pooler(config) if add_pooling_layer else None
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> TextModelOutput:
        r"""
        Args:
            input_ids: [B, m]
            attention_mask: [B, m], 1 for tokens and 0 for padding.
            token_type_ids: [B, m], the segment of each token; all 0 by default.
            inputs_embeds: [B, m, D], in place of `input_ids`.

        Returns:
            `last_hidden_state` [B, m, D] and `pooler_output` [B, D].

        Raises:
            ValueError: If both or neither of `input_ids` and `inputs_embeds` are given, or a cache is.
        """
        hidden_states = self.embeddings(input_ids, token_type_ids, inputs_embeds)
        self.check_inputs(kwargs, hidden_states, attention_mask)
        padding_mask = attention_mask
        attention_mask = create_bidirectional_mask(
            config=self.config, inputs_embeds=hidden_states, attention_mask=attention_mask
        )
        for layer in self.layers:
            hidden_states = layer(hidden_states, attention_mask, **kwargs)
        hidden_states = self.norm(hidden_states)
        pooled = self.pool(hidden_states, padding_mask)
        return TextModelOutput(last_hidden_state=hidden_states, pooler_output=pooled)


class TextMixerModel(BaselinePreTrainedModel):
    """MLP-Mixer: embeddings, layers and a final LayerNorm, and a pooler unless `add_pooling_layer=False`."""

    config: TextMixerConfig
    _auto_class = "AutoModel"

    def __init__(self, config: TextMixerConfig, add_pooling_layer: bool = True):
        super().__init__(config)
        self.embeddings = TextEmbeddings(config, normalize=False)
        self.layers = nn.ModuleList(TextMixerLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.pooler = Pooler(config) if add_pooling_layer else None
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> TextModelOutput:
        r"""
        Args:
            input_ids: [B, m], with m <= n.
            attention_mask: [B, m], 1 for tokens and 0 for padding, on either side.
            token_type_ids: [B, m], the segment of each token; all 0 by default.
            inputs_embeds: [B, m, D], in place of `input_ids`.

        Returns:
            `last_hidden_state` [B, m, D] and `pooler_output` [B, D].

        Raises:
            ValueError: If both or neither of `input_ids` and `inputs_embeds` are given, if the sequence is longer
                than n, if the mask is not [B, m], or if a cache is given.
        """
        hidden_states = self.embeddings(input_ids, token_type_ids, inputs_embeds)
        batch_size, length = hidden_states.shape[:2]
        if length > self.config.max_position_embeddings:
            raise ValueError(
                f"The sequences have {length} tokens and the model takes up to {self.config.max_position_embeddings} "
                f"(`config.max_position_embeddings`). Truncate them, or train a model with a larger n."
            )
        if attention_mask is not None and attention_mask.shape != (batch_size, length):
            raise ValueError(
                f"`attention_mask` must have one entry per token, shape {(batch_size, length)}, got "
                f"{tuple(attention_mask.shape)}: an MLP over the tokens has no masks between pairs of them."
            )
        self.check_inputs(kwargs, hidden_states, attention_mask)
        for layer in self.layers:
            hidden_states = layer(hidden_states, attention_mask, **kwargs)
        hidden_states = self.norm(hidden_states)
        pooled = self.pool(hidden_states, attention_mask)
        return TextModelOutput(last_hidden_state=hidden_states, pooler_output=pooled)


# ---------------------------------------------------------------------------------------------------------------------
# The heads (heads.py)


class BertRelposForMaskedLM(ForMaskedLM, BaselinePreTrainedModel):
    config: BertRelposConfig
    base_model_class = BertRelposModel


class BertRelposForSequenceClassification(ForSequenceClassification, BaselinePreTrainedModel):
    config: BertRelposConfig
    base_model_class = BertRelposModel


class BertRelposForTokenClassification(ForTokenClassification, BaselinePreTrainedModel):
    config: BertRelposConfig
    base_model_class = BertRelposModel


class BertRelposForQuestionAnswering(ForQuestionAnswering, BaselinePreTrainedModel):
    config: BertRelposConfig
    base_model_class = BertRelposModel


class TextMixerForMaskedLM(ForMaskedLM, BaselinePreTrainedModel):
    config: TextMixerConfig
    base_model_class = TextMixerModel


class TextMixerForSequenceClassification(ForSequenceClassification, BaselinePreTrainedModel):
    config: TextMixerConfig
    base_model_class = TextMixerModel


class TextMixerForTokenClassification(ForTokenClassification, BaselinePreTrainedModel):
    config: TextMixerConfig
    base_model_class = TextMixerModel


class TextMixerForQuestionAnswering(ForQuestionAnswering, BaselinePreTrainedModel):
    config: TextMixerConfig
    base_model_class = TextMixerModel


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
