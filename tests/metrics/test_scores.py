import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score

from hf_gmlp.data.labels import CLASSES, ONE_CLASS, REGRESSION
from hf_gmlp.metrics.scores import names_of, predicted, scores

from ..samples import config_of


@pytest.mark.parametrize(
    ("problem_type", "logits", "expected", "names"),
    [
        (ONE_CLASS, [[0.0, 2.0, 1.0], [3.0, -1.0, 0.0]], [1, 0], ["b", "a"]),
        (CLASSES, [[0.1, -2.0, 1.0], [-3.0, -1.0, 0.0]], [[1, 0, 1], [0, 0, 0]], ["a, c", ""]),
        (REGRESSION, [[0.123456789], [np.nan]], [0.123456789, 0.0], ["0.123456789", "0"]),
    ],
)
def test_predictions_and_their_names(problem_type, logits, expected, names):
    config = config_of(None if problem_type == REGRESSION else "abc", problem_type)
    values = predicted(np.array(logits), problem_type)
    np.testing.assert_array_equal(values, expected)
    assert names_of(values, config) == names


@pytest.mark.parametrize("classes", [2, 3])
def test_scores_of_one_class_are_those_of_scikit_learn(classes):
    values, labels = np.random.default_rng(0).integers(0, classes, (2, 50))
    average = "binary" if classes == 2 else "macro"
    expected = {"accuracy": accuracy_score(labels, values), "f1": f1_score(labels, values, average=average)}
    assert scores(values, labels, config_of("abc"[:classes])) == pytest.approx(expected)


def test_scores_of_several_classes_count_decisions_and_rows():
    values, labels = np.random.default_rng(0).integers(0, 2, (2, 50, 3))
    expected = {"accuracy": accuracy_score(labels, values), "f1": f1_score(labels, values, average="micro")}
    assert scores(values, labels, config_of("abc", CLASSES)) == pytest.approx(expected)


def test_scores_of_numbers_are_correlations():
    values, labels = np.random.default_rng(0).standard_normal((2, 50))
    expected = {"pearson": pearsonr(values, labels)[0], "spearman": spearmanr(values, labels)[0]}
    config = config_of(None, REGRESSION)
    results = scores(values, labels, config)
    assert {name.removesuffix("r"): value for name, value in results.items()} == pytest.approx(expected)
    assert set(scores(np.ones(50), labels, config).values()) == {0.0}
    assert scores(values, labels, config, ["pearson"]).keys() < results.keys()
