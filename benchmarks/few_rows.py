"""Classifiers of few labeled rows: the measurements behind the defaults of `hf-gmlp classify` (docs/log/classify.md).

    python -m benchmarks.few_rows classifiers checkpoints/gmlp-mini-sentences SET ... --output classifiers.csv
    python -m benchmarks.few_rows intervals checkpoints/gmlp-mini-sentences SET ... --output intervals.csv
    python -m benchmarks.few_rows texts checkpoints/gmlp-mini-sentences SET ... --sizes 500 2000 --output texts.csv
    python -m benchmarks.few_rows pairs checkpoints/gmlp-mini-sentences rte stsb/dev.csv --output pairs.csv
    python -m benchmarks.few_rows columns checkpoints/gmlp-mini-sentences 20ng --output columns.csv
    python -m benchmarks.few_rows pictures checkpoints/gmlp-mini-cifar10 FOLDER ... --output pictures.csv

A SET is a folder with train.csv or train.jsonl, and test or validation likewise: the first column is the text, and the
last one the label. A FOLDER has one folder of pictures per class. Each result is a line of the output file, and is
not measured again when the command is repeated.
"""

import argparse
import csv
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas
import torch
from PIL import Image
from scipy.special import log_softmax
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from transformers import AutoImageProcessor, AutoModelForImageClassification

from common.encoders import Encoder, embed
from common.machine import circumstances
from common.pictures import colors
from hf_gmlp import errors
from hf_gmlp.metrics.calibration import (
    CROSS_VALIDATED,
    accuracy_interval,
    calibrate,
    calibration_error,
    compare,
    fit_temperature,
)

ROWS, SAMPLES, MOST = (4, 8, 16, 64), 3, 3000
STRENGTHS, FOLDS = (0.01, 0.1, 1.0, 10.0, 100.0), 5
# Below this number, today's rule applies no temperature.
MIN_CALIBRATION_ROWS = 100
Set = tuple[pandas.DataFrame, pandas.DataFrame]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measurement", choices=MEASUREMENTS)
    parser.add_argument("model", help="folder of a sentence encoder, or of an image classifier")
    parser.add_argument("data", nargs="+", type=Path)
    parser.add_argument("--output", type=Path, required=True, help="csv file of the results, which is continued")
    parser.add_argument("--sizes", nargs="+", type=int, help="rows per class; for texts and columns, rows in all")
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(SAMPLES)), help="one sample each")
    parser.add_argument("--tokens", type=int, default=512, help="most tokens of a text that are read")
    errors.run_command(lambda: measure(parser.parse_args()))


def measure(arguments: argparse.Namespace) -> None:
    print(circumstances("transformers", "scikit-learn"))
    results = Results(arguments.output)
    MEASUREMENTS[arguments.measurement](arguments, results)
    print(pandas.read_csv(arguments.output).to_string(max_rows=60))


