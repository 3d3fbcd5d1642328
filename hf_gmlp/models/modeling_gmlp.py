# Copyright 2026 The hf_gmlp authors. Licensed under the Apache License, Version 2.0.
"""gMLP and aMLP for text and images ("Pay Attention to MLPs", Liu et al., 2021, https://arxiv.org/abs/2105.08050).

A gMLP is a Transformer-sized stack of blocks in which one matrix over the tokens, W, takes the place of self-attention
and of position embeddings. On x [B, m, D], a block computes

    x + drop_path(dropout(W_out s(gelu(W_in LN(x)))))    Equation 1, Figure 1     GMLPBlock, naive_gating
    s(Z) = u * (W LN(v) + b), Z = [u, v]                 Equations 2 to 4         SpatialGatingUnit (spatial_gating.py)
    s(Z) = u * (W LN(v) + b + tiny_attention(LN(x)))     an aMLP, Figure 6        GMLPTinyAttention

W [n, n] and b [n] act on the token axis, the same for all channels. W starts near zero and b at one, so that a block
starts as a plain feed-forward network and learns how much to mix. F, the width of Z, is d_ffn in the paper.

- Length: m <= n tokens use W[:m, :m] and b[:m]. `resize_position_embeddings` and `resize_image_size` change n.
- Padding is hidden from W and attention: a sequence has the same output alone, padded on either side, or in any batch.
- Packed documents: several may share a row (`position_ids` that restart); W and attention see each of them alone.
- Causal models (`config.is_causal`) hide W[i, j] with j > i. A cache keeps v, so that a new token costs one row of W.

The file follows the data: patches -> GMLPBlock -> GMLPPreTrainedModel (initialization, resizing) -> cache -> text
models -> image models. The embeddings and heads of text models are in heads.py.

Shapes: B batch, m tokens given, t tokens including those in a cache, n config.max_position_embeddings, D hidden_size,
F intermediate_size, E spatial_size (F / 2 after a split), A attention_size, V vocab_size. Every checkpoint contains
this file and its three neighbors, which need only torch and transformers.
"""

import copy
import operator
from collections.abc import Callable

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
from transformers.modeling_outputs import BackboneOutput, BaseModelOutputWithPooling, ImageClassifierOutput
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, logging
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from .configuration_gmlp import GMLPBaseConfig, GMLPConfig, GMLPVisionConfig, as_pair
from .heads import (
    Documents,
    ForCausalLM,
    ForMaskedLM,
    ForMultipleChoice,
    ForQuestionAnswering,
    ForSequenceClassification,
    ForTokenClassification,
    Pooler,
    TextEmbeddings,
    TextModelOutput,
    check_inputs,
    classification_loss,
    eager_attention_forward,
    first_places,
    packed_documents,
    pool_tokens,
    shift,
)
from .spatial_gating import SpatialGatingUnit, SpatialProjection

logger = logging.get_logger(__name__)


class GMLPPatchEmbeddings(nn.Module):
    """The stem of ViT: a convolution cuts the image into patches; with "cls" pooling, a [CLS] token goes in front."""

    def __init__(self, config: GMLPVisionConfig):
        super().__init__()
        self.config = config
        patch_size = as_pair(config.patch_size)
        self.projection = nn.Conv2d(config.num_channels, config.hidden_size, patch_size, stride=patch_size)
        self.cls_token = nn.Parameter(torch.empty(1, 1, config.hidden_size)) if config.pooling == "cls" else None
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:  # [B, C, H, W] -> [B, n, D]
        if pixel_values.dim() != 4:
            raise ValueError(
                f"`pixel_values` must be a batch of images, [batch, channels, height, width], got shape "
                f"{list(pixel_values.shape)}. Put a single image into a batch with `pixel_values[None]`."
            )
        channels, height, width = pixel_values.shape[1:]
        if channels != self.config.num_channels:
            raise ValueError(
                f"The images have {channels} channels and the model takes {self.config.num_channels} "
                f"(`config.num_channels`). Convert them first, for example to RGB with the image processor."
            )
        if (height, width) != as_pair(self.config.image_size):
            expected = "x".join(str(side) for side in as_pair(self.config.image_size))
            raise ValueError(
                f"The images are {height}x{width} pixels and the model takes {expected} (`config.image_size`). Resize "
                f"them with the image processor, or the model with `model.resize_image_size(({height}, {width}))`."
            )
        embeddings = self.projection(pixel_values.to(self.projection.weight.dtype)).flatten(2).transpose(1, 2)
        if self.cls_token is not None:
            embeddings = torch.cat([self.cls_token.expand(embeddings.shape[0], -1, -1), embeddings], dim=1)
        return self.dropout(embeddings)


