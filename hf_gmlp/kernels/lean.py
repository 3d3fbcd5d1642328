"""The gMLP block's branch with less memory and less memory traffic than `naive_gating` (models/modeling_gmlp.py).

For the backward pass of the naive form, autograd keeps 23 d_model numbers per token and block (at d_ffn = 6 d_model).
`lean_gating` keeps x, W_in LN(x) and the gate, 10 d_model, and recomputes norms, GELU and product, which are cheap
beside the matrix products. Without gradients it works in place. predicate.py decides when it may run.
"""

import platform
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F
from transformers.cache_utils import Cache

from ..models.heads import Documents
from ..models.modeling_gmlp import naive_gating
from ..models.spatial_gating import spatial_matrix
from .fft import fft_gating, takes_fft, toeplitz_offsets, toeplitz_product_fft, toeplitz_product_fft_backward
from .predicate import (
    autocast_dtype,
    dispatch_modes_active,
    is_batched,
    is_plain_tensor,
    may_stand_in,
    transforms_active,
    untouched_parameters,
)
from .triton import DTYPES, MAX_CHANNELS, can_use_triton, gating_backward, gating_forward

# The size of a block's largest tensors in inference on a CPU: half of the largest size that glibc's allocator keeps.
SLICE_BYTES = 2**24


def onednn_linear():
    """The linear layer of oneDNN that PyTorch has for compiled models on x86; `None` where there is none."""
    x86 = platform.machine().lower() in ("x86_64", "amd64") and torch.backends.mkldnn.is_available()
    return getattr(torch.ops.mkldnn, "_linear_pointwise", None) if x86 else None


ONEDNN_LINEAR = onednn_linear()


class Branch(NamedTuple):
    """The parameters of W_out s(gelu(W_in LN(x))), all of one dtype. E is F / 2 after a split, else F."""

    norm_weight: torch.Tensor  # [D], of the LayerNorm in front
    norm_bias: torch.Tensor
    in_weight: torch.Tensor  # [F, D], the channel projection in
    in_bias: torch.Tensor
    spatial_norm_weight: torch.Tensor  # [E], of the LayerNorm in front of the spatial projection
    spatial_norm_bias: torch.Tensor
    spatial_weight: torch.Tensor  # W as its parameter is, [n, n] or [2n - 1]
    spatial_bias: torch.Tensor  # b, [n]
    out_weight: torch.Tensor  # [D, E], the channel projection out
    out_bias: torch.Tensor

    @classmethod
    def of(cls, block: nn.Module) -> "Branch":
        unit = block.spatial_gating_unit
        layers = (block.norm, block.proj_in, unit.norm, unit.proj, block.proj_out)
        return cls(*(parameter for layer in layers for parameter in (layer.weight, layer.bias)))


class Form(NamedTuple):
    """Everything else about a branch."""

    spatial_gating: str  # "split", "multiplicative", "additive" or "linear", the rows of the paper's Table 3
    causal: bool  # whether W[i, j] counts as 0 for j > i
    eps: float  # of the LayerNorm in front
    spatial_eps: float  # of the LayerNorm in front of the spatial projection
    dtype: torch.dtype  # of the products
    triton: bool = False  # whether the kernels of triton.py compute the gating unit where they can
    padding_mask: torch.Tensor | None = None  # [batch, m], 0 for padding
    documents: Documents | None = None  # where the documents stand that share the one row of the batch


def _settings(block: nn.Module) -> tuple[str, bool, float, float]:
    """The first four fields of a block's `Form`."""
    unit = block.spatial_gating_unit
    return unit.config.spatial_gating, unit.config.is_causal, block.norm.eps, unit.norm.eps


