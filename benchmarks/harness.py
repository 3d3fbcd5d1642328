"""How the benchmarks take time and memory, and how they print, write and draw what they find."""

import argparse
import csv
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

import checks
import peers
import torch
from peers import System

from hf_gmlp.analysis.machine import circumstances
from hf_gmlp.markdown import markdown_table

RESULTS = peers.ROOT / "benchmarks" / "results"
# A measured value and its unit, by the name of the measure.
Found = dict[str, tuple[float, str]]
Step = Callable[[], object]
# Measure -> its heading and format in tables. Times are printed in milliseconds.
COLUMNS = {
    f"{kind} {measure}": (f"{kind}, {heading}", form)
    for kind in ("forward", "training")
    for measure, heading, form in (
        ("time", "ms", "{:.3f}"),
        ("spread", "spread", "{:.0%}"),
        ("time / hf_gmlp", "ratio", "{:.2f}"),
        ("share of the ceiling", "ceiling", "{:.0%}"),
        ("samples", "samples/s", "{:.1f}"),
        ("MFU", "MFU", "{:.1%}"),
        ("peak memory", "peak MiB", "{:.0f}"),
        ("memory above start", "MiB above start", "{:.0f}"),
        ("memory with parameters", "MiB with parameters", "{:.0f}"),
    )
} | {"saved per token and layer": ("saved, bytes per token and layer", "{:.0f}")}


def parse_arguments(parser: argparse.ArgumentParser, sizes: dict[str, tuple]) -> argparse.Namespace:
    """
    Adds the flags that cpu.py and gpu.py share, and parses the command line.

    Args:
        sizes: Flag -> its help text, its usual value (None: depends on the suite) and its value with --quick.
    """
    parser.add_argument("--quick", action="store_true", help="tiny sizes and few rounds, to see whether it runs")
    for name, (text, _, _) in sizes.items():
        parser.add_argument(f"--{name}", type=int, help=text)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results (default: %(default)s)")
    arguments = parser.parse_args()
    for name, (_, usual, quick) in sizes.items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, quick if arguments.quick else usual)
        elif getattr(arguments, name) < 1:
            parser.error(f"--{name} must be at least 1")
    return arguments


class Bench:
    """
    A run in single precision on a CPU, and what it has found. gpu.py derives another for GPUs.

    Attributes:
        rows: One dictionary for each measured value.
        autocast: Whether systems run under bfloat16 autocast.
    """

    autocast = False

    def __init__(self, arguments: argparse.Namespace, device: str = "cpu"):
        self.arguments, self.device, self.rows = arguments, torch.device(device), []

    def precision(self) -> AbstractContextManager:
        return nullcontext()

    def seconds(self, step: Step) -> float:
        """Seconds of a step that has run before: its CPU time with one thread, else the time that passes."""
        clock = time.thread_time if self.arguments.threads == 1 else time.perf_counter
        start = clock()
        step()
        return clock() - start

    def fault(self, what: str, error: Exception):
        """Decides what follows from an error: here the run ends."""
        raise error

    def wanted(self, name: str) -> bool:
        """Whether a system of that name takes part."""
        return True

    def free(self):
        """Releases unused memory of the device."""

    def add(self, suite: str, measure: str, value: float, unit: str, **columns):
        self.rows.append({"suite": suite, "mode": "eager", "measure": measure, "value": value, "unit": unit} | columns)

    def all_times(self, what: str, steps: dict[str, Step], rounds: int | None = None) -> dict[str, list[float]]:
        """
        Seconds of every step in every round. All steps take a turn in each round, after an untimed run of each; a step
        that fails in that run is left out.
        """
        times: dict[str, list[float]] = {}
        for name, step in steps.items():
            try:
                step()
                times[name] = []
            except Exception as error:
                self.fault(f"{what}: {name} is left out", error)
                # Its traceback holds tensors.
                del error
                self.free()
        for _ in range(rounds or self.arguments.rounds):
            for name, values in times.items():
                values.append(self.seconds(steps[name]))
        return times

    def times(self, what: str, steps: dict[str, Step], rounds: int | None = None) -> dict[str, float]:
        """Median seconds of every step over the rounds."""
        return {name: statistics.median(values) for name, values in self.all_times(what, steps, rounds).items()}

    def build_all(self, suite: str, builders: list[Callable[[], System]]) -> dict[str, System]:
        """Builds systems, by name. Those that cannot be built are left out."""
        systems = {}
        for build in builders:
            try:
                system = build()
            except Exception as error:
                self.fault(f"{suite}: a system is left out", error)
                continue
            if self.wanted(system.name):
                systems[system.name] = system
        return systems


def forward_step(bench: Bench, system: System, count: int | None = None, gradients: bool = False) -> Step:
    def step():
        with torch.set_grad_enabled(gradients), bench.precision():
            system.run(count)

    return step


def training_step(bench: Bench, system: System, count: int | None = None) -> Step:
    """Forward and backward, without an optimizer, which would be the same for all systems."""

    def step():
        with bench.precision():
            loss = system.loss(count)
        system.backward(loss, count)
        system.model.zero_grad()

    return step


