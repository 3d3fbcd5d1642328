"""Matthews correlation coefficient, CoLA's metric, from -1 to 1; 0 for a constant prediction."""

# `evaluate` finds imports line by line: keep each on its own line.
import datasets
import evaluate
from sklearn.metrics import matthews_corrcoef


class MatthewsCorrelation(evaluate.Metric):
    def _info(self):
        features = {"predictions": datasets.Value("int64"), "references": datasets.Value("int64")}
        return evaluate.MetricInfo(description=__doc__, citation="", features=datasets.Features(features))

    def _compute(self, predictions, references):
        return {"matthews_correlation": float(matthews_corrcoef(references, predictions))}
