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
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas
import torch
from safetensors.numpy import load_file
from scipy.sparse import csr_array
from scipy.stats import spearmanr
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC
from tokenizers import Tokenizer
from torch.nn import functional as F
from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import ModelOutput

import hf_gmlp
from hf_gmlp import GMLPModel, errors
from hf_gmlp.cards import markdown_table
from hf_gmlp.models.modeling_gmlp import pool_tokens

Encode = Callable[[list[str]], np.ndarray]
Sets = dict[str, tuple[pandas.DataFrame, pandas.DataFrame]]  # rows to train and to test on, by the name of the set

ROWS, LENGTHS, PIECE, LONG = (8, 16, 64), (128, 512, 2048, 8192), 128, 400
BM25 = "bm25"
BASELINES = {
    "tfidf": partial(TfidfVectorizer, ngram_range=(1, 2), sublinear_tf=True),
    "words": partial(TfidfVectorizer, sublinear_tf=True),
    "characters": partial(TfidfVectorizer, analyzer="char_wb", ngram_range=(2, 5), sublinear_tf=True),
}
# By name; C is the inverse of the strength of the regularization, which discriminant analysis estimates.
CLASSIFIERS = {
    "logistic": lambda c: LogisticRegression(C=c, max_iter=1000),
    "svm": lambda c: LinearSVC(C=c),
    "lda": lambda c: LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto"),
}


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
        self.parameters, self.device = self.model.num_parameters(), self.model.device
        self.length = self.model.config.max_position_embeddings

    def encode(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        outputs = self.model.eval()(**batch)
        if type(self.model).__name__ == "BertModel":
            return pool_tokens(outputs.last_hidden_state, batch["attention_mask"], "mean")
        return outputs.pooler_output

    def __call__(self, texts: Sequence[str], length: int | None = None, pieces: int | None = None) -> np.ndarray:
        """Return embeddings of length 1 [texts, D]: of the first `length` tokens (by default all that the model
        accepts), or the mean over pieces of `pieces` tokens. Both numbers include [CLS] and [SEP]."""
        most = (length or pieces or self.length) - 2
        ids = self.tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]
        parts = [(i, row[j : j + most]) for i, row in enumerate(ids) for j in range(0, max(len(row), 1), most)]
        if not pieces:
            parts = [(i, row[:most]) for i, row in enumerate(ids)]
        vectors = torch.from_numpy(embed(self.encode, self.tokenizer, [part for _, part in parts], self.device))
        sums = torch.zeros(len(ids), vectors.shape[1])
        sums.index_add_(0, torch.tensor([i for i, _ in parts]), F.normalize(vectors, dim=-1))
        return F.normalize(sums, dim=-1).numpy()


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


def sts_score(encode: Encode, path: Path) -> float:
    """Return Spearman's correlation of the cosines of pairs and their scores."""
    pairs = pandas.read_csv(path)
    first, second = (encode(pairs[column].tolist()) for column in ("sentence1", "sentence2"))
    return spearmanr((first * second).sum(1), pairs["score"]).statistic


def few_row_scores(
    encode: Encode | str,
    train: pandas.DataFrame,
    test: pandas.DataFrame | None,
    rows: Sequence[int],
    samples: int = 5,
    classifier: str = "logistic:10",
) -> list[float]:
    """Return the accuracy of a classifier trained on each number of `rows` per class (all, if it has fewer), the mean
    over `samples`.

    Args:
        encode: An encoder, or the name of a baseline.
        train: Rows with the columns "text" and "label".
        test: The rows to score. If None, the rows of `train` that are not in the sample.
        classifier: A name of `CLASSIFIERS`, and its C.
    """
    kind, _, strength = classifier.partition(":")
    samples_of = {
        count: [train.sample(frac=1, random_state=seed).groupby("label").head(count) for seed in range(samples)]
        for count in rows
    }
    # Embed only the rows that are used.
    sampled = {index for group in samples_of.values() for sample in group for index in sample.index}
    used = train if test is None else train.loc[sorted(sampled)]
    texts = pandas.concat([used, test])["text"].drop_duplicates().tolist()
    vectors = {} if isinstance(encode, str) else dict(zip(texts, encode(texts)))
    scores = []
    for count in rows:
        accuracies = []
        for sample in samples_of[count]:
            parts = (sample, train.drop(sample.index) if test is None else test)
            if isinstance(encode, str):
                vectorizer = BASELINES[encode]().fit(sample["text"])
                known, unknown = (vectorizer.transform(part["text"]) for part in parts)
            else:
                known, unknown = (np.stack([vectors[text] for text in part["text"]]) for part in parts)
            model = CLASSIFIERS[kind](float(strength or 1)).fit(known, sample["label"])
            accuracies.append(model.score(unknown, parts[1]["label"]))
        scores.append(float(np.mean(accuracies)))
    return scores


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
    lengths, found = counts.sum(1), (counts > 0).sum(0)
    weights = counts.tocoo()
    norms = k * (1 - b + b * lengths[weights.row] / lengths.mean())
    weights.data *= (k + 1) / (weights.data + norms)
    frequencies = np.log1p((len(texts) - found + 0.5) / (found + 0.5))
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