def lean_gating(
    block: nn.Module,
    hidden_states: torch.Tensor,
    padding_mask: torch.Tensor | None = None,
    attention_mask: torch.Tensor | None = None,
    first: torch.Tensor | None = None,
    past_key_values: Cache | None = None,
    triton: bool = False,
    documents: Documents | None = None,
    **kwargs,
) -> torch.Tensor:
    """
    `naive_gating` with less memory; calls `naive_gating` for whatever it cannot do. With `triton`, the kernels of
    triton.py compute the spatial gating unit where they can. The other arguments are those of `naive_gating`.
    """
    kwargs = kwargs if documents is None else kwargs | {"documents": documents}
    if past_key_values is not None or first is not None:
        return naive_gating(block, hidden_states, padding_mask, attention_mask, first, past_key_values, **kwargs)
    if not may_stand_in(block, hidden_states, padding_mask):
        return fft_gating(block, hidden_states, padding_mask, attention_mask, **kwargs)
    attention_output = None
    if block.attention is not None:
        attention_output = block.attention(block.norm(hidden_states), attention_mask, None, **kwargs)[0]
        if not _fits(attention_output, block, hidden_states):
            # PyTorch broadcasts and promotes it. The dropout does nothing here.
            z = block.activation(block.proj_in(block.norm(hidden_states)))
            packed = {} if documents is None else {"documents": documents}
            return block.proj_out(block.spatial_gating_unit(z, attention_output, padding_mask, **packed))
    return lean_branch(block, hidden_states, padding_mask, attention_output, triton, documents)


def _fits(attention_output: torch.Tensor, block: nn.Module, hidden_states: torch.Tensor) -> bool:
    """Whether the tiny attention, which may be any module, returned a plain [batch, m, E] of the gate's dtype."""
    dtype = autocast_dtype(hidden_states.device.type) or hidden_states.dtype
    shape = (*hidden_states.shape[:2], *block.spatial_gating_unit.norm.weight.shape)
    return is_plain_tensor(attention_output) and attention_output.shape == shape and attention_output.dtype == dtype


def lean_branch(
    block: nn.Module,
    x: torch.Tensor,
    padding_mask: torch.Tensor | None = None,
    attention_output: torch.Tensor | None = None,
    triton: bool = False,
    documents: Documents | None = None,
) -> torch.Tensor:
    """
    Computes W_out s(gelu(W_in LN(x))), [batch, m, D], with exact GELU and without dropout, in the dtype of
    `torch.autocast` if that is on.

    Args:
        block: A `GMLPBlock` whose layers are as they were made.
        x: [batch, m, D]
        padding_mask: [batch, m], 0 for padding.
        attention_output: [batch, m, E], the tiny attention of an aMLP, which is added to the gate.
        triton, documents: As in `lean_gating`.
    """
    p = Branch.of(block)
    # The kernels only know rows of one sequence.
    triton = triton and documents is None and p.spatial_norm_weight.shape[0] <= MAX_CHANNELS
    device = x.device.type
    form = Form(*_settings(block), autocast_dtype(device) or x.dtype, triton, padding_mask, documents)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, attention_output, *p)):
        attention_edge = None
        if attention_output is not None:
            # Gradients of gradients need the way back to the attention, but not its output.
            attention_edge, attention_output = _WithoutMemory.apply(attention_output), attention_output.detach()
        return _LeanBranch.apply(block, form, attention_output, x, attention_edge, *p)
    with _no_autocast(device):
        if device != "cpu":
            return _forward(x, p, form, attention_output, keep=False)[0]
        return _inference_on_cpu(x, p, form, attention_output)


