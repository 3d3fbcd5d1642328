"""What the classification of texts and of images shares: held-out rows, class weights, early stopping, the report."""

import json
import logging
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas
import torch
from datasets import Dataset
from sklearn.metrics import classification_report, confusion_matrix
from torch.nn import functional as F
from transformers import EarlyStoppingCallback, EvalPrediction, PreTrainedConfig, TrainingArguments
from transformers.modeling_outputs import ModelOutput

from ..errors import InputError
from ..training.arguments import DataArguments, RunArguments, flag
from ..training.run_folder import total_batch_size, write_text
from ..training.trainer import GMLPTrainer
from .labels import CLASSES, ONE_CLASS, REGRESSION

logger = logging.getLogger(__name__)

# With more classes, only those with the lowest F1 are printed, and the picture of the matrix has no numbers.
MOST_CLASSES = 20
# With more classes there is no confusion matrix, which would have a million numbers for ImageNet.
MOST_IN_MATRIX = 200


@dataclass
class ClassificationArguments(DataArguments):
    """Flags for classes of texts and of images."""

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
        """Raise `args.num_train_epochs` to what --min_train_steps needs for so many training rows."""
        steps = math.ceil(rows / total_batch_size(args))
        if self.min_train_steps is not None and args.max_steps < 1:
            args.num_train_epochs = max(args.num_train_epochs, math.ceil(self.min_train_steps / steps))

    def callbacks(self, args: TrainingArguments) -> list[EarlyStoppingCallback]:
        """Return the callback of --early_stopping_patience; an InputError if nothing is evaluated for it."""
        if self.early_stopping_patience is None:
            return []
        if not args.load_best_model_at_end:
            raise InputError("--early_stopping_patience needs --load_best_model_at_end and --eval_strategy steps.")
        return [EarlyStopping(self.early_stopping_patience)]


class EarlyStopping(EarlyStoppingCallback):
    """Counts the evaluations since the best one across resumes."""

    def on_train_begin(self, args, state, control, **kwargs):
        best = state.best_global_step or 0
        self.early_stopping_patience_counter = sum(
            "eval_runtime" in entry and entry["step"] > best for entry in state.log_history
        )


def check_evaluation(args: TrainingArguments):
    """Raise an InputError for a flag of Trainer that fails only when a trained model is evaluated."""
    if not args.eval_do_concat_batches:
        raise InputError("--eval_do_concat_batches false leaves nothing to compute metrics on: leave it out.")


def hold_out(dataset: Dataset, fraction: float, seed: int = 0) -> tuple[Dataset, Dataset]:
    """Split a fraction off, with the same fraction of each class (of each range of values), to within one row.

    Both parts have a new column "row", the number of the row in `dataset`, from 1. The only row of a class stays.
    """
    labels = dataset["labels"][:]
    rows = np.random.default_rng(seed).permutation(len(dataset))
    # Rows that follow each other have the same class, in random order: each k-th of them is held out.
    rows = np.array(sorted(rows, key=labels.__getitem__))
    taken = ((np.arange(round(fraction * len(rows))) + 0.5) / fraction).astype(int)
    held_out = set(rows[taken[taken < len(rows)]].tolist())
    if not isinstance(labels[0], float):
        sizes = Counter(map(str, labels))
        held_out = {row for row in held_out if sizes[str(labels[row])] > 1}
    if not held_out or len(held_out) == len(dataset):
        raise InputError(f"{len(dataset)} training samples are too few to hold some out: name validation data.")
    counts = len(held_out), len(dataset) - len(held_out)
    logger.info("Validation: %d rows held out, the same fraction of each class; %d are left to train on", *counts)
    dataset = dataset.add_column("row", range(1, len(dataset) + 1))
    train = dataset.select([row for row in range(len(dataset)) if row not in held_out])
    return train, dataset.select(sorted(held_out))


def balanced_weights(labels: list, config: PreTrainedConfig) -> torch.Tensor:
    """Return a weight for each class, the inverse of its number of rows, with a mean of 1 over the rows."""
    if config.problem_type != ONE_CLASS:
        raise InputError("--class_weights is only for data with one class per row: leave it out.")
    rows = torch.tensor(labels)
    counts = rows.sum(0) if rows.ndim == 2 else torch.bincount(rows, minlength=config.num_labels)
    # A class of the checkpoint that the data lack has no rows to weight.
    return counts.sum() / ((counts > 0).sum() * counts.clamp(min=1e-9)) * (counts > 0)