KINDS = {"forward": forward_step, "training": training_step}


def saved_bytes(bench: Bench, suite: str, builders: dict[str, Callable[..., System]], **sizes) -> dict[str, float]:
    """
    Bytes per token and layer that autograd keeps for the backward pass: what a second layer adds. Each storage counts
    once, parameters do not count. BERT and ViT are left out: asking for one or two gMLP blocks gives the same model.
    """
    saved = {}
    for name, build in builders.items():
        if name in (peers.BERT, peers.VIT):
            continue
        try:
            small, large = (kept_bytes(bench, build(layers=layers, **sizes)) for layers in (1, 2))
            saved[name] = large - small
        except Exception as error:
            bench.fault(f"{suite}: saved bytes of {name}", error)
        bench.free()
    return saved


def kept_bytes(bench: Bench, system: System) -> float:
    """Bytes per token that autograd keeps of one forward pass."""
    own = {parameter.untyped_storage().data_ptr() for parameter in system.model.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), bench.precision():
        # Holding the output keeps all storages alive, so that no address is counted once for two.
        output = system.run()
    return sum(kept.values()) / (output.shape[0] * system.tokens)


def block_products(
    batch: int, tokens: int, d: int, device: str = "cpu", dtype: torch.dtype = torch.float32
) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """The factors of all matrix products of a gMLP block. The names of those of a backward pass say "gradient"."""

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=device, dtype=dtype)

    rows, d_ffn, half = batch * tokens, 6 * d, 3 * d
    x, z, v = normal(rows, d), normal(rows, d_ffn), normal(batch, tokens, half)
    w_in, w_out, w = normal(d_ffn, d), normal(d, half), normal(tokens, tokens).expand(batch, -1, -1)
    gated = v.view(rows, half)
    return {
        "in": (x, w_in.T),
        "in, gradient of x": (z, w_in),
        "in, gradient of W": (z.T, x),
        "out": (gated, w_out.T),
        "out, gradient of x": (x, w_out),
        "out, gradient of W": (x.T, gated),
        "spatial": (w, v),
        "spatial, gradient of v": (w.transpose(1, 2), v),
        "spatial, gradient of W": (v, v.transpose(1, 2)),
    }


# ------------------------------------------------------------------------------------------------------ common suites


