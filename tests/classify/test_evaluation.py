"""What an evaluation says and writes, compared with scikit-learn."""

import json

import numpy as np
import pandas
import PIL.Image
import pytest
from scipy.special import softmax
from sklearn.metrics import classification_report, f1_score, log_loss

from hf_gmlp.classify.evaluation import Evaluation, plot_confusions
from hf_gmlp.data.labels import CLASSES, ONE_CLASS, REGRESSION
from hf_gmlp.metrics.calibration import accuracy_in_words

from ..samples import config_of


def evaluation_of(logits, labels, names="abc", problem_type=ONE_CLASS, baseline=None):
    rows, config = np.arange(len(labels)), config_of(names, problem_type)
    return Evaluation(config, "text", rows, logits, labels, "Cross-validated", 2.25, baseline=baseline)


def write(evaluation, folder):
    texts = [f"text, {row}" for row in evaluation.rows]
    return evaluation.write(folder, pandas.DataFrame({"row": evaluation.rows + 1, "text": texts}))


def sample(rows=60, classes=3, seed=0):
    """Return logits, and labels that agree with most of them."""
    rng = np.random.default_rng(seed)
    logits = rng.standard_normal((rows, classes))
    labels = np.where(rng.random(rows) < 0.7, logits.argmax(1), rng.integers(0, classes, rows))
    return logits, labels


def test_metrics_and_sentences_of_classes():
    logits, labels = sample()
    baseline = np.where(np.arange(60) < 30, labels, 0)
    evaluation, values = evaluation_of(logits, labels, baseline=baseline), logits.argmax(1)
    metrics = evaluation.metrics()
    right = int((values == labels).sum())
    assert metrics["eval_accuracy"] == pytest.approx(right / 60) and metrics["eval_samples"] == 60
    assert metrics["eval_f1"] == pytest.approx(f1_score(labels, values, average="macro"))
    assert metrics["eval_loss"] == pytest.approx(log_loss(labels, softmax(logits, axis=1)))
    assert metrics["baseline_accuracy"] == pytest.approx((baseline == labels).mean())
    assert 0 <= metrics["eval_accuracy_low"] < right / 60 < metrics["eval_accuracy_high"] <= 1
    first, second, third, *_ = str(evaluation).splitlines()
    assert first == f"Cross-validated: accuracy {accuracy_in_words(right, 60, 2.25)}."
    assert second.startswith(f"The baseline (tf-idf with logistic regression) has {(baseline == labels).mean():.3f}: ")
    assert third == "60 rows are too few for a precise estimate."
    frequency = np.bincount(labels).max() / 60
    assert f"(always the most frequent class) has {frequency:.3f}: " in str(evaluation_of(logits, labels))


def test_files_of_classes(tmp_path):
    logits, labels = sample(300)
    text = write(evaluation_of(logits, labels), tmp_path)
    table = pandas.read_csv(tmp_path / "eval_predictions.csv")
    assert table.columns.tolist() == ["row", "text", "label", "prediction", "probability"] and len(table) == 300
    assert table["label"].tolist() == [*np.array([*"abc"])[labels]]
    assert table["prediction"].tolist() == [*np.array([*"abc"])[logits.argmax(1)]]
    np.testing.assert_allclose(table["probability"], softmax(logits, axis=1).max(1), atol=5e-5)
    expected = classification_report(labels, logits.argmax(1), target_names=[*"abc"], digits=3)
    assert text.startswith(expected) and "too few" not in text
    written = (tmp_path / "report.txt").read_text()
    confusions = table[table["label"] != table["prediction"]].value_counts(["label", "prediction"])
    assert written.startswith(expected) and str(confusions.iloc[0]) in written and "text, " not in written
    with PIL.Image.open(tmp_path / "confusion_matrix.png") as picture:
        assert min(picture.size) > 100


def test_only_the_worst_of_many_classes_are_printed(tmp_path):
    names = [f"class{i:02}" for i in range(30)]
    labels = np.repeat(np.arange(30), 10)
    logits = 5.0 * np.eye(30)[labels]
    # Only some of the last classes are wrong.
    logits[-60::7] = 5.0 * np.eye(30)[0]
    text = write(evaluation_of(logits, labels, names), tmp_path)
    printed = [name for name in names if f" {name} " in text]
    assert len(printed) == 10 and {"class25", "class29", "class00"} <= {*printed} and "macro avg" in text
    assert all(name in (tmp_path / "report.txt").read_text() for name in names)


def test_several_classes_have_no_confusions(tmp_path):
    logits = np.array([[1.0, -1.0, 2.0], [-1.0, -1.0, -1.0], [1.0, 1.0, -1.0]])
    labels = np.array([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    evaluation = evaluation_of(logits, labels, problem_type=CLASSES)
    text = write(evaluation, tmp_path)
    assert "accuracy 0.667" in text and evaluation.metrics()["eval_f1"] == pytest.approx(6 / 7)
    table = pandas.read_csv(tmp_path / "eval_predictions.csv", keep_default_na=False)
    assert table["prediction"].tolist() == ["a, c", "", "a, b"] and table["label"].tolist() == ["a, c", "", "b"]
    assert not (tmp_path / "confusion_matrix.png").exists() and "probability" not in table


def test_numbers_have_a_correlation(tmp_path):
    numbers = np.random.default_rng(0).standard_normal((40, 2))
    evaluation = evaluation_of(numbers[:, :1], numbers.sum(1), None, REGRESSION)
    correlation = np.corrcoef(numbers[:, 0], numbers.sum(1))[0, 1]
    assert write(evaluation, tmp_path).startswith(f"Cross-validated: correlation (Pearson) {correlation:.3f} (95 %")
    assert [path.name for path in tmp_path.iterdir()] == ["eval_predictions.csv"]
    table = pandas.read_csv(tmp_path / "eval_predictions.csv")
    np.testing.assert_allclose(table["prediction"], numbers[:, 0], rtol=1e-6)
    equal = evaluation_of(np.ones((40, 1)), numbers[:, 0], None, REGRESSION)
    assert "undefined" in str(equal) and "nan" not in json.dumps(equal.metrics())


def test_names_of_classes_are_no_mathematics(tmp_path):
    plot_confusions(tmp_path / "plot.png", ["$x_", "costs $5 or $6"], np.array([0, 1]), np.array([0, 0]))
    assert (tmp_path / "plot.png").stat().st_size > 1000
    plot_confusions(tmp_path / "none.png", [str(i) for i in range(201)], np.array([0, 1]), np.array([0, 0]))
    assert not (tmp_path / "none.png").exists()
