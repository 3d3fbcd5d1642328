"""Apply a model that was trained on short texts to texts of any length, beside what every model can do: read pieces.

    python -m examples.long_texts checkpoints/amlp-mini books.jsonl.gz
    python -m examples.long_texts trained-on-128 checkpoints/amlp-mini books.jsonl.gz --output length.png
    python -m examples.long_texts checkpoints/amlp-mini-sst2 reviews.jsonl.gz --lengths 128 512 2048

For a language model, the script prints the perplexity of 15 % of the tokens and the CPU time per token, and plots them.
Rows of 128, 256 and more tokens either follow each other or overlap by half. Then each token is predicted in the row in
whose middle half it is, which takes twice the time. For a classifier, it prints the accuracy from the first tokens of
each text, and from the mean logits of all of its pieces, which have the smallest of the lengths. The file has a column
"text" and, for classifiers, "label": the index of a class.
"""

import argparse
import math
import time
from collections.abc import Iterable, Iterator

import datasets
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer, PreTrainedTokenizerBase

import hf_gmlp
from hf_gmlp import GMLPForMaskedLM, GMLPPreTrainedModel, errors
from hf_gmlp.cards import markdown_table

LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192)
TOKENS = 32_768
WAYS = ("rows", "overlapping rows")
# Length, perplexity and CPU milliseconds per token.
Point = tuple[int, float, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="model", help="folders with a Toeplitz gMLP or aMLP")
    parser.add_argument("file", help="jsonl, csv or parquet, compressed or not")
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS), help="tokens (default: %(default)s)")
    parser.add_argument("--output", help="image file for the plot")
    errors.run_command(lambda: measure(parser.parse_args()))


def measure(arguments: argparse.Namespace) -> None:
    """Print a table of all lengths for each model, and plot those of language models."""
    kind = "csv" if ".csv" in arguments.file else "parquet" if arguments.file.endswith("parquet") else "json"
    rows = datasets.load_dataset(kind, data_files=arguments.file, split="train")
    points: dict[str, list[Point]] = {}
    for folder in arguments.models:
        config, tokenizer = AutoConfig.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
        is_classifier = "Classification" in (config.architectures or [""])[0]
        auto_class = AutoModelForSequenceClassification if is_classifier else GMLPForMaskedLM
        model = auto_class.from_pretrained(folder).eval()
        hf_gmlp.extend_context(model, tokenizer, max(*arguments.lengths, config.max_position_embeddings))
        if is_classifier:
            table = compare_with_pieces(model, tokenizer, rows, arguments.lengths)
        else:
            table = [["tokens", *(f"{title}, {way}" for way in WAYS for title in ("perplexity", "CPU ms per token"))]]
            for length in arguments.lengths:
                table.append([f"{length:,}"])
                for way in WAYS:
                    point = evaluate(model, tokenizer, rows["text"], length, overlap=way != "rows")
                    label = f"trained on {config.max_position_embeddings:,} tokens, {way}"
                    points.setdefault(label, []).append((length, *point))
                    table[-1] += [f"{point[0]:.2f}", f"{point[1]:.2f}"]
        print(f"{folder}\n\n{markdown_table(table)}\n", flush=True)
    if arguments.output and points:
        draw(points, arguments.output)


def evaluate(
    model: GMLPPreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: Iterable[str], length: int, overlap: bool
) -> tuple[float, float]:
    """Return the perplexity of 15 % of the first `TOKENS` tokens in rows of `length`, and the CPU ms per token."""
    ids = tokens_of(texts, tokenizer, TOKENS)
    masked = torch.rand(ids.shape, generator=torch.Generator().manual_seed(1)) < 0.15
    start = time.process_time()
    loss = masked_loss(model, ids, masked, length, tokenizer.mask_token_id, overlap)
    return math.exp(loss), 1e3 * (time.process_time() - start) / len(ids)


