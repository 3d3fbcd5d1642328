"""gMLP beside its peers on a GPU, in one process and one run: whether they compute the same, how fast, in what memory.

    python benchmarks/gpu.py                              everything
    python benchmarks/gpu.py --suites text --batch 32     one suite
    python benchmarks/gpu.py --device cpu --quick         all of it in tiny, on a machine without a GPU: does it run

Suites:
    rate      the measured rate of bf16 products and of copies, and the rate of gMLP-base's own products
    text      gMLP-base as a masked language model, logits at the masked positions only, in all of its forms; the same
              work by g-mlp-pytorch (lucidrains), labml's form and BERT-base
    vision    gMLP-S on images of 224 pixels; timm's gMLP-S and ViT-S
    unit      GELU and spatial gating unit alone, and one block, in all forms
    fft       the Toeplitz product as a bf16 matrix and by FFT in single precision
    scaling   cost per token as tokens, batch and depth grow

Everything runs under bf16 autocast with parameters in single precision and without dropout. Systems take turns within
every round, and the median of the rounds counts. Forward is up to the loss of a text and the logits of an image; a
training step is forward and backward, without an optimizer. "MFU" is the operations of the model (those of the plain
form, counted by torch) over time, as a share of the rate of a large product in the same run. "Compiled" models are the
plain form with every block compiled, unless --compile says otherwise. "Above start" is the peak memory of a training
step, with gradients, minus what was there before it, such as parameters.

No number of a system is reported if its outputs or gradients differ from those of the plain form: in single precision
by more than rounding, or under autocast if they are farther from the truth than 1.3 times the plain form's. A system
that fails, or does not fit into memory, is left out; the rest goes on, and the command ends with an error.

The results are added to benchmarks/results/gpu-DATE.csv after every suite, and drawn to a picture beside it.
"""

import argparse
import datetime
import gc
import shlex
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

import checks
import harness
import peers
import torch
from harness import KINDS, Bench, Found
from peers import FORMS, LEAN, PLAIN, TIMM, TRITON, System
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from hf_gmlp import GMLPConfig, errors
from hf_gmlp.errors import InputError
from hf_gmlp.kernels.triton import can_use_triton, gating_backward, gating_forward
from hf_gmlp.markdown import markdown_table
from hf_gmlp.models.modeling_gmlp import GMLPBlock
from hf_gmlp.models.spatial_gating import SpatialGatingUnit, spatial_matrix

SPEED, ABOVE, WHOLE = "training samples", "training memory above start", "training memory with parameters"
# Label; suite and measure; the peer by which hf_gmlp's best form is divided (None: 1) and the peer's mode (None: any);
# how the quotient must compare with what, or nothing. Less is better where it must be below.
GOALS = [
    ("gMLP-base training, share of the measured rate", "text", "training MFU", None, None, ">=", 0.5),
    ("gMLP-base training, MFU over BERT-base's", "text", "training MFU", "BERT-base", None, ">=", 1.0),
    ("gMLP-base training, over lucidrains eager", "text", SPEED, "lucidrains", "eager", ">=", 1.5),
    ("gMLP-base training, over lucidrains compiled", "text", SPEED, "lucidrains", "compiled", "", 0.0),
    ("gMLP-S training, over timm eager", "vision", SPEED, TIMM, "eager", ">=", 1.3),
    ("gMLP-S training, over timm compiled", "vision", SPEED, TIMM, "compiled", "", 0.0),
    ("gMLP-S forward, over timm eager", "vision", "forward samples", TIMM, "eager", ">=", 1.3),
    ("gMLP-S forward, over timm compiled", "vision", "forward samples", TIMM, "compiled", "", 0.0),
    ("gMLP-S training memory above start, over timm's", "vision", ABOVE, TIMM, "eager", "<=", 0.5),
    ("gMLP-S training memory with parameters, over timm's", "vision", WHOLE, TIMM, "eager", "<=", 0.5),
]


