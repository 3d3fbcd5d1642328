"""gMLP beside its peers on a CPU, in one process and one run.

    python benchmarks/cpu.py                              vision, text and length
    python benchmarks/cpu.py --quick                      the same, small
    python benchmarks/cpu.py --suites text --batch 8      one of them
    python benchmarks/cpu.py --suites scaling             cost as tokens, batch and depth grow
    python benchmarks/cpu.py --modes eager compiled       through torch.compile too (needs a C++ compiler)

Systems take turns within every round, so that a busy machine disturbs all of them alike, and the median of the rounds
counts. With one thread, times are that thread's CPU time; with more, the time that passes. Nothing is reported if the
outputs of hf_gmlp differ from those of a peer with the same weights, or if outputs or gradients of the lean form differ
from those of the plain one. Dropout is off everywhere; the tables say layers and parameters. Ratios are to hf_gmlp: the
lean form, or among compiled models the compiled one, which is compiled from the plain form. The ceiling is the share of
the time that the matrix products alone would take.

The results are added to benchmarks/results/cpu-DATE.csv, and drawn to a picture beside it.
"""

import argparse
import datetime
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import checks
import harness
import peers
import torch
from harness import KINDS, Bench, Found

from hf_gmlp import errors
from hf_gmlp.kernels.lean import ONEDNN_LINEAR

COMPILED = "hf_gmlp, compiled"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    suites = ("vision", "text", "length", "scaling")
    parser.add_argument("--suites", nargs="+", choices=suites, default=["vision", "text", "length"])
    modes = {"nargs": "+", "choices": ("eager", "compiled"), "default": ["eager"]}
    parser.add_argument("--modes", **modes, help="for vision and text (default: eager)")
    parser.add_argument("--skip_memory", action="store_true", help="leave out the peak of memory of a fresh process")
    layers = "gMLP blocks (default: vision 30, text 6); the others have as many, BERT a third, ViT 12 for 30"
    sizes = {
        "batch": ("batch size (default: vision 8, text 2)", None, 2),
        "layers": (layers, None, 2),
        "tokens": ("length of a text (default: 512)", 512, 128),
        "rounds": ("how often every system is timed (default: 5)", 5, 2),
        "threads": ("default: 1", 1, 1),
    }
    arguments = harness.parse_arguments(parser, sizes)
    errors.run(lambda: benchmark(arguments))


def benchmark(arguments: argparse.Namespace):
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    bench = Bench(arguments)
    quick, rounds = arguments.quick, min(arguments.rounds, 3)
    for suite in arguments.suites:
        if suite == "length":
            lengths = (256, 1024) if quick else (512, 1024, 2048, 4096, 8192)
            harness.length_suite(bench, suite, lengths, channels=384, rounds=rounds)
        elif suite == "scaling":
            base = {"layers": 3, "batch": 2, "tokens": 64 if quick else 256}
            grown = {"tokens": (128, 256, 512, 1024, 2048), "batch": (1, 2, 4, 8), "layers": (2, 4, 8)}
            if quick:
                grown = {"tokens": (64, 128), "batch": (1, 2), "layers": (1, 2)}
            names = [peers.LEAN, peers.PLAIN, peers.CIRCULANT, peers.BERT]
            harness.scaling_suite(bench, peers.build_text, names, base, grown)
        else:
            model_suite(bench, suite)
    path = arguments.out / f"cpu-{datetime.date.today().isoformat()}.csv"
    print()
    common = harness.about(threads=arguments.threads)
    harness.write_results(path, bench.rows, common)
    harness.draw(path.with_suffix(".png"), bench.rows, common["machine"])


def builders_of(suite: str, arguments: argparse.Namespace) -> dict[str, Callable[..., peers.System]]:
    """Name -> a function of layers and batch that builds the system."""
    if suite == "vision":
        return {name: partial(peers.build_vision, name) for name in peers.VISION}
    return {name: partial(peers.build_text, name, tokens=arguments.tokens) for name in peers.TEXT}


def sizes_of(suite: str, arguments: argparse.Namespace) -> dict[str, int]:
    layers, batch = (30, 8) if suite == "vision" else (6, 2)
    return {"layers": arguments.layers or layers, "batch": arguments.batch or batch}


