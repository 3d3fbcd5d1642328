# Copyright 2026 The hf_gmlp authors. Licensed under the Apache License, Version 2.0.
"""gMLP and aMLP for text and images ("Pay Attention to MLPs", Liu et al., 2021, https://arxiv.org/abs/2105.08050).

A gMLP is a Transformer-sized stack of blocks in which one matrix over the tokens, W, replaces self-attention and
position embeddings. On x [B, m, D], a block computes

    x + drop_path(dropout(W_out s(gelu(W_in LN(x)))))    Equation 1, Figure 1     GMLPBlock
    s(Z) = u * (W LN(v) + b), Z = [u, v]                 Equations 2 to 4         SpatialGatingUnit
    s(Z) = u * (W LN(v) + b + tiny_attention(LN(x)))     an aMLP, Figure 6        GMLPTinyAttention

W [n, n] and b [n] act on the token axis, the same for all channels, or for each of several groups (`spatial_heads`). W
starts near zero and b at one: a block starts as a feed-forward network. The token at index i reads b[p_i], and W[p_i,
p_j] for each token j that it sees; `find_positions` alone decides both. No token is ever moved.

Every saved checkpoint contains this file and that of its config. They need only torch and transformers.

Shapes: B batch, m tokens passed to the model, t tokens with those in a cache, n config.max_position_embeddings, D
hidden_size, F intermediate_size, E spatial_size (F / 2 after a split), H spatial_heads, k spatial_reach, V vocab_size.
"""

import copy
import operator
from collections.abc import Callable
from inspect import signature
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F
from transformers import GenerationConfig, GenerationMixin, PreTrainedModel, modeling_outputs
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.backbone_utils import BackboneMixin
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, StaticLayer
from transformers.loss.loss_utils import ForQuestionAnsweringLoss, fixed_cross_entropy
from transformers.masking_utils import create_causal_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, logging
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.import_utils import is_tracing
from transformers.utils.output_capturing import capture_outputs

from .configuration_gmlp import GMLPBaseConfig, GMLPConfig, GMLPVisionConfig, as_pair

logger = logging.get_logger(__name__)

# The library's name for a cache in its functions and outputs: "cache" from transformers 5.24 on.
CACHE = "cache" if "cache" in signature(create_causal_mask).parameters else "past_key_values"
# Other descriptions of packed rows. Here `position_ids` are the one that counts.
PACKING = ("seq_idx", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")
# Tokens in a block of `banded_product`, at least. It replaces the product with all of W from 4 blocks on
# (docs/performance.md).
BLOCK_SIZE = 64


class GMLPEmbeddings(nn.Module):
    """Token and segment embeddings as in BERT, without positions and, since the blocks are pre-norm, without a norm."""

    def __init__(self, config: GMLPConfig):
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)
        segments = config.type_vocab_size
        self.token_type_embeddings = nn.Embedding(segments, config.hidden_size) if segments else None
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(
        self,
        input_ids: torch.Tensor | None = None,  # [B, m]
        token_type_ids: torch.Tensor | None = None,  # [B or 1, m]
        inputs_embeds: torch.Tensor | None = None,  # [B, m, D]
    ) -> torch.Tensor:  # [B, m, D]
        embeddings = self.word_embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        if self.token_type_embeddings is not None:
            if token_type_ids is None:
                token_type_ids = torch.zeros(embeddings.shape[:2], dtype=torch.long, device=embeddings.device)
            embeddings = embeddings + self.token_type_embeddings(token_type_ids)
        return self.dropout(embeddings)


# ---------------------------------------------------------------------------------------------------------------------
# Positions


class Positions(NamedTuple):
    """Which entries of W and b a forward pass reads, in every block. By default p_i = i, and all tokens see all."""

    is_causal: bool = False  # whether a token sees only itself and earlier ones
    start: int = 0  # the index of the first new token, behind those in a cache; for a static cache a tensor
    rows: torch.Tensor | None = None  # [B or 1, m], p_i of each new token; by default its index
    # [B or 1, m, t], where W[p_i, p_j] is in the flattened W, or its size where token i does not see token j; by
    # default W[start:t, :t] is read, by differences of indices if it is Toeplitz
    entries: torch.Tensor | None = None
    padding: torch.Tensor | None = None  # [B, m], True where the new token is hidden
    visible: torch.Tensor | None = None  # [B, t], False where a token is hidden; for tiny attention
    documents: torch.Tensor | None = None  # [B or 1, m], the number of each token's document in a packed row


def find_positions(
    config: GMLPConfig,
    inputs: torch.Tensor,  # [B, m, ...], the new tokens
    attention_mask: torch.Tensor | None = None,  # [B, t], 0 for padding
    position_ids: torch.Tensor | None = None,  # [B or 1, m]
    past_key_values: Cache | None = None,
    read: bool = True,  # whether values may be read to check them: not in compiled and exported models
) -> Positions:
    """Return the positions of new tokens: the index of a token less that of its row's first real one, or its
    `position_ids`. Where these do not increase, a document begins; none sees another. Raises a ValueError if a shape
    or position is wrong, or if there are more than n tokens."""
    batch, m, start = inputs.shape[0], inputs.shape[1], 0
    length, is_static = m, past_key_values is not None and past_key_values.is_compileable
    if past_key_values is not None:
        start = past_key_values.get_seq_length() + 0  # a copy: a static cache increases this tensor in place
        length = past_key_values.get_max_length() if is_static else start + m
    if is_static and attention_mask is not None and attention_mask.shape[1] != length:
        check_shape("attention_mask", attention_mask, (batch, int(start) + m if read else attention_mask.shape[1]))
        attention_mask = F.pad(attention_mask, (0, length - attention_mask.shape[1]))
    check_shape("attention_mask", attention_mask, (batch, length))
    check_shape("position_ids", position_ids, (batch, m), (1, m))
    columns = torch.arange(length, device=inputs.device)
    index = torch.arange(m, device=inputs.device) + start  # [m], of the new tokens
    real = None if attention_mask is None else attention_mask != 0  # [B, t]
    first = 0 if real is None else real.long().argmax(-1, keepdim=True)  # [B, 1]
    if position_ids is not None and past_key_values is not None:
        moved = position_ids != index - first
        if read and (moved if real is None else moved & real.index_select(1, index)).any():
            raise ValueError(
                "With a cache, a row holds one document, and positions of new tokens continue those of the row. Leave "
                "`position_ids` out, or pass `use_cache=False`."
            )
        position_ids = None
    hides, seen, documents = config.mask_padding or config.is_causal, None, None
    if position_ids is not None:
        documents = number_documents(position_ids, real)
        seen = documents[:, :, None] == documents[:, None]  # [B or 1, m, m]
        # A batch with packed rows hides padding too.
        real = real if hides or real is None else real | ~(documents > 0).any()
        rows = between = position_ids if real is None else position_ids.where(real, 0)
        if read:
            check_range(rows, config.max_position_embeddings)
    else:
        check_length(length, config.max_position_embeddings)
        real = real if hides else None
        if real is None and not is_static:
            return Positions(config.is_causal, start)
        between = (columns if real is None else columns - first).view(-1, length)  # of all tokens
        rows = between.index_select(1, index).clamp(min=0)
    entries, padding = None, None if real is None else ~real.index_select(1, index)
    if documents is not None or is_static or start != 0 or not config.toeplitz:
        if past_key_values is not None and real is not None:
            seen = real[:, None]  # a mask may hide tokens that are in the cache
        if config.is_causal:
            earlier = columns <= index[:, None]
            seen = earlier if seen is None else seen & earlier
        entries = weight_entries(config, rows, between, seen)
    return Positions(config.is_causal, start, rows, entries, padding, real, documents)


