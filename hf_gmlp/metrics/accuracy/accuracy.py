"""Accuracy, the share of correct predictions, from 0 to 1."""

# `evaluate` finds imports line by line: keep each on its own line.
import datasets
import evaluate
from sklearn.metrics import accuracy_score


class Accuracy(evaluate.Metric):
    def _info(self):
        features = {"predictions": datasets.Value("int64"), "references": datasets.Value("int64")}
        return evaluate.MetricInfo(description=__doc__, citation="", features=datasets.Features(features))

    def _compute(self, predictions, references):
        return {"accuracy": float(accuracy_score(references, predictions))}
