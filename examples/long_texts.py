"""Apply a language model that was trained on short texts to texts of any length, without further training.

    python -m examples.long_texts checkpoints/amlp-mini books.jsonl.gz
    python -m examples.long_texts earlier-amlp-mini checkpoints/amlp-mini books.jsonl.gz --output length.png

The script prints the perplexity of 15 % of the tokens and the CPU time per token, on texts in sequences of 128, 256,
and more tokens, and plots them for all models. The file has a column "text". For classifiers, use `hf-gmlp predict`
with `--max_seq_length`.
"""

import argparse
import math
import time
from collections.abc import Iterable

import datasets
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase

import hf_gmlp
from hf_gmlp import GMLPForMaskedLM, GMLPPreTrainedModel, errors
from hf_gmlp.cards import markdown_table

LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192)
TOKENS = 32_768


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="model", help="folders with a Toeplitz gMLP or aMLP")
    parser.add_argument("file", help="jsonl, csv or parquet, compressed or not")
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS), help="tokens (default: %(default)s)")
    parser.add_argument("--output", help="image file for the plot")
    errors.run(lambda: measure(parser.parse_args()))


def measure(arguments: argparse.Namespace):
    """Print a table of all lengths for each model, and plot them."""
    kind = "csv" if ".csv" in arguments.file else "parquet" if arguments.file.endswith("parquet") else "json"
    rows = datasets.load_dataset(kind, data_files=arguments.file, split="train")
    points: dict[str, list[tuple[int, float, float]]] = {}
    for folder in arguments.models:
        config = AutoConfig.from_pretrained(folder)
        model, tokenizer = GMLPForMaskedLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
        hf_gmlp.extend_context(model, tokenizer, max(*arguments.lengths, config.max_position_embeddings))
        table = [["tokens", "perplexity", "CPU ms per token"]]
        for length in arguments.lengths:
            perplexity, milliseconds = evaluate(model, tokenizer, rows["text"], length)
            label = f"trained on {config.max_position_embeddings:,} tokens"
            points.setdefault(label, []).append((length, perplexity, milliseconds))
            table.append([f"{length:,}", f"{perplexity:.1f}", f"{milliseconds:.2f}"])
        print(f"{folder}\n\n{markdown_table(table)}\n")
    if arguments.output:
        draw(points, arguments.output)


def evaluate(
    model: GMLPPreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: Iterable[str], length: int
) -> tuple[float, float]:
    """Return the perplexity of 15 % of the first `TOKENS` tokens in sequences of `length`, and the CPU ms per token."""
    ids = tokens_of(texts, tokenizer, TOKENS)
    masked = torch.rand(ids.shape, generator=torch.Generator().manual_seed(1)) < 0.15
    start = time.process_time()
    loss = masked_loss(model, ids, masked, length, tokenizer.mask_token_id)
    return math.exp(loss), 1e3 * (time.process_time() - start) / len(ids)


def tokens_of(texts: Iterable[str], tokenizer: PreTrainedTokenizerBase, count: int) -> torch.Tensor:
    """Return the first `count` tokens of the texts, with separators between texts."""
    ids: list[int] = []
    for text in texts:
        ids += [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.sep_token_id]
        if len(ids) >= count:
            break
    return torch.tensor(ids[:count])


@torch.no_grad()
def masked_loss(model: GMLPPreTrainedModel, ids: torch.Tensor, masked: torch.Tensor, length: int, mask: int) -> float:
    """Return the mean loss of masked tokens in sequences of `length` tokens; the last may be shorter."""
    losses = [
        cross_entropy(model(row.masked_fill(hidden, mask)[None]).logits[0, hidden], row[hidden], reduction="sum").item()
        for row, hidden in zip(ids.split(length), masked.split(length))
    ]
    return sum(losses) / int(masked.sum())


def draw(points: dict[str, list[tuple[int, float, float]]], path: str):
    """Plot perplexity and time per token against the sequence length, one line per model."""
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(9, 3), constrained_layout=True)
    for panel, column, title in zip(panels, (1, 2), ("perplexity of masked tokens", "CPU ms per token")):
        for name, rows in points.items():
            panel.plot([row[0] for row in rows], [row[column] for row in rows], marker="o", label=name)
        lengths = [row[0] for row in next(iter(points.values()))]
        highest = max(row[column] for rows in points.values() for row in rows)
        panel.set(xscale="log", xlabel="sequence length in tokens", title=title, ylim=(0, 1.2 * highest))
        panel.set_xticks(lengths, [f"{length:,}" for length in lengths], fontsize=8)
        panel.minorticks_off()
        panel.grid(alpha=0.3)
    panels[0].legend(loc="lower left", fontsize=8)
    figure.savefig(path, dpi=150)
    plt.close(figure)


if __name__ == "__main__":
    main()
