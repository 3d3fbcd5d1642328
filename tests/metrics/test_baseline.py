import numpy as np
import pytest
from PIL import Image
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import PredefinedSplit, cross_val_predict
from sklearn.pipeline import make_pipeline

from hf_gmlp.metrics.baseline import baseline_predictions, color_histograms

from ..samples import opinions, write_photos

ALL = np.arange(8)


def sample(count, seed):
    """Return rows of one text, and labels."""
    rows = opinions(count, seed)
    return [(row["sentence"],) for row in rows], np.array([row["label"] for row in rows])


def test_texts_are_predicted_as_scikit_learn_does_with_words_and_pairs_of_words():
    (rows, labels), (scored, new_labels) = sample(24, 0), sample(30, 1)
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    model = make_pipeline(vectorizer, LogisticRegression(C=10))
    expected = model.fit([text for (text,) in rows], labels).predict([text for (text,) in scored])
    splits = [(np.arange(24), np.arange(24, 54))]
    predictions = baseline_predictions("text", [*rows, *scored], np.concatenate([labels, new_labels]), splits)
    np.testing.assert_array_equal(predictions[24:], expected)
    folds = PredefinedSplit(np.arange(24) // 5)
    expected = cross_val_predict(model, [text for (text,) in rows], labels, cv=folds)
    np.testing.assert_array_equal(baseline_predictions("text", rows, labels, folds.split()), expected)


def test_both_texts_of_a_pair_are_used():
    rows = [("same", word) for word in ("good", "bad") * 4]
    labels = np.arange(8) % 2
    np.testing.assert_array_equal(baseline_predictions("text", rows, labels, [(ALL, ALL)]), labels)


def test_pictures_are_compared_by_their_colors(tmp_path):
    paths = sorted(write_photos(tmp_path / "photos", 4, 0).rglob("*.png"))
    rows, labels = [{"bytes": None, "path": str(path)} for path in paths], np.arange(12) // 4
    predictions = baseline_predictions("picture", rows, labels, PredefinedSplit(np.arange(12) % 4).split())
    np.testing.assert_array_equal(predictions, labels)


def test_colors_are_counted_in_cubes(tmp_path):
    half = np.full((16, 16, 3), (255, 0, 40), dtype=np.uint8)
    half[:8] = (0, 64, 31)
    Image.fromarray(half).save(tmp_path / "half.png")
    (histogram,) = color_histograms([{"bytes": None, "path": str(tmp_path / "half.png")}])
    # Resizing blends a few rows of pixels between the two colors.
    assert np.square(histogram).sum() == pytest.approx(1)
    np.testing.assert_allclose(np.square(histogram[[2 * 8, 7 * 64 + 1]]), 0.5, atol=0.07)


@pytest.mark.parametrize("rows", [[("?!",)] * 4, [("word",)] * 4])
def test_what_cannot_be_computed_is_said(rows, caplog):
    labels = np.arange(4) % 2 if rows[0] == ("?!",) else np.zeros(4, dtype=int)
    assert baseline_predictions("text", rows, labels, [(ALL[:4], ALL[:4])]) is None
    assert "tf-idf with logistic regression, cannot be computed" in caplog.text
