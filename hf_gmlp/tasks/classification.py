"""Class weights, early stopping and the report, for the classification of texts and of images."""

import dataclasses
import json
import logging
import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas
import torch
from accelerate.utils import release_memory
from datasets import Dataset
from scipy.special import softmax
from sklearn.metrics import confusion_matrix, log_loss, precision_recall_fscore_support
from torch import nn
from torch.nn import functional as F
from transformers import (
    EarlyStoppingCallback,
    EvalPrediction,
    PreTrainedConfig,
    TrainerCallback,
    TrainingArguments,
)
from transformers.modeling_outputs import ModelOutput

from ..data.labels import CLASSES, ONE_CLASS, REGRESSION
from ..errors import InputError
from ..metrics.calibration import (
    CROSS_VALIDATED,
    MIN_CALIBRATION_ROWS,
    MIN_SCORE_ROWS,
    Comparison,
    accuracy_in_words,
    accuracy_interval,
    calibrate,
    compare,
    correlation_in_words,
)
from ..training.arguments import DataArguments, RunArguments, flag
from ..training.run_folder import total_batch_size, write_text
from ..training.trainer import GMLPTrainer

logger = logging.getLogger(__name__)

# With more classes, only those with the lowest F1 are printed, and the plotted confusion matrix has no numbers.
MAX_PRINTED_CLASSES = 20
# With more classes there is no confusion matrix: that of ImageNet would have a million numbers.
MAX_MATRIX_CLASSES = 200


@dataclass
class ClassificationArguments(DataArguments):
    """Flags that the classification of texts and of images share."""

    class_weights: str | None = flag("balanced: weight each class in the loss by the inverse of its number of rows.")
    min_train_steps: int | None = flag(
        "Train for more epochs than --num_train_epochs if these have fewer optimizer steps.", interval="[1, inf)"
    )
    early_stopping_patience: int | None = flag(
        "Stop after this many evaluations without a better one (by --metric_for_best_model); 0: never.",
        interval="[0, inf)",
    )
    early_stopping_threshold: float = flag(
        "How much better an evaluation must be to count for --early_stopping_patience.", 0.001, interval="[0, inf)"
    )
    calibrate: bool = flag(
        "Divide the trained classifier by a temperature, so that its probabilities are as high as its accuracy on rows "
        "that it was not trained on. Needs 100 of them, and one class per row.",
        False,
    )

    def __post_init__(self):
        super().__post_init__()
        if self.class_weights not in (None, "balanced"):
            raise ValueError(f"--class_weights must be balanced, or left out, got {self.class_weights}.")

    def lengthen(self, args: RunArguments, rows: int):
        """Raise `args.num_train_epochs` to the number that --min_train_steps needs with this many training rows."""
        steps = math.ceil(rows / total_batch_size(args))
        if self.min_train_steps is not None and args.max_steps < 1:
            args.num_train_epochs = max(args.num_train_epochs, math.ceil(self.min_train_steps / steps))

    def callbacks(self, args: TrainingArguments, problem_type: str = ONE_CLASS) -> list[TrainerCallback]:
        """Return the callback of --early_stopping_patience, and let a resumed run restore its count of evaluations.

        Raises:
            InputError: If the best model is not kept.
        """
        if not self.early_stopping_patience:
            return []
        if not args.load_best_model_at_end:
            raise InputError("--early_stopping_patience needs --load_best_model_at_end and --eval_strategy steps.")
        args.restore_callback_states_from_checkpoint = True
        # The loss of a regression depends on the unit of its numbers.
        threshold = 0.0 if problem_type == REGRESSION else self.early_stopping_threshold
        return [EarlyStoppingCallback(self.early_stopping_patience, threshold)]


def check_evaluation(args: TrainingArguments):
    """Raise an InputError now for a flag of Trainer that would only fail in the evaluation after training."""
    if not args.eval_do_concat_batches:
        raise InputError("--eval_do_concat_batches false leaves nothing to compute metrics on: leave it out.")


