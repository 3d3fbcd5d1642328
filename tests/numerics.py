"""Tolerances for comparing two computations of the same numbers on any processor."""

import math
from collections.abc import Iterable

import torch

# The largest differences measured between this package, timm and double precision, with SSE4 and AVX2 and one or two
# threads, are 8 units of rounding after one block, and 28 after 30 blocks (43 for gradients, 14 for the few logits of a
# small head, whose terms cancel). An error of 1e-3 in a single weight of the last of 30 blocks causes 260 to 390.
UNITS = 48


def tensors_of(value) -> Iterable[torch.Tensor]:
    """Return the tensors in nested lists, tuples and dicts (sorted by key), with numbers as float32 tensors."""
    if isinstance(value, dict):
        value = [value[key] for key in sorted(value)]
    if isinstance(value, list | tuple):
        return [tensor for part in value for tensor in tensors_of(part)]
    return [torch.as_tensor(value).detach()]


def largest(value) -> float:
    """Return the largest absolute value, excluding infinities and the lowest number of a dtype, which mask scores."""
    sizes = [tensor.abs()[tensor.abs() < torch.finfo(tensor.dtype).max / 2] for tensor in tensors_of(value)]
    return max((size.max().item() for size in sizes if size.numel()), default=0.0)


def assert_close(actual, expected, depth: int = 1, msg: str | None = None):
    """
    Assert that two computations of the same numbers differ by no more than rounding.

    The order in which the terms of a sum are added depends on the processor, library, batch shape and number of
    threads. The error of an entry grows with these terms, not with the entry, which may be small because they cancel. A
    relative tolerance fails there, and an absolute one fails where the numbers are large. Here the tolerance is `UNITS`
    units of rounding (`eps` of the less precise dtype) of the largest expected entry. Each block rounds up about as
    often as down, so the error grows with the square root of the depth.

    All values passed in one call belong to one computation and share one tolerance. Pass all gradients of a model
    together, since one that is zero in exact arithmetic, such as that of a bias that a softmax ignores, has no scale.

    Args:
        actual: A tensor, an array, a number, or lists, tuples and dicts of them.
        expected: The result of another computation, with the same structure and shapes; dtypes may differ.
        depth: The number of blocks that the numbers went through.
        msg: Description of the compared values for the error message.

    Raises:
        AssertionError: A number differs by more, or is not finite in one of the two.
    """
    __tracebackhide__ = True
    scale, pairs = largest(expected), list(zip(tensors_of(actual), tensors_of(expected), strict=True))
    assert not isinstance(expected, dict) or actual.keys() == expected.keys()
    for pair in pairs:
        eps = max(torch.finfo(tensor.dtype).eps for tensor in pair)
        torch.testing.assert_close(
            *(tensor.double() for tensor in pair),
            atol=UNITS * eps * math.sqrt(depth) * scale,
            rtol=0,
            msg=None if msg is None else lambda text: f"{msg}: {text}",
        )


def assert_gradients(model: torch.nn.Module, vanishing: Iterable[str] = ()):
    """
    Assert that each parameter has a gradient that is more than rounding.

    Args:
        model: A model after a backward pass.
        vanishing: Ends of the names of parameters that change no output: their gradient is zero in exact arithmetic,
            and must be no more than rounding here. Example: a bias added to all start logits, which a softmax ignores.
    """
    __tracebackhide__ = True
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert not [name for name, gradient in gradients.items() if gradient is None]
    threshold = UNITS * torch.finfo(torch.float32).eps * largest(gradients)
    vanished = {name for name, gradient in gradients.items() if gradient.abs().max() <= threshold}
    assert vanished == {name for name in gradients if name.endswith(tuple(vanishing))}


@torch.no_grad()
def perturb(model):
    """Add noise of 0.2 to W and 0.1 to biases, norms and the head, so that the gates of 30 blocks do not explode."""
    for name, parameter in model.named_parameters():
        std = 0.2 if name.endswith("gate.proj.weight") else 0.1 if parameter.ndim == 1 or "head" in name else 0.0
        parameter.add_(torch.randn(parameter.shape), alpha=std)
    return model.eval()
