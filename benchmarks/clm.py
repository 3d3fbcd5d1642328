"""Causal gMLPs beside g-mlp-pytorch (lucidrains) and a GPT-2 of the same size: how fast, and how well they learn.

    python benchmarks/clm.py speed
    python benchmarks/clm.py speed --compile        static caches, and models through torch.compile
    python benchmarks/clm.py quality --train_file train.txt --validation_file validation.txt

speed: the time of one more token behind 10, 100 and 1,000 tokens, and its mean over ten places evenly spread; and of a
training step (forward, backward, AdamW) on a full batch. hf_gmlp's models and GPT-2 go through their caches;
g-mlp-pytorch has none, so that each token costs a forward of all tokens. Systems take turns in one process, and medians
count. A model that computes something else with its cache than without, on weights far from the initial ones, ends it.

quality: all systems see the same bytes in the same order, with the same AdamW and schedule; each has its own initial
weights. Every byte of the validation file is predicted once, from the bytes of its block before it.

With one thread, times are CPU times. The results are printed, and added to a CSV file.
"""

import argparse
import copy
import itertools
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from g_mlp_pytorch import gMLP
from harness import Bench, about, write_results
from peers import parameters_of
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import GPT2Config, GPT2LMHeadModel, StaticCache

from hf_gmlp import GMLPConfig, GMLPForCausalLM, errors
from hf_gmlp.errors import InputError
from hf_gmlp.markdown import markdown_table
from hf_gmlp.tasks.clm.blocks import ByteBlocks
from hf_gmlp.tokenizer import BYTE_SPECIAL_TOKENS
from hf_gmlp.training.files import check_file

