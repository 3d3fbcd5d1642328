# Copyright 2026 The hf_gmlp authors. Licensed under the Apache License, Version 2.0.
"""gMLP and aMLP for text and images ("Pay Attention to MLPs", Liu et al., 2021, https://arxiv.org/abs/2105.08050).

A gMLP is a Transformer-sized stack of blocks in which one matrix over the tokens, W, takes the place of self-attention
and of position embeddings. On x [B, m, D], a block computes

    x + drop_path(dropout(W_out s(gelu(W_in LN(x)))))    Equation 1, Figure 1     GMLPBlock
    s(Z) = u * (W LN(v) + b), Z = [u, v]                 Equations 2 to 4         SpatialGatingUnit (spatial_gating.py)
    s(Z) = u * (W LN(v) + b + tiny_attention(LN(x)))     an aMLP, Figure 6        GMLPTinyAttention

W [n, n] and b [n] act on the token axis, the same for all channels, or for each of several groups (`spatial_heads`). W
starts near zero and b at one, so that a block starts as a plain feed-forward network and learns how much to mix. F, the
width of Z, is d_ffn in the paper.

Positions are an input: a token at position p_i reads W[p_i, p_j] for each token j that it sees, and b[p_i]. By default,
positions are counted from the first token that is not padding. This one rule (`Positions` in spatial_gating.py) covers
shorter sequences, padding on either side, packed documents, causal models, and their caches, which keep v.

The file follows the data: patches -> GMLPBlock -> GMLPPreTrainedModel (initialization, resizing) -> text models ->
image models. The embeddings and heads of text models are in heads.py.

Shapes: B batch, m tokens given, t tokens including those in a cache, n config.max_position_embeddings, D hidden_size,
F intermediate_size, E spatial_size (F / 2 after a split), A attention_size, V vocab_size. Every checkpoint contains
this file and its three neighbors, which need only torch and transformers.
"""

