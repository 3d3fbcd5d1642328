"""Scores of classifiers and regressors, computed in this one place for training, reports and `hf-gmlp predict`."""

import numpy as np
import scipy.stats
import sklearn.metrics

from ..data.labels import CLASSES, ONE_CLASS, REGRESSION

# Functions of the correct and the predicted values, in this order.
METRICS = {
    "accuracy": sklearn.metrics.accuracy_score,
    # A class that is neither predicted nor present counts as 0, without a warning.
    "f1": lambda *values, average="binary": sklearn.metrics.f1_score(*values, average=average, zero_division=0),
    "matthews_correlation": sklearn.metrics.matthews_corrcoef,
    "pearson": lambda *values: scipy.stats.pearsonr(*values)[0],
    "spearman": lambda *values: scipy.stats.spearmanr(*values)[0],
}
# The metrics of data outside GLUE, by problem type; the first one is the main one.
DEFAULT_METRICS = {ONE_CLASS: ("accuracy", "f1"), CLASSES: ("f1", "accuracy"), REGRESSION: ("spearman", "pearson")}


def predicted(logits: np.ndarray, problem_type: str) -> np.ndarray:
    """Return class ids or numbers [N], or 0 and 1 for each class [N, classes], from logits [N, classes]."""
    if problem_type == CLASSES:
        return (logits > 0).astype(int)
    return np.nan_to_num(logits).squeeze(-1) if problem_type == REGRESSION else logits.argmax(-1)


def scores(
    values: np.ndarray, labels: np.ndarray, problem_type: str, classes: int, names: tuple[str, ...] | None = None
) -> dict[str, float]:
    """Return the metrics of predictions, by default those of `DEFAULT_METRICS`.

    F1 is that of the second of two classes, or the mean over more classes. If a row may have several classes, F1 is
    that of all decisions, and accuracy is the fraction of rows with all labels right. A correlation with a constant
    is 0.

    Args:
        values: The result of `predicted`.
        labels: The correct values, in the same form.
        classes: Number of classes, with which F1 of one class per row is "binary" or "macro".
    """
    results = {}
    for name in names or DEFAULT_METRICS[problem_type]:
        if problem_type == CLASSES and name == "accuracy":
            results[name] = float((values == labels).all(axis=1).mean())
            continue
        binary = problem_type == CLASSES or classes == 2
        options = {"average": "binary" if binary else "macro"} if name == "f1" else {}
        constant = problem_type == REGRESSION and min(len(np.unique(values)), len(np.unique(labels))) < 2
        results[name] = 0.0 if constant else float(METRICS[name](labels.ravel(), values.ravel(), **options))
    return results