class GMLPTinyAttention(nn.Module):
    """The single-head attention that makes an aMLP (Figure 6): [B, m, D] -> [B, m, E]."""

    def __init__(self, config: GMLPBaseConfig, layer_idx: int = 0):
        super().__init__()
        self.config = config
        # The cache layer that holds keys and values, behind those of the spatial gating units.
        self.layer_idx = config.num_hidden_layers + layer_idx
        self.scaling = config.attention_size**-0.5
        self.qkv_proj = nn.Linear(config.hidden_size, 3 * config.attention_size)
        self.out_proj = nn.Linear(config.attention_size, config.spatial_size)

    @property
    def is_causal(self) -> bool:  # read by attention implementations that build their own mask
        return self.config.is_causal

    def forward(
        self,
        hidden_states: torch.Tensor,  # [B, m, D]
        attention_mask: torch.Tensor | None = None,  # as the attention implementation takes it
        past_key_values: Cache | None = None,
        documents: Documents | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:  # [B, m, E]
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


def naive_gating(
    block: nn.Module,
    hidden_states: torch.Tensor,
    padding_mask: torch.Tensor | None = None,
    attention_mask: torch.Tensor | None = None,
    first: torch.Tensor | None = None,
    past_key_values: Cache | None = None,
    documents: Documents | None = None,
    **kwargs: Unpack[TransformersKwargs],
) -> torch.Tensor:
    """
    The branch of a block as in the paper (section 2, Figure 1): W_out s(gelu(W_in LN(x))), [B, m, D]

    Args:
        block: The `GMLPBlock` whose layers are called.
        hidden_states: x, [B, m, D]
        padding_mask: [B, m], 0 for padding, which is hidden from W.
        attention_mask: For tiny attention, as the attention implementation takes it.
        first: [B], the place of each sequence's first token, if there is padding in front.
        past_key_values: Holds v, keys and values of earlier tokens, and takes those of these.
        documents: Where the documents stand that share the one row of this batch. W and attention see each alone.
    """
    packed = {} if documents is None else {"documents": documents}
    x = block.norm(hidden_states)
    z = block.activation_dropout(block.activation(block.proj_in(x)))  # [B, m, F]
    attention_output = None
    if block.attention is not None:
        attention_output = block.attention(x, attention_mask, past_key_values, **packed, **kwargs)[0]  # [B, m, E]
    gated = block.spatial_gating_unit(z, attention_output, padding_mask, first, past_key_values, **packed)  # [B, m, E]
    return block.proj_out(gated)


# How a block computes its branch, by `config.gating_implementation`. All have the signature of `naive_gating` and give
# its outputs and gradients. The installed package adds faster ones and sets "auto"; a checkpoint has only this one.
GATING_IMPLEMENTATIONS: dict[str, Callable[..., torch.Tensor]] = {"auto": naive_gating, "naive": naive_gating}


class GMLPBlock(GradientCheckpointingLayer):
    """x + W_out s(gelu(W_in LN(x))) (Equation 1, Figure 1); in an aMLP, tiny attention is added to the gate (Figure 6).
    The arguments are those of `naive_gating`."""

    def __init__(self, config: GMLPBaseConfig, drop_path_rate: float = 0.0, layer_idx: int = 0):
        super().__init__()
        self.config = config
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.proj_in = nn.Linear(config.hidden_size, config.intermediate_size)
        self.activation = ACT2FN[config.hidden_act]
        self.activation_dropout = nn.Dropout(config.activation_dropout)
        self.attention = GMLPTinyAttention(config, layer_idx) if config.attention_size else None
        self.spatial_gating_unit = SpatialGatingUnit(config, layer_idx)
        self.proj_out = nn.Linear(config.spatial_size, config.hidden_size)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.drop_path_rate = drop_path_rate

    def forward(self, hidden_states: torch.Tensor, *inputs, **kwargs) -> torch.Tensor:  # [B, m, D]
        branch = GATING_IMPLEMENTATIONS[self.config.gating_implementation](self, hidden_states, *inputs, **kwargs)
        documents = kwargs.get("documents")
        return hidden_states + drop_path(self.dropout(branch), self.drop_path_rate, self.training, documents)


def drop_path(branch: torch.Tensor, rate: float, training: bool, documents: Documents | None = None) -> torch.Tensor:
    """Stochastic depth (Huang et al., 2016; the paper's [32]): in training, zeroes the branch of a sample or a packed
    document with probability `rate`, and scales the others up by 1 / (1 - rate)."""
    if not training or rate == 0.0:
        return branch
    count = len(branch if documents is None else documents.real)
    survival = torch.empty(count, 1, 1, dtype=branch.dtype, device=branch.device).bernoulli_(1.0 - rate)
    if documents is not None:
        survival = documents.join(survival.expand(*documents.real.shape, 1))
    return branch * survival / (1.0 - rate)


class GMLPPreTrainedModel(PreTrainedModel):
    """Initialization, resizing and the choice of an implementation for all models of this file."""

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
        super().__init__(config, *inputs, **kwargs)
        self.set_gating_implementation(config.gating_implementation)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module):
        super()._init_weights(module)
        if self.config.initializer_range == 0 and isinstance(module, (nn.Linear, nn.Embedding, nn.Conv2d)):
            # The library would use its default in place of 0.
            init.zeros_(module.weight)
        elif isinstance(module, SpatialProjection):
            module.reset_parameters(self.config.spatial_initializer_range)
        elif isinstance(module, GMLPPatchEmbeddings) and module.cls_token is not None:
            init.normal_(module.cls_token, std=self.config.initializer_range)

    @staticmethod
    def _cards():
        """The module of the package hf_gmlp that writes model cards, or None in the code that a checkpoint carries."""
        from importlib import import_module

        return import_module("hf_gmlp.cards") if __name__.startswith("hf_gmlp.") else None

    def push_to_hub(self, *args, **kwargs) -> str:
        """`PreTrainedModel.push_to_hub`. The package hf_gmlp writes its own model card, and takes `license` for it."""
        cards = self._cards()
        return super().push_to_hub(*args, **kwargs) if cards is None else cards.push_to_hub(self, *args, **kwargs)

    def save_pretrained(self, save_directory, is_main_process=True, state_dict=None, push_to_hub=False, **kwargs):
        """`PreTrainedModel.save_pretrained`. With `push_to_hub`, takes the arguments of `push_to_hub`."""
        cards = self._cards() if push_to_hub else None
        if cards is None:
            return super().save_pretrained(save_directory, is_main_process, state_dict, push_to_hub, **kwargs)
        cards.save_and_push(self, save_directory, is_main_process, state_dict, **kwargs)

    def set_gating_implementation(self, name: str):
        """
        Chooses how the blocks compute: "naive", the paper's equations, "auto", or a form that `import hf_gmlp` adds.
        Outputs and gradients stay the same. Checkpoints do not store the choice.

        Raises:
            ValueError: If there is no implementation of that name.
        """
        if name not in GATING_IMPLEMENTATIONS:
            raise ValueError(
                f"There is no gating implementation {name!r} here. Choose one of: "
                f"{', '.join(map(repr, GATING_IMPLEMENTATIONS))}. For faster ones, import the package hf_gmlp."
            )
        self.config.gating_implementation = name

    def spatial_projections(self) -> list[SpatialProjection]:
        """The W and b of every block, from the first to the last."""
        return [module for module in self.modules() if isinstance(module, SpatialProjection)]

    def get_position_embeddings(self) -> tuple[nn.Parameter, ...]:
        """The spatial weights of every block: a gMLP has no other positions."""
        return tuple(projection.weight for projection in self.spatial_projections())

    def resize_position_embeddings(self, new_num_position_embeddings: int):
        """
        Changes n, the maximum number of tokens, in place. Sequences up to the old n keep their outputs; the new part
        starts as at initialization (no mixing, bias one) and needs training. A Toeplitz model keeps what it learned
        about every offset and applies it at the new places. Create the optimizer after this, not before.

        Raises:
            ValueError: If the new n is not a whole number of at least 1; nothing has changed then.
        """
        length = whole_number(new_num_position_embeddings)
        if type(length) is not int or length < 1:
            raise ValueError(f"A model takes sequences of at least 1 token, got {new_num_position_embeddings!r}.")
        self.config.max_position_embeddings = self.base_model.length = length
        for projection in self.spatial_projections():
            projection.resize(length)


