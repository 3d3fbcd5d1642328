"""gMLP beside its peers on a CPU, in one process and one run.

    python benchmarks/cpu.py                              vision, text and length, in some minutes
    python benchmarks/cpu.py --quick                      the same, small, in less than a minute
    python benchmarks/cpu.py --suites text --batch 8      one of them
    python benchmarks/cpu.py --suites scaling             cost as tokens, batch and depth grow
    python benchmarks/cpu.py --modes eager compiled       through torch.compile too (needs a C++ compiler)

Systems take turns within every round, so that a busy machine disturbs all of them alike, and the median of the rounds
counts. With one thread, what is measured is that thread's CPU time; with more, the time that passes. Nothing is
reported if our outputs differ from those of a peer with the same weights, or our fast paths from the plain ones, in
output or gradients. Dropout is off everywhere; a line of the table says layers and parameters. "ours" is the lean form;
a compiled model is compiled from the plain form, whichever is asked for.

The results are added to benchmarks/results/cpu-DATE.csv, and drawn to a picture beside it.
"""

import argparse
import datetime
import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from systems import (
    RESULTS,
    System,
    build_annotated,
    build_bert,
    build_lucidrains,
    build_text,
    build_timm,
    build_vision,
    build_vit,
    check_agreement,
    compare,
    cpu_timer,
    draw_bars,
    draw_lengths,
    interleaved,
    objective,
    saved_bytes,
    toeplitz_forms,
    write,
)

from hf_gmlp import errors
from hf_gmlp.analysis.machine import machine_name
from hf_gmlp.errors import InputError
from hf_gmlp.kernels.lean import ONEDNN_LINEAR

SUITES = ("vision", "text", "length", "scaling")
MODES = ("eager", "compiled")


