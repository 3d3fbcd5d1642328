"""Pearson's correlation coefficient."""

# `evaluate` looks for imports line by line: each stands on a line of its own.
import datasets
import evaluate
from scipy.stats import pearsonr


class Pearson(evaluate.Metric):
    """Pearson's correlation coefficient, from -1 to 1; 0 for a constant prediction, where it is not defined."""

    def _info(self):
        values = {"predictions": datasets.Value("float64"), "references": datasets.Value("float64")}
        return evaluate.MetricInfo(
            description=__doc__,
            citation="",
            inputs_description="predictions and references: numbers.",
            features=datasets.Features(values),
        )

    def _compute(self, predictions: list[float], references: list[float]) -> dict[str, float]:
        if len(set(predictions)) < 2 or len(set(references)) < 2:
            return {"pearson": 0.0}
        return {"pearson": float(pearsonr(predictions, references)[0])}
