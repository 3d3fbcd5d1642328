# Copyright 2026 The hf_gmlp authors. Licensed under the Apache License, Version 2.0.
"""gMLP and aMLP for text and images ("Pay Attention to MLPs", Liu et al., 2021, https://arxiv.org/abs/2105.08050).

In a gMLP, a learned matrix over the tokens, W, replaces the self-attention and position embeddings of a Transformer.
From x [B, m, D], a block computes

    x + drop_path(dropout(W_out s(gelu(W_in LN(x)))))    Equation 1, Figure 1     GMLPBlock
    s(Z) = u * (W LN(v) + b), Z = [u, v]                 Equations 2 to 4         SpatialGatingUnit
    s(Z) = u * (W LN(v) + b + tiny_attention(LN(x)))     an aMLP, Figure 6        GMLPTinyAttention

where LN is a LayerNorm. W [n, n] and b [n] act along the token axis and are shared by all channels, or by those of one
head (`spatial_heads`). W starts near zero and b at one, so a new block is a feed-forward network. The token at index i
has a position p_i: it reads b[p_i], and W[p_i, p_j] for every token j that it sees (`find_positions`).

Every saved checkpoint contains this file and its configuration file, which need only torch and transformers.
Shapes: B batch, m tokens passed to the model, t tokens including those in a cache, n config.max_position_embeddings, D
hidden_size, F intermediate_size, E spatial_size (F / 2 after a split), H spatial_heads, k spatial_reach, V vocab_size.
"""

import copy
import operator
from collections.abc import Callable
from dataclasses import dataclass
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
from transformers.utils.import_utils import is_torch_greater_or_equal, is_tracing
from transformers.utils.output_capturing import capture_outputs

from .configuration_gmlp import GMLPBaseConfig, GMLPConfig, GMLPVisionConfig, as_pair

logger = logging.get_logger(__name__)