class Results:
    """A csv file that grows by one result at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.known = pandas.read_csv(path, dtype=str).to_dict("records") if path.exists() else []

    def __contains__(self, keys: dict[str, object]) -> bool:
        return any(all(row.get(name) == str(value) for name, value in keys.items()) for row in self.known)

    def add(self, **values: object) -> None:
        new = not self.path.exists()
        with self.path.open("a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(values))
            if new:
                writer.writeheader()
            writer.writerow(values)


# Data


def read_set(folder: Path) -> Set:
    """Return the rows to train and to test on, with the columns "text" and "label", a class id."""
    parts = []
    for names in (("train",), ("test", "validation")):
        path = next(
            folder / f"{name}{end}"
            for name in names
            for end in (".csv", ".jsonl")
            if (folder / f"{name}{end}").exists()
        )
        table = pandas.read_csv(path) if path.suffix == ".csv" else pandas.read_json(path, lines=True)
        parts.append(table.iloc[:, [0, -1]].set_axis(["text", "label"], axis=1))
    return number(*parts)


def number(train: pandas.DataFrame, test: pandas.DataFrame) -> Set:
    """Replace the labels by class ids."""
    classes = np.unique(train["label"])
    return tuple(
        part.assign(label=np.searchsorted(classes, part["label"])).reset_index(drop=True) for part in (train, test)
    )


def sample(train: pandas.DataFrame, rows: int | None, seed: int) -> pandas.DataFrame:
    """Return `rows` of each class (all, if it has fewer), or at most `MOST` rows in all, at random."""
    shuffled = train.sample(frac=1, random_state=seed)
    return shuffled.head(MOST) if rows is None else shuffled.groupby("label").head(rows)


def embed_texts(
    encoder: Encoder, texts: Sequence[str], second: Sequence[str] | None = None, tokens: int = 512
) -> np.ndarray:
    """Return the `pooler_output` [rows, D] of the first `tokens` tokens of texts, or of [CLS] a [SEP] b [SEP]."""
    ids = encoder.tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]
    if second is not None:
        others = encoder.tokenizer(list(second), add_special_tokens=False, verbose=False)["input_ids"]
        ids = [[*row, encoder.tokenizer.sep_token_id, *other] for row, other in zip(ids, others)]
    return embed(encoder.encode, encoder.tokenizer, [row[: tokens - 2] for row in ids])


# Classifiers


def unit(inputs: np.ndarray) -> np.ndarray:
    return inputs / np.linalg.norm(inputs, axis=1, keepdims=True)


class Regressions:
    """Logistic regressions of several strengths, and their cross-validated logits.

    Args:
        held_out_inputs: The rows as they are scaled when they are predicted, if that differs.

    Attributes:
        logits: By strength, [rows, classes], each row from a regression that was not fitted to it.
        test_logits: By strength, [test rows, classes], from a regression on all rows.
    """

    def __init__(
        self,
        inputs: np.ndarray,
        labels: np.ndarray,
        test_inputs: np.ndarray,
        strengths: Sequence[float] = STRENGTHS,
        held_out_inputs: np.ndarray | None = None,
    ) -> None:
        self.labels, self.classes = labels, int(labels.max()) + 1
        # The same fraction of each class in each fold.
        folds = np.empty(len(labels), dtype=int)
        folds[np.argsort(labels, kind="stable")] = np.arange(len(labels)) % FOLDS
        self.logits = {strength: np.empty((len(labels), self.classes)) for strength in strengths}
        others = inputs if held_out_inputs is None else held_out_inputs
        for held_out in (folds == fold for fold in np.unique(folds)):
            fitted = self._fit(inputs[~held_out], labels[~held_out], others[held_out], strengths)
            for strength, logits in fitted.items():
                self.logits[strength][held_out] = logits
        self.test_logits = self._fit(inputs, labels, test_inputs, strengths)

    def _fit(
        self, inputs: np.ndarray, labels: np.ndarray, others: np.ndarray, strengths: Sequence[float]
    ) -> dict[float, np.ndarray]:
        """Return the logits of other rows. A class without rows is a hundred times less probable than any other."""
        present, result = np.unique(labels), {}
        model = LogisticRegression(max_iter=1000, warm_start=True)
        for strength in sorted(strengths):
            logits = np.zeros((others.shape[0], self.classes))
            if len(present) > 1:
                known = model.set_params(C=strength).fit(inputs, labels).decision_function(others)
                known = np.stack([-known, known], axis=1) / 2 if len(present) == 2 else known
                logits[:] = known.min(axis=1, keepdims=True) - np.log(100)
                logits[:, present] = known
            else:
                logits[:, present] = np.log(len(labels) + 1.0)
            result[strength] = logits
        return result

    def strength(self, calibrated: bool = False) -> float:
        """Return the strength with the smallest cross-validated loss, on request at its best temperature."""
        losses = {}
        for strength, logits in self.logits.items():
            losses[strength] = log_loss(
                logits / (fit_temperature(logits, self.labels) if calibrated else 1), self.labels
            )
        return min(losses, key=lambda strength: losses[strength])


def log_loss(logits: np.ndarray, labels: np.ndarray) -> float:
    return -float(log_softmax(logits, axis=1)[np.arange(len(labels)), labels].mean())


def accuracy(logits: np.ndarray, labels: np.ndarray) -> float:
    return float((logits.argmax(axis=1) == labels).mean())


# Measurements


def measure_classifiers(arguments: argparse.Namespace, results: Results) -> None:
    """Measure scalings of the embeddings, rules for the strength, and temperatures."""
    encoder = Encoder(arguments.model)
    for folder in arguments.data:
        train, test = read_set(folder)
        inputs, test_inputs = (embed_texts(encoder, part["text"]) for part in (train, test))
        lengths = np.linalg.norm(inputs, axis=1)
        print(f"{folder.name}: lengths {lengths.mean():.2f}, standard deviation {lengths.std():.2f}", flush=True)
        for rows in arguments.sizes or (*ROWS, None):
            # There is only one sample of all rows.
            for seed in arguments.seeds[: None if rows else 1]:
                keys = {"set": folder.name, "rows": rows or "all", "sample": seed}
                chosen = sample(train, rows, seed)
                if rows and len(chosen) > MOST:
                    continue
                known, labels = inputs[chosen.index], chosen["label"].to_numpy()
                mean = np.linalg.norm(known, axis=1).mean()
                a, b = known / mean, test_inputs / mean
                # Inputs of the fit, of the test rows, and of the training rows that are held out.
                scaled = {"raw": (known, test_inputs, known), "length 1": (unit(known), unit(b), unit(known))}
                scaled |= {"mean length 1": (a, b, a), "fitted to length 1": (unit(known), b, a)}
                for scaling, (fit_inputs, *others) in scaled.items():
                    if keys | {"scaling": scaling} in results:
                        continue
                    fitted = Regressions(fit_inputs, labels, others[0], held_out_inputs=others[1])
                    rules = {"C = 10": 10.0, "loss": fitted.strength(), "calibrated loss": fitted.strength(True)}
                    for rule, strength in rules.items():
                        scores = probability_scores(fitted, strength, test["label"].to_numpy())
                        results.add(**keys, n=len(labels), scaling=scaling, rule=rule, C=strength, **scores)


def probability_scores(fitted: Regressions, strength: float, labels: np.ndarray) -> dict[str, float]:
    """Return scores on the test rows, with and without a temperature; "before" and "after" are cross-fitted errors."""
    logits, test_logits = fitted.logits[strength], fitted.test_logits[strength]
    temperature, before, after = calibrate(logits, fitted.labels)
    return {
        "accuracy": accuracy(test_logits, labels),
        "ece": calibration_error(test_logits, labels),
        "loss": log_loss(test_logits, labels),
        "temperature": temperature,
        "before": before,
        "after": after,
        "scaled_ece": calibration_error(test_logits / temperature, labels),
        "scaled_loss": log_loss(test_logits / temperature, labels),
    }


def measure_intervals(arguments: argparse.Namespace, results: Results) -> None:
    """Measure how often the interval of a cross-validated accuracy holds the accuracy on the test rows."""
    encoder = Encoder(arguments.model)
    for folder in arguments.data:
        train, test = read_set(folder)
        inputs, test_inputs = (unit(embed_texts(encoder, part["text"])) for part in (train, test))
        for rows in arguments.sizes or (1, 2, 3, 4, 8):
            for seed in arguments.seeds:
                keys = {"set": folder.name, "rows": rows, "sample": seed}
                if keys in results:
                    continue
                chosen = sample(train, rows, seed)
                fitted = Regressions(inputs[chosen.index], chosen["label"].to_numpy(), test_inputs, [10.0])
                right = int((fitted.logits[10.0].argmax(axis=1) == fitted.labels).sum())
                low, high = accuracy_interval(right, len(chosen), CROSS_VALIDATED)
                score = accuracy(fitted.test_logits[10.0], test["label"].to_numpy())
                values = {"cross_validated": right / len(chosen), "low": low, "high": high, "accuracy": score}
                results.add(**keys, n=len(chosen), **values, holds=low <= score <= high)


def measure_texts(arguments: argparse.Namespace, results: Results) -> None:
    """Compare fine-tuning with the classifier on frozen embeddings, on the same rows."""
    encoder = Encoder(arguments.model)
    sets = {folder: read_set(folder) for folder in arguments.data}
    vectors: dict[Path, list[np.ndarray]] = {}
    for rows in arguments.sizes or (500, 1000, 2000, 3000):
        for (folder, (train, test)), seed in ((item, seed) for item in sets.items() for seed in arguments.seeds):
            keys = {"set": folder.name, "rows": rows, "sample": seed}
            if keys in results:
                continue
            if folder not in vectors:
                texts = (embed_texts(encoder, part["text"], tokens=arguments.tokens) for part in (train, test))
                vectors[folder] = [unit(inputs) for inputs in texts]
            (inputs, test_inputs), labels = vectors[folder], test["label"].to_numpy()
            chosen = train.sample(frac=1, random_state=seed).head(rows)
            start = cpu_seconds()
            fitted = Regressions(inputs[chosen.index], chosen["label"].to_numpy(), test_inputs)
            frozen = fitted.test_logits[fitted.strength()].argmax(axis=1) == labels
            frozen_seconds = cpu_seconds() - start
            tuned, seconds = fine_tune_texts(arguments.model, chosen, test, seed, arguments.tokens)
            results.add(
                **keys,
                n=len(chosen),
                frozen_c10=accuracy(fitted.test_logits[10.0], labels),
                **differences(frozen, tuned),
                frozen_seconds=frozen_seconds,
                seconds=seconds,
                noticed=noticed(frozen, tuned, len(chosen) // 10),
            )


def differences(frozen: np.ndarray, tuned: np.ndarray) -> dict[str, object]:
    """Return two accuracies and the 95 % interval of their difference, in points, from [rows] right or wrong."""
    result = compare(tuned, frozen)
    scores: dict[str, object] = {"frozen": float(frozen.mean()), "tuned": float(tuned.mean())}
    return scores | {"difference": result.difference, "low": result.low, "high": result.high}


def noticed(frozen: np.ndarray, tuned: np.ndarray, rows: int) -> float:
    """Return in which fraction of 1,000 random parts of the test rows fine-tuning is ahead by more than chance.

    Args:
        rows: Rows of such a part, which stands for a tenth of the training rows that is held out.
    """
    random = np.random.default_rng(0)
    parts = (random.integers(len(frozen), size=rows) for _ in range(1000))
    return float(np.mean([compare(tuned[part], frozen[part]).low > 0 for part in parts]))


def fine_tune_texts(
    model: str, train: pandas.DataFrame, test: pandas.DataFrame, seed: int, tokens: int
) -> tuple[np.ndarray, float]:
    """Run `hf-gmlp classify` with --fine_tune true, and return which test rows are right, and the CPU seconds."""
    with tempfile.TemporaryDirectory() as folder:
        for name, rows in (("train", train), ("test", test)):
            rows.assign(label="class " + rows["label"].astype(str)).to_csv(f"{folder}/{name}.csv", index=False)
        flags = ["classify", model, f"{folder}/train.csv", "--output", f"{folder}/out", "--fine_tune", "true"]
        flags += ["--validation_data", f"{folder}/test.csv", "--max_seq_length", str(tokens), "--calibrate", "false"]
        seconds = run(*flags, "--seed", str(seed))
        table = pandas.read_csv(f"{folder}/out/eval_predictions.csv")
    if not (table["label"] == "class " + test["label"].astype(str).to_numpy()).all():
        raise ValueError("the rows of eval_predictions.csv are not those of the test file")
    return (table["prediction"] == table["label"]).to_numpy(), seconds


def run(*flags: str) -> float:
    """Run hf-gmlp in a process of its own, and return its CPU seconds, of which imports are about 8."""
    start = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "hf_gmlp_cli", *flags]
    process = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": os.getcwd()})
    if process.returncode:
        raise RuntimeError(process.stderr[-2000:])
    end = resource.getrusage(resource.RUSAGE_CHILDREN)
    return end.ru_utime + end.ru_stime - start.ru_utime - start.ru_stime


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def measure_pairs(arguments: argparse.Namespace, results: Results) -> None:
    """Classify pairs: entailment (a folder of RTE), and paraphrases (pairs of STS-B with a score of at least 3)."""
    encoder = Encoder(arguments.model)
    for path in arguments.data:
        if path.is_dir():
            tables = [pandas.read_json(path / f"{name}.jsonl", lines=True) for name in ("train", "validation")]
            both, test_rows = pandas.concat(tables, ignore_index=True), len(tables[1])
        else:
            table = pandas.read_csv(path)
            both, test_rows = table.assign(label=(table["score"] >= 3).astype(int)), len(table) // 3
        vectors = pair_vectors(encoder, both["sentence1"].tolist(), both["sentence2"].tolist())
        for rows in arguments.sizes or (8, 64, None):
            # A set with a file of test rows has one sample of all rows; of other pairs, a third is held out at random.
            for seed in arguments.seeds[: None if rows or path.is_file() else 1]:
                order = both.sample(frac=1, random_state=seed) if path.is_file() else both
                keys = {"set": path.stem, "rows": rows or "all", "sample": seed}
                add_scores(results, keys, vectors, order[:-test_rows], order[-test_rows:], rows)


def pair_vectors(encoder: Encoder, first: list[str], second: list[str]) -> dict[str, np.ndarray]:
    """Return inputs of a classifier of pairs: of the pair, of both embeddings, and tf-idf as a sparse matrix."""
    a, b = (unit(embed_texts(encoder, texts)) for texts in (first, second))
    joined = [f"{x} {y}" for x, y in zip(first, second)]
    return {
        "pair": unit(embed_texts(encoder, first, second)),
        "joined by a space": unit(embed_texts(encoder, joined)),
        "second alone": b,
        "both, their product and distance": np.concatenate([a, b, a * b, np.abs(a - b)], axis=1),
        "cosine": (a * b).sum(axis=1, keepdims=True),
        "tf-idf": TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True).fit_transform(joined),
    }


def add_scores(
    results: Results,
    keys: dict[str, object],
    vectors: dict[str, np.ndarray],
    train: pandas.DataFrame,
    test: pandas.DataFrame,
    rows: int | None,
) -> None:
    """Add the accuracy of each kind of inputs, and that of the most frequent class."""
    if keys in results:
        return
    chosen, labels = sample(train, rows, int(str(keys["sample"]))), test["label"].to_numpy()
    scores = {"most frequent class": float((labels == train["label"].mode()[0]).mean())}
    for way, inputs in vectors.items():
        fitted = Regressions(inputs[chosen.index], chosen["label"].to_numpy(), inputs[test.index])
        scores[way] = accuracy(fitted.test_logits[fitted.strength()], labels)
    for way, score in scores.items():
        results.add(**keys, n=len(chosen), test_rows=len(test), inputs=way, accuracy=score)


def measure_columns(arguments: argparse.Namespace, results: Results) -> None:
    """Classify texts in two columns, here the first line and the rest, joined in different ways."""
    encoder = Encoder(arguments.model)
    for folder in arguments.data:
        train, test = (with_columns(part) for part in read_set(folder))
        sizes = [(rows, seed) for rows in arguments.sizes or ROWS for seed in arguments.seeds]
        samples = {size: sample(train, *size) for size in sizes}
        # Only rows of a sample are embedded.
        train = train.loc[sorted(set().union(*(chosen.index for chosen in samples.values())))]
        both = pandas.concat([train, test], ignore_index=True)
        subjects, bodies = both["subject"].tolist(), both["body"].tolist()
        ways: dict[str, tuple[list[str], list[str] | None]] = {
            repr(separator): ([separator.join(row) for row in zip(subjects, bodies)], None)
            for separator in (" ", "\n", ". ")
        }
        ways |= {"pair": (subjects, bodies), "first alone": (subjects, None), "second alone": (bodies, None)}
        vectors = {way: unit(embed_texts(encoder, *texts, tokens=arguments.tokens)) for way, texts in ways.items()}
        for (rows, seed), chosen in samples.items():
            keys = {"set": folder.name, "rows": rows, "sample": seed}
            add_scores(
                results, keys, vectors, both.loc[train.index.get_indexer(chosen.index)], both[len(train) :], None
            )


def with_columns(table: pandas.DataFrame) -> pandas.DataFrame:
    """Return the rows that have several lines, with the columns "subject", "body" and "label"."""
    lines = table["text"].str.strip().str.split("\n", n=1, expand=True)
    table = table.assign(subject=lines[0].str.strip(), body=lines[1].fillna("").str.strip())
    return table[table["body"] != ""].reset_index(drop=True)


# Pictures


def measure_pictures(arguments: argparse.Namespace, results: Results) -> None:
    """Compare fine-tuning with logistic regression on features, on pixels and on colors."""
    for folder in arguments.data:
        table = pandas.DataFrame({"path": sorted(path for path in folder.glob("*/*") if path.is_file())})
        table = table.assign(name=[path.parent.name for path in table["path"]])
        table["label"] = np.unique(table["name"], return_inverse=True)[1]
        pictures = [Image.open(path).convert("RGB") for path in table["path"]]
        start = cpu_seconds()
        features = image_features(arguments.model, pictures)
        seconds = cpu_seconds() - start
        inputs = {"features": unit(features), "features / mean": features / np.linalg.norm(features, axis=1).mean()}
        inputs |= {"pixels": pixels(pictures), "colors": colors(pictures)}
        for rows in arguments.sizes or (8, 16, None):
            for number, (train, test) in enumerate(picture_parts(table, rows, arguments.seeds)):
                keys = {"set": folder.parent.name, "rows": rows or "all", "sample": number}
                if keys in results:
                    continue
                labels, right = test["label"].to_numpy(), {}
                for way, vectors in inputs.items():
                    fitted = Regressions(vectors[train.index], train["label"].to_numpy(), vectors[test.index])
                    right[way] = fitted.test_logits[fitted.strength()].argmax(axis=1) == labels
                tuned, tuned_seconds = fine_tune_pictures(arguments.model, train, test, number)
                scores = {way: float(value.mean()) for way, value in right.items()}
                wins, losses = (tuned & ~right["features"]).sum(), (~tuned & right["features"]).sum()
                results.add(
                    **keys,
                    n=len(train),
                    test_rows=len(test),
                    **scores,
                    tuned=float(tuned.mean()),
                    wins=int(wins),
                    losses=int(losses),
                    features_seconds=seconds,
                    seconds=tuned_seconds,
                )


def picture_parts(table: pandas.DataFrame, rows: int | None, seeds: Sequence[int]) -> Iterator[Set]:
    """Yield samples of `rows` of each class and all other rows, or as many folds as there are seeds."""
    for seed in seeds:
        if rows is not None:
            train = table.sample(frac=1, random_state=seed).groupby("label").head(rows)
            yield train, table.drop(train.index)
            continue
        order = table.sample(frac=1, random_state=0).sort_values("label", kind="stable")
        held_out = np.arange(len(order)) % len(seeds) == seeds.index(seed)
        yield order[~held_out], order[held_out]


@torch.no_grad()
def image_features(name: str, pictures: Sequence[Image.Image]) -> np.ndarray:
    """Return the inputs of a classifier's last layer, [pictures, D]."""
    model, processor = (
        AutoModelForImageClassification.from_pretrained(name).eval(),
        AutoImageProcessor.from_pretrained(name),
    )
    vectors: list[torch.Tensor] = []
    hook = model.classifier.register_forward_pre_hook(lambda _, inputs: vectors.append(inputs[0]))
    for start in range(0, len(pictures), 64):
        model(**processor(pictures[start : start + 64], return_tensors="pt"))
    hook.remove()
    return torch.cat(vectors).numpy()


