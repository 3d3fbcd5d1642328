import math

import torch
from transformers import EvalPrediction

from hf_gmlp.tasks.perplexity import LanguageModelMetrics, token_losses

from ..numerics import assert_close


def test_metrics_do_not_depend_on_the_batches():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 5, 11, generator=generator)
    labels = torch.randint(11, (6, 5), generator=generator)
    # The number of predicted tokens varies a lot between rows, so a mean of batch means would be wrong.
    labels[0, 1:], labels[1, 2:], labels[2] = -100, -100, -100
    predicted = labels != -100
    expected = torch.nn.functional.cross_entropy(logits[predicted], labels[predicted]).item()
    accuracy = (logits[predicted].argmax(-1) == labels[predicted]).float().mean().item()

    metrics = LanguageModelMetrics()
    for size in (1, 2, 6, 4):
        for start in range(0, 6, size):
            rows = slice(start, start + size)
            kept = token_losses(logits[rows], labels[rows])
            result = metrics(EvalPrediction(kept, labels[rows]), compute_result=start + size >= 6)
        assert_close(result["token_loss"], expected)
        assert_close(result["perplexity"], math.exp(expected))
        assert_close(result["accuracy"], accuracy)
        assert result["predicted_tokens"] == int(predicted.sum())