def number_documents(position_ids: torch.Tensor, real: torch.Tensor | None = None) -> torch.Tensor:
    """Return the number of each token's document in its row, from 0: one begins where `position_ids` [B or 1, m] do not
    increase over those of the last token that is `real` [B, m]."""
    begins = position_ids.diff() <= 0
    if real is not None:
        index, position_ids = torch.arange(real.shape[1], device=real.device), position_ids.expand(real.shape)
        before = torch.where(real, index, -1).cummax(-1)[0][:, :-1]  # the index of the last real token before each
        increases = position_ids[:, 1:] > position_ids.gather(1, before.clamp(min=0))
        begins = real[:, 1:] & (before >= 0) & ~increases
    return F.pad(begins.long(), (1, 0)).cumsum(-1)


def weight_entries(
    config: GMLPConfig, rows: torch.Tensor, columns: torch.Tensor, seen: torch.Tensor | None
) -> torch.Tensor:
    """Return where W[i, j] is in the flattened W, for positions i [B or 1, m] and j [B or 1, t], or the size of W where
    it is beyond the reach or not `seen` [B or 1, m, t]. Returns [B or 1, m, t]."""
    rows, columns = rows[..., :, None], columns[..., None, :]
    if config.toeplitz:
        reach = config.spatial_reach or config.max_position_embeddings
        offset, size = columns - rows, 2 * reach - 1
        entries, inside = offset + reach - 1, offset.abs() < reach
    else:
        n = config.max_position_embeddings
        # Columns of padding in front are below 0, and are not read.
        entries, inside, size = n * rows + columns, columns >= 0, n * n
    return torch.where(inside if seen is None else inside & seen, entries, size)


def check_shape(name: str, value: torch.Tensor | None, *shapes: tuple[int, ...]):
    if value is not None and tuple(value.shape) not in shapes:
        raise ValueError(f"`{name}` must have one entry per token, {shapes[0]}, got {tuple(value.shape)}.")


def check_length(length: int, n: int):
    if length > n:
        raise ValueError(
            f"The sequences have {length} tokens and the model takes up to {n} (`config.max_position_embeddings`). "
            f"Truncate them, or grow the model with `model.resize_position_embeddings({length})`, which a Toeplitz W "
            f"needs no training for."
        )


def check_range(position_ids: torch.Tensor, n: int):
    lowest, highest = (int(x) for x in position_ids.aminmax())
    if lowest < 0 or highest >= n:
        raise ValueError(
            f"`position_ids` must be from 0 to {n - 1} (`config.max_position_embeddings` is {n}), got {lowest} to "
            f"{highest}."
        )


# ---------------------------------------------------------------------------------------------------------------------
# The spatial projection


def toeplitz_rows(weight: torch.Tensor, count: int) -> torch.Tensor:
    """
    Return `count` rows of a Toeplitz matrix, which are windows of its weights: row i is weight[:, count - 1 - i:], cut
    to the length of the last row. Padding, repeating and slicing is fast forward and backward, and works everywhere.

    Args:
        weight: [H, L, ...]

    Returns:
        [H, count, L - count + 1, ...]
    """
    length = weight.shape[1]
    padded = F.pad(weight, (0, 0) * (weight.dim() - 2) + (0, 1))
    repeated = padded[:, None].expand(-1, count, *padded.shape[1:]).flatten(1, 2)
    # Each row has one weight less than is repeated, so that it begins one weight earlier than the row before it.
    return repeated[:, : count * length].unflatten(1, (count, length))[:, :, count - 1 :]


def grid_matrix(weight: torch.Tensor) -> torch.Tensor:
    """Return W of a grid of h rows and w columns of patches, which are its tokens, row by row. It is Toeplitz in both
    directions: W[(r, c), (r', c')] = weight[h - 1 + r' - r, w - 1 + c' - c]. [H, 2h - 1, 2w - 1] -> [H, h w, h w]"""
    heads, height, width = weight.shape[0], (weight.shape[1] + 1) // 2, (weight.shape[2] + 1) // 2
    columns = toeplitz_rows(weight.flatten(0, 1), width).unflatten(0, (heads, -1))  # [H, 2h - 1, w, w]
    return toeplitz_rows(columns, height).transpose(2, 3).flatten(3).flatten(1, 2)


def banded_product(weight: torch.Tensor, bias: torch.Tensor, v: torch.Tensor, is_causal: bool) -> torch.Tensor:
    """
    Compute W v + b for a Toeplitz W in blocks of at least k tokens, each of which reads only itself and its neighbors:
    O(m k) per channel. A loop over blocks is faster than one product of all, whose inputs would not fit into a cache.

    Args:
        weight: [2k - 1], of one head.
        bias: [m, 1] or [B or 1, m, 1]
        v: [B, m, E]

    Returns:
        [B, m, E]
    """
    reach = (weight.shape[0] + 1) // 2
    size = max(reach, BLOCK_SIZE)
    # The rows of W for a block, over the columns of the block before it, its own, and those of the block behind it.
    offsets = F.pad(weight, (2 * size - reach, 2 * size - reach))
    rows = cast_for_autocast(toeplitz_rows(offsets[None], size)).expand(v.shape[0], -1, -1)
    before, own, behind = rows.split(size, 2)
    own = own.tril() if is_causal else own
    blocks, outputs = v.split(size, 1), []
    for i, (block, b) in enumerate(zip(blocks, bias.split(size, -2))):
        length = block.shape[1]
        output = torch.baddbmm(b, own[:, :length, :length], block)
        if i > 0:
            output = torch.baddbmm(output, before[:, :length], blocks[i - 1])
        if i + 1 < len(blocks) and not is_causal:
            output = torch.baddbmm(output, behind[:, :, : blocks[i + 1].shape[1]], blocks[i + 1])
        outputs.append(output)
    return torch.cat(outputs, dim=1)


def cast_for_autocast(matrix: torch.Tensor) -> torch.Tensor:
    """Cast as autocast would, but before the matrix is expanded: autocast copies an expanded tensor for each row."""
    device = matrix.device.type
    if not matrix.is_meta and torch.is_autocast_enabled(device):
        return matrix.to(torch.get_autocast_dtype(device))
    return matrix


