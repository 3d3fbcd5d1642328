"""Generation and training speed of causal gMLPs, g-mlp-pytorch (lucidrains) and a GPT-2 of the same size, on a CPU.

    python -m benchmarks.clm                      eight blocks of d_model 512, on one core
    python -m benchmarks.clm --quick              a smoke test with tiny sizes, and a single round

Measures the time to generate the tokens after 10, 100 and 1,000 others, and a training step (forward, backward, AdamW)
on four sequences of 1,024 bytes. hf_gmlp's models and GPT-2 use their caches; g-mlp-pytorch has none, so each token
costs a forward pass of all tokens. Systems take turns in one process, and results are medians of CPU times.

The results are appended to benchmarks/results/clm-DATE.csv.
"""

import argparse
import datetime
import statistics

import torch
from g_mlp_pytorch import gMLP
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import GPT2Config, GPT2LMHeadModel

from hf_gmlp import errors
from hf_gmlp.cards import markdown_table
from hf_gmlp.models.configuration_gmlp import GMLPConfig
from hf_gmlp.models.modeling_gmlp import CACHE, GMLPForCausalLM

from . import harness
from .harness import Bench, Step
from .peers import parameters_of

# The 256 bytes, [PAD] and [SEP].
VOCABULARY = 258
SYSTEMS = ("gMLP", "gMLP, dense W", "aMLP", "g-mlp-pytorch", "GPT-2")
# Number of tokens to generate in a step, and number of sequences in a training batch.
TOKENS, BATCH = 4, 4


def main() -> None:
    parser = harness.make_parser(__doc__, 5)
    parser.add_argument("--layers", type=int, default=8, help="blocks of the gMLPs (default: %(default)s)")
    parser.add_argument("--dim", type=int, default=512, help="d_model (default: %(default)s)")
    arguments = parser.parse_args()
    errors.run_command(lambda: benchmark(arguments))


def benchmark(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    layers, dim, n = (1, 16, 32) if arguments.quick else (arguments.layers, arguments.dim, 1024)
    systems = {name: build(name, layers, dim, n) for name in SYSTEMS}
    bench = Bench(arguments)
    table = [["tokens per second", *(f"{name}, {parameters_of(x) / 1e6:.2f} M" for name, x in systems.items())]]
    for position in (10, 20) if arguments.quick else (10, 100, 1000):
        steps = {name: generation_step(model.eval(), position) for name, model in systems.items()}
        table.append(measure(bench, f"after {position:,} tokens", steps, TOKENS))
    ids = torch.randint(2, VOCABULARY, (BATCH, n + 1))
    steps = {name: training_step(model.train(), ids) for name, model in systems.items()}
    table.append(measure(bench, "training", steps, BATCH * n))
    print(f"\n{markdown_table(table)}\n")
    common = harness.about(threads=arguments.threads) | {"layers": layers, "dim": dim, "n": n}
    harness.write_results(arguments.out / f"clm-{datetime.date.today().isoformat()}.csv", bench.rows, common)


def measure(bench: Bench, name: str, steps: dict[str, Step], tokens: int) -> list[str]:
    """Time the steps of all systems, and return a row of tokens per second."""
    row = [name]
    for system, seconds in bench.times(steps).items():
        rate = tokens / statistics.median(seconds)
        bench.add("clm", system, f"{name}, tokens/s", rate)
        row.append(f"{rate:,.1f}")
    print(", ".join(row), flush=True)
    return row


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


def training_step(model: nn.Module, ids: torch.Tensor) -> Step:
    """Return a training step on sequences [batch, m + 1]."""
    optimizer, inputs, labels = torch.optim.AdamW(model.parameters(), 1e-4), ids[:, :-1], ids[:, 1:]

    def step() -> None:
        logits = model(inputs) if isinstance(model, gMLP) else model(input_ids=inputs, use_cache=False).logits
        cross_entropy(logits.transpose(1, 2), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def generation_step(model: nn.Module, position: int) -> Step:
    """Return a step that generates `TOKENS` tokens after `position` random ones, which are in the cache, if any."""
    ids = torch.randint(2, VOCABULARY, (1, position + TOKENS))
    ends = range(position + 1, position + TOKENS + 1)

    @torch.no_grad()
    def forward_step() -> None:
        for end in ends:
            model(ids[:, :end])[:, -1].argmax(-1).item()

    if isinstance(model, gMLP):
        return forward_step
    with torch.no_grad():
        cache = model(input_ids=ids[:, :position], use_cache=True)[CACHE]

    @torch.no_grad()
    def cached_step() -> None:
        for end in ends:
            logits = model(input_ids=ids[:, end - 1 : end], use_cache=True, **{CACHE: cache}).logits
            logits[:, -1].argmax(-1).item()
        cache.crop(-TOKENS)

    return cached_step


if __name__ == "__main__":
    main()
