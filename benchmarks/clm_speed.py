"""How fast causal gMLPs generate and train: ours, lucidrains' (g-mlp-pytorch) and GPT-2 of the same size.

    python benchmarks/clm_speed.py

Generating, the time of one more token is taken behind 10, 100 and 1,000 tokens, and at ten places evenly spread for the
mean. Ours and GPT-2 go through their caches; g-mlp-pytorch has none, so that a token costs a forward of all tokens.
Training, that of one step (forward, backward, AdamW) on a full batch. The systems take turns in one process, on one
thread; medians. First it is checked that what ours computes with its cache is what it computes without, on weights far
from their initial ones. Prints two tables, and writes all as CSV.
"""

import argparse
import copy
import statistics
import time
from collections import defaultdict
from pathlib import Path

import torch
from clm_systems import (
    SYSTEMS,
    VOCABULARY,
    adamw,
    build,
    check_new,
    circumstances,
    logits_of,
    markdown,
    parameters,
    write_csv,
)
from g_mlp_pytorch import gMLP

from hf_gmlp import errors


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=8, help="blocks of the gMLPs (default: %(default)s)")
    parser.add_argument("--dim", type=int, default=512, help="d_model (default: %(default)s)")
    parser.add_argument("--n", type=int, default=1024, help="longest sequence (default: %(default)s)")
    parser.add_argument("--batch_size", type=int, default=4, help="of the training (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=5, help="rounds, for the medians (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=4, help="tokens timed at a place (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=SYSTEMS, help="default: all")
    parser.add_argument("--output", type=Path, default=Path("results/clm_speed.csv"), help="default: %(default)s")
    arguments = parser.parse_args()
    if arguments.n < 32:
        raise errors.InputError(f"--n {arguments.n} leaves nothing to time: use 32 or more.")

    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    check_new(arguments.output)
    systems = {name: build(name, arguments.layers, arguments.dim, arguments.n) for name in arguments.systems}
    for name, model in systems.items():
        if not isinstance(model, gMLP):
            difference = cache_difference(model, min(64, arguments.n))
            print(f"{name}: with and without its cache, logits agree to {difference:.1e} of the largest.", flush=True)

    last = arguments.n - arguments.tokens
    marks = sorted({min(mark, last) for mark in (10, 100, 1000)})
    spread = [min(arguments.n * (2 * i + 1) // 20, last) for i in range(10)]
    generating = time_generation(systems, sorted({*marks, *spread}), arguments.tokens, arguments.repeats)
    training = time_training(systems, arguments.batch_size, arguments.n, arguments.repeats)

    rows = []
    for name, model in systems.items():
        seconds = {f"token {mark}": generating[name, mark] for mark in marks}
        seconds["mean token"] = statistics.mean(generating[name, place] for place in spread)
        seconds["training"] = training[name] / (arguments.batch_size * arguments.n)
        for measure, second in seconds.items():
            row = {"system": name, "measure": measure, "seconds_per_token": f"{second:.4g}"}
            row |= {"tokens_per_second": round(1 / second, 1), "parameters": parameters(model)}
            rows.append(row | {key: getattr(arguments, key) for key in ("layers", "dim", "n", "batch_size", "repeats")})
    write_csv(arguments.output, rows)

    measures = list(dict.fromkeys(row["measure"] for row in rows))
    rates = {(row["system"], row["measure"]): row["tokens_per_second"] for row in rows}
    print("\nTokens per second\n")
    table = [
        [name, f"{parameters(model) / 1e6:.2f} M", *(f"{rates[name, measure]:,}" for measure in measures)]
        for name, model in systems.items()
    ]
    print(markdown(["", "parameters", *measures], table))
    first = next(iter(systems))
    print(f"\nTimes as fast as {first}\n")
    table = [[name, *(f"{rates[name, m] / rates[first, m]:.3g}" for m in measures)] for name in systems]
    print(markdown(["", *measures], table))
    print("\n" + ", ".join(f"{name} {value}" for name, value in circumstances().items()) + f". In {arguments.output}.")


@torch.no_grad()
def cache_difference(model: torch.nn.Module, length: int) -> float:
    """
    The largest difference of logits between a forward of all tokens and one token at a time through the cache, as a
    share of the largest logit, with noise of 0.2 on every parameter.

    Raises:
        InputError: If they differ by more than rounding explains, or choose other tokens.
    """
    model = copy.deepcopy(model).eval()
    generator = torch.Generator().manual_seed(0)
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
        raise errors.InputError(f"Through its cache {type(model).__name__} computes something else: {difference:.1e}.")
    prompt = ids[:, : length // 2]
    options = {"max_new_tokens": length // 2, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    mask = torch.ones_like(prompt)
    cached, plain = (
        model.generate(prompt, attention_mask=mask, use_cache=use_cache, **options) for use_cache in (True, False)
    )
    if not torch.equal(cached, plain):
        raise errors.InputError(f"{type(model).__name__} generates other tokens through its cache than without.")
    return difference


@torch.no_grad()
def time_generation(
    systems: dict[str, torch.nn.Module], places: list[int], tokens: int, repeats: int
) -> dict[tuple[str, int], float]:
    """Median seconds of one more token behind so many tokens, by system and place."""
    seconds = defaultdict(list)
    for model in systems.values():
        model.eval()
    for _ in range(repeats + 1):
        for place in places:
            ids = torch.randint(2, VOCABULARY, (1, place + tokens))
            for name, model in systems.items():
                seconds[name, place] += token_times(model, ids, place)
    # The first round warms up.
    return {key: statistics.median(times[tokens:]) for key, times in seconds.items()}


def token_times(model: torch.nn.Module, ids: torch.Tensor, place: int) -> list[float]:
    """Seconds of each token of `ids` behind the first `place`, whose work is done before."""
    cached = not isinstance(model, gMLP)
    # As generate() does: of a prompt, the last logits are all that is wanted.
    cache = model(input_ids=ids[:, :place], use_cache=True).past_key_values if cached else None
    times = []
    for end in range(place + 1, ids.shape[1] + 1):
        started = time.perf_counter()
        if cached:
            output = model(input_ids=ids[:, end - 1 : end], past_key_values=cache, use_cache=True)
            cache, logits = output.past_key_values, output.logits
        else:
            logits = model(ids[:, :end])
        logits[:, -1].argmax(-1).item()
        times.append(time.perf_counter() - started)
    return times


def time_training(systems: dict[str, torch.nn.Module], batch_size: int, n: int, repeats: int) -> dict[str, float]:
    """Median seconds of a step, by system."""
    seconds = defaultdict(list)
    optimizers = {name: adamw(model.train(), 1e-4, 0.01) for name, model in systems.items()}
    for _ in range(repeats + 1):
        ids = torch.randint(2, VOCABULARY, (batch_size, n))
        for name, model in systems.items():
            started = time.perf_counter()
            logits = logits_of(model, ids)
            torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
            optimizers[name].step()
            optimizers[name].zero_grad()
            seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(times[1:]) for name, times in seconds.items()}


if __name__ == "__main__":
    errors.run(main)
