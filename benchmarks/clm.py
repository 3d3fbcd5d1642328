"""Generation and training speed of causal gMLPs, g-mlp-pytorch (lucidrains) and a GPT-2 of the same size.

    python -m benchmarks.clm

Measures the time to generate the token after 10, 100 and 1,000 tokens, and a training step (forward, backward, AdamW)
on a full batch. hf_gmlp's models and GPT-2 use their caches; g-mlp-pytorch has none, so each token costs a forward pass
of all tokens. Systems take turns in one process, and results are medians. With one thread, times are CPU times. The
results are printed and appended to a CSV file.
"""

import argparse
import statistics
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from g_mlp_pytorch import gMLP
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import GPT2Config, GPT2LMHeadModel

from hf_gmlp import errors
from hf_gmlp.errors import InputError
from hf_gmlp.markdown import markdown_table
from hf_gmlp.models.configuration_gmlp import GMLPConfig
from hf_gmlp.models.modeling_gmlp import GMLPForCausalLM

from .harness import Bench, about, write_results
from .peers import parameters_of

# The 256 bytes, [PAD] and [SEP].
VOCABULARY = 258
SYSTEMS = ("gMLP", "gMLP, dense W", "aMLP", "g-mlp-pytorch", "GPT-2")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for flag, default, text in (
        ("layers", 8, "blocks of the gMLPs"),
        ("dim", 512, "d_model"),
        ("n", 1024, "maximum sequence length, in bytes"),
        ("batch_size", 4, "sequences in a training batch"),
        ("threads", 1, "PyTorch threads"),
        ("repeats", 5, "rounds, for the medians"),
        ("tokens", 4, "number of tokens to time at a position"),
    ):
        parser.add_argument(f"--{flag}", type=int, default=default, help=f"{text} (default: {default})")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=SYSTEMS, help="systems to compare")
    parser.add_argument("--output", type=Path, default=Path("results/clm_speed.csv"), help="CSV file")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    table, rows = speed(arguments)
    common = about(threads=arguments.threads)
    print(f"\n{markdown_table(table)}\n\n" + ", ".join(f"{name} {value}" for name, value in common.items()))
    write_results(arguments.output, rows, common)


def build(system: str, layers: int, dim: int, n: int) -> nn.Module:
    """Build a new causal language model over bytes, with its own default initialization and without dropout.

    The gMLPs have d_ffn = 4 d_model. A GPT-2 layer has about twice the weights of a gMLP block, so the GPT-2 has the
    number of layers for which its parameter count is nearest to that of the gMLP.
    """
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
    if system == "g-mlp-pytorch":
        return gMLP(num_tokens=VOCABULARY, dim=dim, depth=layers, seq_len=n, ff_mult=4, causal=True)
    if system == "GPT-2":
        sizes = {"vocab_size": VOCABULARY, "n_positions": n, "n_embd": dim, "n_head": max(1, dim // 64)}
        options = sizes | ids | dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
        with torch.device("meta"):
            target = parameters_of(build("gMLP", layers, dim, n))
            models = [GPT2LMHeadModel(GPT2Config(n_layer=depth, **options)) for depth in range(1, layers + 1)]
        nearest = min(models, key=lambda model: abs(parameters_of(model) - target))
        return GPT2LMHeadModel(nearest.config)
    config = GMLPConfig(
        vocab_size=VOCABULARY,
        hidden_size=dim,
        num_hidden_layers=layers,
        intermediate_size=4 * dim,
        max_position_embeddings=n,
        type_vocab_size=0,
        is_causal=True,
        toeplitz=system != "gMLP, dense W",
        attention_size=64 if system == "aMLP" else 0,
        **ids,
    )
    return GMLPForCausalLM(config)


def speed(arguments: argparse.Namespace) -> tuple[list[list], list[dict]]:
    """Measure all systems, and return a table to print and rows for the CSV file."""
    if arguments.n < 32:
        raise InputError(f"--n {arguments.n} is too small to time anything: it must be at least 32.")
    torch.manual_seed(0)
    systems = {name: build(name, arguments.layers, arguments.dim, arguments.n) for name in arguments.systems}
    bench = Bench(arguments)
    marks = sorted({min(mark, arguments.n - arguments.tokens) for mark in (10, 100, 1000)})
    generating = time_generation(bench, systems, marks)
    ids = torch.randint(2, VOCABULARY, (arguments.batch_size, arguments.n + 1))
    steps: dict[str, Callable[[], object]] = {
        name: partial(train, model, torch.optim.AdamW(model.train().parameters(), 1e-4), ids)
        for name, model in systems.items()
    }
    training = bench.times(steps, arguments.repeats)

    rows, sizes = [], {key: getattr(arguments, key) for key in ("layers", "dim", "n", "batch_size", "repeats")}
    heading = ["tokens per second (times the first system's)", "parameters"]
    table = [[*heading, *(f"token {mark}" for mark in marks), "training"]]
    for name, model in systems.items():
        seconds = {f"token {mark}": generating[name, mark] for mark in marks}
        seconds["training"] = statistics.median(training[name]) / (arguments.batch_size * arguments.n)
        table.append([name, f"{parameters_of(model) / 1e6:.2f} M"])
        for measure, second in seconds.items():
            row = {"system": name, "measure": measure, "seconds_per_token": second, "tokens_per_second": 1 / second}
            rows.append(row | {"parameters": parameters_of(model)} | sizes)
            first = next(row["seconds_per_token"] for row in rows if row["measure"] == measure)
            table[-1].append(f"{1 / second:,.1f} ({first / second:.3g})")
    return table, rows


def train(model: nn.Module, optimizer: torch.optim.Optimizer, ids: torch.Tensor):
    """Make a training step on sequences: [batch, m + 1]."""
    inputs, labels = ids[:, :-1], ids[:, 1:]
    logits = model(inputs) if isinstance(model, gMLP) else model(input_ids=inputs, use_cache=False).logits
    cross_entropy(logits.transpose(1, 2), labels).backward()
    optimizer.step()
    optimizer.zero_grad()


@torch.no_grad()
def time_generation(bench: Bench, systems: dict[str, nn.Module], positions: list[int]) -> dict[tuple[str, int], float]:
    """Return the median seconds to generate one token, by system and by the number of preceding tokens."""
    seconds: dict[tuple[str, int], list[float]] = defaultdict(list)
    tokens = bench.arguments.tokens
    for model in systems.values():
        model.eval()
    for _ in range(bench.arguments.repeats + 1):
        for position in positions:
            ids = torch.randint(2, VOCABULARY, (1, position + tokens))
            for name, model in systems.items():
                seconds[name, position] += token_times(bench, model, ids, position)
    # The first round is a warm-up.
    return {key: statistics.median(times[tokens:]) for key, times in seconds.items()}


def token_times(bench: Bench, model: nn.Module, ids: torch.Tensor, position: int) -> list[float]:
    """Return the seconds for each token of `ids` after the first `position`, which are processed untimed."""
    has_cache = not isinstance(model, gMLP)
    cache = model(input_ids=ids[:, :position], use_cache=True).past_key_values if has_cache else None

    def step(end: int):
        if cache is None:
            logits = model(ids[:, :end])
        else:
            logits = model(input_ids=ids[:, end - 1 : end], past_key_values=cache, use_cache=True).logits
        logits[:, -1].argmax(-1).item()

    return [bench.seconds(partial(step, end)) for end in range(position + 1, ids.shape[1] + 1)]


if __name__ == "__main__":
    errors.run(main)