class SpatialProjection(nn.Module):
    """
    f(v) = W v + b over the token axis (Equation 2), for up to n tokens. `weight` is [n, n], [2k - 1] if W is Toeplitz,
    W[i, j] = weight[k - 1 + j - i] and zero beyond, or [2h - 1, 2w - 1] if it is Toeplitz over a grid of h * w = n
    tokens; `bias` is [n]; several heads are a first axis of both. It is not an `nn.Linear`, so that LoRA on
    "all-linear" and quantizers leave it alone.
    """

    def __init__(
        self,
        length: int,
        toeplitz: bool,
        heads: int = 1,
        grid: tuple[int, int] | None = None,
        reach: int | None = None,
    ):
        super().__init__()
        self.toeplitz, self.heads, self.grid = toeplitz, heads, grid
        shape = (2 * (reach or length) - 1,) if toeplitz else (length, length)
        if grid is not None:
            shape = (2 * grid[0] - 1, 2 * grid[1] - 1)
        axis = () if heads == 1 else (heads,)
        self.weight = nn.Parameter(torch.zeros(*axis, *shape))
        self.bias = nn.Parameter(torch.ones(*axis, length))

    @property
    def length(self) -> int:
        """n, the number of rows and columns of W."""
        return self.bias.shape[-1]

    @property
    def reach(self) -> int:
        """k, below which offsets have a weight; n if W is not Toeplitz."""
        return (self.weight.shape[-1] + 1) // 2 if self.toeplitz and self.grid is None else self.length

    def reset_parameters(self, std: float):
        """Initialize W near zero and b at one: the gate starts as f(v) = 1, the block as a feed-forward network."""
        init.normal_(self.weight, std=std)
        init.ones_(self.bias)

    def matrix(self, length: int | None = None, start: int = 0, is_causal: bool = False) -> torch.Tensor:
        """Return W[start:length, :length], by default all of it, with zeros for later columns if it is causal:
        [H, length - start, length]"""
        length, n = self.length if length is None else length, self.length
        weight = self.weight if self.heads > 1 else self.weight[None]
        if self.grid is not None:
            return grid_matrix(weight)
        if not self.toeplitz:
            # `torch.export` refuses the length n where columns are sliced.
            rows = weight[:, start:length].index_select(2, torch.arange(length, device=weight.device))
            return rows.tril(start) if is_causal else rows
        # Pad one zero more than needed: `torch.export` refuses a length for which the slice is the whole weight.
        weight = F.pad(weight, (n - self.reach, n - self.reach + 1))
        if is_causal:
            weight = F.pad(weight[:, n - length : n], (0, length - 1 - start))
        else:
            weight = weight[:, n - length : n + length - 1 - start]
        return toeplitz_rows(weight, length - start)

    def forward(self, v: torch.Tensor, positions: Positions | None = None) -> torch.Tensor:
        """
        Args:
            v: [B, t, E]. Padding must be zero. Head h reads and writes the h-th of H equal parts of the channels.
            positions: Which entries of W and b to use; by default the leading ones.

        Returns:
            [B, m, E]
        """
        positions = Positions() if positions is None else positions
        is_causal, start, length = positions.is_causal, positions.start, v.shape[1]
        weight, bias = self.weight.view(self.heads, -1), self.bias.view(self.heads, -1)
        # Pad for `torch.export`, as in `matrix`.
        bias = F.pad(bias, (0, 1))[:, start:length] if positions.rows is None else bias[:, positions.rows]
        is_convolution = self.toeplitz and self.grid is None and positions.entries is None and start == 0
        if is_convolution and self.heads == v.shape[2] > 1:
            kernel = weight[:, : self.reach] if is_causal else weight
            padded = F.pad(v.transpose(1, 2), (self.reach - 1, 0 if is_causal else self.reach - 1))
            return F.conv1d(padded, kernel[:, None], groups=self.heads).transpose(1, 2) + bias.movedim(0, -1)
        # An exported model must not choose by a length, since it takes every length.
        exporting = torch.compiler.is_exporting() or torch.jit.is_tracing()
        is_banded = is_convolution and not exporting and length > 4 * max(self.reach, BLOCK_SIZE)
        if is_banded:
            matrices = weight
        elif positions.entries is not None:
            # The zero at the end is for tokens that are not seen.
            matrices = F.pad(weight, (0, 1))[:, positions.entries]  # [H, B or 1, m, t]
        else:
            matrices = self.matrix(length, start, is_causal)[:, None]  # [H, 1, m, t]
        outputs = []
        for w, b, part in zip(matrices, bias[..., None], v.unflatten(2, (self.heads, -1)).unbind(2)):
            if is_banded:
                outputs.append(banded_product(w, b, part, is_causal))
            else:
                # `w @ part` would copy v to fold the batch into one product.
                outputs.append(torch.baddbmm(b, cast_for_autocast(w).expand(v.shape[0], -1, -1), part))
        return outputs[0] if self.heads == 1 else torch.cat(outputs, dim=2)

    def set_parameters(self, weight: torch.Tensor, bias: torch.Tensor):
        self.weight = nn.Parameter(weight, requires_grad=self.weight.requires_grad)
        self.bias = nn.Parameter(bias, requires_grad=self.bias.requires_grad)

    @torch.no_grad()
    def resize(self, length: int, reach: int | None = None):
        """Change n, in place, and k of a Toeplitz W, by default as it is, up to n. What stays of W and b keeps its
        values; new weights do not mix, and new biases are one."""
        if self.grid is not None:
            raise ValueError("This W mixes a grid of patches: change the grid with `resize_grid`.")
        grown = length - self.length
        if self.toeplitz:
            new = min(self.reach if reach is None else reach, length) - self.reach
        # Negative padding crops.
        weight = F.pad(self.weight, (new, new) if self.toeplitz else (0, grown, 0, grown))
        self.set_parameters(weight, F.pad(self.bias, (0, grown), value=1.0))

    @torch.no_grad()
    def resize_grid(self, old_grid: tuple[int, int], new_grid: tuple[int, int], num_prefix_tokens: int):
        """
        Change the grid of patches, in place. A Toeplitz W keeps the weight of every offset and does not mix over new
        ones; b keeps the patches of the first rows and columns, and new ones take that of the nearest.

        A dense W and b are interpolated: W over the grid of output patches (its rows) and that of input patches (its
        columns), b over its patches; prefix tokens ([CLS]) stay. W sums over its columns, so they are scaled by the
        ratio of the patch counts: an image of more, finer patches gets the same gate as before.
        """
        if old_grid == new_grid:
            return
        if self.grid is not None:
            (down, right), self.grid = (new - old for old, new in zip(old_grid, new_grid)), new_grid
            bias = F.pad(self.bias.view(1, -1, *old_grid), (0, right, 0, down), mode="replicate")
            weight = F.pad(self.weight, (right, right, down, down))
            self.set_parameters(weight, bias.reshape(*self.bias.shape[:-1], -1))
            return

        def over_grid(values: torch.Tensor) -> torch.Tensor:  # [..., prefix + old patches] -> [..., prefix + new]
            prefix, patches = values[..., :num_prefix_tokens], values[..., num_prefix_tokens:]
            patches = patches.reshape(-1, 1, *old_grid).float()
            patches = F.interpolate(patches, size=new_grid, mode="bicubic", antialias=True)
            return torch.cat([prefix, patches.view(*prefix.shape[:-1], -1).to(prefix.dtype)], dim=-1)

        weight = over_grid(self.weight)
        weight[..., num_prefix_tokens:] *= (old_grid[0] * old_grid[1]) / (new_grid[0] * new_grid[1])
        self.set_parameters(over_grid(weight.mT).mT.contiguous(), over_grid(self.bias))

    def extra_repr(self) -> str:
        return (
            f"length={self.length}, toeplitz={self.toeplitz}, reach={self.reach}, heads={self.heads}, grid={self.grid}"
        )


class SpatialGatingUnit(nn.Module):
    """s(Z) = Z1 * f(Z2), or another row of Table 3, where f is the spatial projection of the normalized input."""

    def __init__(self, config: GMLPBaseConfig):
        super().__init__()
        self.config = config
        self.norm = nn.LayerNorm(config.spatial_size, eps=config.spatial_layer_norm_eps)
        self.proj = SpatialProjection(
            config.max_position_embeddings,
            config.toeplitz,
            config.spatial_heads,
            # Images have a grid, text has a reach.
            grid=getattr(config, "grid_size", None) if config.toeplitz else None,
            reach=getattr(config, "spatial_reach", None),
        )

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_output: torch.Tensor | None = None,
        positions: Positions | None = None,
        past_key_values: Cache | None = None,
        layer_idx: int = 0,
    ) -> torch.Tensor:
        """Takes Z, [B, m, F], after the activation, the tiny attention of an aMLP, [B, m, E], which is added to f
        (Figure 6), positions, by default those of a row without padding, and a cache, whose layer `layer_idx` holds v;
        returns s(Z), [B, m, E], where E is F / 2 with a split and F without one."""
        positions = Positions(self.config.is_causal) if positions is None else positions
        u = v = hidden_states
        if self.config.spatial_gating == "split":
            # `chunk` would pad each half with zeros and add both in the backward pass.
            u, v = hidden_states.unflatten(-1, (2, -1)).unbind(-2)
        v = self.norm(v)
        if positions.padding is not None:
            # Mask after the norm: its bias would leak from padding into every token.
            v = v.masked_fill(positions.padding[..., None], 0.0)
        if past_key_values is not None:
            # The cache holds v as keys, with values of width 0.
            v = past_key_values.update(v[:, None], v[:, None, :, :0], layer_idx)[0][:, 0]
        f = self.proj(v, positions)
        if attention_output is not None:
            f = f + attention_output
        if self.config.spatial_gating == "linear":
            return f
        return u + f if self.config.spatial_gating == "additive" else u * f


