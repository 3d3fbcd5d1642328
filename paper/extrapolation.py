"""Train models identically on 128 tokens, and evaluate them on held-out texts in sequences of 128 to 8,192 tokens.

The protocol is in docs/log/text.md. Every training is a call of `python -m paper run mlm`. The same command resumes
an interrupted run. It writes table.md and lengths.png into the output folder.
"""

import json
import math
import random
import statistics
from pathlib import Path

import datasets
import torch
from torch import nn
from torch.nn import functional as F
from transformers import AutoModelForMaskedLM, AutoTokenizer, PreTrainedModel

import hf_gmlp
from examples.long_texts import LENGTHS, masked_loss, tokens_of
from hf_gmlp.cards import markdown_table

from .pictures import plt, save_picture
from .protocol import SEEDS, interval
from .runs import read_json
from .trainings import ROOT, System

# Depths at which each encoder has 1.76 to 1.78 million parameters, which is 48 times the squared width. The embeddings
# of 8,000 tokens add 1.54 million.
BERT = "num_hidden_layers=4,hidden_size=192,num_attention_heads=3,intermediate_size=768"
SYSTEMS = {
    "gMLP": ("gmlp-base", "num_hidden_layers=8,hidden_size=192,intermediate_size=768,sparse_prediction=true"),
    "aMLP": ("amlp-base", "num_hidden_layers=6,hidden_size=192,intermediate_size=800,sparse_prediction=true"),
    "BERT, relative positions": ("bert-base-relpos", BERT),
    "BERT, absolute positions": ("bert-base", BERT),
}
# Ways to extend position embeddings beyond the training length. A model without them needs only one.
WAYS = {"BERT, absolute positions": ("repeated", "interpolated")}
# Steps of a reported training; trainings of the search take a fifth of them.
STEPS = 1500
# Number of tokens to evaluate, and the largest rise of the log perplexity that counts as "without loss".
TOKENS, TOLERANCE = 131_072, 0.1


def extrapolate(train_file: list[str], validation_file: str, output_dir: Path):
    """Run the remaining trainings, evaluate each model on the texts, and write the table and the figure.

    Args:
        train_file: Files with a column "text".
        validation_file: A file with texts to evaluate on.
    """
    texts = list(datasets.load_dataset("json", data_files=validation_file, split="train")["text"])
    # The file keeps the chapters of a book together.
    random.Random(0).shuffle(texts)
    losses: dict[str, list[dict[str, float]]] = {}
    for name, (preset, sizes) in SYSTEMS.items():
        flags = {"tokenizer_name": ROOT / "checkpoints" / "amlp-mini", "train_file": train_file}
        system = System(preset, f"max_position_embeddings=128,{sizes}", flags)
        folders = [folder for folder, _ in system.study(output_dir, SEEDS, STEPS, STEPS // 5)]
        for way in WAYS.get(name, ("",)):
            losses[f"{name} {way}".strip()] = [read_losses(folder, way, texts) for folder in folders]
    table = "\n\n".join(markdown_table(rows) for rows in (perplexities(losses), rises(losses)))
    (output_dir / "table.md").write_text(f"{table}\n", encoding="utf-8")
    draw(losses, output_dir / "lengths.png")
    print(table)


def read_losses(folder: Path, way: str, texts: list[str]) -> dict[str, float]:
    """Return the loss of masked tokens in nats for each row length, and cache it in the folder."""
    path = folder / f"lengths{way}.json"
    losses = read_json(path)
    if all(str(length) in losses for length in LENGTHS):
        return losses
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokens_of(texts, tokenizer, TOKENS)
    masked = torch.rand(ids.shape, generator=torch.Generator().manual_seed(1)) < 0.15
    for length in LENGTHS:
        if str(length) not in losses:
            model = AutoModelForMaskedLM.from_pretrained(folder).eval()
            if model.config.model_type == "gmlp":
                hf_gmlp.extend_context(model, tokenizer, length)
            elif way:
                make_positions(model, way, length)
            losses[str(length)] = masked_loss(model, ids, masked, length, tokenizer.mask_token_id)
            print(f"{folder} {way} {length}: perplexity {math.exp(losses[str(length)]):.1f}", flush=True)
            path.write_text(json.dumps(losses), encoding="utf-8")
    return losses


def make_positions(model: PreTrainedModel, way: str, length: int):
    """Extend the position embeddings of a BERT in place to `length`: "repeated" or "interpolated"."""
    embeddings = model.bert.embeddings
    table = embeddings.position_embeddings.weight.detach()
    if way == "repeated":
        table = table.repeat(math.ceil(length / len(table)), 1)[:length]
    else:
        table = F.interpolate(table.T[None], size=length, mode="linear", align_corners=True)[0].T
    embeddings.position_embeddings = nn.Embedding.from_pretrained(table.contiguous())
    embeddings.position_ids = torch.arange(length)[None]
    embeddings.token_type_ids = torch.zeros(1, length, dtype=torch.long)
    model.config.max_position_embeddings = length


def perplexities(losses: dict[str, list[dict[str, float]]]) -> list[list]:
    """Return a table of mean perplexities, with the minimum and the maximum over the seeds."""
    rows: list[list] = [["perplexity, sequence length", *(f"{length:,}" for length in LENGTHS)]]
    for name, seeds in losses.items():
        values = [[math.exp(seed[str(length)]) for seed in seeds] for length in LENGTHS]
        rows.append([name, *(f"{statistics.fmean(v):.1f} ({min(v):.1f} to {max(v):.1f})" for v in values)])
    return rows


def rises(losses: dict[str, list[dict[str, float]]]) -> list[list]:
    """Return a table of the rise of log perplexity relative to 128 tokens, its interval, and the conclusion."""
    rows: list[list] = [["rise in nats, sequence length", *(f"{length:,}" for length in LENGTHS[1:])]]
    for name, seeds in losses.items():
        cells = []
        for length in LENGTHS[1:]:
            low, high = interval([seed[str(length)] - seed[str(LENGTHS[0])] for seed in seeds])
            verdict = "without loss" if high < TOLERANCE else "loses" if low > TOLERANCE else "open"
            cells.append(f"{low:+.3f} to {high:+.3f}: {verdict}")
        rows.append([name, *cells])
    return rows


def draw(losses: dict[str, list[dict[str, float]]], path: Path):
    """Draw perplexity against row length: a line through the means, and a band from minimum to maximum."""
    figure, axis = plt.subplots(figsize=(7, 4), layout="constrained")
    for number, (name, seeds) in enumerate(losses.items()):
        values = [[math.exp(seed[str(length)]) for seed in seeds] for length in LENGTHS]
        axis.plot(LENGTHS, [statistics.fmean(v) for v in values], marker="o", color=f"C{number}", label=name)
        axis.fill_between(LENGTHS, [min(v) for v in values], [max(v) for v in values], color=f"C{number}", alpha=0.2)
    axis.set(xscale="log", yscale="log", xlabel="sequence length in tokens", ylabel="perplexity of masked tokens")
    axis.set_xticks(LENGTHS, [f"{length:,}" for length in LENGTHS], fontsize=8)
    axis.minorticks_off()
    axis.set_title("Trained on 128 tokens")
    axis.grid(color="0.92")
    axis.legend(fontsize=8)
    save_picture(figure, path)