def build_layers(config: GMLPBaseConfig) -> nn.ModuleList:
    """L blocks; block l is dropped with probability l / L * drop_path_rate in training (the paper's [32])."""
    depth = config.num_hidden_layers
    return nn.ModuleList(GMLPBlock(config, config.drop_path_rate * (i + 1) / depth, i) for i in range(depth))


class GMLPCacheLayer(DynamicLayer):
    """
    A growing cache layer. transformers' own copies all earlier tokens for each new one; where no gradient can be asked
    for, this one writes into a buffer of n rows instead.

    Rows that were handed out are never overwritten. A layer continues in its buffer only behind the last written row,
    and only while its keys are the tensor that it handed out last: a cache that was cropped, reordered, moved, branched
    or filled in inference mode gets a new buffer.
    """

    def __init__(self, max_length: int):
        super().__init__()
        self.max_length = max_length
        self.buffer: CacheBuffer | None = None

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args, **kwargs
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """[B, 1, m, width] each -> all that the layer holds, [B, 1, t, width] each"""
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            self.buffer = None
            return super().update(key_states, value_states)
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        if self.buffer is None or not self.buffer.continues(self.keys):
            start = self.get_seq_length()
            length = max(self.max_length, start + key_states.shape[2])
            self.buffer = CacheBuffer(key_states, value_states, length)
            if start:
                self.buffer.append(self.keys, self.values)
        self.keys, self.values = self.buffer.append(key_states, value_states)
        return self.keys, self.values

    def offload(self):
        super().offload()
        self.buffer = None

    def reset(self):
        # Some versions of transformers leave rows of zeros, which would be read as tokens.
        self.keys = self.values = self.buffer = None
        self.is_initialized = False
        super().reset()


