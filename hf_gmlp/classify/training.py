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
from .inputs import Pictures, Texts, embed, run
from .plan import FITTED, FOLDS, FROZEN, Plan, fold_numbers, held_out_rows

if TYPE_CHECKING:
    from .classifier import Classifier

logger = logging.getLogger(__name__)


@dataclass
class Evaluation:
    """Predictions for rows that the classifier was not trained on.

    Attributes:
        rows: [M], the indices of these rows, in the training data or, if there are any, the validation data.
        logits: [M, outputs].
        labels: [M], class ids or numbers, or [M, classes] with 1 for each class of a row.
        folds: [M], the fold of each row, in a cross-validation.
        calibration: What was done to the probabilities, in a sentence.
    """

    rows: np.ndarray
    logits: np.ndarray
    labels: np.ndarray
    folds: np.ndarray | None = None
    is_validation: bool = False
    calibration: str = ""

    @property
    def inflation(self) -> float:
        """The factor of the variance of a score: that of a cross-validation, whose models share training rows."""
        return 1.0 if self.folds is None else CROSS_VALIDATED


class Scored(NamedTuple):
    """Rows that score a classifier: as they were passed, as `inputs` encodes them, and their labels as in `Facts`."""

    rows: list
    encoded: list[dict]
    labels: np.ndarray


