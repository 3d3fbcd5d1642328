"""How gpu.py checks systems, and takes their time, operations and memory."""

import argparse
import gc
import statistics
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial

import torch
from systems import System, all_rounds, compare, cpu_seconds, distance, saved_bytes
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from hf_gmlp.errors import InputError
from hf_gmlp.kernels import triton as triton_kernels

# Under autocast, how much farther than the plain form another may be from the truth: with all gradients as one vector,
# and with those of one kind of parameter, which may be few numbers.
BF16_FACTOR, BF16_FACTOR_OF_A_KIND = 1.3, 2.0


@dataclass
class Bench:
    """What all suites share: where they run, our forms that are there, what was found, and what went wrong."""

    arguments: argparse.Namespace
    device: torch.device
    forms: list[str] = field(default_factory=list)
    rate: float = 0.0
    rows: list[dict] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @property
    def quick(self) -> bool:
        return self.arguments.quick

    @property
    def cuda(self) -> bool:
        return self.device.type == "cuda"

    def fault(self, what: str, error: Exception):
        sentence = f"{what}: {sentence_of(error)}"
        self.faults.append(sentence)
        print(f"! {sentence}", flush=True)
        if not isinstance(error, (InputError, torch.OutOfMemoryError)):
            # Where it happened: the machine may not be there any more when somebody asks.
            traceback.print_exception(error, limit=-5)

    def add(self, suite: str, measure: str, value: float, unit: str, **columns):
        self.rows.append({"suite": suite, "measure": measure, "value": value, "unit": unit, "mode": "eager"} | columns)

    def precision(self) -> AbstractContextManager:
        return torch.autocast(self.device.type, torch.bfloat16)

    def synchronize(self):
        if self.cuda:
            torch.cuda.synchronize()

    def free(self):
        """Gives a GPU's memory back that nothing uses; on a CPU, collecting takes longer than all else."""
        if self.cuda:
            gc.collect()
            torch.cuda.empty_cache()


def base_of(name: str) -> str:
    return name.removesuffix(", compiled")


def label_of(row: dict) -> str:
    """The name of a system as tables have it."""
    return row.get("system", "") + (", compiled" if row["mode"] == "compiled" else "")


# ----------------------------------------------------------------------------------------------------------- measuring


def seconds_of(bench: Bench, step: Callable[[], object]) -> float:
    """Of a step that has run before; a short one runs often, so that launching the first does not count."""
    if not bench.cuda:
        return cpu_seconds(step, time.perf_counter)

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

    once = run(1)
    return once if once > 0.01 else run(min(100, int(0.02 / once) + 1))


def forward_step(
    bench: Bench, system: System, count: int | None = None, gradients: bool = False
) -> Callable[[], object]:
    def step():
        with torch.set_grad_enabled(gradients), bench.precision():
            system.run(count)

    return step


def training_step(bench: Bench, system: System, count: int | None = None) -> Callable[[], object]:
    def step():
        with bench.precision():
            loss = system.loss(count)
        cotangent = system.cotangent
        loss.backward(cotangent if cotangent is None or count is None else cotangent[:count])
        system.model.zero_grad()

    return step


def flops_of(step: Callable[[], object]) -> int:
    """Operations of the products in a step; attention as the products it consists of, in each direction."""
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        step()
    return counter.get_total_flops()


def peak_of(bench: Bench, step: Callable[[], object]) -> float:
    """Bytes that a step needs beside what is there already."""
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    bench.synchronize()
    return torch.cuda.max_memory_allocated() - before


def able(bench: Bench, suite: str, steps: dict[str, Callable[[], object]]) -> dict[str, Callable[[], object]]:
    """The steps that run at all: the first run of each, in which what is compiled is compiled."""
    running = {}
    for name, step in steps.items():
        try:
            step()
            bench.synchronize()
            running[name] = step
        except Exception as error:
            bench.fault(f"{suite}: {name} is left out", error)
            del error
            bench.free()
    return running


def sentence_of(error: Exception) -> str:
    if isinstance(error, torch.OutOfMemoryError):
        return "it does not fit into memory."
    if isinstance(error, InputError):
        return str(error)
    first = (str(error).strip() or "no message").splitlines()[0]
    return f"{type(error).__name__}: {first[:300]}"


# --------------------------------------------------------------------------------------------------- the same results


