"""Classifiers on frozen sentence embeddings: logistic regression, or ridge regression of numbers.

Its coefficients become the weights of a model's classifier, so that the result is an ordinary classifier. With few
labeled rows, nothing else is trained. With more, fine-tuning starts from it.
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
from transformers import PreTrainedModel

from ..data.labels import CLASSES, ONE_CLASS, REGRESSION, Labels
from ..errors import InputError
from ..metrics.calibration import fit_temperature

logger = logging.getLogger(__name__)

# By default, more rows are fine-tuned on (docs/log/sentences.md): per class, or of numbers or several classes in all.
MAX_ROWS_PER_CLASS, MAX_ROWS = 31, 1000
# All weights are trained, from a new classifier or from one that fits the embeddings; or only the classifier.
NEW, FITTED, FROZEN = "new", "fitted", "frozen"
# At most this many rows determine the classifier from which fine-tuning starts.
MAX_FITTED_ROWS = 20_000
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


def choose_training(has_embeddings: bool, labels: Labels, rows: Dataset, fine_tune: bool | None) -> str:
    """Return `NEW`, `FITTED` or `FROZEN`: what is trained, and from which classifier.

    Args:
        has_embeddings: Whether the checkpoint has trained sentence embeddings.
        rows: The training rows, with the column "labels".
        fine_tune: The user's choice. By default, it depends on the checkpoint and the number of rows.

    Raises:
        InputError: If the user's choice is impossible.
    """
    soft = labels.problem_type == ONE_CLASS and isinstance(rows["labels"][0], list)
    if fine_tune is False and (not has_embeddings or soft):
        raise InputError("--fine_tune false needs trained sentence embeddings, and classes or numbers: leave it out.")
    if not has_embeddings or soft:
        return NEW
    is_pair = "sentence2" in rows.column_names
    few = len(rows) <= (MAX_ROWS_PER_CLASS * len(labels.names or ()) if labels.problem_type == ONE_CLASS else MAX_ROWS)
    if fine_tune is False or (fine_tune is None and few and not is_pair):
        logger.info("All %d rows train a classifier on frozen embeddings (--fine_tune true: fine-tune)", len(rows))
        return FROZEN
    # The embeddings are those of single texts.
    return NEW if is_pair else FITTED


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
    logger.info("Regularization: strength %g is the best of %s in cross-validation", best_strength, STRENGTHS)
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
        columns = labels.T.astype(int)
        pairs, biases = zip(*(_solve(inputs, column, ONE_CLASS, 2, strength, balanced) for column in columns))
        return np.stack([pair[1] - pair[0] for pair in pairs]), np.array([pair[1] - pair[0] for pair in biases])
    classes = np.unique(labels)
    if len(classes) == 1:
        # Laplace's rule of succession.
        return weight, np.log(np.bincount(labels, minlength=outputs) + 1.0)
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
def set_classifier(model: PreTrainedModel, classifier: Classifier) -> None:
    """Write the weights into a model's `classifier`."""
    model.classifier.weight.copy_(torch.from_numpy(classifier.weight))
    model.classifier.bias.copy_(torch.from_numpy(classifier.bias))
