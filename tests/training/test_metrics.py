import math

import pytest
import torch
from transformers import EvalPrediction

from hf_gmlp.training.metrics import MaskedLanguageModelMetrics, token_losses


def test_same_numbers_in_any_batches():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 5, 11, generator=generator)
    labels = torch.randint(11, (6, 5), generator=generator)
    # Rows with very different numbers of predicted tokens, where a mean of batch means would go wrong.
    labels[0, 1:], labels[1, 2:], labels[2] = -100, -100, -100
    predicted = labels != -100
    expected = torch.nn.functional.cross_entropy(logits[predicted], labels[predicted]).item()
    accuracy = (logits[predicted].argmax(-1) == labels[predicted]).float().mean().item()

    metrics = MaskedLanguageModelMetrics()
    for size in (1, 2, 6, 4):
        for start in range(0, 6, size):
            rows = slice(start, start + size)
            kept = token_losses(logits[rows], labels[rows])
            result = metrics(EvalPrediction(kept, labels[rows]), compute_result=start + size >= 6)
        assert result["token_loss"] == pytest.approx(expected, rel=1e-6)
        assert result["perplexity"] == pytest.approx(math.exp(expected), rel=1e-6)
        assert result["accuracy"] == pytest.approx(accuracy, rel=1e-6)
        assert result["predicted_tokens"] == int(predicted.sum())
