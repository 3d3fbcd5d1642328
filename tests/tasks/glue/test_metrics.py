import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef
from transformers import EvalPrediction

from hf_gmlp.tasks.glue.metrics import METRICS, classification_metrics, write_predictions
from hf_gmlp.tasks.labels import CLASSES, ONE_CLASS, REGRESSION

from ...numerics import assert_close
from ..test_classification import config_of


def computed(config, logits, truth, names=None):
    return classification_metrics(names or METRICS[config.problem_type], config)(EvalPrediction(logits, truth))


def test_metrics_equal_those_of_scikit_learn_and_scipy():
    generator = np.random.default_rng(0)
    logits, truth = generator.normal(size=(40, 3)), generator.integers(3, size=40)
    classes = logits.argmax(-1)
    expected = {"accuracy": accuracy_score(truth, classes), "f1": f1_score(truth, classes, average="macro")}
    assert_close(computed(config_of("abc"), logits, truth), expected)
    # With two classes, F1 is that of the second, as in MRPC and QQP.
    logits, truth = generator.normal(size=(40, 2)), generator.integers(2, size=40)
    classes = logits.argmax(-1)
    expected = {"f1": f1_score(truth, classes), "matthews_correlation": matthews_corrcoef(truth, classes)}
    assert_close(computed(config_of("ab"), logits, truth, expected), expected)
    assert computed(config_of("ab"), 0 * logits, truth, ["matthews_correlation"]) == {"matthews_correlation": 0.0}

    logits, truth = generator.normal(size=(40, 1)), generator.normal(size=40)
    config = config_of(None, REGRESSION)
    expected = {"spearman": spearmanr(logits[:, 0], truth)[0], "pearson": pearsonr(logits[:, 0], truth)[0]}
    assert_close(computed(config, logits, truth), expected)
    # A run that diverged also gets a result.
    assert computed(config, np.full((40, 1), np.nan), truth) == {"spearman": 0.0, "pearson": 0.0}


def test_metrics_of_several_labels_per_row_equal_those_of_scikit_learn():
    generator = np.random.default_rng(0)
    logits, truth = generator.normal(size=(40, 3)), generator.integers(2, size=(40, 3))
    results = computed(config_of("abc", CLASSES), logits, truth.astype(np.float32))
    expected = {"f1": f1_score(truth, logits > 0, average="micro"), "accuracy": accuracy_score(truth, logits > 0)}
    assert_close(results, expected)


@pytest.mark.parametrize(
    ("labels", "problem_type", "logits", "expected"),
    [
        (["so, so", 'a "b"'], ONE_CLASS, [[1, 0], [0, 1]], ["so, so", '"a ""b"""']),
        (None, REGRESSION, [[5.5], [-0.5]], ["5.5", "-0.5"]),
        ("abc", CLASSES, [[0.1, -1, 2], [-1, -1, -1]], ["a, c", ""]),
    ],
)
def test_predictions_are_written_by_name(tmp_path, labels, problem_type, logits, expected):
    path = tmp_path / "out.tsv"
    write_predictions(path, np.array(logits, dtype=float), config_of(labels, problem_type))
    lines = [f"{index}\t{text}" for index, text in enumerate(expected)]
    assert path.read_text() == "\n".join(["index\tprediction", *lines, ""])