class CacheBuffer:
    """Room for the keys and values of `length` tokens, each [B, 1, length, width], which copies of a cache share."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, length: int):
        self.keys, self.values = (x.new_empty(*x.shape[:2], length, x.shape[3]) for x in (keys, values))
        self.filled = 0
        self.handed_out: torch.Tensor | None = None

    def continues(self, keys: torch.Tensor) -> bool:
        """Whether `keys` were handed out last, and the rows behind them may be written."""
        writable = torch.is_inference_mode_enabled() or not self.keys.is_inference()
        return keys is self.handed_out and writable and self.filled < self.keys.shape[2]

    def append(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns all rows so far."""
        start, length = self.filled, keys.shape[2]
        self.filled = start + length
        self.keys.narrow(2, start, length).copy_(keys)
        if values.shape[3]:
            self.values.narrow(2, start, length).copy_(values)
        self.handed_out = self.keys.narrow(2, 0, self.filled)
        return self.handed_out, self.values.narrow(2, 0, self.filled)


def prepare_cache(past_key_values: Cache, config: GMLPConfig) -> Cache:
    """
    Gives an empty cache of transformers the layers of this model: one per block for v and, with tiny attention, one per
    block for keys and values. Growing layers become `GMLPCacheLayer`s.

    Raises:
        ValueError: If the cache has layers of another kind (quantized, paged), was filled by another model, or is a
            static one of more than n tokens.
    """
    layers = getattr(past_key_values, "layers", None)
    if layers is None or any(type(layer) not in (DynamicLayer, GMLPCacheLayer, StaticLayer) for layer in layers):
        raise ValueError(
            f"A gMLP takes the dynamic, offloaded and static caches of transformers, and not a "
            f"{type(past_key_values).__name__} of other layers. Leave `cache_implementation` and `past_key_values` to "
            f"`generate`."
        )
    n, count = config.max_position_embeddings, config.num_hidden_layers * (2 if config.attention_size else 1)
    if any(layer.is_initialized for layer in layers):
        if len(layers) < count or layers[0].keys.shape[-1] != config.spatial_size or layers[0].values.shape[-1]:
            raise ValueError(
                "This cache was filled by another kind of model or by prefix tuning: it does not hold v of a gMLP. In "
                "place of prefix tuning, use prompt tuning or LoRA."
            )
        return past_key_values
    if layers and type(layers[0]) is StaticLayer:
        room = layers[0].max_cache_len
        if room > n:
            raise ValueError(
                f"The static cache has room for {room} tokens and the model takes up to {n} "
                f"(`config.max_position_embeddings`). Create it with `max_cache_len={n}` or less."
            )
        layers += [StaticLayer(max_cache_len=room) for _ in range(count - len(layers))]
    elif not layers or type(layers[0]) is DynamicLayer:
        past_key_values.layers = [GMLPCacheLayer(n) for _ in range(count)]
        past_key_values.layer_class_to_replicate = None
    return past_key_values


