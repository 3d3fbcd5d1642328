"""Scores of classifiers and regressors, computed in this one place for training, reports and `hf-gmlp predict`."""

from collections.abc import Callable, Sequence

import numpy as np
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef
from transformers import PreTrainedConfig

from ..data.labels import CLASSES, ONE_CLASS, REGRESSION

# Functions of the correct and the predicted values, in this order.
METRICS: dict[str, Callable[..., float]] = {
    "accuracy": accuracy_score,
    "f1": f1_score,
    "matthews_correlation": matthews_corrcoef,
    "pearson": lambda *values: pearsonr(*values).statistic,
    "spearman": lambda *values: spearmanr(*values).statistic,
}
# The metrics of data outside GLUE, by problem type; the first one is the main one.
DEFAULT_METRICS = {ONE_CLASS: ("accuracy", "f1"), CLASSES: ("f1", "accuracy"), REGRESSION: ("spearman", "pearson")}


def predicted(logits: np.ndarray, problem_type: str) -> np.ndarray:
    """Return class ids or numbers [N], or 0 and 1 for each class [N, classes], from logits [N, classes]."""
    if problem_type == CLASSES:
        return (logits > 0).astype(int)
    return np.nan_to_num(logits).squeeze(-1) if problem_type == REGRESSION else logits.argmax(-1)


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
        names: Keys of `METRICS`.
    """
    several, results = config.problem_type == CLASSES, {}
    constant = config.problem_type == REGRESSION and 0 in (np.ptp(values), np.ptp(labels))
    for name in names or DEFAULT_METRICS[config.problem_type]:
        if several and name == "accuracy":
            results[name] = float((values == labels).all(axis=1).mean())
            continue
        average = "binary" if several or config.num_labels == 2 else "macro"
        # A class that is neither predicted nor present counts as 0, without a warning.
        options = {"average": average, "zero_division": 0} if name == "f1" else {}
        pair = labels.ravel().astype(float), values.ravel().astype(float)
        results[name] = 0.0 if constant else float(METRICS[name](*pair, **options))
    return results