def _inference_on_cpu(x: torch.Tensor, p: Branch, form: Form, attention_output: torch.Tensor | None) -> torch.Tensor:
    """
    Computes a few samples at a time, so that the intermediate results fit into the memory that the C library keeps for
    the next block. The system would clear returned memory page by page, for 10 to 15 percent of a block's time.
    """
    sample = x.shape[1] * p.spatial_norm_weight.shape[0] * form.dtype.itemsize
    count = max(1, SLICE_BYTES // max(1, sample))
    keep_freed_memory(4 * sample * min(count, len(x)))
    if len(x) <= count:
        return _forward(x, p, form, attention_output, keep=False)[0]
    output = x.new_empty(x.shape, dtype=form.dtype)
    for start in range(0, len(x), count):
        part = slice(start, start + count)
        part_form = form._replace(padding_mask=None if form.padding_mask is None else form.padding_mask[part])
        attention = None if attention_output is None else attention_output[part]
        output[part] = _forward(x[part], p, part_form, attention, keep=False)[0]
    return output


def keep_freed_memory(size: int):
    """
    Makes glibc keep up to `size` bytes (at most 64 MiB) of what is freed from now on. glibc keeps twice the size of the
    largest piece, up to 32 MiB, that was ever freed: this allocates and frees such a piece without touching its pages.
    """
    if platform.system() == "Linux":
        torch.empty(min(size, 2 * SLICE_BYTES - 4096), dtype=torch.uint8)


class _WithoutMemory(torch.autograd.Function):
    """Zeros of the same shape, one number in memory, with the gradient of the input."""

    @staticmethod
    def forward(ctx, x):
        return x.new_zeros(()).expand(x.shape)

    @staticmethod
    def backward(ctx, grad):
        return grad


class _LeanBranch(torch.autograd.Function):
    @staticmethod
    def forward(ctx, block, form, attention_output, x, attention_edge, *parameters):
        device = x.device.type
        ctx.autocast = autocast_dtype(device) is not None
        with _no_autocast(device):
            output, kept, gate = _forward(x, Branch(*parameters), form, attention_output, keep=True)
        ctx.block, ctx.form = block, form._replace(padding_mask=None)
        ctx.save_for_backward(form.padding_mask, attention_edge, x, gate, *kept, *parameters)
        return output

    @staticmethod
    def backward(ctx, grad):
        padding_mask, attention_edge, x, gate, *rest = ctx.saved_tensors
        count = len(Branch._fields)
        kept, p = rest[:-count], Branch(*rest[-count:])
        form = ctx.form._replace(padding_mask=padding_mask)
        if torch.is_grad_enabled() or transforms_active() or is_batched(grad):
            return None, None, None, *_backward_through_layers(ctx, form, grad, x, p, attention_edge, gate)
        with _no_autocast(x.device.type):
            grad_x, grad_gate, grads = _backward(grad, x, p, form, kept, gate, ctx.needs_input_grad[3:])
        grad_attention = None if attention_edge is None else grad_gate.to(attention_edge.dtype)
        return None, None, None, grad_x, grad_attention, *grads


def _backward_through_layers(
    ctx,
    form: Form,
    grad: torch.Tensor,
    x: torch.Tensor,
    p: Branch,
    attention_edge: torch.Tensor | None,
    gate: torch.Tensor,
) -> list[torch.Tensor | None]:
    """
    Computes the gradients of x, the attention and the parameters by autograd, through the layers of the block, so that
    they have gradients themselves. The layers are called with the parameters of the forward pass.

    Raises:
        RuntimeError: If the layers have changed since.
    """
    block, device, attention = ctx.block, x.device.type, None
    if untouched_parameters(block) is None or _settings(block) != form[:4]:
        raise RuntimeError(
            "The layers of a block have changed since its output was computed, so this implementation cannot compute "
            'gradients of its gradients. Use `model.set_gating_implementation("naive")`.'
        )
    if attention_edge is not None:
        # The attention's output, which was not kept, is the part of the gate that the projection does not give.
        with torch.no_grad(), _no_autocast(device):
            attention = gate - _forward(x, p, form, None, keep=True)[2]
    autocast = torch.autocast(device, form.dtype) if ctx.autocast else _no_autocast(device)
    with torch.enable_grad(), autocast:
        # Views: the gradient of x must not include the way through the attention, which is not part of this function,
        # and that of a parameter must not include its other uses.
        inputs = [None if tensor is None else tensor.view_as(tensor) for tensor in (x, attention_edge, *p)]
        p = Branch(*inputs[2:])
        if attention_edge is not None:
            attention = inputs[1] + attention
        normalized = _call(block.norm, {"weight": p.norm_weight, "bias": p.norm_bias}, inputs[0])
        z = block.activation(_call(block.proj_in, {"weight": p.in_weight, "bias": p.in_bias}, normalized))
        norm = {"norm.weight": p.spatial_norm_weight, "norm.bias": p.spatial_norm_bias}
        unit = norm | {"proj.weight": p.spatial_weight, "proj.bias": p.spatial_bias}
        gated = _call(block.spatial_gating_unit, unit, z, attention, form.padding_mask, None, None, form.documents)
        output = _call(block.proj_out, {"weight": p.out_weight, "bias": p.out_bias}, gated)
    needed = [tensor for tensor in inputs if tensor is not None and tensor.requires_grad]
    found = iter(torch.autograd.grad(output, needed, grad, create_graph=torch.is_grad_enabled(), allow_unused=True))
    return [next(found) if tensor is not None and tensor.requires_grad else None for tensor in inputs]


def _call(layer: nn.Module, parameters: dict[str, torch.Tensor], *args) -> torch.Tensor:
    """Calls a layer with other parameters; tied ones stay apart, since each is a view of its own."""
    return torch.func.functional_call(layer, parameters, args, tie_weights=False)


def _forward(
    x: torch.Tensor, p: Branch, form: Form, attention_output: torch.Tensor | None, keep: bool
) -> tuple[torch.Tensor, list[torch.Tensor], torch.Tensor | None]:
    """Returns the output, W_in LN(x) (one tensor, or the two halves of a split) and the gate; the last two are only
    valid with `keep`."""
    normalized = _norm(x, p.norm_weight, p.norm_bias, form.eps, form.dtype)[0]
    triton = _uses_triton(form, x)
    # One product for each half: halves of one product would be views with gaps, which slow down every step below.
    in_place = not keep and not triton
    kept = [_linear(normalized, weight, bias, gelu=in_place) for weight, bias in _in_projections(p, form)]
    del normalized
    gated, gate = (_gating_by_triton if triton else _gating)(kept, p, form, attention_output, keep)
    return _linear(gated, p.out_weight.to(form.dtype), p.out_bias.to(form.dtype)), kept, gate


def _backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    p: Branch,
    form: Form,
    kept: list[torch.Tensor],
    gate: torch.Tensor,
    needs_input_grad: tuple[bool, ...],
) -> tuple[torch.Tensor | None, torch.Tensor, list[torch.Tensor | None]]:
    """Returns the gradients of x, the gate and the parameters. What was not kept is recomputed and overwritten."""
    needs_x, needs = needs_input_grad[0], Branch(*needs_input_grad[2:])
    grads = dict.fromkeys(Branch._fields)

    # output = gated W_out^T + b_out
    grad = grad.to(form.dtype)
    if needs.out_bias:
        grads["out_bias"] = grad.sum((0, 1))
    backward = _gating_backward_by_triton if _uses_triton(form, x) else _gating_backward
    gated, grad_gate, grad_kept, gating_grads = backward(
        _linear(grad, p.out_weight.to(form.dtype).T), kept, gate, p, form, needs
    )
    grads |= gating_grads
    if needs.out_weight:
        grads["out_weight"] = grad.flatten(0, 1).T @ gated.flatten(0, 1)
    del gated

    # kept = LN(x) W_in^T + b_in
    grad_kept = [part.flatten(0, 1) for part in grad_kept]
    normalized, *statistics = _norm(x, p.norm_weight, p.norm_bias, form.eps, form.dtype)
    if needs.in_weight:
        rows = normalized.flatten(0, 1)
        grads["in_weight"] = rows.new_empty(p.in_weight.shape)
        for part, half in zip(grad_kept, grads["in_weight"].chunk(len(grad_kept))):
            torch.mm(part.T, rows, out=half)
    if needs.in_bias:
        grads["in_bias"] = torch.cat([part.sum(0) for part in grad_kept])
    grad_x = None
    if needs_x or needs.norm_weight or needs.norm_bias:
        weights = [weight for weight, _ in _in_projections(p, form)]
        grad_x = _linear(grad_kept[0], weights[0].T)
        if len(grad_kept) == 2:
            grad_x += _linear(grad_kept[1], weights[1].T)
        grad_x, grads["norm_weight"], grads["norm_bias"] = _norm_backward(
            grad_x.view_as(x), x, p.norm_weight, p.norm_bias, statistics, x.dtype
        )
    # Every gradient must have the dtype of its parameter.
    found = [
        value.to(parameter.dtype) if value is not None and needed else None
        for value, parameter, needed in zip(grads.values(), p, needs)
    ]
    return grad_x, grad_gate, found


