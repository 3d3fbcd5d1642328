"""The baselines that a classifier is compared with: logistic regression on tf-idf of words, or on color histograms."""

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from ..errors import first_line

if TYPE_CHECKING:
    from PIL.Image import Image

logger = logging.getLogger(__name__)

BASELINES = {"text": "tf-idf with logistic regression", "picture": "logistic regression on color histograms"}


def color_histograms(pictures: Sequence[dict]) -> np.ndarray:
    """Return the color histograms of undecoded images of `datasets` [N, 512]."""
    from ..processor import decode_image

    return np.stack([color_histogram(decode_image(picture)) for picture in pictures])


def color_histogram(picture: "Image") -> np.ndarray:
    """Return the `pixel_histogram` of 8 x 8 x 8 ranges of colors [512], at 128 x 128 pixels."""
    return pixel_histogram(np.asarray(picture.resize((128, 128))), 8)


def pixel_histogram(pixels: np.ndarray, bins: int) -> np.ndarray:
    """Return the square roots of the fractions of pixels [height, width, 3] of type uint8 in ranges of colors [bins³],
    `bins` for each of red, green and blue."""
    indices = (pixels.reshape(-1, 3).astype(int) * bins // 256) @ (bins * bins, bins, 1)
    return np.sqrt(np.bincount(indices, minlength=bins**3) / len(indices))


def baseline_predictions(
    kind: str, rows: Sequence, labels: np.ndarray, splits: Iterable[tuple[np.ndarray, np.ndarray]]
) -> np.ndarray | None:
    """Return the class ids [N] that the baseline predicts for the scored rows; None if it cannot be trained.

    Args:
        rows: Tuples of texts, or undecoded images.
        labels: [N], their class ids.
        splits: Pairs of indices of rows to train on and rows to score, as scikit-learn's splitters yield them.
    """
    model: BaseEstimator = LogisticRegression(C=10, max_iter=1000)
    if kind == "picture":
        inputs = color_histograms(rows)
    else:
        inputs = np.array([" ".join(row) for row in rows], dtype=object)
        model = make_pipeline(TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True), model)
    predictions = np.empty_like(labels)
    try:
        for train, scored in splits:
            predictions[scored] = model.fit(inputs[train], labels[train]).predict(inputs[scored])
    except ValueError as error:
        # No word occurs, or there is a single class.
        logger.warning("The baseline, %s, cannot be computed: %s", BASELINES[kind], first_line(error))
        return None
    return predictions
