"""The training that a plan asks for: frozen or fine-tuned, compared, cross-validated and calibrated."""

import logging
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from transformers import PreTrainedModel

from ..data.labels import ONE_CLASS
from ..metrics.baseline import baseline_predictions
from ..metrics.calibration import CROSS_VALIDATED, calibrate, compare
from ..metrics.scores import predicted
from . import frozen
from .inputs import Pictures, Texts, embed, final_layer, run
from .plan import FITTED, FROZEN, NEW, Plan, fold_numbers, held_out_rows

if TYPE_CHECKING:
    from .classifier import Classifier

logger = logging.getLogger(__name__)


class Part(NamedTuple):
    """Rows as `inputs` checks them and as it encodes them, their labels as in `Facts`, and a number [N] for each row,
    the same for equal rows.
    """

    rows: list
    encoded: list[dict]
    labels: np.ndarray
    groups: np.ndarray

    def select(self, indices: np.ndarray) -> "Part":
        rows, encoded = ([values[index] for index in indices] for values in (self.rows, self.encoded))
        return Part(rows, encoded, self.labels[indices], self.groups[indices])


@dataclass
class Evaluation:
    """Predictions for rows that the classifier was not trained on.

    Attributes:
        rows: [M], the indices of these rows, in the training data or, if there are any, the validation data.
        logits: [M, outputs].
        labels: [M], class ids or numbers, or [M, classes] with 1 for each class of a row.
        how: How they were predicted, such as "Cross-validated".
        inflation: The factor of the variance of a score, relative to that of as many independent rows.
        folds: [M], the fold of each row, in a cross-validation.
        calibration: What was done to the probabilities, in a sentence.
    """

    rows: np.ndarray
    logits: np.ndarray
    labels: np.ndarray
    how: str
    inflation: float
    folds: np.ndarray | None = None
    calibration: str = ""