def eager_attention_forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Unpack[TransformersKwargs],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute attention step by step, for query [B, 1, m, A], key and value [B, 1, t, A] and an additive mask
    [B, 1, m, t]. Returns the output [B, m, 1, A] and the attention weights [B, 1, m, t]."""
    scores = torch.matmul(query, key.transpose(2, 3)) * scaling
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = F.softmax(scores, dim=-1, dtype=torch.promote_types(value.dtype, torch.float32)).to(value.dtype)
    weights = F.dropout(weights, p=dropout, training=module.training)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


class GMLPTinyAttention(nn.Module):
    """The single-head attention that makes an aMLP (Figure 6), of width A = config.attention_size."""

    def __init__(self, config: GMLPBaseConfig):
        super().__init__()
        self.config = config
        self.scaling = config.attention_size**-0.5
        self.qkv_proj = nn.Linear(config.hidden_size, 3 * config.attention_size)
        self.out_proj = nn.Linear(config.attention_size, config.spatial_size)

    @property
    def is_causal(self) -> bool:  # sdpa reads it where there is no mask
        return self.config.is_causal

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        layer_idx: int = 0,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Takes LN(x), [B, m, D], a mask as the attention implementation has it, and a cache, whose layer `layer_idx`
        holds keys and values; returns [B, m, E] and, from some implementations, the weights [B, 1, m, t]."""
        query, key, value = self.qkv_proj(hidden_states)[:, None].unflatten(-1, (3, -1)).unbind(-2)  # [B, 1, m, A]
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, layer_idx)  # [B, 1, t, A]
        attention_interface: Callable = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward
        )
        dropout = self.config.attention_probs_dropout_prob if self.training else 0.0
        output, weights = attention_interface(
            self, query, key, value, attention_mask, dropout=dropout, scaling=self.scaling, **kwargs
        )
        return self.out_proj(output.flatten(2)), weights


class GMLPBlock(GradientCheckpointingLayer):
    """x + W_out s(gelu(W_in LN(x))) (Equation 1, Figure 1); in an aMLP, tiny attention is added to the gate (Figure 6).
    All layers are called, in this order, whatever wraps or replaces them."""

    def __init__(self, config: GMLPBaseConfig, drop_path_rate: float = 0.0):
        super().__init__()
        self.config = config
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.proj_in = nn.Linear(config.hidden_size, config.intermediate_size)
        self.activation = ACT2FN[config.hidden_act]
        self.activation_dropout = nn.Dropout(config.activation_dropout)
        self.attention = GMLPTinyAttention(config) if config.attention_size else None
        self.spatial_gating_unit = SpatialGatingUnit(config)
        self.proj_out = nn.Linear(config.spatial_size, config.hidden_size)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.drop_path_rate = drop_path_rate

    def forward(
        self,
        hidden_states: torch.Tensor,
        positions: Positions | None = None,
        attention_mask: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        layer_idx: int = 0,
        **kwargs: Unpack[TransformersKwargs],
    ) -> torch.Tensor:
        """Takes x, [B, m, D], the positions of its tokens, by default those of rows without padding, the mask of tiny
        attention, and a cache, which is updated, with the number of its first layer for this block; returns
        [B, m, D]."""
        positions = Positions(self.config.is_causal) if positions is None else positions
        x = self.norm(hidden_states)
        z = self.activation_dropout(self.activation(self.proj_in(x)))  # [B, m, F]
        attention_output = None
        if self.attention is not None:
            attention_output = self.attention(x, attention_mask, past_key_values, layer_idx, **kwargs)[0]
            layer_idx += 1
        branch = self.proj_out(self.spatial_gating_unit(z, attention_output, positions, past_key_values, layer_idx))
        return hidden_states + drop_path(self.dropout(branch), self.drop_path_rate, self.training)


def drop_path(branch: torch.Tensor, rate: float, training: bool) -> torch.Tensor:
    """Stochastic depth (Huang et al., 2016; the paper's [32]): in training, zeroes the branch [B, m, D] of a row with
    probability `rate`, and scales the others up by 1 / (1 - rate)."""
    if not training or rate == 0.0:
        return branch
    return branch * branch.new_empty(branch.shape[0], 1, 1).bernoulli_(1.0 - rate) / (1.0 - rate)


def build_layers(config: GMLPBaseConfig) -> nn.ModuleList:
    """L blocks; block l is dropped with probability l / L * drop_path_rate in training (the paper's [32])."""
    depth = config.num_hidden_layers
    return nn.ModuleList(GMLPBlock(config, config.drop_path_rate * (i + 1) / depth) for i in range(depth))


