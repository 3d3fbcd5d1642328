"""Metrics of language models."""

import math

import torch
from transformers import EvalPrediction

from ..errors import InputError


def token_losses(logits: torch.Tensor | tuple, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """
    `preprocess_logits_for_metrics` for Trainer: from logits [batch, m, vocabulary] and labels [batch, m] (-100 where
    nothing is predicted), the loss of each token in nats and whether it was predicted correctly, both [batch, m] and 0
    where nothing is predicted.
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
    """`token_losses` of a causal language model, whose logits predict the next label; the first token's are 0."""
    logits = logits[0] if isinstance(logits, tuple) else logits
    losses, right = token_losses(logits[:, :-1], labels[:, 1:])
    return torch.nn.functional.pad(losses, (1, 0)), torch.nn.functional.pad(right, (1, 0))


class MaskedLanguageModelMetrics:
    """`compute_metrics` over all batches of an evaluation; raises InputError if no token was predicted."""

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
            raise InputError("The evaluation had no token to predict: give more validation text.")
        loss, accuracy, tokens = self.loss / self.tokens, self.right / self.tokens, self.tokens
        self.loss = self.right = self.tokens = 0
        # exp overflows past 709 nats.
        results = {"token_loss": loss, "perplexity": math.exp(min(loss, 700.0))}
        return results | {"accuracy": accuracy, "predicted_tokens": tokens}


class CausalLanguageModelMetrics(MaskedLanguageModelMetrics):
    """
    The same metrics and bits per byte, which can be compared between tokenizers: the loss of the whole text in bits
    over its `num_bytes` in UTF-8. End-of-text tokens between documents cost bits but do not count as bytes.
    """

    def __init__(self, num_bytes: int):
        super().__init__()
        self.num_bytes = num_bytes

    def __call__(self, prediction: EvalPrediction, compute_result: bool) -> dict[str, float] | None:
        if (results := super().__call__(prediction, compute_result)) is None:
            return None
        bits = results["token_loss"] * results["predicted_tokens"] / math.log(2)
        return results | {"bits_per_byte": bits / self.num_bytes, "predicted_bytes": self.num_bytes}
