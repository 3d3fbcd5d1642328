# Copyright 2026 The hf_gmlp authors. Licensed under the Apache License, Version 2.0.
"""gMLP and aMLP for text and images ("Pay Attention to MLPs", Liu et al., 2021, https://arxiv.org/abs/2105.08050).

Read from top to bottom, this file follows the data: embeddings -> L times GMLPBlock -> final LayerNorm -> heads.
There are no position embeddings anywhere: the spatial projection in each block (spatial_gating.py) knows the order.

Shapes: B batch, m tokens (m <= n = config.max_position_embeddings), D hidden_size, F intermediate_size, V vocab_size,
E spatial_size, A attention_size; t tokens in all, where a causal model is given m and remembers the t - m before them.
This file travels with every saved checkpoint and needs torch and transformers alone.
"""

import copy
import tempfile
from collections.abc import Callable

import torch
from huggingface_hub import HfApi
from torch import nn
from torch.nn import functional as F
from transformers import GenerationConfig, GenerationMixin, PreTrainedModel
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer
from transformers.loss.loss_utils import fixed_cross_entropy
from transformers.masking_utils import create_causal_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import (
    BaseModelOutputWithPooling,
    BaseModelOutputWithPoolingAndCrossAttentions,
    CausalLMOutputWithPast,
    ImageClassifierOutput,
    MaskedLMOutput,
    MultipleChoiceModelOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, logging
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.import_utils import is_tracing
from transformers.utils.output_capturing import capture_outputs

from .configuration_gmlp import GMLPBaseConfig, GMLPConfig, GMLPVisionConfig, as_pair
from .lean_gating import can_be_lean, lean_block
from .model_card import model_card
from .spatial_gating import SpatialGatingUnit, SpatialProjection

logger = logging.get_logger(__name__)


class GMLPEmbeddings(nn.Module):
    """Token and segment embeddings, as in BERT but with no positions and no LayerNorm (the blocks are pre-norm)."""

    def __init__(self, config: GMLPConfig):
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)
        self.token_type_embeddings = (
            nn.Embedding(config.type_vocab_size, config.hidden_size) if config.type_vocab_size else None
        )
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(
        self,
        input_ids: torch.Tensor | None = None,  # [B, m]
        token_type_ids: torch.Tensor | None = None,  # [B, m]
        inputs_embeds: torch.Tensor | None = None,  # [B, m, D]
    ) -> torch.Tensor:  # [B, m, D]
        embeddings = self.word_embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        if self.token_type_embeddings is not None:
            if token_type_ids is None:
                token_type_ids = torch.zeros(embeddings.shape[:2], dtype=torch.long, device=embeddings.device)
            embeddings = embeddings + self.token_type_embeddings(token_type_ids)
        return self.dropout(embeddings)


class GMLPPatchEmbeddings(nn.Module):
    """The stem of ViT: a convolution cuts the image into patches; with "cls" pooling a [CLS] token goes in front."""

    def __init__(self, config: GMLPVisionConfig):
        super().__init__()
        self.config = config
        patch_size = as_pair(config.patch_size)
        self.projection = nn.Conv2d(config.num_channels, config.hidden_size, patch_size, stride=patch_size)
        self.cls_token = nn.Parameter(torch.empty(1, 1, config.hidden_size)) if config.pooling == "cls" else None
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:  # [B, C, H, W] -> [B, n, D]
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


def eager_attention_forward(
    module: nn.Module,
    query: torch.Tensor,  # [B, 1, m, A]
    key: torch.Tensor,  # [B, 1, t, A]
    value: torch.Tensor,  # [B, 1, t, A]
    attention_mask: torch.Tensor | None,  # [B, 1, m, t], 0 to see and very negative to hide
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Unpack[TransformersKwargs],
) -> tuple[torch.Tensor, torch.Tensor]:
    """The plain form of attention, which can also give its weights: ([B, m, 1, A], [B, 1, m, t])."""
    weights = torch.matmul(query, key.transpose(2, 3)) * scaling
    if attention_mask is not None:
        weights = weights + attention_mask
    # In half precision, the softmax is taken in single.
    weights = F.softmax(weights, dim=-1, dtype=torch.promote_types(query.dtype, torch.float32)).to(query.dtype)
    weights = F.dropout(weights, p=dropout, training=module.training)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


