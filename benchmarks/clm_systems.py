"""What the benchmarks of causal language models compare, and how they say where they ran."""

import csv
import datetime
import platform
from importlib.metadata import version
from pathlib import Path

import torch
from g_mlp_pytorch import gMLP
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from hf_gmlp import GMLPConfig, GMLPForCausalLM
from hf_gmlp.analysis.machine import processor_name
from hf_gmlp.data.tokenizer import BYTE_SPECIAL_TOKENS
from hf_gmlp.errors import InputError

END_OF_TEXT = 1
VOCABULARY = len(BYTE_SPECIAL_TOKENS) + 256
OURS = "gMLP"
SYSTEMS = (OURS, "gMLP, dense W", "aMLP", "g-mlp-pytorch", "GPT-2")


def build(system: str, layers: int, dim: int, n: int) -> nn.Module:
    """
    A new causal language model over bytes, with the initial weights that its own code gives it and without dropout.
    The gMLPs have d_ffn = 4 d_model. A layer of GPT-2 has about twice the weights of one of theirs, so that it gets the
    number of layers that comes nearest to the parameters of ours.
    """
    ids = {"pad_token_id": 0, "bos_token_id": END_OF_TEXT, "eos_token_id": END_OF_TEXT}
    if system == "g-mlp-pytorch":
        return gMLP(num_tokens=VOCABULARY, dim=dim, depth=layers, seq_len=n, ff_mult=4, causal=True)
    if system == "GPT-2":
        wanted = parameters(build(OURS, layers, dim, n))

        def gpt2(depth: int) -> GPT2LMHeadModel:
            rates = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
            heads = max(1, dim // 64)
            return GPT2LMHeadModel(
                GPT2Config(
                    vocab_size=VOCABULARY, n_positions=n, n_embd=dim, n_layer=depth, n_head=heads, **rates, **ids
                )
            )

        with torch.device("meta"):
            depth = min(range(1, layers + 1), key=lambda depth: abs(parameters(gpt2(depth)) - wanted))
        return gpt2(depth)
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


def parameters(model: nn.Module) -> int:
    """Parameters, tied ones counted once."""
    return sum(parameter.numel() for parameter in model.parameters())


def adamw(model: nn.Module, learning_rate: float, weight_decay: float) -> torch.optim.AdamW:
    """AdamW that spares vectors (biases, norms, a Toeplitz W) from weight decay."""
    matrices = [parameter for parameter in model.parameters() if parameter.squeeze().dim() > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.squeeze().dim() <= 1]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=learning_rate, eps=1e-6)


def circumstances() -> dict[str, str | int]:
    """Machine, versions and date: what a measured number needs beside it."""
    return {
        "machine": processor_name(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "transformers", "g-mlp-pytorch")},
        "date": datetime.date.today().isoformat(),
    }


def check_new(path: Path):
    """
    Raises:
        InputError: If there is such a file already.
    """
    if path.exists():
        raise InputError(f"{path} is there already: name another file by --output, or remove it.")


def write_csv(path: Path, rows: list[dict]):
    """Rows with the same keys, and the circumstances behind each."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [row | circumstances() for row in rows]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def markdown(header: list[str], rows: list[list]) -> str:
    """A table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)
