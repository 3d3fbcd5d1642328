"""How well causal gMLPs learn bytes: ours, lucidrains' (g-mlp-pytorch) and GPT-2 of the same size, on the same batches.

    python benchmarks/clm_quality.py --train_file train.txt --validation_file validation.txt

All systems see the same blocks in the same order, with the same AdamW and schedule; each has its own initial weights.
Every byte of the validation file is predicted once, from the bytes of its block before it. One thread, so that seconds
of CPU can be compared. Prints a table, and writes the same as CSV.
"""

import argparse
import itertools
import math
import time
from pathlib import Path

import numpy as np
import torch
from clm_systems import (
    END_OF_TEXT,
    OURS,
    SYSTEMS,
    adamw,
    build,
    check_new,
    circumstances,
    logits_of,
    markdown,
    parameters,
    write_csv,
)
from torch.nn.functional import cross_entropy

from hf_gmlp import errors
from hf_gmlp.data.causal import ByteBlocks
from hf_gmlp.data.files import check_file


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train_file", required=True, type=Path, help="read as bytes")
    parser.add_argument("--validation_file", required=True, type=Path, help="read as bytes")
    parser.add_argument("--steps", type=int, default=1200, help="default: %(default)s")
    parser.add_argument("--layers", type=int, default=6, help="blocks of the gMLPs (default: %(default)s)")
    parser.add_argument("--dim", type=int, default=128, help="d_model (default: %(default)s)")
    parser.add_argument("--n", type=int, default=256, help="bytes that a model sees (default: %(default)s)")
    parser.add_argument("--batch_size", type=int, default=32, help="default: %(default)s")
    parser.add_argument("--learning_rates", type=float, nargs="+", default=[2e-3], help="one run each (default: 2e-3)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="one run each (default: 0)")
    parser.add_argument("--max_eval_blocks", type=int, help="evaluate on the first blocks only")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=SYSTEMS, help="default: all")
    parser.add_argument("--output", type=Path, default=Path("results/clm_quality.csv"), help="default: %(default)s")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    check_new(arguments.output)
    train = blocks(arguments.train_file, arguments.n)
    validation = blocks(arguments.validation_file, arguments.n, arguments.max_eval_blocks, keep_remainder=True)
    if len(train) < arguments.batch_size:
        raise errors.InputError(f"{arguments.train_file} does not fill one batch: give more text.")
    rows = []
    for seed, learning_rate, system in itertools.product(arguments.seeds, arguments.learning_rates, arguments.systems):
        torch.manual_seed(seed)
        model = build(system, arguments.layers, arguments.dim, arguments.n)
        started = time.process_time()
        loss = fit(model, train, arguments.steps, arguments.batch_size, learning_rate, seed)
        seconds = time.process_time() - started
        rows.append(
            {
                "system": system,
                "seed": seed,
                "learning_rate": learning_rate,
                "parameters": parameters(model),
                "bits_per_byte": round(bits_per_byte(model, validation, arguments.batch_size), 4),
                "train_bits_per_byte": round(loss / math.log(2), 4),
                "cpu_seconds": round(seconds, 1),
                "steps": arguments.steps,
                "batch_size": arguments.batch_size,
                "layers": arguments.layers,
                "dim": arguments.dim,
                "n": arguments.n,
                "validation_bytes": validation.num_bytes,
            }
        )
        print(f"{system}, seed {seed}, {learning_rate:g}: {rows[-1]['bits_per_byte']:.3f} bits per byte", flush=True)

    write_csv(arguments.output, rows)
    shown = ["system", "seed", "learning_rate", "parameters", "bits_per_byte", "cpu_seconds"]
    print("\n" + markdown([name.replace("_", " ") for name in shown], [[row[name] for name in shown] for row in rows]))
    about = ", ".join(f"{name} {value}" for name, value in circumstances().items())
    read = arguments.steps * arguments.batch_size * arguments.n
    print(f"\n{arguments.steps} steps, {read:,} bytes read of {train.num_bytes:,}; {validation.num_bytes:,} held out.")
    print(f"{about}. The same in {arguments.output}; ratios are to be taken to {OURS!r}.")


def blocks(path: Path, n: int, max_samples: int | None = None, keep_remainder: bool = False) -> ByteBlocks:
    """A file as blocks of n bytes to predict."""
    check_file(path)
    span = [(str(path), 0, path.stat().st_size)]
    return ByteBlocks(span, END_OF_TEXT, n + 1, keep_remainder=keep_remainder, max_samples=max_samples)


def fit(model: torch.nn.Module, data: ByteBlocks, steps: int, batch_size: int, learning_rate: float, seed: int):
    """Trains by a linear schedule with 10 % warmup, and gives the mean loss (nats) of the last tenth of the steps."""
    optimizer = adamw(model, learning_rate, weight_decay=0.01)
    warmup = max(1, steps // 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warmup, (steps - step) / max(1, steps - warmup))
    )
    losses = []
    model.train()
    for _, ids in zip(range(steps), batches(data, batch_size, seed)):
        loss = nats(model, ids).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return float(np.mean(losses[-max(1, steps // 10) :]))


def batches(data: ByteBlocks, batch_size: int, seed: int):
    """Batches [batch, n + 1] of reading after reading of the data, each in an order of its own."""
    random = np.random.default_rng(seed)
    while True:
        order = random.permutation(len(data))
        for start in range(0, len(order) - batch_size + 1, batch_size):
            yield torch.from_numpy(np.stack([data[i]["input_ids"] for i in order[start : start + batch_size]]))


def nats(model: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """Blocks [batch, m + 1] -> the loss of their last m tokens, [batch, m]."""
    return cross_entropy(logits_of(model, ids[:, :-1]).transpose(1, 2), ids[:, 1:], reduction="none")


@torch.no_grad()
def bits_per_byte(model: torch.nn.Module, data: ByteBlocks, batch_size: int) -> float:
    """Bits over bytes of the whole data."""
    model.eval()
    total = 0.0
    for start in range(0, len(data), batch_size):
        rows = [torch.from_numpy(data[i]["input_ids"]) for i in range(start, min(start + batch_size, len(data)))]
        # The last block of a file may be shorter.
        for length in {len(row) for row in rows}:
            total += nats(model, torch.stack([row for row in rows if len(row) == length])).double().sum().item()
    return total / math.log(2) / data.num_bytes


if __name__ == "__main__":
    errors.run(main)
