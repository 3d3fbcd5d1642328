"""Speed and memory of gMLP and its peers on a GPU, in one process and one run, after a check of their outputs.

    python -m benchmarks.gpu                            everything
    python -m benchmarks.gpu --compile                  also with every block compiled, except in `long`
    python -m benchmarks.gpu --device cpu --quick       tiny smoke test without a GPU

Suites:
    text      gMLP-base and aMLP-base on 512 tokens, g-mlp-pytorch (lucidrains), BERT-base and ModernBERT-base
    images    gMLP-S on images of 224 pixels, timm's gMLP-S, and ViT-S
    large     gMLP-B, timm's gMLP-B, and ViT-B
    long      gMLP-base, aMLP-base, BERT-base and ModernBERT-base on 128 to 16,384 tokens; W reaches 128 tokens

All models have the depth of the published ones (48 blocks of gMLP-base, 12 layers of BERT-base). Outputs are compared
in single precision, as in cpu.py. Times are measured under bf16 autocast with parameters in single precision and
without dropout. A training step is forward and backward, without an optimizer. "MFU" is its operations over its time,
as a fraction of the rate of a large bf16 product in the same run. The operations are those of matrix products and
attention, counted by torch in the forward pass; a backward pass has twice as many. "Peak" is the peak memory of a
training step minus the memory in use before it.

The results are appended to benchmarks/results/gpu-DATE.csv after every size.
"""

import argparse
import datetime
import gc
import statistics
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from hf_gmlp import errors
from hf_gmlp.errors import InputError

from . import harness, peers
from .harness import Bench
from .peers import AMLP, BERT, COMPILED, FULL, LUCIDRAINS, MODERN, OWN, SELECTIVE, TIMM, VIT, System, base_of

SUITES = {
    "text": [OWN, OWN + SELECTIVE, OWN + FULL, AMLP, LUCIDRAINS, BERT, MODERN],
    "images": [OWN, OWN + SELECTIVE, OWN + FULL, TIMM, VIT],
    "large": [OWN, OWN + SELECTIVE, OWN + FULL, TIMM, VIT],
    "long": [OWN, AMLP, BERT, MODERN],
}
MAKERS: dict[str, Callable[..., System]] = {
    "images": peers.image_model,
    "large": partial(peers.image_model, large=True),
}
LENGTHS = (128, 1024, 4096, 16384)
# Tokens of a batch of texts, and images of a batch.
TOKENS, IMAGES = 32768, 128


def main() -> None:
    parser = harness.make_parser(__doc__, 3, SUITES)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu requires --quick")
    # On a CPU, all of its cores are used, so times are wall-clock times.
    parser.set_defaults(threads=None)
    arguments = parser.parse_args()
    if arguments.device == "cpu" and not arguments.quick:
        parser.error("--device cpu takes too long at full size: add --quick, or use benchmarks.cpu")
    errors.run_command(lambda: benchmark(arguments))


def benchmark(arguments: argparse.Namespace) -> None:
    if arguments.device == "cuda" and not torch.cuda.is_available():
        raise InputError("No CUDA GPU found. Use a machine with one, or pass --device cpu --quick.")
    # Keep TF32 out of the checks, which compare in single precision.
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    bench = GPUBench(arguments, arguments.device)
    path = arguments.out / f"gpu-{datetime.date.today().isoformat()}.csv"
    common = harness.about(cuda=torch.version.cuda)
    print(", ".join(f"{key} {value}" for key, value in common.items()))
    print(f"{bench.rate / 1e12:.4g} TFLOP/s in a large bf16 product")
    for suite in arguments.suites:
        names, make = list(SUITES[suite]), MAKERS.get(suite, peers.text_model)
        # Compiling for every length would take minutes.
        if arguments.compile and suite != "long":
            names += [name + COMPILED for name in names if base_of(name) == name]
        for sizes in sizes_of(suite, arguments.quick):
            bench.rows = []
            bench.compare(suite, make, names, [sizes])
            harness.write_results(path, bench.rows, common)
            torch._dynamo.reset()
            gc.collect()


def sizes_of(suite: str, quick: bool) -> list[dict[str, int]]:
    if suite in MAKERS:
        return [{"layers": 5, "batch": 1} if quick else {"layers": 30, "batch": IMAGES}]
    if quick:
        return [{"layers": 3, "batch": 2, "tokens": 16}]
    if suite == "text":
        return [{"layers": 48, "batch": TOKENS // 512, "tokens": 512}]
    return [{"layers": 48, "batch": TOKENS // tokens, "tokens": tokens, "reach": 128} for tokens in LENGTHS]


class GPUBench(Bench):
    """A run under bf16 autocast on a GPU.

    Attributes:
        rate: Operations per second of a large product.
    """

    def __init__(self, arguments: argparse.Namespace, device: str) -> None:
        super().__init__(arguments, device)
        self.rate = self.measured_rate()

    def precision(self) -> AbstractContextManager:
        return torch.autocast(self.device.type, torch.bfloat16)

    def seconds(self, step: Callable[[], object]) -> float:
        if self.device.type == "cpu":
            return super().seconds(step)

        def run(repeats: int) -> float:
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            # Run once untimed, since another system used the caches and the allocator before.
            step()
            start.record()
            for _ in range(repeats):
                step()
            end.record()
            end.synchronize()
            return start.elapsed_time(end) / 1e3 / repeats

        # Repeat a short step, so that the launch of the first has little weight.
        once = run(1)
        return once if once > 0.01 else run(min(100, int(0.02 / once) + 1))

    def measured_rate(self) -> float:
        """Measure the operations per second of a large bf16 product."""
        size, rounds = (256, 3) if self.arguments.quick else (8192, 30)
        left, right, out = torch.randn(3, size, size, device=self.device, dtype=torch.bfloat16)
        for _ in range(3 if self.arguments.quick else 100):
            # Warm up until the clock rates have risen.
            torch.mm(left, right, out=out)
        times = self.times({"": lambda: torch.mm(left, right, out=out)}, rounds)[""]
        return 2 * size**3 / statistics.median(times)

    def measure(self, systems: dict[str, System]) -> dict[str, dict[str, list[float]]]:
        results = super().measure(systems)
        operations = {name: flops_of(x) for name, x in systems.items() if base_of(name) == name}
        results["MFU, %"] = {
            name: [100 * operations[base_of(name)] / (value / 1e3) / self.rate for value in values]
            for name, values in results["training, ms"].items()
        }
        if self.device.type == "cuda":
            results["peak, MiB"] = {name: [self.peak(self.training_step(x))] for name, x in systems.items()}
        return results

    def peak(self, step: Callable[[], object]) -> float:
        """Return the MiB that a step needs in addition to the memory in use."""
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        return (torch.cuda.max_memory_allocated() - before) / 2**20


def flops_of(system: System) -> int:
    """Count the operations of the matrix products and of attention in a training step: three times those of a forward
    pass. One sample is counted, since the countable form of attention stores all weights."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        system.run(1)
    return 3 * len(system.inputs) * counter.get_total_flops()


if __name__ == "__main__":
    main()
