"""Simple methods to compare results with: frequencies, neighbors, bags of words. For pictures, see images.py.

    python paper/yardsticks.py tokens TOKENIZER TRAIN VALIDATION --max_seq_length 128   # masked language models
    python paper/yardsticks.py bytes TRAIN VALIDATION                                   # causal language models
    python paper/yardsticks.py sentences TRAIN VALIDATION                               # sentences and pairs
    python paper/yardsticks.py questions VALIDATION                                     # SQuAD

Files are of the kinds that the training scripts take.
"""

import argparse
import math
import re
import statistics
import sys
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "paper")]

import numpy as np  # noqa: E402
from corpus import read_rows  # noqa: E402
from scipy.sparse import coo_array  # noqa: E402

from hf_gmlp import errors  # noqa: E402

# A neighbor that was seen this many times counts as much as the frequency of the token.
BIGRAM_WEIGHT = 50.0


def token_losses(
    tokenizer: str | Path,
    train_file: str | Path,
    validation_file: str | Path,
    length: int,
    mlm_probability: float = 0.15,
) -> dict[str, float]:
    """
    Returns losses in nats per masked token of the evaluation of run_mlm.py: "unigram", each token predicted by its
    frequency in the training text (plus one), and "neighbors", by the tokens to its left and right as the model sees
    them: P(t | l, r) is proportional to P(t | l) P(t | r) / P(t), each by counting.
    """
    from transformers import AutoTokenizer

    from hf_gmlp.tasks.mlm.masking import MaskedOnce, MaskingCollator
    from hf_gmlp.tasks.text import TextArguments, load_texts, tokenize

    tokenizer = AutoTokenizer.from_pretrained(tokenizer)
    arguments = TextArguments(train_file=[str(train_file)], validation_file=[str(validation_file)])
    train, validation = tokenize(load_texts(arguments), tokenizer, length, arguments)
    # The masks of the evaluation with seed 0.
    labels, left, right = [], [], []
    for row in MaskedOnce(validation, MaskingCollator(tokenizer, mlm_probability)):
        places = np.flatnonzero(row["labels"] != -100)
        labels.append(row["labels"][places])
        left.append(row["input_ids"][places - 1])
        right.append(row["input_ids"][places + 1])
    labels, left, right = map(np.concatenate, (labels, left, right))

    size = len(tokenizer)
    sequences = [np.asarray(ids) for ids in train["input_ids"]]
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
    Returns the bits per byte of an n-gram model of bytes of an order from 1 (frequency) to 7 (what 64 bits hold). Each
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
    """Returns every n bytes in a row as one number, the last byte lowest."""
    data = np.frombuffer(text, dtype=np.uint8).astype(np.int64)
    total = np.zeros(len(data) - n + 1, dtype=np.int64)
    for place in range(n):
        total = (total << 8) + data[place : len(data) - n + 1 + place]
    return total


def look_up(keys: np.ndarray, values: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """Returns the values of some of the sorted keys, 0 for those that are missing."""
    places = np.minimum(np.searchsorted(keys, asked), len(keys) - 1)
    return np.where(keys[places] == asked, values[places], 0)


def sentence_yardstick(train_file: str | Path, validation_file: str | Path) -> float:
    """
    Returns the accuracy of logistic regression on words and pairs of neighboring words weighted by tf-idf, its strength
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


def repeated_word_rule(file: str | Path) -> float:
    """Returns the accuracy on the task of the repeated word of asking whether a word of 4 to 10 letters is shared."""
    rows = read_rows(Path(file))
    words = [[set(re.findall(r"\b[a-z]{4,10}\b", row[name])) for name in ("sentence1", "sentence2")] for row in rows]
    return statistics.fmean(bool(a & b) == row["label"] for (a, b), row in zip(words, rows))


def question_yardstick(validation_file: str | Path) -> dict[str, float]:
    """
    Returns exact match and F1 in percent, by SQuAD's rules, of answering with the sentence that is most like the
    question by tf-idf of words, and of saying that no question has an answer.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    from hf_gmlp.metrics.squad.squad import squad_v2_scores
    from hf_gmlp.tasks.qa.arguments import QAArguments
    from hf_gmlp.tasks.qa.questions import load_questions

    arguments = QAArguments(validation_file=[str(validation_file)], version_2_with_negative=True)
    rows = load_questions(arguments, ["validation"])["validation"]
    model = TfidfVectorizer().fit(rows["context"])
    sentences = {}
    for row in rows:
        parts = [part for part in re.split(r"(?<=[.!?])\s+", row["context"]) if part.strip()]
        likeness = (model.transform(parts) @ model.transform([row["question"]]).T).toarray()
        sentences[row["id"]] = parts[int(likeness.argmax())]
    references = {row["id"]: row["answers"]["text"] for row in rows}
    scores = {}
    for name, answers in (("sentence", sentences), ("no answer", dict.fromkeys(sentences, ""))):
        found = squad_v2_scores(answers, references, dict.fromkeys(sentences, 0.0))
        scores |= {f"{name}, exact match": found["exact"], f"{name}, F1": found["f1"]}
    return scores


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="kind", required=True)
    for kind, names in {
        "tokens": ("tokenizer", "train", "validation"),
        "bytes": ("train", "validation"),
        "sentences": ("train", "validation"),
        "questions": ("validation",),
    }.items():
        one = kinds.add_parser(kind)
        for name in names:
            one.add_argument(name)
    kinds.choices["tokens"].add_argument("--max_seq_length", type=int, default=128)
    kinds.choices["tokens"].add_argument("--mlm_probability", type=float, default=0.15)
    options = vars(parser.parse_args())
    errors.run(lambda: measure(**options))


def measure(kind: str, validation: str, train: str | None = None, **options):
    if kind == "questions":
        for name, score in question_yardstick(validation).items():
            print(f"{name}: {score:.1f}")
    elif kind == "tokens":
        as_masked = options["max_seq_length"], options["mlm_probability"]
        losses = token_losses(options["tokenizer"], train, validation, *as_masked)
        for name, loss in losses.items():
            print(f"{name:<10} loss {loss:.4f}, perplexity {math.exp(loss):.1f}")
    elif kind == "bytes":
        texts = [Path(path).read_bytes() for path in (train, validation)]
        for order in range(1, 8):
            print(f"{order}-gram of bytes: {bits_per_byte(*texts, order):.3f} bits per byte")
    else:
        print(f"tf-idf of words and pairs of words: accuracy {100 * sentence_yardstick(train, validation):.1f} %")


if __name__ == "__main__":
    main()