def main():
    arguments = read_arguments()
    errors.run(lambda: benchmark(arguments))


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suites", nargs="+", choices=("rate", *SUITES), default=["rate", *SUITES])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu only with --quick")
    compile = "what torch.compile is given; whole models take long (default: %(default)s)"
    parser.add_argument("--compile", choices=("blocks", "model", "none"), default="blocks", help=compile)
    parser.add_argument("--backend", default="inductor", help="of torch.compile (default: %(default)s)")
    without = "leave out systems with such a word in their name"
    parser.add_argument("--without", nargs="+", default=[], metavar="WORD", help=without)
    sizes = {
        "batch": ("texts in a batch (default: 64)", 64, 2),
        "images": ("images in a batch (default: 128)", 128, 1),
        "layers": ("gMLP blocks of the text models, BERT a fourth (default: 48)", 48, 2),
        "tokens": ("length of a text (default: 512)", 512, 32),
        "rounds": ("how often every system is timed (default: 7)", 7, 1),
    }
    arguments = harness.parse_arguments(parser, sizes)
    if arguments.device == "cpu" and not arguments.quick:
        parser.error("--device cpu takes too long at full size: add --quick, or use benchmarks/cpu.py")
    return arguments


def benchmark(arguments: argparse.Namespace):
    if arguments.device == "cuda" and not torch.cuda.is_available():
        raise InputError("There is no CUDA GPU here: use a machine with one, or try --device cpu --quick.")
    bench = GPUBench(arguments, arguments.device)
    torch.manual_seed(0)
    # Keeps single precision in the checks free of TF32.
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    path = arguments.out / f"gpu-{datetime.date.today().isoformat()}.csv"
    command = shlex.join(["python", "benchmarks/gpu.py", *sys.argv[1:]])
    common = harness.about(cuda=torch.version.cuda, command=command)
    print(", ".join(f"{key} {value}" for key, value in common.items()))
    if TRITON not in bench.forms:
        print(f"{TRITON} is left out: it needs the package triton and an NVIDIA GPU.")
    begin = time.perf_counter()
    # Everything else is a share of this.
    rate_suite(bench, own_products="rate" in arguments.suites)
    written = 0
    for suite in ("rate", *(suite for suite in arguments.suites if suite != "rate")):
        try:
            if suite != "rate":
                SUITES[suite](bench)
        except Exception as error:
            # Time on such machines is expensive: keep what was found, and go on with the other suites.
            bench.fault(f"the suite {suite} ended", error)
        torch._dynamo.reset()
        bench.free()
        print(f"\n{suite}: done after {time.perf_counter() - begin:.0f} s", flush=True)
        harness.write_results(path, bench.rows[written:], common)
        written = len(bench.rows)
    print(f"rate at the end: {measured_rate(bench) / bench.rate:.1%} of the rate at the beginning")
    print_goals(bench)
    harness.write_results(path, bench.rows[written:], common)
    harness.draw(path.with_suffix(".png"), bench.rows, common.get("gpu", common["machine"]))
    if bench.faults:
        raise InputError("Not everything was measured. " + " ".join(bench.faults))


class GPUBench(Bench):
    """
    A run under bf16 autocast on a GPU. What fails is left out, and the rest goes on.

    Attributes:
        forms: The names of the forms of hf_gmlp that can run here.
        rate: Operations per second of a large product.
        faults: One sentence for each error.
    """

    autocast = True

    def __init__(self, arguments: argparse.Namespace, device: str):
        super().__init__(arguments, device)
        self.quick, self.cuda = arguments.quick, device == "cuda"
        self.forms = [PLAIN, LEAN] + ([TRITON] if can_use_triton(self.device) else [])
        self.rate, self.faults = 0.0, []

    def precision(self) -> AbstractContextManager:
        return torch.autocast(self.device.type, torch.bfloat16)

    def wanted(self, name: str) -> bool:
        # The others are compared with the plain form.
        return name.endswith(", plain") or not any(word in name for word in self.arguments.without)

    def fault(self, what: str, error: Exception):
        if isinstance(error, torch.OutOfMemoryError):
            reason = "it does not fit into memory."
        elif isinstance(error, InputError):
            reason = str(error)
        else:
            reason = f"{type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0][:300]}"
            # The machine may be gone when you look for the place of the error.
            traceback.print_exception(error, limit=-5)
        self.faults.append(f"{what}: {reason}")
        print(f"! {self.faults[-1]}", flush=True)

    def free(self):
        # On a CPU, collecting would take longer than everything else.
        if self.cuda:
            gc.collect()
            torch.cuda.empty_cache()

    def seconds(self, step: Callable[[], object]) -> float:
        if not self.cuda:
            start = time.perf_counter()
            step()
            return time.perf_counter() - start

        def run(repeats: int) -> float:
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            # Untimed: another system had the caches and the allocator before.
            step()
            start.record()
            for _ in range(repeats):
                step()
            end.record()
            end.synchronize()
            return start.elapsed_time(end) / 1e3 / repeats

        # A short step runs often, so that the launch of the first does not count.
        once = run(1)
        return once if once > 0.01 else run(min(100, int(0.02 / once) + 1))

    def peak(self, step: Callable[[], object]) -> float:
        """MiB that a step needs beside what is there already."""
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        return (torch.cuda.max_memory_allocated() - before) / 2**20


