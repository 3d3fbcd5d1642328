"""Time of packed rows, whose documents of 512 tokens (or a quarter of the row) do not see each other, on one core.

    python -m benchmarks.packed

Compares, for two blocks of width 256 whose W reaches 128 tokens, one row of packed documents with the same row without
`position_ids` and with one row per document. The three take turns in every round; the times are the shortest CPU times
of a forward pass, and of a forward and backward pass.
"""

import argparse

import torch

from common.machine import circumstances
from hf_gmlp import GMLPConfig, GMLPModel, errors
from hf_gmlp.cards import markdown_table

from .harness import Bench, Step

LENGTHS = (512, 2048, 8192)


def steps_of(length: int, is_causal: bool, trains: bool) -> dict[str, Step]:
    """Return a step for each way to pass the same tokens."""
    torch.manual_seed(0)
    config = GMLPConfig(
        vocab_size=50,
        hidden_size=256,
        intermediate_size=1536,
        num_hidden_layers=2,
        max_position_embeddings=length,
        spatial_reach=128,
        is_causal=is_causal,
    )
    model = GMLPModel(config, add_pooling_layer=False).train(trains)
    document = min(512, length // 4)
    ids, positions = torch.randint(5, 50, (1, length)), (torch.arange(length) % document)[None]
    cases = {
        "packed": {"input_ids": ids, "position_ids": positions},
        "one document": {"input_ids": ids},
        "rows": {"input_ids": ids.view(-1, document)},
    }

    def step(inputs: dict[str, torch.Tensor]) -> None:
        with torch.set_grad_enabled(trains):
            output = model(**inputs).last_hidden_state
        if trains:
            output.square().mean().backward()

    return {name: lambda inputs=inputs: step(inputs) for name, inputs in cases.items()}  # type: ignore[misc]


def benchmark(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    bench, table = Bench(arguments), [["tokens", "pass", "packed, ms", "over one document", "over rows"]]
    for length in arguments.lengths:
        for is_causal in (False, True):
            for trains in (False, True):
                times = bench.times(steps_of(length, is_causal, trains))
                packed, single, rows = (1e3 * min(times[name]) for name in ("packed", "one document", "rows"))
                name = f"{'causal ' if is_causal else ''}{'training' if trains else 'forward'}"
                table.append([f"{length:,}", name, f"{packed:.0f}", f"{packed / single:.2f}", f"{packed / rows:.2f}"])
                print(", ".join(table[-1]), flush=True)
    print(markdown_table(table))
    print(circumstances("transformers"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS), help="tokens (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="how often every case is timed (default: %(default)s)")
    parser.set_defaults(threads=1, quick=False)
    errors.run_command(lambda: benchmark(parser.parse_args()))


if __name__ == "__main__":
    main()
