"""Scores of classifiers and regressors, computed in this one place for training, reports and `hf-gmlp predict`."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from transformers import PreTrainedConfig

from ..data.labels import CLASSES, ONE_CLASS, REGRESSION

if TYPE_CHECKING:
    import evaluate

# The metrics of data outside GLUE, by problem type; the first one is the main one.
DEFAULT_METRICS = {ONE_CLASS: ("accuracy", "f1"), CLASSES: ("f1", "accuracy"), REGRESSION: ("spearman", "pearson")}


@cache
def load_metric(name: str) -> "evaluate.EvaluationModule":
    """Return a metric of classification.py, such as "accuracy"."""
    import evaluate

    # Without `keep_in_memory`, every call writes a file, under a lock that all runs on the machine share.
    return evaluate.load(str(Path(__file__).parent / "classification"), name, keep_in_memory=True)


def predicted(logits: np.ndarray, problem_type: str) -> np.ndarray:
    """Return class ids or numbers [N], or 0 and 1 for each class [N, classes], from logits [N, classes]."""
    if problem_type == CLASSES:
        return (logits > 0).astype(int)
    return np.nan_to_num(logits).squeeze(-1) if problem_type == REGRESSION else logits.argmax(-1)


def rows_right(values: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return whether a class, or all classes of a row, are predicted correctly [N], from the results of `predicted`."""
    return (values == labels).reshape(len(labels), -1).all(axis=1)


def names_of(values: np.ndarray, config: PreTrainedConfig) -> list[str]:
    """Return the results of `predicted` as text: the name of a class, the names of several, or a number."""
    names = config.id2label
    if config.problem_type == REGRESSION:
        # Nine digits identify a float32.
        return [f"{value:.9g}" for value in values]
    if config.problem_type == CLASSES:
        return [", ".join(names[number] for number in row.nonzero()[0]) for row in values]
    return [names[number] for number in values]


def scores(
    values: np.ndarray, labels: np.ndarray, config: PreTrainedConfig, names: Sequence[str] | None = None
) -> dict[str, float]:
    """Return the metrics of predictions, by default those of `DEFAULT_METRICS`.

    F1 is that of the second of two classes, or the mean over more classes. If a row may have several classes, F1 is
    that of all decisions, and accuracy is the fraction of rows with all labels right. A correlation with a constant
    is 0.

    Args:
        values: The result of `predicted`.
        labels: The correct values, in the same form.
        names: Configurations of hf_gmlp/metrics/classification, such as "accuracy".
    """
    several, results = config.problem_type == CLASSES, {}
    for name in names or DEFAULT_METRICS[config.problem_type]:
        if several and name == "accuracy":
            results[name] = float(rows_right(values, labels).mean())
            continue
        average = "binary" if several or config.num_labels == 2 else "macro"
        options = {"average": average} if name == "f1" else {}
        results |= load_metric(name).compute(predictions=values.ravel(), references=labels.ravel(), **options)
    return results
