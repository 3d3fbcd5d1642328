"""Sentence encoders: similarity of pairs, classification with few labeled rows, and long texts.

    python -m benchmarks.sentences checkpoints/gmlp-mini-sentences MINILM tfidf --stsb dev.csv --banking77 FOLDER \
        --sst2 FOLDER --imdb FOLDER

A gMLP's embedding is its `pooler_output`, and that of a BERT the mean of its token vectors; "tfidf" is the baseline.
All are scaled to length 1. Scores are Spearman's correlation of cosines on pairs of STS-B, and accuracies of logistic
regression (C = 10) on 8, 16 and 64 rows per class of banking77 and SST-2, each the mean of several random samples of
the training rows. On IMDB, texts of 400 and more words are embedded at several lengths, and as the mean of pieces.
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas
import torch
from scipy.stats import spearmanr
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from torch.nn import functional as F
from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import ModelOutput

import hf_gmlp
from hf_gmlp import GMLPModel, errors
from hf_gmlp.cards import markdown_table
from hf_gmlp.models.modeling_gmlp import pool_tokens

ROWS, LENGTHS, PIECE, LONG = (8, 16, 64), (128, 512, 2048, 8192), 128, 400
TFIDF = "tfidf"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help=f"folders of encoders, or {TFIDF}")
    parser.add_argument("--stsb", type=Path, help="csv file with the columns sentence1, sentence2 and score")
    parser.add_argument("--banking77", type=Path, help="folder with train.csv and test.csv: text, category")
    parser.add_argument("--sst2", type=Path, help="folder with train.jsonl and validation.jsonl: sentence, label")
    parser.add_argument("--imdb", type=Path, help="folder with train.jsonl.gz and test.jsonl.gz: text, label")
    errors.run_command(lambda: compare(parser.parse_args()))


def compare(arguments: argparse.Namespace) -> None:
    """Print a table of scores and a table of lengths."""
    sets: dict[str, tuple[pandas.DataFrame, pandas.DataFrame]] = {}
    if arguments.banking77:
        sets["banking77"] = read_banking77(arguments.banking77)
    if arguments.sst2:
        parts = (pandas.read_json(arguments.sst2 / f"{part}.jsonl", lines=True) for part in ("train", "validation"))
        sets["SST-2"] = tuple(part.rename(columns={"sentence": "text"}) for part in parts)
    lengths: list[list[str]] = []
    table = [["model", "STS-B", *(f"{name}, {rows}" for name in sets for rows in ROWS)]]
    for name in arguments.models:
        encode = None if name == TFIDF else Encoder(name)
        row = [Path(name).name, f"{sts_score(encode, arguments.stsb):.4f}" if arguments.stsb and encode else ""]
        row += [f"{score:.4f}" for train, test in sets.values() for score in few_row_scores(encode, train, test, ROWS)]
        table.append(row)
        if arguments.imdb and encode is not None:
            scores = length_scores(encode, arguments.imdb)
            lengths += [["model", *scores]] if not lengths else []
            lengths.append([Path(name).name, *(f"{score:.3f}" for score in scores.values())])
    print("\n\n".join(markdown_table(rows) for rows in (table, lengths) if rows))


def read_banking77(folder: Path) -> tuple[pandas.DataFrame, pandas.DataFrame]:
    """Return the rows to train and to test on, with the columns "text" and "label"."""
    train, test = (pandas.read_csv(folder / f"{part}.csv") for part in ("train", "test"))
    return train.set_axis(["text", "label"], axis=1), test.set_axis(["text", "label"], axis=1)


def collate(tokenizer: PreTrainedTokenizerBase, ids: Sequence[list[int]]) -> dict[str, torch.Tensor]:
    """Return a batch of texts with [CLS], [SEP] and padding."""
    rows = [[tokenizer.cls_token_id, *row, tokenizer.sep_token_id] for row in ids]
    batch = tokenizer.pad({"input_ids": rows}, return_tensors="pt")
    return {name: batch[name] for name in ("input_ids", "attention_mask")}


@torch.no_grad()
def embed(
    encode: Callable[[dict[str, torch.Tensor]], torch.Tensor],
    tokenizer: PreTrainedTokenizerBase,
    ids: Sequence[list[int]],
    device: torch.device | str = "cpu",
) -> np.ndarray:
    """Return `encode(batch)` [B, D] for all texts, in batches of similar length: [texts, D]"""
    order, vectors, start = np.argsort([-len(row) for row in ids], kind="stable"), [], 0
    while start < len(order):
        end = start + max(1, 4096 // (len(ids[order[start]]) + 2))
        batch = collate(tokenizer, [ids[i] for i in order[start:end]])
        vectors.append(encode({name: tensor.to(device) for name, tensor in batch.items()}).float().cpu().numpy())
        start = end
    return np.concatenate(vectors)[np.argsort(order)]


class Encoder:
    """Embeds texts with a gMLP or a BERT, from a folder or in memory."""

    def __init__(self, model: PreTrainedModel | str, tokenizer: PreTrainedTokenizerBase | None = None) -> None:
        self.model = AutoModel.from_pretrained(model) if isinstance(model, str) else model
        self.tokenizer = AutoTokenizer.from_pretrained(model) if tokenizer is None else tokenizer
        self.tokenizer.backend_tokenizer.no_truncation()
        self.tokenizer.backend_tokenizer.no_padding()

    def encode(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        outputs = self.model.eval()(**batch)
        if type(self.model).__name__ == "BertModel":
            return pool_tokens(outputs.last_hidden_state, batch["attention_mask"], "mean")
        return outputs.pooler_output

    def __call__(self, texts: Sequence[str], length: int | None = None, pieces: int | None = None) -> np.ndarray:
        """Return embeddings of length 1 [texts, D]: of the first `length` tokens (by default all that the model
        accepts), or the mean over pieces of `pieces` tokens. Both numbers include [CLS] and [SEP]."""
        most = (length or pieces or self.model.config.max_position_embeddings) - 2
        ids = self.tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]
        parts = [(i, row[j : j + most]) for i, row in enumerate(ids) for j in range(0, max(len(row), 1), most)]
        if not pieces:
            parts = [(i, row[:most]) for i, row in enumerate(ids)]
        vectors = torch.from_numpy(embed(self.encode, self.tokenizer, [part for _, part in parts], self.model.device))
        sums = torch.zeros(len(ids), vectors.shape[1])
        sums.index_add_(0, torch.tensor([i for i, _ in parts]), F.normalize(vectors, dim=-1))
        return F.normalize(sums, dim=-1).numpy()


class MeanPooledBert(BertModel):
    """The baseline: BERT with its pooler applied to the mean of all tokens."""

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> ModelOutput:
        outputs = super().forward(input_ids, attention_mask)
        outputs.pooler_output = self.pooler(pool_tokens(outputs.last_hidden_state, attention_mask, "mean")[:, None])
        return outputs


@torch.no_grad()
def make_bert(model: GMLPModel, layers: int) -> MeanPooledBert:
    """Return a BERT with the token vectors, final norm and map of a model, whose layers do not change anything yet."""
    sizes = {name: getattr(model.config, name) for name in ("vocab_size", "hidden_size", "intermediate_size")}
    sizes |= {"num_hidden_layers": layers, "num_attention_heads": 4, "max_position_embeddings": 1024}
    bert = MeanPooledBert(BertConfig(**sizes, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
    outputs = [layer for block in bert.encoder.layer for layer in (block.attention.output, block.output)]
    for weight in (weight for output in outputs for weight in output.dense.parameters()):
        weight.zero_()
    bert.embeddings.position_embeddings.weight.zero_()
    bert.embeddings.token_type_embeddings.weight.zero_().requires_grad_(False)
    bert.embeddings.word_embeddings.load_state_dict(model.embeddings.word_embeddings.state_dict())
    outputs[-1].LayerNorm.load_state_dict(model.norm.state_dict())
    bert.pooler.load_state_dict(model.get_submodule("pooler").state_dict())
    return bert.to(model.device)


def sts_score(encode: Callable[[list[str]], np.ndarray], path: Path) -> float:
    """Return Spearman's correlation of the cosines of pairs and their scores."""
    pairs = pandas.read_csv(path)
    first, second = (encode(pairs[column].tolist()) for column in ("sentence1", "sentence2"))
    return spearmanr((first * second).sum(1), pairs["score"]).statistic