class GMLPPooler(nn.Sequential):
    """Dense and tanh on one vector: BERT's pooler and ViT's pre-logits. [B, D] -> [B, D]"""

    def __init__(self, config: GMLPBaseConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = nn.Tanh()

    def train(self, mode: bool = True):
        weight = getattr(getattr(self, "dense", None), "weight", None)
        if mode and isinstance(weight, torch.Tensor) and not weight.requires_grad:
            logger.warning_once(
                "The pooler is frozen, and is random in a checkpoint without one. Train and save it too, in PEFT with "
                '`modules_to_save=["pooler.dense", "classifier"]`.'
            )
        return super().train(mode)


def pool_tokens(
    hidden_states: torch.Tensor, padding_mask: torch.Tensor | None, pooling: str, is_causal: bool = False
) -> torch.Tensor:
    """Pool each sequence to one vector: [B, m, D] -> [B, D]

    Args:
        padding_mask: [B, m], 0 for padding, which is left out. A row of padding alone gives zeros ("cls": any token).
        pooling: "mean" or "max" over the tokens, or "cls" for the first token, or the last if `is_causal`, since only
            that one has seen the others.
    """
    if pooling == "cls":
        if padding_mask is None:
            return hidden_states[:, -1 if is_causal else 0]
        rows, columns = (torch.arange(size, device=hidden_states.device) for size in padding_mask.shape)
        real = padding_mask != 0
        return hidden_states[rows, torch.where(real, columns, 0).amax(-1) if is_causal else real.long().argmax(-1)]
    if padding_mask is None:
        return hidden_states.mean(1) if pooling == "mean" else hidden_states.amax(1)
    padding = (padding_mask == 0)[..., None]
    if pooling == "mean":
        # A sum in half precision would overflow.
        dtype = torch.promote_types(hidden_states.dtype, torch.float32)
        total = hidden_states.masked_fill(padding, 0).sum(1, dtype=dtype)
        return (total / (~padding).sum(1).clamp(min=1)).to(hidden_states.dtype)
    highest = hidden_states.masked_fill(padding, torch.finfo(hidden_states.dtype).min).amax(1)
    return highest.masked_fill(padding.all(1), 0)


# ---------------------------------------------------------------------------------------------------------------------
# The text model


class GMLPPreTrainedModel(PreTrainedModel):
    """Initialization and resizing of all models of this file."""

    config: GMLPConfig
    base_model_prefix = "model"
    input_modalities = ("text",)
    supports_gradient_checkpointing = True
    _no_split_modules = ["GMLPBlock"]
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _can_compile_fullgraph = True
    _can_record_outputs = {"hidden_states": GMLPBlock, "attentions": GMLPTinyAttention}
    # Whether a forward pass reads values to check them, which waits for the device. Never read while a model is traced.
    reads_values = True

    @torch.no_grad()
    def _init_weights(self, module: nn.Module):
        super()._init_weights(module)
        if isinstance(module, SpatialProjection):
            module.reset_parameters(self.config.spatial_initializer_range)
        elif isinstance(module, nn.Conv2d) and module.bias is None:
            # A convolutional stem starts at a scale set by its fan-in: Adam's steps have one size for all weights.
            init.kaiming_normal_(module.weight)
        elif isinstance(module, GMLPPatchEmbeddings) and module.cls_token is not None:
            init.normal_(module.cls_token, std=self.config.initializer_range)

    def get_output_embeddings(self) -> nn.Module | None:
        return getattr(self, "decoder", None)

    def set_output_embeddings(self, new_embeddings: nn.Module):
        self.decoder = new_embeddings

    def spatial_projections(self) -> list[SpatialProjection]:
        """Return the W and b of every block, from the first to the last."""
        return [module for module in self.modules() if isinstance(module, SpatialProjection)]

    def get_position_embeddings(self) -> tuple[nn.Parameter, ...]:
        """Return the spatial weights of every block: a gMLP has no other positions."""
        return tuple(projection.weight for projection in self.spatial_projections())

    def resize_position_embeddings(self, new_num_position_embeddings: int, new_spatial_reach: int | None = None):
        """
        Change n, the maximum number of tokens, in place. Create the optimizer after this, not before.

        A Toeplitz W keeps its weights, which apply at every position, and new entries of b are one: a model that was
        trained on short sequences reads longer ones at once. A dense W must be trained for added positions, which do
        not mix at first. Outputs for sequences up to the old n stay the same.

        Args:
            new_num_position_embeddings: The new n.
            new_spatial_reach: The new k of a Toeplitz W, by default as before; added offsets do not mix at first.

        Raises:
            TypeError, ValueError: A number is not an integer of at least 1, or k is above n. Nothing has changed then.
        """
        length, reach = new_num_position_embeddings, new_spatial_reach
        for number in (length,) if reach is None else (length, reach):
            if isinstance(number, bool) or operator.index(number) < 1:
                raise ValueError(f"A model takes sequences of at least 1 token, got {number}.")
        if reach is not None and not (self.config.toeplitz and reach <= length):
            raise ValueError(f"The reach of a Toeplitz W must be from 1 to {length}; a dense W has none. Got {reach}.")
        projections = self.spatial_projections()
        for projection in projections:
            projection.resize(length, reach)
        self.config.max_position_embeddings = length
        if self.config.toeplitz:
            reach = projections[0].reach
            self.config.spatial_reach = None if reach == length else reach
        self.base_model.built_for = spatial_fields(self.config)


def spatial_fields(config: GMLPBaseConfig) -> tuple:
    """Return the fields of a config that decide the shape and meaning of W, which a built model does not change."""
    names = ("toeplitz", "max_position_embeddings", "spatial_reach", "grid_size")
    return tuple(getattr(config, name, None) for name in names)


def check_config(config: GMLPBaseConfig, built_for: tuple):
    if spatial_fields(config) != built_for:
        raise ValueError(
            f"The config was changed after W was made, from {built_for} to {spatial_fields(config)} (`toeplitz`, n, "
            f"`spatial_reach`, grid). Use `model.resize_position_embeddings` or `model.resize_image_size`."
        )


class GMLPModel(GMLPPreTrainedModel):
    """The text model: embeddings, blocks and a final LayerNorm, and BERT's pooler unless `add_pooling_layer=False`."""

    _auto_class = "AutoModel"

    def __init__(self, config: GMLPConfig, add_pooling_layer: bool = True):
        config.check()
        super().__init__(config)
        self.built_for = spatial_fields(config)
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
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> modeling_outputs.BaseModelOutputWithPoolingAndCrossAttentions:
        r"""
        Args:
            input_ids, inputs_embeds: [B, m] or [B, m, D], one of them. A row may be longer than n if `position_ids` say
                that it holds several documents.
            attention_mask: [B, m], 1 for tokens and 0 for padding, on either side; with a cache [B, t].
            token_type_ids: [B or 1, m], the segment of each token; all 0 by default.
            position_ids: [B or 1, m], the row and column of W for each token, from 0 to n - 1. By default, its index
                less that of the row's first token that is not padding. Where they do not increase, a document begins;
                documents do not see each other.
            past_key_values, use_cache: A causal model's cache of earlier tokens, and whether to create one.

        Returns:
            `last_hidden_state` [B, m, D], `pooler_output` [B, D], and the cache. Where it can be read that a row holds
            several documents, `pooler_output` is `None`.

        Raises:
            ValueError: If an input has another shape or too many tokens, or if the model cannot use the cache.
        """
        inputs = check_inputs(input_ids, inputs_embeds)
        check_config(self.config, self.built_for)
        packing = [name for name in PACKING if kwargs.pop(name, None) is not None]
        if packing and position_ids is None:
            raise ValueError(f"Packed rows are described by `position_ids`, which are missing beside `{packing[0]}`.")
        past_key_values = kwargs.pop(CACHE, past_key_values)
        if past_key_values is None and use_cache and self.config.is_causal and not self.training:
            past_key_values = DynamicCache()
        if past_key_values is not None:
            check_cache(past_key_values, self.config, self.layers)
        read = self.reads_values and not is_tracing(inputs)
        positions = find_positions(self.config, inputs, attention_mask, position_ids, past_key_values, read)
        hidden_states = self.embeddings(input_ids, token_type_ids, inputs_embeds)
        attention_mask_4d = None
        if self.config.attention_size:
            attention_mask_4d = self.create_attention_mask(hidden_states, positions, past_key_values)
        kwargs["past_key_values"], caches = past_key_values, 2 if self.config.attention_size else 1
        for i, layer in enumerate(self.layers[: self.config.num_hidden_layers]):
            hidden_states = layer(hidden_states, positions, attention_mask_4d, layer_idx=caches * i, **kwargs)
        hidden_states, pooled = self.norm(hidden_states), None
        if self.pooler is not None and not (read and positions.documents is not None and positions.documents.any()):
            if past_key_values is not None:
                if self.config.pooling != "cls":
                    raise ValueError(f'`pooling="{self.config.pooling}"` needs all tokens at once, without a cache.')
                attention_mask = None if positions.padding is None else ~positions.padding
            pooled = self.pooler(pool_tokens(hidden_states, attention_mask, self.config.pooling, self.config.is_causal))
        return modeling_outputs.BaseModelOutputWithPoolingAndCrossAttentions(
            last_hidden_state=hidden_states, pooler_output=pooled, **{CACHE: past_key_values}
        )

    def create_attention_mask(
        self, hidden_states: torch.Tensor, positions: Positions, past_key_values: Cache | None
    ) -> torch.Tensor | None:
        """Return the mask of tiny attention, as its implementation takes it: tokens see each other both ways, unless
        `config.is_causal`, within a document, and no padding that is hidden from W."""
        documents, same_document = positions.documents, None
        if documents is not None:
            if "flash" in self.config._attn_implementation:
                raise ValueError(
                    "Flash attention takes no mask between packed documents: leave `position_ids` out, or use "
                    "`attn_implementation='sdpa'`."
                )
            documents = documents.expand(hidden_states.shape[:2])

            def same_document(batch, head, query, key):
                return documents[batch, query] == documents[batch, key]

        return create_causal_mask(
            config=self.config,
            inputs_embeds=hidden_states,
            attention_mask=positions.visible,
            and_mask_function=same_document,
            # The library would read the mask, to skip one that hides nothing.
            allow_is_causal_skip=positions.visible is None,
            **{CACHE: past_key_values},
        )


def check_inputs(input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None) -> torch.Tensor:
    """Return the one that is not `None`. Raise a ValueError if that is both or neither, or has no tokens."""
    inputs = input_ids if inputs_embeds is None else inputs_embeds
    if inputs is None or (input_ids is not None and inputs_embeds is not None):
        raise ValueError("Pass either `input_ids` or `inputs_embeds`, and not both.")
    if 0 in inputs.shape[:2]:
        raise ValueError(f"There are no tokens: the batch has the shape {tuple(inputs.shape[:2])}.")
    return inputs


def check_cache(past_key_values: Cache, config: GMLPConfig, blocks: nn.ModuleList):
    """Give a cache as many layers as this model fills: one per block for v, and with tiny attention another before each
    for keys and values. Raise a ValueError if the model cannot use the cache."""
    if not config.is_causal:
        raise ValueError(
            "`past_key_values` is for causal models (`config.is_causal`): in this model, a new token changes the "
            "outputs of all earlier ones. Instead of prefix tuning, use prompt tuning or LoRA."
        )
    layers, per_block = past_key_values.layers, 2 if config.attention_size else 1
    missing = per_block * min(len(blocks), config.num_hidden_layers) - len(layers)
    is_known = all(type(layer) in (DynamicLayer, StaticLayer) for layer in layers)
    is_filled = any(layer.is_initialized for layer in layers)
    if not is_known or (is_filled and (missing > 0 or layers[per_block - 1].values.numel())):
        raise ValueError(
            f"This {type(past_key_values).__name__} does not hold v of a gMLP, but what another model or prefix tuning "
            f"put there, or it is not a dynamic, static or offloaded cache. Leave it to `generate`; instead of prefix "
            f"tuning, use prompt tuning or LoRA."
        )
    static = past_key_values.is_compileable
    layers += [StaticLayer(past_key_values.get_max_length()) if static else DynamicLayer() for _ in range(missing)]


# ---------------------------------------------------------------------------------------------------------------------
# Losses, in at least single precision. The library's own cast float64 to float32 or leave half precision, and some
# ignore `num_items_in_batch`, so that a loss comes out N times too large when Trainer accumulates N gradients.


def class_loss(logits: torch.Tensor, labels: torch.Tensor, **kwargs) -> torch.Tensor:
    """Return the cross-entropy of logits [..., classes] and labels [...] other than -100, divided by their number or by
    `num_items_in_batch`."""
    logits = logits.flatten(0, -2).to(torch.promote_types(logits.dtype, torch.float32))
    return fixed_cross_entropy(logits, labels.to(logits.device).flatten(), **kwargs)


def next_token_loss(logits: torch.Tensor, labels: torch.Tensor, **kwargs) -> torch.Tensor:
    """Return the `class_loss` of logits [B, m, V] for the next token; `shift_labels` replace the labels, unshifted."""
    shifted = kwargs.pop("shift_labels", None)
    if shifted is None:
        shifted = F.pad(labels, (0, 1), value=kwargs.get("ignore_index", -100))[..., 1:]
    return class_loss(logits, shifted, **kwargs)


def classification_loss(
    labels: torch.Tensor, logits: torch.Tensor, config: GMLPBaseConfig, num_items_in_batch=None, **kwargs
) -> torch.Tensor:
    """Return the loss of `config.problem_type`, which is set from the labels if it is `None`, as in the library.

    Args:
        labels: [B], or [B, num_labels] with several per sample, or with the probability of each class.
        logits: [B, num_labels]

    Raises:
        ValueError: If the labels have another shape.
    """
    if config.problem_type is None:
        several = "multi_label_classification" if labels.is_floating_point() else "single_label_classification"
        config.problem_type = "regression" if config.num_labels == 1 else several
    is_class = config.problem_type == "single_label_classification" and not labels.is_floating_point()
    if is_class and labels.dim() == 2:
        labels = labels.squeeze(1)
    elif not is_class and logits.shape[1] == labels.dim() == 1:
        logits = logits.squeeze(1)
    if labels.shape != (logits.shape[:1] if is_class else logits.shape):
        shapes = f"labels of shape {tuple(labels.shape)} do not fit logits of shape {tuple(logits.shape)}"
        raise ValueError(f'With `problem_type="{config.problem_type}"`, {shapes}.')
    if is_class:
        return class_loss(logits, labels, num_items_in_batch=num_items_in_batch)
    distances: dict[str, Callable[..., torch.Tensor]] = {
        "regression": F.mse_loss,
        "single_label_classification": F.cross_entropy,
        "multi_label_classification": F.binary_cross_entropy_with_logits,
    }
    labels = labels.to(logits.device, torch.promote_types(logits.dtype, torch.float32))
    loss = distances[config.problem_type](logits.to(labels.dtype), labels)
    return loss if num_items_in_batch is None else loss * labels.numel() / num_items_in_batch


# ---------------------------------------------------------------------------------------------------------------------
# The heads of text models. All take the inputs of the base model, and return `loss` if there are labels.


class GMLPPredictionHead(nn.Sequential):
    """BERT's transform before the masked-language-model decoder: dense, activation, LayerNorm. [..., D] -> [..., D]"""

    def __init__(self, config: GMLPConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = ACT2FN[config.hidden_act]
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)


class GMLPForMaskedLM(GMLPPreTrainedModel):
    """gMLP with a masked-language-model head, whose decoder is tied to the embeddings (paper, section 4)."""

    _auto_class = "AutoModelForMaskedLM"
    _tied_weights_keys = {"decoder.weight": "model.embeddings.word_embeddings.weight"}
    _tp_plan = {"decoder": "colwise_gather_output"}
    _fsdp_plan = {"decoder": "keep_full_weight"}

    def __init__(self, config: GMLPConfig):
        super().__init__(config)
        self.model = GMLPModel(config, add_pooling_layer=False)
        self.head = GMLPPredictionHead(config) if config.mlm_transform else nn.Identity()
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)
        self.loss_function = class_loss
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        masked_positions: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> modeling_outputs.MaskedLMOutput:
        r"""Takes the inputs of the base model, and labels [B, m], the token to predict, or -100 where there is none.
        Returns `loss` and `logits` [B, m, V], or [labeled positions, V] in training with `sparse_prediction`. Compiled
        models need `masked_positions` [B, k] for that, the indices of all labels and some others, and return [B, k, V].
        """
        inputs = (input_ids, attention_mask, token_type_ids, inputs_embeds, position_ids)
        outputs = self.model(*inputs, return_dict=True, **kwargs)
        hidden_states = outputs.last_hidden_state
        if self.config.sparse_prediction and self.training and labels is not None:
            if masked_positions is not None:
                hidden_states = hidden_states.take_along_dim(masked_positions[..., None], 1)
                labels = labels.gather(1, masked_positions)
            elif self.reads_values and not is_tracing(labels):
                labeled = labels != -100
                hidden_states, labels = hidden_states[labeled], labels[labeled]
            # Otherwise keep all positions: a compiled model cannot know how many are labeled.
        logits = self.decoder(self.head(hidden_states))
        loss = None if labels is None else self.loss_function(logits=logits, labels=labels, **kwargs)
        return modeling_outputs.MaskedLMOutput(loss, logits, outputs.hidden_states, outputs.attentions)


