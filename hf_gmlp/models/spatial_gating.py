# Copyright 2026 The hf_gmlp authors. Licensed under the Apache License, Version 2.0.
"""The spatial gating unit (paper, section 2.1, Equations 2 to 4, Table 3 and Appendix C).

One matrix W [n, n], the same for all channels, mixes the tokens, and the result gates them: s(Z) = Z1 * (W LN(Z2) + b).
Shapes: B batch, m tokens given to the model (m <= n), t tokens including those in a cache, E channels.
"""

import operator
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F
from transformers import PreTrainedConfig
from transformers import initialization as init
from transformers.cache_utils import Cache

from .heads import Documents, shift


class SpatialGating(NamedTuple):
    """One way in which s(Z) uses the spatial projection f."""

    # Whether Z is halved along its channels into Z1, which is gated, and Z2, which f reads. If not, both are Z.
    splits: bool
    # (Z1, f) -> s(Z), all [B, m, E]
    combine: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


# The four rows of Table 3, by the value of `config.spatial_gating`.
SPATIAL_GATINGS = {
    "split": SpatialGating(True, operator.mul),
    "multiplicative": SpatialGating(False, operator.mul),
    "additive": SpatialGating(False, operator.add),
    "linear": SpatialGating(False, lambda u, f: f),
}


def spatial_matrix(weight: torch.Tensor, length: int, start: int = 0, causal: bool = False) -> torch.Tensor:
    """
    The rows from `start` on of the leading [t, t] block of W, where t = `length`: [t - start, t]

    Args:
        weight: W, [n, n], or [2n - 1] if it is Toeplitz: W[i, j] = weight[n - 1 + j - i] (Appendix C).
        causal: Whether W[i, j] counts as 0 for j > i.
    """
    # When one token is generated, only the last row is new, and the last row sees all columns.
    last_row_only = start > 0 and start == length - 1
    if weight.dim() == 1:
        n = (weight.shape[0] + 1) // 2
        # Row i is the window of weights that starts at offset -i; `unfold` lists the windows from the last row to the
        # first. Strided views and one copy are several times faster, forward and backward, than indexing with [t, t].
        # The windows have n weights rather than t, which `torch.export` would take for a constant.
        matrix = weight.unfold(0, n, 1)[n - length : n - start, :length]
        matrix = matrix if last_row_only else matrix.flip(0)
    else:
        # `torch.export` refuses the length n where columns are sliced, and ExecuTorch negative padding.
        matrix = weight[start:length].index_select(1, torch.arange(length, device=weight.device))
    return matrix.tril(start) if causal and not last_row_only else matrix