# The name of a cache in the functions and outputs of transformers: "cache" from 5.24 on.
CACHE = "cache" if "cache" in signature(create_causal_mask).parameters else "past_key_values"
# Whether strict `torch.export` can be told from `torch.compile`: in torch 2.9, `is_exporting()` is true in both.
STRICT_EXPORT = is_torch_greater_or_equal("2.10")
# Arguments by which data collators also describe packed rows. They are ignored in favor of `position_ids`.
PACKING = ("seq_idx", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")
# Minimum block length of `banded_product`, which is faster than multiplying by all of W for more than 4 blocks.
BLOCK_SIZE = 64


class GMLPEmbeddings(nn.Module):
    """Token and segment embeddings as in BERT, but without positions and a norm. Every block begins with a norm."""

    def __init__(self, config: GMLPConfig) -> None:
        super().__init__()
        # Without `padding_idx`: LayerNorms would multiply the gradient of a zero embedding by a thousand.
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
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
# The spatial projection


class Positions(NamedTuple):
    """What every block reads of W and b. By default, p_i = i and all tokens see one another."""

    is_causal: bool = False  # whether a token sees only itself and earlier ones
    rows: torch.Tensor | None = None  # [B or 1, m], p_i of each new token; its index by default
    # [B or 1, t], p_j of every token, if W[p_i, p_j] must be gathered. By default, W[:m, :m] is read, which for a
    # Toeplitz W is right if p_j - p_i = j - i for tokens that see each other.
    columns: torch.Tensor | None = None
    padding: torch.Tensor | None = None  # [B, m], True for new tokens that are hidden
    visible: torch.Tensor | None = None  # [B, t], False for hidden tokens
    documents: torch.Tensor | None = None  # [B or 1, m], the number of each token's document in its packed row
    document_count: int = 0  # the largest number of documents in a row; unknown (0) in traced models
    document_length: int = 0  # at least their largest length


def number_documents(position_ids: torch.Tensor, is_token: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the number of each token's document in its row, counted from 0, and whether its position in a document
    differs otherwise than its index does. A document begins where `position_ids` [B or 1, m] do not increase from the
    previous token that is not padding (`is_token` [B, m])."""
    indices = torch.arange(position_ids.shape[1], device=position_ids.device)
    is_token = torch.ones_like(position_ids, dtype=torch.bool) if is_token is None else is_token
    position_ids = position_ids.expand(is_token.shape)
    last = torch.where(is_token, indices, -1).cummax(-1)[0]
    previous = F.pad(last, (1, 0), value=-1)[:, :-1]  # -1 where no token precedes
    steps = position_ids - position_ids.gather(1, previous.clamp(min=0))
    has_previous = is_token & (previous >= 0)
    begins = has_previous & (steps <= 0)
    return begins.long().cumsum(-1), has_previous & ~begins & (steps != indices - previous)


def check_shape(name: str, value: torch.Tensor | None, *shapes: tuple[int, ...]) -> None:
    if value is not None and tuple(value.shape) not in shapes:
        raise ValueError(f"`{name}` must have one entry per token, shape {shapes[0]}, got {tuple(value.shape)}.")


def check_length(length: int, n: int) -> None:
    if length > n:
        raise ValueError(
            f"The sequences have {length} tokens, more than the model's maximum of {n} (`max_position_embeddings`). "
            f"Truncate them, or extend the model with `model.resize_position_embeddings({length})`; a Toeplitz W needs "
            f"no training for that."
        )


def toeplitz_rows(weight: torch.Tensor, count: int) -> torch.Tensor:
    """Return `count` rows of a Toeplitz matrix, [H, L, ...] -> [H, count, L - count + 1, ...]: row i is
    weight[:, count - 1 - i:], cut to the length of the last row. Its operations are fast on any device."""
    length = weight.shape[1]
    padded = F.pad(weight, (0, 0) * (weight.dim() - 2) + (0, 1))
    copies = padded[:, None].expand(-1, count, *padded.shape[1:]).flatten(1, 2)
    # Rows are one weight shorter than the copies, so each row begins one weight earlier than the previous one.
    return copies[:, : count * length].unflatten(1, (count, length))[:, :, count - 1 :]


def grid_matrix(weight: torch.Tensor) -> torch.Tensor:
    """Return the W of a grid of patches with h rows and w columns. The tokens are the patches, row by row, and W is
    Toeplitz in both directions: W[(r, c), (r', c')] = weight[h - 1 + r' - r, w - 1 + c' - c].
    [H, 2h - 1, 2w - 1] -> [H, h w, h w]"""
    heads, height, width = weight.shape[0], (weight.shape[1] + 1) // 2, (weight.shape[2] + 1) // 2
    columns = toeplitz_rows(weight.flatten(0, 1), width).unflatten(0, (heads, -1))  # [H, 2h - 1, w, w]
    return toeplitz_rows(columns, height).transpose(2, 3).flatten(3).flatten(1, 2)


def banded_product(
    weight: torch.Tensor, bias: torch.Tensor, v: torch.Tensor, is_causal: bool, documents: torch.Tensor | None
) -> torch.Tensor:
    """Return W v + b [B, m, E] for a Toeplitz W in O(m k) per channel, given the weight [2k - 1] and the bias [m, 1] or
    [B or 1, m, 1] of one head, v [B, m, E], and the numbers of `documents` [B or 1, m] that do not see one another.
    Blocks have at least k tokens, so that each depends only on itself and its neighbors.

    A CPU multiplies block by block: all blocks, with copies of their neighbors, would not stay in the cache. On a GPU,
    where small products wait for launches, and in exported programs, without loops, one product multiplies all."""
    reach = (weight.shape[0] + 1) // 2
    size = max(reach, BLOCK_SIZE)
    rows = toeplitz_rows(F.pad(weight, (2 * size - reach, 2 * size - reach))[None], size)  # [1, size, 3 size]
    rows = cast_for_autocast(rows[:, :, : 2 * size].tril(size) if is_causal else rows)
    multiply = banded_loop if v.device.type == "cpu" and not is_exporting() else banded_batch
    return multiply(rows, bias, cast_for_autocast(v), documents)


def banded_loop(
    rows: torch.Tensor, bias: torch.Tensor, v: torch.Tensor, documents: torch.Tensor | None
) -> torch.Tensor:
    """Multiply block by block. The rows of W apply to the previous block, to the block itself and, unless W is causal,
    to the next block."""
    size, outputs = rows.shape[1], []
    blocks, parts = v.split(size, 1), rows.split(size, 2)
    numbers = None if documents is None else documents.split(size, 1)

    def weights(i: int, j: int) -> torch.Tensor:  # of block i for the tokens of block j
        w = parts[j - i + 1][:, : blocks[i].shape[1], : blocks[j].shape[1]]
        w = w if numbers is None else hide_other_documents(w, numbers[i], numbers[j])
        return w.expand(len(v), -1, -1)

    # In place, which takes 8 to 14 % less time, unless a checkpointed block may have saved the output.
    add = torch.baddbmm if torch.is_grad_enabled() else torch.Tensor.baddbmm_
    for i, b in enumerate(bias.split(size, -2)):
        output = torch.baddbmm(b, weights(i, i), blocks[i])
        for j in (i - 1, i + 1)[: len(parts) - 1]:
            if 0 <= j < len(blocks):
                output = add(output, weights(i, j), blocks[j])
        outputs.append(output)
    return torch.cat(outputs, dim=1)


def banded_batch(
    rows: torch.Tensor, bias: torch.Tensor, v: torch.Tensor, documents: torch.Tensor | None
) -> torch.Tensor:
    """Multiply all blocks in one product, each beside copies of its neighbors."""
    size, neighbors = rows.shape[1], rows.shape[2] // rows.shape[1]
    length = v.shape[1]
    # `torch.export` would refuse to serve one block too, or to split all blocks, with those around them, at once.
    count: int = torch.sym_max((length + size - 1) // size, 2)  # type: ignore[assignment]

    def windows(x: torch.Tensor) -> torch.Tensor:  # [B, m, ...] -> [B, count, size of rows, ...]
        padded = F.pad(x, (0, 0, size, count * size - length + size))
        starts = range(0, neighbors * size, size)
        return torch.cat([padded[:, i : i + count * size].unflatten(1, (count, size)) for i in starts], dim=2)

    rows = rows[:, None]
    if documents is not None:
        numbers = windows(documents[..., None])[..., 0]
        rows = hide_other_documents(rows, numbers[:, :, size : 2 * size], numbers)
    output = torch.matmul(rows.expand(v.shape[0], count, -1, -1), windows(v)).flatten(1, 2)
    # Index instead of slicing: with a slice, `torch.export` would refuse a length of complete blocks.
    return output.index_select(1, torch.arange(length, device=v.device)) + cast_for_autocast(bias)


def hide_other_documents(w: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Return w [..., m, t] with zeros where the documents of rows [..., m] and columns [..., t] differ."""
    return torch.where(rows[..., None] == columns[..., None, :], w, 0.0)


def is_exporting() -> bool:
    is_compiling = torch.compiler.is_dynamo_compiling() and not STRICT_EXPORT
    return (torch.compiler.is_exporting() and not is_compiling) or torch.jit.is_tracing()


def batched_product(bias: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Return w v + bias [B, m, E] for w [B, m, t] and v [B, t, E]. `w @ v` would first copy v, to fold the batch into
    one product."""
    if torch.compiler.is_compiling():
        # The compiler fuses an addition with the gating, while `baddbmm` would copy the bias for every channel.
        return torch.bmm(w, v) + cast_for_autocast(bias)
    return torch.baddbmm(bias, w, v)


def cast_for_autocast(matrix: torch.Tensor) -> torch.Tensor:
    """Cast a matrix as autocast would, but before it is expanded: autocast would copy it for every row of the batch."""
    device = matrix.device.type
    if not matrix.is_meta and torch.is_autocast_enabled(device):
        return matrix.to(torch.get_autocast_dtype(device))
    return matrix


class SpatialProjection(nn.Module):
    """f(v) = W v + b along the token axis (Equation 2), for up to n tokens.

    `weight` is [n, n] if W is dense. If W is Toeplitz, it is [2k - 1] with W[i, j] = weight[k - 1 + j - i], or zero
    beyond, or [2h - 1, 2w - 1] over a grid of h * w = n patches. `bias` is [n]. With several heads, both have a first
    axis of H. The class is not an `nn.Linear`, so that LoRA on "all-linear" and quantizers skip it.
    """

    def __init__(
        self, length: int, toeplitz: bool, heads: int = 1, grid: tuple[int, int] | None = None, reach: int | None = None
    ) -> None:
        super().__init__()
        self.toeplitz, self.heads, self.grid = toeplitz, heads, grid
        # n, and k or else n. Parameters that are spread over devices have other shapes outside of the forward pass.
        self.length, self.reach = length, reach or length
        weight_shape, bias_shape = self.shapes
        self.weight, self.bias = nn.Parameter(torch.zeros(weight_shape)), nn.Parameter(torch.ones(bias_shape))

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The shapes of weight and bias."""
        shape = (2 * self.reach - 1,) if self.toeplitz else (self.length, self.length)
        if self.grid is not None:
            shape = (2 * self.grid[0] - 1, 2 * self.grid[1] - 1)
        axis = () if self.heads == 1 else (self.heads,)
        return (*axis, *shape), (*axis, self.length)

    def matrix(self, length: int | None = None, is_causal: bool = False) -> torch.Tensor:
        """Return W[:length, :length], by default all of W, with zeros above the diagonal if `is_causal`:
        [H, length, length]"""
        length, n = self.length if length is None else length, self.length
        weight = self.weight if self.heads > 1 else self.weight[None]
        if self.grid is not None:
            return grid_matrix(weight)
        if self.toeplitz:
            # A packed row may be longer than n, which an exported model gathers. One more zero than needed lets
            # `torch.export` serve a length for which a slice would be the complete weight.
            n = n if is_exporting() else max(n, length)
            weight = F.pad(weight, (n - self.reach, n - self.reach + 1))
            rows = toeplitz_rows(weight[:, n - length : n + length - 1], length)
        else:
            # Index instead of slicing: with a slice, `torch.export` would refuse the length n.
            indices = torch.arange(length, device=weight.device)
            rows = weight.index_select(1, indices).index_select(2, indices)
        return rows.tril() if is_causal else rows

    def forward(self, v: torch.Tensor, positions: Positions | None = None) -> torch.Tensor:
        """Return W v + b [B, m, E] for v [B, t, E], which must be zero at padding. Head h applies to the h-th of H
        equal parts of the channels. `positions` select the entries of W and b; by default, the leading ones."""
        positions = Positions() if positions is None else positions
        is_gathered, documents, length = positions.columns is not None, positions.documents, v.shape[1]
        if positions.rows is None:
            check_length(length, self.length)
        weight, bias = self.weight.view(self.heads, -1), self.bias.view(self.heads, -1)
        # Pad by one for `torch.export`, as in `matrix`.
        bias = F.pad(bias, (0, 1))[:, :length] if positions.rows is None else bias[:, positions.rows]
        has_offsets = self.toeplitz and self.grid is None and not is_gathered
        if self.heads == v.shape[2] > 1:
            # In half precision, the convolution of oneDNN may never return on a CPU.
            is_half = v.device.type == "cpu" and cast_for_autocast(v).dtype == torch.float16
            if has_offsets and (documents is None or positions.document_count) and not is_half:
                return self.convolve(v, positions) + cast_for_autocast(bias).movedim(0, -1)
            if is_gathered:
                # One product for all heads, each of which has one channel.
                output = torch.einsum("hbij,bjh->bih", self.gather(positions), v)
                return output + cast_for_autocast(bias).movedim(0, -1)
        # An exported model serves every length, so it must not branch on one.
        is_banded = has_offsets and (self.length if is_exporting() else length) > 4 * max(self.reach, BLOCK_SIZE)
        if is_banded:
            matrices = weight
        elif is_gathered:
            matrices = self.gather(positions)  # [H, B or 1, m, t]
        else:
            matrices = self.matrix(length, positions.is_causal)[:, None]  # [H, 1, m, m]
        outputs = []
        for w, b, part in zip(matrices, bias[..., None], v.unflatten(2, (self.heads, -1)).unbind(2)):
            if is_banded:
                outputs.append(banded_product(w, b, part, positions.is_causal, documents))
                continue
            w = cast_for_autocast(w)
            if documents is not None and not is_gathered:
                w = hide_other_documents(w, documents, documents)
            outputs.append(batched_product(b, w.expand(v.shape[0], -1, -1), part))
        return outputs[0] if self.heads == 1 else torch.cat(outputs, dim=2)

    def gather(self, positions: Positions) -> torch.Tensor:
        """Return W[p_i, p_j], or zero for tokens that do not see each other: [H, B or 1, m, t]"""
        weight = self.weight if self.heads > 1 else self.weight[None]
        rows, columns = positions.rows[..., :, None], positions.columns[..., None, :]  # type: ignore[index]
        if self.toeplitz:
            # Positions beyond the reach, in either direction, and those that are later in a causal model, read a zero.
            last = 1 if positions.is_causal else self.reach
            offsets = (columns - rows).clamp(-self.reach, last)
            w = F.pad(weight[:, : self.reach + last - 1], (1, 1))[:, offsets + self.reach]
        else:
            # Padding before the first token and the unused end of a static cache, which are hidden, have no column.
            w = weight[:, rows, columns.clamp(0, self.length - 1)]
            w = torch.where(columns <= rows, w, 0.0) if positions.is_causal else w
        return w if positions.documents is None else hide_other_documents(w, positions.documents, positions.documents)

    def convolve(self, v: torch.Tensor, positions: Positions) -> torch.Tensor:
        """Return W v [B, m, E] for a Toeplitz W with one channel per head, as a convolution of each channel. Zeros
        between packed documents, as many as W reaches, keep these apart."""
        gap, indices = self.reach - 1, torch.arange(v.shape[1], device=v.device)
        if positions.documents is not None:
            gap = min(gap, positions.document_length - 1)
            indices = (indices + gap * positions.documents)[..., None].expand_as(v)
            spread = v.new_zeros(v.shape[0], v.shape[1] + gap * (positions.document_count - 1), v.shape[2])
            v = spread.scatter(1, indices, v)
        after = 0 if positions.is_causal else gap
        kernel = self.weight[:, None, self.reach - 1 - gap : self.reach + after]
        output = F.conv1d(F.pad(v.transpose(1, 2), (gap, after)), kernel, groups=self.heads).transpose(1, 2)
        return output if positions.documents is None else output.gather(1, indices)

    def set_parameters(self, weight: torch.Tensor, bias: torch.Tensor) -> None:
        self.length = bias.shape[-1]
        self.reach = (weight.shape[-1] + 1) // 2 if self.toeplitz and self.grid is None else self.length
        self.weight = nn.Parameter(weight, requires_grad=self.weight.requires_grad)
        self.bias = nn.Parameter(bias, requires_grad=self.bias.requires_grad)

    @torch.no_grad()
    def resize(self, length: int, reach: int | None = None) -> None:
        """Change n, and k of a Toeplitz W, in place. By default, k stays the same, but is at most n.
        Remaining weights and biases keep their values; new weights are zero and new biases one."""
        growth = length - self.length
        if self.toeplitz:
            reach_growth = min(self.reach if reach is None else reach, length) - self.reach
        # Negative padding crops.
        weight = F.pad(self.weight, (reach_growth,) * 2 if self.toeplitz else (0, growth, 0, growth))
        self.set_parameters(weight, F.pad(self.bias, (0, growth), value=1.0))

    @torch.no_grad()
    def resize_grid(self, old_grid: tuple[int, int], new_grid: tuple[int, int], num_prefix_tokens: int) -> None:
        """Change the grid of patches in place, as `resize_image_size` says. With a Toeplitz W, new patches copy the b
        of the nearest one. Prefix tokens ([CLS]) stay. The columns of a dense W, over which it sums, are scaled by the
        ratio of the patch counts: an image with more, finer patches gets the same gate."""
        if old_grid == new_grid:
            return
        if self.grid is not None:
            self.grid = new_grid
            rows, columns = (new - old for old, new in zip(old_grid, new_grid))  # numbers to add
            bias = F.pad(self.bias.view(1, -1, *old_grid), (0, columns, 0, rows), mode="replicate")
            weight = F.pad(self.weight, (columns, columns, rows, rows))
            self.set_parameters(weight, bias.reshape(*self.bias.shape[:-1], -1))
            return

        def interpolate(values: torch.Tensor) -> torch.Tensor:  # [..., prefix + old patches] -> [..., prefix + new]
            prefix, patches = values[..., :num_prefix_tokens], values[..., num_prefix_tokens:]
            patches = patches.reshape(-1, 1, *old_grid).float()
            patches = F.interpolate(patches, size=new_grid, mode="bicubic", antialias=True)
            return torch.cat([prefix, patches.view(*prefix.shape[:-1], -1).to(prefix.dtype)], dim=-1)

        weight = interpolate(self.weight)
        weight[..., num_prefix_tokens:] *= (old_grid[0] * old_grid[1]) / (new_grid[0] * new_grid[1])
        self.set_parameters(interpolate(weight.mT).mT.contiguous(), interpolate(self.bias))

    def extra_repr(self) -> str:
        return f"n={self.length}, k={self.reach}, toeplitz={self.toeplitz}, heads={self.heads}, grid={self.grid}"


class SpatialGatingUnit(nn.Module):
    """s(Z) = Z1 * f(Z2), or another gating of Table 3; f is the spatial projection of its normalized input."""

    def __init__(self, config: GMLPBaseConfig) -> None:
        super().__init__()
        self.config = config
        self.norm = nn.LayerNorm(config.spatial_size, eps=config.spatial_layer_norm_eps)
        # Only image configs have a grid, and only text configs a reach.
        grid, reach = getattr(config, "grid_size", None), getattr(config, "spatial_reach", None)
        grid = grid if config.toeplitz else None
        n, heads = config.max_position_embeddings, config.spatial_heads
        self.proj = SpatialProjection(n, config.toeplitz, heads, grid, reach)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_output: torch.Tensor | None = None,
        positions: Positions | None = None,
        past_key_values: Cache | None = None,
        layer_idx: int = 0,
    ) -> torch.Tensor:
        """Return s(Z) [B, m, E] for Z [B, m, F]. The tiny attention of an aMLP, [B, m, E], is added to f (Figure 6).
        By default, `positions` are those of rows without padding. A cache is updated: its layer `layer_idx` holds v."""
        positions = Positions(self.config.is_causal) if positions is None else positions
        u = v = hidden_states
        if self.config.spatial_size < self.config.intermediate_size:
            u, v = hidden_states.chunk(2, -1)
        v = self.norm(v)
        if positions.padding is not None:
            # Mask after the norm, whose bias would otherwise leak from padding into every token.
            v = v.masked_fill(positions.padding[..., None], 0.0)
        if past_key_values is not None:
            # A cache has keys and values: v takes the place of keys, and values have width 0.
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
    """Return attention [B, m, 1, A] and its weights [B, 1, m, t], for a query [B, 1, m, A] and an additive mask."""
    scores = torch.matmul(query, key.transpose(2, 3)) * scaling
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = F.softmax(scores, dim=-1, dtype=torch.promote_types(value.dtype, torch.float32)).to(value.dtype)
    weights = F.dropout(weights, p=dropout, training=module.training)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


class GMLPTinyAttention(nn.Module):
    """The single-head attention of an aMLP (Figure 6), of width A = config.attention_size."""

    def __init__(self, config: GMLPBaseConfig) -> None:
        super().__init__()
        self.config = config
        self.scaling = config.attention_size**-0.5
        self.qkv_proj = nn.Linear(config.hidden_size, 3 * config.attention_size)
        self.out_proj = nn.Linear(config.attention_size, config.spatial_size)

    @property
    def is_causal(self) -> bool:  # sdpa reads it when it gets no mask
        return self.config.is_causal

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        layer_idx: int = 0,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Compute attention on LN(x) [B, m, D], with a mask in the format of its implementation and a cache whose layer
        `layer_idx` is updated. Returns the output [B, m, E] and, in some implementations, the weights [B, 1, m, t]."""
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
    """x + W_out s(gelu(W_in LN(x))) (Equation 1, Figure 1). In an aMLP, tiny attention is added to f (Figure 6)."""

    def __init__(self, config: GMLPBaseConfig, drop_path_rate: float = 0.0) -> None:
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
        """Apply the block to x [B, m, D]. By default, `positions` are those of rows without padding. `attention_mask`
        is for tiny attention. A cache is updated: `layer_idx` is its first layer for this block."""
        x = self.norm(hidden_states)
        z = self.activation_dropout(self.activation(self.proj_in(x)))  # [B, m, F]
        attention_output = None
        if self.attention is not None:
            attention_output = self.attention(x, attention_mask, past_key_values, layer_idx, **kwargs)[0]
            layer_idx += 1
        branch = self.proj_out(self.spatial_gating_unit(z, attention_output, positions, past_key_values, layer_idx))
        branch = self.dropout(branch)
        if self.training and self.drop_path_rate > 0:
            # Stochastic depth (the paper's [32]): drop the branch of a row, or else scale it up.
            keep_rate = 1.0 - self.drop_path_rate
            branch = branch * branch.new_empty(branch.shape[0], 1, 1).bernoulli_(keep_rate) / keep_rate
        return hidden_states + branch


def build_layers(config: GMLPBaseConfig) -> nn.ModuleList:
    """Return L blocks, of which block l = 1, ..., L is dropped in training with probability l / L * drop_path_rate."""
    depth = config.num_hidden_layers
    return nn.ModuleList(GMLPBlock(config, config.drop_path_rate * (i + 1) / depth) for i in range(depth))


class GMLPPooler(nn.Sequential):
    """A dense layer and tanh, as in BERT's pooler and ViT's pre-logits. [B, D] -> [B, D]"""

    def __init__(self, config: GMLPBaseConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = nn.Tanh()


def pool_tokens(
    hidden_states: torch.Tensor, padding_mask: torch.Tensor | None, pooling: str, is_causal: bool = False
) -> torch.Tensor:
    """Pool the tokens of each sequence, [B, m, D] -> [B, D]: "mean", "max", or "cls", the first token, or the last if
    `is_causal`. Padding, where `padding_mask` [B, m] is 0, is ignored; a row of it gives zeros, or any token."""
    if padding_mask is None:
        padding_mask = hidden_states.new_ones(hidden_states.shape[:2])
    is_token = padding_mask.to(hidden_states.device) != 0
    if pooling == "cls":
        rows, columns = (torch.arange(size, device=hidden_states.device) for size in is_token.shape)
        columns = torch.where(is_token, columns, 0).amax(-1) if is_causal else is_token.long().argmax(-1)
        return hidden_states[rows, columns]
    padding = ~is_token[..., None]
    if pooling == "mean":
        # In half precision, the sum could overflow.
        dtype = torch.promote_types(hidden_states.dtype, torch.float32)
        total = hidden_states.masked_fill(padding, 0).sum(1, dtype=dtype)
        return (total / is_token.sum(1, keepdim=True).clamp(min=1)).to(hidden_states.dtype)
    maximum = hidden_states.masked_fill(padding, torch.finfo(hidden_states.dtype).min).amax(1)
    return maximum.masked_fill(padding.all(1), 0)


# ---------------------------------------------------------------------------------------------------------------------
# The text model


class GMLPPreTrainedModel(PreTrainedModel):
    """The base class of all models in this file: initialization and resizing."""

    config: GMLPConfig
    base_model_prefix = "model"
    input_modalities = ("text",)
    supports_gradient_checkpointing = True
    _input_embed_layer = "word_embeddings"
    _no_split_modules = ["GMLPBlock"]
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _can_compile_fullgraph = True
    _can_record_outputs = {"hidden_states": GMLPBlock, "attentions": GMLPTinyAttention}
    # Whether a forward pass waits for the values of its inputs to check them. Else, the device asserts the same.
    reads_values = True

    def can_read(self, tensor: torch.Tensor) -> bool:
        """Return whether a forward pass may read the values of its inputs, which a traced model cannot."""
        return self.reads_values and not tensor.is_meta and not is_tracing(tensor)

    def require(self, holds: torch.Tensor, message: str) -> None:
        """Raise a ValueError if a condition does not hold, or let the device assert it."""
        if holds.device.type == "xla":
            return  # it would be computed on the CPU in every step
        if not self.can_read(holds):
            torch._assert_async(holds, message)
        elif not holds:
            raise ValueError(message)

    def one_answer(self, outputs: "GMLPModelOutput", output: torch.Tensor | None) -> torch.Tensor:
        """Return an output from which a head makes one answer per row, or raise a ValueError if rows are packed."""
        message = "This head gives one answer per row: put each document in its own row, and pass no cache."
        if output is None:
            raise ValueError(message)
        if outputs.documents is not None:
            self.require((outputs.documents == 0).all(), message)
        return output

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, SpatialProjection):
            init.normal_(module.weight, std=self.config.spatial_initializer_range)
            init.ones_(module.bias)
        elif isinstance(module, nn.Conv2d) and module.bias is None:
            # Scale a convolutional stem by its fan-in: smaller weights would change too much in each step of Adam.
            init.kaiming_normal_(module.weight)
        elif isinstance(module, GMLPPatchEmbeddings) and module.cls_token is not None:
            init.normal_(module.cls_token, std=self.config.initializer_range)

    def get_output_embeddings(self) -> nn.Module | None:
        return getattr(self, "decoder", None)

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        self.decoder = new_embeddings

    def spatial_projections(self) -> list[SpatialProjection]:
        """Return the W and b of every block, from the first to the last."""
        return [module for module in self.modules() if isinstance(module, SpatialProjection)]

    def spatial_sizes(self) -> tuple[int, int, bool]:
        """Return n, k and whether W is Toeplitz, from the first block, or if W was replaced, from the config."""
        for module in self.base_model.layers[0].modules():
            if isinstance(module, SpatialProjection):
                return module.length, module.reach, module.toeplitz
        n = self.config.max_position_embeddings
        return n, self.config.spatial_reach or n, self.config.toeplitz

    def resizable_projections(self) -> list[SpatialProjection]:
        """Return all W and b, or raise a ValueError if adapters, hooks or other devices would keep the old size."""
        projections = self.spatial_projections()
        own = {id(x): x for projection in projections for x in (projection.weight, projection.bias)}
        units = [module.proj for module in self.modules() if isinstance(module, SpatialGatingUnit)]
        is_adapted = any(id(x) not in own for unit in units for x in (*unit.parameters(), *unit.buffers()))
        is_adapted |= any(type(x) is not nn.Parameter for x in own.values())
        is_sharded = any((x.weight.shape, x.bias.shape) != x.shapes for x in projections)
        has_hooks = any(hasattr(module, "_hf_hook") for module in self.modules())
        if is_adapted or is_sharded or (has_hooks and any(x.is_meta for x in own.values())):
            raise ValueError(
                "Cannot resize W, since it is offloaded, sharded or adapted. Load the model on one device, resize it "
                "and save it; then offload, shard or adapt it."
            )
        return projections

    def write_sizes(self) -> None:
        """Write the sizes of W to the config, which may have been edited."""
        config, (n, reach, toeplitz) = self.config, self.spatial_sizes()
        config.max_position_embeddings, config.toeplitz = n, toeplitz
        config.spatial_reach = reach if reach < n or (toeplitz and config.spatial_reach == n) else None

    def save_pretrained(self, *args, **kwargs) -> None:
        self.write_sizes()
        super().save_pretrained(*args, **kwargs)

    def get_position_embeddings(self) -> tuple[nn.Parameter, ...]:
        """Return the W of every block, which replaces position embeddings."""
        return tuple(projection.weight for projection in self.spatial_projections())

    def resize_position_embeddings(
        self, new_num_position_embeddings: int, new_spatial_reach: int | None = None
    ) -> None:
        """Change n, the maximum number of tokens, in place, and k of a Toeplitz W, which stays the same by default.
        Create the optimizer and add adapters, offloading and wrappers for several devices afterwards, not before.

        Outputs for sequences up to the old n stay the same. A Toeplitz W keeps its weights, those of added offsets are
        zero, and new entries of b one: longer sequences need no training. A dense W must be trained for them. Raises a
        TypeError or ValueError, and changes nothing, for impossible numbers or if W cannot be resized."""
        length, projections = as_count(new_num_position_embeddings), self.resizable_projections()
        reach = None if new_spatial_reach is None else as_count(new_spatial_reach)
        toeplitz = all(projection.toeplitz for projection in projections)
        if length < 1 or not (reach is None or (toeplitz and 1 <= reach <= length)):
            raise ValueError(
                f"n must be at least 1, and k from 1 to n if W is Toeplitz; a dense W has no k. Got n = {length} and "
                f"k = {reach} with `toeplitz={toeplitz}`."
            )
        for projection in projections:
            projection.resize(length, reach)
        self.write_sizes()


def as_count(value: int) -> int:
    """Return an integer of any library. Raise a TypeError for another value, such as `True`."""
    if isinstance(value, bool):
        raise TypeError(f"A number of positions or pixels must be an integer, got {value}.")
    return operator.index(value)


@dataclass
class GMLPModelOutput(modeling_outputs.BaseModelOutputWithPoolingAndCrossAttentions):
    """The outputs of `GMLPModel`, with the documents [B or 1, m] of packed rows, in traced models of `position_ids`."""

    documents: torch.Tensor | None = None


class GMLPModel(GMLPPreTrainedModel):
    """The text model: embeddings, blocks, a final LayerNorm, and BERT's pooler unless `add_pooling_layer=False`."""

    _auto_class = "AutoModel"

    def __init__(self, config: GMLPConfig, add_pooling_layer: bool = True) -> None:
        super().__init__(config)
        self.embeddings = GMLPEmbeddings(config)
        self.layers = build_layers(config)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.pooler = GMLPPooler(config) if add_pooling_layer else None
        self.post_init()

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
    ) -> GMLPModelOutput:
        r"""Encode sequences of tokens.

        Args:
            input_ids, inputs_embeds: [B, m] or [B, m, D], one of the two. A row of several documents, described by
                `position_ids`, may be longer than n.
            attention_mask: [B, m], 1 for tokens and 0 for padding, on either side; [B, t] with a cache.
            token_type_ids: [B or 1, m], the segment of each token; 0 by default.
            position_ids: [B or 1, m], the row and column of W for each token, from 0 to n - 1. By default, tokens are
                counted from the first one that is not padding. A document begins where the positions do not increase;
                documents do not see one another. In a compiled model with a Toeplitz W, positions must increase by one
                inside each document, as the device asserts.
            past_key_values, use_cache: A causal model's cache of earlier tokens, and whether to create one.

        Returns:
            `last_hidden_state` [B, m, D], `pooler_output` [B, D], the cache, and the `documents` of packed rows.
            `pooler_output` is `None` for "mean" and "max" with a cache, and for packed rows: NaN in traced models.

        Raises:
            ValueError: If an input has a wrong shape or too many tokens, or if the model cannot use the cache.
        """
        inputs = check_inputs(input_ids, inputs_embeds)
        has_attention = getattr(self.layers[0], "attention", None) is not None
        names = [name for name in PACKING if kwargs.pop(name, None) is not None]
        if names and position_ids is None:
            raise ValueError(f"`{names[0]}` cannot describe packed rows: pass `position_ids`.")
        past_key_values = kwargs.pop(CACHE, past_key_values)
        if past_key_values is None and use_cache and self.config.is_causal and not self.training:
            past_key_values = DynamicCache()
        if past_key_values is not None:
            check_cache(past_key_values, self.config, self.layers, has_attention)
        positions = self.find_positions(inputs, attention_mask, position_ids, past_key_values)
        hidden_states = self.embeddings(input_ids, token_type_ids, inputs_embeds)
        mask = self.create_attention_mask(hidden_states, positions, past_key_values) if has_attention else None
        kwargs["past_key_values"], caches = past_key_values, 2 if has_attention else 1
        for i, layer in enumerate(self.layers[: self.config.num_hidden_layers]):
            hidden_states = layer(hidden_states, positions, mask, layer_idx=caches * i, **kwargs)
        hidden_states, pooled = self.norm(hidden_states), None
        # With a cache, only the new tokens are here: enough for the last one, but not for a mean or maximum.
        can_pool = positions.document_count < 2 and (past_key_values is None or self.config.pooling == "cls")
        if self.pooler is not None and can_pool:
            if past_key_values is not None:
                attention_mask = None if positions.padding is None else ~positions.padding
            pooled = self.pooler(pool_tokens(hidden_states, attention_mask, self.config.pooling, self.config.is_causal))
            if positions.documents is not None:
                is_packed = (positions.documents != 0).any(-1, keepdim=True)
                pooled = pooled.masked_fill(is_packed.to(pooled.device), torch.nan)
        return GMLPModelOutput(hidden_states, pooled, **{CACHE: past_key_values}, documents=positions.documents)

    def find_positions(
        self,
        inputs: torch.Tensor,  # [B, m, ...], the new tokens
        attention_mask: torch.Tensor | None,  # [B, t], 0 for padding
        position_ids: torch.Tensor | None,  # [B or 1, m]
        past_key_values: Cache | None,
    ) -> Positions:
        """Return the positions of new tokens: `position_ids`, or else counted from the first token in each row that is
        not padding. Raise a ValueError for a wrong shape or position, or for more than n tokens."""
        batch, m = inputs.shape[:2]
        start, length, is_static, can_read = 0, m, False, self.can_read(inputs)
        if past_key_values is not None:
            is_static = past_key_values.is_compileable
            start = past_key_values.get_seq_length() + 0  # a copy: a static cache increases this tensor in place
            length = past_key_values.get_max_length() if is_static else start + m
        if is_static and attention_mask is not None and attention_mask.shape[1] < length:
            width = int(start) + m if can_read else attention_mask.shape[1]
            check_shape("attention_mask", attention_mask, (batch, width))
            attention_mask = F.pad(attention_mask, (0, length - attention_mask.shape[1]))
        check_shape("attention_mask", attention_mask, (batch, length))
        check_shape("position_ids", position_ids, (batch, m), (1, m))
        is_token = None if attention_mask is None else attention_mask != 0  # [B, t]
        if position_ids is not None and past_key_values is None:
            return self.find_documents(position_ids, is_token)
        n, _, toeplitz = self.spatial_sizes()
        indices = torch.arange(length, device=inputs.device)  # of all tokens
        new_indices = torch.arange(m, device=inputs.device) + start
        first_token = 0 if is_token is None else is_token.long().argmax(-1, keepdim=True)  # [B, 1]
        if position_ids is not None:
            differs = position_ids != new_indices - first_token
            self.require(
                ~(differs if is_token is None else differs & is_token.index_select(1, new_indices)).any(),
                "With a cache, `position_ids` must count the tokens of a row: omit them, or pass `use_cache=False`.",
            )
        # A static cache may be longer than n.
        check_length(int(start) + m if is_static and can_read else m if is_static else length, n)
        is_token = is_token if self.config.mask_padding or self.config.is_causal else None
        has_offsets = not is_static and start == 0
        if is_token is None and has_offsets:
            return Positions(self.config.is_causal)
        places = (indices if is_token is None else indices - first_token).view(-1, length)
        rows = places.index_select(1, new_indices).clamp(min=0)
        padding = None if is_token is None else ~is_token.index_select(1, new_indices)
        if past_key_values is not None and is_token is not None:
            # v is zero at padding, but a mask may also hide tokens that are in the cache: as if they were later.
            places = places.masked_fill(~is_token, 2**31)
        columns = None if has_offsets and toeplitz else places
        return Positions(self.config.is_causal, rows, columns, padding, is_token)

    def find_documents(self, position_ids: torch.Tensor, is_token: torch.Tensor | None) -> Positions:
        """Return the positions of tokens without a cache: `position_ids` [B or 1, m]. W is gathered if it is dense, or
        if positions inside a document differ otherwise than indices do. A compiled model cannot read that: it asserts
        that they do not. An exported one always gathers, since most runtimes leave out assertions."""
        (n, _, toeplitz), is_causal = self.spatial_sizes(), self.config.is_causal
        documents, has_gap = number_documents(position_ids, is_token)
        if is_token is not None and not (self.config.mask_padding or is_causal):
            # Rows with several documents always hide padding.
            is_token = is_token | (documents == 0).all(-1, keepdim=True)
            others, has_gap = number_documents(position_ids, is_token)
            has_gap = has_gap | (others != documents).any()
        rows = position_ids if is_token is None else position_ids.where(is_token, 0)
        is_gathered, count, longest = not toeplitz or is_exporting(), 0, 0
        message = f"`position_ids` must be from 0 to {n - 1}, since the model has {n} positions"
        if self.can_read(position_ids):
            # Read all values at once, since that waits for the device.
            values = (rows.amin(), rows.amax(), documents.amax(), has_gap.any())
            lowest, highest, last, any_gap = torch.stack([x.long() for x in values]).tolist()
            if lowest < 0 or highest >= n:
                raise ValueError(f"{message}, got values from {lowest} to {highest}.")
            is_gathered, count, longest = bool(is_gathered or any_gap), last + 1, highest - lowest + 1
        else:
            self.require(((rows >= 0) & (rows < n)).all(), message)
            steps = "In a compiled model with a Toeplitz W, the `position_ids` of a document must increase by one"
            self.require(~has_gap.any() | is_gathered, f"{steps} from token to token: run it without `torch.compile`.")
        padding, columns = None if is_token is None else ~is_token, rows if is_gathered else None
        packed = None if count == 1 else documents
        return Positions(is_causal, rows, columns, padding, is_token, packed, count, longest)

    def create_attention_mask(
        self, hidden_states: torch.Tensor, positions: Positions, past_key_values: Cache | None
    ) -> torch.Tensor | None:
        """Return the mask of tiny attention in the format of its implementation. It hides what W hides."""
        documents, same_document = positions.documents, None
        if documents is not None:
            if "flash" in self.config._attn_implementation:
                raise ValueError("Flash attention ignores documents: omit `position_ids`, or use sdpa.")
            documents = documents.expand(hidden_states.shape[:2])

            def same_document(batch, head, query, key) -> torch.Tensor:
                return documents[batch, query] == documents[batch, key]

        return create_causal_mask(
            config=self.config,
            inputs_embeds=hidden_states,
            attention_mask=positions.visible,
            and_mask_function=same_document,
            # To skip a mask that hides nothing, transformers would read its values.
            allow_is_causal_skip=positions.visible is None,
            **{CACHE: past_key_values},
        )


def check_inputs(input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None) -> torch.Tensor:
    """Return the argument that is not `None`. Raise a ValueError if there are two or none, or if it has no tokens."""
    inputs = input_ids if inputs_embeds is None else inputs_embeds
    if inputs is None or (input_ids is not None and inputs_embeds is not None):
        raise ValueError("Pass either `input_ids` or `inputs_embeds`, not both.")
    if inputs.dim() < 2 or 0 in inputs.shape[:2]:
        raise ValueError(f"Inputs must be [batch, tokens] with at least one token, got {tuple(inputs.shape)}.")
    return inputs


def check_cache(past_key_values: Cache, config: GMLPConfig, blocks: nn.ModuleList, has_attention: bool) -> None:
    """Add missing layers to a cache, one for tiny attention and one for v, or raise a ValueError if it is unusable."""
    if not config.is_causal:
        raise ValueError(
            "`past_key_values` needs a causal model (`config.is_causal`): in this model, a new token changes the "
            "outputs of all earlier ones. Instead of prefix tuning, use prompt tuning or LoRA."
        )
    layers, layers_per_block = past_key_values.layers, 2 if has_attention else 1
    num_missing = layers_per_block * min(len(blocks), config.num_hidden_layers) - len(layers)
    is_known = all(type(layer) in (DynamicLayer, StaticLayer) for layer in layers)
    is_filled = any(layer.is_initialized for layer in layers)
    if not is_known or (is_filled and (num_missing > 0 or layers[layers_per_block - 1].values.numel())):
        raise ValueError(
            f"This {type(past_key_values).__name__} is no dynamic, static or offloaded cache that holds v of a gMLP: "
            f"let `generate` create the cache. Instead of prefix tuning, use prompt tuning or LoRA."
        )
    is_static = past_key_values.is_compileable
    for _ in range(num_missing):
        layers.append(StaticLayer(past_key_values.get_max_length()) if is_static else DynamicLayer())


# ---------------------------------------------------------------------------------------------------------------------
# Losses, in at least single precision. Those of transformers cast float64 to float32, and for values and several labels
# ignore `num_items_in_batch`: they would be N times too large when Trainer accumulates the gradients of N batches.


def single_precision(logits: torch.Tensor) -> torch.Tensor:
    """Cast logits to single precision, unless they have a higher one."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def class_loss(logits: torch.Tensor, labels: torch.Tensor, **kwargs) -> torch.Tensor:
    """Return the cross-entropy of logits [..., classes] and labels [...], summed over labels other than -100, and
    divided by their number or by `num_items_in_batch`."""
    return fixed_cross_entropy(single_precision(logits.flatten(0, -2)), labels.to(logits.device).flatten(), **kwargs)


def next_token_loss(logits: torch.Tensor, labels: torch.Tensor, **kwargs) -> torch.Tensor:
    """Return the `class_loss` of logits [B, m, V] for the next token: the labels shifted by one, or `shift_labels`."""
    targets = kwargs.pop("shift_labels", None)
    if targets is None:
        targets = F.pad(labels, (0, 1), value=kwargs.get("ignore_index", -100))[..., 1:]
    return class_loss(logits, targets, **kwargs)


def classification_loss(
    labels: torch.Tensor, logits: torch.Tensor, config: GMLPBaseConfig, num_items_in_batch=None, **kwargs
) -> torch.Tensor:
    """Return the loss of `config.problem_type`, which is set from the labels if it is `None`. Labels are [B] classes or
    values, or [B, num_labels] for several labels per sample or probabilities, for logits [B, num_labels]."""
    if config.problem_type is None:
        problem_type = "multi_label_classification" if labels.is_floating_point() else "single_label_classification"
        config.problem_type = "regression" if config.num_labels == 1 else problem_type
    if config.problem_type == "single_label_classification" and not labels.is_floating_point():
        return class_loss(logits, labels, num_items_in_batch=num_items_in_batch)
    logits = single_precision(logits)
    logits = logits.squeeze(1) if logits.shape[1] == labels.dim() == 1 else logits
    if labels.shape != logits.shape:
        raise ValueError(
            f'With `problem_type="{config.problem_type}"`, labels of shape {tuple(labels.shape)} do not fit logits of '
            f"shape {tuple(logits.shape)}."
        )
    losses: dict[str, Callable] = {"regression": F.mse_loss, "single_label_classification": F.cross_entropy}
    loss = losses.get(config.problem_type, F.binary_cross_entropy_with_logits)(logits, labels.to(logits))
    return loss if num_items_in_batch is None else loss * labels.numel() / num_items_in_batch


# ---------------------------------------------------------------------------------------------------------------------
# The heads of text models. They accept the inputs of the base model, and return `loss` if there are labels.


class GMLPPredictionHead(nn.Sequential):
    """BERT's transform before the masked-language-model decoder: dense, activation, norm. [..., D] -> [..., D]"""

    def __init__(self, config: GMLPConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = ACT2FN[config.hidden_act]
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)


class GMLPForMaskedLM(GMLPPreTrainedModel):
    """gMLP with a masked-language-model head, whose decoder is tied to the embeddings (paper, section 4)."""

    _auto_class = "AutoModelForMaskedLM"
    loss_function = staticmethod(class_loss)
    _tied_weights_keys = {"decoder.weight": "model.embeddings.word_embeddings.weight"}
    _tp_plan = {"decoder": "colwise_gather_output"}
    _fsdp_plan = {"decoder": "keep_full_weight"}

    def __init__(self, config: GMLPConfig) -> None:
        super().__init__(config)
        self.model = GMLPModel(config, add_pooling_layer=False)
        self.head = GMLPPredictionHead(config) if config.mlm_transform else nn.Identity()
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)
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
        r"""Predict masked tokens from the inputs of `GMLPModel`. `labels` [B, m] are the tokens to predict, and -100
        elsewhere. Returns `loss` and `logits` [B, m, V], or [labels, V] in training with `sparse_prediction`.

        `masked_positions` [B, count] are the indices of the tokens to compute logits for: all those with labels, filled
        up to a fixed count with others. Then `logits` are [B, count, V], and `labels` may be those of these tokens
        only, [B, count]. All tokens must be in order. Compiled models need them for `sparse_prediction`."""
        inputs = (input_ids, attention_mask, token_type_ids, inputs_embeds, position_ids)
        outputs = self.model(*inputs, return_dict=True, **kwargs)
        hidden_states = outputs.last_hidden_state
        if masked_positions is not None:
            m, count = hidden_states.shape[1], masked_positions.shape[1]
            if labels is not None and m == count:
                # Otherwise, the labels could be in the order of the tokens or in that of `masked_positions`.
                in_order = (masked_positions == torch.arange(m, device=masked_positions.device)).all()
                self.require(in_order, "`masked_positions` of all tokens must be in order: sort them.")
            elif labels is not None and labels.shape[1] == m:
                labels = labels.gather(1, masked_positions)
            hidden_states = hidden_states.take_along_dim(masked_positions.to(hidden_states.device)[..., None], 1)
        elif labels is not None and self.config.sparse_prediction and self.training:
            # In a compiled model, the number of labels would be a dynamic shape.
            if self.can_read(labels):
                is_labeled = labels != -100
                hidden_states, labels = hidden_states[is_labeled.to(hidden_states.device)], labels[is_labeled]
        logits = self.decoder(self.head(hidden_states))
        loss = None if labels is None else self.loss_function(logits=logits, labels=labels, **kwargs)
        return modeling_outputs.MaskedLMOutput(loss, logits, outputs.hidden_states, outputs.attentions)


