"""Matthews correlation coefficient, CoLA's metric."""

# `evaluate` looks for imports line by line: each stands on a line of its own.
import datasets
import evaluate
from sklearn.metrics import matthews_corrcoef


class MatthewsCorrelation(evaluate.Metric):
    """Matthews correlation coefficient, from -1 to 1; 0 for a constant prediction."""

    def _info(self):
        labels = {"predictions": datasets.Value("int64"), "references": datasets.Value("int64")}
        return evaluate.MetricInfo(
            description=__doc__,
            citation="",
            inputs_description="predictions and references: class ids.",
            features=datasets.Features(labels),
        )

    def _compute(self, predictions: list[int], references: list[int]) -> dict[str, float]:
        return {"matthews_correlation": float(matthews_corrcoef(references, predictions))}
