# Copyright 2026 The hf_gmlp authors. Licensed under the Apache License, Version 2.0.
"""The spatial gating unit (paper, section 2.1, Equations 2 to 4, Table 3 and Appendix C).

One matrix W [n, n], the same for all channels, mixes the tokens, and the result gates them: s(Z) = Z1 * (W LN(Z2) + b).
W and b encode position, and `Positions` says which of their entries a forward pass uses. With several heads, each of H
groups of channels has a W and b of its own.

Shapes: B batch, m tokens given to the model, t tokens including those in a cache, n rows and columns of W, E channels.
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

from .heads import Documents, first_index, is_readable


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

# From this number of tokens on, CPUs multiply by a Toeplitz W with an FFT (docs/performance.md).
FFT_LENGTH = 1024


# ---------------------------------------------------------------------------------------------------------------------
# Positions


class Positions(NamedTuple):
    """
    Which entries of W and b the tokens of a forward pass use, in every block: the token at index i of a row, which has
    position p_i, uses b[p_i], and W[p_i, p_j] for every token j that it sees. By default p_i = i and all see all.
    """

    causal: bool = False  # whether a token sees only itself and those before it
    start: int = 0  # the index of the first new token, behind the tokens of a growing cache
    rows: torch.Tensor | None = None  # [B or 1, m], the position of each new token; by default counted from `start`
    # [B or 1, m, t], where W[p_i, p_j] is in the flattened weight; by default, W[start:t, :t] is taken
    entries: torch.Tensor | None = None
    hidden: torch.Tensor | None = None  # [B or 1, m, t], True where token i does not see token j
    padding: torch.Tensor | None = None  # [B, m], True for padding, which no token sees
    numbers: torch.Tensor | None = None  # [B, m], the number of each token's document in a packed row
    documents: Documents | None = None  # the same documents, if W gets a row for each of them


def find_positions(
    config: PreTrainedConfig,
    index: torch.Tensor,
    causal: bool,
    attention_mask: torch.Tensor | None = None,
    position_ids: torch.Tensor | None = None,
    numbers: torch.Tensor | None = None,
    split: bool | None = None,
) -> Positions:
    """
    Return the positions of a batch without a cache.

    Args:
        index: 0 to m - 1.
        attention_mask: [B, m], 0 for padding.
        position_ids: [B or 1, m]. By default, each document is counted from its first token that is not padding.
        numbers: [B, m], the documents of packed rows (`document_numbers`).
        split: Whether W gets a row for each packed document. By default, if that is less work than a W per packed row.

    Raises:
        ValueError: If a document is longer than n, or a position is out of range or occurs twice in a document.
    """
    m, n = index.shape[0], config.max_position_embeddings
    shown = None if attention_mask is None else attention_mask != 0
    padding = ~shown if shown is not None and (config.mask_padding or causal or numbers is not None) else None
    if m > n and numbers is None and padding is not None and is_readable(padding):
        # Padding may reach beyond n, in the last packed row of a data set for one.
        numbers = torch.zeros_like(padding, dtype=torch.long)
    if numbers is None:
        check_length(m, n)
        first = index[:1] if shown is None else first_index(shown)[:, None]  # [B or 1, 1]
    else:
        first = torch.where(padding, m, index) if padding is not None else index.expand_as(numbers)
        first = torch.full_like(numbers, m).scatter_reduce(1, numbers, first, "amin").gather(1, numbers)  # [B, m]
    rows, counted = index - first, True
    if numbers is None:
        # Padding in front counts as if it stood behind.
        rows = torch.where(rows < 0, rows + m, rows)
    if position_ids is not None:
        same = (position_ids == rows) | (False if padding is None else padding)
        counted = is_readable(same) and bool(same.all())
        rows = rows if counted else position_ids
    # In a Toeplitz W, counted positions change no distance.
    shared = config.toeplitz and counted and (padding is not None or shown is None)
    if counted and numbers is None and (shown is None or (not shared and is_readable(first) and not first.any())):
        return Positions(causal, padding=padding)
    if numbers is not None and is_readable(numbers):
        documents = Documents.find(numbers, attention_mask)
        k, longest = documents.real.shape
        if counted:
            check_length(longest, n)
        split = k * longest**2 < numbers.shape[0] * m**2 if split is None else split
        if split and counted:
            return Positions(causal, padding=padding, numbers=numbers, documents=documents)
    if padding is not None:
        rows = torch.where(padding, rows.clamp(0, n - 1), rows)
    if not counted and is_readable(rows):
        check_position_ids(rows, padding, numbers, n)
    hidden = None if numbers is None else numbers[:, :, None] != numbers[:, None, :]
    if causal and not (shared and hidden is None):
        later = index > index[:, None]
        hidden = later if hidden is None else hidden | later
    entries = None if shared else weight_entries(config, rows, rows)
    return Positions(causal, rows=rows, entries=entries, hidden=hidden, padding=padding, numbers=numbers)


def find_cached_positions(
    config: PreTrainedConfig,
    index: torch.Tensor,
    start: int | torch.Tensor,
    length: int,
    attention_mask: torch.Tensor | None = None,
    position_ids: torch.Tensor | None = None,
) -> Positions:
    """
    Return the positions of new tokens behind those in the cache of a causal model.

    Args:
        index: 0 to m - 1.
        start: The number of tokens in the cache; a tensor if the cache is static.
        length: t, the number of tokens in the cache with the new ones, or for which a static cache has room.
        attention_mask: [B, t], 0 for padding.
        position_ids: [B or 1, m], of the new tokens; those in the cache count up to them. By default, counted from the
            first token that is not padding.

    Raises:
        ValueError: If `position_ids` do not count up one by one.
    """
    new, columns = index + start, torch.arange(length, device=index.device)
    shown = None if attention_mask is None else (attention_mask != 0).index_select(1, new)
    padding = None if shown is None else ~shown
    counted = True
    if position_ids is not None:
        # A token counts those that are not padding. Cached ones have the same offset to this as the new ones.
        counts = columns[None] if attention_mask is None else (attention_mask != 0).cumsum(1) - 1
        offsets = position_ids - counts.index_select(1, new)
        if padding is not None:
            offsets = offsets.masked_fill(padding, -length)
        offset = offsets.amax(1, keepdim=True)
        if (
            is_readable(offset)
            and index.shape[0] > 1
            and ((offsets != offset) & (True if shown is None else shown)).any()
        ):
            raise ValueError(
                "With a cache, `position_ids` must count up the tokens of each row one by one, and rows cannot hold "
                "several documents. Leave them out, or pass `use_cache=False`."
            )
        counted = attention_mask is None
        columns = counts + offset
    elif attention_mask is not None:
        columns = columns - first_index(attention_mask)[:, None]
    # Rows and columns of W side by side, which a static cache does not have.
    grown = start if isinstance(start, int) and start + index.shape[0] == length else None
    if (
        grown is not None
        and attention_mask is None
        and (position_ids is None or (is_readable(offset) and not offset.any()))
    ):
        return Positions(True, grown)
    columns = columns.clamp(min=0)
    rows = columns.index_select(-1, new)
    if grown is not None and config.toeplitz and counted:
        return Positions(True, grown, rows=rows, padding=padding)
    hidden = torch.arange(length, device=index.device) > new[:, None]
    return Positions(True, 0, rows, weight_entries(config, rows, columns), hidden, padding)


def weight_entries(config: PreTrainedConfig, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Return where W[i, j] is in the flattened weight, for rows i [..., m] and columns j [..., t]: [..., m, t]"""
    n, rows, columns = config.max_position_embeddings, rows[..., :, None], columns[..., None, :]
    return n - 1 + columns - rows if config.toeplitz else n * rows + columns


