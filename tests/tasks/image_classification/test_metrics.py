"""The loss against its formula, the metrics against scikit-learn."""

import numpy as np
import pytest
import torch
from sklearn.metrics import top_k_accuracy_score
from torch.nn import functional as F
from transformers import EvalPrediction
from transformers.modeling_outputs import ImageClassifierOutput

from hf_gmlp.tasks.image_classification.metrics import accuracies, classification_loss, top_classes

from ...numerics import assert_close


@pytest.mark.parametrize("mixed", [False, True])
def test_loss_is_cross_entropy_with_smoothing_in_training_only(mixed):
    logits, classes = torch.randn(6, 4, requires_grad=True), torch.randint(4, (6,))
    probabilities = torch.rand(6, 4).softmax(-1) if mixed else F.one_hot(classes, 4).float()
    labels = probabilities if mixed else classes
    outputs, loss = ImageClassifierOutput(logits=logits), classification_loss(0.1)

    def expected(smoothing):
        return -((1 - smoothing) * probabilities + smoothing / 4).mul(logits.log_softmax(-1)).sum(-1).mean()

    assert_close(loss(outputs, labels), expected(0.1))
    # As Trainer counts: elements of the labels, here of two batches.
    assert_close(loss(outputs, labels, torch.tensor(2 * labels.numel())), expected(0.1) / 2)
    with torch.no_grad():
        assert_close(loss(outputs, labels), expected(0.0))


@pytest.mark.parametrize("classes", [8, 5, 3])
def test_metrics_match_scikit_learn(classes):
    logits, labels = torch.randn(200, classes), torch.randint(classes, (200,))
    metrics = accuracies(EvalPrediction(top_classes((logits,), labels).numpy(), labels.numpy()))
    options = {"y_true": labels.numpy(), "y_score": logits.numpy(), "labels": np.arange(classes)}
    assert metrics["accuracy"] == pytest.approx(top_k_accuracy_score(**options, k=1))
    if classes < 5:
        assert "top5_accuracy" not in metrics
    else:
        assert metrics["top5_accuracy"] == pytest.approx(top_k_accuracy_score(**options, k=5) if classes > 5 else 1.0)