class GMLPForCausalLM(GMLPPreTrainedModel, GenerationMixin):
    """gMLP that predicts the next token and generates text of up to n tokens, with a decoder as in GPT-2. It is always
    causal: it can load the checkpoint of a masked language model, but ignores the weights for later tokens."""

    _auto_class = "AutoModelForCausalLM"
    loss_function = staticmethod(next_token_loss)
    _tied_weights_keys = {"decoder.weight": "model.embeddings.word_embeddings.weight"}
    _tp_plan = {"decoder": "colwise_gather_output"}
    _fsdp_plan = {"decoder": "keep_full_weight"}

    def __init__(self, config: GMLPConfig) -> None:
        if not config.is_causal:
            # Copy it, since the caller may use this config for a masked language model too.
            config = copy.deepcopy(config)
            config.is_causal = True
        super().__init__(config)
        self.model = GMLPModel(config, add_pooling_layer=False)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)
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
        r"""Predict next tokens from the inputs of `GMLPModel`. `labels` [B, m] are the tokens themselves, which are
        shifted here, or -100 where there is nothing to predict. `logits_to_keep` is the number of last tokens, or the
        indices of tokens, to compute logits for; by default all. Returns `loss`, which ignores predictions across
        documents, `logits` [B, m, V] and `past_key_values`."""
        inputs = (input_ids, attention_mask, token_type_ids, inputs_embeds, position_ids)
        kwargs |= {"past_key_values": past_key_values, "use_cache": use_cache}
        outputs = self.model(*inputs, return_dict=True, **kwargs)
        indices = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits, loss = self.decoder(outputs.last_hidden_state[:, indices]), None
        if labels is not None:
            if outputs.documents is not None:
                labels = labels.masked_fill(F.pad(outputs.documents.diff() != 0, (1, 0)).to(labels.device), -100)
            loss = self.loss_function(logits=logits, labels=labels, **kwargs)
        cache = getattr(outputs, CACHE)
        return modeling_outputs.CausalLMOutputWithPast(loss, logits, cache, outputs.hidden_states, outputs.attentions)

    def _prepare_position_ids_for_generation(self, *args, **kwargs) -> None:
        """Return `None`, so that `forward` determines positions: those of `generate` would skip holes in the mask."""

    def create_masks_for_generate(self, attention_mask: torch.Tensor | None, **kwargs) -> torch.Tensor | None:
        """Pad the mask to the size of the static cache of `generate`, so that its shape stays the same."""
        cache_size = kwargs[CACHE].get_max_length()
        return None if attention_mask is None else F.pad(attention_mask, (0, cache_size - attention_mask.shape[1]))

    def _get_static_cache_init_shape(self) -> None:
        """Return `None`: the layers of a cache differ in shape, so each is initialized when it is first used."""

    def _prepare_generated_length(
        self, generation_config: GenerationConfig, inputs_tensor: torch.Tensor, **kwargs
    ) -> GenerationConfig:
        """Limit the text of `generate` to n tokens, with a warning."""
        generation_config = super()._prepare_generated_length(generation_config, inputs_tensor=inputs_tensor, **kwargs)
        # `max_length` does not count a prompt of embeddings.
        n, num_embeddings = self.spatial_sizes()[0], inputs_tensor.shape[1] - kwargs["input_ids_length"]
        check_length(inputs_tensor.shape[1] + 1, n)
        if generation_config.max_length + num_embeddings > n:
            logger.warning(f"The text will end at {n} tokens (`max_position_embeddings`).")
            generation_config.max_length = n - num_embeddings
        return generation_config