END_OF_TEXT = 1
VOCABULARY = len(BYTE_SPECIAL_TOKENS) + 256
SYSTEMS = ("gMLP", "gMLP, dense W", "aMLP", "g-mlp-pytorch", "GPT-2")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for command, layers, dim, n, batch_size in (("speed", 8, 512, 1024, 4), ("quality", 6, 128, 256, 32)):
        one = commands.add_parser(command, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
        one.add_argument("--layers", type=int, default=layers, help="blocks of the gMLPs")
        one.add_argument("--dim", type=int, default=dim, help="d_model")
        one.add_argument("--n", type=int, default=n, help="longest sequence, in bytes")
        one.add_argument("--batch_size", type=int, default=batch_size, help="sequences in a training batch")
        one.add_argument("--systems", nargs="+", choices=SYSTEMS, default=SYSTEMS, help="what to compare")
        one.add_argument("--output", type=Path, default=Path(f"results/clm_{command}.csv"), help="CSV file")
        one.add_argument("--threads", type=int, default=1, help="threads of PyTorch")
        if command == "speed":
            one.add_argument("--repeats", type=int, default=5, help="rounds, for the medians")
            one.add_argument("--tokens", type=int, default=4, help="tokens timed at a place")
            one.add_argument("--compile", action="store_true", help="generate with static caches and torch.compile")
            continue
        one.add_argument("--train_file", required=True, type=Path, help="read as bytes")
        one.add_argument("--validation_file", required=True, type=Path, help="read as bytes")
        one.add_argument("--steps", type=int, default=1200, help="training steps")
        one.add_argument("--learning_rates", type=float, nargs="+", default=[2e-3], help="one run each")
        one.add_argument("--seeds", type=int, nargs="+", default=[0], help="one run each")
        one.add_argument("--max_eval_blocks", type=int, help="evaluate on the first blocks only")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    table, rows = (speed if arguments.command == "speed" else quality)(arguments)
    common = about(threads=arguments.threads)
    print(f"\n{markdown_table(table)}\n\n" + ", ".join(f"{name} {value}" for name, value in common.items()))
    write_results(arguments.output, rows, common)


def build(system: str, layers: int, dim: int, n: int) -> nn.Module:
    """
    A new causal language model over bytes, with the initial weights that its own code gives it and without dropout. The
    gMLPs have d_ffn = 4 d_model. A layer of GPT-2 has about twice the weights of a gMLP block: it gets the number of
    layers with the parameters nearest to those of gMLP.
    """
    ids = {"pad_token_id": 0, "bos_token_id": END_OF_TEXT, "eos_token_id": END_OF_TEXT}
    if system == "g-mlp-pytorch":
        return gMLP(num_tokens=VOCABULARY, dim=dim, depth=layers, seq_len=n, ff_mult=4, causal=True)
    if system == "GPT-2":
        sizes = {"vocab_size": VOCABULARY, "n_positions": n, "n_embd": dim, "n_head": max(1, dim // 64)}
        options = sizes | ids | dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
        with torch.device("meta"):
            wanted = parameters_of(build("gMLP", layers, dim, n))
            models = [GPT2LMHeadModel(GPT2Config(n_layer=depth, **options)) for depth in range(1, layers + 1)]
        nearest = min(models, key=lambda model: abs(parameters_of(model) - wanted))
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


def logits_of(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """[batch, m] -> [batch, m, vocabulary], with no cache."""
    return model(ids) if isinstance(model, gMLP) else model(input_ids=ids, use_cache=False).logits


def nats(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """Blocks [batch, m + 1] -> the loss of their last m tokens, [batch, m]."""
    return cross_entropy(logits_of(model, ids[:, :-1]).transpose(1, 2), ids[:, 1:], reduction="none")


def adamw(model: nn.Module, learning_rate: float) -> torch.optim.AdamW:
    """AdamW that spares vectors (biases, norms, a Toeplitz W) from weight decay."""
    groups: dict[bool, list] = {True: [], False: []}
    for parameter in model.parameters():
        groups[parameter.squeeze().dim() > 1].append(parameter)
    groups = [{"params": groups[True], "weight_decay": 0.01}, {"params": groups[False], "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=learning_rate, eps=1e-6)


# --------------------------------------------------------------------------------------------------------------- speed


def speed(arguments: argparse.Namespace) -> tuple[list[list], list[dict]]:
    """Returns a table for people and rows for a file."""
    if arguments.n < 32:
        raise InputError(f"--n {arguments.n} leaves nothing to time: it must be at least 32.")
    torch.manual_seed(0)
    systems = {name: build(name, arguments.layers, arguments.dim, arguments.n) for name in arguments.systems}
    for name, model in systems.items():
        if not isinstance(model, gMLP):
            difference = cache_difference(model, min(64, arguments.n))
            print(f"{name}: with and without its cache, logits agree to {difference:.1e} of the largest.", flush=True)
    bench = Bench(arguments)
    last = arguments.n - arguments.tokens
    marks = sorted({min(mark, last) for mark in (10, 100, 1000)})
    spread = [min(arguments.n * (2 * i + 1) // 20, last) for i in range(10)]
    generating = time_generation(bench, systems, sorted({*marks, *spread}))
    ids = torch.randint(2, VOCABULARY, (arguments.batch_size, arguments.n + 1))
    steps = {name: partial(train, model, adamw(model.train(), 1e-4), ids) for name, model in systems.items()}
    training = bench.times(steps, arguments.repeats)

    rows, sizes = [], {key: getattr(arguments, key) for key in ("layers", "dim", "n", "batch_size", "repeats")}
    table = [["tokens per second (times the first system's)", "parameters", *(f"token {mark}" for mark in marks)]]
    table[0] += ["mean token", "training"]
    for name, model in systems.items():
        seconds = {f"token {mark}": generating[name, mark] for mark in marks}
        seconds["mean token"] = statistics.mean(generating[name, place] for place in spread)
        seconds["training"] = statistics.median(training[name]) / (arguments.batch_size * arguments.n)
        table.append([name, f"{parameters_of(model) / 1e6:.2f} M"])
        for measure, second in seconds.items():
            row = {"system": name, "measure": measure, "seconds_per_token": second, "tokens_per_second": 1 / second}
            rows.append(row | {"parameters": parameters_of(model)} | sizes)
            first = next(row["seconds_per_token"] for row in rows if row["measure"] == measure)
            table[-1].append(f"{1 / second:,.1f} ({first / second:.3g})")
    return table, rows


def train(model: nn.Module, optimizer: torch.optim.Optimizer, ids: torch.Tensor):
    nats(model, ids).mean().backward()
    optimizer.step()
    optimizer.zero_grad()


@torch.no_grad()
def cache_difference(model: nn.Module, length: int) -> float:
    """
    The largest difference of logits between a forward of all tokens and one token at a time through the cache, as a
    share of the largest logit, with noise of 0.2 on every parameter.

    Raises:
        InputError: If they differ by more than rounding explains, or choose other tokens.
    """
    model, generator = copy.deepcopy(model).eval(), torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.2)
    model.double()
    ids = torch.randint(2, VOCABULARY, (1, length), generator=generator)
    whole = logits_of(model, ids)
    cache, steps = None, []
    for place in range(length):
        output = model(input_ids=ids[:, place : place + 1], past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        steps.append(output.logits)
    difference = ((torch.cat(steps, dim=1) - whole).abs().max() / whole.abs().max()).item()
    if not difference < 1e-9:
        raise InputError(f"{type(model).__name__} computes something else through its cache: {difference:.1e} away.")
    prompt = ids[:, : length // 2]
    options = {"max_new_tokens": length // 2, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    options["attention_mask"] = torch.ones_like(prompt)
    cached, plain = (model.generate(prompt, use_cache=use_cache, **options) for use_cache in (True, False))
    if not torch.equal(cached, plain):
        raise InputError(f"{type(model).__name__} generates other tokens through its cache than without.")
    return difference


@torch.no_grad()
def time_generation(bench: Bench, systems: dict[str, nn.Module], places: list[int]) -> dict[tuple[str, int], float]:
    """Median seconds of one more token behind a number of tokens, by system and that number."""
    seconds, tokens = defaultdict(list), bench.arguments.tokens
    compiled, caches = {}, {}
    for name, model in systems.items():
        model.eval()
        if bench.arguments.compile and not isinstance(model, gMLP):
            compiled[name] = torch.compile(model)
            caches[name] = StaticCache(model.config, max_cache_len=bench.arguments.n)
    for _ in range(bench.arguments.repeats + 1):
        for place in places:
            ids = torch.randint(2, VOCABULARY, (1, place + tokens))
            for name, model in systems.items():
                seconds[name, place] += token_times(bench, model, ids, place, compiled.get(name), caches.get(name))
    # The first round warms up.
    return {key: statistics.median(times[tokens:]) for key, times in seconds.items()}


def token_times(
    bench: Bench,
    model: nn.Module,
    ids: torch.Tensor,
    place: int,
    compiled: Callable | None = None,
    cache: StaticCache | None = None,
) -> list[float]:
    """Seconds of each token of `ids` behind the first `place`, which are processed before."""
    if cache is not None:
        cache.reset()
    if not isinstance(model, gMLP):
        cache = model(input_ids=ids[:, :place], past_key_values=cache, use_cache=True).past_key_values
    forward = compiled or model

    def step(end: int):
        nonlocal cache
        if cache is None:
            logits = model(ids[:, :end])
        else:
            positions = torch.tensor([[end - 1]])
            output = forward(ids[:, end - 1 : end], past_key_values=cache, use_cache=True, position_ids=positions)
            cache, logits = output.past_key_values, output.logits
        logits[:, -1].argmax(-1).item()

    return [bench.seconds(partial(step, end)) for end in range(place + 1, ids.shape[1] + 1)]


# ------------------------------------------------------------------------------------------------------------- quality


def quality(arguments: argparse.Namespace) -> tuple[list[list], list[dict]]:
    """Returns a table for people and rows for a file."""
    train_data = blocks(arguments.train_file, arguments.n)
    validation = blocks(arguments.validation_file, arguments.n, arguments.max_eval_blocks, keep_remainder=True)
    if len(train_data) < arguments.batch_size:
        raise InputError(f"{arguments.train_file} does not fill one batch: give more text.")
    rows, sizes = [], {key: getattr(arguments, key) for key in ("steps", "batch_size", "layers", "dim", "n")}
    for seed, learning_rate, system in itertools.product(arguments.seeds, arguments.learning_rates, arguments.systems):
        torch.manual_seed(seed)
        model = build(system, arguments.layers, arguments.dim, arguments.n)
        started = time.process_time()
        loss = fit(model, train_data, arguments.steps, arguments.batch_size, learning_rate, seed)
        row = {"system": system, "seed": seed, "learning_rate": learning_rate, "parameters": parameters_of(model)}
        row["cpu_seconds"] = time.process_time() - started
        row["bits_per_byte"] = bits_per_byte(model, validation, arguments.batch_size)
        row["train_bits_per_byte"] = loss / math.log(2)
        rows.append(row | sizes | {"validation_bytes": validation.num_bytes})
        print(f"{system}, seed {seed}, {learning_rate:g}: {row['bits_per_byte']:.3f} bits per byte", flush=True)
    read = arguments.steps * arguments.batch_size * arguments.n
    print(f"\n{arguments.steps} steps, {read:,} bytes read of {train_data.num_bytes:,}", end="; ")
    print(f"{validation.num_bytes:,} held out")
    table = [["system", "seed", "learning rate", "parameters", "bits per byte", "CPU seconds"]]
    for row in rows:
        cells = [row[key] for key in ("system", "seed", "learning_rate", "parameters")]
        table.append([*cells, f"{row['bits_per_byte']:.4f}", f"{row['cpu_seconds']:.1f}"])
    return table, rows


def blocks(path: Path, n: int, max_samples: int | None = None, keep_remainder: bool = False) -> ByteBlocks:
    """A file as blocks of n bytes to predict."""
    check_file(path)
    span = [(str(path), 0, path.stat().st_size)]
    return ByteBlocks(span, END_OF_TEXT, n + 1, keep_remainder=keep_remainder, max_samples=max_samples)


def fit(model: nn.Module, data: ByteBlocks, steps: int, batch_size: int, learning_rate: float, seed: int) -> float:
    """Trains by a linear schedule with 10 % warmup. Returns the mean loss (nats) of the last tenth of the steps."""
    optimizer = adamw(model.train(), learning_rate)
    warmup = max(1, steps // 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warmup, (steps - step) / max(1, steps - warmup))
    )
    losses = []
    for _, ids in zip(range(steps), batches(data, batch_size, seed)):
        loss = nats(model, ids).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return statistics.mean(losses[-max(1, steps // 10) :])


def batches(data: ByteBlocks, batch_size: int, seed: int):
    """Endless batches [batch, n + 1]: the data again and again, in a new order each time."""
    random = np.random.default_rng(seed)
    while True:
        order = random.permutation(len(data))
        for start in range(0, len(order) - batch_size + 1, batch_size):
            yield torch.from_numpy(np.stack([data[i]["input_ids"] for i in order[start : start + batch_size]]))


@torch.no_grad()
def bits_per_byte(model: nn.Module, data: ByteBlocks, batch_size: int) -> float:
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