def length_suite(
    bench: Bench, suite: str, lengths: tuple[int, ...], channels: int, total: int = 1, dtype=torch.float32, rounds=None
):
    """The Toeplitz product as a matrix and by FFT, as sequences grow; a batch has `total` tokens, or one sequence."""
    table = [["tokens", "", "matrix, ms", "FFT, ms", "matrix / FFT"]]
    for length in lengths:
        sizes = {"batch": max(1, total // length), "tokens": length}
        forms = checks.toeplitz_forms(sizes["batch"], length, channels, bench.device.type, dtype)
        for i, kind in enumerate(KINDS):
            steps = {name: form[i] for name, form in forms.items()}
            times = bench.times(f"{suite}, {kind}, {length} tokens", steps, rounds)
            for name, seconds in times.items():
                bench.add(suite, f"{kind} time", seconds, "s", system=name, **sizes)
            cells = [f"{times[name] * 1e3:.3f}" if name in times else "-" for name in forms] + ["-"]
            if len(times) == 2:
                ratio = times["matrix"] / times["fft"]
                cells[-1] = f"{ratio:.2f}"
                bench.add(suite, f"{kind} time / fft", ratio, "", system="matrix", **sizes)
            table.append([f"{length:,}", kind, *cells])
        del forms, steps
        bench.free()
    print(f"\n{suite}: Toeplitz product with {channels} channels\n\n{markdown_table(table)}", flush=True)


def scaling_suite(bench: Bench, build: Callable[..., System], names: list[str], base: dict, grown: dict):
    """Time per token and layer as one size of text models grows and the others stay."""
    for what, values in grown.items():
        table = [[what, *names]]
        for value in values:
            found = scale(bench, f"scaling: {what}", build, names, base | {what: value})
            table.append([f"{value:,}", *(" / ".join(found.get(name, "-")) for name in names)])
            bench.free()
        print(f"\nmicroseconds per token and layer, growing {what}: forward / training\n")
        print(markdown_table(table), flush=True)


def scale(bench: Bench, suite: str, build: Callable[..., System], names: list[str], sizes: dict) -> dict[str, list]:
    """Times the systems at one size. Its own function, so that their memory is free before the next size."""
    builders = [partial(build, name, **sizes, device=bench.device.type) for name in names]
    systems = bench.build_all(suite, builders)
    checks.check_forms(bench, suite, systems)
    found: dict[str, list[str]] = {}
    for kind, make in KINDS.items():
        steps = {name: make(bench, system) for name, system in systems.items()}
        for name, seconds in bench.times(f"{suite}, {kind}", steps, min(bench.arguments.rounds, 3)).items():
            per_token = seconds / (sizes["batch"] * sizes["tokens"] * systems[name].layers)
            row = systems[name].row(sizes["batch"])
            bench.add(suite, f"{kind} time per token and layer", per_token, "s", **row)
            found.setdefault(name, []).append(f"{per_token * 1e6:.4g}")
    return found


# ------------------------------------------------------------------------------------------------------------- results


def report(bench: Bench, suite: str, systems: dict[str, System], found: dict[str, Found], batch: int):
    """Keeps what was found of the systems as rows, and prints it as a table of the columns that are there."""
    columns = [measure for measure in COLUMNS if any(measure in values for values in found.values())]
    table = [["system", "layers", "parameters", *(COLUMNS[measure][0] for measure in columns)]]
    for name, system in systems.items():
        for measure, (value, unit) in found[name].items():
            bench.add(suite, measure, value, unit, **system.row(batch))
        cells = [name, system.layers, f"{system.parameters / 1e6:.1f} M"]
        for measure in columns:
            value, unit = found[name].get(measure, (None, ""))
            cells.append(value and COLUMNS[measure][1].format(value * (1e3 if unit == "s" else 1)))
        table.append(cells)
    tokens = next(iter(systems.values())).tokens
    print(f"\n{suite}, batch {batch}, {tokens} tokens\n\n{markdown_table(table)}", flush=True)


def about(**details) -> dict:
    """Date, machine and versions, which a measured number needs beside it, and `details`."""
    return circumstances("transformers", "timm", "g-mlp-pytorch", "triton") | details


def write_results(path: Path, rows: list[dict], common: dict):
    """Adds rows to a CSV file, each with `common` in front."""
    path.parent.mkdir(parents=True, exist_ok=True)
    written = []
    if path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            written = list(csv.DictReader(file))
    for row in rows:
        texts = {key: f"{value:.6g}" if isinstance(value, float) else value for key, value in row.items()}
        written.append(common | texts)
    columns = list(dict.fromkeys(column for row in written for column in row))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(written)
    print(f"Written: {path}", flush=True)


def label_of(row: dict) -> str:
    """The name of the system of a row, as tables print it."""
    return row["system"] + (", compiled" if row["mode"] == "compiled" else "")


def draw(path: Path, rows: list[dict], title: str):
    """Draws time and memory of the models, and how the cost grows with sizes, as far as the rows have them."""
    from hf_gmlp.analysis.pictures import plt, save_picture

    growing = {"length": "tokens", "fft": "tokens"} | {f"scaling: {x}": x for x in ("tokens", "batch", "layers")}
    suites = [suite for suite in dict.fromkeys(row["suite"] for row in rows) if suite in ("vision", "text", *growing)]
    if not suites:
        return
    columns = min(3, len(suites))
    lines = -(-len(suites) // columns)
    size = (5.6 * columns, 3.8 * lines)
    figure, axes = plt.subplots(lines, columns, figsize=size, squeeze=False, layout="constrained")
    for axis in axes.flat[len(suites) :]:
        axis.set_axis_off()
    for axis, suite in zip(axes.flat, suites):
        of_suite = [row for row in rows if row["suite"] == suite]
        if suite in growing:
            draw_growth(axis, [row for row in of_suite if row["measure"].startswith("training time")], growing[suite])
        else:
            draw_bars(axis, of_suite)
        axis.set_title(suite)
    figure.suptitle(title)
    save_picture(figure, path)
    print(f"Written: {path}")


def draw_bars(axis, rows: list[dict]):
    """Horizontal bars for each system, in units of hf_gmlp's plain form; a system may lack some."""
    names = list(dict.fromkeys(label_of(row) for row in rows))[::-1]
    measures = {"forward time": "forward", "training time": "training", "training memory above start": "memory"}
    for i, (measure, label) in enumerate(measures.items()):
        found = {label_of(row): row["value"] for row in rows if row["measure"] == measure}
        unit = found.get(peers.PLAIN) or float("nan")
        places = [names.index(name) + 0.27 * (1 - i) for name in found]
        axis.barh(places, [value / unit for value in found.values()], height=0.25, label=label)
    axis.set_yticks(range(len(names)), names)
    axis.set_xlabel(f"in units of {peers.PLAIN}")
    # Below, since bars may be anywhere.
    axis.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=len(measures), frameon=False)


def draw_growth(axis, rows: list[dict], x: str):
    """A line for each system over the sizes in column `x`, both axes logarithmic."""
    rows = [row for row in rows if row["unit"] == "s"]
    for name in dict.fromkeys(row["system"] for row in rows):
        points = [(row[x], row["value"] * 1e3) for row in rows if row["system"] == name]
        axis.loglog(*zip(*points), marker="o", label=name)
    sizes = sorted({row[x] for row in rows})
    axis.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axis.minorticks_off()
    axis.set(xlabel=x, ylabel=f"{rows[0]['measure']}, ms")
    axis.legend(fontsize=7)
