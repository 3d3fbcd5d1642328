"""benchmarks/few_rows.py: its classifiers are scikit-learn's, no test row trains, and every measurement runs."""

import csv

import numpy as np
import pandas
import pytest
from PIL import Image
from sklearn.linear_model import LogisticRegression

from benchmarks import few_rows

ENCODER, IMAGES = "checkpoints/gmlp-mini-sentences", "checkpoints/gmlp-mini-cifar10"
WORDS = "bank card money loan river stone tree flower".split()


def points(random, rows, classes):
    labels = np.arange(rows) % classes
    return random.normal(size=(rows, 4)) + labels[:, None], labels


@pytest.mark.parametrize("classes", [2, 3])
def test_logits_are_those_of_scikit_learn(classes):
    random = np.random.default_rng(0)
    (inputs, labels), (others, _) = points(random, 60, classes), points(random, 20, classes)
    fitted = few_rows.Regressions(inputs, labels, others)
    for strength in few_rows.STRENGTHS:
        model = LogisticRegression(C=strength, max_iter=1000).fit(inputs, labels)
        logits = fitted.test_logits[strength]
        probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        np.testing.assert_allclose(probabilities, model.predict_proba(others), atol=0.01)


def test_a_row_is_not_scored_by_a_classifier_of_its_fold():
    inputs, labels = np.eye(3, dtype=np.float32), np.arange(3)
    fitted = few_rows.Regressions(inputs, labels, inputs)
    # With one row per class, no other row shows the class of a row.
    assert few_rows.accuracy(fitted.logits[100.0], labels) == 0
    assert few_rows.accuracy(fitted.test_logits[100.0], labels) == 1


def test_pictures_are_either_trained_on_or_tested():
    table = pandas.DataFrame({"label": np.arange(24) % 2})
    for train, test in few_rows.picture_parts(table, 4, [0, 1]):
        assert len(train) == 8 and sorted([*train.index, *test.index]) == list(range(24))
    folds = list(few_rows.picture_parts(table, None, [0, 1, 2]))
    assert sorted(row for _, test in folds for row in test.index) == list(range(24))
    assert all(not set(train.index) & set(test.index) for train, test in folds)


@pytest.fixture
def data(tmp_path):
    """A folder with a set of texts, a csv file of pairs and a folder of pictures."""
    random = np.random.default_rng(0)

    def texts(rows):
        return ["\n".join(" ".join(random.choice(WORDS, 4)) for _ in range(2)) for _ in range(rows)]

    (tmp_path / "set").mkdir()
    for part, rows in (("train", 24), ("test", 12)):
        table = pandas.DataFrame({"text": texts(rows), "label": ["a", "b"] * (rows // 2)})
        table.to_csv(tmp_path / "set" / f"{part}.csv", index=False)
    pairs = {"sentence1": texts(30), "sentence2": texts(30), "score": [1.0, 4.0] * 15}
    pandas.DataFrame(pairs).to_csv(tmp_path / "pairs.csv", index=False)
    for name in ("ants", "bees"):
        (tmp_path / "train" / name).mkdir(parents=True)
        for i in range(6):
            picture = Image.fromarray(random.integers(256, size=(40, 32, 3), dtype=np.uint8))
            picture.save(tmp_path / "train" / name / f"{i}.png")
    return tmp_path


@pytest.mark.heavy
@pytest.mark.parametrize(
    "measurement, model, name, size, lines",
    [
        # Four scalings and three rules; six kinds of inputs and the most frequent class.
        ("classifiers", ENCODER, "set", 4, 12),
        ("intervals", ENCODER, "set", 4, 1),
        ("pairs", ENCODER, "pairs.csv", 4, 7),
        ("columns", ENCODER, "set", 4, 7),
        ("texts", ENCODER, "set", 20, 1),
        ("pictures", IMAGES, "train", 4, 1),
    ],
)
def test_every_measurement_runs_once(call, data, measurement, model, name, size, lines):
    flags = [measurement, model, data / name, "--output", data / "out.csv", "--sizes", size, "--seeds", 0]
    for _ in range(2):
        call(few_rows, *flags)
        with (data / "out.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert len(rows) == lines
    scores = [float(row.get("accuracy") or row["tuned"]) for row in rows]
    assert all(0 <= score <= 1 for score in scores)