def balanced_weights(labels: list, config: PreTrainedConfig) -> torch.Tensor:
    """Return a weight for each class, inversely proportional to its number of rows, with a mean of 1 over the rows."""
    if config.problem_type != ONE_CLASS:
        raise InputError("--class_weights is only for data with one class per row: leave it out.")
    rows = torch.tensor(labels)
    counts = rows.sum(0) if rows.ndim == 2 else torch.bincount(rows, minlength=config.num_labels)
    # Classes of the checkpoint that are absent from the data have a weight of 0.
    return counts.sum() / ((counts > 0).sum() * counts.clamp(min=1e-9)) * (counts > 0)


def weighted_loss(label_smoothing: float = 0.0, weights: torch.Tensor | None = None) -> Callable:
    """Return `compute_loss_func` for Trainer: weighted cross-entropy with labels [B] or probabilities [B, classes],
    which Trainer's own label smoother does not support. Labels are smoothed in training only.
    """

    def compute(
        outputs: ModelOutput, labels: torch.Tensor, num_items_in_batch: torch.Tensor | int | None = None
    ) -> torch.Tensor:
        logits = outputs["logits"].float()
        smoothing = label_smoothing if torch.is_grad_enabled() else 0.0
        weight = None if weights is None else weights.to(logits.device)
        total = F.cross_entropy(logits, labels, weight, label_smoothing=smoothing, reduction="sum")
        if num_items_in_batch is None:
            return total / len(logits)
        # Trainer counts all elements of the labels, here one per row and class.
        return total / (num_items_in_batch / labels.shape[1] if labels.ndim == 2 else num_items_in_batch)

    return compute


def logits_only(outputs: torch.Tensor | tuple, labels: torch.Tensor) -> torch.Tensor:
    """`preprocess_logits_for_metrics` for Trainer: drop the hidden states that some models return after the logits."""
    return outputs[0] if isinstance(outputs, tuple) else outputs


class KeptEvaluation:
    """`compute_metrics` for Trainer that keeps the logits and labels of the last evaluation, for `write_report`."""

    def __init__(self, compute: Callable[[EvalPrediction], dict[str, float]]):
        self.compute = compute
        self.logits, self.labels = np.empty(0), np.empty(0)

    def __call__(self, prediction: EvalPrediction) -> dict[str, float]:
        self.logits, self.labels = prediction.predictions, prediction.label_ids
        return self.compute(prediction)


def predicted(logits: np.ndarray, problem_type: str) -> np.ndarray:
    """Return class ids or numbers [samples], or 0 and 1 for each class [samples, classes], from all logits."""
    if problem_type == CLASSES:
        return (logits > 0).astype(int)
    return np.nan_to_num(logits).squeeze(-1) if problem_type == REGRESSION else logits.argmax(-1)


def names_of(values: np.ndarray, config: PreTrainedConfig) -> list:
    """Return the results of `predicted` as text: the name of a class, the names of several, or a number."""
    names = config.id2label
    if config.problem_type == REGRESSION:
        # Nine digits identify a float32.
        return [f"{value:.9g}" for value in values]
    if config.problem_type == CLASSES:
        return [", ".join(names[number] for number in row.nonzero()[0]) for row in values]
    return [names[number] for number in values]


