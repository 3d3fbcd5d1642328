"""F1, the harmonic mean of precision and recall."""

# `evaluate` looks for imports line by line: each stands on a line of its own.
import datasets
import evaluate
from sklearn.metrics import f1_score


class F1(evaluate.Metric):
    """F1 of class 1 (average="binary"), or the mean of the F1 of every class (average="macro"), from 0 to 1."""

    def _info(self):
        labels = {"predictions": datasets.Value("int64"), "references": datasets.Value("int64")}
        return evaluate.MetricInfo(
            description=__doc__,
            citation="",
            inputs_description="predictions and references: class ids; average: 'binary' or 'macro'.",
            features=datasets.Features(labels),
        )

    def _compute(self, predictions: list[int], references: list[int], average: str = "binary") -> dict[str, float]:
        # A class that is neither predicted nor there counts as 0, without a warning.
        return {"f1": float(f1_score(references, predictions, average=average, zero_division=0))}
