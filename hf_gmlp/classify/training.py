"""The training that a plan asks for: frozen or fine-tuned, compared, cross-validated and calibrated."""

import logging
import math
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from datasets import Dataset, Image
from transformers import EarlyStoppingCallback, PreTrainedModel

from ..data.labels import ONE_CLASS, REGRESSION
from ..loading import choose_dtype
from ..metrics.calibration import CROSS_VALIDATED, calibrate, compare
from ..metrics.scores import predicted, rows_right
from ..tasks.classification import balanced_weights, weighted_loss
from ..training.arguments import RunArguments
from ..training.run_folder import resume_point
from . import frozen
from .evaluation import Evaluation
from .inputs import final_layer, run
from .plan import FITTED, FROZEN, NEW, Plan, fold_numbers, held_out_rows

if TYPE_CHECKING:
    from .classifier import Classifier

logger = logging.getLogger(__name__)

# More tokens are computed in several parts of a step, in less memory.
MAX_TOKENS = 8192
# Arguments of fine-tuning. Batches of texts of similar length halve the time. W needs a higher rate in short runs.
TEXT_ARGUMENTS = {"warmup_steps": 0.1, "weight_decay": 0.01, "train_sampling_strategy": "group_by_length"}
TEXT_ARGUMENTS |= {"spatial_lr_multiplier": 5.0}
# The values of recipes/finetune-images.yaml.
PICTURE_ARGUMENTS = {"lr_scheduler_type": "cosine", "warmup_steps": 0.05, "weight_decay": 0.05}
SMOOTHING = 0.1
# The indices of rows that are trained on and of rows that are scored.
Split = tuple[np.ndarray, np.ndarray]


