"""The share of predictions that are right."""

# `evaluate` looks for imports line by line: each stands on a line of its own.
import datasets
import evaluate
from sklearn.metrics import accuracy_score


class Accuracy(evaluate.Metric):
    """The share of predictions that are right, from 0 to 1."""

    def _info(self):
        labels = {"predictions": datasets.Value("int64"), "references": datasets.Value("int64")}
        return evaluate.MetricInfo(
            description=__doc__,
            citation="",
            inputs_description="predictions and references: class ids.",
            features=datasets.Features(labels),
        )

    def _compute(self, predictions: list[int], references: list[int]) -> dict[str, float]:
        return {"accuracy": float(accuracy_score(references, predictions))}