def build_all(bench: Bench, suite: str, builders: list[Callable[[], System]]) -> dict[str, System]:
    """The systems that can be built and are asked for, in training mode: without dropout, it is no different."""
    systems = {}
    for build in builders:
        try:
            system = build()
        except Exception as error:
            bench.fault(f"{suite}: a system is left out", error)
            continue
        # The plain form is what the others are compared with.
        if system.name.endswith(", plain") or not any(word in system.name for word in bench.arguments.without):
            system.model.train()
            systems[system.name] = system
    return systems


def values_of(bench: Bench, system: System, count: int, autocast: bool) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Output and gradients."""
    system.model.zero_grad()
    with torch.autocast(bench.device.type, torch.bfloat16, enabled=autocast):
        # Without gradients, lean and triton are other code. A compiled model is not, and would be compiled once more.
        with torch.set_grad_enabled(system.name != base_of(system.name)):
            output = system.run(count).detach()
        loss = system.loss(count)
    loss.backward(None if system.cotangent is None else system.cotangent[:count])
    gradients = {name: parameter.grad.float() for name, parameter in system.model.named_parameters()}
    system.model.zero_grad()
    return output.float(), gradients


@contextmanager
def kernels_launched() -> Iterator[list[str]]:
    """The names of our Triton kernels as they are launched."""
    kernel = next(
        type(value) for value in vars(triton_kernels).values() if hasattr(value, "run") and hasattr(value, "fn")
    )
    launched, run = [], kernel.run

    def counted(self, *args, **kwargs):
        launched.append(self.fn.__name__)
        return run(self, *args, **kwargs)

    kernel.run = counted
    try:
        yield launched
    finally:
        kernel.run = run


def check(bench: Bench, suite: str, systems: dict[str, System]):
    """
    Compares all forms of ours with the plain one, for a few samples: in single precision, and under autocast, where
    both are compared with the plain one in single precision. Takes out of `systems` what is wrong.
    """
    count = min(2, bench.arguments.batch)
    references = {}
    for name in list(systems):
        prefix, _, form = name.partition(", ")
        if prefix not in ("ours", "unit", "block") or form == "plain":
            continue
        try:
            reference = systems.get(f"{prefix}, plain")
            if reference is None:
                raise InputError("No times: the plain form that it would be compared with is not there.")
            if prefix not in references:
                references[prefix] = [values_of(bench, reference, count, autocast) for autocast in (False, True)]
            truth, plain = references[prefix]
            systems[name].model.load_state_dict(reference.model.state_dict())
            with kernels_launched() if form == "triton" else nullcontext(["not looked at"]) as launched:
                values = values_of(bench, systems[name], count, autocast=False)
            if not launched:
                raise InputError("No times: none of our Triton kernels ran, so that they would be another form's.")
            check_float32(name, values, truth)
            check_bf16(name, values_of(bench, systems[name], count, autocast=True), plain, truth)
        except Exception as error:
            bench.fault(f"{suite}: {name} is left out", error)
            del systems[name]
    references.clear()


def check_float32(name: str, values: tuple, truth: tuple):
    compare(f"outputs of {name}", values[0], truth[0], "the plain form's")
    for key, gradient in values[1].items():
        compare(f"gradients of {key} of {name}", gradient, truth[1][key], "the plain form's")


def check_bf16(name: str, values: tuple, plain: tuple, truth: tuple):
    kinds: dict[str, list[str]] = {}
    for key in truth[1]:
        # One kind are the parameters of one name in all blocks.
        kinds.setdefault(".".join(part for part in key.split(".") if not part.isdigit()), []).append(key)

    def joined(values: tuple, keys: list[str]) -> torch.Tensor:
        return torch.cat([values[1][key].flatten() for key in keys])

    pairs = {"outputs": (*(each[0] for each in (values, plain, truth)), BF16_FACTOR)}
    every = list(truth[1])
    pairs["gradients"] = (*(joined(each, every) for each in (values, plain, truth)), BF16_FACTOR)
    for kind, keys in kinds.items():
        pairs[f"gradients of {kind}"] = (
            *(joined(each, keys) for each in (values, plain, truth)),
            BF16_FACTOR_OF_A_KIND,
        )
    for what, (own, others, true, factor) in pairs.items():
        far_away, allowed = distance(own, true), factor * distance(others, true)
        # A form that computes exactly what the plain one does may be as far as it is.
        if not (far_away <= allowed):
            raise InputError(
                f"No times: under bf16 autocast, {what} of {name} are {far_away:.1e} away from the truth, and {factor} "
                f"times the plain form's distance is {allowed:.1e}."
            )


# ------------------------------------------------------------------------------------------------------------ measuring


def measure(bench: Bench, suite: str, systems: dict[str, System], batch: int, saved: dict[str, float] | None = None):
    """Times, operations and memory of all systems of a suite, which are checked already: rows, and a table."""
    small = min(2, batch)
    flops = {}
    for name, system in systems.items():
        # Other forms do the same work, if perhaps by other operations.
        source = systems.get(name.split(",")[0] + ", plain") or systems.get(base_of(name), system)
        if source.name not in flops:
            # With gradients too: the unit's input is a parameter, which torch's counter cannot follow without.
            forward = forward_step(bench, source, small, gradients=True)
            counts = flops_of(forward), flops_of(training_step(bench, source, small))
            flops[source.name] = [count * batch // small for count in counts]
        flops[name] = flops[source.name]
    found: dict[str, dict[str, tuple[float, str]]] = {name: {} for name in systems}
    for i, (kind, make) in enumerate((("forward", forward_step), ("training", training_step))):
        steps = able(bench, f"{suite}, {kind}", {name: make(bench, system) for name, system in systems.items()})
        for name, times in all_rounds(steps, bench.arguments.rounds, partial(seconds_of, bench)).items():
            median = statistics.median(times)
            found[name] |= {
                f"{kind} time": (median, "s"),
                f"{kind} spread": ((max(times) - min(times)) / median, ""),
                f"{kind} samples": (batch / median, "samples/s"),
                f"{kind} operations": (flops[name][i], "FLOP"),
                f"{kind} rate": (flops[name][i] / median, "FLOP/s"),
                f"{kind} MFU": (flops[name][i] / median / bench.rate, ""),
            }
        if kind == "training" and bench.cuda:
            for name, step in steps.items():
                above = peak_of(bench, step) / 2**20
                own = systems[name].parameters * 4 / 2**20
                found[name]["training memory above start"] = (above, "MiB")
                found[name]["training memory with parameters"] = (above + own, "MiB")
    for name, value in (saved or {}).items():
        if name in found:
            found[name]["saved per token and layer"] = (value, "bytes")
    for name, system in systems.items():
        row = system.row(batch, "compiled" if name != base_of(name) else "eager") | {"system": base_of(name)}
        bench.rows += [
            {"suite": suite} | row | {"measure": measure, "value": value, "unit": unit}
            for measure, (value, unit) in found[name].items()
        ]
    print_table(suite, systems, found, batch)


def print_table(suite: str, systems: dict[str, System], found: dict[str, dict[str, tuple[float, str]]], batch: int):
    print(f"\n{suite}, batch {batch}; times in ms, spread of the rounds behind; memory of a training step in MiB")
    heads = ("system", "layers", "params", "forward", "", "MFU", "training", "", "MFU", "samples/s", "above start")
    form = "{:<34}{:>7}{:>9}{:>10}{:>6}{:>7}{:>10}{:>6}{:>7}{:>11}{:>13}{:>11}{:>9}"
    print(form.format(*heads, "+ params", "saved B"))
    for name, system in systems.items():
        values = {measure: value for measure, (value, _) in found[name].items()}

        def show(measure: str, form: str, factor: float = 1.0) -> str:
            return form.format(values[measure] * factor) if measure in values else "-"  # noqa: B023

        cells = [name, system.layers, f"{system.parameters / 1e6:.1f} M"]
        for kind in ("forward", "training"):
            cells += [show(f"{kind} time", "{:.3f}", 1e3), show(f"{kind} spread", "{:.0%}")]
            cells += [show(f"{kind} MFU", "{:.1%}")]
        cells += [show("training samples", "{:.1f}"), show("training memory above start", "{:.0f}")]
        cells += [show("training memory with parameters", "{:.0f}"), show("saved per token and layer", "{:.0f}")]
        print(form.format(*cells), flush=True)


def saved_by(bench: Bench, builders: dict[str, Callable[..., System]], sizes: dict) -> dict[str, float]:
    """Saved bytes per token and layer, of those that can tell."""
    saved = {}
    for name, build in builders.items():
        sizes = {key: value for key, value in sizes.items() if key != "layers"}
        try:
            saved[name] = saved_bytes(lambda layers: build(layers=layers, **sizes), bench.precision)  # noqa: B023
        except Exception as error:
            bench.fault(f"saved bytes of {name}", error)
        bench.free()
    return saved