@dataclass
class Training:
    """One training: what a plan is carried out on.

    Attributes:
        make_model: Returns the checkpoint with a new classifier.
        validation: Data for scores, instead of held-out rows.
        folder: Where to write checkpoints, and the settings with which a run there can be resumed.
    """

    make_model: Callable[[], PreTrainedModel]
    inputs: Texts | Pictures
    data: Part
    validation: Part | None
    options: "Classifier"
    folder: Path | None = None
    settings: dict[str, object] | None = None

    @property
    def seed(self) -> int:
        return self.options.random_state or 0

    def run(self, plan: Plan) -> tuple[PreTrainedModel, Evaluation | None, Plan]:
        """Return the trained model, what it predicts for rows that it was not trained on, and what was carried out."""
        return self.frozen(plan) if plan.training == FROZEN else self.fine_tuned(plan)

    def embed(self, model: PreTrainedModel, encoded: list[dict]) -> np.ndarray:
        """Return embeddings [N, D], computed in the type that the options name."""
        return embed(self.options.as_computed(model), self.inputs, encoded, self.options.batch_size)

    def fit(self, model: PreTrainedModel, inputs: np.ndarray, labels: np.ndarray) -> frozen.Linear:
        """Fit a linear classifier to embeddings [N, D]."""
        config, balanced = model.config, self.options.class_weights is not None
        return frozen.fit(inputs, labels, config.problem_type, config.num_labels, balanced)

    def frozen(self, plan: Plan) -> tuple[PreTrainedModel, Evaluation | None, Plan]:
        """Fit the final layer to the embeddings of all rows, and score it by cross-validation or validation data."""
        model, labels = self.make_model(), self.data.labels
        inputs = self.embed(model, self.data.encoded)
        self.fit(model, inputs, labels).write(final_layer(model))
        if not plan.folds:
            return model, self.validate(model), plan
        folds = fold_numbers(labels, self.data.groups, plan.folds, self.seed)
        logits = np.empty((len(labels), model.config.num_labels))
        for fold in range(plan.folds):
            rest = folds != fold
            logits[~rest] = self.fit(model, inputs[rest], labels[rest])(inputs[~rest])
        return model, self.evaluation(logits, self.data, "Cross-validated", folds=folds), plan

    def fine_tuned(self, plan: Plan) -> tuple[PreTrainedModel, Evaluation | None, Plan]:
        """Train all weights, and score them by cross-validation, validation data or held-out rows."""
        held_out = np.zeros(len(self.data.labels), dtype=bool)
        if plan.held_out:
            held_out = held_out_rows(self.data.labels, self.data.groups, plan.held_out, self.seed)
        rows, train = np.flatnonzero(held_out), np.flatnonzero(~held_out)
        part = self.data.select(rows) if len(rows) else None
        model = self.make_model()
        steps = self.fine_tune(model, train, part, plan, self.folder, self.settings)
        if plan.otherwise and not (part and self.is_better(model, train, part)):
            return self.frozen(plan.otherwise)
        if plan.folds:
            # The same number of steps, without a held-out part.
            return model, self.cross_validate(replace(plan, max_steps=steps, held_out=0.0)), plan
        if self.validation is not None or part is None:
            return model, self.validate(model), plan
        how = "On held-out rows" + (", which also chose the best of ten evaluations" if plan.training == NEW else "")
        return model, self.evaluation(self.logits(model, part.encoded), part, how, rows), plan

    def is_better(self, model: PreTrainedModel, train: np.ndarray, held_out: Part) -> bool:
        """Return whether a fine-tuned model is better on held-out rows than frozen embeddings, by more than chance."""
        start = self.make_model()
        linear = self.fit(start, self.embed(start, self.data.select(train).encoded), self.data.labels[train])
        right = []
        for logits in (self.logits(model, held_out.encoded), linear(self.embed(start, held_out.encoded))):
            values = predicted(logits, start.config.problem_type)
            right.append((values == held_out.labels).reshape(len(values), -1).all(axis=1))
        comparison, scores = compare(*right), [f"{rows.mean():.3f}" for rows in right]
        text = "On %d held-out rows, the model has %s fine-tuned, and %s frozen, as a baseline: %s."
        logger.info(text, len(held_out.labels), *scores, comparison)
        return comparison.low > 0

    def logits(self, model: PreTrainedModel, encoded: list[dict]) -> np.ndarray:
        """Return the logits [N, outputs] of rows."""
        model = self.options.as_computed(model)
        return run(model, self.inputs, encoded, self.options.batch_size, lambda outputs: outputs.logits)

    def evaluation(
        self, logits: np.ndarray, part: Part, how: str, rows: np.ndarray | None = None, folds: np.ndarray | None = None
    ) -> Evaluation:
        """Return the evaluation of a part of the rows, by default all of the training or validation data."""
        rows = np.arange(len(part.labels)) if rows is None else rows
        inflation = copies_per_row(part.groups) * (1.0 if folds is None else CROSS_VALIDATED)
        return Evaluation(rows, logits, part.labels, how, inflation, folds)

    def validate(self, model: PreTrainedModel) -> Evaluation | None:
        """Score a model on the validation data, if there are any."""
        if self.validation is None:
            return None
        return self.evaluation(self.logits(model, self.validation.encoded), self.validation, "On the validation data")

    def cross_validate(self, plan: Plan) -> Evaluation:
        """Score all rows by models that are fine-tuned on the rows of the other folds."""
        folds = fold_numbers(self.data.labels, self.data.groups, plan.folds, self.seed)
        logits: list = [None] * len(folds)
        for fold in range(plan.folds):
            logger.info("Cross-validation: fold %d of %d, %d steps", fold + 1, plan.folds, plan.max_steps)
            model, rows = self.make_model(), np.flatnonzero(folds == fold)
            self.fine_tune(model, np.flatnonzero(folds != fold), None, plan)
            for row, result in zip(rows, self.logits(model, self.data.select(rows).encoded)):
                logits[row] = result
        return self.evaluation(np.stack(logits), self.data, "Cross-validated", folds=folds)

    def fine_tune(
        self,
        model: PreTrainedModel,
        rows: np.ndarray,
        held_out: Part | None,
        plan: Plan,
        folder: Path | None = None,
        settings: dict[str, object] | None = None,
    ) -> int:
        """Train all weights on some rows, and return the number of steps of the model that was kept."""
        from .fine_tuning import fine_tune

        part = self.data.select(rows)
        if plan.training == FITTED:
            self.fit(model, self.embed(model, part.encoded), part.labels).write(final_layer(model))
        with tempfile.TemporaryDirectory() as temporary:
            return fine_tune(
                model, self.inputs, part, held_out, plan, self.options, folder or Path(temporary), settings
            )

    def baseline(self, evaluation: Evaluation) -> np.ndarray | None:
        """Return the class ids [M] that the baseline predicts for the rows of the evaluation; None if it cannot."""
        kind, data, scored = self.inputs.kind, self.data, self.validation
        if evaluation.folds is not None:
            return baseline_predictions(kind, data.rows, data.labels, None, evaluation.folds)
        if scored is None:
            scored = data.select(evaluation.rows)
            data = data.select(np.setdiff1d(np.arange(len(data.labels)), evaluation.rows))
        return baseline_predictions(kind, data.rows, data.labels, scored.rows, None)


def copies_per_row(groups: np.ndarray) -> float:
    """Return the mean number of copies of a row, itself included: the factor of the variance of a score."""
    counts = np.unique(groups, return_counts=True)[1]
    return float((counts**2).sum() / counts.sum())


def apply_temperature(model: PreTrainedModel, evaluation: Evaluation) -> None:
    """Divide the final layer, and the logits of the evaluation, by a temperature, if this lowers the calibration error.

    Pipelines, exports and other code then have calibrated probabilities. Which class has the largest one stays the
    same.
    """
    if model.config.problem_type != ONE_CLASS or len(evaluation.labels) < 2:
        return
    temperature, before, after = calibrate(evaluation.logits, evaluation.labels)
    error = "The expected calibration error of the probabilities is"
    if after >= before:
        evaluation.calibration = f"{error} {before:.3f}; a temperature would not lower it."
        return
    with torch.no_grad():
        for weight in final_layer(model).parameters():
            weight.div_(temperature)
    evaluation.logits = evaluation.logits / temperature
    evaluation.calibration = (
        f"{error} {after:.3f} with the temperature {temperature:.2f}, measured on other rows than it was fitted to "
        f"({before:.3f} without it)."
    )
