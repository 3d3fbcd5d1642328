"""A linear classifier on frozen embeddings: logistic regression, or ridge regression of numbers.

Its coefficients become the weights of a model's final layer, so that the result is an ordinary classifier.
"""

from typing import NamedTuple

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression, RidgeCV
from torch import nn

from ..data.labels import CLASSES, ONE_CLASS, REGRESSION

# The inverse strength of the regularization, for embeddings of length 1 (docs/log/classify.md).
C = 10.0
# The strengths of ridge regression to choose from, by leaving out one row.
ALPHAS = tuple(np.logspace(-3, 3, 13))


class Linear(NamedTuple):
    """The weights of a linear layer."""

    weight: np.ndarray  # [outputs, D]
    bias: np.ndarray  # [outputs]

    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        """[N, D] -> [N, outputs]"""
        return inputs @ self.weight.T + self.bias

    def write(self, layer: nn.Linear) -> None:
        """Write the weights into a layer of a model."""
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(self.weight))
            layer.bias.copy_(torch.from_numpy(self.bias))


def fit(inputs: np.ndarray, labels: np.ndarray, problem_type: str, outputs: int, balanced: bool = False) -> Linear:
    """Fit logistic regression (C = 10) or, for numbers, ridge regression to embeddings divided by their lengths.

    The result reads the embeddings as they are: its weights are divided by the mean length.

    Args:
        inputs: [N, D].
        labels: [N] class ids or numbers, or [N, outputs] with 1 for each class of a row.
        outputs: The number of classes, or 1 for numbers.
        balanced: Whether to weight classes by the inverse of their number of rows.
    """
    lengths = np.linalg.norm(inputs, axis=1, keepdims=True).clip(1e-12)
    class_weight = "balanced" if balanced else None
    weight, bias = _solve(inputs / lengths, labels, problem_type, outputs, class_weight)
    return Linear(weight / lengths.mean(), bias)


def _solve(
    inputs: np.ndarray, labels: np.ndarray, problem_type: str, outputs: int, class_weight: str | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the weight [outputs, D] and bias [outputs] of one regression."""
    if problem_type == REGRESSION:
        ridge = RidgeCV(ALPHAS).fit(inputs, labels)
        return ridge.coef_[None], np.array([ridge.intercept_])
    weight, bias = np.zeros((outputs, inputs.shape[1])), np.zeros(outputs)
    if problem_type == CLASSES:
        columns = labels.T.astype(int)
        pairs, biases = zip(*(_solve(inputs, column, ONE_CLASS, 2, class_weight) for column in columns))
        return np.stack([pair[1] - pair[0] for pair in pairs]), np.array([pair[1] - pair[0] for pair in biases])
    classes = np.unique(labels)
    if len(classes) == 1:
        # Laplace's rule of succession.
        return weight, np.log(np.bincount(labels, minlength=outputs) + 1.0)
    model = LogisticRegression(C=C, class_weight=class_weight, max_iter=1000).fit(inputs, labels)
    coefficients, intercepts = model.coef_, model.intercept_
    if len(classes) == 2:
        coefficients = np.concatenate([-coefficients, coefficients]) / 2
        intercepts = np.concatenate([-intercepts, intercepts]) / 2
    # A class without rows is a hundred times less probable than the least probable one.
    bias[:] = intercepts.min() - np.log(100)
    weight[classes], bias[classes] = coefficients, intercepts
    return weight, bias
