"""How far the scores and probabilities of a classifier can be trusted: intervals, temperature, and a comparison."""

from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, ndtri, softmax

# Scores of fewer rows are called uncertain.
MIN_SCORE_ROWS = 200
# The standard deviations on either side of an interval of 95 % of the normal distribution.
Z = float(ndtri(0.975))
# The variance of a score of five folds, relative to as many independent rows, since the training rows of the folds
# overlap (Nadeau and Bengio, 2003): 1 + 5 * (1/5) / (4/5).
CROSS_VALIDATED = 2.25


def fit_temperature(logits: np.ndarray, labels: np.ndarray) -> float:
    """Return the number to divide logits [N, classes] by so that their probabilities are calibrated (Guo et al., 2017),
    from rows that the model was not trained on, and their class ids [N].

    It minimizes the cross-entropy. As in Platt scaling, the targets are (N + 1) / (N + 2) instead of 1, so that rows
    which are all classified correctly do not make the probabilities certain.
    """
    rows, classes = logits.shape
    targets = np.full(logits.shape, 1 / (rows + 2) / (classes - 1))
    targets[np.arange(rows), labels] = (rows + 1) / (rows + 2)

    def cross_entropy(log_temperature: float) -> float:
        return -float((targets * log_softmax(logits / np.exp(log_temperature), axis=1)).sum())

    return float(np.exp(minimize_scalar(cross_entropy, bounds=(np.log(0.01), np.log(100)), method="bounded").x))


def calibration_error(logits: np.ndarray, labels: np.ndarray, bins: int = 10) -> float:
    """Return the expected calibration error of logits [N, classes] and class ids [N]: the mean difference, weighted by
    rows, of the largest probability and the accuracy in `bins` equal intervals of that probability.
    """
    probabilities = softmax(logits, axis=1)
    confidence, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == labels
    bin_numbers = np.minimum((confidence * bins).astype(int), bins - 1)
    return float(np.abs(np.bincount(bin_numbers, weights=confidence - right)).sum() / len(labels))


def calibrate(logits: np.ndarray, labels: np.ndarray) -> tuple[float, float, float]:
    """Fit a temperature on all rows, as `fit_temperature` does, and return it with the expected calibration errors
    before and after scaling. For the latter, each half of the rows is scaled by the temperature of the other half.
    """
    halves = np.array_split(np.random.default_rng(0).permutation(len(labels)), 2)
    scaled = np.empty(logits.shape)
    for half, other in (halves, halves[::-1]):
        scaled[half] = logits[half] / fit_temperature(logits[other], labels[other])
    return fit_temperature(logits, labels), calibration_error(logits, labels), calibration_error(scaled, labels)


def accuracy_interval(right: int, rows: int, inflation: float = 1.0) -> tuple[float, float]:
    """Return the 95 % interval (Wilson) of an accuracy of `right` in `rows`, for a variance times `inflation`."""
    extra, accuracy = inflation * Z**2 / rows, right / rows
    center = (accuracy + extra / 2) / (1 + extra)
    margin = np.sqrt(extra * (accuracy * (1 - accuracy) + extra / 4)) / (1 + extra)
    return max(float(center - margin), 0.0), min(float(center + margin), 1.0)


def accuracy_in_words(right: int, rows: int, inflation: float = 1.0) -> str:
    """Return an accuracy with its 95 % interval and the number of rows."""
    low, high = accuracy_interval(right, rows, inflation)
    return f"{right / rows:.3f} (95 % interval {low:.3f} to {high:.3f}; {right} of {rows} rows)"


def correlation_in_words(predictions: np.ndarray, numbers: np.ndarray, inflation: float = 1.0) -> str:
    """Return Pearson's correlation with the number of rows and, from enough rows on, its 95 % interval (Fisher)."""
    if np.ptp(predictions) == 0 or np.ptp(numbers) == 0:
        return f"undefined, since all numbers or all predictions are equal ({len(numbers)} rows)"
    correlation = np.corrcoef(predictions, numbers)[0, 1].clip(-1 + 1e-9, 1 - 1e-9)
    degrees = len(numbers) / inflation - 3
    if degrees <= 0:
        return f"{correlation:.3f} ({len(numbers)} rows)"
    low, high = np.tanh(np.arctanh(correlation) + np.array([-Z, Z]) / np.sqrt(degrees))
    return f"{correlation:.3f} (95 % interval {low:.3f} to {high:.3f}; {len(numbers)} rows)"


class Comparison(NamedTuple):
    """The difference of two accuracies in points, with its 95 % interval."""

    difference: float
    low: float
    high: float

    def __str__(self) -> str:
        if self.low <= 0 <= self.high:
            return f"the difference ({self.low:+.1f} to {self.high:+.1f} points, 95 % interval) may be chance"
        low, high = (self.low, self.high) if self.difference > 0 else (-self.high, -self.low)
        better = "model" if self.difference > 0 else "baseline"
        interval = f"95 % interval {low:.1f} to {high:.1f}"
        return f"the {better} is better by {abs(self.difference):.1f} points ({interval}), more than chance explains"


def compare(right: np.ndarray, baseline_right: np.ndarray, inflation: float = 1.0) -> Comparison:
    """Compare the accuracies of a model and a baseline on the same rows.

    The interval is that of Agresti and Min (2005), who add half a row to each of the four combinations.

    Args:
        right, baseline_right: [N], whether each row is classified correctly.
        inflation: As in `accuracy_interval`.
    """
    wins, losses, total = int((right & ~baseline_right).sum()), int((~right & baseline_right).sum()), len(right) + 2
    center = (wins - losses) / total
    margin = Z * np.sqrt(inflation * ((wins + losses + 1) / total - center**2) / total)
    difference = 100 * (wins - losses) / len(right)
    low, high = max(center - margin, -1.0), min(center + margin, 1.0)
    return Comparison(difference, 100 * low, 100 * high)