def scale_pooled(pooled: torch.Tensor, config: GMLPBaseConfig) -> torch.Tensor:
    return F.normalize(pooled, dim=-1) if config.normalize_pooled else pooled


class GMLPForSequenceClassification(GMLPPreTrainedModel):
    """gMLP with a classifier or regressor on BERT's pooler, for tasks such as GLUE's."""

    _auto_class = "AutoModelForSequenceClassification"
    loss_function = staticmethod(classification_loss)

    def __init__(self, config: GMLPConfig) -> None:
        super().__init__(config)
        self.model = GMLPModel(config)
        self.dropout = nn.Dropout(config.classifier_rate)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
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
        r"""Classify sequences from the inputs of `GMLPModel`, which must not be packed. `labels` are [B] classes or
        values, or [B, num_labels] for several labels per sequence. Returns `loss` and `logits` [B, num_labels]."""
        inputs = (input_ids, attention_mask, token_type_ids, inputs_embeds, position_ids)
        outputs = self.model(*inputs, return_dict=True, **kwargs)
        pooled = scale_pooled(self.one_answer(outputs, outputs.pooler_output), self.config)
        logits = self.classifier(self.dropout(pooled))
        loss = None if labels is None else self.loss_function(labels, logits, self.config, **kwargs)
        return modeling_outputs.SequenceClassifierOutput(loss, logits, outputs.hidden_states, outputs.attentions)