def few_row_scores(
    encode: Callable[[list[str]], np.ndarray] | None,
    train: pandas.DataFrame,
    test: pandas.DataFrame,
    rows: Sequence[int],
    samples: int = 5,
) -> list[float]:
    """Return the accuracy of logistic regression on each number of `rows` per class (all, if it has fewer), the mean
    over `samples`. The columns are "text" and "label". Without `encode`, the inputs are tf-idf."""
    if encode is not None:
        inputs, test_inputs = encode(train["text"].tolist()), encode(test["text"].tolist())
    scores = []
    for count in rows:
        accuracies = []
        for seed in range(samples):
            sample = train.sample(frac=1, random_state=seed).groupby("label").head(count)
            if encode is None:
                tfidf = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True).fit(sample["text"])
                known, unknown = tfidf.transform(sample["text"]), tfidf.transform(test["text"])
            else:
                known, unknown = inputs[sample.index], test_inputs
            classifier = LogisticRegression(C=10, max_iter=1000).fit(known, sample["label"])
            accuracies.append(classifier.score(unknown, test["label"]))
        scores.append(float(np.mean(accuracies)))
    return scores


def length_scores(encode: Encoder, folder: Path, count: int = 400) -> dict[str, float]:
    """Return the accuracy of logistic regression on `count` long texts, for embeddings of texts cut to each length and
    for the mean of pieces."""
    parts = [pandas.read_json(folder / f"{part}.jsonl.gz", lines=True) for part in ("train", "test")]
    long = [part[part["text"].str.split().str.len() >= LONG].sample(count, random_state=0) for part in parts]
    n, scores = encode.model.config.max_position_embeddings, {}
    ways = {f"{length:,} tokens": {"length": length} for length in LENGTHS} | {f"pieces of {PIECE}": {"pieces": PIECE}}
    for way, options in ways.items():
        if max(options.values()) > n:
            if encode.model.config.model_type != "gmlp":
                scores[way] = float("nan")
                continue
            hf_gmlp.extend_context(encode.model, encode.tokenizer, max(options.values()))
        train, test = (encode(part["text"].tolist(), **options) for part in long)
        classifier = LogisticRegression(C=10, max_iter=1000).fit(train, long[0]["label"])
        scores[way] = classifier.score(test, long[1]["label"])
    return scores


if __name__ == "__main__":
    main()