class GMLPForCausalLM(GMLPPreTrainedModel, GenerationMixin):
    """
    gMLP that predicts the next token and generates text of up to n tokens, with a decoder as in GPT-2. It is causal
    whatever the config says: the checkpoint of a masked language model opens as this too, with the weights that look
    ahead hidden, and can be trained further.
    """

    _auto_class = "AutoModelForCausalLM"
    _tied_weights_keys = {"decoder.weight": "model.embeddings.word_embeddings.weight"}
    _tp_plan = {"decoder": "colwise_gather_output"}
    _fsdp_plan = {"decoder": "keep_full_weight"}

    def __init__(self, config: GMLPConfig):
        if not config.is_causal:
            # A copy: the caller may use this config for a masked language model too.
            config = copy.deepcopy(config)
            config.is_causal = True
        super().__init__(config)
        self.model = GMLPModel(config, add_pooling_layer=False)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)
        self.loss_function = next_token_loss
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,
        labels: torch.Tensor | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        **kwargs: Unpack[TransformersKwargs],
    ) -> modeling_outputs.CausalLMOutputWithPast:
        r"""Takes the inputs of the base model; labels [B, m], the tokens themselves, which are shifted here, or -100
        where there is nothing to predict; and `logits_to_keep`, how many of the last tokens to compute logits for, or
        the indices of tokens, by default all. Returns `loss`, in which no document predicts the first token of the
        next, `logits` [B, m, V] and `past_key_values`."""
        if not self.config.is_causal:
            raise ValueError("`config.is_causal` must stay on: to see both ways, load a masked language model.")
        if labels is None and kwargs.get("num_items_in_batch") is not None:
            logger.warning_once(
                "Trainer does not shift the labels of this model for `label_smoothing_factor`: use `compute_loss_func`."
            )
        inputs = (input_ids, attention_mask, token_type_ids, inputs_embeds, position_ids)
        kwargs |= {"past_key_values": past_key_values, "use_cache": use_cache}
        outputs = self.model(*inputs, return_dict=True, **kwargs)
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits, loss = self.decoder(outputs.last_hidden_state[:, kept]), None
        if labels is not None:
            if position_ids is not None and getattr(outputs, CACHE) is None:
                documents = number_documents(position_ids, None if attention_mask is None else attention_mask != 0)
                labels = labels.masked_fill(F.pad(documents.diff() != 0, (1, 0)).to(labels.device), -100)
            loss = self.loss_function(logits=logits, labels=labels, **kwargs)
        states = {"hidden_states": outputs.hidden_states, "attentions": outputs.attentions}
        return modeling_outputs.CausalLMOutputWithPast(
            loss=loss, logits=logits, **states, **{CACHE: getattr(outputs, CACHE)}
        )

    def generate(self, *args, assistant_model: PreTrainedModel | None = None, **kwargs):
        """As in the library. Raises a ValueError for an assistant that takes fewer tokens than this model."""
        n = self.config.max_position_embeddings
        if assistant_model is not None and getattr(assistant_model.config, "max_position_embeddings", n) < n:
            raise ValueError(
                f"The assistant takes up to {assistant_model.config.max_position_embeddings} tokens, fewer than the "
                f"{n} of the model: grow it with `assistant.resize_position_embeddings({n})`."
            )
        return super().generate(*args, assistant_model=assistant_model, **kwargs)

    def _prepare_position_ids_for_generation(self, *args, **kwargs) -> None:
        """Part of `generate`: the library would count a mask's tokens, not their indices, as forward does."""

    def create_masks_for_generate(self, attention_mask: torch.Tensor | None, **kwargs) -> torch.Tensor | None:
        """Part of `generate` with a static cache: pads the mask to the size of the cache, so that its shape stays."""
        room = kwargs[CACHE].get_max_length()
        return None if attention_mask is None else F.pad(attention_mask, (0, room - attention_mask.shape[1]))

    def _get_static_cache_init_shape(self) -> None:
        """Part of `generate`: the layers of a cache differ in shape, so each is initialized when it is first used."""

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