class GMLPForMultipleChoice(GMLPPreTrainedModel):
    """gMLP that scores each of several choices on BERT's pooler, for tasks such as SWAG."""

    _auto_class = "AutoModelForMultipleChoice"
    loss_function = staticmethod(class_loss)

    def __init__(self, config: GMLPConfig) -> None:
        super().__init__(config)
        self.model = GMLPModel(config)
        self.dropout = nn.Dropout(config.classifier_rate)
        self.classifier = nn.Linear(config.hidden_size, 1)
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
        r"""Score choices from the inputs of `GMLPModel` as [B, choices, m] or [B, choices, m, D], which must not be
        packed. `labels` [B] are the indices of the right choices. Returns `loss` and `logits` [B, choices]."""
        shape = check_inputs(input_ids, inputs_embeds).shape[:2]
        inputs = (input_ids, attention_mask, token_type_ids, inputs_embeds, position_ids)
        rows = [x if x is None or x.dim() == 2 else x.flatten(0, 1) for x in inputs]  # positions may be [1, m]
        outputs = self.model(*rows, return_dict=True, **kwargs)
        logits = self.classifier(self.dropout(self.one_answer(outputs, outputs.pooler_output))).view(shape)
        loss = None if labels is None else self.loss_function(logits=logits, labels=labels, **kwargs)
        return modeling_outputs.MultipleChoiceModelOutput(loss, logits, outputs.hidden_states, outputs.attentions)