import copy
import operator
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers import GenerationConfig, GenerationMixin, PreTrainedModel
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.backbone_utils import BackboneMixin
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, StaticLayer
from transformers.masking_utils import create_causal_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import (
    BackboneOutput,
    BaseModelOutputWithPooling,
    BaseModelOutputWithPoolingAndCrossAttentions,
    ImageClassifierOutput,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, logging
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from .configuration_gmlp import GMLPBaseConfig, GMLPConfig, GMLPVisionConfig, as_pair
from .heads import (
    CACHE,
    Documents,
    ForCausalLM,
    ForMaskedLM,
    ForMultipleChoice,
    ForQuestionAnswering,
    ForSequenceClassification,
    ForTokenClassification,
    Pooler,
    TextEmbeddings,
    check_inputs,
    check_mask,
    classification_loss,
    document_numbers,
    eager_attention_forward,
    is_readable,
    pair_mask_options,
    pool_tokens,
)
from .spatial_gating import (
    Positions,
    SpatialGatingUnit,
    SpatialProjection,
    check_length,
    find_cached_positions,
    find_positions,
)

logger = logging.get_logger(__name__)

# How `kwargs` of a forward pass describe packed documents to flash attention.
PACKING = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")


def conv_stem(config: GMLPVisionConfig) -> nn.Sequential:
    """An early-convolution stem (Xiao et al., 2021): 3 x 3 convolutions, of which each after the first halves the sides
    and doubles the channels. [B, C, H, W] -> [B, D, H / patch, W / patch]"""
    size, _ = as_pair(config.patch_size)  # 2**k pixels, halved k times
    layers, channels = [], config.num_channels
    for i in range(size.bit_length()):
        width = max(1, config.hidden_size * 2**i // size)
        conv = nn.Conv2d(channels, width, 3, stride=2 if i else 1, padding=1, bias=False)
        layers += [conv, nn.BatchNorm2d(width), nn.ReLU()]
        channels = width
    return nn.Sequential(*layers)


class GMLPPatchEmbeddings(nn.Module):
    """The stem of ViT, in which a convolution cuts the image into patches, or convolutions and a projection; with "cls"
    pooling, a [CLS] token goes in front."""

    def __init__(self, config: GMLPVisionConfig):
        super().__init__()
        self.config = config
        patch_size, channels, self.stem = as_pair(config.patch_size), config.num_channels, None
        if config.stem == "conv":
            patch_size, channels, self.stem = (1, 1), config.hidden_size, conv_stem(config)
        self.projection = nn.Conv2d(channels, config.hidden_size, patch_size, stride=patch_size)
        self.cls_token = nn.Parameter(torch.empty(1, 1, config.hidden_size)) if config.pooling == "cls" else None
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:  # [B, C, H, W] -> [B, n, D]
        expected = (self.config.num_channels, *as_pair(self.config.image_size))
        if pixel_values.shape[1:] != expected:
            raise ValueError(
                f"`pixel_values` must be a batch of images, [batch, channels, height, width] = [B, {expected[0]}, "
                f"{expected[1]}, {expected[2]}] by the config, got {list(pixel_values.shape)}. Resize and convert them "
                f"with the image processor, or change the model with `model.resize_image_size((height, width))`."
            )
        pixel_values = pixel_values.to(self.projection.weight.dtype)
        features = pixel_values if self.stem is None else self.stem(pixel_values)
        embeddings = self.projection(features).flatten(2).transpose(1, 2)
        if self.cls_token is not None:
            embeddings = torch.cat([self.cls_token.expand(embeddings.shape[0], -1, -1), embeddings], dim=1)
        return self.dropout(embeddings)


class GMLPTinyAttention(nn.Module):
    """The single-head attention that makes an aMLP (Figure 6)."""

    def __init__(self, config: GMLPBaseConfig, layer_idx: int = 0):
        super().__init__()
        self.config = config
        # The cache layer that holds keys and values.
        self.layer_idx = layer_idx
        self.scaling = config.attention_size**-0.5
        self.qkv_proj = nn.Linear(config.hidden_size, 3 * config.attention_size)
        self.out_proj = nn.Linear(config.attention_size, config.spatial_size)

    @property
    def is_causal(self) -> bool:  # read by attention implementations that build their own mask
        return self.config.is_causal

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        documents: Documents | None = None,
        past_key_values: Cache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Takes LN(x), [B, m, D], a mask as the attention implementation has it, and packed documents, if each gets a
        row of its own; returns [B, m, E] and, from some implementations, the attention weights [B, 1, m, t]."""
        size, qkv = self.config.attention_size, self.qkv_proj(hidden_states)
        qkv = (qkv if documents is None else documents.split(qkv))[:, None]
        query, key, value = qkv[..., :size], qkv[..., size : 2 * size], qkv[..., 2 * size :]  # [B, 1, m, A]
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.layer_idx)  # [B, 1, t, A]
        attention_interface: Callable = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward
        )
        dropout = self.config.attention_probs_dropout_prob if self.training else 0.0
        output, weights = attention_interface(
            self, query, key, value, attention_mask, dropout=dropout, scaling=self.scaling, **kwargs
        )
        output = output.flatten(2)
        return self.out_proj(output if documents is None else documents.join(output)), weights


class GMLPBlock(GradientCheckpointingLayer):
    """x + W_out s(gelu(W_in LN(x))) (Equation 1, Figure 1); in an aMLP, tiny attention is added to the gate (Figure 6).
    All layers are called, in this order, whatever wraps or replaces them."""

    def __init__(self, config: GMLPBaseConfig, drop_path_rate: float = 0.0, layer_idx: int = 0):
        super().__init__()
        self.config = config
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.proj_in = nn.Linear(config.hidden_size, config.intermediate_size)
        self.activation = ACT2FN[config.hidden_act]
        self.activation_dropout = nn.Dropout(config.activation_dropout)
        # In a cache, each attention has a layer in front of that of its gating unit, as they are called.
        caches = 2 if config.attention_size else 1
        self.attention = GMLPTinyAttention(config, caches * layer_idx) if config.attention_size else None
        self.spatial_gating_unit = SpatialGatingUnit(config, caches * layer_idx + caches - 1)
        self.proj_out = nn.Linear(config.spatial_size, config.hidden_size)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.drop_path_rate = drop_path_rate

    def forward(
        self,
        hidden_states: torch.Tensor,
        positions: Positions | None = None,
        attention_mask: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> torch.Tensor:
        """Takes x, [B, m, D], the positions of its tokens, by default those of rows without padding, the mask of tiny
        attention, and a cache, which is updated; returns [B, m, D]."""
        positions = Positions(self.config.is_causal) if positions is None else positions
        x = self.norm(hidden_states)
        z = self.activation_dropout(self.activation(self.proj_in(x)))  # [B, m, F]
        attention_output = None
        if self.attention is not None:
            attention_output = self.attention(x, attention_mask, positions.documents, past_key_values, **kwargs)[0]
        branch = self.proj_out(self.spatial_gating_unit(z, attention_output, positions, past_key_values))
        return hidden_states + drop_path(self.dropout(branch), self.drop_path_rate, self.training, positions.numbers)


def drop_path(branch: torch.Tensor, rate: float, training: bool, numbers: torch.Tensor | None = None) -> torch.Tensor:
    """Stochastic depth (Huang et al., 2016; the paper's [32]): in training, zeroes the branch [B, m, D] of a row, or of
    a packed document by its number [B, m], with probability `rate`, and scales the others up by 1 / (1 - rate)."""
    if not training or rate == 0.0:
        return branch
    count = 1 if numbers is None else branch.shape[1]
    survival = branch.new_empty(branch.shape[0], count).bernoulli_(1.0 - rate)
    survival = survival if numbers is None else survival.gather(1, numbers)
    return branch * survival[..., None] / (1.0 - rate)


class GMLPPreTrainedModel(PreTrainedModel):
    """What all models of this file share: initialization, resizing and model cards."""

    config: GMLPConfig
    base_model_prefix = "model"
    input_modalities = ("text",)
    supports_gradient_checkpointing = True
    _no_split_modules = ["GMLPBlock"]
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _can_compile_fullgraph = True
    # For the training scripts: documents that share a row do not see each other.
    packs_documents = True
    _can_record_outputs = {"hidden_states": GMLPBlock, "attentions": GMLPTinyAttention}

    def __init__(self, config: GMLPBaseConfig, *inputs, **kwargs):
        # Fields may have been changed since the config was made.
        config.validate()
        super().__init__(config, *inputs, **kwargs)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module):
        super()._init_weights(module)
        if self.config.initializer_range == 0 and isinstance(module, (nn.Linear, nn.Embedding, nn.Conv2d)):
            # The library would use its default in place of 0.
            init.zeros_(module.weight)
        elif isinstance(module, SpatialProjection):
            module.reset_parameters(self.config.spatial_initializer_range)
        elif isinstance(module, nn.Conv2d) and module.bias is None:
            # Of a convolutional stem: by the size of its input, since Adam's steps have one size for all weights.
            init.kaiming_normal_(module.weight)
        elif isinstance(module, GMLPPatchEmbeddings) and module.cls_token is not None:
            init.normal_(module.cls_token, std=self.config.initializer_range)

    def _upload_modified_files(self, working_dir, repo_id, *args, **kwargs):
        # Both kinds of push end here. The package writes its model card; a checkpoint's code leaves the library's.
        if __name__.startswith("hf_gmlp."):
            import_module("hf_gmlp.cards").write_model_card(self, working_dir, repo_id)
        return super()._upload_modified_files(working_dir, repo_id, *args, **kwargs)

    def spatial_projections(self) -> list[SpatialProjection]:
        """Return the W and b of every block, from the first to the last."""
        return [module for module in self.modules() if isinstance(module, SpatialProjection)]

    def get_position_embeddings(self) -> tuple[nn.Parameter, ...]:
        """Return the spatial weights of every block: a gMLP has no other positions."""
        return tuple(projection.weight for projection in self.spatial_projections())

    def resize_position_embeddings(self, new_num_position_embeddings: int):
        """
        Change n, the maximum number of tokens, in place. Sequences up to the old n keep their outputs; the added
        positions start as at initialization (no mixing, bias one) and must be trained. A Toeplitz model keeps what it
        learned about every offset. Create the optimizer after this, not before.

        Raises:
            TypeError, ValueError: If the new n is not an integer of at least 1; nothing has changed then.
        """
        length = operator.index(new_num_position_embeddings)
        if length < 1:
            raise ValueError(f"A model takes sequences of at least 1 token, got {length}.")
        self.config.max_position_embeddings = self.base_model.length = length
        for projection in self.spatial_projections():
            projection.resize(length)


def build_layers(config: GMLPBaseConfig) -> nn.ModuleList:
    """L blocks; block l is dropped with probability l / L * drop_path_rate in training (the paper's [32])."""
    depth = config.num_hidden_layers
    return nn.ModuleList(GMLPBlock(config, config.drop_path_rate * (i + 1) / depth, i) for i in range(depth))


class GMLPCacheLayer(DynamicLayer):
    """
    A growing cache layer with room for the keys (v, for one) of later tokens. transformers' own copies all tokens for
    each new one, which is a third of the time of a token behind 950 (docs/performance.md).

    It continues in its room only if nothing has changed since the last token: where a cache is cropped, reordered,
    moved or branched, or gradients are recorded, the library's layer does the work.
    """

    # Set by the library's layer.
    keys: Any
    values: Any
    # The tensor with room, [B, 1, length, E], and how many of its tokens are written; copies of the layer share them.
    room: tuple[torch.Tensor, list[int]] | None = None
    last_keys: Any = None

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args, **kwargs):
        past, length = self.get_seq_length(), self.get_seq_length() + key_states.shape[2]
        if past == 0 or self.keys is not self.last_keys or torch.is_grad_enabled() or torch.compiler.is_compiling():
            self.room = None
            self.last_keys, values = super().update(key_states, value_states)
            return self.last_keys, values
        room = self.room
        if room is not None and room[0].is_inference() and not torch.is_inference_mode_enabled():
            room = None
        if room is None or room[1] != [past] or length > room[0].shape[2]:
            room = key_states.new_empty(*key_states.shape[:2], 2 * length, key_states.shape[3]), [past]
            room[0][:, :, :past] = self.keys
        room[0][:, :, past:length] = key_states
        room[1][:] = [length]
        self.room, self.keys = room, room[0][:, :, :length]
        self.last_keys = self.keys
        self.values = torch.cat([self.values, value_states], dim=2)
        return self.keys, self.values

    def reset(self):
        # The library's layer left rows of zeros in older versions of transformers, which would be read as tokens.
        self.keys = self.values = self.room = self.last_keys = None
        self.is_initialized = False
        super().reset()


def prepare_cache(past_key_values: Cache, config: GMLPConfig):
    """Give an empty cache of transformers as many layers as this model fills: one per block for v, and with tiny
    attention another in front of each for keys and values. Raises a ValueError if it is another kind of cache."""
    layers, per_block = getattr(past_key_values, "layers", [None]), 2 if config.attention_size else 1
    count = per_block * config.num_hidden_layers
    if any(type(layer) not in (DynamicLayer, GMLPCacheLayer, StaticLayer) for layer in layers):
        raise ValueError(
            f"A gMLP takes the dynamic, static and offloaded caches of transformers, not a "
            f"{type(past_key_values).__name__} with other layers. Leave it to `generate`."
        )
    if past_key_values.is_compileable:
        layers += [StaticLayer(past_key_values.get_max_length()) for _ in range(count - len(layers))]
    elif not any(layer.is_initialized for layer in layers):
        layers[:] = [GMLPCacheLayer() for _ in range(count)]
    elif len(layers) < count or layers[per_block - 1].values.numel():
        raise ValueError(
            "This cache was filled by another kind of model or by prefix tuning: it does not hold v of a gMLP. In "
            "place of prefix tuning, use prompt tuning or LoRA."
        )


def check_config(config: GMLPBaseConfig, length: int):
    """Raise a ValueError if n in the config is not the `length` of W."""
    if config.max_position_embeddings != length:
        raise ValueError(
            f"W has weights for {length} tokens, not for the {config.max_position_embeddings} of the config. Undo the "
            f"change of the config and call `model.resize_position_embeddings` or `model.resize_image_size`."
        )


class GMLPModel(GMLPPreTrainedModel):
    """The text model: embeddings, blocks and a final LayerNorm, and BERT's pooler unless `add_pooling_layer=False`."""

    _auto_class = "AutoModel"

    def __init__(self, config: GMLPConfig, add_pooling_layer: bool = True):
        super().__init__(config)
        self.length = config.max_position_embeddings
        self.embeddings = TextEmbeddings(config)
        self.layers = build_layers(config)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.pooler = Pooler(config) if add_pooling_layer else None
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embeddings.word_embeddings

    def set_input_embeddings(self, value: nn.Embedding):
        self.embeddings.word_embeddings = value

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
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPoolingAndCrossAttentions:
        r"""
        Args:
            input_ids, inputs_embeds: [B, m] or [B, m, D], one of them, with at most n tokens in a document.
            attention_mask: [B, m], 1 for tokens and 0 for padding, on either side; with a cache [B, t].
            token_type_ids: [B or 1, m], the segment of each token; all 0 by default.
            position_ids: [B or 1, m], the row and column of W for each token, from 0 to n - 1. By default, counted from
                the first token of a document that is not padding. Where they do not increase, a document begins.
            seq_idx: [B or 1, m], the number of each token's document, if several are packed into a row. They do not see
                each other. In `kwargs`, `cu_seq_lens_q` does the same for a batch of one row.
            past_key_values, use_cache: A causal model's cache of earlier tokens, and whether to create one.

        Returns:
            `last_hidden_state` [B, m, D], `pooler_output` [B, D], or [documents, D] if rows are packed, and the cache.

        Raises:
            ValueError: If an input has another shape or too many tokens, or if the model cannot use the cache.
        """
        inputs = check_inputs(input_ids, inputs_embeds)
        check_config(self.config, self.length)
        past_key_values = kwargs.pop(CACHE, past_key_values)
        if past_key_values is None and use_cache and self.config.is_causal and not self.training:
            past_key_values = DynamicCache()
        packing = {name: kwargs.pop(name, None) for name in PACKING}
        if past_key_values is None:
            check_mask(attention_mask, inputs.shape[:2])
            numbers = document_numbers(
                inputs.shape[:2], attention_mask, position_ids, seq_idx, packing["cu_seq_lens_q"]
            )
            index, split = torch.arange(inputs.shape[1], device=inputs.device), self.splits_documents(**kwargs)
            causal = self.config.is_causal
            positions = find_positions(self.config, index, causal, attention_mask, position_ids, numbers, split)
        elif seq_idx is None and packing["cu_seq_lens_q"] is None:
            positions, attention_mask = self.locate_cached(inputs, attention_mask, position_ids, past_key_values)
        else:
            raise ValueError("With a cache, a row cannot hold several documents. Pass `use_cache=False`.")
        hidden_states = self.embeddings(input_ids, token_type_ids, inputs_embeds)
        pair_mask = None
        if self.config.attention_size:
            pair_mask = self.create_pair_mask(hidden_states, attention_mask, positions, past_key_values)
        for layer in self.layers[: self.config.num_hidden_layers]:
            hidden_states = layer(hidden_states, positions, pair_mask, past_key_values=past_key_values, **kwargs)
        hidden_states, pooled = self.norm(hidden_states), None
        if self.pooler is not None:
            tokens, mask = hidden_states, attention_mask
            if positions.numbers is not None:
                documents = positions.documents or Documents.find(positions.numbers, attention_mask)
                tokens, mask = documents.split(tokens), documents.mask(attention_mask)
            pooled = self.pooler(pool_tokens(tokens, mask, self.config.pooling, self.config.is_causal))
        return BaseModelOutputWithPoolingAndCrossAttentions(
            last_hidden_state=hidden_states, pooler_output=pooled, **{CACHE: past_key_values}
        )

    def locate_cached(
        self,
        inputs: torch.Tensor,
        attention_mask: torch.Tensor | None,
        position_ids: torch.Tensor | None,
        past_key_values: Cache,
    ) -> tuple[Positions, torch.Tensor | None]:
        """Return the positions of the new tokens, [B, m] or [B, m, D], behind those in a cache, and the mask [B, t]."""
        if not self.config.is_causal:
            raise ValueError(
                "`past_key_values` is for causal models (`config.is_causal`): in this model, a new token changes the "
                "outputs of all earlier ones. In place of prefix tuning, use prompt tuning or LoRA."
            )
        prepare_cache(past_key_values, self.config)
        # A copy: in a static cache, this is a tensor that its layers increase.
        start = past_key_values.get_seq_length() + 0
        index, length = torch.arange(inputs.shape[1], device=inputs.device), start + inputs.shape[1]
        if past_key_values.is_compileable:
            room = past_key_values.get_max_length()
            if attention_mask is not None and attention_mask.shape[1] != room:
                # A mask that ends with the new tokens, as that of `generate` does.
                if is_readable(attention_mask):
                    check_mask(attention_mask, (inputs.shape[0], int(length)))
                attention_mask = F.pad(attention_mask, (0, room - attention_mask.shape[1]))
            length = room
        check_length(length, self.config.max_position_embeddings)
        check_mask(attention_mask, (inputs.shape[0], length))
        return find_cached_positions(self.config, index, start, length, attention_mask, position_ids), attention_mask

    def splits_documents(self, output_attentions: bool | None = None, **kwargs) -> bool | None:
        """Return whether packed documents must get rows of their own, as in flash attention, which takes no mask
        between pairs of tokens, or must not, so that attention weights are those of the rows; `None` if both work.
        """
        if not self.config.attention_size:
            return None
        if self.config.output_attentions if output_attentions is None else output_attentions:
            return False
        return True if "flash" in self.config._attn_implementation else None

    def create_pair_mask(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None,
        positions: Positions,
        past_key_values: Cache | None,
    ) -> torch.Tensor | None:
        """Return the mask of tiny attention, as its implementation takes it: tokens see each other both ways, unless
        `config.is_causal`, within a document, and no padding that is hidden from W."""
        documents = positions.documents
        if documents is not None:
            hidden_states, attention_mask = documents.split(hidden_states), documents.mask(attention_mask)
        elif positions.padding is None:
            attention_mask = None
        options = pair_mask_options(attention_mask)
        if documents is None and (numbers := positions.numbers) is not None:
            if "flash" in self.config._attn_implementation:
                raise ValueError(
                    "Flash attention takes packed documents only in models that are not compiled, with positions that "
                    "count from 0, and without `output_attentions`. Use `attn_implementation='sdpa'`."
                )

            def same_document(batch, head, query, key):
                return numbers[batch, query] == numbers[batch, key]

            options = {"and_mask_function": same_document}
        return create_causal_mask(
            config=self.config,
            inputs_embeds=hidden_states,
            attention_mask=attention_mask,
            **options | {CACHE: past_key_values},
        )


class GMLPForMaskedLM(ForMaskedLM, GMLPPreTrainedModel):
    """gMLP with a masked-language-model head, whose decoder is tied to the embeddings (paper, section 4)."""

    base_model_class = GMLPModel
    _tp_plan = {"decoder": "colwise_gather_output"}


class GMLPForCausalLM(ForCausalLM, GMLPPreTrainedModel, GenerationMixin):
    """
    gMLP that predicts the next token and generates text of up to n tokens. It is causal whatever the config says: the
    checkpoint of a masked language model opens as this too, with the weights that look ahead hidden, and can be trained
    further.
    """

    base_model_class = GMLPModel
    _tp_plan = {"decoder": "colwise_gather_output"}

    def __init__(self, config: GMLPConfig):
        if not config.is_causal:
            # A copy: the caller may use this config for a masked language model too.
            config = copy.deepcopy(config)
            config.is_causal = True
        super().__init__(config)

    def create_masks_for_generate(self, attention_mask: torch.Tensor | None, **kwargs) -> torch.Tensor | None:
        """Part of `generate` with a static cache: pads the mask to the size of the cache, so that its shape stays."""
        room = kwargs[CACHE].get_max_length()
        return None if attention_mask is None else F.pad(attention_mask, (0, room - attention_mask.shape[1]))

    def _get_static_cache_init_shape(self) -> None:
        """Part of `generate`: the layers of a cache differ in shape, so each is initialized when it is first used."""

    def init_continuous_batching(self, *args, **kwargs):
        raise ValueError("A gMLP has no paged cache: use `generate` with a batch of padded prompts.")

    def _prepare_generated_length(self, generation_config: GenerationConfig, inputs_tensor: torch.Tensor, **kwargs):
        """Part of `generate`: limits the text to n tokens, with a warning."""
        generation_config = super()._prepare_generated_length(generation_config, inputs_tensor=inputs_tensor, **kwargs)
        # `generate` does not count a prompt of embeddings.
        n, uncounted = self.config.max_position_embeddings, inputs_tensor.shape[1] - kwargs["input_ids_length"]
        check_length(inputs_tensor.shape[1] + 1, n)
        if generation_config.max_length + uncounted > n:
            logger.warning(f"The text will end at {n} tokens (`config.max_position_embeddings`).")
            generation_config.max_length = n - uncounted
        return generation_config


class GMLPForSequenceClassification(ForSequenceClassification, GMLPPreTrainedModel):
    """gMLP with a classifier or regressor on BERT's pooler, for GLUE's tasks among others."""

    base_model_class = GMLPModel


class GMLPForTokenClassification(ForTokenClassification, GMLPPreTrainedModel):
    """gMLP with a classifier on every token, for named entities among others."""

    base_model_class = GMLPModel


class GMLPForQuestionAnswering(ForQuestionAnswering, GMLPPreTrainedModel):
    """gMLP that marks the first and the last token of an answer, for SQuAD."""

    base_model_class = GMLPModel


class GMLPForMultipleChoice(ForMultipleChoice, GMLPPreTrainedModel):
    """gMLP that scores each of several choices by BERT's pooler, for SWAG among others."""

    base_model_class = GMLPModel


class GMLPVisionPreTrainedModel(GMLPPreTrainedModel):
    config: GMLPVisionConfig
    main_input_name = "pixel_values"
    input_modalities = ("image",)

    def resize_position_embeddings(self, new_num_position_embeddings: int):
        raise ValueError(
            "The tokens of an image model are the patches of its image: change their number with "
            "`model.resize_image_size((height, width))`."
        )

    def resize_image_size(self, image_size: int | tuple[int, int]):
        """
        Change the size of the images in pixels, in place: a number for a square or (height, width). A dense W is
        interpolated over the grid of patches, in its rows and its columns, and b over its patches; a Toeplitz W keeps
        what it learned about every offset, and does not mix over added ones. Continue training afterwards. Change the
        image processor too, and create the optimizer after this, not before.

        Raises:
            ValueError: If the new size is not a multiple of the patch size.
        """
        old_grid, old_size = self.config.grid_size, self.config.image_size
        try:
            if isinstance(image_size, list | tuple):
                self.config.image_size = [operator.index(side) for side in image_size]
            else:
                self.config.image_size = operator.index(image_size)
            self.config.validate()
        except Exception:
            self.config.image_size = old_size
            raise
        self.base_model.length = self.config.max_position_embeddings
        for projection in self.spatial_projections():
            projection.resize_grid(old_grid, self.config.grid_size, self.config.num_prefix_tokens)


class GMLPVisionModel(GMLPVisionPreTrainedModel):
    """The image encoder: patches, blocks, final LayerNorm, and `config.pooling` unless `add_pooling_layer=False`."""

    _auto_class = "AutoModel"

    def __init__(self, config: GMLPVisionConfig, add_pooling_layer: bool = True):
        super().__init__(config)
        self.length = config.max_position_embeddings
        self.embeddings = GMLPPatchEmbeddings(config)
        self.layers = build_layers(config)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.add_pooling_layer = add_pooling_layer
        self.pooler = Pooler(config) if add_pooling_layer and config.pooling == "cls" else None
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings.projection

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self, pixel_values: torch.Tensor | None = None, **kwargs: Unpack[TransformersKwargs]
    ) -> BaseModelOutputWithPooling:
        r"""
        Takes images [B, channels, height, width]; returns `last_hidden_state` [B, n, D] and `pooler_output` [B, D].

        Raises:
            ValueError: If there are no images, or their size or number of channels is not that of the config.
        """
        if pixel_values is None:
            raise ValueError("Pass `pixel_values`; the image processor makes them from images.")
        check_config(self.config, self.length)
        hidden_states = self.embeddings(pixel_values)
        positions = Positions(self.config.is_causal)
        for layer in self.layers[: self.config.num_hidden_layers]:
            hidden_states = layer(hidden_states, positions, **kwargs)
        hidden_states = self.norm(hidden_states)
        pooled = None
        if self.pooler is not None:
            pooled = self.pooler(hidden_states[:, 0])
        elif self.add_pooling_layer:
            pooled = hidden_states.mean(dim=1)
        return BaseModelOutputWithPooling(last_hidden_state=hidden_states, pooler_output=pooled)


class GMLPForImageClassification(GMLPVisionPreTrainedModel):
    """gMLP with an image classifier, for ImageNet (paper, section 3)."""

    _auto_class = "AutoModelForImageClassification"

    def __init__(self, config: GMLPVisionConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.model = GMLPVisionModel(config)
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.loss_function = classification_loss
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        pixel_values: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> ImageClassifierOutput:
        r"""Takes images [B, channels, height, width] and labels, [B] classes or [B, num_labels] with several labels per
        image; returns `loss` and `logits` [B, num_labels]."""
        outputs = self.model(pixel_values, **kwargs | {"return_dict": True})
        logits = self.classifier(self.dropout(outputs.pooler_output))
        loss = self.loss_function(labels, logits, self.config, **kwargs) if labels is not None else None
        return ImageClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class GMLPVisionBackbone(BackboneMixin, GMLPVisionModel):
    """The image encoder as a pyramid of feature maps, for heads that segment, detect or estimate depth."""

    _auto_class = "AutoBackbone"

    def __init__(self, config: GMLPVisionConfig):
        super().__init__(config, add_pooling_layer=False)
        self.num_features = [config.hidden_size] * len(self.stage_names)
        if config._out_features is None:
            # Sets the name of the last stage, which a backbone reads.
            config.out_features = None

    @merge_with_config_defaults
    @capture_outputs(tie_last_hidden_states=False)
    def forward(self, pixel_values: torch.Tensor, **kwargs: Unpack[TransformersKwargs]) -> BackboneOutput:
        r"""Takes images [B, channels, height, width]; returns `feature_maps`, [B, D, rows, columns] of patches without
        the [CLS] token for each of `config.out_features`."""
        check_config(self.config, self.length)
        feature_maps: tuple[torch.Tensor, ...] = ()
        hidden_states = self.embeddings(pixel_values)
        for stage, layer in zip(self.stage_names, [None, *self.layers]):
            if layer is not None:
                hidden_states = layer(hidden_states, **kwargs)
            if stage in self.out_features:
                patches = self.norm(hidden_states) if self.config.apply_layernorm else hidden_states
                patches = patches[:, self.config.num_prefix_tokens :].unflatten(1, self.config.grid_size)
                feature_maps += (patches.permute(0, 3, 1, 2).contiguous(),)
        return BackboneOutput(feature_maps=feature_maps)


__all__ = [
    "GMLPForCausalLM",
    "GMLPForImageClassification",
    "GMLPForMaskedLM",
    "GMLPForMultipleChoice",
    "GMLPForQuestionAnswering",
    "GMLPForSequenceClassification",
    "GMLPForTokenClassification",
    "GMLPModel",
    "GMLPPreTrainedModel",
    "GMLPVisionBackbone",
    "GMLPVisionModel",
    "GMLPVisionPreTrainedModel",
]
