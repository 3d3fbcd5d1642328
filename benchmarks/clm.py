"""Generation and training speed of causal gMLPs, g-mlp-pytorch (lucidrains) and a GPT-2 of the same size.

    python -m benchmarks.clm
    python -m benchmarks.clm --compile        with static caches and torch.compile

Measures the time to generate the token after 10, 100 and 1,000 tokens, its mean over ten evenly spaced positions, and a
training step (forward, backward, AdamW) on a full batch. hf_gmlp's models and GPT-2 use their caches; g-mlp-pytorch has
none, so each token costs a forward pass of all tokens. Systems take turns in one process, and results are medians. The
benchmark aborts if a model with perturbed weights has different outputs with its cache and without. With one thread,
times are CPU times. The results are printed and appended to a CSV file.
"""

import argparse
import copy
import statistics
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from g_mlp_pytorch import gMLP
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import GPT2Config, GPT2LMHeadModel, StaticCache

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
    parser.add_argument("--compile", action="store_true", help="generate with static caches and torch.compile")
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
    for name, model in systems.items():
        if not isinstance(model, gMLP):
            difference = cache_difference(model, min(64, arguments.n))
            print(f"{name}: logits with and without cache differ by up to {difference:.1e} of the largest.", flush=True)
    bench = Bench(arguments)
    last = arguments.n - arguments.tokens
    marks = sorted({min(mark, last) for mark in (10, 100, 1000)})
    spread = [min(arguments.n * (2 * i + 1) // 20, last) for i in range(10)]
    generating = time_generation(bench, systems, sorted({*marks, *spread}))
    ids = torch.randint(2, VOCABULARY, (arguments.batch_size, arguments.n + 1))
    steps: dict[str, Callable[[], object]] = {
        name: partial(train, model, torch.optim.AdamW(model.train().parameters(), 1e-4), ids)
        for name, model in systems.items()
    }
    training = bench.times(steps, arguments.repeats)

    rows, sizes = [], {key: getattr(arguments, key) for key in ("layers", "dim", "n", "batch_size", "repeats")}
    table = [["tokens per second (times the first system's)", "parameters", *(f"token {mark}" for mark in marks)]]
    table[0] += ["mean token", "training"]
    for name, model in systems.items():
        seconds = {f"token {mark}": generating[name, mark] for mark in marks}
        seconds["mean token"] = statistics.mean(generating[name, position] for position in spread)
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
def cache_difference(model: nn.Module, length: int) -> float:
    """Return the largest difference of logits between one forward pass of all tokens and one token at a time through
    the cache, as a fraction of the largest logit, with noise of 0.2 on every parameter.

    Raises:
        InputError: They differ by more than rounding explains.
    """
    model, generator = copy.deepcopy(model).eval(), torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.2)
    model.double()
    ids = torch.randint(2, VOCABULARY, (1, length), generator=generator)
    complete = model(input_ids=ids, use_cache=False).logits
    cache, steps = None, []
    for position in range(length):
        output = model(input_ids=ids[:, position : position + 1], past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        steps.append(output.logits)
    difference = ((torch.cat(steps, dim=1) - complete).abs().max() / complete.abs().max()).item()
    if not difference < 1e-9:
        raise InputError(f"{type(model).__name__} computes other logits with its cache, {difference:.1e} away.")
    return difference


@torch.no_grad()
def time_generation(bench: Bench, systems: dict[str, nn.Module], positions: list[int]) -> dict[tuple[str, int], float]:
    """Return the median seconds to generate one token, by system and by the number of preceding tokens."""
    seconds: dict[tuple[str, int], list[float]] = defaultdict(list)
    tokens = bench.arguments.tokens
    compiled, caches = {}, {}
    for name, model in systems.items():
        model.eval()
        if bench.arguments.compile and not isinstance(model, gMLP):
            compiled[name] = torch.compile(model)
            caches[name] = StaticCache(model.config, max_cache_len=bench.arguments.n)
    for _ in range(bench.arguments.repeats + 1):
        for position in positions:
            ids = torch.randint(2, VOCABULARY, (1, position + tokens))
            for name, model in systems.items():
                forward, cache = compiled.get(name), caches.get(name)
                seconds[name, position] += token_times(bench, model, ids, position, forward, cache)
    # The first round is a warm-up.
    return {key: statistics.median(times[tokens:]) for key, times in seconds.items()}


def token_times(
    bench: Bench,
    model: nn.Module,
    ids: torch.Tensor,
    position: int,
    compiled: Callable | None,
    cache: StaticCache | None,
) -> list[float]:
    """Return the seconds for each token of `ids` after the first `position`, which are processed untimed.

    Args:
        compiled: The compiled model, if any, which processes the timed tokens.
        cache: Its static cache, if any.
    """
    if cache is not None:
        cache.reset()
    if not isinstance(model, gMLP):
        cache = model(input_ids=ids[:, :position], past_key_values=cache, use_cache=True).past_key_values
    forward = model if compiled is None else compiled

    def step(end: int):
        nonlocal cache
        if cache is None:
            logits = model(ids[:, :end])
        else:
            positions = torch.tensor([[end - 1]])
            output = forward(ids[:, end - 1 : end], past_key_values=cache, use_cache=True, position_ids=positions)
            cache, logits = output.past_key_values, output.logits
        logits[:, -1].argmax(-1).item()

    return [bench.seconds(partial(step, end)) for end in range(position + 1, ids.shape[1] + 1)]


if __name__ == "__main__":
    errors.run(main)