class GMLPForTokenClassification(GMLPPreTrainedModel):
    """gMLP with a classifier on every token, for tasks such as named-entity recognition."""

    _auto_class = "AutoModelForTokenClassification"
    loss_function = staticmethod(class_loss)

    def __init__(self, config: GMLPConfig) -> None:
        super().__init__(config)
        self.model = GMLPModel(config, add_pooling_layer=False)
        self.dropout = nn.Dropout(config.classifier_rate)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
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
        r"""Classify tokens from the inputs of `GMLPModel`. `labels` [B, m] are the classes of the tokens, or -100 for
        tokens to ignore. Returns `loss` and `logits` [B, m, num_labels]."""
        inputs = (input_ids, attention_mask, token_type_ids, inputs_embeds, position_ids)
        outputs = self.model(*inputs, return_dict=True, **kwargs)
        logits = self.classifier(self.dropout(outputs.last_hidden_state))
        loss = None if labels is None else self.loss_function(logits=logits, labels=labels, **kwargs)
        return modeling_outputs.TokenClassifierOutput(loss, logits, outputs.hidden_states, outputs.attentions)


class GMLPForQuestionAnswering(GMLPPreTrainedModel):
    """gMLP that predicts the first and the last token of an answer, for tasks such as SQuAD."""

    _auto_class = "AutoModelForQuestionAnswering"
    loss_function = staticmethod(ForQuestionAnsweringLoss)

    def __init__(self, config: GMLPConfig) -> None:
        super().__init__(config)
        self.model = GMLPModel(config, add_pooling_layer=False)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
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
        r"""Find answers in the inputs of `GMLPModel`, which must not be packed. `start_positions` and `end_positions`
        [B] are the indices of first and last tokens; the loss ignores those outside the sequence. Returns `loss`,
        `start_logits` and `end_logits` [B, m]."""
        inputs = (input_ids, attention_mask, token_type_ids, inputs_embeds, position_ids)
        outputs = self.model(*inputs, return_dict=True, **kwargs)
        logits = self.qa_outputs(self.one_answer(outputs, outputs.last_hidden_state))
        start_logits, end_logits = (x.contiguous() for x in logits.unbind(-1))
        loss = None
        if start_positions is not None and end_positions is not None:
            positions = (x.to(start_logits.device) for x in (start_positions, end_positions))
            loss = self.loss_function(*map(single_precision, (start_logits, end_logits)), *positions, **kwargs)
        return modeling_outputs.QuestionAnsweringModelOutput(
            loss, start_logits, end_logits, outputs.hidden_states, outputs.attentions
        )


