"""Bytes that a compiled gMLP block moves and keeps in training, counted from inductor's schedule, without running it.

    python -m benchmarks.block_bytes

The forms differ in how the gating unit halves the activated z [B, m, F]: by `unbind`, by `chunk`, by an activation of
each half, or by a product for each half. With "no cat", inductor's `max_pointwise_cat_inputs` and
`max_complex_pointwise_cat_inputs` are 0: the gradients of the halves are then written in place of being joined in a
kernel that reads all of its inputs for each half. The unit U is one [tokens, d_model] in bfloat16. The sizes are those
of gmlp-base with 64 x 512 tokens under autocast. The outputs and gradients of all forms are compared in double
precision, and eager forms take turns in float32 for their time.
"""

import argparse
import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import nn
from torch._functorch.aot_autograd import make_boxed_func
from torch._inductor import config as inductor
from torch._inductor.compile_fx import compile_fx, record_original_output_strides
from torch._inductor.debug import DebugContext
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V
from torch.nn import functional as F

from common.machine import circumstances
from hf_gmlp import GMLPBlock, GMLPConfig, SpatialGatingUnit, errors
from hf_gmlp.cards import markdown_table

Halves = Callable[[GMLPBlock, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def unbind(block: GMLPBlock, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    u, v = block.activation(block.proj_in(x)).unflatten(-1, (2, -1)).unbind(-2)
    return u, v


def chunk(block: GMLPBlock, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    u, v = block.activation(block.proj_in(x)).chunk(2, -1)
    return u, v


def activate_halves(block: GMLPBlock, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    u, v = block.proj_in(x).chunk(2, -1)
    return block.activation(u), block.activation(v)


def two_products(block: GMLPBlock, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    parts = zip(block.proj_in.weight.chunk(2), block.proj_in.bias.chunk(2))
    u, v = (block.activation(F.linear(x, weight, bias)) for weight, bias in parts)
    return u, v


# Name -> how z is halved, and whether inductor may join the gradients of the halves in one kernel.
FORMS: dict[str, tuple[Halves, bool]] = {
    "unbind": (unbind, True),
    "unbind, no cat": (unbind, False),
    "chunk": (chunk, True),
    "chunk, no cat": (chunk, False),
    "A: activation of each half, no cat": (activate_halves, False),
    "B: two products, no cat": (two_products, False),
}


class Block(nn.Module):
    """A block whose gating unit gets its halves from one of the forms."""

    def __init__(self, block: GMLPBlock, halves: Halves) -> None:
        super().__init__()
        self.block, self.halves = block, halves

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        unit: SpatialGatingUnit = self.block.spatial_gating_unit
        u, v = self.halves(self.block, self.block.norm(x))
        return x + self.block.proj_out(u * unit.proj(unit.norm(v)))


class Count:
    """A compiler that counts bytes from inductor's schedule, and runs the graph as it is."""

    def __init__(self) -> None:
        self.moved = self.kept = self.kernels = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: list, **kwargs) -> Callable:
        record_original_output_strides(graph)
        lowering = GraphLowering(graph, is_backward=bool(kwargs.get("is_backward")))
        with DebugContext(), V.set_graph_handler(lowering), V.set_extern_kernel_nodes([]):
            lowering.run(*inputs)
            lowering._update_scheduler()
            moved, nodes, _ = lowering.count_bytes()
        self.moved += moved
        self.kernels += sum(size > 0 for _, size in nodes)
        if kwargs.get("is_backward"):
            names = [node.name for node in graph.graph.nodes if node.op == "placeholder"]
            kept = [x for name, x in zip(names, inputs) if not name.startswith(("primals", "tangents"))]
            self.kept += sum(x.numel() * x.dtype.itemsize for x in kept)
        return make_boxed_func(graph.forward)


def count_bytes(model: nn.Module, x: torch.Tensor, joins_gradients: bool) -> Count:
    """Compile a training step on `x`, and return what was counted."""
    torch.compiler.reset()
    count = Count()
    limits = {} if joins_gradients else {"max_pointwise_cat_inputs": 0, "max_complex_pointwise_cat_inputs": 0}
    with inductor.patch(limits | {"force_disable_caches": True}):
        backend = functools.partial(compile_fx, inner_compile=cast(Any, count))
        compiled = torch.compile(model, backend=backend, fullgraph=True)
        with torch.autocast(x.device.type, torch.bfloat16):
            output = compiled(x)
        output.backward(torch.ones_like(output))
    return count


@contextmanager
def sized(tokens: int, dtype: torch.dtype) -> Iterator[tuple[GMLPBlock, torch.Tensor]]:
    torch.manual_seed(0)
    config = GMLPConfig(spatial_initializer_range=0.1)
    block = GMLPBlock(config).to(dtype)
    nn.init.normal_(block.spatial_gating_unit.proj.weight, std=0.1)
    yield block, torch.randn(tokens // 512, 512, config.hidden_size, dtype=dtype, requires_grad=True)


def gradients(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    output = model(x)
    used = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [output, *torch.autograd.grad(output.square().sum(), [x, *used])]


def benchmark(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    with sized(512, torch.double) as (block, x):
        expected = gradients(Block(block, unbind), x)
        for name, (halves, _) in FORMS.items():
            for actual, reference in zip(gradients(Block(block, halves), x), expected):
                torch.testing.assert_close(actual, reference, rtol=1e-10, atol=1e-10, msg=f"{name} is wrong")
    times: dict[str, list[float]] = {name: [] for name, (_, joins) in FORMS.items() if joins}
    with sized(2048, torch.float) as (block, x):
        for _ in range(arguments.rounds + 1):
            for name, values in times.items():
                start = time.thread_time()
                gradients(Block(block, FORMS[name][0]), x)
                values.append(time.thread_time() - start)
    table = [["form", "moved, U", "kept, U", "kernels", "eager time on a CPU"]]
    with sized(arguments.tokens, torch.float) as (block, x):
        unit = x.numel() * 2
        for name, (halves, joins_gradients) in FORMS.items():
            count = count_bytes(Block(block, halves), x, joins_gradients)
            ratio = f"{min(times[name][1:]) / min(times['unbind'][1:]):.2f}" if name in times else ""
            row = [name, f"{count.moved / unit:.1f}", f"{count.kept / unit:.1f}", str(count.kernels), ratio]
            print(", ".join(row), flush=True)
            table.append(row)
    print(markdown_table(table))
    print(circumstances())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=8192, help="tokens of the batch (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="how often eager forms are timed (default: %(default)s)")
    errors.run_command(lambda: benchmark(parser.parse_args()))


if __name__ == "__main__":
    main()
