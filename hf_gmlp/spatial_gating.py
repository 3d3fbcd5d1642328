# Copyright 2026 The hf_gmlp authors. Licensed under the Apache License, Version 2.0.
"""The spatial projection and the spatial gating unit (paper, section 2.1 and Appendix C).

Tokens are mixed by one matrix W [n, n], the same for all channels, and the result gates the tokens themselves:
s(Z) = Z1 * (W LN(Z2) + b). This file travels with every saved checkpoint and needs torch and transformers alone.
"""

import torch
from torch import nn
from torch.nn import functional as F
from transformers import initialization as init
from transformers.utils import is_torchdynamo_exporting

from .configuration_gmlp import GMLPBaseConfig

# From this length on, the Toeplitz product is taken by FFT on CPUs: 1.3 times as fast as the matrix product at 1024
# tokens, 14 times at 8192, and slower at 512 (docs/performance.md). Not measured on GPUs, which keep the matrix.
FFT_LENGTH = 1024


def toeplitz_matrix(weight: torch.Tensor, length: int, start: int = 0) -> torch.Tensor:
    """
    The leading block of the Toeplitz matrix of Appendix C: W[i, j] = weight[n - 1 + j - i].

    Args:
        weight: [2n - 1], one weight per offset j - i, from -(n - 1) to n - 1.
        length: m <= n, the number of rows and columns of the block.
        start: The first of its rows that is wanted.

    Returns:
        [m - start, m]
    """
    n = (weight.shape[0] + 1) // 2
    # Row i is the window of weights that starts at offset -i; `unfold` lists the windows from the last row to the
    # first. Strided views and one copy: several times faster, forward and backward, than indexing with [m, m]. The
    # windows have n weights and not m, which `torch.export` would take for a constant.
    return weight.unfold(0, n, 1)[n - length : n - start, :length].flip(0)


def spatial_projection(
    v: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, out: torch.Tensor | None = None
) -> torch.Tensor:
    """
    f(v) = W v + b over the token axis (Equation 2).

    Args:
        v: [batch, m, channels]
        weight: W, [m, m], or some of its rows; [batch, m, m] if it differs from sample to sample.
        bias: b, [m], for the rows that there are; [batch, m] if it differs.
        out: What to write the result over, where no gradient is wanted.

    Returns:
        [batch, m, channels], or as many tokens as there are rows.
    """
    # Not `weight @ v`, which copies v to fold the batch into one product.
    return torch.baddbmm(bias[..., None], weight.expand(v.shape[0], -1, -1), v, out=out)