def check_length(length: int, n: int):
    if length > n:
        raise ValueError(
            f"The sequences have {length} tokens and the model takes up to {n} (`config.max_position_embeddings`). "
            f"Truncate them, or grow the model with `model.resize_position_embeddings({length})` and continue training "
            f"it."
        )


def check_position_ids(rows: torch.Tensor, padding: torch.Tensor | None, numbers: torch.Tensor | None, n: int):
    if rows.amin() < 0 or rows.amax() >= n:
        raise ValueError(
            f"`position_ids` must be from 0 to {n - 1} (`config.max_position_embeddings` is {n}), got "
            f"{int(rows.amin())} to {int(rows.amax())}."
        )
    keys = rows if numbers is None else rows + n * numbers
    if padding is not None:
        keys = torch.where(padding, -1 - torch.arange(rows.shape[1], device=rows.device), keys)
    if (keys.sort(-1)[0].diff() == 0).any():
        raise ValueError(
            "`position_ids` have the same position twice in one document. Leave them out, or tell the documents apart "
            "with `seq_idx`."
        )


# ---------------------------------------------------------------------------------------------------------------------
# The spatial projection


def spatial_matrix(weight: torch.Tensor, length: int, start: int = 0, causal: bool = False) -> torch.Tensor:
    """
    Return the rows from `start` on of the leading [t, t] block of W, where t = `length`: [H, t - start, t]

    Args:
        weight: W, [H, n, n], or [H, 2n - 1] if it is Toeplitz: W[i, j] = weight[n - 1 + j - i] (Appendix C). A Toeplitz
            W is continued with zeros beyond n.
        causal: Whether W[i, j] counts as 0 for j > i.
    """
    # When one token is generated, only the last row is new, and the last row sees all columns.
    last_row_only = start > 0 and start == length - 1
    if weight.dim() == 2:
        n = (weight.shape[1] + 1) // 2
        if length > n:
            weight, n = F.pad(weight, (length - n, length - n)), length
        if weight.device.type == "xla":
            # XLA has no strided views: `unfold` would copy to the host and back.
            index = torch.arange(length, device=weight.device)
            matrix = weight[:, n - 1 + index - index[start:, None]]
            return matrix.tril(start) if causal else matrix
        # Row i is the window of weights that starts at offset -i; `unfold` lists the windows from the last row to the
        # first. Strided views and one copy are several times faster, forward and backward, than indexing with [t, t].
        # The windows have n weights rather than t, which `torch.export` would take for a constant.
        matrix = weight.unfold(1, n, 1)[:, n - length : n - start, :length]
        matrix = matrix if last_row_only else matrix.flip(1)
    else:
        # `torch.export` refuses the length n where columns are sliced, and ExecuTorch negative padding.
        matrix = weight[:, start:length].index_select(2, torch.arange(length, device=weight.device))
    return matrix.tril(start) if causal and not last_row_only else matrix