def classification_loss(label_smoothing: float = 0.0, weights: torch.Tensor | None = None) -> Callable:
    """Return `compute_loss_func` for Trainer: weighted cross-entropy with labels [B] or probabilities [B, classes],
    which Trainer's own label smoother does not take. Evaluation has no label smoothing.
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
        # Trainer counts the elements of the labels.
        return total / (num_items_in_batch / labels.shape[1] if labels.ndim == 2 else num_items_in_batch)

    return compute


class KeptEvaluation:
    """`compute_metrics` for Trainer that keeps the logits and labels of the last evaluation, for `write_report`."""

    def __init__(self, compute: Callable[[EvalPrediction], dict[str, float]]):
        self.compute = compute
        self.logits, self.labels = np.empty(0), np.empty(0)

    def __call__(self, prediction: EvalPrediction) -> dict[str, float]:
        logits = prediction.predictions
        self.logits, self.labels = logits[0] if isinstance(logits, tuple) else logits, prediction.label_ids
        return self.compute(prediction)


def predicted(logits: np.ndarray | tuple, problem_type: str) -> np.ndarray:
    """Return class ids or numbers [samples], or 0 and 1 for each class [samples, classes], from all logits."""
    logits = logits[0] if isinstance(logits, tuple) else logits
    if problem_type == CLASSES:
        return (logits > 0).astype(int)
    # A run that diverged must not end a series of runs.
    return np.nan_to_num(logits).squeeze(-1) if problem_type == REGRESSION else logits.argmax(-1)


def names_of(values: np.ndarray, config: PreTrainedConfig) -> list:
    """Return what `predicted` gives as text: the name of a class, the names of several, or a number."""
    names = config.id2label
    if config.problem_type == REGRESSION:
        # All digits of a float32.
        return [f"{value:.9g}" for value in values]
    if config.problem_type == CLASSES:
        return [", ".join(names[number] for number in row.nonzero()[0]) for row in values]
    return [names[number] for number in values]


def write_report(trainer: GMLPTrainer, kept: KeptEvaluation, rows: pandas.DataFrame):
    """Write the predictions of the last evaluation, and for classes print and write the report.

    In the output folder: eval_predictions.csv; report.txt, with precision, recall, F1 and support of each class and the
    confusion matrix; report.json; confusion_matrix.png, if matplotlib is installed. The model card gets the F1 scores.

    Args:
        rows: What to show of each evaluated row besides its label and prediction.
    """
    config, folder = trainer.model.config, Path(trainer.args.output_dir)
    values, names = predicted(kept.logits, config.problem_type), list(config.id2label.values())
    table = rows.assign(label=names_of(kept.labels, config), prediction=names_of(values, config))
    if config.problem_type == ONE_CLASS:
        table["probability"] = torch.from_numpy(kept.logits).float().softmax(-1).amax(-1).numpy().round(4)
    write_text(folder / "eval_predictions.csv", table.to_csv(index=False, lineterminator="\n"))
    if config.problem_type == REGRESSION:
        return
    options = {"labels": range(len(names)), "target_names": names, "zero_division": 0, "output_dict": True}
    report = classification_report(kept.labels, values, **options)
    scores = pandas.DataFrame({name: row for name, row in report.items() if name != "accuracy"}).T
    scores["support"] = scores["support"].astype(int)
    texts = [scores.round(3).to_string()]
    wrong = table[table["label"] != table["prediction"]].value_counts(["label", "prediction"])[:10]
    if config.problem_type == ONE_CLASS and len(wrong):
        texts.append("Most frequent confusions: label, prediction, rows\n" + wrong.to_string(header=False))
    if config.problem_type == ONE_CLASS and len(names) <= MOST_IN_MATRIX:
        report["confusion_matrix"] = confusion_matrix(kept.labels, values, labels=range(len(names))).tolist()
        numbered = [f"{number} {name}" for number, name in enumerate(names)]
        matrix = pandas.DataFrame(report["confusion_matrix"], numbered, range(len(names))).to_string()
        texts.append(f"Confusion matrix: a row for each label, a column for each prediction\n{matrix}")
        if find_spec("matplotlib") is not None:
            plot_confusion(np.array(report["confusion_matrix"]), names, folder / "confusion_matrix.png")
    write_text(folder / "report.txt", "\n\n".join(texts) + "\n")
    write_text(folder / "report.json", json.dumps(report, indent=2) + "\n")
    printed, main_scores = texts[0], scores
    if len(names) > MOST_CLASSES:
        main_scores = scores[len(names) :]
        worst = pandas.concat([scores[: len(names)].sort_values("f1-score", kind="stable")[:10], main_scores])
        printed = f"The ten classes with the lowest F1, and the averages over all:\n{worst.round(3).to_string()}"
    print(f"\n{printed}\n\nMore in {folder}: report.txt, eval_predictions.csv")
    # The model card shows these scores.
    trainer.results |= {f"F1, {name}": float(value) for name, value in main_scores["f1-score"].items()}
    if "tensorboard" in trainer.args.report_to:
        trainer.log({f"eval_{score}/{name}": row[score] for name, row in scores.iterrows() for score in row.index})


def plot_confusion(matrix: np.ndarray, names: list[str], path: Path):
    """Draw a confusion matrix with the names of the classes at its sides."""
    from matplotlib.figure import Figure
    from sklearn.metrics import ConfusionMatrixDisplay

    size = 3 + 0.25 * len(matrix)
    figure = Figure((size + 1, size), layout="constrained")
    display = ConfusionMatrixDisplay(matrix, display_labels=names)
    display.plot(
        ax=figure.subplots(), cmap="Blues", xticks_rotation="vertical", include_values=len(matrix) <= MOST_CLASSES
    )
    figure.savefig(path)