@dataclass
class Evaluation:
    """What a classifier predicts for rows that it was not trained on.

    Attributes:
        logits: [N, classes], or [N, 1] of a regression.
        labels: [N], class ids or numbers, or [N, classes] of 0 and 1.
        rows: The columns of eval_predictions.csv that precede label and prediction.
        baseline: [N], the class ids that tf-idf with logistic regression predicts, trained on the same rows, if known.
        is_cross_validated: Whether each row was predicted by one of several models that were trained on other rows.
        calibration: A sentence on the probabilities.
    """

    logits: np.ndarray
    labels: np.ndarray
    rows: pandas.DataFrame
    baseline: np.ndarray | None = None
    is_cross_validated: bool = False
    calibration: str = ""

    def inflation(self) -> float:
        """Return the factor of the variance of a score."""
        return CROSS_VALIDATED if self.is_cross_validated else 1.0

    def facts(self, problem_type: str) -> tuple[list[str], Comparison | None]:
        """Return sentences on the score, and the comparison with the baseline of a model with one class per row."""
        labels, count, values = self.labels, len(self.labels), predicted(self.logits, problem_type)
        how, comparison = "Cross-validated" if self.is_cross_validated else "On held-out rows", None
        sentences: list[str] = []
        if problem_type == REGRESSION:
            if count > 3:
                sentences.append(f"{how}: correlation (Pearson) {correlation_in_words(values, labels)}.")
        else:
            right = (values == labels).reshape(count, -1).all(axis=1)
            sentences.append(f"{how}: accuracy {accuracy_in_words(int(right.sum()), count, self.inflation())}.")
        if problem_type == ONE_CLASS:
            name = "always the most frequent class" if self.baseline is None else "tf-idf with logistic regression"
            baseline_right = labels == (np.bincount(labels).argmax() if self.baseline is None else self.baseline)
            comparison = compare(right, baseline_right, self.inflation())
            sentences.append(f"The baseline ({name}) has {baseline_right.mean():.3f}: {comparison}.")
        if count < MIN_SCORE_ROWS:
            sentences.append(f"{count} rows are too few to tell much.")
        return [*sentences, self.calibration], comparison


def finish_evaluation(trainer: GMLPTrainer, evaluation: Evaluation, calibrate: bool) -> dict[str, float]:
    """Calibrate and save the model, write the report, and return the metrics, which replace those of the training.

    Args:
        trainer: The finished run, whose `compute_metrics` is a `KeptEvaluation`.
        calibrate: Whether to divide the classifier by a temperature.
    """
    config, kept = trainer.model.config, cast(KeptEvaluation, trainer.compute_metrics)
    if calibrate:
        calibrate_classifier(getattr(trainer.model, "classifier", None), evaluation)
        trainer.save_model(_internal_call=True)
    labels, count = evaluation.labels, len(evaluation.labels)
    metrics = kept.compute(EvalPrediction(evaluation.logits, labels)) | {"samples": count}
    if config.problem_type == ONE_CLASS:
        metrics["loss"] = log_loss(labels, softmax(evaluation.logits, axis=-1), labels=range(config.num_labels))
    if "accuracy" in metrics:
        interval = accuracy_interval(round(metrics["accuracy"] * count), count, evaluation.inflation())
        metrics["accuracy_low"], metrics["accuracy_high"] = interval
    results = {f"eval_{name}": value for name, value in metrics.items()}
    trainer.results |= results
    if evaluation.baseline is not None:
        scores = kept.compute(EvalPrediction(np.eye(config.num_labels)[evaluation.baseline], labels))
        results |= {f"baseline_{name}": value for name, value in scores.items()}
    if trainer.is_world_process_zero():
        trainer.card["scores"] = " ".join(evaluation.facts(config.problem_type)[0]).strip()
        write_report(trainer, evaluation)
    return results


def calibrate_classifier(classifier: nn.Module | None, evaluation: Evaluation):
    """Divide the weight and bias of a classifier, and the logits of the evaluation, by a fitted temperature.

    Pipelines, exports and other code then have calibrated probabilities. Which class has the largest one stays the
    same. `evaluation.calibration` says by how much the expected calibration error falls, or why nothing was done.
    """
    if not isinstance(classifier, nn.Linear) or evaluation.logits.shape[1] < 2 or evaluation.labels.ndim > 1:
        return
    calibration = calibrate(evaluation.logits, evaluation.labels)
    if calibration is None:
        needed = f"calibration needs {MIN_CALIBRATION_ROWS} rows"
        evaluation.calibration = f"The probabilities are not calibrated, and may be too high: {needed}."
        return
    with torch.no_grad():
        for weight in classifier.parameters():
            weight.div_(calibration.temperature)
    evaluation.logits = evaluation.logits / calibration.temperature
    evaluation.calibration = (
        f"The expected calibration error of the probabilities is {calibration.error_after:.3f} with the temperature "
        f"{calibration.temperature:.2f}, measured on other rows than it was fitted to ({calibration.error_before:.3f} "
        "without it)."
    )