def flops_of(step: Callable[[], object]) -> int:
    """Operations of the products in a step; attention as the products it consists of, in each direction."""
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        step()
    return counter.get_total_flops()


# ---------------------------------------------------------------------------------------------------------------- rate


def measured_rate(bench: GPUBench) -> float:
    """Operations per second of a large bf16 product."""
    size, rounds = (256, 3) if bench.quick else (8192, 30)
    left, right, out = torch.randn(3, size, size, device=bench.device, dtype=torch.bfloat16)
    for _ in range(3 if bench.quick else 100):
        # Until the clocks are up.
        torch.mm(left, right, out=out)
    seconds = bench.times("rate", {"": partial(torch.mm, left, right, out=out)}, rounds)[""]
    rate = flops_of(lambda: torch.mm(left, right)) / seconds
    bench.add("rate", f"bf16 product of {size}^3", rate, "FLOP/s", system="matrix product")
    return rate


def rate_suite(bench: GPUBench, own_products: bool):
    """The rates that everything else is a share of."""
    bench.rate = measured_rate(bench)
    rounds = 3 if bench.quick else 30
    source = torch.empty(2**16 if bench.quick else 2**30, dtype=torch.uint8, device=bench.device).random_()
    target = torch.empty_like(source)
    bandwidth = 2 * source.numel() / bench.times("rate", {"": partial(target.copy_, source)}, rounds)[""]
    bench.add("rate", "copy, bytes read and written", bandwidth, "B/s", system="copy")
    print(f"\nrate: {bench.rate / 1e12:.4g} TFLOP/s in a large bf16 product, {bandwidth / 1e9:.4g} GB/s in a copy")
    if not own_products:
        return

    batch, tokens = bench.arguments.batch, bench.arguments.tokens
    factors = harness.block_products(batch, tokens, 512, bench.device, torch.bfloat16)
    products = {
        name: partial(torch.bmm if left.dim() == 3 else torch.mm, left, right)
        for name, (left, right) in factors.items()
    }
    times = bench.times("rate", products, rounds)
    operations = {name: flops_of(products[name]) for name in times}
    sums = {name: [name] for name in times}
    sums |= {"forward products": [name for name in times if "gradient" not in name], "training products": list(times)}
    table = [["product", "ms", "TFLOP/s", "share of the rate"]]
    for what, names in sums.items():
        seconds = sum(times[name] for name in names)
        rate = sum(operations[name] for name in names) / seconds
        table.append([what, f"{seconds * 1e3:.3f}", f"{rate / 1e12:.4g}", f"{rate / bench.rate:.1%}"])
        measured = (f"product {what}", rate, "FLOP/s") if what in times else (f"{what} / rate", rate / bench.rate, "")
        bench.add("rate", *measured, system="gMLP-base", batch=batch, tokens=tokens)
    print(f"\nproducts of a block of gMLP-base, batch {batch}, {tokens} tokens: no code beats their share")
    print("\n" + markdown_table(table))


# -------------------------------------------------------------------------------------------------------------- models


