"""Speed and memory of gMLP and its peers on a CPU, in one process and one run.

    python -m benchmarks.cpu                            all suites on one core
    python -m benchmarks.cpu --quick                    the same at a small size
    python -m benchmarks.cpu --compile                  also with torch.compile (needs a C++ compiler)

Suites:
    images    gMLP-S on images of 224 pixels at several batch sizes, timm's gMLP-S, and a ViT-S
    text      gMLP-base on 512 tokens, g-mlp-pytorch (lucidrains) with both kinds of W, and a BERT
    short     the same on few tokens

`python -m benchmarks.length` measures long texts.

Systems take turns within every round, so that other load on the machine affects all of them alike, and results are
medians. With one thread, times are CPU times; with more, wall-clock times. Nothing is reported if the outputs of
hf_gmlp differ from those of a peer with the same weights, or if outputs or gradients with checkpointing or compilation
differ from those without. Dropout is off everywhere. "Kept for backward" is the memory held between forward and
backward, besides parameters and inputs.

The results are appended to benchmarks/results/cpu-DATE.csv.
"""

import argparse
import datetime

import torch

from hf_gmlp import errors

from . import harness, peers
from .harness import Bench
from .peers import BERT, CIRCULANT, COMPILED, DENSE, FULL, OWN, SELECTIVE, TIMM, VIT

SUITES = ("images", "text", "short")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suites", nargs="+", choices=SUITES, default=list(SUITES), help="default: all")
    sizes = {
        "layers": ("least number of gMLP blocks", 6, 2),
        "rounds": ("how often every system is timed", 5, 1),
        "threads": ("threads of PyTorch", 1, 1),
    }
    arguments = harness.parse_arguments(parser, sizes)
    errors.run(lambda: benchmark(arguments))


def benchmark(arguments: argparse.Namespace):
    torch.set_num_threads(arguments.threads)
    bench = Bench(arguments)
    common = harness.about(threads=arguments.threads)
    print(", ".join(f"{key} {value}" for key, value in common.items()))
    for suite in arguments.suites:
        names, columns = systems_of(suite, arguments.compile), sizes_of(suite, arguments.quick)
        make, peer = (peers.image_model, VIT) if suite == "images" else (peers.text_model, BERT)
        layers = peers.whole_blocks(arguments.layers, peer)
        bench.compare(suite, make, names, [{"layers": layers} | sizes for sizes in columns])
    path = arguments.out / f"cpu-{datetime.date.today().isoformat()}.csv"
    print()
    harness.write_results(path, bench.rows, common)


def systems_of(suite: str, compile: bool = False) -> list[str]:
    names = {
        "images": [OWN, OWN + SELECTIVE, OWN + FULL, TIMM, VIT],
        "text": [OWN, OWN + SELECTIVE, OWN + FULL, DENSE, CIRCULANT, BERT],
        "short": [OWN, DENSE, CIRCULANT, BERT],
    }[suite]
    return names + [name + COMPILED for name in (OWN, TIMM, DENSE) if compile and name in names]


def sizes_of(suite: str, quick: bool = False) -> list[dict[str, int]]:
    if suite == "images":
        return [{"batch": batch} for batch in ((1, 2) if quick else (1, 2, 8, 32))]
    batch, lengths = {"text": (4, (512,)), "short": (8, (8, 9, 32, 128))}[suite]
    if quick:
        batch, lengths = 2, {"text": (32,), "short": (8, 9)}[suite]
    return [{"batch": batch, "tokens": tokens} for tokens in lengths]


if __name__ == "__main__":
    main()
