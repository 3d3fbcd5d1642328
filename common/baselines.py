"""Baselines that a trained model should beat: count models of tokens, and tf-idf for sentences."""

from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import coo_array

# Pseudo-counts that the unigram distribution has in a bigram distribution.
SMOOTHING = 50.0


def token_losses(
    tokenizer: str | Path, train: str | Path, validation: str | Path, max_seq_length: int, mlm_probability: float = 0.15
) -> dict[str, float]:
    """Measure count models on the masked tokens that run_mlm.py evaluates with seed 0. The arguments are its flags.

    The unigram model predicts each token t by its frequency in the training text, plus one. The bigram-context model
    uses the neighboring tokens l and r in the masked input: P(t | l, r) ~ P(t | l) P(t | r) / P(t).

    Returns:
        The losses "unigram" and "bigram_context" in nats per masked token.
    """
    from transformers import AutoTokenizer

    from hf_gmlp.data.documents import load_texts
    from hf_gmlp.data.source import Source
    from hf_gmlp.tasks.language_modeling import tokenize
    from hf_gmlp.tasks.mlm import MaskingCollator, mask_once

    tokens = AutoTokenizer.from_pretrained(tokenizer)
    source = Source({"train": [str(train)], "validation": [str(validation)]})
    train_rows: Any
    train_rows, rows = tokenize(load_texts(source), tokens, max_seq_length)
    masked = []
    for row in mask_once(rows, MaskingCollator(tokens, mlm_probability)):
        indices = np.flatnonzero(row["labels"] != -100)
        masked.append((row["labels"][indices], row["input_ids"][indices - 1], row["input_ids"][indices + 1]))
    labels, left, right = map(np.concatenate, zip(*masked))

    size = len(tokens)
    sequences = [np.asarray(ids) for ids in train_rows["input_ids"]]
    first, second = np.concatenate([ids[:-1] for ids in sequences]), np.concatenate([ids[1:] for ids in sequences])
    unigram = np.bincount(second, minlength=size) + 1.0
    unigram /= unigram.sum()
    following = coo_array((np.ones(len(first)), (first, second)), shape=(size, size)).tocsr()
    preceding = following.T.tocsr()
    losses = []
    # Process a thousand tokens at a time to save memory, since each needs a row of probabilities.
    for start in range(0, len(labels), 1000):
        part = slice(start, start + 1000)
        logits = -np.log(unigram)[None]
        for bigrams, neighbors in ((following, left[part]), (preceding, right[part])):
            counts = bigrams[neighbors].toarray()
            logits = logits + np.log((counts + SMOOTHING * unigram) / (counts.sum(axis=1, keepdims=True) + SMOOTHING))
        losses.append(np.logaddexp.reduce(logits, axis=1) - logits[np.arange(len(logits)), labels[part]])
    return {"unigram": float(-np.log(unigram[labels]).mean()), "bigram_context": float(np.concatenate(losses).mean())}


def tfidf_classifier() -> Any:
    """Return logistic regression on tf-idf of words: `fit(texts, labels)`.

    Cross-validation on the training rows chooses C and whether to include word bigrams.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline

    model = make_pipeline(TfidfVectorizer(sublinear_tf=True), LogisticRegression(max_iter=1000))
    choices = {"tfidfvectorizer__ngram_range": [(1, 1), (1, 2)], "logisticregression__C": [0.1, 1, 10, 100]}
    return GridSearchCV(model, choices, cv=3, scoring="accuracy")