@dataclass
class Training:
    """What a plan is carried out on."""

    # The untrained classifier: its options, inputs, config and `new_model`.
    classifier: "Classifier"
    # All rows as the inputs check them and as they encode them, validation data last.
    rows: list
    encoded: list[dict]
    # [N], as in `Facts`; and a number for each row [N], the same for equal rows.
    labels: np.ndarray
    groups: np.ndarray
    # The number of training rows.
    count: int
    # Where to write checkpoints, from which a run with equal options continues.
    folder: Path | None = None

    def __post_init__(self) -> None:
        self.seed = self.classifier.random_state or 0
        self.config, self.inputs = self.classifier.config_, self.classifier.inputs_

    def run(self, plan: Plan) -> tuple[PreTrainedModel, Evaluation | None, Plan]:
        """Return the trained model, what it predicts for rows that it was not trained on, and what was carried out."""
        train, validation = np.split(np.arange(len(self.labels)), [self.count])
        held_out = np.zeros(self.count, dtype=bool)
        if plan.held_out:
            held_out = held_out_rows(self.labels[train], self.groups[train], plan.held_out, self.seed)
        part = train[~held_out], train[held_out]
        model = self.classifier.new_model()
        if plan.training != FROZEN:
            steps = self.fine_tune(model, part, plan, resumes=self.folder is not None)
        if plan.otherwise is not None and not self.is_better(model, part):
            plan, model = plan.otherwise, self.classifier.new_model()
        splits = [(train, validation) if len(validation) or not plan.held_out else part]
        if plan.folds:
            numbers = fold_numbers(self.labels[train], self.groups[train], plan.folds, self.seed)
            splits = [(train[numbers != fold], train[numbers == fold]) for fold in range(plan.folds)]
        if plan.training == FROZEN:
            # The last fit is kept.
            return model, self.fit(model, [*splits, (train, train[:0])] if plan.folds else splits), plan
        logits = np.empty((len(self.labels), self.config.num_labels))
        for number, (train, scored) in enumerate(splits, start=1):
            scored_model = model
            if plan.folds:
                logger.info("Cross-validation: fold %d of %d, %d steps", number, plan.folds, steps)
                scored_model = self.classifier.new_model()
                # The same number of steps, without a held-out part.
                self.fine_tune(scored_model, (train, train[:0]), replace(plan, max_steps=steps))
            logits[scored] = self.compute(scored_model, scored)
        best = ", which also chose the best of ten evaluations" if plan.training == NEW else ""
        return model, self.evaluation(logits, splits, best), plan

    def fit(self, model: PreTrainedModel, splits: list[Split]) -> Evaluation | None:
        """Evaluate linear classifiers on the embeddings of a model, and write the last one into its final layer."""
        problem_type, outputs = self.config.problem_type, self.config.num_labels
        embeddings = self.compute(model, np.arange(len(self.labels)), embeddings=True)
        logits = np.empty((len(self.labels), outputs))
        for train, scored in splits:
            labels, class_weight = self.labels[train], self.classifier.class_weights
            weight, bias = frozen.fit(embeddings[train], labels, problem_type, outputs, class_weight)
            logits[scored] = embeddings[scored] @ weight.T + bias
        final_layer(model).load_state_dict({"weight": torch.from_numpy(weight), "bias": torch.from_numpy(bias)})
        return self.evaluation(logits, splits)

    def is_better(self, model: PreTrainedModel, part: Split) -> bool:
        """Return whether a fine-tuned model is better on held-out rows than frozen embeddings, by more than chance."""
        held_out = part[1]
        baseline = self.fit(self.classifier.new_model(), [part])
        assert baseline is not None
        values = predicted(self.compute(model, held_out), self.config.problem_type)
        right = rows_right(values, self.labels[held_out])
        comparison = compare(right, baseline.right)
        text = "On %d held-out rows, the model has %.3f fine-tuned, and %.3f frozen, as a baseline: %s."
        logger.info(text, len(held_out), right.mean(), baseline.right.mean(), comparison)
        return comparison.low > 0

    def compute(self, model: PreTrainedModel, rows: np.ndarray, *, embeddings: bool = False) -> np.ndarray:
        """Return the logits [N, outputs] or embeddings [N, D] of rows."""
        encoded = [self.encoded[row] for row in rows]
        return run(model, self.inputs, encoded, self.classifier, embeddings=embeddings)

    def evaluation(self, logits: np.ndarray, splits: list[Split], best: str = "") -> Evaluation | None:
        """Return the evaluation of the scored rows of the splits, from the logits of all rows; None without rows."""
        splits = [split for split in splits if len(split[1])]
        if not splits:
            return None
        rows = np.sort(np.concatenate([scored for _, scored in splits]))
        copies = np.unique(self.groups[rows], return_counts=True)[1]
        # The mean number of copies of a row, itself included.
        inflation = float((copies**2).sum() / copies.sum())
        how = "On the validation data" if rows[0] >= self.count else f"On held-out rows{best}"
        if len(splits) > 1:
            how, inflation = "Cross-validated", inflation * CROSS_VALIDATED
        return Evaluation(self.config, self.inputs.kind, rows, logits[rows], self.labels[rows], how, inflation, splits)

    def fine_tune(self, model: PreTrainedModel, split: Split, plan: Plan, *, resumes: bool = False) -> int:
        """Train all weights of a model, in place, and return the number of steps until the model that is kept.

        Args:
            split: Rows to train on, and rows to choose the best of ten evaluations of a `NEW` classifier, if any.
            resumes: Whether to continue from a checkpoint in the folder.
        """
        # This import takes a second.
        from ..training.trainer import GMLPTrainer

        (rows, held_out), config, is_text = split, self.config, self.inputs.kind == "text"
        evaluate = plan.training == NEW and len(held_out) > 0
        with tempfile.TemporaryDirectory() as temporary:
            args = self.arguments(plan, rows, str(self.folder) if resumes else temporary, evaluate)
            # The result on another processor may be computed in another type.
            options = {name: value for name, value in self.classifier.get_params().items() if name != "dtype"}
            checkpoint = resume_point(args, options) if resumes else None
            if plan.training == FITTED:
                self.fit(model, [(rows, rows[:0])])
            if plan.training == FITTED and is_text:
                # Their small updates would lose what the encoder learned about rare words.
                model.get_input_embeddings().requires_grad_(False)
            loss, weights = None, None
            if self.classifier.class_weights is not None:
                weights = balanced_weights(self.labels[rows].tolist(), config)
            if config.problem_type == ONE_CLASS:
                loss = weighted_loss(args.label_smoothing_factor, weights)
            # The loss of a regression depends on the unit of its numbers. Other losses creep towards zero.
            stop = EarlyStoppingCallback(3, 0.0 if config.problem_type == REGRESSION else 0.001)
            args.restore_callback_states_from_checkpoint = evaluate
            collate = self.inputs.collate
            if not is_text:
                from ..tasks.image_classification import ImageCollator, image_size, training_transform

                processor = self.inputs.processing_class
                size = image_size(config, processor)
                transform = training_transform(size, processor.image_mean, auto_augment="imagenet")
                collate = ImageCollator(processor, transform, seed=args.seed)
                normalize = collate.before_forward
                hook = model.register_forward_pre_hook(normalize, with_kwargs=True)
            trainer = GMLPTrainer(
                model=model,
                args=args,
                train_dataset=self.dataset(rows),
                eval_dataset=self.dataset(held_out) if evaluate else None,
                processing_class=self.inputs.processing_class,
                data_collator=collate,
                compute_loss_func=loss,
                callbacks=[stop] if evaluate else [],
                card={},
            )
            trainer.train_and_evaluate(checkpoint)
        model.requires_grad_(True)
        if not is_text:
            hook.remove()
        return trainer.state.best_global_step or trainer.state.global_step

    def arguments(self, plan: Plan, rows: np.ndarray, folder: str, evaluate: bool) -> RunArguments:
        """Return Trainer's arguments. With `evaluate`, the best of ten evaluations is kept, else the last model."""
        batch = min(self.classifier.batch_size, len(rows))
        part, epochs = batch, math.ceil(plan.min_steps / math.ceil(len(rows) / batch))
        settings: dict[str, Any] = PICTURE_ARGUMENTS
        if self.inputs.kind == "text":
            longest = max(len(self.encoded[row]["input_ids"]) for row in rows)
            settings, part = TEXT_ARGUMENTS, min(batch, max(1, MAX_TOKENS // longest))
        elif self.config.problem_type == ONE_CLASS:
            settings = settings | {"label_smoothing_factor": SMOOTHING}
        if evaluate:
            settings = settings | {"eval_strategy": "steps", "eval_steps": 0.1, "load_best_model_at_end": True}
        return RunArguments(
            output_dir=folder,
            do_train=True,
            num_train_epochs=max(plan.num_train_epochs, epochs),
            max_steps=plan.max_steps,
            learning_rate=plan.learning_rate,
            global_batch_size=batch,
            per_device_train_batch_size=part,
            per_device_eval_batch_size=batch,
            adam_epsilon=1e-6,
            logging_steps=0.1,
            save_steps=0.1,
            save_total_limit=1,
            report_to="none",
            bf16=choose_dtype(self.classifier.dtype) is torch.bfloat16,
            use_cpu=not torch.accelerator.is_available(),
            seed=self.seed,
            remove_unused_columns=False,
            **settings,
        )

    def dataset(self, rows: np.ndarray) -> Dataset:
        """Return encoded rows with their "labels"; pictures as "image", with an "index"."""
        encoded, labels = [self.encoded[row] for row in rows], self.labels[rows].tolist()
        if self.inputs.kind == "text":
            return Dataset.from_list(encoded).add_column("labels", labels)
        pictures = Dataset.from_dict({"image": encoded, "labels": labels, "index": list(range(len(labels)))})
        # Without this type, a column of paths alone cannot be hashed.
        return pictures.cast_column("image", Image(decode=False))


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
