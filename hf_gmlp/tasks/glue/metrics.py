"""Metrics of text classification, the tf-idf baseline, and files of predictions."""

import logging
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pandas
from datasets import Dataset
from transformers import EvalPrediction, PreTrainedConfig

from ...metrics import load_metric
from ...training.run_folder import write_text
from ..classification import names_of, predicted
from ..labels import CLASSES, ONE_CLASS, REGRESSION
from .sentences import texts

logger = logging.getLogger(__name__)

# Metrics of hf_gmlp/metrics for data outside GLUE, by problem type.
METRICS = {ONE_CLASS: ("accuracy", "f1"), CLASSES: ("f1", "accuracy"), REGRESSION: ("spearman", "pearson")}


def classification_metrics(
    names: Iterable[str], config: PreTrainedConfig
) -> Callable[[EvalPrediction], dict[str, float]]:
    """Return `compute_metrics` for Trainer, from hf_gmlp/metrics.

    F1 is that of the second of two classes, or the mean over more classes. If a row may have several classes, F1 is
    that of all decisions, and accuracy is the fraction of rows with all labels right.
    """
    metrics = {name: load_metric(name) for name in names}
    several = config.problem_type == CLASSES
    average = {"average": "binary" if several or config.num_labels == 2 else "macro"}

    def compute(prediction: EvalPrediction) -> dict[str, float]:
        values, truth = predicted(prediction.predictions, config.problem_type), prediction.label_ids
        results: dict[str, float] = {}
        for name, metric in metrics.items():
            if several and name == "accuracy":
                results[name] = float((values == truth).all(axis=1).mean())
                continue
            options = average if name == "f1" else {}
            results |= metric.compute(predictions=values.ravel(), references=truth.ravel(), **options)
        return results

    return compute


def baseline_scores(
    train: Dataset, validation: Dataset, config: PreTrainedConfig, metrics: Iterable[str]
) -> dict[str, float]:
    """Train and evaluate logistic regression on tf-idf of words and pairs of words; return its metrics, and log them.

    The splits are those of `load_sentences`. Unless every row has one class, there is no baseline.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    if config.problem_type != ONE_CLASS or isinstance(train["labels"][0], list):
        logger.info("--baseline: tf-idf is only compared on data with one class per row")
        return {}
    features = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    model = make_pipeline(features, LogisticRegression(C=10, max_iter=1000))
    model.fit(texts(train), train["labels"][:])
    logits = np.eye(config.num_labels)[model.predict(texts(validation))]
    compute = classification_metrics(metrics, config)
    scores = compute(EvalPrediction(logits, np.asarray(validation["labels"][:])))
    words = ", ".join(f"{name} {value:.4f}" for name, value in scores.items())
    logger.info("The baseline, tf-idf with logistic regression: %s", words)
    return {f"baseline_{name}": value for name, value in scores.items()}


def write_predictions(path: Path, logits: np.ndarray, config: PreTrainedConfig):
    """Write "index<tab>prediction" for each sample: the name of the label, the names of several, or a number."""
    if not np.isfinite(logits).all():
        logger.warning("The model's logits are not finite numbers: %s is not written", path)
        return
    names = names_of(predicted(logits, config.problem_type), config)
    table = pandas.DataFrame({"prediction": names}).rename_axis("index")
    write_text(path, table.to_csv(sep="\t", lineterminator="\n"))
