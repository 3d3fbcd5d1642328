"""Metrics of the training scripts."""

import math

import torch
from transformers import EvalPrediction

from ..errors import InputError


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
    losses = torch.zeros(labels.shape, device=logits.device)
    right = torch.zeros_like(losses)
    # A masked language model predicts one token in seven.
    predicted = labels != -100
    logits, labels = logits[predicted].float(), labels[predicted]
    losses[predicted] = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    right[predicted] = (logits.argmax(-1) == labels).float()
    return losses, right


def next_token_losses(logits: torch.Tensor | tuple, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """
    `token_losses` of a causal language model, whose logits at one place predict the label of the next. The results
    stand at the places of the labels; the first place, which nothing predicts, is 0.
    """
    logits = logits[0] if isinstance(logits, tuple) else logits
    losses, right = token_losses(logits[:, :-1], labels[:, 1:])
    return torch.nn.functional.pad(losses, (1, 0)), torch.nn.functional.pad(right, (1, 0))


class MaskedLanguageModelMetrics:
    """
    Loss (nats per predicted token), perplexity and accuracy over all predicted tokens of an evaluation, whatever its
    batches: `Trainer` calls it once a batch, with `batch_eval_metrics=True`.

    Raises:
        InputError: If no token was predicted.
    """

    def __init__(self):
        self.loss = self.right = self.tokens = 0

    def __call__(self, prediction: EvalPrediction, compute_result: bool) -> dict[str, float] | None:
        losses, right = prediction.predictions
        predicted = prediction.label_ids != -100
        self.loss += losses[predicted].double().sum().item()
        self.right += right[predicted].double().sum().item()
        self.tokens += int(predicted.sum())
        if not compute_result:
            return None
        if self.tokens == 0:
            raise InputError("The evaluation had no token to predict, and has no result: give more validation text.")
        loss, accuracy, tokens = self.loss / self.tokens, self.right / self.tokens, self.tokens
        self.loss = self.right = self.tokens = 0
        # exp overflows past 709 nats, where the number means nothing any more.
        return {
            "token_loss": loss,
            "perplexity": math.exp(min(loss, 700.0)),
            "accuracy": accuracy,
            "predicted_tokens": tokens,
        }


class CausalLanguageModelMetrics(MaskedLanguageModelMetrics):
    """
    The same of a causal language model, and bits per byte: the loss of the whole text in bits over the length of the
    text in UTF-8 bytes. Unlike a loss per token it can be compared between tokenizers. End-of-text tokens between
    documents cost bits and are no bytes.

    Args:
        num_bytes: The UTF-8 bytes of the text that an evaluation predicts. It predicts every token once.
    """

    def __init__(self, num_bytes: int):
        super().__init__()
        self.num_bytes = num_bytes

    def __call__(self, prediction: EvalPrediction, compute_result: bool) -> dict[str, float] | None:
        results = super().__call__(prediction, compute_result)
        if results is None:
            return None
        bits = results["token_loss"] * results["predicted_tokens"] / math.log(2)
        return results | {"bits_per_byte": bits / self.num_bytes, "predicted_bytes": self.num_bytes}
