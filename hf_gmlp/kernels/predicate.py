"""Decides when a fast implementation may stand in for the naive block: when nothing could tell the difference.

A fast implementation reads the parameters of a block and does not call its layers, so nothing may hang on these layers
that a call would honor: a hook, an adapter, a quantizer, a subclass, a patched method, a parametrization.
PyTorch has no public way to ask for some of this: where a private name is missing, the naive block runs.
"""

import inspect

import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn import functional as F
from torch.nn.modules import module as module_tables
from transformers.activations import ACT2FN

from ..models import spatial_gating
from ..models.spatial_gating import SPATIAL_GATINGS, SpatialGatingUnit, SpatialProjection

GELU = type(ACT2FN["gelu"])
WEIGHT_AND_BIAS = frozenset({"weight", "bias"})
# The exact classes of the layers that a fast implementation goes around, and the exact parameters of each.
PARAMETERS = {
    nn.LayerNorm: WEIGHT_AND_BIAS,
    nn.Linear: WEIGHT_AND_BIAS,
    GELU: frozenset(),
    nn.Dropout: frozenset(),
    SpatialGatingUnit: frozenset(),
    SpatialProjection: WEIGHT_AND_BIAS,
}
# No call of a layer looks these up. Compilers and distributed trainers replace them for good.
NOT_CALLED = {"__init__", "__setstate__"}
# The parameters, layers and methods that a call may look up. An attribute with such a name would hide them.
NAMES = {
    kind: names
    | {"norm", "proj"}
    | {name for name in dir(kind) if callable(getattr(kind, name)) or isinstance(getattr(kind, name), property)}
    - NOT_CALLED
    for kind, names in PARAMETERS.items()
}
# The paper's four, which the fast implementations know.
KNOWN_GATINGS = {name: SPATIAL_GATINGS[name] for name in ("split", "multiplicative", "additive", "linear")}
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
GLOBAL_HOOKS = tuple(f"_global{name}" for name in HOOKS)
MUST_BE_EMPTY = (*HOOKS, "_buffers")


def may_stand_in(block: nn.Module, hidden_states: torch.Tensor, padding_mask: torch.Tensor | None = None) -> bool:
    """
    Whether a fast implementation, which calls neither the norms, the projections, the activation and its dropout nor
    the gating unit, may run in place of `naive_gating`. Tiny attention and the block itself are called, so they do not
    matter.

    Args:
        block: A `GMLPBlock`, or anything with its layers.
        hidden_states: Its input, [B, m, D].
        padding_mask: [B, m], if there is one.
    """
    # A compiler must see the layers, and makes them fast itself.
    if torch.compiler.is_compiling() or is_watched() or not is_plain_tensor(hidden_states):
        return False
    shape = hidden_states.shape
    if len(shape) != 3:
        return False
    if padding_mask is not None and (not is_plain_tensor(padding_mask) or padding_mask.shape != shape[:2]):
        return False
    parameters = untouched_parameters(block)
    if parameters is None or not dtypes_fit(parameters, hidden_states):
        return False
    dropout = block.activation_dropout
    return not dropout.training or dropout.p == 0


def is_watched() -> bool:
    """Whether something sees or transforms every call, or has replaced what would be called."""
    return (
        torch.jit.is_tracing()
        or transforms_active()
        or dispatch_modes_active()
        or global_hooks_registered()
        or functions_replaced()
        or methods_replaced()
    )


def untouched_parameters(block: nn.Module) -> list[nn.Parameter] | None:
    """The parameters of the branch, or `None` if its layers are not as `GMLPBlock` makes them. Sizes, values and the
    dropout rate do not matter."""
    unit, activation = block.spatial_gating_unit, block.activation
    if not unit_untouched(unit) or not is_untouched(block.activation_dropout, nn.Dropout):
        return None
    if not is_untouched(activation, GELU) or activation.__dict__.get("act") is not F.gelu:
        return None
    parameters = list(unit.proj._parameters.values())
    for layer in (block.norm, unit.norm):
        if not is_untouched(layer, nn.LayerNorm):
            return None
        weight, bias = layer._parameters["weight"], layer._parameters["bias"]
        # The layer raises an error for other shapes.
        if not layer.normalized_shape == weight.shape == bias.shape:
            return None
        parameters += (weight, bias)
    for layer in (block.proj_in, block.proj_out):
        if not is_untouched(layer, nn.Linear):
            return None
        weight, bias = layer._parameters["weight"], layer._parameters["bias"]
        # The layer would broadcast a bias of one number.
        if weight.dim() != 2 or bias.shape != weight.shape[:1]:
            return None
        parameters += (weight, bias)
    return parameters


