"""Sentence encoders: similarity of pairs, classification with few labeled rows, search, speed, and long texts.

    python -m benchmarks.sentences checkpoints/gmlp-mini-sentences MINILM L3/model.onnx STATIC/model.safetensors tfidf \
        --stsb dev.csv --banking77 FOLDER --sst2 FOLDER --sets FOLDER FOLDER --squad train_flat.json more_flat.json

A model is the folder of a gMLP or a BERT, an ONNX file of a BERT, or a safetensors file with one table of token
vectors, both beside their tokenizer's files. A gMLP's embedding is its `pooler_output`, and a BERT's or a table's the
mean of the token vectors; all are scaled to length 1. "tfidf" (words and pairs of words), "words" and "characters"
(n-grams of 2 to 5) are baselines without training, and "bm25" is one for search.

Scores are Spearman's correlation of cosines on pairs of STS-B; accuracies of a linear classifier on 8, 16 and 64 rows
per class, each the mean of several random samples of the training rows; "nearest", the accuracy of the nearest training
text of banking77; and "search", the fraction of questions of SQuAD whose nearest paragraph is their own. With --select,
classifiers are scored on the training rows that were not sampled, to choose by them. On IMDB, texts of 400 and more
words are embedded at several lengths, and as the mean of pieces.
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas
import torch
from safetensors.numpy import load_file
from scipy.sparse import csr_array
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from tokenizers import Tokenizer
from transformers import AutoTokenizer

import hf_gmlp
from common.encoders import (
    BASELINES,
    CLASSIFIERS,
    Encode,
    Encoder,
    few_row_scores,
    read_banking77,
    sts_score,
)
from hf_gmlp import errors
from hf_gmlp.cards import markdown_table
from hf_gmlp.models.modeling_gmlp import pool_tokens

Sets = dict[str, tuple[pandas.DataFrame, pandas.DataFrame]]  # rows to train and to test on, by the name of the set

ROWS, LENGTHS, PIECE, LONG = (8, 16, 64), (128, 512, 2048, 8192), 128, 400
BM25 = "bm25"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help=f"encoders, or {', '.join([*BASELINES, BM25])}")
    parser.add_argument("--stsb", type=Path, help="csv file with the columns sentence1, sentence2 and score")
    parser.add_argument("--banking77", type=Path, help="folder with train.csv and test.csv: text, category")
    parser.add_argument("--sst2", type=Path, help="folder with train.jsonl and validation.jsonl: sentence, label")
    parser.add_argument(
        "--sets", type=Path, nargs="+", default=[], help="folders of train.csv and test.csv: text, label"
    )
    parser.add_argument("--squad", type=Path, nargs="+", default=[], help="files of flat SQuAD, read as one")
    parser.add_argument("--imdb", type=Path, help="folder with train.jsonl.gz and test.jsonl.gz: text, label")
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS, help="rows per class")
    parser.add_argument("--classifiers", nargs="+", default=["logistic:10"], help=f"{', '.join(CLASSIFIERS)}, with C")
    parser.add_argument("--nearest", action="store_true", help="also report the nearest training text of banking77")
    parser.add_argument("--select", action="store_true", help="score on the training rows that were not sampled")
    parser.add_argument("--speed", action="store_true", help="measure texts per CPU second, all models in turn")
    errors.run_command(lambda: compare(parser.parse_args()))


def compare(arguments: argparse.Namespace) -> None:
    """Print a table of scores and a table of lengths."""
    sets = read_sets(arguments)
    encoders = {name: open_encoder(name) for name in arguments.models}
    texts = next(iter(sets.values()))[0]["text"].tolist() if sets else []
    speeds = measure_speeds(encoders, texts) if arguments.speed else {}
    lengths: list[list[str]] = []
    header = ["model", "parameters", "texts per CPU second", "STS-B"]
    header += [f"{name}, {rows}" for name in sets for rows in arguments.rows]
    header += ["banking77, nearest"] * arguments.nearest + ["search"] * bool(arguments.squad)
    table = [header]
    for name, encode in encoders.items():
        title = Path(name).parent.name if Path(name).suffix else Path(name).name
        parameters = "" if isinstance(encode, str) else f"{encode.parameters / 1e6:.1f} M"
        speed = f"{speeds[name]:.0f}" if name in speeds else ""
        for classifier in arguments.classifiers:
            scores = scores_of(encode, classifier, sets, arguments)
            cells = ["" if np.isnan(score) else f"{score:.4f}" for score in scores]
            table.append([f"{title}, {classifier}", parameters, speed, *cells])
            print(table[-1], flush=True)
        if arguments.imdb and type(encode) is Encoder:
            scores_by_length = length_scores(encode, arguments.imdb)
            lengths += [["model", *scores_by_length]] if not lengths else []
            lengths.append([Path(name).name, *(f"{score:.3f}" for score in scores_by_length.values())])
    print("\n\n".join(markdown_table(rows) for rows in (table, lengths) if rows))


def scores_of(encode: Encode | str, classifier: str, sets: Sets, arguments: argparse.Namespace) -> list[float]:
    """Return the scores of a row of the table, in the order of its header; NaN where there is none."""
    scores = [np.nan if isinstance(encode, str) or not arguments.stsb else sts_score(encode, arguments.stsb)]
    for train, test in sets.values():
        if encode == BM25:
            scores += [np.nan] * len(arguments.rows)
        else:
            rows = (train, None if arguments.select else test, arguments.rows)
            scores += few_row_scores(encode, *rows, classifier=classifier)
    if arguments.nearest:
        scores.append(nearest_score(encode, *sets["banking77"]))
    if arguments.squad:
        scores.append(search_score(encode, arguments.squad))
    return scores


def read_sets(arguments: argparse.Namespace) -> Sets:
    """Return the rows to train and to test on of each set, with the columns "text" and "label"."""
    if arguments.nearest and not arguments.banking77:
        raise errors.InputError("--nearest needs the questions of --banking77: pass both.")
    sets: Sets = {}
    if arguments.banking77:
        sets["banking77"] = read_banking77(arguments.banking77)
    if arguments.sst2:
        parts = (pandas.read_json(arguments.sst2 / f"{part}.jsonl", lines=True) for part in ("train", "validation"))
        sets["SST-2"] = tuple(part.rename(columns={"sentence": "text"}) for part in parts)
    for folder in arguments.sets:
        train, test = (pandas.read_csv(folder / f"{part}.csv") for part in ("train", "test"))
        sets[folder.name] = train, test
    return sets


def open_encoder(name: str) -> "Encoder | StaticEncoder | str":
    """Return the encoder of a folder or file, or the name of a baseline."""
    if name in BASELINES or name == BM25:
        return name
    if Path(name).suffix == ".onnx":
        return OnnxEncoder(name)
    return StaticEncoder(name) if Path(name).suffix == ".safetensors" else Encoder(name)


class OnnxEncoder(Encoder):
    """Embeds texts with the ONNX file of a BERT of 512 positions, by ONNX Runtime with one thread."""

    def __init__(self, path: str) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(Path(path).parent)
        self.tokenizer.backend_tokenizer.no_truncation()
        self.tokenizer.backend_tokenizer.no_padding()
        # Of the extra `export`, which only this class needs.
        import onnx
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.parameters = sum(int(np.prod(weight.dims)) for weight in onnx.load(path).graph.initializer)
        self.device, self.length = torch.device("cpu"), 512

    def encode(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        inputs = {name: tensor.numpy() for name, tensor in batch.items()}
        states = next(output for output in self.session.run(None, inputs) if output.ndim == 3)  # [B, m, D]
        return pool_tokens(torch.from_numpy(states), batch["attention_mask"], "mean")


class StaticEncoder:
    """Embeds a text as the mean of the vectors of its tokens, from a table and the tokenizer.json beside it."""

    def __init__(self, path: str) -> None:
        (table,) = load_file(path).values()
        self.table, self.parameters = table.astype(np.float32), table.size
        self.tokenizer = Tokenizer.from_file(str(Path(path).with_name("tokenizer.json")))
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        """Return embeddings of length 1: [texts, D]"""
        ids = [encoding.ids or [0] for encoding in self.tokenizer.encode_batch(list(texts), add_special_tokens=False)]
        vectors = np.stack([self.table[row].mean(0) for row in ids])
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def measure_speeds(encoders: dict, texts: list[str], count: int = 512, rounds: int = 5) -> dict[str, float]:
    """Return the most texts per CPU second of each model over several rounds, in each of which all have their turn."""
    least: dict[str, float] = {}
    for name in list(encoders) * rounds:
        encode = encoders[name]
        if encode != BM25:
            encode = BASELINES[encode]().fit(texts).transform if isinstance(encode, str) else encode
            start = time.process_time()
            encode(texts[:count])
            least[name] = min(least.get(name, np.inf), time.process_time() - start)
    return {name: min(count, len(texts)) / seconds for name, seconds in least.items()}


def similarities(encode: Encode | str, texts: list[str], queries: list[str]) -> np.ndarray:
    """Return the similarity of each query to each text: cosines, or the scores of BM25. [queries, texts]"""
    if encode == BM25:
        return bm25(texts, queries)
    if isinstance(encode, str):
        vectorizer = BASELINES[encode]().fit(texts)
        return (vectorizer.transform(queries) @ vectorizer.transform(texts).T).toarray()
    return encode(queries) @ encode(texts).T


def bm25(texts: list[str], queries: list[str], k: float = 1.2, b: float = 0.75) -> np.ndarray:
    """Return the BM25 scores of texts for queries (Robertson and Zaragoza, 2009), with the words of tf-idf.
    [queries, texts]"""
    vectorizer = CountVectorizer()
    counts = csr_array(vectorizer.fit_transform(texts), dtype=float)
    lengths, documents = counts.sum(1), (counts > 0).sum(0)
    weights = counts.tocoo()
    norms = k * (1 - b + b * lengths[weights.row] / lengths.mean())
    weights.data *= (k + 1) / (weights.data + norms)
    frequencies = np.log1p((len(texts) - documents + 0.5) / (documents + 0.5))
    return (csr_array(vectorizer.transform(queries), dtype=float) * frequencies[None] @ weights.T).toarray()


def nearest_score(encode: Encode | str, train: pandas.DataFrame, test: pandas.DataFrame) -> float:
    """Return the accuracy of the label of the most similar training text."""
    scores = similarities(encode, train["text"].tolist(), test["text"].tolist())
    return float((train["label"].to_numpy()[scores.argmax(1)] == test["label"].to_numpy()).mean())


def search_score(encode: Encode | str, files: Sequence[Path]) -> float:
    """Return the fraction of questions whose most similar paragraph, of those of all files, is their own."""
    rows = [row for file in files for row in json.loads(file.read_text(encoding="utf-8"))["data"]]
    paragraphs = list(dict.fromkeys(row["context"] for row in rows))
    scores = similarities(encode, paragraphs, [row["question"] for row in rows])
    return float(np.mean([paragraphs[i] == row["context"] for i, row in zip(scores.argmax(1), rows)]))


def length_scores(encode: Encoder, folder: Path, count: int = 400) -> dict[str, float]:
    """Return the accuracy of logistic regression on `count` long texts, for embeddings of texts cut to each length and
    for the mean of pieces."""
    parts = [pandas.read_json(folder / f"{part}.jsonl.gz", lines=True) for part in ("train", "test")]
    long = [part[part["text"].str.split().str.len() >= LONG].sample(count, random_state=0) for part in parts]
    n, scores = encode.length, {}
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
