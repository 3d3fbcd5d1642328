import numpy as np
import pytest
from sklearn.metrics import top_k_accuracy_score
from transformers import EvalPrediction

from hf_gmlp.tasks.image_classification.metrics import accuracies


@pytest.mark.parametrize("classes", [8, 5, 3])
def test_metrics_match_scikit_learn(classes):
    random = np.random.default_rng(0)
    logits, labels = random.normal(size=(200, classes)), random.integers(classes, size=200)
    metrics = accuracies(EvalPrediction(logits, labels))
    options = {"y_true": labels, "y_score": logits, "labels": np.arange(classes)}
    assert metrics["accuracy"] == pytest.approx(top_k_accuracy_score(**options, k=1))
    if classes < 5:
        assert "top5_accuracy" not in metrics
    else:
        assert metrics["top5_accuracy"] == pytest.approx(top_k_accuracy_score(**options, k=5) if classes > 5 else 1.0)