def _gating(
    kept: list[torch.Tensor], p: Branch, form: Form, attention_output: torch.Tensor | None, keep: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns s(gelu(kept)) and the gate. Without `keep`, `kept` already went through GELU and is overwritten."""
    z = F.gelu(kept[-1]) if keep else kept[-1]
    v = _spatial_input(z, p, form)[0]
    if form.spatial_gating == "split":
        # After a split, z is not needed any more, and after the product v is not.
        gate = _spatial(v, p, form, out=z)
        u = torch.ops.aten.gelu.out(kept[0], out=v) if keep else kept[0]
    else:
        gate, u = _spatial(v, p, form), z
    if attention_output is not None:
        gate += attention_output.to(form.dtype)
    if form.spatial_gating == "linear":
        return gate, gate
    # The gate is kept, u is not.
    return u.add_(gate) if form.spatial_gating == "additive" else u.mul_(gate), gate


def _gating_backward(
    grad: torch.Tensor, kept: list[torch.Tensor], gate: torch.Tensor, p: Branch, form: Form, needs: Branch
) -> tuple[torch.Tensor | None, torch.Tensor, list[torch.Tensor], dict[str, torch.Tensor | None]]:
    """
    Returns s(gelu(kept)), if it is needed, and the gradients of the gate, of `kept` and of the parameters. `grad`, the
    gradient of s(gelu(kept)), is overwritten.
    """
    gated, grads = None, {}
    z = [F.gelu(part) for part in kept]
    u = z[0]
    v, *statistics = _spatial_input(z[-1], p, form)

    # gated = u * gate, u + gate or gate
    if form.spatial_gating == "linear":
        gated = gate
    elif needs.out_weight:
        gated = u + gate if form.spatial_gating == "additive" else u * gate
    if form.spatial_gating in ("linear", "additive"):
        grad_gate, grad_u = grad, grad
    elif form.spatial_gating == "multiplicative":
        # u is z itself, which the norm's gradient needs below.
        grad_gate, grad_u = u * grad, grad.mul_(gate)
    else:
        grad_gate, grad_u = u.mul_(grad), grad.mul_(gate)
    del u

    # gate = W v + b
    grad_rows = grad_gate if form.documents is None else form.documents.split(grad_gate)
    if needs.spatial_bias:
        grads["spatial_bias"] = F.pad(grad_rows.sum((0, 2)), (0, p.spatial_bias.shape[0] - grad_rows.shape[1]))
    grad_v, grads["spatial_weight"] = _spatial_backward(grad_rows, v, p, form, needs.spatial_weight)
    del v
    if form.padding_mask is not None:
        grad_v.masked_fill_(form.padding_mask[:, :, None] == 0, 0.0)

    # v = LN(z), or LN of the second half of z
    grad_v, grads["spatial_norm_weight"], grads["spatial_norm_bias"] = _norm_backward(
        grad_v, z[-1], p.spatial_norm_weight, p.spatial_norm_bias, statistics, form.dtype
    )
    if form.spatial_gating == "split":
        grad_z = [grad_u, grad_v]
    elif form.spatial_gating == "linear":
        grad_z = [grad_v]
    else:
        grad_z = [grad_v.add_(grad_u)]

    # z = gelu(kept)
    for part_grad, part in zip(grad_z, kept):
        torch.ops.aten.gelu_backward.grad_input(part_grad, part, grad_input=part_grad)
    return gated, grad_gate, grad_z, grads


def _spatial_input(z: torch.Tensor, p: Branch, form: Form) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns v, the LN(z) that W multiplies, with zeros for padding, and the statistics of the norm."""
    v, mean, deviation = _norm(z, p.spatial_norm_weight, p.spatial_norm_bias, form.spatial_eps, form.dtype)
    if form.padding_mask is not None:
        v.masked_fill_(form.padding_mask[:, :, None] == 0, 0.0)
    return v, mean, deviation


def _uses_triton(form: Form, x: torch.Tensor) -> bool:
    """Whether the kernels are asked for and can compute this."""
    return form.triton and form.dtype in DTYPES and x.numel() > 0 and can_use_triton(x.device)


def _unit(p: Branch, form: Form) -> dict:
    """The arguments that both functions of triton.py take."""
    return {
        "norm_weight": p.spatial_norm_weight,
        "norm_bias": p.spatial_norm_bias,
        "eps": form.spatial_eps,
        "weight": p.spatial_weight,
        "bias": p.spatial_bias,
        "spatial_gating": form.spatial_gating,
        "toeplitz": p.spatial_weight.dim() == 1,
        "causal": form.causal,
        "padding_mask": form.padding_mask,
    }


def _gating_by_triton(
    kept: list[torch.Tensor], p: Branch, form: Form, attention_output: torch.Tensor | None, keep: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Does what `_gating` does, but leaves `kept` as it was, and returns a gate only with `keep`."""
    return gating_forward(kept[0], kept[-1], **_unit(p, form), attention_output=attention_output, needs_gate=keep)


def _gating_backward_by_triton(
    grad: torch.Tensor, kept: list[torch.Tensor], gate: torch.Tensor, p: Branch, form: Form, needs: Branch
) -> tuple[torch.Tensor | None, torch.Tensor, list[torch.Tensor], dict[str, torch.Tensor | None]]:
    """Does what `_gating_backward` does."""
    needed = {"needs_weight": needs.spatial_weight, "needs_gated": needs.out_weight}
    found = gating_backward(grad, kept[0], kept[-1], gate, **_unit(p, form), **needed)
    grads = {
        "spatial_norm_weight": found.norm_weight,
        "spatial_norm_bias": found.norm_bias,
        "spatial_weight": found.weight,
        "spatial_bias": found.bias,
    }
    return found.gated, found.gate, [found.v] if found.u is None else [found.u, found.v], grads


def _no_autocast(device: str) -> AbstractContextManager:
    """Turns autocast off: every dtype here is chosen by hand."""
    return nullcontext() if autocast_dtype(device) is None else torch.autocast(device, enabled=False)


def _norm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """LayerNorm, computed in the dtype of its weights as under autocast, returned in `dtype`; mean and deviation."""
    x = x.to(_norm_dtype(x, weight))
    output, mean, deviation = torch.native_layer_norm(x, weight.shape, weight, bias, eps)
    return output.to(dtype), mean, deviation


def _norm_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    statistics: list[torch.Tensor],
    dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of x, in `dtype`, and of weight and bias."""
    norm_dtype = _norm_dtype(x, weight)
    grad_x, grad_weight, grad_bias = torch.ops.aten.native_layer_norm_backward(
        grad.to(norm_dtype), x.to(norm_dtype), weight.shape, *statistics, weight, bias, [True, True, True]
    )
    return grad_x.to(dtype), grad_weight, grad_bias


def _norm_dtype(x: torch.Tensor, weight: torch.Tensor) -> torch.dtype:
    """On CPUs, PyTorch's norm takes half precision with weights in single, and computes in single precision."""
    mixes = x.device.type == "cpu" and weight.dtype == torch.float32 and x.dtype in (torch.bfloat16, torch.float16)
    return x.dtype if mixes else weight.dtype


def _in_projections(p: Branch, form: Form) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """W_in and its bias, or after a split those of u and those of v."""
    weight, bias = p.in_weight.to(form.dtype), p.in_bias.to(form.dtype)
    if form.spatial_gating != "split":
        return [(weight, bias)]
    return list(zip(weight.chunk(2), bias.chunk(2)))


def _linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, gelu: bool = False
) -> torch.Tensor:
    """Returns x weight^T + bias, [..., in] and [out, in] -> [..., out], or the GELU of that."""
    if _uses_onednn(x):
        return ONEDNN_LINEAR(x, weight, bias, "gelu" if gelu else "none", [], "none")
    y = F.linear(x, weight, bias)
    return torch.ops.aten.gelu_(y) if gelu else y


def _uses_onednn(x: torch.Tensor) -> bool:
    """Whether to call oneDNN's linear layer: in float32 on x86, it is 5 to 10 percent faster than the usual one, MKL's
    (docs/performance.md)."""
    return (
        ONEDNN_LINEAR is not None
        and x.device.type == "cpu"
        and x.dtype == torch.float32
        and x.numel() > 0
        and torch.backends.mkldnn.enabled
        # Tools that count operators in the backward pass only know the usual one.
        and not dispatch_modes_active()
    )


def _spatial(v: torch.Tensor, p: Branch, form: Form, out: torch.Tensor | None = None) -> torch.Tensor:
    """Returns W v + b, and may write it into `out`."""
    if form.documents is not None:
        rows = form.documents.split(v)
        return form.documents.join(_spatial(rows, p, form._replace(documents=None)))
    length, weight = v.shape[1], p.spatial_weight
    bias = p.spatial_bias[:length].to(form.dtype)
    if takes_fft(v, weight):
        return toeplitz_product_fft(v, toeplitz_offsets(weight, length, form.causal), bias)
    matrix = spatial_matrix(weight, length, causal=form.causal).to(form.dtype)
    return torch.baddbmm(bias[:, None], matrix.expand(v.shape[0], -1, -1), v, out=out)


def _spatial_backward(
    grad: torch.Tensor, v: torch.Tensor, p: Branch, form: Form, needs_weight: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Returns the gradients of v and of W's parameter. Packed documents have a row each in `grad`, but not in v."""
    if form.documents is not None:
        rows, bare = form.documents.split(v), form._replace(documents=None)
        grad_v, grad_weight = _spatial_backward(grad, rows, p, bare, needs_weight)
        return form.documents.join(grad_v), grad_weight
    length, weight = v.shape[1], p.spatial_weight
    fft = takes_fft(v, weight)
    # Autograd goes from the parameter to W or its offsets and back, so that nothing here depends on the form of W.
    with torch.enable_grad():
        source = weight.detach().requires_grad_()
        values = (toeplitz_offsets if fft else spatial_matrix)(source, length, causal=form.causal)
    if fft:
        grad_v, grad_values = toeplitz_product_fft_backward(grad, v, values.detach(), needs_weight)
    else:
        matrix = values.detach().to(form.dtype)
        grad_values = torch.bmm(grad, v.transpose(1, 2)).sum(0) if needs_weight else None
        # v is not needed any more.
        grad_v = torch.bmm(matrix.T.expand(v.shape[0], -1, -1), grad, out=v)
    if not needs_weight:
        return grad_v, None
    return grad_v, torch.autograd.grad(values, source, grad_values.to(values.dtype))[0]