def pixels(pictures: Sequence[Image.Image]) -> np.ndarray:
    """Return the pixels of each picture at 32 x 32, scaled to length 1 after their mean was removed."""
    rows = np.stack([np.asarray(picture.resize((32, 32)), dtype=np.float32).ravel() for picture in pictures])
    return unit(rows - rows.mean(axis=1, keepdims=True))


def fine_tune_pictures(
    model: str, train: pandas.DataFrame, test: pandas.DataFrame, seed: int
) -> tuple[np.ndarray, float]:
    """Run `hf-gmlp classify` with --fine_tune true on pictures, as `fine_tune_texts` does on texts."""
    with tempfile.TemporaryDirectory() as folder:
        for part, rows in (("train", train), ("test", test)):
            for i, (path, name) in enumerate(zip(rows["path"], rows["name"])):
                link = Path(folder, part, name, f"{i:05}{path.suffix}")
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(path.resolve())
        flags = ["classify", model, f"{folder}/train", "--output", f"{folder}/out", "--fine_tune", "true"]
        flags += ["--validation_data", f"{folder}/test", "--calibrate", "false", "--seed", str(seed)]
        seconds = run(*flags)
        table = pandas.read_csv(f"{folder}/out/eval_predictions.csv")
    numbers = [int(Path(path).stem) for path in table.iloc[:, 0]]
    right = np.empty(len(table), dtype=bool)
    right[numbers] = table["prediction"] == table["label"]
    return right, seconds


MEASUREMENTS: dict[str, Callable[[argparse.Namespace, Results], None]] = {
    "classifiers": measure_classifiers,
    "intervals": measure_intervals,
    "texts": measure_texts,
    "pairs": measure_pairs,
    "columns": measure_columns,
    "pictures": measure_pictures,
}


if __name__ == "__main__":
    main()