def toeplitz_product_fft(v: torch.Tensor, offsets: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """
    W v + b for a Toeplitz W, as a convolution over the tokens: O(m log m) per channel, and no W in memory. Transforms
    are taken in single precision, or double if v is.

    Args:
        v: [batch, m, channels]
        offsets: [2m - 1], the weights of the offsets j - i from -(m - 1) to m - 1.
        bias: b, [m]

    Returns:
        [batch, m, channels]
    """
    length = v.shape[1]
    size = _fft_size(2 * length - 1)
    product = _spectrum(v, size) * _kernel_spectrum(offsets, size, v.dtype)
    return torch.fft.irfft(product, size)[..., :length].transpose(1, 2).to(v.dtype).contiguous() + bias[:, None]


def toeplitz_product_fft_backward(
    grad: torch.Tensor, v: torch.Tensor, offsets: torch.Tensor, needs_offsets: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """
    Gradients of v and of the offsets: the correlations of the output's gradient with the offsets and with v.

    Args:
        grad: [batch, m, channels], the gradient of the product.
        v, offsets: What the product was of.
        needs_offsets: Whether the second one is wanted.

    Returns:
        [batch, m, channels], and [2m - 1] or `None`.
    """
    length = v.shape[1]
    size = _fft_size(2 * length - 1)
    grad_spectrum = _spectrum(grad, size)
    kernel = _kernel_spectrum(offsets, size, v.dtype)
    grad_v = torch.fft.irfft(grad_spectrum * kernel.conj(), size)[..., :length].transpose(1, 2).to(v.dtype)
    if not needs_offsets:
        return grad_v.contiguous(), None
    # Summed over batch and channels before the one transform back.
    spectrum = (grad_spectrum * _spectrum(v, size).conj()).sum((0, 1))
    lags = torch.fft.irfft(spectrum, size)
    # Lag i - j from 0 on comes first, negative lags are at the end; an offset is j - i.
    return grad_v.contiguous(), torch.cat([lags[size - length + 1 :], lags[:length]]).flip(0)


def _spectrum(v: torch.Tensor, size: int) -> torch.Tensor:
    """Of v over its tokens, padded with zeros: [batch, m, channels] -> [batch, channels, size / 2 + 1]."""
    v = v.to(torch.promote_types(v.dtype, torch.float32))
    # Along the last axis, a transform runs over neighboring numbers.
    return torch.fft.rfft(v.transpose(1, 2).contiguous(), size)


def _kernel_spectrum(offsets: torch.Tensor, size: int, dtype: torch.dtype) -> torch.Tensor:
    """Of the convolution's kernel: the lags i - j from 0 to m - 1 in front, from -(m - 1) to -1 at the end."""
    offsets = offsets.to(torch.promote_types(dtype, torch.float32))
    length = (offsets.shape[0] + 1) // 2
    lags = offsets.flip(0)
    gap = offsets.new_zeros(size - offsets.shape[0])
    return torch.fft.rfft(torch.cat([lags[length - 1 :], gap, lags[: length - 1]]))


def _fft_size(least: int) -> int:
    """The smallest even 2^k, 3 * 2^k or 5 * 2^k of at least `least`: sizes that transforms are fast at."""
    return min(factor << max(1, (-(-least // factor) - 1).bit_length()) for factor in (1, 3, 5))


class SpatialProjection(nn.Module):
    """
    Holds W and b of one block for up to n tokens: W is [n, n], or its 2n - 1 offsets when Toeplitz.

    A causal one hides the weights with j > i, so that no token sees a later one; they stay where they are, so that one
    checkpoint serves both ways of looking, and get no gradient.

    A class of its own rather than an `nn.Linear`, so that tools which collect linear layers (LoRA on "all-linear",
    quantizers) take the channel projections and leave this one alone.
    """

    def __init__(self, length: int, toeplitz: bool, causal: bool = False, fft: bool = False):
        super().__init__()
        self.toeplitz = toeplitz
        self.causal = causal
        # Whether a long Toeplitz product may be taken by FFT.
        self.fft = fft
        self.weight = nn.Parameter(torch.empty(2 * length - 1 if toeplitz else (length, length)))
        self.bias = nn.Parameter(torch.empty(length))

    def reset_parameters(self, std: float):
        """W near zero and b at one: the gate starts as f(v) = 1, and the block as a plain feed-forward network."""
        init.normal_(self.weight, std=std)
        init.ones_(self.bias)

    def matrix(self, length: int | None = None, start: int = 0) -> torch.Tensor:
        """The leading [m, m] block of W, the whole of it by default, from row `start` on: [m - start, m]."""
        return self.matrix_of(self.weight, self.bias.shape[0] if length is None else length, start)

    def matrix_of(self, weight: torch.Tensor, length: int, start: int = 0) -> torch.Tensor:
        """As `matrix`, with another weight in place of the layer's own."""
        n = self.bias.shape[0]
        if self.toeplitz:
            matrix = toeplitz_matrix(weight, length, start)
        else:
            # Negative padding crops. A slice would do, but `torch.export` then refuses the length n itself.
            matrix = F.pad(weight, (0, length - n, -start, length - n))
        return matrix.tril(start) if self.causal else matrix

    def offsets_of(self, weight: torch.Tensor, length: int) -> torch.Tensor:
        """The weights of a Toeplitz W's leading [m, m] block, by offset: [2m - 1]."""
        n = self.bias.shape[0]
        offsets = F.pad(weight, (length - n, length - n))
        return F.pad(offsets[:length], (0, length - 1)) if self.causal else offsets

    def uses_fft(self, v: torch.Tensor) -> bool:
        """Whether W v, [batch, m, channels], is better taken as a convolution."""
        # An exported model is for all lengths; so it has no branches on them, and takes the matrix.
        return (
            self.fft
            and self.toeplitz
            and v.device.type == "cpu"
            and not is_torchdynamo_exporting()
            and v.shape[1] >= FFT_LENGTH
        )

    def forward(self, v: torch.Tensor, start: int = 0, positions: torch.Tensor | None = None) -> torch.Tensor:
        """
        Args:
            v: [batch, m, channels]
            start: The first token whose output is wanted: in generation, the earlier ones have theirs already.
            positions: [batch, m], the row of W and b that each token has; 0 to m - 1 by default. For a causal model
                whose sequences begin with padding.

        Returns:
            [batch, m - start, channels]
        """
        length = v.shape[1]
        if positions is None and start == 0 and self.uses_fft(v):
            return toeplitz_product_fft(v, self.offsets_of(self.weight, length), self.bias[:length])
        if positions is None:
            return spatial_projection(v, self.matrix(length, start), self.bias[start:length])
        rows = positions[:, start:]
        if self.toeplitz:
            # Distances, which is all that a Toeplitz W knows, are not changed by padding in front.
            weight = self.matrix(length, start)
        else:
            weight = self.weight[rows[:, :, None], positions[:, None, :]].tril(start)
        return spatial_projection(v, weight, self.bias[rows])

    @torch.no_grad()
    def resize(self, length: int):
        """
        Grow or shrink to `length` tokens, in place. The leading part of W and b is kept; what is new is as at
        initialization: no mixing, and a bias of one. A Toeplitz W keeps the weight of every offset.
        """
        old = self.bias.shape[0]
        if self.toeplitz:
            pad = (length - old, length - old)
        else:
            pad = (0, length - old, 0, length - old)
        # Negative padding crops.
        self.weight = nn.Parameter(F.pad(self.weight, pad), requires_grad=self.weight.requires_grad)
        self.bias = nn.Parameter(F.pad(self.bias, (0, length - old), value=1.0), requires_grad=self.bias.requires_grad)

    @torch.no_grad()
    def resize_grid(self, old_grid: tuple[int, int], new_grid: tuple[int, int], num_prefix_tokens: int):
        """
        Interpolate a dense W and b from one grid of patches to another, in place: W over the grid of the output
        patches (its rows) and over the grid of the input patches (its columns), b over the grid of its patches. The
        entries of the prefix tokens ([CLS]) are kept.

        W sums over its columns, so they are scaled by the ratio of the patch counts: a picture seen through more,
        finer patches then gets the same gate as before.
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
        weight = over_grid(weight.T).T.contiguous()
        self.weight = nn.Parameter(weight, requires_grad=self.weight.requires_grad)
        self.bias = nn.Parameter(over_grid(self.bias[None])[0], requires_grad=self.bias.requires_grad)

    def extra_repr(self) -> str:
        return f"length={self.bias.shape[0]}, toeplitz={self.toeplitz}, causal={self.causal}"


class SpatialGatingUnit(nn.Module):
    """
    s(Z) in its four forms (Table 3): "split" Z1 * f(Z2), "multiplicative" Z * f(Z), "additive" Z + f(Z) and "linear"
    f(Z), where f is the spatial projection of the normalized input.
    """

    def __init__(self, config: GMLPBaseConfig):
        super().__init__()
        self.spatial_gating = config.spatial_gating
        self.norm = nn.LayerNorm(config.spatial_size, eps=config.spatial_layer_norm_eps)
        self.proj = SpatialProjection(
            config.max_position_embeddings,
            config.toeplitz,
            config.is_causal,
            fft=config.gating_implementation != "reference",
        )

    def split(
        self, hidden_states: torch.Tensor, padding_mask: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """
        Args:
            hidden_states: Z, [batch, m, d_ffn], after the activation.
            padding_mask: [batch, m], 1 for tokens and 0 for padding, which is then hidden from all tokens.

        Returns:
            u, which is gated, and v, the normalized input of f; both [batch, m, spatial_size], and both from all of Z
            where there is no split.
        """
        if self.spatial_gating == "split":
            u, v = hidden_states.chunk(2, dim=-1)
        else:
            u = v = hidden_states
        v = self.norm(v)
        if padding_mask is not None:
            # After the norm, whose bias would otherwise leak from padding into every token.
            v = v.masked_fill(padding_mask[:, :, None] == 0, 0.0)
        return u, v

    def forward(
        self,
        u: torch.Tensor,
        v: torch.Tensor,
        attention_output: torch.Tensor | None = None,
        positions: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """
        Args:
            u: [batch, m, spatial_size]
            v: [batch, m, spatial_size]; in generation, of the tokens before these m too.
            attention_output: [batch, m, spatial_size], the tiny attention of an aMLP, added to f (Figure 6).
            positions: As in `SpatialProjection`.

        Returns:
            s(Z), [batch, m, spatial_size]
        """
        gate = self.proj(v, v.shape[1] - u.shape[1], positions)
        if attention_output is not None:
            gate = gate + attention_output
        if self.spatial_gating == "linear":
            return gate
        return u + gate if self.spatial_gating == "additive" else u * gate