# ---------------------------------------------------------------------------------------------------------------------
# Images


class GMLPStemNorm(nn.BatchNorm2d):
    """BatchNorm whose running statistics stay fixed while its weights are frozen, since adapters do not save them."""

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        if self.weight.requires_grad:
            return super().forward(features)
        return F.batch_norm(features, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)


def conv_stem(config: GMLPVisionConfig) -> nn.Sequential:
    """Return an early-convolution stem (Xiao et al., 2021): 3 x 3 convolutions, each of which, after the first, halves
    the sides and doubles the channels. [B, C, height, width] -> [B, D, height / patch, width / patch]"""
    size, _ = as_pair(config.patch_size)  # a power of 2
    layers, channels = [], config.num_channels
    for i in range(size.bit_length()):
        width = max(1, config.hidden_size * 2**i // size)
        conv = nn.Conv2d(channels, width, 3, stride=2 if i else 1, padding=1, bias=False)
        layers += [conv, GMLPStemNorm(width), nn.ReLU()]
        channels = width
    return nn.Sequential(*layers)


class GMLPPatchEmbeddings(nn.Module):
    """The embeddings of patches, by one convolution, as in ViT, or by a convolutional stem and a projection. With "cls"
    pooling, a [CLS] token precedes them."""

    def __init__(self, config: GMLPVisionConfig) -> None:
        super().__init__()
        self.config, self.image_size, self.grid_size = config, as_pair(config.image_size), config.grid_size
        patch_size, channels, self.stem = as_pair(config.patch_size), config.num_channels, None
        if config.stem == "conv":
            patch_size, channels, self.stem = (1, 1), config.hidden_size, conv_stem(config)
        self.projection = nn.Conv2d(channels, config.hidden_size, patch_size, stride=patch_size)
        self.cls_token = nn.Parameter(torch.empty(1, 1, config.hidden_size)) if config.pooling == "cls" else None
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, pixel_values: torch.Tensor | None) -> torch.Tensor:  # [B, C, height, width] -> [B, n, D]
        shape = [self.config.num_channels, *self.image_size]
        if pixel_values is None or list(pixel_values.shape[1:]) != shape:
            raise ValueError(
                f"`pixel_values` must have the model's shape, [batch, channels, height, width] = [B, {shape[0]}, "
                f"{shape[1]}, {shape[2]}], got {pixel_values if pixel_values is None else list(pixel_values.shape)}. "
                f"Resize and convert images with the image processor, or change the model with "
                f"`model.resize_image_size((height, width))`."
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
    _input_embed_layer = "projection"
    input_modalities = ("image",)

    # The number of tokens follows from the size of the images.
    resize_position_embeddings = PreTrainedModel.resize_position_embeddings

    def resize_image_size(self, image_size: int | tuple[int, int]) -> None:
        """Change the size of the images, in place: pixels of a square, or (height, width). A dense W is interpolated
        over the grid of patches, in its rows and columns, and b over its patches. A Toeplitz W keeps the weights of its
        offsets; those of new ones are zero. Change the image processor too; then create the optimizer, and train.
        Raises a TypeError, ValueError or StrictDataclassError, and changes nothing, for a size that is no multiple of
        the patch size, or if W cannot be resized."""
        embeddings, new_config = self.base_model.embeddings, copy.deepcopy(self.config)
        sides = image_size if isinstance(image_size, list | tuple) else [image_size]
        height, *width = (as_count(side) for side in sides)
        new_config.image_size = [height, *width] if width else height
        new_config.validate()
        for projection in self.resizable_projections():
            projection.resize_grid(embeddings.grid_size, new_config.grid_size, self.config.num_prefix_tokens)
        self.config.image_size = new_config.image_size
        embeddings.image_size, embeddings.grid_size = as_pair(new_config.image_size), new_config.grid_size

    def write_sizes(self) -> None:
        if as_pair(self.config.image_size) != self.base_model.embeddings.image_size:
            self.config.image_size = list(self.base_model.embeddings.image_size)


class GMLPVisionModel(GMLPVisionPreTrainedModel):
    """The image encoder: patches, blocks, a final LayerNorm, and pooling unless `add_pooling_layer=False`."""

    _auto_class = "AutoModel"

    def __init__(self, config: GMLPVisionConfig, add_pooling_layer: bool = True) -> None:
        super().__init__(config)
        self.embeddings = GMLPPatchEmbeddings(config)
        self.layers = build_layers(config)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.add_pooling_layer = add_pooling_layer
        self.pooler = GMLPPooler(config) if add_pooling_layer and config.pooling == "cls" else None
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self, pixel_values: torch.Tensor | None = None, **kwargs: Unpack[TransformersKwargs]
    ) -> modeling_outputs.BaseModelOutputWithPooling:
        r"""Encode images [B, channels, height, width], which must have the size and the channels of the config. Returns
        `last_hidden_state` [B, n, D] and `pooler_output` [B, D]."""
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
    """gMLP with an image classifier, for tasks such as ImageNet (paper, section 3)."""

    _auto_class = "AutoModelForImageClassification"
    loss_function = staticmethod(classification_loss)

    def __init__(self, config: GMLPVisionConfig) -> None:
        super().__init__(config)
        self.model = GMLPVisionModel(config)
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        pixel_values: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> modeling_outputs.ImageClassifierOutput:
        r"""Classify images [B, channels, height, width]. `labels` are [B] classes, or [B, num_labels] for several per
        image. Returns `loss` and `logits` [B, num_labels]."""
        outputs = self.model(pixel_values, return_dict=True, **kwargs)
        logits = self.classifier(self.dropout(scale_pooled(outputs.pooler_output, self.config)))
        loss = None if labels is None else self.loss_function(labels, logits, self.config, **kwargs)
        return modeling_outputs.ImageClassifierOutput(loss, logits, outputs.hidden_states, outputs.attentions)


