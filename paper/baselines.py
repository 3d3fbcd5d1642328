"""Simple methods that a trained model should beat: counts of tokens and bytes, bags of words. Images: images.py."""

import math
import warnings
from pathlib import Path

import numpy as np
from scipy.sparse import coo_array

# A neighbor that was seen this many times counts as much as the frequency of the token.
BIGRAM_WEIGHT = 50.0


def token_losses(
    tokenizer: str | Path, train: str | Path, validation: str | Path, max_seq_length: int, mlm_probability: float = 0.15
) -> dict[str, float]:
    """
    Return losses in nats per masked token of the evaluation of run_mlm.py: "unigram", each token predicted by its
    frequency in the training text (plus one), and "neighbors", by counts of the tokens to its left and right as the
    model sees them: P(t | l, r) is proportional to P(t | l) P(t | r) / P(t).

    The arguments are those of run_mlm.py.
    """
    from transformers import AutoTokenizer

    from hf_gmlp.tasks.mlm.masking import MaskedOnce, MaskingCollator
    from hf_gmlp.tasks.text import TextArguments, load_texts, tokenize

    tokenizer = AutoTokenizer.from_pretrained(tokenizer)
    arguments = TextArguments(train_file=[str(train)], validation_file=[str(validation)])
    train_rows, rows = tokenize(load_texts(arguments), tokenizer, max_seq_length, arguments)
    # The masks of the evaluation with seed 0.
    labels, left, right = [], [], []
    for row in MaskedOnce(rows, MaskingCollator(tokenizer, mlm_probability)):
        positions = np.flatnonzero(row["labels"] != -100)
        labels.append(row["labels"][positions])
        left.append(row["input_ids"][positions - 1])
        right.append(row["input_ids"][positions + 1])
    labels, left, right = map(np.concatenate, (labels, left, right))

    size = len(tokenizer)
    sequences = [np.asarray(ids) for ids in train_rows["input_ids"]]
    first, second = np.concatenate([ids[:-1] for ids in sequences]), np.concatenate([ids[1:] for ids in sequences])
    frequency = np.bincount(second, minlength=size) + 1.0
    frequency /= frequency.sum()
    follows = coo_array((np.ones(len(first)), (first, second)), shape=(size, size)).tocsr()
    precedes = follows.T.tocsr()
    losses = []
    for start in range(0, len(labels), 1000):
        part = slice(start, start + 1000)
        logits = -np.log(frequency)[None]
        for counts, given in ((follows, left[part]), (precedes, right[part])):
            found = counts[given].toarray()
            found = (found + BIGRAM_WEIGHT * frequency) / (found.sum(axis=1, keepdims=True) + BIGRAM_WEIGHT)
            logits = logits + np.log(found)
        total = np.logaddexp.reduce(logits, axis=1)
        losses.append(total - logits[np.arange(len(total)), labels[part]])
    return {"unigram": float(-np.log(frequency[labels]).mean()), "neighbors": float(np.concatenate(losses).mean())}


def bits_per_byte(train: bytes, validation: bytes, order: int) -> float:
    """
    Return the bits per byte of an n-gram model of bytes of an order from 1 (frequency) to 7 (what 64 bits hold). Each
    order is smoothed by the one below as Witten and Bell do: what was followed by T different things is followed by
    something new with probability T over all it was followed by, plus T.
    """
    chances = np.full(len(validation), 1 / 256)
    for n in range(1, order + 1):
        seen, counts = np.unique(grams(train, n), return_counts=True)
        contexts, first, kinds = np.unique(seen >> 8, return_index=True, return_counts=True)
        totals = np.add.reduceat(counts, first)
        asked = grams(validation, n)
        count = look_up(seen, counts, asked)
        total, new = look_up(contexts, totals, asked >> 8), look_up(contexts, kinds, asked >> 8)
        # The first n - 1 bytes do not have a context of this length, and some contexts were never seen.
        known, lower = total > 0, chances[n - 1 :]
        better = (count + new * lower) / np.maximum(total + new, 1)
        chances[n - 1 :] = np.where(known, better, lower)
    return float(-np.log2(chances).mean())


def grams(text: bytes, n: int) -> np.ndarray:
    """Return every n bytes in a row as one number, the last byte lowest."""
    data = np.frombuffer(text, dtype=np.uint8).astype(np.int64)
    total = np.zeros(len(data) - n + 1, dtype=np.int64)
    for offset in range(n):
        total = (total << 8) + data[offset : len(data) - n + 1 + offset]
    return total


def look_up(keys: np.ndarray, values: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """Return the values of some of the sorted keys, 0 for those that are missing."""
    indices = np.minimum(np.searchsorted(keys, asked), len(keys) - 1)
    return np.where(keys[indices] == asked, values[indices], 0)


def sentence_accuracy(train_file: str | Path, validation_file: str | Path) -> float:
    """
    Return the accuracy of logistic regression on words and pairs of neighboring words weighted by tf-idf, its strength
    chosen by cross-validation on the training rows. The sentences of a pair are joined.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegressionCV
    from sklearn.pipeline import make_pipeline

    from hf_gmlp.tasks.glue.arguments import GlueArguments
    from hf_gmlp.tasks.glue.sentences import load_sentences

    data = load_sentences(GlueArguments(train_file=[str(train_file)], validation_file=[str(validation_file)]))
    parts = []
    for rows in data.splits.values():
        columns = [name for name in rows.column_names if name.startswith("sentence")]
        parts.append(([" ".join(row[name] for name in columns) for row in rows], list(rows["labels"])))
    model = make_pipeline(
        TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True),
        LogisticRegressionCV(Cs=(0.1, 1, 10, 100), cv=5, max_iter=1000, scoring="accuracy"),
    )
    with warnings.catch_warnings():
        # About attributes that are not read here.
        warnings.simplefilter("ignore", FutureWarning)
        model.fit(*parts[0])
    return float(model.score(*parts[1]))


def measure(kind: str, train: str, validation: str, tokenizer: str = "", **options):
    """Print the baselines of a kind: "tokens", "bytes" or "sentences"."""
    if kind == "tokens":
        for name, loss in token_losses(tokenizer, train, validation, **options).items():
            print(f"{name:<10} loss {loss:.4f}, perplexity {math.exp(loss):.1f}")
    elif kind == "bytes":
        texts = [Path(path).read_bytes() for path in (train, validation)]
        for order in range(1, 8):
            print(f"{order}-gram of bytes: {bits_per_byte(*texts, order):.3f} bits per byte")
    else:
        print(f"tf-idf of words and pairs of words: accuracy {100 * sentence_accuracy(train, validation):.1f} %")
