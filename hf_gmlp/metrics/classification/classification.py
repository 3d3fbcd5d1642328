"""The metrics of GLUE, each a configuration of this module, computed by scikit-learn and scipy.

They are accuracy and F1, from 0 to 1, and the correlation coefficients of Matthews, Pearson and Spearman, from -1 to 1,
and 0 for a constant prediction. F1 is that of class 1 (average="binary") or the mean over classes (average="macro").

    evaluate.load("hf_gmlp/metrics/classification", "f1").compute(predictions=[1, 0], references=[1, 1])
"""

# `evaluate` finds imports line by line: keep each on its own line.
import datasets
import evaluate
import scipy.stats
import sklearn.metrics

# Functions of the correct and the predicted values, in this order.
METRICS = {
    "accuracy": sklearn.metrics.accuracy_score,
    # A class that is neither predicted nor present counts as 0, without a warning.
    "f1": lambda *values, average="binary": sklearn.metrics.f1_score(*values, average=average, zero_division=0),
    "matthews_correlation": sklearn.metrics.matthews_corrcoef,
    "pearson": lambda *values: scipy.stats.pearsonr(*values)[0],
    "spearman": lambda *values: scipy.stats.spearmanr(*values)[0],
}


class Classification(evaluate.Metric):
    def _info(self) -> evaluate.MetricInfo:
        number = datasets.Value("float64" if self.config_name in ("pearson", "spearman") else "int64")
        features = datasets.Features({"predictions": number, "references": number})
        return evaluate.MetricInfo(description=__doc__, citation="", features=features)

    def _compute(self, predictions: list, references: list, **options) -> dict[str, float]:
        correlates = self.config_name in ("pearson", "spearman")
        constant = correlates and min(len(set(predictions)), len(set(references))) < 2
        value = 0.0 if constant else METRICS[self.config_name](references, predictions, **options)
        return {self.config_name: float(value)}
