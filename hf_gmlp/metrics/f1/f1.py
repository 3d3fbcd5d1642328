"""F1 of class 1 (average="binary"), or the mean of the F1 of every class (average="macro"), from 0 to 1."""

# `evaluate` finds imports line by line: keep each on its own line.
import datasets
import evaluate
from sklearn.metrics import f1_score


class F1(evaluate.Metric):
    def _info(self):
        features = {"predictions": datasets.Value("int64"), "references": datasets.Value("int64")}
        return evaluate.MetricInfo(description=__doc__, citation="", features=datasets.Features(features))

    def _compute(self, predictions, references, average="binary"):
        # A class that is neither predicted nor present counts as 0, without a warning.
        return {"f1": float(f1_score(references, predictions, average=average, zero_division=0))}