def main():
    arguments = parse_arguments()
    errors.run(lambda: benchmark(arguments))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suites", nargs="+", choices=SUITES, default=["vision", "text", "length"])
    parser.add_argument(
        "--quick", action="store_true", help="small sizes, few rounds: does it work, and roughly how fast"
    )
    parser.add_argument(
        "--modes", nargs="+", choices=MODES, default=["eager"], help="of vision and text (default: eager)"
    )
    parser.add_argument("--batch", type=int, help="batch size (default: vision 8, text 2)")
    parser.add_argument(
        "--layers",
        type=int,
        help="gMLP blocks (default: vision 30, text 6); the others have as many, BERT a third, ViT 12 for 30",
    )
    parser.add_argument("--tokens", type=int, default=512, help="length of a text (default: %(default)s)")
    parser.add_argument("--rounds", type=int, help="how often every system is timed (default: 5)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--skip_memory", action="store_true", help="leave out the fresh process per system that tells its peak memory"
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results (default: %(default)s)")
    # What the fresh processes are called with.
    parser.add_argument("--peak_of", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.tokens = min(arguments.tokens, 128)
    for name, usual, quick in (("rounds", 5, 2), ("batch", None, 2), ("layers", None, 2)):
        if getattr(arguments, name) is None:
            setattr(arguments, name, quick if arguments.quick else usual)
    for name in ("batch", "layers", "tokens", "rounds", "threads"):
        if getattr(arguments, name) is not None and getattr(arguments, name) < 1:
            parser.error(f"--{name} must be at least 1")
    return arguments


def benchmark(arguments: argparse.Namespace):
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    if arguments.peak_of:
        print(json.dumps(peak_memory(*arguments.peak_of, arguments)))
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    rows: list[dict] = []
    for suite in arguments.suites:
        if suite == "length":
            rows += length_suite(arguments)
        elif suite == "scaling":
            rows += scaling_suite(arguments)
        else:
            rows += model_suite(suite, arguments)
    path = arguments.out / f"cpu-{datetime.date.today().isoformat()}.csv"
    write(path, rows, circumstances(arguments))
    draw(path.with_suffix(".png"), rows)
    print(f"\nWritten: {path} and {path.with_suffix('.png').name}")


# ----------------------------------------------------------------------------------------------------- the systems


def systems_of(suite: str, layers: int, batch: int, tokens: int) -> dict[str, Callable[[], System]]:
    """Name -> a function that builds the system and imports what it needs, and nothing that other systems need."""
    if suite == "vision":
        return {
            "ours": partial(build_vision, "lean", layers, batch),
            "ours, plain": partial(build_vision, "naive", layers, batch),
            "timm gmlp_s16": partial(build_timm, layers, batch),
            "ViT-S": partial(build_vit, layers, batch),
        }
    return {
        "ours": partial(build_text, "lean", layers, batch, tokens),
        "ours, plain": partial(build_text, "naive", layers, batch, tokens),
        "lucidrains, circulant": partial(build_lucidrains, True, layers, batch, tokens),
        "lucidrains, dense": partial(build_lucidrains, False, layers, batch, tokens),
        "annotated (labml's form)": partial(build_annotated, layers, batch, tokens),
        # A layer of BERT-base has the parameters of three gMLP blocks of width 512: 7.1 million.
        "BERT": partial(build_bert, max(1, layers // 3), batch, tokens),
    }


def build_one(suite: str, name: str, tokens: int, layers: int) -> System:
    return systems_of(suite, layers, 1, tokens)[name]()


# ----------------------------------------------------------------------------------------------------------- measuring


def forward_step(system: System, run: Callable[[], torch.Tensor]) -> Callable[[], object]:
    def step():
        system.model.eval()
        with torch.no_grad():
            run()

    return step


def training_step(system: System, run: Callable[[], torch.Tensor]) -> Callable[[], object]:
    def step():
        system.model.train()
        objective(run()).backward()
        system.model.zero_grad()

    return step


def product_steps(batch: int, tokens: int, d: int, stem: int, layers: int, training: bool) -> dict[str, Callable]:
    """
    The matrix products of a gMLP and nothing else, in the two ways that PyTorch has, name -> step: what no code around
    them can beat. `stem` is the width of a flattened patch, 0 without.
    """
    d_ffn, half, rows = 6 * d, 3 * d, batch * tokens
    spatial, v = torch.randn(tokens, tokens).expand(batch, -1, -1), torch.randn(batch, tokens, half)
    gate, square = torch.empty_like(v), torch.empty(batch, tokens, tokens)

    def make(rows: int, inner: int, columns: int, needs_input_grad: bool = True) -> list[tuple[torch.Tensor, ...]]:
        """Of a linear layer, as input, transposed weight and output: forward, and in training its gradients."""
        x, weight, y = torch.randn(rows, inner), torch.randn(columns, inner), torch.randn(rows, columns)
        products = [(x, weight.T, y)]
        if training and needs_input_grad:
            products.append((y, weight, torch.empty_like(x)))
        if training:
            products.append((y.T, x, torch.empty_like(weight)))
        return products

    layer = make(rows, d, d_ffn) + make(rows, half, d)
    # The input of a model needs no gradient.
    products = (make(rows, stem, d, needs_input_grad=False) if stem else []) + layers * layer

    def by_mkl():
        for left, right, out in products:
            # Into memory that is there already.
            torch.mm(left, right, out=out)

    def by_onednn():
        for left, right, out in products:
            if left.is_contiguous():
                torch.ops.mkldnn._linear_pointwise(left, right.T, None, "none", [], "none")
            else:
                # It has no advantage in the gradients of weights.
                torch.mm(left, right, out=out)

    def step(linear: Callable[[], None]):
        linear()
        for _ in range(layers):
            torch.bmm(spatial, v, out=gate)
            if training:
                torch.bmm(spatial.transpose(1, 2), v, out=gate)
                torch.bmm(v, gate.transpose(1, 2), out=square)

    steps = {"products": partial(step, by_mkl)}
    if ONEDNN_LINEAR:
        steps["products by oneDNN"] = partial(step, by_onednn)
    return steps


def resident_peak() -> float:
    """The most memory that this process has had so far, in MiB, by the operating system's account."""
    try:
        # Not `ru_maxrss`, which on Linux a process takes over from the one that started it.
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        return int(status.split("VmHWM:")[1].split()[0]) / 2**10
    except (OSError, IndexError):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def peak_memory(suite: str, name: str, arguments: argparse.Namespace) -> dict[str, float]:
    """MiB that this process has taken before the first training step, and at most."""
    layers, batch = sizes_of(suite, arguments)
    system = systems_of(suite, layers, batch, arguments.tokens)[name]()
    before = resident_peak()
    step = training_step(system, system.run)
    step()
    step()
    return {"before": before, "peak": resident_peak()}


def peak_in_fresh_process(suite: str, name: str, arguments: argparse.Namespace) -> dict[str, float]:
    flags = ["--peak_of", suite, name, "--tokens", arguments.tokens, "--threads", arguments.threads]
    for option in ("batch", "layers"):
        if getattr(arguments, option) is not None:
            flags += [f"--{option}", getattr(arguments, option)]
    done = subprocess.run([sys.executable, __file__, *map(str, flags)], capture_output=True, text=True)
    if done.returncode:
        raise InputError(f"The process that tells the memory of {name} failed: {done.stderr.strip()[-500:]}")
    return json.loads(done.stdout.splitlines()[-1])


# -------------------------------------------------------------------------------------------------------------- suites


def sizes_of(suite: str, arguments: argparse.Namespace) -> tuple[int, int]:
    """Layers and batch size."""
    return arguments.layers or (30 if suite == "vision" else 6), arguments.batch or (8 if suite == "vision" else 2)


def model_suite(suite: str, arguments: argparse.Namespace) -> list[dict]:
    """Time forward and of a training step, memory, and the share of time spent in matrix products."""
    layers, batch = sizes_of(suite, arguments)
    systems = {name: build() for name, build in systems_of(suite, layers, batch, arguments.tokens).items()}
    for system in systems.values():
        system.model.eval()
    check_agreement(systems)

    runs = {}
    for mode in arguments.modes:
        for name, system in systems.items():
            runs[mode, name] = torch.compile(system.run) if mode == "compiled" else system.run
    tokens, d, stem = (196, 256, 768) if suite == "vision" else (arguments.tokens, 512, 0)
    found: dict[tuple[str, str], dict[str, tuple[float, str]]] = {key: {} for key in runs}
    for measure, make in (("forward", forward_step), ("training", training_step)):
        steps = {(mode, name): make(systems[name], run) for (mode, name), run in runs.items()}
        products = product_steps(batch, tokens, d, stem, layers, measure == "training")
        times = interleaved(steps | products, arguments.rounds, cpu_timer(arguments.threads))
        ceiling = min(times[name] for name in products)
        for mode, name in runs:
            seconds = times[mode, name]
            found[mode, name][f"{measure} time"] = (seconds, "s")
            found[mode, name][f"{measure} time / ours"] = (seconds / times[mode, "ours"], "")
            if name.startswith("ours"):
                # What share of the time its matrix products alone would take.
                found[mode, name][f"{measure} share of the ceiling"] = (ceiling / seconds, "")
    for mode, name in runs:
        if mode == "compiled":
            continue
        # Of the two others, asking for one or two blocks gives the same model.
        if name not in ("ViT-S", "BERT"):
            saved = saved_bytes(partial(build_one, suite, name, arguments.tokens))
            found[mode, name]["saved per token and layer"] = (saved, "bytes")
        if not arguments.skip_memory:
            memory = peak_in_fresh_process(suite, name, arguments)
            found[mode, name]["training peak memory"] = (memory["peak"], "MiB")
            found[mode, name]["training memory above start"] = (memory["peak"] - memory["before"], "MiB")
    for mode in arguments.modes:
        print_suite(f"{suite}, {mode}", systems, {name: found[mode, name] for name in systems}, batch)
    return [
        {"suite": suite}
        | systems[name].row(batch, mode)
        | {"system": name, "measure": measure, "value": value, "unit": unit}
        for mode, name in runs
        for measure, (value, unit) in found[mode, name].items()
    ]


def print_suite(suite: str, systems: dict[str, System], found: dict[str, dict[str, tuple[float, str]]], batch: int):
    tokens = next(iter(systems.values())).tokens
    print(f"\n{suite}, batch {batch}, {tokens} tokens; ratios are theirs / ours, above 1 where ours is better")
    head = (
        "system",
        "layers",
        "params",
        "forward",
        "ratio",
        "ceiling",
        "training",
        "ratio",
        "ceiling",
        "saved",
        "peak",
        "above start",
    )
    print("{:<26}{:>7}{:>9}{:>10}{:>7}{:>9}{:>10}{:>7}{:>9}{:>9}{:>10}{:>13}".format(*head))
    for name, system in systems.items():
        values = {measure: value for measure, (value, _) in found[name].items()}

        def show(measure: str, form: str) -> str:
            return form.format(values[measure]) if measure in values else "-"  # noqa: B023

        cells = [name, system.layers, f"{system.parameters / 1e6:.1f} M"]
        for kind in ("forward", "training"):
            cells += [show(f"{kind} time", "{:.3f} s"), show(f"{kind} time / ours", "{:.2f}")]
            cells.append(show(f"{kind} share of the ceiling", "{:.0%}"))
        cells += [show("saved per token and layer", "{:.0f} B")]
        cells += [show("training peak memory", "{:.0f} MiB"), show("training memory above start", "{:.0f} MiB")]
        print("{:<26}{:>7}{:>9}{:>10}{:>7}{:>9}{:>10}{:>7}{:>9}{:>9}{:>10}{:>13}".format(*cells))


def length_suite(arguments: argparse.Namespace) -> list[dict]:
    """The Toeplitz product by FFT and as a matrix, forward and with its gradients, as sequences grow."""
    lengths = (256, 1024) if arguments.quick else (512, 1024, 2048, 4096, 8192)
    channels, rows = 384, []
    print(f"\nToeplitz product, batch 1, {channels} channels\n{'tokens':>7}{'forward':>24}{'with gradients':>24}")
    for length in lengths:
        forms = toeplitz_forms(1, length, channels)
        line = f"{length:>7}"
        for i, measure in enumerate(("forward", "training")):
            steps = {name: form[i] for name, form in forms.items()}
            times = interleaved(steps, min(arguments.rounds, 3), cpu_timer(arguments.threads))
            ratio = times["matrix"] / times["fft"]
            line += f"{times['matrix'] * 1e3:>9.1f} / {times['fft'] * 1e3:.1f} ms{ratio:>6.1f}x"
            base = {"suite": "length", "mode": "eager", "batch": 1, "tokens": length}
            for system, value in times.items():
                rows.append(base | {"system": system, "measure": f"{measure} time", "value": value, "unit": "s"})
            rows.append(base | {"system": "matrix", "measure": f"{measure} time / fft", "value": ratio, "unit": ""})
        print(line)
    return rows


def scaling_suite(arguments: argparse.Namespace) -> list[dict]:
    """Time per token of text models as tokens, batch and depth grow, everything else as it was."""
    quick = arguments.quick
    grown = {
        "tokens": (64, 128) if quick else (128, 256, 512, 1024, 2048),
        "batch": (1, 2) if quick else (1, 2, 4, 8),
        "layers": (1, 2) if quick else (2, 4, 8),
    }
    names = ("ours", "ours, plain", "lucidrains, circulant", "BERT")
    rows = []
    for what, values in grown.items():
        print(f"\nms per token and block, growing {what}\n{what:>7}" + "".join(f"{name:>34}" for name in names))
        for value in values:
            sizes = {"layers": 3, "batch": 2, "tokens": 64 if quick else 256} | {what: value}
            builders = systems_of("text", **sizes)
            systems = {name: builders[name]() for name in names}
            systems["ours, plain"].model.load_state_dict(systems["ours"].model.state_dict())
            with torch.no_grad():
                compare("our outputs", systems["ours"].run(), systems["ours, plain"].run(), "the plain path's")
            line = {name: "" for name in names}
            for measure, make in (("forward", forward_step), ("training", training_step)):
                steps = {name: make(system, system.run) for name, system in systems.items()}
                times = interleaved(steps, min(arguments.rounds, 3), cpu_timer(arguments.threads))
                for name, system in systems.items():
                    per_token = times[name] / (sizes["batch"] * sizes["tokens"] * system.layers)
                    line[name] += f"{measure} {per_token * 1e3:.4f} "
                    rows.append(
                        {"suite": f"scaling: {what}"}
                        | system.row(sizes["batch"])
                        | {"system": name, "measure": f"{measure} time per token and layer"}
                        | {"value": per_token, "unit": "s"}
                    )
            print(f"{value:>7}" + "".join(f"{text:>34}" for text in line.values()))
    return rows


# --------------------------------------------------------------------------------------------------------------- output


def circumstances(arguments: argparse.Namespace) -> dict:
    import transformers

    return {
        "date": datetime.datetime.now().isoformat(timespec="minutes"),
        "machine": machine_name(),
        "threads": arguments.threads,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def draw(path: Path, rows: list[dict]):
    """Times and memory of the others in units of ours, and what length costs."""
    from hf_gmlp.analysis.pictures import plt, save_picture

    kinds = [("vision", mode) for mode in MODES] + [("text", mode) for mode in MODES]
    kinds = [kind for kind in kinds if any((row["suite"], row["mode"]) == kind for row in rows)]
    lengths = [row for row in rows if row["suite"] == "length" and row["measure"] == "forward time"]
    panels = len(kinds) + bool(lengths)
    if not panels:
        return
    figure, axes = plt.subplots(1, panels, figsize=(5 * panels, 3.6), squeeze=False, layout="constrained")
    labels = {
        "forward time": "time forward",
        "training time": "time of a training step",
        "training memory above start": "memory of a training step",
    }
    for axis, (suite, mode) in zip(axes[0], kinds):
        bars = {}
        for measure, label in labels.items():
            key = (suite, mode, measure)
            found = [row for row in rows if (row["suite"], row["mode"], row["measure"]) == key]
            values = {row["system"]: row["value"] for row in found}
            if values:
                bars[label] = {name: value / max(values["ours"], 1e-9) for name, value in values.items()}
        draw_bars(axis, bars, "in units of ours", suite if mode == "eager" else f"{suite}, {mode}")
        axis.axvline(1, color="black", linewidth=0.8)
    if lengths:
        draw_lengths(axes[0][-1], lengths)
    save_picture(figure, path)


if __name__ == "__main__":
    main()