@dataclass
class Training:
    """One training: what a plan is carried out on.

    Attributes:
        make_model: Returns the checkpoint with a new classifier.
        rows: The texts or pictures, as `inputs` checks them.
        encoded: The same, as `inputs` encodes them.
        labels: [N], as in `Facts`.
        groups: [N], the same number for equal rows.
        validation: Rows and labels for scores, instead of held-out rows.
        folder: Where to write checkpoints, and the settings with which a run there can be resumed.
    """

    make_model: Callable[[], PreTrainedModel]
    inputs: Texts | Pictures
    rows: list
    encoded: list[dict]
    labels: np.ndarray
    groups: np.ndarray
    validation: Scored | None
    options: "Classifier"
    folder: Path | None = None
    settings: dict[str, object] | None = None

    @property
    def seed(self) -> int:
        return self.options.random_state or 0

    def run(self, plan: Plan) -> tuple[PreTrainedModel, Evaluation | None, Plan]:
        """Return the trained model, what it predicts for rows that it was not trained on, and what was carried out."""
        if plan.compare:
            return self.compare(plan)
        model, evaluation = self.frozen(plan) if plan.training == FROZEN else self.fine_tuned(plan)
        return model, evaluation, plan

    def compare(self, plan: Plan) -> tuple[PreTrainedModel, Evaluation | None, Plan]:
        """Fine-tune on nine tenths of the rows, and keep the result only if it is better on the others."""
        model, tuned = self.fine_tuned(plan)
        assert tuned is not None
        train = np.setdiff1d(np.arange(len(self.labels)), tuned.rows)
        start = self.make_model()
        inputs = self.embed(start, self.encoded)
        linear = self.fit(start, inputs[train], self.labels[train])
        right = [
            predicted(logits, start.config.problem_type) == tuned.labels
            for logits in (tuned.logits, linear(inputs[tuned.rows]))
        ]
        right = [rows.reshape(len(tuned.rows), -1).all(axis=1) for rows in right]
        comparison = compare(*right)
        scores = " and ".join(f"{rows.mean():.3f}" for rows in right)
        logger.info("On %d held-out rows, fine-tuned and frozen have %s: %s.", len(tuned.rows), scores, comparison)
        if comparison.low > 0:
            return model, tuned, plan
        plan = replace(plan, training=FROZEN, compare=False, folds=FOLDS)
        return *self.frozen(plan), plan

    def embed(self, model: PreTrainedModel, encoded: list[dict]) -> np.ndarray:
        """Return embeddings [N, D], computed in the type that the options name."""
        return embed(self.options.as_computed(model), self.inputs, encoded, self.options.batch_rows)

    def fit(self, model: PreTrainedModel, inputs: np.ndarray, labels: np.ndarray) -> frozen.Linear:
        """Fit a linear classifier to embeddings [N, D]."""
        config, balanced = model.config, self.options.class_weights is not None
        return frozen.fit(inputs, labels, config.problem_type, config.num_labels, balanced)

    def logits(self, model: PreTrainedModel, encoded: list[dict]) -> np.ndarray:
        """Return the logits [N, outputs] of rows."""
        model = self.options.as_computed(model)
        return run(model, self.inputs, encoded, self.options.batch_rows, lambda outputs: outputs.logits)

    def select(self, rows: np.ndarray) -> Scored:
        return Scored([self.rows[row] for row in rows], [self.encoded[row] for row in rows], self.labels[rows])

    def frozen(self, plan: Plan) -> tuple[PreTrainedModel, Evaluation | None]:
        """Fit the final layer to the embeddings of all rows, and score it by cross-validation or validation rows."""
        model = self.make_model()
        inputs = self.embed(model, self.encoded)
        self.fit(model, inputs, self.labels).write(model.classifier)
        if self.validation is not None:
            logits, labels = self.logits(model, self.validation.encoded), self.validation.labels
            return model, Evaluation(np.arange(len(labels)), logits, labels, is_validation=True)
        if not plan.folds:
            return model, None
        folds = fold_numbers(self.labels, self.groups, plan.folds, self.seed)
        logits = np.empty((len(self.labels), model.config.num_labels))
        for fold in range(plan.folds):
            rest = folds != fold
            logits[~rest] = self.fit(model, inputs[rest], self.labels[rest])(inputs[~rest])
        return model, Evaluation(np.arange(len(folds)), logits, self.labels, folds)

    def fine_tuned(self, plan: Plan) -> tuple[PreTrainedModel, Evaluation | None]:
        """Train all weights, and score them on validation rows, held-out rows, or by cross-validation."""
        held_out = np.zeros(len(self.labels), dtype=bool)
        if plan.held_out:
            held_out = held_out_rows(self.labels, self.groups, plan.held_out, self.seed)
        rows, train = np.flatnonzero(held_out), np.flatnonzero(~held_out)
        scored = self.validation
        if scored is None and len(rows):
            scored = self.select(rows)
        model = self.make_model()
        steps = self.fine_tune(model, train, scored, plan, self.folder, self.settings)
        evaluation = None
        if plan.folds:
            # The same number of steps, without a held-out part.
            fold_plan = replace(plan, max_steps=steps, held_out=0.0)
            evaluation = self.cross_validate(fold_plan)
        elif scored is not None:
            logits, is_validation = self.logits(model, scored.encoded), self.validation is not None
            rows = np.arange(len(scored.labels)) if is_validation else rows
            evaluation = Evaluation(rows, logits, scored.labels, is_validation=is_validation)
        return model, evaluation

    def cross_validate(self, plan: Plan) -> Evaluation:
        """Score all rows by models that are fine-tuned on the rows of the other folds."""
        folds = fold_numbers(self.labels, self.groups, plan.folds, self.seed)
        logits: list[np.ndarray] = []
        for fold in range(plan.folds):
            logger.info("Cross-validation: fold %d of %d, %d steps", fold + 1, plan.folds, plan.max_steps)
            model, rows = self.make_model(), np.flatnonzero(folds == fold)
            self.fine_tune(model, np.flatnonzero(folds != fold), None, plan)
            logits.append(self.logits(model, self.select(rows).encoded))
        order = np.argsort(np.concatenate([np.flatnonzero(folds == fold) for fold in range(plan.folds)]))
        return Evaluation(np.arange(len(folds)), np.concatenate(logits)[order], self.labels, folds)

    def fine_tune(
        self,
        model: PreTrainedModel,
        rows: np.ndarray,
        scored: Scored | None,
        plan: Plan,
        folder: Path | None = None,
        settings: dict[str, object] | None = None,
    ) -> int:
        """Train all weights on some rows, and return the number of steps of the model that was kept."""
        from .fine_tuning import fine_tune

        _, encoded, labels = self.select(rows)
        if plan.training == FITTED:
            self.fit(model, self.embed(model, encoded), labels).write(model.classifier)
        with tempfile.TemporaryDirectory() as temporary:
            place = (Path(temporary), None) if folder is None else (folder, settings)
            parts = (encoded, labels, None if scored is None else scored[1:])
            return fine_tune(model, self.inputs, *parts, plan, self.options, *place)

    def baseline(self, evaluation: Evaluation) -> np.ndarray | None:
        """Return the class ids [M] that the baseline predicts for the rows of the evaluation; None if it cannot."""
        kind = self.inputs.kind
        if evaluation.folds is not None:
            return baseline_predictions(kind, self.rows, self.labels, None, evaluation.folds)
        if self.validation is not None:
            return baseline_predictions(kind, self.rows, self.labels, self.validation.rows, None)
        train = self.select(np.setdiff1d(np.arange(len(self.labels)), evaluation.rows))
        return baseline_predictions(kind, train.rows, train.labels, self.select(evaluation.rows).rows, None)


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
        for weight in model.classifier.parameters():
            weight.div_(temperature)
    evaluation.logits = evaluation.logits / temperature
    evaluation.calibration = (
        f"{error} {after:.3f} with the temperature {temperature:.2f}, measured on other rows than it was fitted to "
        f"({before:.3f} without it)."
    )
