"""Class weights, early stopping and the report, for the classification of texts and of images."""

import json
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas
import torch
from sklearn.metrics import classification_report, confusion_matrix
from torch.nn import functional as F
from transformers import EarlyStoppingCallback, EvalPrediction, PreTrainedConfig, TrainingArguments
from transformers.modeling_outputs import ModelOutput

from ..data.labels import CLASSES, ONE_CLASS, REGRESSION
from ..errors import InputError
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
        "Stop after this many evaluations without a better one (by --metric_for_best_model).", interval="[1, inf)"
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

    def callbacks(self, args: TrainingArguments) -> list[EarlyStoppingCallback]:
        """Return the callback of --early_stopping_patience, and let a resumed run restore its count of evaluations.

        Raises:
            InputError: If the best model is not kept.
        """
        if self.early_stopping_patience is None:
            return []
        if not args.load_best_model_at_end:
            raise InputError("--early_stopping_patience needs --load_best_model_at_end and --eval_strategy steps.")
        args.restore_callback_states_from_checkpoint = True
        return [EarlyStoppingCallback(self.early_stopping_patience)]


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


def classification_loss(label_smoothing: float = 0.0, weights: torch.Tensor | None = None) -> Callable:
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
    # NaN becomes 0, so that a run that diverged does not stop a series of runs.
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


def write_report(trainer: GMLPTrainer, kept: KeptEvaluation, rows: pandas.DataFrame):
    """Write the predictions of the last evaluation, and for classes print and write the report.

    The output folder then has eval_predictions.csv; report.txt with precision, recall, F1 and support of each class and
    the confusion matrix; report.json; and confusion_matrix.png, if matplotlib is installed. The F1 scores are added to
    the model card.

    Args:
        rows: The columns of eval_predictions.csv that precede label and prediction.
    """
    config, folder = trainer.model.config, Path(trainer.args.output_dir)
    values, names = predicted(kept.logits, config.problem_type), list(config.id2label.values())
    table = rows.assign(label=names_of(kept.labels, config), prediction=names_of(values, config))
    if config.problem_type == ONE_CLASS:
        table["probability"] = torch.from_numpy(kept.logits).float().softmax(-1).amax(-1).numpy().round(4)
    write_text(folder / "eval_predictions.csv", table.to_csv(index=False, lineterminator="\n"))
    if config.problem_type == REGRESSION:
        return
    # Like the metric F1, the mean of the report leaves out classes that are neither in the data nor predicted.
    present = np.union1d(kept.labels, values) if config.problem_type == ONE_CLASS else np.arange(len(names))
    shown = [names[number] for number in present]
    options = {"labels": present, "target_names": shown, "zero_division": 0, "output_dict": True}
    report = classification_report(kept.labels, values, **options)
    scores = pandas.DataFrame({name: row for name, row in report.items() if name != "accuracy"}).T
    scores["support"] = scores["support"].astype(int)
    texts = [scores.round(3).to_string()]
    wrong = table[table["label"] != table["prediction"]].value_counts(["label", "prediction"])[:10]
    if config.problem_type == ONE_CLASS and len(wrong):
        texts.append("Most frequent confusions: label, prediction, rows\n" + wrong.to_string(header=False))
    if config.problem_type == ONE_CLASS and len(names) <= MAX_MATRIX_CLASSES:
        report["confusion_matrix"] = confusion_matrix(kept.labels, values, labels=range(len(names))).tolist()
        numbered = [f"{number} {name}" for number, name in enumerate(names)]
        matrix = pandas.DataFrame(report["confusion_matrix"], numbered, range(len(names))).to_string()
        texts.append(f"Confusion matrix: a row for each label, a column for each prediction\n{matrix}")
        if find_spec("matplotlib") is not None:
            plot_confusion(np.array(report["confusion_matrix"]), names, folder / "confusion_matrix.png")
    write_text(folder / "report.txt", "\n\n".join(texts) + "\n")
    write_text(folder / "report.json", json.dumps(report, indent=2) + "\n")
    printed, main_scores = texts[0], scores
    if len(present) > MAX_PRINTED_CLASSES:
        main_scores = scores[len(present) :]
        worst = pandas.concat([scores[: len(present)].sort_values("f1-score", kind="stable")[:10], main_scores])
        printed = f"The ten classes with the lowest F1, and the averages over all:\n{worst.round(3).to_string()}"
    print(f"\n{printed}\n\nMore in {folder}: report.txt, eval_predictions.csv")
    trainer.results |= {f"F1, {name}": float(value) for name, value in main_scores["f1-score"].items()}
    if "tensorboard" in trainer.args.report_to:
        trainer.log({f"eval_{score}/{name}": row[score] for name, row in scores.iterrows() for score in row.index})


def plot_confusion(matrix: np.ndarray, names: list[str], path: Path):
    """Plot a confusion matrix with the names of the classes at its sides."""
    from matplotlib.figure import Figure
    from sklearn.metrics import ConfusionMatrixDisplay

    size = 3 + 0.25 * len(matrix)
    figure = Figure((size + 1, size), layout="constrained")
    display = ConfusionMatrixDisplay(matrix, display_labels=names)
    with_numbers = len(matrix) <= MAX_PRINTED_CLASSES
    display.plot(ax=figure.subplots(), cmap="Blues", xticks_rotation="vertical", include_values=with_numbers)
    figure.savefig(path)