class GMLPVisionBackbone(BackboneMixin, GMLPVisionModel):
    """The image encoder for heads that segment, detect or estimate depth. It returns feature maps of chosen blocks."""

    _auto_class = "AutoBackbone"

    def __init__(self, config: GMLPVisionConfig) -> None:
        if config._out_features is None:
            # Copy it, since the caller may use this config for a model of another depth.
            config = copy.deepcopy(config)
            config.out_features = None  # the setter replaces None with the last stage, in `_out_features` too
        super().__init__(config, add_pooling_layer=False)
        self.num_features = [config.hidden_size] * len(self.stage_names)

    @merge_with_config_defaults
    @capture_outputs(tie_last_hidden_states=False)
    def forward(
        self, pixel_values: torch.Tensor, **kwargs: Unpack[TransformersKwargs]
    ) -> modeling_outputs.BackboneOutput:
        r"""Encode images [B, channels, height, width]. Returns `feature_maps`, one for each of `config.out_features`:
        [B, D, rows, columns] of patches, or, without `config.reshape_hidden_states`, [B, n, D] with the [CLS] token."""
        feature_maps: tuple[torch.Tensor, ...] = ()
        hidden_states = self.embeddings(pixel_values)
        for stage, layer in zip(self.stage_names, [None, *self.layers]):
            if layer is not None:
                hidden_states = layer(hidden_states, **kwargs)
            if stage in self.out_features:
                features = self.norm(hidden_states) if self.config.apply_layernorm else hidden_states
                if self.config.reshape_hidden_states:
                    patches = features[:, self.config.num_prefix_tokens :].unflatten(1, self.embeddings.grid_size)
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
