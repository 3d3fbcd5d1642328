"""A linear classifier on frozen embeddings: logistic regression, or ridge regression of numbers.

Its coefficients become the weights of a model's final layer, so that the result is an ordinary classifier.
"""

import numpy as np
from sklearn.linear_model import LogisticRegression, RidgeCV

from ..data.labels import CLASSES, ONE_CLASS, REGRESSION

# The inverse strength of the regularization, for embeddings of length 1 (docs/log/classify.md).
C = 10.0
# The strengths of ridge regression to choose from, by leaving out one row.
ALPHAS = tuple(np.logspace(-3, 3, 13))


def fit(
    inputs: np.ndarray, labels: np.ndarray, problem_type: str, outputs: int, class_weight: str | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Fit logistic regression (C = 10) or, for numbers, ridge regression to embeddings divided by their lengths.

    Args:
        inputs: [N, D].
        labels: [N] class ids or numbers, or [N, outputs] with 1 for each class of a row.
        outputs: The number of classes, or 1 for numbers.
        class_weight: "balanced" weights classes by the inverse of their number of rows.

    Returns:
        The weight [outputs, D], divided by the mean length, since it is for the embeddings as they are, and the bias
        [outputs].
    """
    lengths = np.linalg.norm(inputs, axis=1, keepdims=True).clip(1e-12)
    inputs, scale = inputs / lengths, lengths.mean()
    if problem_type == REGRESSION:
        ridge = RidgeCV(ALPHAS).fit(inputs, labels)
        return ridge.coef_[None] / scale, np.array([ridge.intercept_])
    if problem_type == CLASSES:
        # A class against the others has the difference of two rows.
        pairs = [fit(inputs, column, ONE_CLASS, 2, class_weight) for column in labels.T.astype(int)]
        weight, bias = (np.stack([rows[1] - rows[0] for rows in parameter]) for parameter in zip(*pairs))
        return weight / scale, bias
    weight, bias = np.zeros((outputs, inputs.shape[1])), np.zeros(outputs)
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
    weight[classes], bias[classes] = coefficients / scale, intercepts
    return weight, bias
