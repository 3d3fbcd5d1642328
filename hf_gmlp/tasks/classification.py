"""Class weights, early stopping and metrics, for the classification of texts and of images."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch.nn import functional as F
from transformers import EarlyStoppingCallback, EvalPrediction, PreTrainedConfig, TrainerCallback
from transformers.modeling_outputs import ModelOutput

from ..data.labels import ONE_CLASS, REGRESSION
from ..metrics.scores import predicted, scores
from ..training.arguments import DataArguments, RunArguments, flag


@dataclass
class ClassificationArguments(DataArguments):
    """Flags that the classification of texts and of images share."""

    ignore_mismatched_sizes: bool = flag("Give a checkpoint of other classes a new classifier.", False)
    class_weights: Literal["balanced"] | None = flag("Weight classes in the loss by the inverse of their frequency.")
    early_stopping_patience: int | None = flag(
        "Stop after this many evaluations without one that is better by 0.001 (in --metric_for_best_model); 0: never.",
        interval="[0, inf)",
    )

    def callbacks(self, args: RunArguments, problem_type: str = ONE_CLASS) -> list[TrainerCallback]:
        """Return the callback of --early_stopping_patience, if it is used."""
        if not self.early_stopping_patience or not args.do_train:
            return []
        # A resumed run continues the count.
        args.restore_callback_states_from_checkpoint = True
        # The loss of a regression depends on the unit of its numbers. Other losses creep towards zero.
        return [EarlyStoppingCallback(self.early_stopping_patience, 0.0 if problem_type == REGRESSION else 0.001)]


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


def classification_metrics(
    names: Sequence[str], config: PreTrainedConfig
) -> Callable[[EvalPrediction], dict[str, float]]:
    """Return `compute_metrics` for Trainer: the named `scores` and, if named, "top5_accuracy", the fraction of rows
    whose class is among the five with the largest logits.
    """

    def compute(prediction: EvalPrediction) -> dict[str, float]:
        logits, labels = prediction.predictions, prediction.label_ids
        values = predicted(logits, config.problem_type)
        results = scores(values, labels, config, [name for name in names if name != "top5_accuracy"])
        if "top5_accuracy" in names:
            results["top5_accuracy"] = float((np.argsort(-logits)[:, :5] == labels[:, None]).any(axis=1).mean())
        return results

    return compute