def grid_matrix(weight: torch.Tensor, grid: tuple[int, int]) -> torch.Tensor:
    """
    Return W of a grid of h rows and w columns, Toeplitz in both directions. It mixes the tokens of the grid row by row:
    W[(r, c), (r', c')] = weight[h - 1 + r' - r, w - 1 + c' - c]

    Args:
        weight: [H, 2h - 1, 2w - 1]

    Returns:
        [H, h * w, h * w]
    """
    if weight.device.type == "xla":
        index = torch.arange(grid[0] * grid[1], device=weight.device)
        rows, columns = index // grid[1], index % grid[1]
        return weight[:, grid[0] - 1 + rows - rows[:, None], grid[1] - 1 + columns - columns[:, None]]
    # As in `spatial_matrix`: the windows over the rows, and in each those over the columns, are listed from the last.
    windows = weight.unfold(1, grid[0], 1).unfold(2, grid[1], 1)  # [H, h, w, h, w]
    return windows.flip(1, 2).flatten(3).flatten(1, 2)


def toeplitz_product(weight: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """
    Multiply by a Toeplitz W as a convolution over the tokens, by FFT: O(m log m) per channel, and no W in memory.
    Rounding spreads over all tokens, in float32 by about 2e-5 of the largest output.

    Args:
        weight: [2n - 1], of one head, as in `spatial_matrix`.
        v: [B, m, E]

    Returns:
        [B, m, E]
    """
    n, m, dtype = (weight.shape[0] + 1) // 2, v.shape[1], torch.promote_types(v.dtype, torch.float32)
    # By lag i - j: from 0 to m - 1, a zero, and from -(m - 1) to -1.
    lags = weight[n - m : n + m - 1].flip(0).to(dtype)
    kernel = torch.fft.rfft(torch.cat([lags[m - 1 :], lags.new_zeros(1), lags[: m - 1]]))
    # Along the last axis, a transform runs over neighboring numbers.
    spectrum = torch.fft.rfft(v.to(dtype).transpose(1, 2).contiguous(), 2 * m)
    return torch.fft.irfft(spectrum * kernel, 2 * m)[..., :m].transpose(1, 2).to(v.dtype)


class SpatialProjection(nn.Module):
    """
    f(v) = W v + b over the token axis (Equation 2), for up to n tokens. `weight` is [n, n], [2n - 1] if W is Toeplitz,
    or [2h - 1, 2w - 1] if it is Toeplitz over a grid of h * w = n tokens, and `bias` is [n], both behind an axis of
    heads if there are several. It is not an `nn.Linear`, so that LoRA on "all-linear" and quantizers leave it alone.
    """

    def __init__(self, length: int, toeplitz: bool, heads: int = 1, grid: tuple[int, int] | None = None):
        super().__init__()
        self.toeplitz, self.heads, self.grid = toeplitz, heads, grid
        shape = (2 * length - 1,) if toeplitz else (length, length)
        if grid is not None:
            shape = (2 * grid[0] - 1, 2 * grid[1] - 1)
        axis = () if heads == 1 else (heads,)
        # As `reset_parameters` makes them, but without noise.
        self.weight = nn.Parameter(torch.zeros(*axis, *shape))
        self.bias = nn.Parameter(torch.ones(*axis, length))

    @property
    def length(self) -> int:
        """n, the number of rows and columns of W."""
        return self.bias.shape[-1]

    def reset_parameters(self, std: float):
        """Initialize W near zero and b at one: the gate starts as f(v) = 1, the block as a feed-forward network."""
        init.normal_(self.weight, std=std)
        init.ones_(self.bias)

    def matrix(self, length: int | None = None, start: int = 0, causal: bool = False) -> torch.Tensor:
        """Return `spatial_matrix` or `grid_matrix` of this W, by default all of it: [H, t - start, t]"""
        weight = self.weight if self.heads > 1 else self.weight[None]
        if self.grid is not None:
            return grid_matrix(weight, self.grid)
        return spatial_matrix(weight, self.length if length is None else length, start, causal)

    def forward(self, v: torch.Tensor, positions: Positions | None = None) -> torch.Tensor:
        """
        Args:
            v: [B, t, E]. Padding must be zero. Head h reads and writes the h-th of H equal parts of the channels.
            positions: Which entries of W and b to use; by default the leading ones.

        Returns:
            [B, m, E]
        """
        positions = Positions() if positions is None else positions
        if positions.documents is not None:
            rows = self(positions.documents.split(v), Positions(positions.causal))
            return positions.documents.join(rows)
        length, start = v.shape[1], positions.start
        bias = self.bias.view(self.heads, -1)
        bias = bias[:, start:length] if positions.rows is None else bias[:, positions.rows]
        takes_fft = positions.entries is None and positions.hidden is None and self.takes_fft(v, positions.causal)
        if takes_fft:
            weight = self.weight.view(self.heads, -1)
        elif positions.entries is None:
            weight = self.matrix(length, start, positions.causal)[:, None]
        else:
            weight = self.weight.view(self.heads, -1)[:, positions.entries]
        if positions.hidden is not None:
            weight = weight.masked_fill(positions.hidden, 0.0)
        outputs = []
        for w, b, part in zip(weight, bias, [v] if self.heads == 1 else v.unflatten(2, (self.heads, -1)).unbind(2)):
            if takes_fft:
                outputs.append(toeplitz_product(w, part) + b[..., None])
            else:
                # Not `w @ part`, which copies v to fold the batch into one product.
                outputs.append(torch.baddbmm(b[..., None], w.expand(v.shape[0], -1, -1), part))
        return outputs[0] if self.heads == 1 else torch.cat(outputs, dim=2)

    def takes_fft(self, v: torch.Tensor, causal: bool) -> bool:
        """Whether to use `toeplitz_product`. Not in causal models, where later tokens must not change earlier ones even
        by rounding. Exported models take every length, and must not choose by it.
        """
        exporting = torch.compiler.is_exporting() or torch.jit.is_tracing()
        long = v.shape[1] >= FFT_LENGTH and v.device.type == "cpu" and not exporting
        return self.toeplitz and self.grid is None and not causal and long

    def set_parameters(self, weight: torch.Tensor, bias: torch.Tensor):
        self.weight = nn.Parameter(weight, requires_grad=self.weight.requires_grad)
        self.bias = nn.Parameter(bias, requires_grad=self.bias.requires_grad)

    @torch.no_grad()
    def resize(self, length: int):
        """Grow or shrink W and b to `length` tokens, in place. Their leading part stays, and a Toeplitz W keeps the
        weight of every offset; new weights do not mix, and new biases are one.
        """
        if self.grid is not None:
            raise ValueError("This W mixes a grid of patches: change the grid with `resize_grid`.")
        grown = length - self.length
        # Negative padding crops.
        weight = F.pad(self.weight, (grown, grown) if self.toeplitz else (0, grown, 0, grown))
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
        return f"length={self.length}, toeplitz={self.toeplitz}, heads={self.heads}, grid={self.grid}"


class SpatialGatingUnit(nn.Module):
    """s(Z) = Z1 * f(Z2), or another row of Table 3, where f is the spatial projection of the normalized input."""

    def __init__(self, config: PreTrainedConfig, layer_idx: int = 0):
        super().__init__()
        self.config = config
        # The cache layer that holds v.
        self.layer_idx = layer_idx
        self.norm = nn.LayerNorm(config.spatial_size, eps=config.spatial_layer_norm_eps)
        # Of image models; text has no grid.
        grid = getattr(config, "grid_size", None) if config.toeplitz else None
        self.proj = SpatialProjection(config.max_position_embeddings, config.toeplitz, config.spatial_heads, grid)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_output: torch.Tensor | None = None,
        positions: Positions | None = None,
        past_key_values: Cache | None = None,
    ) -> torch.Tensor:
        """Takes Z, [B, m, d_ffn], after the activation, the tiny attention of an aMLP, [B, m, E], which is added to f
        (Figure 6), positions, by default those of a row without padding, and a cache for v; returns s(Z), [B, m, E],
        where E is d_ffn / 2 after a split and d_ffn without one."""
        gating = SPATIAL_GATINGS[self.config.spatial_gating]
        positions = Positions(self.config.is_causal) if positions is None else positions
        u = v = hidden_states
        if gating.splits:
            # Not two slices, whose gradients would each be padded with zeros and then added.
            u, v = hidden_states.unflatten(-1, (2, -1)).unbind(-2)
        v = self.norm(v)
        if positions.padding is not None:
            # After the norm, whose bias would otherwise leak from padding into every token.
            v = v.masked_fill(positions.padding[..., None], 0.0)
        if past_key_values is not None:
            # As keys, without values.
            v = past_key_values.update(v[:, None], v[:, None, :, :0], self.layer_idx)[0][:, 0]
        f = self.proj(v, positions)
        if attention_output is not None:
            f = f + attention_output
        return gating.combine(u, f)