def check_places(
    kwargs: dict, count: int, start: int | torch.Tensor, first: torch.Tensor | None, padding_mask: torch.Tensor | None
):
    """
    Removes what describes packing from the `kwargs` of a forward pass of `count` tokens behind `start` cached ones.

    Raises:
        ValueError: If documents are packed, or `position_ids` do not count the tokens that are not padding.
    """
    packing = ("seq_idx", "cu_seq_lens_q", "cu_seq_lens_k", "cu_seqlens")
    wrong = any([kwargs.pop(name, None) is not None for name in packing])
    for name in ("max_length_q", "max_length_k"):
        kwargs.pop(name, None)
    position_ids = kwargs.pop("position_ids", None)
    if position_ids is not None and not wrong:
        places = torch.arange(count, device=position_ids.device)[None] + start
        if first is not None:
            places = places - first[:, None].to(position_ids.device)
        shown = True if padding_mask is None else padding_mask.to(places.device) != 0
        wrong = position_ids.shape[-1] != count or bool(((position_ids != places) & shown).any())
    if wrong:
        raise ValueError(
            "With a cache, each row is one text whose tokens are counted from 0: pass no other `position_ids` and pack "
            "no documents. Without a cache (`use_cache=False`), documents may be packed."
        )


def check_length(config: GMLPBaseConfig, length: int):
    """Raises a ValueError if n in the config is not the `length` of W."""
    if config.max_position_embeddings != length:
        raise ValueError(
            f"The config says {config.max_position_embeddings} tokens (`max_position_embeddings`) and W has weights "
            f"for {length}. Undo the change of the config and call `model.resize_position_embeddings` or "
            f"`model.resize_image_size`, which change both."
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
    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> TextModelOutput:
        r"""
        Args:
            input_ids: [B, m], with m <= n, or with packed documents of at most n tokens each.
            attention_mask: [B, m], 1 for tokens and 0 for padding, on either side: rows and columns of W are counted
                from a sequence's first token. With `past_key_values` [B, t], including the tokens in the cache.
            token_type_ids: [B, m], the segment of each token; all 0 by default.
            inputs_embeds: [B, m, D], in place of `input_ids`.
            past_key_values: A causal model's cache of earlier tokens.
            use_cache: Whether to create a cache if there is none; off by default.
            position_ids, seq_idx, cu_seq_lens_q (in `kwargs`): Where packed documents begin (see `packed_documents`).
                Each document has the same output as in a row of its own.

        Returns:
            `last_hidden_state` [B, m, D], `pooler_output` [B, D] and, if there is a cache, `past_key_values`. With k
            packed documents of at most l tokens, `pooler_output` is [k, D], each of `attentions` is [k, 1, l, l], and
            `documents` tells where they stand.

        Raises:
            ValueError: If not exactly one of `input_ids` and `inputs_embeds` is given, if a sequence with its cached
                tokens is longer than n, if the mask has another shape, if the model cannot use the cache, or if the
                packing is contradictory or combined with a cache.
        """
        given = check_inputs(input_ids, inputs_embeds)
        if past_key_values is not None and not self.config.is_causal:
            raise ValueError(
                "`past_key_values` is for causal models (`config.is_causal`): in this model, a new token changes the "
                "outputs of all earlier ones. In place of prefix tuning, use prompt tuning or LoRA."
            )
        check_length(self.config, self.length)
        if past_key_values is None and use_cache and self.config.is_causal:
            past_key_values = DynamicCache()
        shape, device = given.shape[:2], given.device
        start, room = 0, None
        if past_key_values is not None:
            prepare_cache(past_key_values, self.config)
            # A copy: with a static cache, this is a tensor that its layers increase.
            start = past_key_values.get_seq_length() + 0
            room = past_key_values.get_max_length() if past_key_values.is_compileable else None
        longest = length = shape[1] + start if room is None else room
        if attention_mask is not None and room is not None and attention_mask.shape != (shape[0], room):
            # A mask that is not as long as the static cache, like those of `generate`, covers the tokens so far.
            length = int(start) + shape[1]
        if attention_mask is not None and attention_mask.shape != (shape[0], length):
            raise ValueError(
                f"`attention_mask` must have one entry per token, shape {(shape[0], length)}, got "
                f"{tuple(attention_mask.shape)}: a spatial projection has no masks between pairs of tokens."
            )
        documents = None
        if past_key_values is None:
            documents = packed_documents(kwargs, shape, attention_mask, device)
            longest = length if documents is None else documents.real.shape[1]
        if longest > self.config.max_position_embeddings:
            raise ValueError(
                f"The sequences have {longest} tokens and the model takes up to {self.config.max_position_embeddings} "
                f"(`config.max_position_embeddings`). Truncate them, or grow the model with "
                f"`model.resize_position_embeddings({longest})` and continue training it."
            )

        padding_mask = first = moved = None
        if documents is not None:
            # All tokens in one row, without padding for the channel projections. W sees a row for each document.
            if attention_mask is not None:
                padding_mask = documents.gather(attention_mask.to(device))
            input_ids, token_type_ids, inputs_embeds = (
                None if x is None else documents.gather(x) for x in (input_ids, token_type_ids, inputs_embeds)
            )
            attention_mask = documents.real if padding_mask is None else documents.split(padding_mask)
        elif attention_mask is not None:
            places = torch.arange(shape[1], device=device)[None] + start
            attention_mask = F.pad(attention_mask.to(device), (0, 0 if room is None else room - length))
            first = first_places(attention_mask)
            padding_mask = attention_mask.gather(1, places.expand(shape))
        if past_key_values is not None:
            check_places(kwargs, shape[1], start, first, padding_mask)
        names = ("output_hidden_states", "output_attentions")
        records = any(kwargs.get(name, getattr(self.config, name, False)) for name in names)
        if first is not None and past_key_values is None and not records:
            # Padding in front goes behind, once for all blocks, and comes back below. If what blocks compute is asked
            # for, everything must stay in its place, and every gating unit moves its tokens itself.
            moved, first = first, None
            input_ids, token_type_ids, inputs_embeds, padding_mask = (
                None if x is None else shift(x, moved) for x in (input_ids, token_type_ids, inputs_embeds, padding_mask)
            )
            attention_mask = padding_mask

        hidden_states = self.embeddings(input_ids, token_type_ids, inputs_embeds)
        # No token of a causal model sees padding behind it, and padding before it has no row of W.
        hides = self.config.mask_padding or self.config.is_causal
        pair_mask = None
        if self.config.attention_size:
            # Lets tokens see each other both ways, unless `config.is_causal`.
            pair_mask = create_causal_mask(
                config=self.config,
                inputs_embeds=hidden_states if documents is None else documents.split(hidden_states),
                attention_mask=attention_mask if hides else None if documents is None else documents.real,
                past_key_values=past_key_values,
            )
        kwargs |= {"past_key_values": past_key_values, "return_dict": True}
        kwargs |= {} if documents is None else {"documents": documents}
        outputs = self.apply_layers(hidden_states, padding_mask if hides else None, pair_mask, first, **kwargs)
        hidden_states, pooled = outputs.last_hidden_state, None
        if self.pooler is not None:
            tokens, mask = hidden_states, padding_mask
            if documents is not None:
                tokens, mask = documents.split(tokens), attention_mask
            pooled = self.pooler(pool_tokens(tokens, mask, self.config.pooling, self.config.is_causal))
        all_hidden_states = outputs.hidden_states
        if moved is not None:
            hidden_states = shift(hidden_states, -moved)
        if documents is not None:
            hidden_states = documents.scatter(hidden_states, shape)
            all_hidden_states = all_hidden_states and tuple(documents.scatter(x, shape) for x in all_hidden_states)
        return TextModelOutput(
            last_hidden_state=hidden_states,
            pooler_output=pooled,
            past_key_values=past_key_values,
            hidden_states=all_hidden_states,
            attentions=outputs.attentions,
            documents=documents,
        )

    @capture_outputs
    def apply_layers(self, hidden_states: torch.Tensor, *masks, **kwargs) -> TextModelOutput:
        """All blocks and the final LayerNorm; the arguments are those of `naive_gating`."""
        for layer in self.layers:
            hidden_states = layer(hidden_states, *masks, **kwargs)
        return TextModelOutput(last_hidden_state=self.norm(hidden_states))


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

    def create_masks_for_generate(
        self, attention_mask: torch.Tensor | None, past_key_values: Cache, **kwargs
    ) -> torch.Tensor | None:
        """Part of `generate` with a static cache: pads the mask to the size of the cache, so that its shape stays."""
        if attention_mask is None:
            return None
        return F.pad(attention_mask, (0, past_key_values.get_max_length() - attention_mask.shape[1]))

    def init_continuous_batching(self, *args, **kwargs):
        raise ValueError(
            "A gMLP has no continuous batching and no paged cache: its spatial projections read a row as one text. Use "
            "`generate` with a batch of padded prompts."
        )

    def _prepare_generated_length(
        self, generation_config: GenerationConfig, input_ids_length: int, inputs_tensor: torch.Tensor, **kwargs
    ) -> GenerationConfig:
        """Part of `generate`: limits it to n tokens, with a warning, and refuses caches that cannot work."""
        cache = generation_config.cache_implementation or ""
        if cache == "quantized" or ("offloaded" in cache and not torch.accelerator.is_available()):
            reason = "needs values for every key, and v has none" if cache == "quantized" else "needs an accelerator"
            raise ValueError(f"`cache_implementation={cache!r}` {reason}. Leave it out, or use 'static'.")
        generation_config = super()._prepare_generated_length(
            generation_config, input_ids_length=input_ids_length, inputs_tensor=inputs_tensor, **kwargs
        )
        n, prompt = self.config.max_position_embeddings, max(input_ids_length, inputs_tensor.shape[1])
        # `generate` does not count a prompt of embeddings.
        limit = n - prompt + input_ids_length
        needed = max(prompt + 1, prompt - input_ids_length + generation_config.max_length)
        grow = f"grow the model with `model.resize_position_embeddings({needed})` and continue training it"
        if prompt >= n:
            raise ValueError(
                f"The prompt has {prompt} tokens, and the model takes up to {n} (`config.max_position_embeddings`) "
                f"including the new ones. Shorten the prompt, or {grow}."
            )
        if generation_config.max_length > limit:
            logger.warning(
                f"The text will end at {n} tokens (`config.max_position_embeddings`), {n - prompt} after the prompt "
                f"instead of {generation_config.max_length - input_ids_length}. For more, {grow}."
            )
            generation_config.max_length = limit
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


def whole_number(value: object) -> object:
    """Turns integers of NumPy and others into Python's, which a config takes; leaves anything else as it is."""
    return operator.index(value) if hasattr(value, "__index__") else value


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
        Changes the size of the images in pixels, in place: a number for a square or (height, width). W is interpolated
        over the grid of patches, in its rows and its columns, and b over its patches; continue training afterwards.
        Change the image processor too, and create the optimizer after this, not before.

        Raises:
            ValueError: If the new size is not a multiple of the patch size.
        """
        old_grid, old_size = self.config.grid_size, self.config.image_size
        if isinstance(image_size, (list, tuple)):
            image_size = tuple(whole_number(side) for side in image_size)
        self.config.image_size = whole_number(image_size)
        try:
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
        self, pixel_values: torch.FloatTensor | None = None, **kwargs: Unpack[TransformersKwargs]
    ) -> BaseModelOutputWithPooling:
        r"""
        Takes images [B, channels, height, width]; returns `last_hidden_state` [B, n, D] and `pooler_output` [B, D].

        Raises:
            ValueError: If there are no images, or their size or number of channels is not that of the config.
        """
        if pixel_values is None:
            raise ValueError("Pass `pixel_values`; the image processor makes them from images.")
        check_length(self.config, self.length)
        hidden_states = self.embeddings(pixel_values)
        for layer in self.layers:
            hidden_states = layer(hidden_states, **kwargs)
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
        pixel_values: torch.FloatTensor | None = None,
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
    def forward(self, pixel_values: torch.FloatTensor, **kwargs: Unpack[TransformersKwargs]) -> BackboneOutput:
        r"""Takes images [B, channels, height, width]; returns `feature_maps`, [B, D, rows, columns] of patches without
        the [CLS] token for each of `config.out_features`."""
        check_length(self.config, self.length)
        feature_maps, hidden_states = (), self.embeddings(pixel_values)
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
