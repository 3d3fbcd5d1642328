"""The spatial gating unit (models/spatial_gating.py) as Triton kernels for GPUs, with less memory traffic.

The kernels, and what each moves through memory, in numbers of E per token (E channels):

    forward   _norm            v_hat = LN(gelu(v))                                      reads 1, writes 1
              _product         gate = W v_hat + b, gated = gelu(u) * gate               reads 2, writes 2
    backward  _gate_backward   grad_gate, grad_u, v_hat and gated again, sums for b     reads 4, writes 4
              _product         W^T grad_gate                                            reads 1, writes 1
              _weight_gradient grad_gate v_hat^T                                        reads 2
              _norm_backward   grad_v, sums for the norm                                reads 2, writes 1

That is 6 forward and 15 backward (for "split"), where the plain form moves 11 and more than 20. A Toeplitz W is read
from its 2n - 1 weights and is never in memory. The empty half of a causal W is not multiplied.

Sums are in float32 and in a fixed order, so on one GPU the same inputs give the same bits. Products are in the dtype of
u; those in float32 are IEEE unless PyTorch is set to TF32. This file can be imported without triton.
"""

# Annotations stay strings: without triton there is no tl.constexpr.
from __future__ import annotations

from typing import NamedTuple

import torch
from torch.nn import functional as F

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

SPATIAL_GATINGS = ("split", "multiplicative", "additive", "linear")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# A program of the row kernels holds a whole row of channels in registers.
MAX_CHANNELS = 8192


class Gradients(NamedTuple):
    """What `gating_backward` returns. Gradients of parameters have the parameters' shapes and dtypes."""

    u: torch.Tensor | None  # [batch, m, E], before the activation; `None` without a split
    v: torch.Tensor  # [batch, m, E]; without a split, the gradient of both
    gate: torch.Tensor  # [batch, m, E], and of attention_output; may be the gradient that was given
    norm_weight: torch.Tensor
    norm_bias: torch.Tensor
    weight: torch.Tensor | None  # with zeros for what m tokens do not use; `None` if not asked for
    bias: torch.Tensor
    gated: torch.Tensor | None  # not a gradient, but the output of `gating_forward`; `None` if not asked for


def _jit(function):
    return function if triton is None else triton.jit(function)


def can_use_triton(device: torch.device) -> bool:
    """Whether triton is installed, and the device is an NVIDIA GPU of compute capability 8.0 or more (Ampere and later)
    or triton interprets its kernels on the CPU (TRITON_INTERPRET=1)."""
    if triton is None:
        return False
    if _is_interpreted():
        return True
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)


