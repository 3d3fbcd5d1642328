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
        The loss in nats, and 1 if the prediction is correct, both [batch, m] and 0 where nothing is predicted.
    """
    logits = logits[0] if isinstance(logits, tuple) else logits
    if logits.device.type == "xla":
        # Use all tokens: the number of predicted ones differs between batches, and XLA compiles for each shape.
        losses = torch.nn.functional.cross_entropy(logits.float().mT, labels, reduction="none")
        return losses, (logits.argmax(-1) == labels).float()
    losses = torch.zeros(labels.shape, device=logits.device)
    correct = torch.zeros_like(losses)
    # Leave the other tokens out, since a masked language model predicts only one in seven.
    predicted = labels != -100
    logits, labels = logits[predicted].float(), labels[predicted]
    losses[predicted] = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    correct[predicted] = (logits.argmax(-1) == labels).float()
    return losses, correct


def next_token_losses(logits: torch.Tensor | tuple, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute `token_losses` of a causal language model, whose logits predict the next label; first tokens have 0.

    Arguments and results have the shapes of `token_losses`.
    """
    logits = logits[0] if isinstance(logits, tuple) else logits
    losses, correct = token_losses(logits[:, :-1], labels[:, 1:])
    return torch.nn.functional.pad(losses, (1, 0)), torch.nn.functional.pad(correct, (1, 0))


class LanguageModelMetrics:
    """`compute_metrics` over all batches of an evaluation.

    Args:
        num_bytes: Number of bytes of the evaluated text in UTF-8, for "bits_per_byte": the loss of the complete text in
            bits, divided by its bytes, which can be compared between tokenizers. End-of-text tokens add to the loss but
            not to the bytes.
    """

    def __init__(self, num_bytes: int | None = None):
        self.num_bytes = num_bytes
        # The loss in nats, the number of correct predictions, and that of all predictions.
        self.sums = [0.0, 0.0, 0.0]

    def __call__(self, prediction: EvalPrediction, compute_result: bool) -> dict[str, float] | None:
        losses, correct = prediction.predictions
        predicted = prediction.label_ids != -100
        batch = (losses[predicted], correct[predicted], predicted)
        self.sums = [total + values.double().sum().item() for total, values in zip(self.sums, batch)]
        if not compute_result:
            return None
        (nats, right, tokens), self.sums = self.sums, [0.0, 0.0, 0.0]
        # exp overflows past 709 nats.
        results = {"token_loss": nats / tokens, "perplexity": math.exp(min(nats / tokens, 700.0))}
        results |= {"accuracy": right / tokens, "predicted_tokens": int(tokens)}
        if self.num_bytes is not None:
            results |= {"bits_per_byte": nats / math.log(2) / self.num_bytes, "predicted_bytes": self.num_bytes}
        return results