class GMLPTinyAttention(nn.Module):
    """The single-head attention that makes an aMLP (Figure 6): [B, m, D] -> [B, m, E]."""

    def __init__(self, config: GMLPBaseConfig):
        super().__init__()
        self.config = config
        self.is_causal = config.is_causal
        self.scaling = config.attention_size**-0.5
        self.qkv_proj = nn.Linear(config.hidden_size, 3 * config.attention_size)
        self.out_proj = nn.Linear(config.attention_size, config.spatial_size)

    def project(self, hidden_states: torch.Tensor) -> list[torch.Tensor]:
        """The query of every token, and its key and value side by side: [B, m, D] -> [B, 1, m, A], [B, 1, m, 2A]."""
        size = self.config.attention_size
        return self.qkv_proj(hidden_states)[:, None].split([size, 2 * size], dim=-1)

    def forward(
        self,
        query: torch.Tensor,  # [B, 1, m, A]
        key_value: torch.Tensor,  # [B, 1, t, 2A]
        attention_mask: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:  # [B, m, E]
        key, value = key_value.chunk(2, dim=-1)
        attention_interface: Callable = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward
        )
        output, weights = attention_interface(
            self,
            query,
            key,
            value,
            attention_mask,
            dropout=self.config.attention_probs_dropout_prob if self.training else 0.0,
            scaling=self.scaling,
            **kwargs,
        )
        return self.out_proj(output.flatten(2)), weights


