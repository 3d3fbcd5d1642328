"""The metrics compared with those of scikit-learn and scipy."""

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from hf_gmlp.metrics import load_metric

from ..numerics import assert_close


@pytest.mark.parametrize(
    ("name", "classes", "oracle", "options"),
    [
        ("accuracy", 3, accuracy_score, {}),
        ("f1", 2, f1_score, {"average": "binary"}),
        ("f1", 4, f1_score, {"average": "macro"}),
        ("matthews_correlation", 2, matthews_corrcoef, {}),
        ("pearson", None, lambda x, y: pearsonr(x, y).statistic, {}),
        ("spearman", None, lambda x, y: spearmanr(x, y).statistic, {}),
    ],
)
def test_same_as_scikit_learn_and_scipy(name, classes, oracle, options):
    generator = np.random.default_rng(0)
    predictions, references = generator.integers(classes, size=(2, 50)) if classes else generator.normal(size=(2, 50))
    expected = oracle(references, predictions, **options)
    result = load_metric(name).compute(predictions=predictions, references=references, **options)
    assert_close(result, {name: float(expected)})
    assert -1 < expected < 1 and type(result[name]) is float


def test_correlations_of_constant_predictions_are_0():
    for name in ("pearson", "spearman", "matthews_correlation"):
        assert load_metric(name).compute(predictions=[1, 1, 1], references=[0, 1, 1]) == {name: 0.0}
