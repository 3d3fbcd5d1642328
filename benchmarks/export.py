"""Size and speed of exported models and their originals, which take turns in one process. Example:

    python -m benchmarks.export my-gmlp my-bert --length 32

The models are exported to a temporary folder; `hf-gmlp export --eval_file` measures their accuracy. Times are
median CPU times of one thread over all rounds.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import onnxruntime
import openvino
import torch
from transformers import PreTrainedModel

from hf_gmlp import errors
from hf_gmlp.markdown import markdown_table
from hf_gmlp.tools.export import FORMATS, make_inputs, open_for_export, write_programs

from .machine import circumstances

Run = Callable[[dict[str, torch.Tensor]], object]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help="folders of trained models")
    parser.add_argument("--batch_sizes", nargs="+", type=int, default=[1, 8], help="default: 1 8")
    parser.add_argument("--length", type=int, default=32, help="tokens of a text (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=200, help="default: %(default)s")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    sizes = arguments.batch_sizes
    table = [["model", "runtime", "parameters", "MB"]]
    table[0] += [*(f"ms, batch {size}" for size in sizes), *(f"speed, batch {size}" for size in sizes)]
    for folder in arguments.models:
        model = open_for_export(folder)
        with tempfile.TemporaryDirectory() as temporary:
            programs = exports(model, Path(temporary))
            inputs = [make_inputs(model, size, arguments.length) for size in sizes]
            times = measure([run for run, _ in programs.values()], inputs, arguments.rounds)
        for (title, (_, megabytes)), own in zip(programs.items(), times):
            cells = [Path(folder).name, title, f"{model.num_parameters() / 1e6:.2f} M", f"{megabytes:.2f}"]
            cells += [f"{statistics.median(values):.2f}" for values in own]
            # Use the median of the ratios within each turn, since other load on the machine slows down both.
            ratios = ([first / other for first, other in zip(*pair)] for pair in zip(times[0], own))
            table.append(cells + [f"{statistics.median(values):.2f}" for values in ratios])
    facts = circumstances("transformers", "onnxruntime", "openvino")
    print(*(f"{name}: {value}" for name, value in facts.items()), sep="\n")
    print(markdown_table(table))


def exports(model: PreTrainedModel, folder: Path) -> dict[str, tuple[Run, float]]:
    """Return for the model and its exports, by title, a function that runs it and the size of its weights in MB."""
    run = torch.inference_mode()(lambda inputs: model(**inputs))
    programs: dict[str, tuple[Run, float]] = {"PyTorch": (run, 4e-6 * model.num_parameters())}
    for to, open_program in (("onnx", onnx_run), ("openvino", openvino_run)):
        write_programs(model, to, folder, int8=True)
        for file, title in zip(FORMATS[to], (to, f"{to} in 8 bits")):
            path = folder / file
            weights = path if to == "onnx" else path.with_suffix(".bin")
            programs[title] = (open_program(path), weights.stat().st_size / 1e6)
    return programs


def onnx_run(path: Path) -> Run:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [item.name for item in session.get_inputs()]
    return lambda inputs: session.run(None, {name: inputs[name].numpy() for name in names})


def openvino_run(path: Path) -> Run:
    settings = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    compiled = openvino.Core().compile_model(path, "CPU", settings)
    names = [item.any_name for item in compiled.inputs]
    return lambda inputs: compiled({name: inputs[name].numpy() for name in names})


def measure(runs: list[Run], inputs: list[dict[str, torch.Tensor]], rounds: int) -> list[list[list[float]]]:
    """Return the milliseconds of each run on each of the inputs in each round. Runs take turns within a round."""
    times: list[list[list[float]]] = [[[] for _ in inputs] for _ in runs]
    for turn in range(rounds + 3):
        for run, own in zip(runs, times):
            for batch, values in zip(inputs, own):
                begin = time.process_time()
                run(batch)
                # The first turns are a warm-up.
                if turn >= 3:
                    values.append((time.process_time() - begin) * 1e3)
    return times


if __name__ == "__main__":
    errors.run(main)
