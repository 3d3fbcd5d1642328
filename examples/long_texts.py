"""Read texts of any length with a model that was trained on short ones, without training it further.

    python -m examples.long_texts checkpoints/amlp-mini books.jsonl.gz --output length.png
    python -m examples.long_texts checkpoints/amlp-mini-sst2 reviews.jsonl.gz

A masked language model is asked for 15 % of the tokens of the texts, cut into rows of 128, 256, ... tokens: its
perplexity, and the CPU seconds for 1,000 tokens, with a picture. A classifier classifies texts that are cut at so many
tokens: its accuracy. The file has a column "text", and for a classifier a column "label" with class numbers.
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
from hf_gmlp import GMLPForMaskedLM, GMLPForSequenceClassification, GMLPPreTrainedModel, errors
from hf_gmlp.markdown import markdown_table

LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192)
SEED = 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a folder with a gMLP or aMLP")
    parser.add_argument("file", help="jsonl, csv or parquet, compressed or not")
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS), help="tokens (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=32768, help="tokens for a language model (default: %(default)s)")
    parser.add_argument("--texts", type=int, default=800, help="texts for a classifier (default: %(default)s)")
    parser.add_argument("--output", help="the picture of a language model to write")
    errors.run(lambda: measure(parser.parse_args()))


def measure(arguments: argparse.Namespace):
    """Print a table of all lengths."""
    is_classifier = AutoConfig.from_pretrained(arguments.model).architectures[0].endswith("SequenceClassification")
    model_class = GMLPForSequenceClassification if is_classifier else GMLPForMaskedLM
    model, tokenizer = (
        model_class.from_pretrained(arguments.model).eval(),
        AutoTokenizer.from_pretrained(arguments.model),
    )
    hf_gmlp.extend_context(model, tokenizer, max(arguments.lengths))
    kind = "csv" if ".csv" in arguments.file else "parquet" if arguments.file.endswith("parquet") else "json"
    rows = datasets.load_dataset(kind, data_files=arguments.file, split="train")
    if is_classifier:
        rows = rows.take(min(arguments.texts, len(rows)))
        found = [accuracy(model, tokenizer, rows, length) for length in arguments.lengths]
        print(
            markdown_table(
                [["tokens", "accuracy, %"], *([n, f"{100 * x:.1f}"] for n, x in zip(arguments.lengths, found))]
            )
        )
        return
    ids = tokens_of(rows["text"], tokenizer, arguments.tokens)
    masked = torch.rand(ids.shape, generator=torch.Generator().manual_seed(SEED)) < 0.15
    table, points = [["tokens in a row", "perplexity of masked tokens", "CPU ms for a token"]], []
    for length in arguments.lengths:
        start = time.process_time()
        loss = masked_loss(model, ids, masked, length, tokenizer.mask_token_id)
        seconds = (time.process_time() - start) / len(ids)
        points.append((length, math.exp(loss), 1e3 * seconds))
        table.append([str(length), f"{math.exp(loss):.1f}", f"{1e3 * seconds:.2f}"])
    print(markdown_table(table))
    if arguments.output:
        draw(points, arguments.output)


def tokens_of(texts: Iterable[str], tokenizer: PreTrainedTokenizerBase, count: int) -> torch.Tensor:
    """Return the first tokens of the texts, with the separator between them."""
    ids: list[int] = []
    for text in texts:
        ids += [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.sep_token_id]
        if len(ids) >= count:
            break
    return torch.tensor(ids[:count])


@torch.no_grad()
def masked_loss(model: GMLPPreTrainedModel, ids: torch.Tensor, masked: torch.Tensor, length: int, mask: int) -> float:
    """Return the mean loss of masked tokens, in rows of `length` tokens, of which the last may be shorter."""
    losses = [
        cross_entropy(model(row.masked_fill(hidden, mask)[None]).logits[0, hidden], row[hidden], reduction="sum").item()
        for row, hidden in zip(ids.split(length), masked.split(length))
    ]
    return sum(losses) / int(masked.sum())


@torch.no_grad()
def accuracy(
    model: GMLPPreTrainedModel, tokenizer: PreTrainedTokenizerBase, rows: datasets.Dataset, length: int
) -> float:
    """Return the fraction of texts, each cut at `length` tokens, whose class is right."""
    right = 0
    for row in rows:
        inputs = tokenizer(row["text"], truncation=True, max_length=length, return_tensors="pt")
        right += int(model(**inputs).logits.argmax()) == int(row["label"])
    return right / len(rows)


def draw(points: list[tuple[int, float, float]], path: str):
    """Draw perplexity and time for a token against the number of tokens in a row."""
    import matplotlib.pyplot as plt

    lengths, perplexities, milliseconds = zip(*points)
    figure, panels = plt.subplots(1, 2, figsize=(9, 3), constrained_layout=True)
    for panel, values, title in zip(
        panels, (perplexities, milliseconds), ("perplexity of masked tokens", "CPU ms for a token")
    ):
        panel.plot(lengths, values, marker="o", color="tab:blue")
        panel.set(xscale="log", xlabel="tokens in a row", title=title, ylim=(0, 1.3 * max(values)))
        panel.set_xticks(lengths, [f"{length:,}" for length in lengths], fontsize=8)
        panel.minorticks_off()
        panel.axvline(128, color="gray", linestyle=":")
        panel.text(128, 0, " length of training", color="gray", fontsize=8, va="bottom")
        panel.grid(alpha=0.3)
    figure.savefig(path, dpi=150)
    plt.close(figure)


if __name__ == "__main__":
    main()
