"""Sentence encoders as benchmarks and examples use them, and their scores."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas
import torch
from scipy.stats import spearmanr
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC
from torch.nn import functional as F
from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import ModelOutput

from hf_gmlp import GMLPModel
from hf_gmlp.models.modeling_gmlp import pool_tokens

Encode = Callable[[list[str]], np.ndarray]

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