def conclude(trainer: GMLPTrainer, evaluation: Evaluation):
    """Print the result in a few sentences, with what to try next, and plot the confusion matrix."""
    config, state = trainer.model.config, trainer.state
    sentences, comparison = evaluation.facts(config.problem_type)
    advice = []
    if state.best_global_step and state.best_global_step == state.global_step:
        advice.append("train longer (--min_train_steps), since the last evaluation was the best one")
    if comparison is not None and state.global_step and not (comparison.is_certain and comparison.difference > 0):
        advice.append("start from a sentence encoder (docs/choosing.md)")
    print("", *filter(None, sentences), f"To improve: {'; '.join([*advice, 'label more rows'])}.", sep="\n")
    # After everything else is written, since a picture must not cost a run.
    if config.problem_type == ONE_CLASS and config.num_labels <= MAX_MATRIX_CLASSES and find_spec("matplotlib"):
        plot_confusion(evaluation, config, Path(trainer.args.output_dir, "confusion_matrix.png"))


def fold_numbers(labels: list, folds: int) -> np.ndarray:
    """Return a fold [N] for each row, from 0, with the same fraction of each class, or of each range of numbers."""
    rows = sorted(np.random.default_rng(0).permutation(len(labels)), key=labels.__getitem__)
    numbers = np.empty(len(labels), dtype=int)
    numbers[rows] = np.arange(len(labels)) % folds
    return numbers


def cross_validate(
    make_trainer: Callable[..., GMLPTrainer], trained: GMLPTrainer, rows: Dataset, numbers: np.ndarray
) -> np.ndarray:
    """Return logits [N, classes], each predicted by a model that was trained on the rows of the other folds.

    Args:
        make_trainer: Makes the trainer of a new model from its arguments, its training rows and a list of callbacks.
        trained: A finished run. Every fold trains for as many steps as its best model, with the same learning rates.
        rows: All rows, in the columns that the trainer needs.
        numbers: [N], the `fold_numbers`.
    """
    state, folder, folds = trained.state, Path(trained.args.output_dir, "_folds"), int(numbers.max()) + 1
    steps = state.best_global_step or state.global_step
    flags: dict[str, Any] = {"eval_strategy": "no", "save_strategy": "no", "load_best_model_at_end": False}
    flags |= {"report_to": "none", "push_to_hub": False, "max_steps": state.max_steps, "output_dir": str(folder)}
    args, logits = dataclasses.replace(trained.args, **flags), np.empty((len(rows), trained.model.config.num_labels))
    for fold in range(folds):
        logger.info("Cross-validation: fold %d of %d, %d steps", fold + 1, folds, steps)
        trainer = make_trainer(args, rows.select(np.flatnonzero(numbers != fold)), [StopAfter(steps)])
        trainer.train()
        held_out = np.flatnonzero(numbers == fold)
        logits[held_out] = trainer.predict(rows.select(held_out)).predictions
        del trainer
        release_memory()
    shutil.rmtree(folder, ignore_errors=True)
    return logits


class StopAfter(TrainerCallback):
    """Stops the training after a number of steps, without changing the schedule of the learning rate."""

    def __init__(self, steps: int):
        self.steps = steps

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop |= state.global_step >= self.steps