class GMLPForSequenceClassification(GMLPPreTrainedModel):
    """gMLP with a classifier or regressor on BERT's pooler, for GLUE's tasks among others."""

    _auto_class = "AutoModelForSequenceClassification"

    def __init__(self, config: GMLPConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.model = GMLPModel(config)
        self.dropout = nn.Dropout(config.classifier_rate)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.loss_function = classification_loss
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> modeling_outputs.SequenceClassifierOutput:
        r"""Takes the inputs of the base model, without packed documents, and labels, [B] classes or values, or
        [B, num_labels] with several per sample. Returns `loss` and `logits` [B, num_labels]."""
        inputs = (input_ids, attention_mask, token_type_ids, inputs_embeds, position_ids)
        outputs = self.model(*inputs, return_dict=True, **kwargs)
        logits = self.classifier(self.dropout(check_pooled(outputs.pooler_output)))
        loss = None if labels is None else self.loss_function(labels, logits, self.config, **kwargs)
        return modeling_outputs.SequenceClassifierOutput(loss, logits, outputs.hidden_states, outputs.attentions)


def check_pooled(pooled: torch.Tensor | None) -> torch.Tensor:
    if pooled is None:
        raise ValueError("This head has one answer per row: give each document a row of its own.")
    return pooled


class GMLPForMultipleChoice(GMLPPreTrainedModel):
    """gMLP that scores each of several choices by BERT's pooler, for SWAG among others."""

    _auto_class = "AutoModelForMultipleChoice"

    def __init__(self, config: GMLPConfig):
        super().__init__(config)
        self.model = GMLPModel(config)
        self.dropout = nn.Dropout(config.classifier_rate)
        self.classifier = nn.Linear(config.hidden_size, 1)
        self.loss_function = class_loss
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> modeling_outputs.MultipleChoiceModelOutput:
        r"""Takes the inputs of the base model as [B, choices, m] or [B, choices, m, D], without packed documents, and
        labels [B], the right choices. Returns `loss` and `logits` [B, choices]."""
        shape = check_inputs(input_ids, inputs_embeds).shape[:2]
        inputs = (input_ids, attention_mask, token_type_ids, inputs_embeds, position_ids)
        flat = [None if x is None else x.flatten(0, 1) for x in inputs]
        outputs = self.model(*flat, return_dict=True, **kwargs)
        logits = self.classifier(self.dropout(check_pooled(outputs.pooler_output))).view(shape)
        loss = None if labels is None else self.loss_function(logits=logits, labels=labels, **kwargs)
        return modeling_outputs.MultipleChoiceModelOutput(loss, logits, outputs.hidden_states, outputs.attentions)


class GMLPForTokenClassification(GMLPPreTrainedModel):
    """gMLP with a classifier on every token, for named entities among others."""

    _auto_class = "AutoModelForTokenClassification"

    def __init__(self, config: GMLPConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.model = GMLPModel(config, add_pooling_layer=False)
        self.dropout = nn.Dropout(config.classifier_rate)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.loss_function = class_loss
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> modeling_outputs.TokenClassifierOutput:
        r"""Takes the inputs of the base model, and labels [B, m], the class of each token, or -100 to leave it out.
        Returns `loss` and `logits` [B, m, num_labels]."""
        inputs = (input_ids, attention_mask, token_type_ids, inputs_embeds, position_ids)
        outputs = self.model(*inputs, return_dict=True, **kwargs)
        logits = self.classifier(self.dropout(outputs.last_hidden_state))
        loss = None if labels is None else self.loss_function(logits=logits, labels=labels, **kwargs)
        return modeling_outputs.TokenClassifierOutput(loss, logits, outputs.hidden_states, outputs.attentions)


class GMLPForQuestionAnswering(GMLPPreTrainedModel):
    """gMLP that marks the first and the last token of an answer, for SQuAD."""

    _auto_class = "AutoModelForQuestionAnswering"

    def __init__(self, config: GMLPConfig):
        super().__init__(config)
        self.model = GMLPModel(config, add_pooling_layer=False)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        self.loss_function = ForQuestionAnsweringLoss
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        start_positions: torch.Tensor | None = None,
        end_positions: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> modeling_outputs.QuestionAnsweringModelOutput:
        r"""Takes the inputs of the base model, without packed documents, and the indices of the first and last tokens
        of the answers, [B] each; the loss leaves out those outside of the sequence. Returns `loss`, `start_logits` and
        `end_logits` [B, m]."""
        if position_ids is not None and self.reads_values and not is_tracing(position_ids):
            real = None if attention_mask is None else attention_mask != 0
            check_pooled(None if number_documents(position_ids, real).any() else position_ids)
        inputs = (input_ids, attention_mask, token_type_ids, inputs_embeds, position_ids)
        outputs = self.model(*inputs, return_dict=True, **kwargs)
        start_logits, end_logits = (x.contiguous() for x in self.qa_outputs(outputs.last_hidden_state).unbind(-1))
        loss = None
        if start_positions is not None and end_positions is not None:
            loss = self.loss_function(start_logits, end_logits, start_positions, end_positions, **kwargs)
        return modeling_outputs.QuestionAnsweringModelOutput(
            loss, start_logits, end_logits, outputs.hidden_states, outputs.attentions
        )


# ---------------------------------------------------------------------------------------------------------------------
# Images


class GMLPStemNorm(nn.BatchNorm2d):
    """BatchNorm whose running statistics stay where they are while its weights are frozen: no adapter saves them."""

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        if self.weight.requires_grad:
            return super().forward(features)
        return F.batch_norm(features, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)


def conv_stem(config: GMLPVisionConfig) -> nn.Sequential:
    """An early-convolution stem (Xiao et al., 2021): 3 x 3 convolutions, of which each after the first halves the sides
    and doubles the channels. [B, C, height, width] -> [B, D, height / patch, width / patch]"""
    size, _ = as_pair(config.patch_size)  # a power of 2
    layers, channels = [], config.num_channels
    for i in range(size.bit_length()):
        width = max(1, config.hidden_size * 2**i // size)
        conv = nn.Conv2d(channels, width, 3, stride=2 if i else 1, padding=1, bias=False)
        layers += [conv, GMLPStemNorm(width), nn.ReLU()]
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

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:  # [B, C, height, width] -> [B, n, D]
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


class GMLPVisionPreTrainedModel(GMLPPreTrainedModel):
    config: GMLPVisionConfig
    main_input_name = "pixel_values"
    input_modalities = ("image",)

    def resize_position_embeddings(self, *args, **kwargs):
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
            TypeError, ValueError: If the new size is not a multiple of the patch size; nothing has changed then.
        """
        old_grid, new_config = self.config.grid_size, copy.deepcopy(self.config)
        sides = image_size if isinstance(image_size, list | tuple) else [image_size]
        new_size = [operator.index(side) for side in sides]
        new_config.image_size = new_size if isinstance(image_size, list | tuple) else new_size[0]
        new_config.check()
        self.config.image_size = new_config.image_size
        for projection in self.spatial_projections():
            projection.resize_grid(old_grid, self.config.grid_size, self.config.num_prefix_tokens)
        self.base_model.built_for = spatial_fields(self.config)


class GMLPVisionModel(GMLPVisionPreTrainedModel):
    """The image encoder: patches, blocks, final LayerNorm, and `config.pooling` unless `add_pooling_layer=False`."""

    _auto_class = "AutoModel"

    def __init__(self, config: GMLPVisionConfig, add_pooling_layer: bool = True):
        config.check()
        super().__init__(config)
        self.built_for = spatial_fields(config)
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
        self, pixel_values: torch.Tensor | None = None, **kwargs: Unpack[TransformersKwargs]
    ) -> modeling_outputs.BaseModelOutputWithPooling:
        r"""
        Takes images [B, channels, height, width]; returns `last_hidden_state` [B, n, D] and `pooler_output` [B, D].

        Raises:
            ValueError: If there are no images, or their size or number of channels is not that of the config.
        """
        if pixel_values is None:
            raise ValueError("Pass `pixel_values`; the image processor makes them from images.")
        check_config(self.config, self.built_for)
        hidden_states = self.embeddings(pixel_values)
        for layer in self.layers[: self.config.num_hidden_layers]:
            hidden_states = layer(hidden_states, **kwargs)
        hidden_states = self.norm(hidden_states)
        pooled = None
        if self.pooler is not None:
            pooled = self.pooler(hidden_states[:, 0])
        elif self.add_pooling_layer:
            pooled = hidden_states.mean(dim=1)
        return modeling_outputs.BaseModelOutputWithPooling(last_hidden_state=hidden_states, pooler_output=pooled)


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
    ) -> modeling_outputs.ImageClassifierOutput:
        r"""Takes images [B, channels, height, width] and labels, [B] classes or [B, num_labels] with several labels per
        image; returns `loss` and `logits` [B, num_labels]."""
        outputs = self.model(pixel_values, return_dict=True, **kwargs)
        logits = self.classifier(self.dropout(outputs.pooler_output))
        loss = None if labels is None else self.loss_function(labels, logits, self.config, **kwargs)
        return modeling_outputs.ImageClassifierOutput(loss, logits, outputs.hidden_states, outputs.attentions)


class GMLPVisionBackbone(BackboneMixin, GMLPVisionModel):
    """The image encoder as a pyramid of feature maps, for heads that segment, detect or estimate depth."""

    _auto_class = "AutoBackbone"

    def __init__(self, config: GMLPVisionConfig):
        super().__init__(config, add_pooling_layer=False)
        self.num_features = [config.hidden_size] * len(self.stage_names)
        if config._out_features is None:
            config.out_features = None  # sets the name of the last stage, which a backbone reads

    @merge_with_config_defaults
    @capture_outputs(tie_last_hidden_states=False)
    def forward(
        self, pixel_values: torch.Tensor, **kwargs: Unpack[TransformersKwargs]
    ) -> modeling_outputs.BackboneOutput:
        r"""Takes images [B, channels, height, width]; returns `feature_maps` for each of `config.out_features`,
        [B, D, rows, columns] of patches without the [CLS] token, or [B, n, D] with it, unless
        `config.reshape_hidden_states`."""
        check_config(self.config, self.built_for)
        feature_maps: tuple[torch.Tensor, ...] = ()
        hidden_states = self.embeddings(pixel_values)
        for stage, layer in zip(self.stage_names, [None, *self.layers]):
            if layer is not None:
                hidden_states = layer(hidden_states, **kwargs)
            if stage in self.out_features:
                features = self.norm(hidden_states) if self.config.apply_layernorm else hidden_states
                if self.config.reshape_hidden_states:
                    patches = features[:, self.config.num_prefix_tokens :].unflatten(1, self.config.grid_size)
                    features = patches.permute(0, 3, 1, 2).contiguous()
                feature_maps += (features,)
        return modeling_outputs.BackboneOutput(feature_maps=feature_maps)


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
