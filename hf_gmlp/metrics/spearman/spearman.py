"""Spearman's correlation coefficient, from -1 to 1; 0 for a constant prediction, where it is undefined."""

# `evaluate` finds imports line by line: keep each on its own line.
import datasets
import evaluate
from scipy.stats import spearmanr


class Spearman(evaluate.Metric):
    def _info(self):
        features = {"predictions": datasets.Value("float64"), "references": datasets.Value("float64")}
        return evaluate.MetricInfo(description=__doc__, citation="", features=datasets.Features(features))

    def _compute(self, predictions, references):
        constant = len(set(predictions)) < 2 or len(set(references)) < 2
        return {"spearman": 0.0 if constant else float(spearmanr(predictions, references)[0])}
