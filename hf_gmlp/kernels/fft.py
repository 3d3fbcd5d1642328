"""The spatial projection of a Toeplitz W as a convolution, by FFT (paper, Appendix C: W[i, j] = w[n - 1 + j - i])."""

import torch
from torch import nn
from torch.nn import functional as F

from ..models.heads import Documents
from ..models.modeling_gmlp import naive_gating
from ..models.spatial_gating import SPATIAL_GATINGS
from .predicate import autocast_dtype, dtypes_fit, is_plain_tensor, is_watched, unit_untouched

# From this length on, the FFT is faster than the matrix product on CPUs: 1.3 times at 1024 tokens, 14 times at 8192; it
# is slower at 512 (docs/performance.md). Not measured on GPUs, which keep the matrix.
FFT_LENGTH = 1024


def takes_fft(v: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether to compute W v, [batch, m, channels], as a convolution; `weight` holds W as its parameter does."""
    if weight.dim() != 1 or v.device.type != "cpu":
        return False
    # With more than n tokens, the matrix raises the error.
    return FFT_LENGTH <= v.shape[1] <= (weight.shape[0] + 1) // 2


def may_take_fft(block: nn.Module, hidden_states: torch.Tensor) -> bool:
    """
    Whether `fft_gating` may go around the gating unit and its projection, for x [batch, m, D]. Compilers trace this,
    except for `is_watched`, which they cannot trace and need not ask.
    """
    # An exported or traced model serves all lengths and must not branch on them: it takes the matrix.
    if is_exporting() or torch.jit.is_tracing():
        return False
    if not is_plain_tensor(hidden_states) or hidden_states.dim() != 3:
        return False
    if not unit_untouched(block.spatial_gating_unit):
        return False
    projection = block.spatial_gating_unit.proj
    return (
        takes_fft(hidden_states, projection.weight)
        and dtypes_fit(list(projection._parameters.values()), hidden_states)
        and (torch.compiler.is_compiling() or not is_watched())
    )


def is_exporting() -> bool:
    """Whether `torch.export` is running. PyTorch before 2.7 cannot tell it from a compiler."""
    asked = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)
    return asked()


def toeplitz_offsets(weight: torch.Tensor, length: int, causal: bool) -> torch.Tensor:
    """The weights of a Toeplitz W's leading [m, m] block, by offset j - i: [2n - 1] -> [2m - 1]"""
    n = (weight.shape[0] + 1) // 2
    offsets = weight[n - length : n + length - 1]
    return F.pad(offsets[:length], (0, length - 1)) if causal else offsets


def fft_gating(
    block: nn.Module,
    hidden_states: torch.Tensor,
    padding_mask: torch.Tensor | None = None,
    attention_mask: torch.Tensor | None = None,
    documents: Documents | None = None,
    **kwargs,
) -> torch.Tensor:
    """
    `naive_gating` with the FFT in place of the matrix, where that is faster and the two layers that it does not call,
    the gating unit and its projection, are untouched. It serves compiled models and those with adapters.
    """
    if documents is not None or not may_take_fft(block, hidden_states):
        return naive_gating(block, hidden_states, padding_mask, attention_mask, documents=documents, **kwargs)
    unit = block.spatial_gating_unit
    gating = SPATIAL_GATINGS[unit.config.spatial_gating]
    x = block.norm(hidden_states)
    u = v = block.activation_dropout(block.activation(block.proj_in(x)))
    attention_output = None
    if block.attention is not None:
        attention_output = block.attention(x, attention_mask, None, **kwargs)[0]
    if gating.splits:
        half = u.shape[-1] // 2
        u, v = u[..., :half], v[..., half:]
    v = unit.norm(v)
    if padding_mask is not None:
        v = v.masked_fill(padding_mask[:, :, None] == 0, 0.0)
    length = v.shape[1]
    offsets = toeplitz_offsets(unit.proj.weight, length, unit.config.is_causal)
    f = toeplitz_product_fft(v, offsets, unit.proj.bias[:length])
    if attention_output is not None:
        f = f + attention_output
    return block.proj_out(gating.combine(u, f))


def toeplitz_product_fft(v: torch.Tensor, offsets: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """
    Returns W v + b, [batch, m, channels], for a Toeplitz W as a convolution over the tokens: O(m log m) per channel,
    and no W in memory. Transforms are in single precision, or in double if v is; the result has the dtype that the
    matrix product would have, under autocast too.

    Rounding spreads over all tokens, in float32 by about 2e-5 of the largest output: so even with a causal W, later
    tokens change earlier ones by that much.

    Args:
        v: [batch, m, channels]
        offsets: [2m - 1], the weights of the offsets j - i from -(m - 1) to m - 1.
        bias: b, [m]
    """
    length = v.shape[1]
    size = _fft_size(2 * length - 1)
    product = _spectrum(v, size) * _kernel_spectrum(offsets, size, v.dtype)
    output = torch.fft.irfft(product, size)[..., :length].transpose(1, 2).contiguous() + bias[:, None]
    # Autocast leaves double precision alone.
    dtype = None if v.dtype == torch.float64 else autocast_dtype(v.device.type)
    return output.to(dtype or v.dtype)


def toeplitz_product_fft_backward(
    grad: torch.Tensor, v: torch.Tensor, offsets: torch.Tensor, needs_offsets: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """
    Returns the gradients of v [batch, m, channels] and, if `needs_offsets`, of the offsets [2m - 1]: the correlations
    of the output's gradient with the offsets and with v.
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
    # Lags i - j from 0 on come first, negative lags are at the end; an offset is j - i.
    return grad_v.contiguous(), torch.cat([lags[size - length + 1 :], lags[:length]]).flip(0)


def _spectrum(v: torch.Tensor, size: int) -> torch.Tensor:
    """Transforms v over its tokens, padded with zeros: [batch, m, channels] -> [batch, channels, size / 2 + 1]"""
    v = v.to(torch.promote_types(v.dtype, torch.float32))
    # Along the last axis, a transform runs over neighboring numbers.
    return torch.fft.rfft(v.transpose(1, 2).contiguous(), size)


def _kernel_spectrum(offsets: torch.Tensor, size: int, dtype: torch.dtype) -> torch.Tensor:
    """Transforms the kernel: the lags i - j from 0 to m - 1 come first, those from -(m - 1) to -1 at the end."""
    lags = offsets.to(torch.promote_types(dtype, torch.float32)).flip(0)
    length = (lags.shape[0] + 1) // 2
    gap = lags.new_zeros(size - lags.shape[0])
    return torch.fft.rfft(torch.cat([lags[length - 1 :], gap, lags[: length - 1]]))


def _fft_size(least: int) -> int:
    """
    The smallest even 2^k, 3 * 2^k or 5 * 2^k of at least `least`: sizes at which transforms are fast. In a compiled
    model the smallest 2^k: lengths of one size share a graph, and a compiler stops after a few graphs.
    """
    if torch.compiler.is_compiling():
        size = 2
        while size < least:
            size *= 2
        return size
    return min(factor << max(1, (-(-least // factor) - 1).bit_length()) for factor in (1, 3, 5))