def gating_forward(
    u: torch.Tensor,
    v: torch.Tensor,
    norm_weight: torch.Tensor,
    norm_bias: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    bias: torch.Tensor,
    *,
    spatial_gating: str,
    toeplitz: bool,
    causal: bool,
    padding_mask: torch.Tensor | None = None,
    attention_output: torch.Tensor | None = None,
    needs_gate: bool = True,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """
    Computes gelu(u) * gate, gelu(u) + gate or gate, where gate = W LN(gelu(v)) + b (+ attention), with exact GELU.

    Args:
        u, v: [batch, m, E], before the activation, of one dtype: float32, bfloat16 or float16. Strides may be any;
            contiguous channels are read without a copy. Without a split, both are the same tensor.
        norm_weight, norm_bias: [E]. These, `weight` and `bias` may have another dtype, as under autocast.
        weight: W, [n, n] with n >= m, or, if `toeplitz`, [2n - 1]: W[i, j] = weight[n - 1 + j - i].
        bias: b, [n].
        causal: Whether W[i, j] counts as 0 for j > i.
        padding_mask: [batch, m], 0 for padding, whose v is hidden from all tokens.
        attention_output: [batch, m, E], added to the gate.
        needs_gate: Whether the backward pass will need the gate.

    Returns:
        The output, and the gate or `None` if it is not needed; both [batch, m, E], contiguous and in u's dtype. For
        "linear", they are one tensor.

    Raises:
        ValueError: If dtypes or shapes do not fit.
    """
    _check(u, v, norm_weight, norm_bias, weight, bias, spatial_gating, toeplitz, padding_mask)
    _check_like(attention_output, "attention_output", v, any_dtype=True)
    u, v = _rows(u), _rows(v)
    norm_weight, norm_bias, bias = norm_weight.contiguous(), norm_bias.contiguous(), bias.contiguous()
    with torch.cuda.device_of(v):
        mask = _mask(padding_mask)
        normed = v.new_empty(v.shape)
        rows, tile = _row_grid(v)
        _norm[(rows,)](
            v, *v.stride()[:2], norm_weight, norm_bias, mask, normed, *_sizes(v), eps, mask is not None, **tile
        )
        gate = v.new_empty(v.shape) if needs_gate or spatial_gating == "linear" else None
        gated = gate if spatial_gating == "linear" else v.new_empty(v.shape)
        _multiply(normed, weight, causal, False, gate, spatial_gating, gated, u, bias, _rows(attention_output))
    return gated, gate


def gating_backward(
    grad: torch.Tensor,
    u: torch.Tensor,
    v: torch.Tensor,
    gate: torch.Tensor,
    norm_weight: torch.Tensor,
    norm_bias: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    bias: torch.Tensor,
    *,
    spatial_gating: str,
    toeplitz: bool,
    causal: bool,
    padding_mask: torch.Tensor | None = None,
    needs_weight: bool = True,
    needs_gated: bool = False,
) -> Gradients:
    """
    Computes the gradients of `gating_forward` from its inputs, which are described there, and its gate.

    Args:
        grad: [batch, m, E], the gradient of the output.
        gate: As returned by `gating_forward`.
        needs_weight: Whether to compute the gradient of W.
        needs_gated: Whether to recompute the output, for the gradient of the next layer.

    Raises:
        ValueError: If dtypes or shapes do not fit.
    """
    _check(u, v, norm_weight, norm_bias, weight, bias, spatial_gating, toeplitz, padding_mask)
    _check_like(grad, "grad", v)
    _check_like(gate, "gate", v)
    u, v, grad, gate = _rows(u), _rows(v), _rows(grad), _rows(gate)
    norm_weight, norm_bias = norm_weight.contiguous(), norm_bias.contiguous()
    batch, length, channels = v.shape
    with torch.cuda.device_of(v):
        mask = _mask(padding_mask)
        rows, tile = _row_grid(v)
        multiplies = spatial_gating in ("split", "multiplicative")
        grad_gate = v.new_empty(v.shape) if multiplies else grad
        grad_u = v.new_empty(v.shape) if spatial_gating == "split" else None
        normed = v.new_empty(v.shape) if needs_weight else None
        gated = None
        if needs_gated:
            gated = gate if spatial_gating == "linear" else v.new_empty(v.shape)
        mean, deviation, grad_bias = v.new_empty(3, batch, length, dtype=torch.float32)
        _gate_backward[(rows,)](
            *(grad, *grad.stride()[:2], gate, *gate.stride()[:2], u, *u.stride()[:2], v, *v.stride()[:2]),
            *(norm_weight, norm_bias, mask, grad_gate, grad_u, normed, gated, mean, deviation, grad_bias),
            *(*_sizes(v), eps, spatial_gating, mask is not None, needs_weight, needs_gated),
            **tile,
        )
        grad_bias = F.pad(grad_bias.sum(0), (0, bias.shape[0] - length)).to(bias.dtype)

        grad_normed = v.new_empty(v.shape)
        _multiply(grad_gate, weight, causal, True, grad_normed)
        grad_weight = _weight_gradient_of(grad_gate, normed, weight, causal) if needs_weight else None
        del normed

        grad_v = v.new_empty(v.shape)
        # Each makes a partial sum: about 4 for each multiprocessor of the largest GPUs.
        programs = min(rows, 512)
        partial = v.new_empty(2, programs, channels, dtype=torch.float32)
        _norm_backward[(programs,)](
            *(grad_normed, v, *v.stride()[:2], grad, *grad.stride()[:2], gate, *gate.stride()[:2]),
            *(mean, deviation, norm_weight, mask, grad_v, *partial, *_sizes(v)),
            *(spatial_gating, mask is not None),
            # This kernel keeps two more tensors in registers than the other row kernels, so it has twice the threads.
            **tile | dict(num_warps=min(16, 2 * tile["num_warps"])),
        )
        norm_sums = partial.sum(1)
    grad_norm_weight, grad_norm_bias = norm_sums[0].to(norm_weight.dtype), norm_sums[1].to(norm_bias.dtype)
    return Gradients(grad_u, grad_v, grad_gate, grad_norm_weight, grad_norm_bias, grad_weight, grad_bias, gated)


def _multiply(
    x: torch.Tensor,
    weight: torch.Tensor,
    causal: bool,
    transposed: bool,
    output: torch.Tensor | None,
    spatial_gating: str = "none",
    gated: torch.Tensor | None = None,
    u: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    attention_output: torch.Tensor | None = None,
):
    """Writes W x or W^T x into `output`; with a gating, W x + b into `output`, if not `None`, and s into `gated`."""
    (batch, length, channels), toeplitz = x.shape, weight.dim() == 1
    blocks = _product_blocks(x.dtype, toeplitz, x.device)
    if toeplitz:
        matrix, columns = _offsets(weight, length, causal, transposed, x.dtype), 0
    else:
        matrix, columns = _matrix(weight, length, causal, transposed, x.dtype)
    row_blocks = -(-length // blocks["BLOCK_M"])
    panels = batch * -(-channels // blocks["BLOCK_N"])
    _product[(row_blocks * panels,)](
        *(matrix, matrix.stride(0), columns, x, *x.stride()[:2], output, gated),
        *(u, *_strides(u), bias, attention_output, *_strides(attention_output)),
        *(length, channels, row_blocks, panels),
        *(toeplitz, causal, transposed, spatial_gating, output is not None, attention_output is not None),
        _precision(x.dtype),
        **blocks,
    )


def _weight_gradient_of(
    grad_gate: torch.Tensor, normed: torch.Tensor, weight: torch.Tensor, causal: bool
) -> torch.Tensor:
    """grad_gate v_hat^T over batch and channels, in the form and dtype of the parameter."""
    batch, length, channels = normed.shape
    blocks = _gradient_blocks(normed.dtype)
    row_blocks, column_blocks = -(-length // blocks["BLOCK_M"]), -(-length // blocks["BLOCK_N"])
    channel_blocks = -(-channels // blocks["BLOCK_K"])
    steps = batch * channel_blocks
    # Splits the sum into two programs for each multiprocessor of the largest GPUs, of at least eight steps each. The
    # device does not matter, because other splits give other bits.
    splits = max(1, min(256 // max(1, row_blocks * column_blocks), steps // 8))
    # Rows begin at multiples of 64 bytes for wide stores.
    columns = -(-length // 16) * 16
    partial = normed.new_empty(splits, length, columns, dtype=torch.float32)
    _weight_gradient[(row_blocks * column_blocks, splits)](
        *(grad_gate, *grad_gate.stride()[:2], normed, partial),
        *(length, columns, channels, column_blocks, channel_blocks, steps, -(-steps // splits)),
        *(causal, _precision(normed.dtype)),
        **blocks,
    )
    matrix = partial[0] if splits == 1 else partial.sum(0)
    if weight.dim() == 2:
        rest = weight.shape[0] - length
        # Negative padding crops.
        return F.pad(matrix, (0, weight.shape[0] - columns, 0, rest)).to(weight.dtype)
    sums = matrix.new_empty(2 * length - 1)
    _diagonal_sums[(-(-sums.shape[0] // 16),)](matrix, sums, length, columns, BLOCK_I=128, BLOCK_D=16)
    rest = (weight.shape[0] - sums.shape[0]) // 2
    return F.pad(sums, (rest, rest)).to(weight.dtype)


def _matrix(
    weight: torch.Tensor, length: int, causal: bool, transposed: bool, dtype: torch.dtype
) -> tuple[torch.Tensor, int]:
    """
    The leading [m, m] of a dense W, or its transpose, for the product, and the number of columns that may be read. A W
    that cannot be read 16 bytes at a time along a row is copied once and filled with zeros up to a multiple of 16
    columns, which spares the inner loop masks and transposing.
    """
    columns = -(-length // 16) * 16
    aligned = weight.stride(0) % 16 == 0 and weight.stride(1) == 1 and weight.data_ptr() % 16 == 0
    if aligned and length == columns and weight.dtype == dtype and not causal and not transposed:
        return weight, columns
    block = weight[:length, :length]
    if causal:
        block = block.tril()
    if transposed:
        block = block.T
    return F.pad(block.to(dtype), (0, columns - length)).contiguous(), columns


def _offsets(weight: torch.Tensor, length: int, causal: bool, transposed: bool, dtype: torch.dtype) -> torch.Tensor:
    """The 2m - 1 weights of a Toeplitz W's leading [m, m] block, or of its transpose, by offset j - i. Zeros for what a
    causal W hides spare the inner loop a mask."""
    n = (weight.shape[0] + 1) // 2
    if causal:
        offsets = F.pad(weight[n - length : n], (0, length - 1))
    else:
        offsets = weight[n - length : n + length - 1]
    if transposed:
        offsets = offsets.flip(0)
    return offsets.to(dtype).contiguous()


def _product_blocks(dtype: torch.dtype, toeplitz: bool, device: torch.device) -> dict[str, int]:
    """
    Tile sizes of `_product` for inputs of any size. In 16 bits, two programs fit on a multiprocessor of a Hopper GPU
    (128 registers per thread and 96 KB of shared memory each), so that one writes while the other multiplies. This
    helps a Toeplitz W most, whose weights are loaded without pipelining. Ampere would spill with `maxnreg`.
    """
    if dtype == torch.float32:
        return dict(BLOCK_M=64, BLOCK_N=64, BLOCK_K=32, GROUP=16, num_warps=8, num_stages=3)
    if toeplitz:
        blocks = dict(BLOCK_M=128, BLOCK_N=128, BLOCK_K=32, GROUP=8, num_warps=8, num_stages=4)
        return blocks | dict(maxnreg=128) if _is_hopper(device) else blocks
    return dict(BLOCK_M=128, BLOCK_N=128, BLOCK_K=64, GROUP=8, num_warps=8, num_stages=3)


def _is_hopper(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == 9


def _gradient_blocks(dtype: torch.dtype) -> dict[str, int]:
    """Tile sizes of `_weight_gradient`."""
    if dtype == torch.float32:
        return dict(BLOCK_M=64, BLOCK_N=64, BLOCK_K=32, num_warps=8, num_stages=3)
    return dict(BLOCK_M=128, BLOCK_N=128, BLOCK_K=64, num_warps=8, num_stages=3)


def _row_grid(v: torch.Tensor) -> tuple[int, dict[str, int]]:
    """The number of programs of the row kernels and their tile: one row, or several if there are few channels."""
    batch, length, channels = v.shape
    block = max(16, triton.next_power_of_2(channels))
    rows = max(1, 1024 // block)
    tile = dict(ROWS=rows, BLOCK_E=block, num_warps=min(16, max(4, block // 512)))
    return -(-batch * length // rows), tile


def _precision(dtype: torch.dtype) -> str:
    """The precision of the products: float32 is rounded to TF32 only if PyTorch's own products are."""
    if _is_interpreted() and dtype == torch.bfloat16:
        # The interpreter would multiply the bits of bfloat16 as integers. float32 gives the same result.
        return "interpreted"
    matmul = torch.backends.cuda.matmul
    # The older name warns if the newer one, of PyTorch 2.9, was set.
    tf32 = matmul.fp32_precision == "tf32" if hasattr(matmul, "fp32_precision") else matmul.allow_tf32
    return "tf32" if dtype == torch.float32 and tf32 else "ieee"


def _is_interpreted() -> bool:
    return not isinstance(_norm, triton.JITFunction)


def _rows(x: torch.Tensor | None) -> torch.Tensor | None:
    """Copies x if its strides do not suit the kernels, like those of the gradient of a sum: channels must be side by
    side, and the tokens of a tile within 2^31."""
    if x is None or (x.stride(-1) == 1 and x.stride(1) < 2**23):
        return x
    return x.contiguous()


def _strides(x: torch.Tensor | None) -> tuple[int, int]:
    return (0, 0) if x is None else x.stride()[:2]


def _sizes(v: torch.Tensor) -> tuple[int, int, int]:
    """Rows, tokens of a sample, channels."""
    return v.shape[0] * v.shape[1], v.shape[1], v.shape[2]


def _mask(padding_mask: torch.Tensor | None) -> torch.Tensor | None:
    return None if padding_mask is None else (padding_mask != 0).contiguous().view(torch.uint8)


def _check(u, v, norm_weight, norm_bias, weight, bias, spatial_gating: str, toeplitz: bool, padding_mask):
    if spatial_gating not in SPATIAL_GATINGS:
        raise ValueError(f"spatial_gating must be one of {', '.join(SPATIAL_GATINGS)}, got {spatial_gating!r}.")
    if v.dtype not in DTYPES:
        raise ValueError(f"v must be float32, bfloat16 or float16, got {v.dtype}. Use the naive implementation.")
    if v.dim() != 3:
        raise ValueError(f"v must be [batch, m, channels], got shape {list(v.shape)}.")
    _check_like(u, "u", v)
    batch, length, channels = v.shape
    if channels > MAX_CHANNELS:
        raise ValueError(
            f"v has {channels} channels, and the kernels take at most {MAX_CHANNELS}. Use the lean implementation."
        )
    n = bias.shape[0]
    if length > n:
        raise ValueError(f"v has {length} tokens, and the spatial projection takes at most {n}.")
    for name, value, shape in (
        ("norm_weight", norm_weight, (channels,)),
        ("norm_bias", norm_bias, (channels,)),
        ("weight", weight, (2 * n - 1,) if toeplitz else (n, n)),
        ("bias", bias, (n,)),
        ("padding_mask", padding_mask, (batch, length)),
    ):
        if value is not None and value.shape != shape:
            raise ValueError(f"{name} must have shape {list(shape)}, got {list(value.shape)}.")
        if value is not None and value.device != v.device:
            raise ValueError(f"{name} must be on {v.device} like v, but is on {value.device}.")


def _check_like(x: torch.Tensor | None, name: str, v: torch.Tensor, any_dtype: bool = False):
    if x is None:
        return
    if x.shape != v.shape or x.device != v.device or (x.dtype != v.dtype and not any_dtype):
        raise ValueError(
            f"{name} must be like v, {list(v.shape)} of {v.dtype} on {v.device}, but is {list(x.shape)} of {x.dtype} "
            f"on {x.device}."
        )


# The kernels. Offsets of samples and tokens are 64-bit: batch * m * E may exceed 2^31. Blocks reach beyond the ends of
# rows and columns, so every load and store has a mask. Each line of a signature has the arguments of one kind.


@_jit
def _tail(x):
    """
    1 - P(|x|), where P is the distribution of the standard normal: 2 to the power of a polynomial in |x|.

    With this minimax fit, P is off by at most 1.5e-7 and x P(x) by 2.4e-7; x (1 + erf(..)) / 2 in float32 is off by
    1.2e-6, since it loses all digits far below 0. It takes a third of the instructions of erf, which would hold up the
    row kernels more than memory does.
    """
    size = tl.abs(x)
    power = -8.6805511e-07
    power = power * size + 1.4388907e-05
    power = power * size - 6.0189042e-05
    power = power * size - 4.5942847e-04
    power = power * size + 7.5082546e-03
    power = power * size - 5.2819498e-02
    power = power * size - 4.5909649e-01
    power = power * size - 1.1511195e00
    power = power * size - 9.9999970e-01
    return tl.exp2(power)


@_jit
def _gelu(x):
    """x P(x)"""
    return tl.maximum(x, 0.0) - tl.abs(x) * _tail(x)


@_jit
def _gelu_and_slope(x):
    """x P(x), and its derivative P(x) + x p(x) with the density p."""
    tail = _tail(x)
    density = 0.3989422804014327 * tl.exp2(-0.7213475204444817 * x * x)
    return tl.maximum(x, 0.0) - tl.abs(x) * tail, tl.where(x >= 0, 1.0 - tail, tail) + x * density


@_jit
def _statistics(z, inside, channels, eps):
    """Mean, 1 / standard deviation and normalized values of rows; zeros where not inside."""
    mean = tl.sum(z, 1) / channels
    centered = tl.where(inside, z - mean[:, None], 0.0)
    deviation = 1.0 / tl.sqrt(tl.sum(centered * centered, 1) / channels + eps)
    return mean, deviation, centered * deviation[:, None]


@_jit
def _load_rows(ptr, stride_b, stride_m, row, length, channel, inside):
    offsets = (row // length).to(tl.int64) * stride_b + (row % length).to(tl.int64) * stride_m
    return tl.load(ptr + offsets[:, None] + channel[None, :], mask=inside, other=0.0).to(tl.float32)


@_jit
def _scale(normed, weight_ptr, bias_ptr, mask_ptr, row, rows, channel, channels, HAS_MASK: tl.constexpr):
    """v_hat from normalized rows: zero at padding."""
    weight = tl.load(weight_ptr + channel, mask=channel < channels, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + channel, mask=channel < channels, other=0.0).to(tl.float32)
    normed = normed * weight[None, :] + bias[None, :]
    if HAS_MASK:
        keep = tl.load(mask_ptr + row, mask=row < rows, other=0) != 0
        normed = tl.where(keep[:, None], normed, 0.0)
    return normed


@_jit
def _dot(a, b, sums, PRECISION: tl.constexpr):
    if PRECISION == "interpreted":
        sums = tl.dot(a.to(tl.float32), b.to(tl.float32), sums)
    else:
        sums = tl.dot(a, b, sums, input_precision=PRECISION)
    return sums


@_jit
def _norm(
    v_ptr, v_stride_b, v_stride_m,
    weight_ptr, bias_ptr, mask_ptr, normed_ptr,
    rows, length, channels, eps,
    HAS_MASK: tl.constexpr, ROWS: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """v_hat for a few rows: LN(gelu(v)), zero at padding."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    channel = tl.arange(0, BLOCK_E)
    inside = (row < rows)[:, None] & (channel < channels)[None, :]
    v = _load_rows(v_ptr, v_stride_b, v_stride_m, row, length, channel, inside)
    _, _, normed = _statistics(_gelu(v), inside, channels, eps)
    normed = _scale(normed, weight_ptr, bias_ptr, mask_ptr, row, rows, channel, channels, HAS_MASK)
    out = normed_ptr + row.to(tl.int64)[:, None] * channels + channel[None, :]
    tl.store(out, normed.to(normed_ptr.dtype.element_ty), mask=inside)


@_jit
def _product(
    w_ptr, w_stride, w_columns, x_ptr, x_stride_b, x_stride_m,
    output_ptr, gated_ptr, u_ptr, u_stride_b, u_stride_m,
    bias_ptr, attention_ptr, attention_stride_b, attention_stride_m,
    length, channels, row_blocks, panels,
    TOEPLITZ: tl.constexpr, CAUSAL: tl.constexpr, TRANSPOSED: tl.constexpr, GATING: tl.constexpr,
    HAS_OUTPUT: tl.constexpr, HAS_ATTENTION: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """
    A tile of W x for one sample: BLOCK_M tokens, BLOCK_N channels. Unless GATING is "none", b, attention and gating
    follow while the tile is in registers. W comes from `_offsets` or `_matrix`; if TRANSPOSED, a causal W is zero below
    its diagonal and not above.

    So that programs that run at the same time share their operands in the L2 cache, GROUP blocks of tokens go through
    all panels (BLOCK_N channels of one sample), the blocks of one panel side by side.
    """
    program = tl.program_id(0)
    first = program // (GROUP * panels) * GROUP
    group = tl.minimum(row_blocks - first, GROUP)
    within = program - first * panels
    row_block = first + within % group
    panel = within // group
    if CAUSAL and not TRANSPOSED:
        # The blocks with the most work come first.
        row_block = row_blocks - 1 - row_block
    channel_blocks = tl.cdiv(channels, BLOCK_N)
    sample = (panel // channel_blocks).to(tl.int64)
    first_row = row_block * BLOCK_M
    first_channel = panel % channel_blocks * BLOCK_N
    # Bases are 64-bit and offsets within a tile 32-bit, which saves registers.
    tile_row = tl.arange(0, BLOCK_M)
    tile_column = tl.arange(0, BLOCK_K)
    tile_channel = tl.arange(0, BLOCK_N)
    row = first_row + tile_row
    in_channels = (first_channel + tile_channel < channels)[None, :]
    x_ptr += sample * x_stride_b + first_channel
    x_offsets = tile_column[:, None] * x_stride_m + tile_channel[None, :]

    begin = 0
    end = length
    if CAUSAL and TRANSPOSED:
        begin = first_row // BLOCK_K * BLOCK_K
    elif CAUSAL:
        end = tl.minimum(length, first_row + BLOCK_M)
    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(begin, end, BLOCK_K):
        column = start + tile_column
        if TOEPLITZ:
            used = (row < length)[:, None] & (column < length)[None, :]
            w = tl.load(w_ptr + (length - 1) + (column[None, :] - row[:, None]), mask=used, other=0.0)
        else:
            used = (row < length)[:, None] & (column < w_columns)[None, :]
            base = w_ptr + tl.cast(first_row, tl.int64) * w_stride + start
            w = tl.load(base + tile_row[:, None] * w_stride + tile_column[None, :], mask=used, other=0.0)
        inside = (column < length)[:, None] & in_channels
        x = tl.load(x_ptr + tl.cast(start, tl.int64) * x_stride_m + x_offsets, mask=inside, other=0.0)
        sums = _dot(w, x, sums, PRECISION)

    inside = (row < length)[:, None] & in_channels
    out = (sample * length + first_row) * channels + first_channel
    out_offsets = tile_row[:, None] * channels + tile_channel[None, :]
    if GATING != "none":
        sums += tl.load(bias_ptr + row, mask=row < length, other=0.0).to(tl.float32)[:, None]
        if HAS_ATTENTION:
            base = attention_ptr + sample * attention_stride_b + first_row.to(tl.int64) * attention_stride_m
            offsets = tile_row[:, None] * attention_stride_m + tile_channel[None, :]
            sums += tl.load(base + first_channel + offsets, mask=inside, other=0.0).to(tl.float32)
    # Rounded before the gating, as in the plain form and the backward pass; this also halves the registers.
    output = sums.to(x_ptr.dtype.element_ty)
    if HAS_OUTPUT:
        tl.store(output_ptr + out + out_offsets, output, mask=inside)
    if GATING != "none" and GATING != "linear":
        base = u_ptr + sample * u_stride_b + first_row.to(tl.int64) * u_stride_m
        offsets = tile_row[:, None] * u_stride_m + tile_channel[None, :]
        u = _gelu(tl.load(base + first_channel + offsets, mask=inside, other=0.0).to(tl.float32))
        if GATING == "additive":
            gated = u + output.to(tl.float32)
        else:
            gated = u * output.to(tl.float32)
        tl.store(gated_ptr + out + out_offsets, gated.to(gated_ptr.dtype.element_ty), mask=inside)


@_jit
def _gate_backward(
    grad_ptr, grad_stride_b, grad_stride_m, gate_ptr, gate_stride_b, gate_stride_m,
    u_ptr, u_stride_b, u_stride_m, v_ptr, v_stride_b, v_stride_m,
    weight_ptr, bias_ptr, mask_ptr,
    grad_gate_ptr, grad_u_ptr, normed_ptr, gated_ptr, mean_ptr, deviation_ptr, grad_bias_ptr,
    rows, length, channels, eps,
    GATING: tl.constexpr, HAS_MASK: tl.constexpr, NEEDS_NORMED: tl.constexpr, NEEDS_GATED: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """For a few rows: the gradients of the gate (unless it is `grad`) and, after a split, of u; the sums over channels
    for the gradient of b; the statistics of the norm, v_hat and the output."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    channel = tl.arange(0, BLOCK_E)
    in_rows = row < rows
    inside = in_rows[:, None] & (channel < channels)[None, :]
    out = row.to(tl.int64)[:, None] * channels + channel[None, :]

    grad_gate = _load_rows(grad_ptr, grad_stride_b, grad_stride_m, row, length, channel, inside)
    v = _load_rows(v_ptr, v_stride_b, v_stride_m, row, length, channel, inside)
    z = _gelu(v)
    if GATING == "split" or (NEEDS_GATED and GATING != "linear"):
        gate = _load_rows(gate_ptr, gate_stride_b, gate_stride_m, row, length, channel, inside)
    if GATING == "split":
        u = _load_rows(u_ptr, u_stride_b, u_stride_m, row, length, channel, inside)
        u, slope = _gelu_and_slope(u)
        grad_u = grad_gate * gate * slope
        tl.store(grad_u_ptr + out, grad_u.to(grad_u_ptr.dtype.element_ty), mask=inside)
        grad_gate *= u
    if GATING == "multiplicative":
        # u is v.
        grad_gate *= z
    if GATING == "split" or GATING == "multiplicative":
        tl.store(grad_gate_ptr + out, grad_gate.to(grad_gate_ptr.dtype.element_ty), mask=inside)
    if NEEDS_GATED and GATING != "linear":
        if GATING == "split":
            gated = u * gate
        elif GATING == "multiplicative":
            gated = z * gate
        else:
            gated = z + gate
        tl.store(gated_ptr + out, gated.to(gated_ptr.dtype.element_ty), mask=inside)
    tl.store(grad_bias_ptr + row, tl.sum(grad_gate, 1), mask=in_rows)

    mean, deviation, normed = _statistics(z, inside, channels, eps)
    tl.store(mean_ptr + row, mean, mask=in_rows)
    tl.store(deviation_ptr + row, deviation, mask=in_rows)
    if NEEDS_NORMED:
        normed = _scale(normed, weight_ptr, bias_ptr, mask_ptr, row, rows, channel, channels, HAS_MASK)
        tl.store(normed_ptr + out, normed.to(normed_ptr.dtype.element_ty), mask=inside)


@_jit
def _weight_gradient(
    grad_ptr, grad_stride_b, grad_stride_m, normed_ptr, partial_ptr,
    length, columns, channels, column_blocks, channel_blocks, steps, split_steps,
    CAUSAL: tl.constexpr, PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """A tile of grad_gate v_hat^T, summed over a part of the steps; a step is BLOCK_K channels of one sample."""
    # Tiles of one part run side by side and share what they read in the L2 cache.
    tile = tl.program_id(0)
    part = tl.program_id(1)
    row_block = tile // column_blocks
    column_block = tile % column_blocks
    row = row_block * BLOCK_M + tl.arange(0, BLOCK_M)
    column = column_block * BLOCK_N + tl.arange(0, BLOCK_N)
    begin = part * split_steps
    end = tl.minimum(steps, begin + split_steps)
    if CAUSAL:
        # A tile above the diagonal is zero.
        if column_block * BLOCK_N >= (row_block + 1) * BLOCK_M:
            end = begin
    tile_channel = tl.arange(0, BLOCK_K)[None, :]
    grad_offsets = tl.arange(0, BLOCK_M)[:, None] * grad_stride_m + tile_channel
    normed_offsets = tl.arange(0, BLOCK_N)[:, None] * channels + tile_channel
    grad_ptr += (row_block * BLOCK_M).to(tl.int64) * grad_stride_m
    normed_ptr += (column_block * BLOCK_N).to(tl.int64) * channels
    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for step in range(begin, end):
        sample = (step // channel_blocks).to(tl.int64)
        first_channel = step % channel_blocks * BLOCK_K
        in_channels = first_channel + tile_channel < channels
        grad = tl.load(
            grad_ptr + sample * grad_stride_b + first_channel + grad_offsets,
            mask=(row < length)[:, None] & in_channels,
            other=0.0,
        )
        normed = tl.load(
            normed_ptr + sample * length * channels + first_channel + normed_offsets,
            mask=(column < length)[:, None] & in_channels,
            other=0.0,
        )
        sums = _dot(grad, tl.trans(normed), sums, PRECISION)
    if CAUSAL:
        sums = tl.where(column[None, :] <= row[:, None], sums, 0.0)
    out = partial_ptr + (part.to(tl.int64) * length + row)[:, None] * columns + column[None, :]
    tl.store(out, sums, mask=(row < length)[:, None] & (column < columns)[None, :])


@_jit
def _diagonal_sums(matrix_ptr, sums_ptr, length, stride, BLOCK_I: tl.constexpr, BLOCK_D: tl.constexpr):
    """Sums of BLOCK_D diagonals of an [m, m] matrix: sums[m - 1 + j - i] over matrix[i, j]."""
    diagonal = tl.program_id(0) * BLOCK_D + tl.arange(0, BLOCK_D)
    sums = tl.zeros((BLOCK_I, BLOCK_D), tl.float32)
    for start in range(0, length, BLOCK_I):
        i = (start + tl.arange(0, BLOCK_I))[:, None]
        j = i + diagonal[None, :] - (length - 1)
        inside = (i < length) & (j >= 0) & (j < length)
        sums += tl.load(matrix_ptr + i.to(tl.int64) * stride + j, mask=inside, other=0.0)
    tl.store(sums_ptr + diagonal, tl.sum(sums, 0), mask=diagonal < 2 * length - 1)


@_jit
def _norm_backward(
    grad_normed_ptr, v_ptr, v_stride_b, v_stride_m,
    grad_ptr, grad_stride_b, grad_stride_m, gate_ptr, gate_stride_b, gate_stride_m,
    mean_ptr, deviation_ptr, weight_ptr, mask_ptr,
    grad_v_ptr, weight_partial_ptr, bias_partial_ptr,
    rows, length, channels,
    GATING: tl.constexpr, HAS_MASK: tl.constexpr, ROWS: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """The gradient of v, through norm and GELU, for this program's share of the rows, and their part of the gradients
    of the norm's parameters. Without a split, the gradient of v as what is gated is added."""
    channel = tl.arange(0, BLOCK_E)
    in_channels = channel < channels
    weight = tl.load(weight_ptr + channel, mask=in_channels, other=0.0).to(tl.float32)[None, :]
    weight_sums = tl.zeros((ROWS, BLOCK_E), tl.float32)
    bias_sums = tl.zeros((ROWS, BLOCK_E), tl.float32)
    for start in range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS):
        row = start + tl.arange(0, ROWS)
        in_rows = row < rows
        inside = in_rows[:, None] & in_channels[None, :]
        out = row.to(tl.int64)[:, None] * channels + channel[None, :]
        kept = inside
        if HAS_MASK:
            kept = kept & (tl.load(mask_ptr + row, mask=in_rows, other=0) != 0)[:, None]
        grad_normed = tl.load(grad_normed_ptr + out, mask=kept, other=0.0).to(tl.float32)
        v = _load_rows(v_ptr, v_stride_b, v_stride_m, row, length, channel, inside)
        mean = tl.load(mean_ptr + row, mask=in_rows, other=0.0)[:, None]
        deviation = tl.load(deviation_ptr + row, mask=in_rows, other=0.0)[:, None]
        z, slope = _gelu_and_slope(v)
        # What is beyond the channels is multiplied by a gradient of 0 or not stored.
        normed = (z - mean) * deviation
        weight_sums += grad_normed * normed
        bias_sums += grad_normed
        grad_normed *= weight
        grad_mean = tl.sum(grad_normed, 1)[:, None] / channels
        grad_deviation = tl.sum(grad_normed * normed, 1)[:, None] / channels
        grad_z = (grad_normed - grad_mean - normed * grad_deviation) * deviation
        if GATING == "multiplicative" or GATING == "additive":
            grad = _load_rows(grad_ptr, grad_stride_b, grad_stride_m, row, length, channel, inside)
            if GATING == "multiplicative":
                gate = _load_rows(gate_ptr, gate_stride_b, gate_stride_m, row, length, channel, inside)
                grad *= gate
            grad_z += grad
        grad_v = grad_z * slope
        tl.store(grad_v_ptr + out, grad_v.to(grad_v_ptr.dtype.element_ty), mask=inside)
    out = tl.program_id(0) * channels + channel
    tl.store(weight_partial_ptr + out, tl.sum(weight_sums, 0), mask=in_channels)
    tl.store(bias_partial_ptr + out, tl.sum(bias_sums, 0), mask=in_channels)