class SpatialProjection(nn.Module):
    """
    f(v) = W v + b over the token axis (Equation 2), for up to n tokens. W is [n, n], or Toeplitz with 2n - 1 weights.

    It is not an `nn.Linear`, so that tools that collect linear layers (LoRA on "all-linear", quantizers) take the
    channel projections and leave W alone.
    """

    def __init__(self, length: int, toeplitz: bool):
        super().__init__()
        # As `reset_parameters` makes them, but without noise.
        self.weight = nn.Parameter(torch.zeros(2 * length - 1 if toeplitz else (length, length)))
        self.bias = nn.Parameter(torch.ones(length))

    @property
    def toeplitz(self) -> bool:
        return self.weight.dim() == 1

    @property
    def length(self) -> int:
        """n, the number of rows and columns of W."""
        return self.bias.shape[0]

    def reset_parameters(self, std: float):
        """W near zero and b at one: the gate starts as f(v) = 1, and the block as a plain feed-forward network."""
        init.normal_(self.weight, std=std)
        init.ones_(self.bias)

    def matrix(self, length: int | None = None, start: int = 0, causal: bool = False) -> torch.Tensor:
        """`spatial_matrix` of this W, by default all of it: [t - start, t]"""
        return spatial_matrix(self.weight, self.length if length is None else length, start, causal)

    def entries(self, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        """W[i, j] for the rows i [..., m] and the columns j [..., t], all from 0 to n - 1: [..., m, t]"""
        rows, columns = rows[..., :, None], columns[..., None, :]
        return self.weight[self.length - 1 + columns - rows] if self.toeplitz else self.weight[rows, columns]

    def forward(
        self,
        v: torch.Tensor,
        causal: bool = False,
        start: int | torch.Tensor = 0,
        first: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """
        Args:
            v: [B, t, E]
            causal: Whether a token sees only itself and earlier ones.
            start: With a cache, the place of the first of the m new tokens; the projection is then causal. With a
                static cache, whose t places are not all filled, the places of all new tokens, [m].
            first: [B], the place of each sequence's first token, from which rows and columns of W and b are counted; 0
                by default. If the projection is causal, v must be zero for the padding in front.

        Returns:
            [B, m, E]
        """
        length = v.shape[1]
        if isinstance(start, int) and (first is None or (self.toeplitz and causal)):
            weight, bias = self.matrix(length, start, causal), self.bias[start:length]
            if first is not None:
                # Hidden tokens in front change no distance, which is all that a Toeplitz W knows, but b starts later.
                bias = self.bias[(torch.arange(start, length, device=v.device) - first[:, None]).clamp(min=0)]
        elif isinstance(start, int) and start == 0:
            # Moving the sequences to the front and back is less work than a W [B, t, t].
            return shift(self(shift(v, first), causal), -first)
        else:
            columns = torch.arange(length, device=v.device)
            rows = columns[start:] if isinstance(start, int) else start
            if first is not None:
                rows, columns = rows - first[:, None], columns - first[:, None]
            weight = self.entries(rows.clamp(min=0), columns.clamp(min=0))
            weight = weight.masked_fill(columns[..., None, :] > rows[..., :, None], 0.0)
            bias = self.bias[rows.clamp(min=0)]
        # Not `weight @ v`, which copies v to fold the batch into one product.
        return torch.baddbmm(bias[..., None], weight.expand(v.shape[0], -1, -1), v)

    def set_parameters(self, weight: torch.Tensor, bias: torch.Tensor):
        self.weight = nn.Parameter(weight, requires_grad=self.weight.requires_grad)
        self.bias = nn.Parameter(bias, requires_grad=self.bias.requires_grad)

    @torch.no_grad()
    def resize(self, length: int):
        """Grows or shrinks W and b to `length` tokens, in place. Their leading part stays, and a Toeplitz W keeps the
        weight of every offset; new weights do not mix, and new biases are one."""
        grown = length - self.length
        # Negative padding crops.
        weight = F.pad(self.weight, (grown, grown) if self.toeplitz else (0, grown, 0, grown))
        self.set_parameters(weight, F.pad(self.bias, (0, grown), value=1.0))

    @torch.no_grad()
    def resize_grid(self, old_grid: tuple[int, int], new_grid: tuple[int, int], num_prefix_tokens: int):
        """
        Interpolates a dense W and b from one grid of patches to another, in place: W over the grid of output patches
        (its rows) and the grid of input patches (its columns), b over its patches. Prefix tokens ([CLS]) stay.

        W sums over its columns, so they are scaled by the ratio of the patch counts: an image of more, finer patches
        gets the same gate as before.
        """
        if tuple(old_grid) == tuple(new_grid):
            return

        def over_grid(values: torch.Tensor) -> torch.Tensor:  # [rows, prefix + old patches] -> [rows, prefix + new]
            prefix, patches = values[:, :num_prefix_tokens], values[:, num_prefix_tokens:]
            patches = patches.unflatten(1, tuple(old_grid))[:, None].float()
            patches = F.interpolate(patches, size=tuple(new_grid), mode="bicubic", antialias=True)
            return torch.cat([prefix, patches.flatten(1).to(prefix.dtype)], dim=1)

        weight = over_grid(self.weight)
        weight[:, num_prefix_tokens:] *= (old_grid[0] * old_grid[1]) / (new_grid[0] * new_grid[1])
        self.set_parameters(over_grid(weight.T).T.contiguous(), over_grid(self.bias[None])[0])

    def extra_repr(self) -> str:
        return f"length={self.length}, toeplitz={self.toeplitz}"


class SpatialGatingUnit(nn.Module):
    """s(Z) = Z1 * f(Z2), or another row of Table 3, where f is the spatial projection of the normalized input."""

    def __init__(self, config: PreTrainedConfig, layer_idx: int = 0):
        super().__init__()
        self.config = config
        # The cache layer that holds v.
        self.layer_idx = layer_idx
        self.norm = nn.LayerNorm(config.spatial_size, eps=config.spatial_layer_norm_eps)
        self.proj = SpatialProjection(config.max_position_embeddings, config.toeplitz)

    def forward(
        self,
        hidden_states: torch.Tensor,  # Z, [B, m, d_ffn], after the activation
        attention_output: torch.Tensor | None = None,  # [B, m, E], the tiny attention of an aMLP, added to f (Figure 6)
        padding_mask: torch.Tensor | None = None,  # [B, m], 0 for padding, which is hidden from all tokens
        first: torch.Tensor | None = None,  # [B], as in `SpatialProjection`
        past_key_values: Cache | None = None,  # holds v of earlier tokens, and takes that of these
        documents: Documents | None = None,  # where the documents stand that share the one row of this batch
    ) -> torch.Tensor:
        """Returns s(Z), [B, m, E], where E is d_ffn / 2 after a split and d_ffn without one."""
        gating = SPATIAL_GATINGS[self.config.spatial_gating]
        u = v = hidden_states
        if gating.splits:
            half = hidden_states.shape[-1] // 2
            u, v = hidden_states[..., :half], hidden_states[..., half:]
        v = self.norm(v)
        if padding_mask is not None:
            # After the norm, whose bias would otherwise leak from padding into every token.
            v = v.masked_fill(padding_mask[:, :, None] == 0, 0.0)
        start: int | torch.Tensor = 0
        if past_key_values is not None:
            # As keys, without values.
            v = past_key_values.update(v[:, None], v[:, None, :, :0], self.layer_idx)[0][:, 0]
            start = past_key_values.get_seq_length(self.layer_idx) - u.shape[1]
            if not isinstance(start, int):
                start = start + torch.arange(u.shape[1], device=u.device)
        if documents is None:
            f = self.proj(v, self.config.is_causal, start, first)
        else:
            f = documents.join(self.proj(documents.split(v), self.config.is_causal))
        if attention_output is not None:
            f = f + attention_output
        return gating.combine(u, f)
