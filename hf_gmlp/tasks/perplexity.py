"""Metrics of language models."""

import math

import torch
from transformers import EvalPrediction


def token_losses(logits: torch.Tensor | tuple, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the loss of each token: `preprocess_logits_for_metrics` for Trainer.

    Args:
        logits: [batch, m, vocabulary], or a tuple that begins with them.
        labels: [batch, m], -100 where nothing is predicted.

    Returns:
        The loss in nats and whether the prediction is correct, both [batch, m], and 0 where nothing is predicted.
    """
    logits = logits[0] if isinstance(logits, tuple) else logits
    if logits.device.type == "xla":
        # All tokens, since the number of those that are predicted differs in every batch.
        losses = torch.nn.functional.cross_entropy(logits.float().mT, labels, reduction="none")
        return losses, (logits.argmax(-1) == labels).float()
    losses = torch.zeros(labels.shape, device=logits.device)
    correct = torch.zeros_like(losses)
    # A masked language model predicts one token in seven.
    predicted = labels != -100
    logits, labels = logits[predicted].float(), labels[predicted]
    losses[predicted] = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    correct[predicted] = (logits.argmax(-1) == labels).float()
    return losses, correct


def next_token_losses(logits: torch.Tensor | tuple, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute `token_losses` of a causal language model, whose logits predict the next label; the first token's are 0.

    Arguments and results have the shapes of `token_losses`.
    """
    logits = logits[0] if isinstance(logits, tuple) else logits
    losses, correct = token_losses(logits[:, :-1], labels[:, 1:])
    return torch.nn.functional.pad(losses, (1, 0)), torch.nn.functional.pad(correct, (1, 0))


class LanguageModelMetrics:
    """`compute_metrics` over all batches of an evaluation.

    Args:
        num_bytes: Bytes of the evaluated text in UTF-8, for "bits_per_byte": the loss of the complete text in bits over
            its bytes, which can be compared between tokenizers. End-of-text tokens cost bits but do not count as bytes.
    """

    def __init__(self, num_bytes: int | None = None):
        self.num_bytes = num_bytes
        self.loss = self.correct = 0.0
        self.tokens = 0

    def __call__(self, prediction: EvalPrediction, compute_result: bool) -> dict[str, float] | None:
        losses, correct = prediction.predictions
        predicted = prediction.label_ids != -100
        self.loss += losses[predicted].double().sum().item()
        self.correct += correct[predicted].double().sum().item()
        self.tokens += int(predicted.sum())
        if not compute_result:
            return None
        loss = self.loss / self.tokens
        # exp overflows past 709 nats.
        results = {"token_loss": loss, "perplexity": math.exp(min(loss, 700.0))}
        results |= {"accuracy": self.correct / self.tokens, "predicted_tokens": self.tokens}
        if self.num_bytes is not None:
            results |= {"bits_per_byte": self.loss / math.log(2) / self.num_bytes, "predicted_bytes": self.num_bytes}
        self.loss = self.correct = 0.0
        self.tokens = 0
        return results