def model_suite(bench: GPUBench, suite: str):
    arguments, device = bench.arguments, bench.device.type
    if suite == "text":
        build, trunk = peers.build_masked, peers.build_text
        names = [*bench.forms, peers.DENSE, peers.CIRCULANT, peers.ANNOTATED, peers.BERT]
        to_compile = (PLAIN, peers.DENSE, peers.BERT)
        sizes = {"layers": arguments.layers, "batch": arguments.batch, "tokens": arguments.tokens, "device": device}
        sizes |= {"vocabulary": 64 if bench.quick else 32000}
        few = sizes | {"vocabulary": 32}
    else:
        build = trunk = peers.build_vision
        names, to_compile = [*bench.forms, TIMM, peers.VIT], (PLAIN, TIMM, peers.VIT)
        sizes = few = {"layers": 2 if bench.quick else 30, "batch": arguments.images, "device": device}
    checks.check_peers({name: trunk(name, **few | {"layers": 2, "batch": 2}) for name in names if name not in FORMS})
    builders = [partial(build, name, **sizes) for name in names]
    how = arguments.compile, arguments.backend
    if arguments.compile != "none":
        builders += [lambda name=name: peers.compiled(build(name, **sizes), *how) for name in to_compile]
    systems = bench.build_all(suite, builders)
    few = {name: few[name] for name in few if name != "layers"} | {"batch": min(8, sizes["batch"])}
    saved = harness.saved_bytes(bench, suite, {name: partial(trunk, name) for name in names}, **few)
    checks.check_forms(bench, suite, systems)
    measure(bench, suite, systems, sizes["batch"], saved)