def write_report(trainer: GMLPTrainer, evaluation: Evaluation):
    """Write predictions, and for classes print and write the report.

    The output folder then has eval_predictions.csv; report.txt with precision, recall, F1 and support of each class and
    the confusion matrix; report.json; and confusion_matrix.png, if matplotlib is installed. The F1 scores are added to
    the model card.
    """
    config, folder, labels = trainer.model.config, Path(trainer.args.output_dir), evaluation.labels
    values, names = predicted(evaluation.logits, config.problem_type), list(config.id2label.values())
    table = evaluation.rows.assign(label=names_of(labels, config), prediction=names_of(values, config))
    if config.problem_type == ONE_CLASS:
        table["probability"] = softmax(evaluation.logits, axis=-1).max(axis=-1).round(4)
    write_text(folder / "eval_predictions.csv", table.to_csv(index=False, lineterminator="\n"))
    if config.problem_type == REGRESSION:
        return
    # Like the metric F1, the mean of the report leaves out classes that are neither in the data nor predicted.
    present = np.union1d(labels, values) if config.problem_type == ONE_CLASS else np.arange(len(names))
    averages = [] if config.problem_type == ONE_CLASS else ["micro"]
    averages += ["macro", "weighted"]
    options: dict[str, Any] = {"labels": present, "zero_division": 0}
    parts: list = [np.transpose(precision_recall_fscore_support(labels, values, **options))]
    for average in averages:
        *means, _ = precision_recall_fscore_support(labels, values, average=average, **options)
        parts.append([[*means, parts[0][:, 3].sum()]])
    index = [*(names[number] for number in present), *(f"{average} avg" for average in averages)]
    scores = pandas.DataFrame(np.concatenate(parts), index, ["precision", "recall", "f1-score", "support"])
    scores["support"] = scores["support"].astype(int)
    texts = [scores.round(3).to_string()]
    wrong = table[table["label"] != table["prediction"]].value_counts(["label", "prediction"])[:10]
    if config.problem_type == ONE_CLASS and len(wrong):
        texts.append("Most frequent confusions: label, prediction, rows\n" + wrong.to_string(header=False))
    report: dict[str, Any] = {"scores": scores.reset_index(names="name").to_dict("records")}
    if config.problem_type == ONE_CLASS and len(names) <= MAX_MATRIX_CLASSES:
        report["confusion_matrix"] = confusion_matrix(labels, values, labels=range(len(names))).tolist()
        numbered = [f"{number} {name}" for number, name in enumerate(names)]
        matrix = pandas.DataFrame(report["confusion_matrix"], numbered, range(len(names))).to_string()
        texts.append(f"Confusion matrix: a row for each label, a column for each prediction\n{matrix}")
    write_text(folder / "report.txt", "\n\n".join(texts) + "\n")
    write_text(folder / "report.json", json.dumps(report, indent=2) + "\n")
    classes, means, printed = scores[: len(present)], scores[len(present) :], texts[0]
    trainer.results |= {f"F1, {name} avg": float(value) for name, value in zip(averages, means["f1-score"])}
    if len(present) > MAX_PRINTED_CLASSES:
        worst = pandas.concat([classes.sort_values("f1-score", kind="stable")[:10], means])
        printed = f"The ten classes with the lowest F1, and the averages over all:\n{worst.round(3).to_string()}"
    else:
        trainer.results |= {f"F1 of {name}": float(value) for name, value in classes["f1-score"].items()}
    print(f"\n{printed}\n\nMore in {folder}: report.txt, eval_predictions.csv")
    if "tensorboard" in trainer.args.report_to:
        trainer.log({f"eval_{score}/{name}": row[score] for name, row in scores.iterrows() for score in row.index})


def plot_confusion(evaluation: Evaluation, config: PreTrainedConfig, path: Path):
    """Plot a confusion matrix with the names of the classes at its sides."""
    from matplotlib.figure import Figure
    from sklearn.metrics import ConfusionMatrixDisplay

    names, values = list(config.id2label.values()), predicted(evaluation.logits, config.problem_type)
    matrix = confusion_matrix(evaluation.labels, values, labels=range(len(names)))
    size = 3 + 0.25 * len(matrix)
    figure = Figure((size + 1, size), layout="constrained")
    # Between two dollar signs, matplotlib would read mathematics.
    display = ConfusionMatrixDisplay(matrix, display_labels=[name.replace("$", r"\$") for name in names])
    with_numbers = len(matrix) <= MAX_PRINTED_CLASSES
    display.plot(ax=figure.subplots(), cmap="Blues", xticks_rotation="vertical", include_values=with_numbers)
    figure.savefig(path)