def unit_untouched(unit: nn.Module) -> bool:
    """Whether a gating unit and its projection, but not its norm, are as they were made. Compilers can trace this."""
    if not is_untouched(unit, SpatialGatingUnit) or not is_untouched(unit.proj, SpatialProjection):
        return False
    name = unit.config.spatial_gating
    return name in KNOWN_GATINGS and SPATIAL_GATINGS.get(name) is KNOWN_GATINGS[name]


def is_untouched(layer: nn.Module, kind: type) -> bool:
    """Whether a layer is of exactly this class and has just its parameters, and a call of it runs nothing else."""
    if type(layer) is not kind:
        return False
    attributes = layer.__dict__
    for name in MUST_BE_EMPTY:
        if attributes.get(name, True):
            return False
    if attributes.get("_compiled_call_impl") or not NAMES[kind].isdisjoint(attributes):
        return False
    parameters = attributes["_parameters"]
    if parameters.keys() != PARAMETERS[kind]:
        return False
    for parameter in parameters.values():
        # Exactly `nn.Parameter`: subclasses are sharded, quantized or wrapped; a transform leaves plain tensors.
        if type(parameter) is not nn.Parameter or parameter.layout != torch.strided:
            return False
    return True


def dtypes_fit(parameters: list[nn.Parameter], hidden_states: torch.Tensor) -> bool:
    """Whether all parameters have one dtype, which goes with the input's, and are on the input's device."""
    dtype, device = parameters[0].dtype, hidden_states.device
    for parameter in parameters:
        if parameter.dtype != dtype or parameter.device != device:
            return False
    if autocast_dtype(device.type) is not None:
        # Autocast leaves double precision alone.
        return hidden_states.dtype != torch.float64 and dtype != torch.float64
    return hidden_states.dtype == dtype


def autocast_dtype(device: str) -> torch.dtype | None:
    """The dtype of products under `torch.autocast` on this type of device; `None` if autocast is off."""
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return None


def is_plain_tensor(x: torch.Tensor) -> bool:
    """Whether this is not of a subclass, is strided and not nested, and no `TorchFunctionMode` is active."""
    plain = type(x) in (torch.Tensor, nn.Parameter) and not torch.overrides.has_torch_function((x,))
    return plain and x.layout == torch.strided and not x.is_nested


def transforms_active() -> bool:
    """Whether a transform of torch.func or forward-mode differentiation is active."""
    functorch_active = getattr(torch._C, "_are_functorch_transforms_active", None)
    level = getattr(forward_ad, "_current_level", None)
    return functorch_active is None or functorch_active() or level is None or level >= 0


def is_batched(gradient: torch.Tensor) -> bool:
    """Whether this is a batch of gradients in disguise (`torch.autograd.grad` with `is_grads_batched`)."""
    asked = getattr(getattr(torch._C, "_functorch", None), "is_legacy_batchedtensor", None)
    return asked is None or asked(gradient)


def dispatch_modes_active() -> bool:
    """Whether a `TorchDispatchMode` sees every operator: counters, fake tensors, selective checkpointing."""
    count = getattr(torch._C, "_len_torch_dispatch_stack", None)
    return count is None or count() > 0


def global_hooks_registered() -> bool:
    """Whether there are hooks for all modules, such as those of `register_module_forward_hook`."""
    return any(getattr(module_tables, name, True) for name in GLOBAL_HOOKS)


# What layers call, as it is when this package is imported. A later replacement is meant to be called.
FUNCTIONS = tuple(
    (place, name, getattr(place, name))
    for place, name in (
        (F, "linear"),
        (F, "layer_norm"),
        (F, "dropout"),
        (F, "gelu"),
        (torch, "baddbmm"),
        (spatial_gating, "spatial_matrix"),
    )
)


def functions_replaced() -> bool:
    """Whether a function that the layers call was replaced."""
    return any(getattr(place, name, None) is not value for place, name, value in FUNCTIONS)


METHODS = {kind: {name: inspect.getattr_static(kind, name, None) for name in names} for kind, names in NAMES.items()}
CONTENTS = {ancestor: dict(vars(ancestor)) for kind in PARAMETERS for ancestor in kind.__mro__[:-1]}


def methods_replaced() -> bool:
    """Whether a method of a layer's class, or of `nn.Module` itself, was replaced."""
    if all(vars(kind) == contents for kind, contents in CONTENTS.items()):
        return False
    for kind, methods in METHODS.items():
        if any(inspect.getattr_static(kind, name, None) is not value for name, value in methods.items()):
            return True
    # Something else has changed: `copy`, for one, leaves a note in every class that it copies. Do not look again.
    CONTENTS.update({kind: dict(vars(kind)) for kind in CONTENTS})
    return False