def measure(bench: GPUBench, suite: str, systems: dict[str, System], batch: int, saved: dict[str, float] | None = None):
    """Times, operations and memory of all systems of a suite, which are checked already."""
    small = min(2, batch)
    flops: dict[str, dict[str, int]] = {}
    for name, system in systems.items():
        # Other forms do the same work, if perhaps by other operations.
        source = systems.get(name.split(",")[0] + ", plain") or systems.get(peers.base_of(name), system)
        if source.name not in flops:
            # With gradients too: the unit's input is a parameter, which torch's counter cannot follow without.
            forward = harness.forward_step(bench, source, small, gradients=True)
            counts = flops_of(forward), flops_of(harness.training_step(bench, source, small))
            flops[source.name] = {kind: count * batch // small for kind, count in zip(KINDS, counts)}
        flops[name] = flops[source.name]
    found: dict[str, Found] = {name: {} for name in systems}
    for kind, make in KINDS.items():
        steps = {name: make(bench, system) for name, system in systems.items()}
        for name, times in bench.all_times(f"{suite}, {kind}", steps).items():
            median, operations = statistics.median(times), flops[name][kind]
            found[name] |= {
                f"{kind} time": (median, "s"),
                f"{kind} spread": ((max(times) - min(times)) / median, ""),
                f"{kind} samples": (batch / median, "samples/s"),
                f"{kind} operations": (operations, "FLOP"),
                f"{kind} rate": (operations / median, "FLOP/s"),
                f"{kind} MFU": (operations / median / bench.rate, ""),
            }
            if kind == "training" and bench.cuda:
                above = bench.peak(steps[name])
                own = systems[name].parameters * 4 / 2**20
                found[name] |= {ABOVE: (above, "MiB"), WHOLE: (above + own, "MiB")}
    for name, value in (saved or {}).items():
        if name in found:
            found[name]["saved per token and layer"] = (value, "bytes")
    harness.report(bench, suite, systems, found, batch)


# ---------------------------------------------------------------------------------------------------------------- unit


class Alone(nn.Module):
    """
    A block, or its GELU and spatial gating unit, with its inputs, so that their gradients are compared too. The unit's
    inputs are the halves u and v of Z before the GELU, apart, as the lean and the Triton form have them.
    """

    def __init__(self, block: GMLPBlock, inputs: list[torch.Tensor], form: str):
        super().__init__()
        self.inputs = nn.ParameterList(inputs)
        self.part = block if len(inputs) == 1 else block.spatial_gating_unit
        self.form = form

    def forward(self, count: int | None = None) -> torch.Tensor:
        # No slice of a whole input: its gradient would be copied.
        inputs = [x if count is None else x[:count] for x in self.inputs]
        if len(inputs) == 1:
            return self.part(*inputs)
        if torch.is_autocast_enabled(inputs[0].device.type):
            # As they come from a product. While times are taken, they are in bfloat16 already.
            inputs = [x.to(torch.bfloat16) for x in inputs]
        return (triton_unit if self.form == TRITON else plain_unit)(self.part, *inputs)


def plain_unit(unit: SpatialGatingUnit, u: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.gelu(u) * unit.proj(unit.norm(F.gelu(v)), unit.config.is_causal)


def triton_unit(unit: SpatialGatingUnit, u: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    parameters = unit.norm.weight, unit.norm.bias, unit.proj.weight, unit.proj.bias
    if torch.is_grad_enabled():
        return TritonUnit.apply(unit, u, v, *parameters)
    return gating_forward(u, v, *arguments_of(unit, parameters), **form_of(unit), needs_gate=False)[0]


def arguments_of(unit: SpatialGatingUnit, parameters: tuple[torch.Tensor, ...]) -> tuple:
    return *parameters[:2], unit.norm.eps, *parameters[2:]


def form_of(unit: SpatialGatingUnit) -> dict:
    return {"spatial_gating": "split", "toeplitz": unit.proj.toeplitz, "causal": unit.config.is_causal}


class TritonUnit(torch.autograd.Function):
    @staticmethod
    def forward(ctx, unit, u, v, *parameters):
        gated, gate = gating_forward(u, v, *arguments_of(unit, parameters), **form_of(unit))
        ctx.unit = unit
        ctx.save_for_backward(u, v, gate, *parameters)
        return gated

    @staticmethod
    def backward(ctx, grad):
        u, v, gate, *parameters = ctx.saved_tensors
        arguments = arguments_of(ctx.unit, parameters)
        # The gated product is needed only by the projection behind the unit, which is not here.
        found = gating_backward(grad, u, v, gate, *arguments, **form_of(ctx.unit), needs_gated=False)
        return None, found.u, found.v, found.norm_weight, found.norm_bias, found.weight, found.bias


def build_alone(
    bench: GPUBench, what: str, form: str, batch: int, tokens: int, channels: int, kind: str, compile: bool = False
) -> System:
    """The unit or the block (`what`) in a form, with a W of a kind."""
    config = GMLPConfig(
        hidden_size=channels // 3,
        intermediate_size=2 * channels,
        max_position_embeddings=tokens,
        toeplitz=kind != "dense",
        is_causal=kind == "causal",
        gating_implementation="naive" if what == "unit" else FORMS[form],
    )
    block = GMLPBlock(config)
    block.spatial_gating_unit.proj.reset_parameters(peers.SPATIAL_NOISE)
    width = channels if what == "unit" else channels // 3
    both = peers.fixed(2, batch, tokens, width, device=bench.device)
    model = Alone(block, [x.clone() for x in both] if what == "unit" else [both[0].clone()], form).to(bench.device)
    system = System(form.replace("hf_gmlp", what), model, model, 1, tokens, loss=model)
    system.cotangent = peers.fixed(batch, tokens, width, device=bench.device)
    return peers.compiled(system, "model", bench.arguments.backend) if compile else system


def unit_suite(bench: GPUBench):
    """The unit and the block in their forms; for the unit, also bytes per second of the least that must move."""
    # gMLP-base's, gMLP-S's, and longer texts.
    sizes = [(64, 512, 1536), (128, 196, 768), (16, 2048, 1536)]
    kinds = [("dense", "toeplitz", "causal"), ("dense",), ("toeplitz", "causal")]
    if bench.quick:
        sizes, kinds = [(2, 16, 48)], kinds[:1]
    for size, kind in [(size, kind) for size, of_size in zip(sizes, kinds) for kind in of_size]:
        plan = [(what, form, False) for what in ("unit", "block") for form in bench.forms]
        # A unit alone has no lean form.
        plan.remove(("unit", LEAN, False))
        # Each takes some seconds to compile, so the longer texts do without.
        if bench.arguments.compile != "none" and size in sizes[:2]:
            plan += [("unit", PLAIN, True), ("block", PLAIN, True)]
        unit_of_size(bench, f"unit: {kind}, {size[1]} x {size[2]}", size, kind, plan)
        bench.free()
    for tokens in (16,) if bench.quick else (512, 2048):
        toeplitz_cost(bench, tokens)


def unit_of_size(bench: GPUBench, suite: str, size: tuple[int, int, int], kind: str, plan: list[tuple]):
    builders = [partial(build_alone, bench, what, form, *size, kind, compile) for what, form, compile in plan]
    systems = bench.build_all(suite, builders)
    checks.check_forms(bench, suite, systems)
    for system in systems.values():
        if system.name.startswith("unit"):
            system.model.inputs.to(torch.bfloat16)
            system.cotangent = system.cotangent.to(torch.bfloat16)
    measure(bench, suite, systems, size[0])
    # The least that must move: forward, u and v are read and s(Z) is written. Training also reads u, v and the gradient
    # of s(Z), and writes the gradients of u and v. Two bytes each.
    tensor = size[0] * size[1] * size[2] * 2
    tensors = {"forward time": 3, "training time": 8}
    for row in [row for row in bench.rows if row["suite"] == suite and row["system"].startswith("unit")]:
        if row["measure"] in tensors:
            speed = tensors[row["measure"]] * tensor / row["value"]
            what = row["measure"].removesuffix(" time")
            print(f"{harness.label_of(row)}, {what}: {speed / 1e9:.4g} GB/s")
            bench.rows.append(row | {"measure": f"{what} least bytes", "value": speed, "unit": "B/s"})


def toeplitz_cost(bench: GPUBench, tokens: int):
    """The cost of making W from its 2n - 1 weights, which every block pays, and of its gradient."""
    weight = torch.randn(2 * tokens - 1, device=bench.device, requires_grad=True)
    grad = torch.randn(tokens, tokens, device=bench.device)
    steps = {
        "forward": lambda: spatial_matrix(weight.detach(), tokens),
        "training": lambda: torch.autograd.grad(spatial_matrix(weight, tokens), weight, grad),
    }
    for kind, seconds in bench.times("unit", steps).items():
        print(f"the matrix W of {tokens} tokens from its weights, {kind}: {seconds * 1e3:.3f} ms")
        bench.add("unit", f"{kind} time", seconds, "s", system="Toeplitz matrix", tokens=tokens)


# ----------------------------------------------------------------------------------------------------- fft and scaling


def fft_suite(bench: GPUBench):
    lengths = (16, 32) if bench.quick else (512, 1024, 2048, 4096, 8192, 16384)
    channels, total = (24, 2 * lengths[-1]) if bench.quick else (1536, 32768)
    harness.length_suite(bench, "fft", lengths, channels, total, torch.bfloat16)


def cost_suite(bench: GPUBench):
    base = {"layers": 6, "batch": 16, "tokens": 512}
    grown = {"tokens": (128, 512, 1024, 2048, 4096), "batch": (1, 4, 16, 64, 256), "layers": (3, 12, 48)}
    if bench.quick:
        base = {"layers": 1, "batch": 2, "tokens": 16}
        grown = {"tokens": (16, 32), "batch": (1, 2), "layers": (1, 2)}
    build, names = partial(peers.build_text, bert_share=4), [*bench.forms, peers.DENSE, peers.BERT]
    harness.scaling_suite(bench, build, names, base, grown)


SUITES = {
    "text": partial(model_suite, suite="text"),
    "vision": partial(model_suite, suite="vision"),
    "unit": unit_suite,
    "fft": fft_suite,
    "scaling": cost_suite,
}


def print_goals(bench: GPUBench):
    """Prints the goals and what was reached, by the best form of hf_gmlp and of the peer; keeps them as rows."""
    if bench.quick:
        print("\nThe models were tiny: what follows only says that this command runs.")
    rows, table = list(bench.rows), [["goal", "form", "measured", "wanted", ""]]
    for what, suite, measure, peer, mode, relation, wanted in GOALS:
        found = [row for row in rows if (row["suite"], row["measure"]) == (suite, measure)]
        own = [row for row in found if row["system"].startswith("hf_gmlp")]
        others = [row for row in found if peer and row["system"].startswith(peer) and mode in (None, row["mode"])]
        goal = f"{relation} {wanted}" if relation else ""
        if not own or (peer and not others):
            table.append([what, "-", "-", goal, "not measured"])
            continue
        pick = partial(min if relation == "<=" else max, key=lambda row: row["value"])
        form, value = harness.label_of(pick(own)), pick(own)["value"] / (pick(others)["value"] if peer else 1)
        reached = "reached" if (value >= wanted) == (relation == ">=") else "NOT reached"
        table.append([what, form, f"{value:.3f}", goal, reached if relation else ""])
        bench.add("goal", what, value, goal, system=form)
    print("\n" + markdown_table(table))


if __name__ == "__main__":
    main()
