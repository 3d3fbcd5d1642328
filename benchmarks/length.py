"""Time and memory of gMLP, BERT and ModernBERT against text length, in PyTorch and in ONNX Runtime.

    python -m benchmarks.length
    python -m benchmarks.length --lengths 128 512 --rounds 1       small

The systems are 5 blocks of gMLP-base whose W reaches 128 tokens, 2 layers of BERT-base, and 3 layers of ModernBERT (one
of them global) with as many parameters as the gMLP, all with sdpa and in single precision. They take turns in every
round. Times are median CPU times of one thread for one text; training is forward and backward without an optimizer.
Memory is the peak of a step minus the memory in use before it, measured in a separate process.

The results are appended to benchmarks/results/length-DATE.csv.
"""

import argparse
import datetime
import multiprocessing
import statistics
import tempfile
from pathlib import Path

import onnxruntime
import torch

from hf_gmlp import errors
from hf_gmlp.cards import markdown_table

from . import harness, peers
from .harness import Bench, Step
from .peers import BERT, MODERN, OWN, System

LENGTHS = (128, 512, 1024, 2048, 4096, 8192, 16384)
SYSTEMS = {OWN: 5, BERT: 2, MODERN: 3}
MEASURES = ("forward", "training", "ONNX Runtime")
# Exported attention stores all of its weights, which at 8,192 tokens needs more than 24 GB.
MOST_IN_ONNX = 4096


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS), help="tokens (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="how often every system is timed (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=harness.RESULTS, help="output folder (default: %(default)s)")
    parser.set_defaults(threads=1, quick=False)
    arguments = parser.parse_args()
    errors.run_command(lambda: benchmark(arguments))


def benchmark(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(arguments.threads)
    bench = Bench(arguments)
    table = [["tokens", *(f"{name}, {measure}: ms a token" for measure in MEASURES for name in SYSTEMS)]]
    table[0] += [f"{name}, {measure}: MiB" for measure in MEASURES[:2] for name in SYSTEMS]
    for length in arguments.lengths:
        cells = [f"{length:,}"]
        systems = {name: build(name, length) for name in SYSTEMS}
        with tempfile.TemporaryDirectory() as folder:
            for measure in MEASURES:
                if measure == "ONNX Runtime" and length > MOST_IN_ONNX:
                    cells += ["–"] * len(SYSTEMS)
                    continue
                steps = {name: step_of(bench, measure, system, Path(folder)) for name, system in systems.items()}
                for name, values in bench.times(steps).items():
                    milliseconds = 1e3 * statistics.median(values)
                    bench.add("length", name, f"{measure}, ms", milliseconds, tokens=length)
                    cells.append(f"{milliseconds / length:.3f}")
        del systems, steps
        for measure in MEASURES[:2]:
            for name in SYSTEMS:
                # Measure in a new process, which holds no memory of other systems.
                with multiprocessing.get_context("spawn").Pool(1) as pool:
                    peak = pool.apply(peak_of, (arguments, measure, name, length))
                bench.add("length", name, f"{measure}: peak, MiB", peak, tokens=length)
                cells.append(f"{peak:.0f}")
        table.append(cells)
        print(", ".join(cells), flush=True)
        path = arguments.out / f"length-{datetime.date.today().isoformat()}.csv"
        harness.write_results(path, bench.rows, harness.about(threads=arguments.threads))
        bench.rows.clear()
    print(markdown_table(table))


def build(name: str, length: int) -> System:
    """Build a system with one text of the given length as input."""
    # Peers are built by the number of equivalent gMLP blocks, here three per layer of BERT and ModernBERT.
    layers = 5 if name == OWN else 3 * SYSTEMS[name]
    return peers.build(peers.text_model, name, layers=layers, batch=1, tokens=length, reach=128)


def step_of(bench: Bench, measure: str, system: System, folder: Path) -> Step:
    """Return the function to time."""
    if measure == "training":
        system.model.train()
        return bench.training_step(system)
    system.model.eval()
    if measure == "forward":
        return bench.forward_step(system)
    path = folder / f"{system.name}.onnx"
    torch.onnx.export(system.model, (system.inputs,), path, input_names=["input_ids"], dynamo=True, verbose=False)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    inputs = {"input_ids": system.inputs.numpy()}
    return lambda: session.run(None, inputs)


def peak_of(arguments: argparse.Namespace, measure: str, name: str, length: int) -> float:
    """Return the peak memory of a step in MiB, minus the memory in use before it (Linux only)."""
    torch.set_num_threads(arguments.threads)
    step = step_of(Bench(arguments), measure, build(name, length), Path())
    # Reset the recorded peak to the current memory use.
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    step()
    return (status("VmHWM") - before) / 1024


def status(name: str) -> int:
    """Return a value of /proc/self/status in KiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


if __name__ == "__main__":
    main()
