"""The loss and the metrics of image classification."""

from collections.abc import Callable

import torch
from torch.nn import functional as F
from transformers import EvalPrediction
from transformers.modeling_outputs import ImageClassifierOutput


def classification_loss(label_smoothing: float = 0.0) -> Callable[..., torch.Tensor]:
    """Return `compute_loss_func` for Trainer: cross-entropy with labels [B] or, of mixed images, [B, classes], which
    Trainer's own label smoother does not take. Evaluation has no label smoothing.
    """

    def compute(
        outputs: ImageClassifierOutput, labels: torch.Tensor, num_items_in_batch: torch.Tensor | int | None = None
    ) -> torch.Tensor:
        logits = outputs["logits"].float()
        smoothing = label_smoothing if torch.is_grad_enabled() else 0.0
        if num_items_in_batch is None:
            return F.cross_entropy(logits, labels, label_smoothing=smoothing)
        # Trainer counts the elements of the labels.
        images = num_items_in_batch / labels.shape[1] if labels.ndim == 2 else num_items_in_batch
        return F.cross_entropy(logits, labels, label_smoothing=smoothing, reduction="sum") / images

    return compute


def top_classes(logits: torch.Tensor | tuple, labels: torch.Tensor) -> torch.Tensor:
    """Return the best five classes [B, 5] of logits [B, classes], best first: `preprocess_logits_for_metrics`."""
    logits = logits[0] if isinstance(logits, tuple) else logits
    return logits.topk(min(5, logits.shape[-1]), dim=-1).indices


def accuracies(prediction: EvalPrediction) -> dict[str, float]:
    """`compute_metrics` for Trainer: "accuracy" and, with five classes or more, "top5_accuracy"."""
    right = prediction.predictions == prediction.label_ids[:, None]  # [images, 5]
    results = {"accuracy": float(right[:, 0].mean())}
    return results | ({"top5_accuracy": float(right.any(axis=1).mean())} if right.shape[1] == 5 else {})
