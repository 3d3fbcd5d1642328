"""Linear classifiers, compared with scikit-learn."""

import numpy as np
import pytest
from scipy.special import log_expit
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.multiclass import OneVsRestClassifier

from hf_gmlp.classify import frozen
from hf_gmlp.data.labels import CLASSES, ONE_CLASS, REGRESSION

OUTPUTS = {ONE_CLASS: 3, CLASSES: 3, REGRESSION: 1}


def sample(problem_type, rows=60, classes=3, seed=0):
    """Return inputs [rows, 8] of length 1, and labels."""
    rng = np.random.default_rng(seed)
    inputs = rng.standard_normal((rows, 8))
    scores = inputs @ rng.standard_normal((8, classes)) + rng.standard_normal((rows, classes))
    labels = {ONE_CLASS: scores.argmax(1), CLASSES: (scores > 0).astype(float), REGRESSION: scores[:, 0]}
    return inputs / np.linalg.norm(inputs, axis=1, keepdims=True), labels[problem_type]


def logits_of(inputs, weight, bias):
    return inputs @ weight.T + bias


@pytest.mark.parametrize("balanced", [False, True])
@pytest.mark.parametrize("problem_type", [ONE_CLASS, CLASSES, REGRESSION])
def test_logits_are_those_of_scikit_learn(problem_type, balanced):
    inputs, labels = sample(problem_type)
    logistic = LogisticRegression(C=10, class_weight="balanced" if balanced else None, max_iter=1000)
    ridge = RidgeCV(np.logspace(-3, 3, 13))
    model = {ONE_CLASS: logistic, CLASSES: OneVsRestClassifier(logistic), REGRESSION: ridge}[problem_type]
    weight, bias = frozen.fit(inputs, labels, problem_type, OUTPUTS[problem_type], logistic.class_weight)
    score = "predict" if problem_type == REGRESSION else "decision_function"
    expected = getattr(model.fit(inputs, labels), score)(inputs).reshape(len(inputs), -1)
    np.testing.assert_allclose(logits_of(inputs, weight, bias), expected, atol=1e-3)


def test_two_classes_share_the_coefficients():
    inputs, labels = sample(ONE_CLASS, classes=2)
    logits = logits_of(inputs, *frozen.fit(inputs, labels, ONE_CLASS, 2))
    np.testing.assert_allclose(logits[:, 0], -logits[:, 1])
    model = LogisticRegression(C=10, max_iter=1000).fit(inputs, labels)
    np.testing.assert_allclose(logits[:, 1] - logits[:, 0], model.decision_function(inputs), atol=1e-3)


def test_long_embeddings_do_not_outweigh_others():
    """The fit is that of embeddings of length 1, and its weights fit those of the mean length."""
    inputs, labels = sample(ONE_CLASS)
    lengths = np.random.default_rng(1).uniform(0.5, 8, (60, 1))
    short, long = (frozen.fit(x, labels, ONE_CLASS, 3) for x in (inputs, inputs * lengths))
    np.testing.assert_allclose(long[0] * lengths.mean(), short[0], atol=1e-3)
    np.testing.assert_allclose(long[1], short[1], atol=1e-3)


def test_classes_without_rows_are_improbable():
    inputs, labels = sample(ONE_CLASS)
    logits = logits_of(inputs, *frozen.fit(inputs, np.minimum(labels, 1), ONE_CLASS, 4))
    assert np.isfinite(logits).all() and logits[:, 2:].max() < logits[:, :2].min(axis=1).mean()
    several = np.stack([labels == 0, np.zeros(60), np.ones(60)], axis=1).astype(float)
    weight, bias = frozen.fit(inputs, several, CLASSES, 3)
    np.testing.assert_allclose(weight[1:], 0)
    np.testing.assert_allclose(log_expit(bias[1:]), np.log([1 / 62, 61 / 62]), atol=1e-6)
    weight, bias = frozen.fit(inputs, np.ones(60, dtype=int), ONE_CLASS, 2)
    np.testing.assert_allclose([*weight[0], bias[1] - bias[0]], [*np.zeros(8), np.log(61)])
