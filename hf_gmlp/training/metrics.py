"""Metrics of the training scripts."""

import math

import torch
from transformers import EvalPrediction


def token_losses(logits: torch.Tensor | tuple, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """
    What is kept of a batch's logits in an evaluation: per token, its loss in nats and whether it was predicted
    rightly; `Trainer` calls this as `preprocess_logits_for_metrics`.

    Args:
        logits: [batch, m, vocabulary]
        labels: [batch, m], -100 where there is nothing to predict.

    Returns:
        Two tensors [batch, m], 0 where there is nothing to predict.
    """
    logits = logits[0] if isinstance(logits, tuple) else logits
    losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2).float(), labels, reduction="none")
    right = (logits.argmax(-1) == labels).float()
    return losses, right


class MaskedLanguageModelMetrics:
    """
    Loss (nats per predicted token), perplexity and accuracy over all predicted tokens of an evaluation, whatever its
    batches: `Trainer` calls it once a batch, with `batch_eval_metrics=True`.
    """

    def __init__(self):
        self._reset()

    def _reset(self):
        self.loss = self.right = 0.0
        self.tokens = 0

    def __call__(self, prediction: EvalPrediction, compute_result: bool) -> dict[str, float] | None:
        losses, right = prediction.predictions
        predicted = prediction.label_ids != -100
        self.loss += losses[predicted].double().sum().item()
        self.right += right[predicted].double().sum().item()
        self.tokens += int(predicted.sum())
        if not compute_result:
            return None
        loss, accuracy, tokens = self.loss / max(self.tokens, 1), self.right / max(self.tokens, 1), self.tokens
        self._reset()
        # exp overflows past 709 nats, where the number means nothing any more.
        return {
            "token_loss": loss,
            "perplexity": math.exp(min(loss, 700.0)),
            "accuracy": accuracy,
            "predicted_tokens": tokens,
        }
