"""Class weights, early stopping and the report, for the classification of texts and of images."""

import dataclasses
import logging
import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import pandas
import torch
from accelerate.utils import release_memory
from datasets import Dataset
from scipy.special import softmax
from sklearn.metrics import classification_report, log_loss
from sklearn.utils.multiclass import unique_labels
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

from ..data.labels import CLASSES, ONE_CLASS, REGRESSION, rows_by_class
from ..metrics.calibration import (
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

    ignore_mismatched_sizes: bool = flag("Give a checkpoint of other classes a new classifier.", False)
    class_weights: Literal["balanced"] | None = flag("Weight classes in the loss by the inverse of their frequency.")
    min_train_steps: int | None = flag(
        "Train for more epochs than --num_train_epochs if these have fewer optimizer steps.", interval="[1, inf)"
    )
    early_stopping_patience: int | None = flag(
        "Stop after this many evaluations without one that is better by 0.001 (in --metric_for_best_model); 0: never.",
        interval="[0, inf)",
    )
    calibrate: bool = flag(
        "Divide the trained classifier by a temperature, so that its probabilities are as high as its accuracy on rows "
        "that it was not trained on. Needs 100 of them, and one class per row.",
        False,
    )

    def lengthen(self, args: RunArguments, rows: int) -> None:
        """Raise `args.num_train_epochs` to the number that --min_train_steps needs with this many training rows."""
        steps = math.ceil(rows / total_batch_size(args))
        if self.min_train_steps is not None and args.max_steps < 1:
            args.num_train_epochs = max(args.num_train_epochs, math.ceil(self.min_train_steps / steps))

    def callbacks(self, args: TrainingArguments, problem_type: str = ONE_CLASS) -> list[TrainerCallback]:
        """Return the callback of --early_stopping_patience, and let a resumed run restore its count of evaluations."""
        if not self.early_stopping_patience:
            return []
        args.restore_callback_states_from_checkpoint = True
        # The loss of a regression depends on the unit of its numbers. Other losses creep towards zero.
        threshold = 0.0 if problem_type == REGRESSION else 0.001
        return [EarlyStoppingCallback(self.early_stopping_patience, threshold)]


def balanced_weights(labels: list, config: PreTrainedConfig) -> torch.Tensor:
    """Return a weight for each class, inversely proportional to its number of rows, with a mean of 1 over the rows."""
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

    def __init__(self, compute: Callable[[EvalPrediction], dict[str, float]]) -> None:
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
        inflation: Factor of the variance of a score: `CROSS_VALIDATED` if each row was predicted by one of several
            models that were trained on other rows.
        conclusion: The result in a few sentences.
    """

    logits: np.ndarray
    labels: np.ndarray
    rows: pandas.DataFrame
    baseline: np.ndarray | None = None
    inflation: float = 1.0
    conclusion: str = ""

    def facts(self, problem_type: str) -> tuple[list[str], Comparison | None]:
        """Return sentences on the score, and the comparison with the baseline of a model with one class per row."""
        labels, count, values = self.labels, len(self.labels), predicted(self.logits, problem_type)
        how, comparison = "On held-out rows" if self.inflation == 1 else "Cross-validated", None
        sentences: list[str] = []
        if problem_type == REGRESSION:
            if count > 3:
                sentences.append(f"{how}: correlation (Pearson) {correlation_in_words(values, labels)}.")
        else:
            right = (values == labels).reshape(count, -1).all(axis=1)
            sentences.append(f"{how}: accuracy {accuracy_in_words(int(right.sum()), count, self.inflation)}.")
        if problem_type == ONE_CLASS:
            name = "always the most frequent class" if self.baseline is None else "tf-idf with logistic regression"
            baseline_right = labels == (np.bincount(labels).argmax() if self.baseline is None else self.baseline)
            comparison = compare(right, baseline_right, self.inflation)
            sentences.append(f"The baseline ({name}) has {baseline_right.mean():.3f}: {comparison}.")
        if count < MIN_SCORE_ROWS:
            sentences.append(f"{count} rows are too few to tell much.")
        return sentences, comparison


def finish_evaluation(trainer: GMLPTrainer, evaluation: Evaluation, calibrate: bool) -> dict[str, float]:
    """Save the calibrated model, write the report, and return the metrics, which replace those of the training.

    Args:
        trainer: The finished run, whose `compute_metrics` is a `KeptEvaluation`.
        calibrate: Whether to divide the classifier by a temperature.
    """
    config, kept, state = trainer.model.config, cast(KeptEvaluation, trainer.compute_metrics), trainer.state
    calibration = calibrate_classifier(getattr(trainer.model, "classifier", None), evaluation) if calibrate else ""
    # A classifier on frozen embeddings, which is trained without steps, is not saved before.
    if calibrate or (trainer.args.do_train and not state.global_step):
        trainer.save_model(_internal_call=True)
    labels, count = evaluation.labels, len(evaluation.labels)
    metrics = kept.compute(EvalPrediction(evaluation.logits, labels)) | {"samples": count}
    if config.problem_type == ONE_CLASS:
        metrics["loss"] = log_loss(labels, softmax(evaluation.logits, axis=-1), labels=range(config.num_labels))
    if "accuracy" in metrics:
        interval = accuracy_interval(round(metrics["accuracy"] * count), count, evaluation.inflation)
        metrics["accuracy_low"], metrics["accuracy_high"] = interval
    results = {f"eval_{name}": value for name, value in metrics.items()}
    trainer.results |= results
    if evaluation.baseline is not None:
        scores = kept.compute(EvalPrediction(np.eye(config.num_labels)[evaluation.baseline], labels))
        results |= {f"baseline_{name}": value for name, value in scores.items()}
    sentences, comparison = evaluation.facts(config.problem_type)
    sentences += filter(None, [calibration])
    trainer.card["scores"] = " ".join(sentences)
    suggestions = ["label more rows"]
    # A run that starts from a sentence encoder names its start, or what it trained.
    is_new = state.global_step and not trainer.hyperparameters
    if comparison is not None and is_new and not (comparison.is_certain and comparison.difference > 0):
        suggestions.insert(0, "start from a sentence encoder (docs/choosing.md)")
    if state.best_global_step and state.best_global_step == state.global_step:
        suggestions.insert(0, "train longer (--min_train_steps), since the last evaluation was the best one")
    evaluation.conclusion = "\n".join([*sentences, f"To improve: {'; '.join(suggestions)}."])
    if trainer.is_world_process_zero():
        write_report(trainer, evaluation)
    return results


def calibrate_classifier(classifier: nn.Module | None, evaluation: Evaluation) -> str:
    """Divide the weight and bias of a classifier, and the logits of the evaluation, by a fitted temperature.

    Pipelines, exports and other code then have calibrated probabilities. Which class has the largest one stays the
    same.

    Returns:
        By how much the expected calibration error falls, or why nothing was done; "" for a model without classes.
    """
    if not isinstance(classifier, nn.Linear) or evaluation.logits.shape[1] < 2 or evaluation.labels.ndim > 1:
        return ""
    if len(evaluation.labels) < MIN_CALIBRATION_ROWS:
        return f"The probabilities are not calibrated, and may be too high: this needs {MIN_CALIBRATION_ROWS} rows."
    temperature, error_before, error_after = calibrate(evaluation.logits, evaluation.labels)
    with torch.no_grad():
        for weight in classifier.parameters():
            weight.div_(temperature)
    evaluation.logits = evaluation.logits / temperature
    return (
        f"The expected calibration error of the probabilities is {error_after:.3f} with the temperature "
        f"{temperature:.2f}, measured on other rows than it was fitted to ({error_before:.3f} without it)."
    )


def write_report(trainer: GMLPTrainer, evaluation: Evaluation) -> None:
    """Write eval_predictions.csv, and for classes write and print report.txt: precision, recall, F1 and support of each
    class, the most frequent confusions, and the conclusion. The F1 scores are added to the model card.
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
    present = unique_labels(labels, values) if config.problem_type == ONE_CLASS else np.arange(len(names))
    options: dict[str, Any] = {"labels": present, "zero_division": 0}
    report = classification_report(labels, values, target_names=[names[i] for i in present], digits=3, **options)
    # Without names, the keys are class ids, so that no class has the name of an average.
    scores = classification_report(labels, values, output_dict=True, **options)
    f1 = {names[i]: scores[str(i)]["f1-score"] for i in present}
    trainer.results |= {f"F1, {average}": scores[average]["f1-score"] for average in ("macro avg", "weighted avg")}
    texts, printed = [report], report
    wrong = table[table["label"] != table["prediction"]].value_counts(["label", "prediction"])[:10]
    if config.problem_type == ONE_CLASS and len(wrong):
        texts.append(f"Most frequent confusions: label, prediction, rows\n{wrong.to_string(header=False)}\n")
    write_text(folder / "report.txt", "\n".join([*texts, evaluation.conclusion, ""]))
    if len(present) > MAX_PRINTED_CLASSES:
        header, _, *lines = report.splitlines()
        worst = [lines[row] for row in np.argsort([*f1.values()], kind="stable")[:10]]
        printed = "\n".join([header, *worst, *lines[len(present) :], ""])
        print("\nThe ten classes with the lowest F1, and the averages over all:", end="")
    else:
        trainer.results |= {f"F1 of {name}": value for name, value in f1.items()}
    print(f"\n{printed}\nMore in {folder}: report.txt, eval_predictions.csv")


def conclude(trainer: GMLPTrainer, evaluation: Evaluation) -> None:
    """Print the conclusion, and plot a confusion matrix with the names of the classes at its sides."""
    print(f"\n{evaluation.conclusion}")
    config = trainer.model.config
    if config.problem_type != ONE_CLASS or config.num_labels > MAX_MATRIX_CLASSES or find_spec("matplotlib") is None:
        return
    from matplotlib.figure import Figure
    from sklearn.metrics import ConfusionMatrixDisplay

    names, values = [name[:60] for name in config.id2label.values()], predicted(evaluation.logits, config.problem_type)
    # Inches for the cells, the names and the rest.
    size = 0.3 * len(names) + 0.08 * max(map(len, names)) + 2
    figure = Figure((size + 1, size), layout="constrained")
    options: dict[str, Any] = {"labels": range(len(names)), "cmap": "Blues", "xticks_rotation": "vertical"}
    # Between two dollar signs, matplotlib would read mathematics.
    options["display_labels"] = [name.replace("$", r"\$") for name in names]
    options |= {"include_values": len(names) <= MAX_PRINTED_CLASSES, "ax": figure.subplots()}
    ConfusionMatrixDisplay.from_predictions(evaluation.labels, values, **options)
    figure.savefig(Path(trainer.args.output_dir, "confusion_matrix.png"))


def fold_numbers(labels: list, folds: int) -> np.ndarray:
    """Return a fold [N] for each row, from 0, with the same fraction of each class, or of each range of numbers."""
    numbers = np.empty(len(labels), dtype=int)
    numbers[rows_by_class(labels)] = np.arange(len(labels)) % folds
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

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_step_end(self, args, state, control, **kwargs) -> None:
        control.should_training_stop |= state.global_step >= self.steps