def model_suite(bench: Bench, suite: str):
    """Time forward and of a training step, memory, and the share of time spent in matrix products."""
    arguments = bench.arguments
    builders, sizes = builders_of(suite, arguments), sizes_of(suite, arguments)
    systems = bench.build_all(suite, [partial(build, **sizes) for build in builders.values()])
    if "compiled" in arguments.modes:
        plain = [build for name, build in builders.items() if name != peers.LEAN]
        systems |= bench.build_all(suite, [lambda build=build: peers.compiled(build(**sizes)) for build in plain])
    checks.check_peers(systems)
    checks.check_forms(bench, suite, systems)
    rows = {name: system.row(sizes["batch"]) for name, system in systems.items()}
    systems = {name: system for name, system in systems.items() if rows[name]["mode"] in arguments.modes}

    found: dict[str, Found] = {name: {} for name in systems}
    tokens, d, stem = (196, 256, 768) if suite == "vision" else (arguments.tokens, 512, 0)
    for kind, make in KINDS.items():
        steps = {name: make(bench, system) for name, system in systems.items()}
        products = product_steps(tokens=tokens, d=d, stem=stem, training=kind == "training", **sizes)
        times = bench.times(suite, steps | products)
        ceiling = min(times[name] for name in products)
        for name, values in found.items():
            own = times[COMPILED if rows[name]["mode"] == "compiled" else peers.LEAN]
            values[f"{kind} time"] = (times[name], "s")
            values[f"{kind} time / hf_gmlp"] = (times[name] / own, "")
            if name.startswith("hf_gmlp"):
                values[f"{kind} share of the ceiling"] = (ceiling / times[name], "")
    if "eager" in arguments.modes:
        for name, value in harness.saved_bytes(bench, suite, builders, batch=1).items():
            found[name]["saved per token and layer"] = (value, "bytes")
        for name in [] if arguments.skip_memory else builders:
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
                before, peak = process.submit(peak_memory, suite, name, arguments).result()
            found[name]["training peak memory"] = (peak, "MiB")
            found[name]["training memory above start"] = (peak - before, "MiB")
    harness.report(bench, suite, systems, found, sizes["batch"])


def product_steps(
    batch: int, tokens: int, d: int, stem: int, layers: int, training: bool
) -> dict[str, Callable[[], None]]:
    """
    The matrix products of a gMLP and nothing else, in the two ways that PyTorch has: what no code around them can beat.

    Args:
        stem: Width of a flattened patch, 0 without.
    """

    def with_output(left: torch.Tensor, right: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return left, right, torch.empty(*left.shape[:-1], right.shape[-1])

    block = harness.block_products(batch, tokens, d)
    products = layers * [with_output(*block[name]) for name in block if training or "gradient" not in name]
    if stem:
        patches, weight = torch.randn(batch * tokens, stem), torch.randn(d, stem)
        products.append(with_output(patches, weight.T))
        if training:
            # The weight needs a gradient, but the input of a model does not.
            products.append(with_output(torch.randn(batch * tokens, d).T, patches))

    def step(onednn: bool):
        for left, right, out in products:
            if left.dim() == 3:
                torch.bmm(left, right, out=out)
            elif onednn and left.is_contiguous():
                torch.ops.mkldnn._linear_pointwise(left, right.T, None, "none", [], "none")
            else:
                # Also for the gradients of weights, in which oneDNN has no advantage.
                torch.mm(left, right, out=out)

    steps = {"products": partial(step, False)}
    if ONEDNN_LINEAR:
        steps["products by oneDNN"] = partial(step, True)
    return steps


def resident_peak() -> float:
    """The most memory that this process has had so far, in MiB, as Linux counts it."""
    # Not `ru_maxrss`, which a process on Linux inherits from its parent.
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.split("VmHWM:")[1].split()[0]) / 2**10


def peak_memory(suite: str, name: str, arguments: argparse.Namespace) -> tuple[float, float]:
    """The peak of a fresh process before and after two training steps, in MiB."""
    torch.set_num_threads(arguments.threads)
    system = builders_of(suite, arguments)[name](**sizes_of(suite, arguments))
    before = resident_peak()
    step = harness.training_step(Bench(arguments), system)
    step()
    step()
    return before, resident_peak()


if __name__ == "__main__":
    main()
