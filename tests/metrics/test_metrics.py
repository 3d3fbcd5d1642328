"""The metrics compared with scikit-learn and scipy, which compute them."""

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from hf_gmlp.metrics import load_metric


def draw(kind, seed):
    generator = np.random.default_rng(seed)
    if kind == "values":
        return generator.normal(size=50), generator.normal(size=50)
    return generator.integers(kind, size=50), generator.integers(kind, size=50)


ORACLES = {
    "accuracy": (3, accuracy_score, {}),
    "f1": (2, f1_score, {"average": "binary"}),
    "matthews_correlation": (2, matthews_corrcoef, {}),
    "pearson": ("values", lambda x, y: pearsonr(x, y).statistic, {}),
    "spearman": ("values", lambda x, y: spearmanr(x, y).statistic, {}),
}


@pytest.mark.parametrize("name", ORACLES)
def test_same_as_scikit_learn_and_scipy(name):
    kind, oracle, options = ORACLES[name]
    metric = load_metric(name)
    for seed in (0, 1):
        predictions, references = draw(kind, seed)
        expected = oracle(references, predictions, **options)
        result = metric.compute(predictions=predictions, references=references, **options)
        assert result == {name: pytest.approx(expected, abs=1e-12)} and type(result[name]) is float
    assert -1 < expected < 1


def test_macro_f1_is_the_mean_over_the_classes():
    predictions, references = draw(4, 0)
    expected = f1_score(references, predictions, average="macro")
    result = load_metric("f1").compute(predictions=predictions, references=references, average="macro")
    assert result["f1"] == pytest.approx(expected)


def test_constant_predictions_correlate_with_nothing():
    for name in ("pearson", "spearman", "matthews_correlation"):
        assert load_metric(name).compute(predictions=[1, 1, 1], references=[0, 1, 1]) == {name: 0.0}


def test_unknown_metric():
    with pytest.raises(ValueError, match="no metric 'bleu'; there are accuracy, f1"):
        load_metric("bleu")