def tokens_of(texts: Iterable[str], tokenizer: PreTrainedTokenizerBase, count: int) -> torch.Tensor:
    """Return the first `count` tokens of the texts, with separators between texts."""
    ids: list[int] = []
    for text in texts:
        ids += [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.sep_token_id]
        if len(ids) >= count:
            break
    return torch.tensor(ids[:count])


def rows_of(count: int, length: int, overlap: bool) -> Iterator[tuple[slice, slice]]:
    """Yield the rows of a text of `count` tokens, and the tokens of each row that are predicted there."""
    step, margin = (length // 2, length // 4) if overlap else (length, 0)
    for start in range(0, count, step):
        is_last = start + length >= count
        first, end = start + margin if start else 0, count if is_last else start + length - margin
        yield slice(start, start + length), slice(first, end)
        if is_last:
            break


@torch.no_grad()
def masked_loss(
    model: GMLPPreTrainedModel, ids: torch.Tensor, masked: torch.Tensor, length: int, mask: int, overlap: bool = False
) -> float:
    """Return the mean loss of masked tokens in rows of `length` tokens; the last may be shorter."""
    inputs, loss = ids.masked_fill(masked, mask), 0.0
    for row, predicted in rows_of(len(ids), length, overlap):
        is_predicted = torch.zeros_like(masked)
        is_predicted[predicted] = masked[predicted]
        logits = model(inputs[row][None]).logits[0, is_predicted[row]]
        loss += cross_entropy(logits, ids[is_predicted], reduction="sum").item()
    return loss / int(masked.sum())


@torch.no_grad()
def compare_with_pieces(
    model: GMLPPreTrainedModel, tokenizer: PreTrainedTokenizerBase, rows: datasets.Dataset, lengths: list[int]
) -> list[list[str]]:
    """Return the table of a classifier: accuracies from the first tokens of each text, and from the mean logits of its
    pieces, with the difference and its standard error."""

    def is_correct(length: int, pieces: bool = False) -> torch.Tensor:
        answers = []
        for text in rows["text"]:
            ids = tokenizer(text, truncation=True, max_length=length, return_overflowing_tokens=pieces)["input_ids"]
            logits = [model(torch.tensor([piece])).logits for piece in (ids if pieces else [ids])]
            answers.append(torch.cat(logits).mean(0).argmax())
        return (torch.stack(answers) == torch.tensor(rows["label"])).float()

    in_pieces = is_correct(min(lengths), pieces=True)
    table = [["tokens", "accuracy", "less that of pieces", "standard error"]]
    for length in lengths:
        correct = is_correct(length)
        difference = correct - in_pieces
        error = difference.std() / math.sqrt(len(difference))
        numbers = (f"{100 * correct.mean():.1f} %", f"{100 * difference.mean():+.1f}", f"{100 * error:.1f}")
        table.append([f"first {length:,}", *numbers])
    return [*table, [f"all, in pieces of {min(lengths):,}", f"{100 * in_pieces.mean():.1f} %", "", ""]]


def draw(points: dict[str, list[Point]], path: str) -> None:
    """Plot perplexity and time per token against the row length, one line per model and kind of rows."""
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(9, 3), constrained_layout=True)
    for panel, column, title in zip(panels, (1, 2), ("perplexity of masked tokens", "CPU ms per token")):
        for number, (name, rows) in enumerate(points.items()):
            style: dict = {"color": f"C{number // len(WAYS)}", "linestyle": ("-", "--")[number % len(WAYS)]}
            panel.plot([row[0] for row in rows], [row[column] for row in rows], marker="o", label=name, **style)
        lengths = [row[0] for row in next(iter(points.values()))]
        highest = max(row[column] for rows in points.values() for row in rows)
        panel.set(xscale="log", xlabel="row length in tokens", title=title, ylim=(0, 1.2 * highest))
        panel.set_xticks(lengths, [f"{length:,}" for length in lengths], fontsize=8)
        panel.minorticks_off()
        panel.grid(alpha=0.3)
    panels[0].legend(loc="lower left", fontsize=8)
    figure.savefig(path, dpi=150)
    plt.close(figure)


if __name__ == "__main__":
    main()