class GMLPBlock(GradientCheckpointingLayer):
    """
    x + W_out s(gelu(W_in LN(x))), the block of the paper's Equation 1 and Figure 1; in an aMLP, tiny attention reads
    LN(x) too and is added to the gate (Figure 6).
    """

    def __init__(self, config: GMLPBaseConfig, drop_path_rate: float, layer_idx: int = 0):
        super().__init__()
        self.layer_idx = layer_idx
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.proj_in = nn.Linear(config.hidden_size, config.intermediate_size)
        self.activation = ACT2FN[config.hidden_act]
        self.activation_dropout = nn.Dropout(config.activation_dropout)
        self.attention = GMLPTinyAttention(config) if config.attention_size else None
        self.spatial_gating_unit = SpatialGatingUnit(config)
        self.proj_out = nn.Linear(config.spatial_size, config.hidden_size)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.drop_path_rate = drop_path_rate
        # Computes the same with less memory traffic, wherever it can (lean_gating.py).
        self.lean = config.gating_implementation != "reference" and config.hidden_act == "gelu"
        self.triton = config.gating_implementation == "triton"

    def forward(
        self,
        hidden_states: torch.Tensor,  # [B, m, D]
        padding_mask: torch.Tensor | None = None,  # [B, m], for the spatial projection
        attention_mask: torch.Tensor | None = None,  # what the attention implementation wants, for tiny attention
        positions: torch.Tensor | None = None,  # [B, t], the rows of W, if they are not 0 to t - 1
        past_key_values: Cache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> torch.Tensor:  # [B, m, D]
        if self.lean and past_key_values is None and positions is None and can_be_lean(self):
            attention_output = None
            if self.attention is not None:
                query, key_value = self.attention.project(self.norm(hidden_states))
                attention_output = self.attention(query, key_value, attention_mask, **kwargs)[0]
            y = lean_block(self, hidden_states, padding_mask, attention_output)
        else:
            y = self.branch(hidden_states, padding_mask, attention_mask, positions, past_key_values, **kwargs)
        return hidden_states + drop_path(self.dropout(y), self.drop_path_rate, self.training)

    def branch(
        self,
        hidden_states: torch.Tensor,
        padding_mask: torch.Tensor | None,
        attention_mask: torch.Tensor | None,
        positions: torch.Tensor | None,
        past_key_values: Cache | None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> torch.Tensor:
        """W_out s(gelu(W_in LN(x))) in its plain form; arguments as above."""
        x = self.norm(hidden_states)
        z = self.activation_dropout(self.activation(self.proj_in(x)))
        u, v = self.spatial_gating_unit.split(z, padding_mask)
        query, key_value = self.attention.project(x) if self.attention is not None else (None, v[:, None, :, :0])
        if past_key_values is not None:
            # From here on those of the earlier tokens too: [B, m, ...] -> [B, t, ...].
            v, key_value = past_key_values.update(v[:, None], key_value, self.layer_idx)
            v = v[:, 0]
        attention_output = None
        if self.attention is not None:
            attention_output = self.attention(query, key_value, attention_mask, **kwargs)[0]
        return self.proj_out(self.spatial_gating_unit(u, v, attention_output, positions))


def drop_path(branch: torch.Tensor, rate: float, training: bool) -> torch.Tensor:
    """
    Stochastic depth (Huang et al., 2016; the paper's [32]): zeroes the branch of a sample with probability `rate` and
    scales the survivors up by 1 / (1 - rate), so that nothing changes at inference.
    """
    if not training or rate == 0.0:
        return branch
    survival = torch.empty(branch.shape[0], 1, 1, dtype=branch.dtype, device=branch.device).bernoulli_(1.0 - rate)
    return branch * survival / (1.0 - rate)


class GMLPPooler(nn.Module):
    """Dense and tanh on the first token: BERT's pooler and ViT's pre-logits. [B, m, D] -> [B, D]"""

    def __init__(self, config: GMLPBaseConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.dense(hidden_states[:, 0]))


class GMLPPreTrainedModel(PreTrainedModel):
    """Initialization, resizing and publishing, shared by all models of this file."""

    config: GMLPConfig
    base_model_prefix = "model"
    input_modalities = ("text",)
    supports_gradient_checkpointing = True
    _no_split_modules = ["GMLPBlock"]
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True
    _can_record_outputs = {"hidden_states": GMLPBlock, "attentions": GMLPTinyAttention}

    @torch.no_grad()
    def _init_weights(self, module: nn.Module):
        super()._init_weights(module)
        if isinstance(module, SpatialProjection):
            module.reset_parameters(self.config.spatial_initializer_range)
        elif isinstance(module, GMLPPatchEmbeddings) and module.cls_token is not None:
            init.normal_(module.cls_token, std=self.config.initializer_range)

    def spatial_projections(self) -> list[SpatialProjection]:
        """The W and b of every block, from the first to the last."""
        return [module for module in self.modules() if isinstance(module, SpatialProjection)]

    def get_position_embeddings(self) -> tuple[nn.Parameter, ...]:
        """The spatial weights of every block, which is where a gMLP keeps its positions."""
        return tuple(projection.weight for projection in self.spatial_projections())

    def resize_position_embeddings(self, new_num_position_embeddings: int):
        """
        Change n, the longest sequence the model takes, in place. Sequences up to the old n keep their outputs; the
        new part starts as at initialization (no mixing, bias one) and wants training. A Toeplitz model keeps what it
        learned about every offset and applies it at the new places. Make the optimizer after this, not before.

        Args:
            new_num_position_embeddings: The new n, at least 1.
        """
        if new_num_position_embeddings < 1:
            raise ValueError(f"A model takes sequences of at least 1 token, got {new_num_position_embeddings}.")
        for projection in self.spatial_projections():
            projection.resize(new_num_position_embeddings)
        self.config.max_position_embeddings = new_num_position_embeddings

    def push_to_hub(
        self,
        repo_id: str,
        *,
        commit_message: str | None = None,
        commit_description: str | None = None,
        private: bool | None = None,
        token: bool | str | None = None,
        revision: str | None = None,
        create_pr: bool = False,
        max_shard_size: int | str = "50GB",
        tags: list[str] | None = None,
        license: str | None = None,
    ) -> str:
        """
        Upload weights, config, code and a model card that is filled in. If the model was loaded from a folder with a
        card in it (our training scripts write one), that card goes along; otherwise one is made from the config.

        Args are those of `PreTrainedModel.push_to_hub`, and `license`, the identifier of the weights' license.

        Returns:
            What `huggingface_hub` says of the commit.
        """
        api = HfApi(token=token)
        repo_id = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
        if revision is not None and not create_pr:
            api.create_branch(repo_id, branch=revision, exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            self.save_pretrained(folder, max_shard_size=max_shard_size)
            card = model_card(self, repo_id, tags=[*(self.model_tags or []), *(tags or [])], license=license)
            card.save(f"{folder}/README.md")
            return api.upload_folder(
                repo_id=repo_id,
                folder_path=folder,
                commit_message=commit_message or "Upload model",
                commit_description=commit_description,
                revision=revision,
                create_pr=create_pr,
            )


def build_layers(config: GMLPBaseConfig) -> nn.ModuleList:
    """L blocks; block l is dropped with probability l / L * drop_path_rate in training (the paper's [32])."""
    depth = config.num_hidden_layers
    return nn.ModuleList(GMLPBlock(config, config.drop_path_rate * (i + 1) / depth, i) for i in range(depth))


class GMLPCacheLayer(DynamicLayer):
    """
    What a block of a causal model remembers: as `keys` the v of the spatial projection, [B, 1, t, E], and as `values`
    the keys and values of tiny attention side by side, [B, 1, t, 2A], of width 0 in a gMLP.

    It is the library's layer but for this: it writes new tokens into storage that doubles when it is full, and so does
    not copy all the earlier ones for each.
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.storage: list[torch.Tensor | None] = [None, None]

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args, **kwargs
    ) -> tuple[torch.Tensor, torch.Tensor]:
        # Writing in place is not for tensors that a gradient or a graph still wants as they are.
        if self.get_seq_length() == 0 or key_states.requires_grad or torch.compiler.is_compiling():
            return super().update(key_states, value_states)
        self.keys, self.storage[0] = append(self.keys, self.storage[0], key_states)
        self.values, self.storage[1] = append(self.values, self.storage[1], value_states)
        return self.keys, self.values


def append(held: torch.Tensor, storage: torch.Tensor | None, new: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """
    `torch.cat([held, new], dim=2)`, as the beginning of some storage with room for more, and that storage: the given
    one if `held` is its beginning, as it is unless beams were reordered or the like, and there is room for `new`.
    """
    start, end = held.shape[2], held.shape[2] + new.shape[2]
    is_beginning = storage is not None and held.data_ptr() == storage.data_ptr() and len(held) == len(storage)
    if not is_beginning or end > storage.shape[2]:
        storage = held.new_empty(*held.shape[:2], 2 * end, held.shape[3])
        storage[:, :, :start] = held
    storage[:, :, start:end] = new
    return storage[:, :, :end], storage


def make_room(past_key_values: Cache) -> Cache:
    """Gives a cache of the library that is still empty, such as `generate` makes, layers of ours."""
    if past_key_values.layer_class_to_replicate is DynamicLayer:
        past_key_values.layer_class_to_replicate = GMLPCacheLayer
    for i, layer in enumerate(past_key_values.layers):
        if type(layer) is DynamicLayer and not layer.is_initialized:
            past_key_values.layers[i] = GMLPCacheLayer()
    return past_key_values


def positions_after_padding(attention_mask: torch.Tensor) -> torch.Tensor | None:
    """
    Where each token stands in its own sequence, counted from its first token: [B, t], or None if no sequence has
    padding in front, so that these are the columns. In a compiled model, which cannot ask, never None.
    """
    if not is_tracing(attention_mask) and bool((attention_mask[:, 0] != 0).all()):
        return None
    return ((attention_mask != 0).long().cumsum(-1) - 1).clamp(min=0)


def last_token(hidden_states: torch.Tensor, padding_mask: torch.Tensor | None) -> torch.Tensor:
    """The last token of each sequence that is not padding: [B, m, D] -> [B, 1, D]."""
    if padding_mask is None:
        return hidden_states[:, -1:]
    places = torch.arange(hidden_states.shape[1], device=hidden_states.device)
    last = torch.where(padding_mask != 0, places, 0).amax(-1)
    return hidden_states.gather(1, last[:, None, None].expand(-1, 1, hidden_states.shape[2]))


class GMLPModel(GMLPPreTrainedModel):
    """
    The text model: embeddings, blocks and a final LayerNorm, and BERT's pooler unless `add_pooling_layer=False`.

    It looks both ways, as an encoder, unless `config.is_causal`. The pooler of a causal model reads the last token, the
    only one that has seen the others.
    """

    _auto_class = "AutoModel"

    def __init__(self, config: GMLPConfig, add_pooling_layer: bool = True):
        super().__init__(config)
        self.embeddings = GMLPEmbeddings(config)
        self.layers = build_layers(config)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.pooler = GMLPPooler(config) if add_pooling_layer else None
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embeddings.word_embeddings

    def set_input_embeddings(self, value: nn.Embedding):
        self.embeddings.word_embeddings = value

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPoolingAndCrossAttentions:
        r"""
        Args:
            input_ids: [B, m], with m <= n.
            attention_mask: [B, m], 1 for tokens and 0 for padding, which goes on the right; a causal model takes it on
                the left too. With `past_key_values` [B, t], for the tokens in it too.
            token_type_ids: [B, m], the segment of each token; all 0 by default.
            inputs_embeds: [B, m, D], in place of `input_ids`.
            past_key_values: What a causal model remembers of tokens before these, which it is then not given again.
            use_cache: Whether to make a cache if there is none; off by default.

        Returns:
            `last_hidden_state` [B, m, D], `pooler_output` [B, D] and `past_key_values`, if there is a cache.

        Raises:
            ValueError: If both or neither of `input_ids` and `inputs_embeds` are given, if the sequence, with what is
                in the cache, is longer than n, if the mask is not of its shape, or if the model cannot use the cache.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("Give the model either `input_ids` or `inputs_embeds`, and not both.")
        if past_key_values is not None and not self.config.is_causal:
            raise ValueError(
                "`past_key_values` is for causal models (`config.is_causal`): in this one, each new token changes what "
                "all the earlier ones are."
            )
        if past_key_values is None and use_cache and self.config.is_causal:
            past_key_values = DynamicCache(config=self.config)
        past_length = 0
        if past_key_values is not None:
            if past_key_values.is_compileable:
                raise ValueError(
                    "This model has no static cache; leave `cache_implementation` and `past_key_values` to `generate`."
                )
            past_length = make_room(past_key_values).get_seq_length()
        batch_size, length = (input_ids if inputs_embeds is None else inputs_embeds).shape[:2]
        length += past_length
        if length > self.config.max_position_embeddings:
            raise ValueError(
                f"The sequences have {length} tokens and the model takes up to {self.config.max_position_embeddings} "
                f"(`config.max_position_embeddings`). Truncate them, or grow the model with "
                f"`model.resize_position_embeddings({length})` and train it on."
            )
        if not self.config.mask_padding:
            attention_mask = None
        elif attention_mask is not None and attention_mask.shape != (batch_size, length):
            raise ValueError(
                f"`attention_mask` must have one entry per token, shape {(batch_size, length)}, got "
                f"{tuple(attention_mask.shape)}: a spatial projection has no masks between pairs of tokens."
            )

        hidden_states = self.embeddings(input_ids, token_type_ids, inputs_embeds)
        padding_mask = positions = None
        if attention_mask is not None:
            padding_mask = attention_mask[:, past_length:]
            positions = positions_after_padding(attention_mask) if self.config.is_causal else None
        # One that lets tokens see each other both ways, unless `config.is_causal`.
        attention_mask = create_causal_mask(self.config, hidden_states, attention_mask, past_key_values)
        for layer in self.layers:
            hidden_states = layer(
                hidden_states, padding_mask, attention_mask, positions, past_key_values=past_key_values, **kwargs
            )
        hidden_states = self.norm(hidden_states)
        pooled = None
        if self.pooler is not None:
            pooled = self.pooler(last_token(hidden_states, padding_mask) if self.config.is_causal else hidden_states)
        return BaseModelOutputWithPoolingAndCrossAttentions(
            last_hidden_state=hidden_states, pooler_output=pooled, past_key_values=past_key_values
        )


class GMLPPredictionHead(nn.Module):
    """BERT's transform before the masked-language-model decoder: dense, activation, LayerNorm. [..., D] -> [..., D]"""

    def __init__(self, config: GMLPConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = ACT2FN[config.hidden_act]
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.norm(self.activation(self.dense(hidden_states)))


class GMLPForMaskedLM(GMLPPreTrainedModel):
    """gMLP with a masked-language-model head; the decoder's weight is the embeddings' (paper, section 4)."""

    _auto_class = "AutoModelForMaskedLM"
    _tied_weights_keys = {"decoder.weight": "model.embeddings.word_embeddings.weight"}
    _fsdp_plan = {"decoder": "keep_full_weight"}

    def __init__(self, config: GMLPConfig):
        super().__init__(config)
        self.model = GMLPModel(config, add_pooling_layer=False)
        self.head = GMLPPredictionHead(config) if config.mlm_transform else nn.Identity()
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def get_output_embeddings(self) -> nn.Linear:
        return self.decoder

    def set_output_embeddings(self, new_embeddings: nn.Linear):
        self.decoder = new_embeddings

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.LongTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MaskedLMOutput:
        r"""
        Args (others as in `GMLPModel`):
            labels: [B, m], the token to predict, or -100 where there is nothing to predict.

        Returns:
            `loss`, and `logits` [B, m, V]; [labeled positions, V] in training with `config.sparse_prediction`.
        """
        outputs = self.model(input_ids, attention_mask, token_type_ids, inputs_embeds, **kwargs)
        hidden_states = outputs.last_hidden_state
        if self.config.sparse_prediction and self.training and labels is not None:
            labeled = labels != -100
            hidden_states, labels = hidden_states[labeled], labels[labeled]
        logits = self.decoder(self.head(hidden_states))
        loss = None
        if labels is not None:
            loss = self.loss_function(logits, labels, vocab_size=self.config.vocab_size, **kwargs)
        return MaskedLMOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class GMLPForCausalLM(GMLPPreTrainedModel, GenerationMixin):
    """
    gMLP that predicts the next token, and generates. No token sees a later one, whatever the config says: a
    masked language model's checkpoint opens as this too, with the weights that look ahead hidden, to be trained on.

    There is no transform in front of the decoder, whose weight is the embeddings', and a text ends at n tokens.
    """

    _auto_class = "AutoModelForCausalLM"
    _tied_weights_keys = {"decoder.weight": "model.embeddings.word_embeddings.weight"}
    _fsdp_plan = {"decoder": "keep_full_weight"}

    def __init__(self, config: GMLPConfig):
        if not config.is_causal:
            # A copy: the caller's may be there for a masked language model too.
            config = copy.deepcopy(config)
            config.is_causal = True
        super().__init__(config)
        self.model = GMLPModel(config, add_pooling_layer=False)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def get_output_embeddings(self) -> nn.Linear:
        return self.decoder

    def set_output_embeddings(self, new_embeddings: nn.Linear):
        self.decoder = new_embeddings

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,
        labels: torch.LongTensor | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        **kwargs: Unpack[TransformersKwargs],
    ) -> CausalLMOutputWithPast:
        r"""
        Args (others as in `GMLPModel`):
            labels: [B, m], the tokens themselves, which are shifted here, or -100 where there is nothing to predict.
            logits_to_keep: How many of the last tokens to compute logits for, or the places of those; all by default.

        Returns:
            `loss`, `logits` [B, m, V] and `past_key_values`.
        """
        outputs = self.model(
            input_ids,
            attention_mask,
            token_type_ids,
            inputs_embeds,
            past_key_values=past_key_values,
            use_cache=use_cache,
            **kwargs,
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.decoder(outputs.last_hidden_state[:, kept])
        loss = None
        if labels is not None:
            loss = self.loss_function(logits, labels, vocab_size=self.config.vocab_size, **kwargs)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )

    def _prepare_generated_length(
        self, generation_config: GenerationConfig, input_ids_length: int, inputs_tensor: torch.Tensor, **kwargs
    ) -> GenerationConfig:
        """Part of `generate`: ends it at n tokens, and says so before it begins."""
        generation_config = super()._prepare_generated_length(
            generation_config, input_ids_length=input_ids_length, inputs_tensor=inputs_tensor, **kwargs
        )
        n, prompt = self.config.max_position_embeddings, max(input_ids_length, inputs_tensor.shape[1])
        # In the count of `generate`, which leaves out a prompt that is given as embeddings.
        limit = n - prompt + input_ids_length
        wanted = max(prompt + 1, prompt - input_ids_length + generation_config.max_length)
        grow = f"`model.resize_position_embeddings({wanted})`"
        if prompt >= n:
            raise ValueError(
                f"The prompt has {prompt} tokens, and with what follows it the model takes up to {n} "
                f"(`config.max_position_embeddings`). Shorten it, or grow the model with {grow} and train it on."
            )
        if generation_config.max_length > limit:
            logger.warning(
                f"The text will end at {n} tokens (`config.max_position_embeddings`), {n - prompt} after the prompt, "
                f"and not {generation_config.max_length - input_ids_length} as asked for. To have more, grow the model "
                f"with {grow} and train it on."
            )
            generation_config.max_length = limit
        return generation_config


# By its name in this table, Trainer knows that label smoothing has to shift the labels of a model.
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[GMLPConfig.model_type] = GMLPForCausalLM.__name__


def classification_loss(
    labels: torch.Tensor,
    pooled_logits: torch.Tensor,
    config: GMLPBaseConfig,
    num_items_in_batch: torch.Tensor | int | None = None,
    **kwargs,
) -> torch.Tensor:
    """
    The loss of the three kinds of `config.problem_type`, found from the labels if it is `None`: mean squared error
    ("regression"), cross-entropy ("single_label_classification") or binary cross-entropy per label
    ("multi_label_classification").

    The library's own loss divides by `num_items_in_batch` for single labels alone, and so the other two come out N
    times too large when Trainer accumulates N gradients.

    Args:
        labels: [B] or, with several values per sample, [B, num_labels].
        pooled_logits: [B, num_labels]
        num_items_in_batch: How many labels the loss is the mean of; those of this batch by default.
    """
    if config.problem_type is None:
        if config.num_labels == 1:
            config.problem_type = "regression"
        elif labels.dtype in (torch.long, torch.int):
            config.problem_type = "single_label_classification"
        else:
            config.problem_type = "multi_label_classification"
    labels = labels.to(pooled_logits.device)
    if config.problem_type == "single_label_classification":
        return fixed_cross_entropy(pooled_logits.float(), labels.view(-1), num_items_in_batch)
    if config.problem_type == "regression":
        distance = F.mse_loss
    elif config.problem_type == "multi_label_classification":
        distance = F.binary_cross_entropy_with_logits
    else:
        raise ValueError(
            f"`config.problem_type` must be 'regression', 'single_label_classification' or "
            f"'multi_label_classification', got {config.problem_type!r}."
        )
    logits = pooled_logits.float().view(labels.shape)
    if num_items_in_batch is None:
        return distance(logits, labels.float())
    return distance(logits, labels.float(), reduction="sum") / num_items_in_batch


def classifier_dropout(config: GMLPConfig) -> nn.Dropout:
    """The dropout in front of a text classifier."""
    rate = config.classifier_dropout
    return nn.Dropout(config.hidden_dropout_prob if rate is None else rate)


class GMLPForSequenceClassification(GMLPPreTrainedModel):
    """gMLP with a classifier or regressor on BERT's pooler, for GLUE's tasks among others."""

    _auto_class = "AutoModelForSequenceClassification"

    def __init__(self, config: GMLPConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.model = GMLPModel(config)
        self.dropout = classifier_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.loss_function = classification_loss
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> SequenceClassifierOutput:
        r"""
        Args (others as in `GMLPModel`):
            labels: [B] of classes or values, or [B, num_labels] of several labels or values per sample.

        Returns:
            `loss`, and `logits` [B, num_labels].
        """
        outputs = self.model(input_ids, attention_mask, token_type_ids, inputs_embeds, **kwargs)
        logits = self.classifier(self.dropout(outputs.pooler_output))
        loss = self.loss_function(labels, logits, self.config, **kwargs) if labels is not None else None
        return SequenceClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class GMLPForTokenClassification(GMLPPreTrainedModel):
    """gMLP with a classifier on every token, for named entities and the like."""

    _auto_class = "AutoModelForTokenClassification"

    def __init__(self, config: GMLPConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.model = GMLPModel(config, add_pooling_layer=False)
        self.dropout = classifier_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.LongTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> TokenClassifierOutput:
        r"""
        Args (others as in `GMLPModel`):
            labels: [B, m], the class of each token, or -100 to leave it out.

        Returns:
            `loss`, and `logits` [B, m, num_labels].
        """
        outputs = self.model(input_ids, attention_mask, token_type_ids, inputs_embeds, **kwargs)
        logits = self.classifier(self.dropout(outputs.last_hidden_state))
        loss = self.loss_function(logits, labels, self.config, **kwargs) if labels is not None else None
        return TokenClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class GMLPForQuestionAnswering(GMLPPreTrainedModel):
    """gMLP that marks the first and the last token of an answer, for SQuAD."""

    _auto_class = "AutoModelForQuestionAnswering"

    def __init__(self, config: GMLPConfig):
        super().__init__(config)
        self.model = GMLPModel(config, add_pooling_layer=False)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        start_positions: torch.LongTensor | None = None,
        end_positions: torch.LongTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> QuestionAnsweringModelOutput:
        r"""
        Args (others as in `GMLPModel`):
            start_positions, end_positions: [B], the places of the answer's first and last token; positions beyond
                the end of the sequence are left out of the loss.

        Returns:
            `loss`, and `start_logits` and `end_logits` [B, m].
        """
        outputs = self.model(input_ids, attention_mask, token_type_ids, inputs_embeds, **kwargs)
        start_logits, end_logits = self.qa_outputs(outputs.last_hidden_state).unbind(-1)
        loss = None
        if start_positions is not None and end_positions is not None:
            loss = self.loss_function(start_logits, end_logits, start_positions, end_positions, **kwargs)
        return QuestionAnsweringModelOutput(
            loss=loss,
            start_logits=start_logits.contiguous(),
            end_logits=end_logits.contiguous(),
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class GMLPForMultipleChoice(GMLPPreTrainedModel):
    """gMLP that scores each of several choices by BERT's pooler, for SWAG and the like."""

    _auto_class = "AutoModelForMultipleChoice"

    def __init__(self, config: GMLPConfig):
        super().__init__(config)
        self.model = GMLPModel(config)
        self.dropout = classifier_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, 1)
        # The library knows no loss for choices and would take the one of a causal language model.
        self.loss_function = fixed_cross_entropy
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.LongTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MultipleChoiceModelOutput:
        r"""
        Args (as in `GMLPModel`, with a dimension for the choices: [B, choices, m] and [B, choices, m, D]):
            labels: [B], the right choice.

        Returns:
            `loss`, and `logits` [B, choices].
        """
        num_choices = (input_ids if inputs_embeds is None else inputs_embeds).shape[1]
        flat = [
            tensor.flatten(0, 1) if tensor is not None else None
            for tensor in (input_ids, attention_mask, token_type_ids, inputs_embeds)
        ]
        outputs = self.model(*flat, **kwargs)
        logits = self.classifier(self.dropout(outputs.pooler_output)).view(-1, num_choices)
        loss = self.loss_function(logits.float(), labels.view(-1), **kwargs) if labels is not None else None
        return MultipleChoiceModelOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class GMLPVisionPreTrainedModel(GMLPPreTrainedModel):
    """What the image models share."""

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
        Make the model take images of another size, in place: W is interpolated over the grid of patches, on its row
        side and on its column side, and b over its patches. Exact when the size stays; train on when it does not.
        Give the image processor the new size too, and make the optimizer after this, not before.

        Args:
            image_size: Pixels, one number for a square or (height, width); multiples of the patch size.

        Raises:
            ValueError: If the patches do not divide the new size.
        """
        old_grid, old_size = self.config.grid_size, self.config.image_size
        self.config.image_size = image_size
        try:
            self.config.validate()
        except Exception:
            self.config.image_size = old_size
            raise
        for projection in self.spatial_projections():
            projection.resize_grid(old_grid, self.config.grid_size, self.config.num_prefix_tokens)


class GMLPVisionModel(GMLPVisionPreTrainedModel):
    """
    The image encoder: patches, blocks and a final LayerNorm, then `config.pooling` unless `add_pooling_layer=False`.
    """

    _auto_class = "AutoModel"

    def __init__(self, config: GMLPVisionConfig, add_pooling_layer: bool = True):
        super().__init__(config)
        self.embeddings = GMLPPatchEmbeddings(config)
        self.layers = build_layers(config)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.add_pooling_layer = add_pooling_layer
        self.pooler = GMLPPooler(config) if add_pooling_layer and config.pooling == "cls" else None
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings.projection

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self, pixel_values: torch.FloatTensor | None = None, **kwargs: Unpack[TransformersKwargs]
    ) -> BaseModelOutputWithPooling:
        r"""
        Args:
            pixel_values: [B, channels, height, width], of the size in the config.

        Returns:
            `last_hidden_state` [B, n, D] and `pooler_output` [B, D].

        Raises:
            ValueError: If there are no images, or they have another size or number of channels than the config says.
        """
        if pixel_values is None:
            raise ValueError("Give the model `pixel_values`; the image processor makes them from images.")
        hidden_states = self.embeddings(pixel_values)
        for layer in self.layers:
            hidden_states = layer(hidden_states, **kwargs)
        hidden_states = self.norm(hidden_states)
        pooled = None
        if self.pooler is not None:
            pooled = self.pooler(hidden_states)
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
        r"""
        Args:
            pixel_values: [B, channels, height, width], of the size in the config.
            labels: [B] of classes, or [B, num_labels] of several labels per image.

        Returns:
            `loss`, and `logits` [B, num_labels].
        """
        outputs = self.model(pixel_values, **kwargs)
        logits = self.classifier(self.dropout(outputs.pooler_output))
        loss = self.loss_function(labels, logits, self.config, **kwargs) if labels is not None else None
        return ImageClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


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
    "GMLPVisionModel",
    "GMLPVisionPreTrainedModel",
]
