"""Speed and memory of gMLP and its peers on a CPU, in one process and one run.

    python -m benchmarks.cpu                            all suites on one core
    python -m benchmarks.cpu --quick                    the same at a small size
    python -m benchmarks.cpu --compile                  also with torch.compile (needs a C++ compiler)

Suites:
    images    gMLP-S on images of 224 pixels at several batch sizes, timm's gMLP-S, and a ViT-S
    text      gMLP-base on 512 tokens, g-mlp-pytorch (lucidrains), and a BERT
    short     the same on few tokens

`python -m benchmarks.length` measures long texts.

Systems take turns within every round, so that other load on the machine affects all of them alike, and results are
medians. Times are CPU times of one thread. Nothing is reported if the outputs of hf_gmlp differ from those of a peer
with the same weights, or if outputs or gradients with checkpointing or compilation differ from those without. Dropout
is off everywhere. "Kept for backward" is the memory held between forward and
backward, besides parameters and inputs.

The results are appended to benchmarks/results/cpu-DATE.csv.
"""

import argparse
import datetime

import torch

from hf_gmlp import errors

from . import harness, peers
from .harness import Bench
from .peers import BERT, COMPILED, FULL, LUCIDRAINS, OWN, SELECTIVE, TIMM, VIT

SUITES = ("images", "text", "short")


def main() -> None:
    arguments = harness.make_parser(__doc__, 5, SUITES).parse_args()
    errors.run_command(lambda: benchmark(arguments))


def benchmark(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(arguments.threads)
    bench = Bench(arguments)
    common = harness.about(threads=arguments.threads)
    print(", ".join(f"{key} {value}" for key, value in common.items()))
    for suite in arguments.suites:
        make = peers.image_model if suite == "images" else peers.text_model
        bench.compare(suite, make, systems_of(suite, arguments.compile), sizes_of(suite, arguments.quick))
    print()
    harness.write_results(arguments.out / f"cpu-{datetime.date.today().isoformat()}.csv", bench.rows, common)


def systems_of(suite: str, compile: bool = False) -> list[str]:
    names = {
        "images": [OWN, OWN + SELECTIVE, OWN + FULL, TIMM, VIT],
        "text": [OWN, OWN + SELECTIVE, OWN + FULL, LUCIDRAINS, BERT],
        "short": [OWN, LUCIDRAINS, BERT],
    }[suite]
    return names + [name + COMPILED for name in (OWN, TIMM, LUCIDRAINS) if compile and name in names]


def sizes_of(suite: str, quick: bool = False) -> list[dict[str, int]]:
    if suite == "images":
        batches, layers = ((1, 2), 5) if quick else ((1, 2, 8, 32), 10)
        return [{"layers": layers, "batch": batch} for batch in batches]
    if quick:
        lengths = {"text": (32,), "short": (8, 9)}[suite]
        return [{"layers": 3, "batch": 2, "tokens": tokens} for tokens in lengths]
    batch, lengths = {"text": (4, (512,)), "short": (8, (8, 9, 32, 128))}[suite]
    return [{"layers": 6, "batch": batch, "tokens": tokens} for tokens in lengths]


if __name__ == "__main__":
    main()
