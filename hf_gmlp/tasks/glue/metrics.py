"""Metrics of text classification, the tf-idf baseline, and files of predictions for GLUE's leaderboard."""

import logging
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pandas
from datasets import Dataset
from transformers import EvalPrediction, PreTrainedConfig

from ...errors import InputError
from ...metrics import load_metric
from ...training.run_folder import write_text
from ..classification import names_of, predicted
from ..labels import CLASSES, ONE_CLASS, REGRESSION
from .arguments import Task
from .sentences import texts

logger = logging.getLogger(__name__)

# Metrics of hf_gmlp/metrics by the kind of labels; the first two by default.
METRICS = {
    ONE_CLASS: ("accuracy", "f1", "matthews_correlation"),
    CLASSES: ("f1", "accuracy"),
    REGRESSION: ("spearman", "pearson"),
}


def metric_names(task: Task | None, problem_type: str, chosen: str | None = None) -> tuple[str, ...]:
    """Return the metrics of a GLUE task or of other data; `chosen`, if it suits the labels, comes first."""
    names = task.metrics if task is not None else METRICS[problem_type][:2]
    if chosen is None:
        return names
    if chosen not in METRICS[problem_type]:
        raise InputError(f"--metric_name must be one of {', '.join(METRICS[problem_type])} here, got {chosen}.")
    return (chosen, *(name for name in names if name != chosen))


def metric_keys(names: Iterable[str], splits: Iterable[str]) -> list[str]:
    """Return the names of an evaluation's results: each metric of each validation split, and the loss."""
    prefixes = [split.replace("validation", "eval", 1) for split in splits if split.startswith("validation")]
    return [f"{prefix}_{name}" for prefix in prefixes for name in (*names, "loss")]


def classification_metrics(
    names: Iterable[str], config: PreTrainedConfig
) -> Callable[[EvalPrediction], dict[str, float]]:
    """Return `compute_metrics` for Trainer, from hf_gmlp/metrics.

    F1 is that of the second of two classes, the mean over more, or that of all decisions if a row may have several
    classes; accuracy is then the fraction of correct rows.
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
    """Return the metrics of logistic regression on tf-idf of words and pairs of words, trained and evaluated on these
    splits of `load_sentences`, and log them; nothing if they are not of one class per row.
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


def write_predictions(path: Path, logits: np.ndarray | tuple, config: PreTrainedConfig, task: Task | None = None):
    """Write "index<tab>prediction" for each sample: the name of the label, the names of several, or a number.

    For a GLUE `task` it is what the leaderboard expects: a name, the number of a label, or a number from 0 to 5.
    """
    if not np.isfinite(logits[0] if isinstance(logits, tuple) else logits).all():
        logger.warning("The model's logits are not finite numbers: %s is not written", path)
        return
    values = predicted(logits, config.problem_type)
    # The leaderboard's one regression, STS-B, has similarities from 0 to 5.
    names = names_of(values.clip(0, 5) if task is not None and task.labels is None else values, config)
    if task is not None and task.labels is not None and not task.submits_names:
        names = [str(task.labels.index(name)) for name in names]
    table = pandas.DataFrame({"prediction": names}).rename_axis("index")
    write_text(path, table.to_csv(sep="\t", lineterminator="\n"))
