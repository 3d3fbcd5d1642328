"""Classifiers on frozen sentence embeddings, for few labeled rows: logistic regression, or ridge regression of numbers.

Its coefficients become the weights of a model's classifier, so that the result is an ordinary classifier.
"""

import logging
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from datasets import Dataset
from scipy.special import log_expit, log_softmax
from sklearn.linear_model import LogisticRegression, Ridge
from torch.utils.data import DataLoader
from transformers import PreTrainedConfig, PreTrainedModel

from ..data.labels import CLASSES, ONE_CLASS, REGRESSION, Labels
from ..errors import InputError
from ..metrics.calibration import fit_temperature

logger = logging.getLogger(__name__)

# By default, more rows per class, or in all, are fine-tuned on.
MAX_ROWS_PER_CLASS, MAX_ROWS = 1000, 20_000
# The strengths to choose from; a larger one means less regularization.
STRENGTHS = (0.01, 0.1, 1.0, 10.0, 100.0)
FOLDS = 5


class Classifier(NamedTuple):
    """The weights of a linear layer, and its outputs for the rows that it was fitted to."""

    weight: np.ndarray  # [outputs, D]
    bias: np.ndarray  # [outputs]
    # [rows, outputs], each row from a classifier that was not fitted to it.
    logits: np.ndarray
    strength: float  # C of logistic regression, the inverse of alpha of ridge regression


def is_encoder(config: PreTrainedConfig) -> bool:
    """Return whether a checkpoint has trained sentence embeddings: a text model that was saved without a head."""
    return "GMLPModel" in (config.architectures or ())


def should_freeze(config: PreTrainedConfig, labels: Labels, rows: Dataset, fine_tune: bool | None) -> bool:
    """Return whether to train only the classifier, and log why.

    Args:
        config: The config of the checkpoint.
        rows: The training rows, with the column "labels".
        fine_tune: The user's choice. By default, it depends on the checkpoint and the number of rows.

    Raises:
        InputError: If the user's choice is impossible.
    """
    pairs = "sentence2" in rows.column_names
    soft = labels.problem_type == ONE_CLASS and isinstance(rows["labels"][0], list)
    if fine_tune is False and (not is_encoder(config) or soft):
        reason = "labels that are probabilities" if soft else "a model without trained sentence embeddings"
        raise InputError(f"--fine_tune false does not work with {reason}: leave it out.")
    per_class = len(rows) / max(1, len(labels.names or ()))
    few = len(rows) <= MAX_ROWS and per_class <= MAX_ROWS_PER_CLASS
    freeze = is_encoder(config) and not soft and (not pairs and few if fine_tune is None else not fine_tune)
    if freeze:
        logger.info(
            "Few rows: all of them train a classifier on frozen embeddings, with cross-validation (all weights: "
            "--fine_tune true)"
        )
    return freeze


@torch.no_grad()
def embed(model: PreTrainedModel, dataset: Dataset, collate: Callable, batch_size: int) -> np.ndarray:
    """Return the `pooler_output` of tokenized texts, which the classifier reads: [rows, D]"""
    order = np.argsort([-len(ids) for ids in dataset["input_ids"]], kind="stable")
    rows = dataset.remove_columns("labels").select(order)
    encoder, vectors = model.base_model.eval(), []
    for batch in DataLoader(rows, batch_size, collate_fn=collate):
        vectors.append(encoder(**batch.to(model.device)).pooler_output.float().cpu().numpy())
    return np.concatenate(vectors)[np.argsort(order)]


def fit_classifier(
    inputs: np.ndarray, labels: np.ndarray, folds: np.ndarray, problem_type: str, outputs: int, balanced: bool = False
) -> Classifier:
    """Fit logistic or ridge regression, with the regularization that is best in cross-validation.

    Args:
        inputs: [rows, D].
        labels: [rows] class ids or numbers, or [rows, outputs] with 1 for each class of a row.
        folds: [rows], the number of each row's fold.
        outputs: The number of classes, or 1 for numbers.
        balanced: Whether to weight classes by the inverse of their number of rows.
    """
    best, best_loss, best_strength = np.empty((len(labels), outputs)), np.inf, STRENGTHS[0]
    for strength in STRENGTHS:
        logits = np.empty_like(best)
        for left_out in (folds == fold for fold in np.unique(folds)):
            weight, bias = _solve(inputs[~left_out], labels[~left_out], problem_type, outputs, strength, balanced)
            logits[left_out] = inputs[left_out] @ weight.T + bias
        loss = _loss(logits, labels, problem_type)
        if loss < best_loss:
            best, best_loss, best_strength = logits, loss, strength
    logger.info(
        "Regularization: strength %g, of %s the best in cross-validation", best_strength, ", ".join(map(str, STRENGTHS))
    )
    return Classifier(*_solve(inputs, labels, problem_type, outputs, best_strength, balanced), best, best_strength)


def _solve(
    inputs: np.ndarray, labels: np.ndarray, problem_type: str, outputs: int, strength: float, balanced: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return the weight [outputs, D] and bias [outputs] of one regression."""
    if problem_type == REGRESSION:
        ridge = Ridge(1 / strength).fit(inputs, labels)
        return ridge.coef_[None], np.array([ridge.intercept_])
    options = {"C": strength, "class_weight": "balanced" if balanced else None, "max_iter": 1000}
    weight, bias = np.zeros((outputs, inputs.shape[1])), np.zeros(outputs)
    if problem_type == CLASSES:
        for number, column in enumerate(labels.T):
            if 0 < column.sum() < len(column):
                model = LogisticRegression(**options).fit(inputs, column)
                weight[number], bias[number] = model.coef_[0], model.intercept_[0]
            else:
                # Laplace's rule of succession for a class that all rows have, or none.
                bias[number] = np.log((column.sum() + 1) / (len(column) - column.sum() + 1))
        return weight, bias
    classes = np.unique(labels)
    if len(classes) == 1:
        bias[classes] = np.log(100)
        return weight, bias
    model = LogisticRegression(**options).fit(inputs, labels)
    coefficients, intercepts = model.coef_, model.intercept_
    if len(classes) == 2:
        coefficients = np.concatenate([-coefficients, coefficients]) / 2
        intercepts = np.concatenate([-intercepts, intercepts]) / 2
    # A class without rows is a hundred times less probable than the least probable one.
    bias[:] = intercepts.min() - np.log(100)
    weight[classes], bias[classes] = coefficients, intercepts
    return weight, bias


def _loss(logits: np.ndarray, labels: np.ndarray, problem_type: str) -> float:
    """Return the mean loss; for one class per row, at the temperature that minimizes it."""
    if problem_type == REGRESSION:
        return float(np.square(logits[:, 0] - labels).mean())
    if problem_type == CLASSES:
        return -float(np.mean(labels * log_expit(logits) + (1 - labels) * log_expit(-logits)))
    logits = logits / fit_temperature(logits, labels)
    return -float(log_softmax(logits, axis=1)[np.arange(len(labels)), labels].mean())


@torch.no_grad()
def set_classifier(model: PreTrainedModel, classifier: Classifier):
    """Write the weights into a model's `classifier`."""
    model.classifier.weight.copy_(torch.from_numpy(classifier.weight))
    model.classifier.bias.copy_(torch.from_numpy(classifier.bias))
