"""What a classifier predicts for rows that it was not trained on: scores, a conclusion, and the files of a report."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas
from scipy.special import softmax
from sklearn.metrics import ConfusionMatrixDisplay, classification_report, f1_score, log_loss
from sklearn.utils.multiclass import unique_labels
from transformers import PreTrainedConfig

from ..data.labels import ONE_CLASS, REGRESSION
from ..metrics.baseline import BASELINES
from ..metrics.calibration import (
    MIN_SCORE_ROWS,
    accuracy_in_words,
    accuracy_interval,
    compare,
    correlation_in_words,
)
from ..metrics.scores import names_of, predicted, rows_right, scores
from ..training.run_folder import write_text
from .plan import MIN_CLASS_ROWS

# With more classes, only those with the lowest F1 are printed, and the plotted confusion matrix has no numbers.
MAX_PRINTED_CLASSES = 20
# With more classes there is no confusion matrix: that of ImageNet would have a million numbers.
MAX_MATRIX_CLASSES = 200
NO_ESTIMATE = (
    "There is no estimate of the accuracy. To get one, pass --validation_data, or more rows: a cross-validation needs "
    f"{MIN_CLASS_ROWS} in the typical class (and no --cross_validation 0)."
)


@dataclass
class Evaluation:
    """Predictions for rows that the classifier was not trained on.

    Attributes:
        config: The model's config, with the names of the classes.
        kind: "text" or "picture".
        rows: [M], the indices of these rows in the training data, followed by the validation data.
        logits: [M, outputs].
        labels: [M], class ids or numbers, or [M, classes] with 1 for each class of a row.
        how: How they were predicted, such as "Cross-validated".
        inflation: The factor of the variance of a score, relative to that of as many independent rows.
        splits: Pairs of the indices of rows that were trained on and of rows that this model predicted.
        calibration: What was done to the probabilities, in a sentence.
        baseline: [M], the class ids that the baseline predicts, if it was trained.
    """

    config: PreTrainedConfig
    kind: str
    rows: np.ndarray
    logits: np.ndarray
    labels: np.ndarray
    how: str
    inflation: float
    splits: Sequence[tuple[np.ndarray, np.ndarray]] = ()
    calibration: str = ""
    baseline: np.ndarray | None = None

    @property
    def values(self) -> np.ndarray:
        """The predictions, in the form of the labels."""
        return predicted(self.logits, self.config.problem_type)

    @property
    def right(self) -> np.ndarray:
        """[M], whether all labels of a row are predicted correctly."""
        return rows_right(self.values, self.labels)

    def metrics(self) -> dict[str, float]:
        """Return the metrics, with the names that all_results.json gives them."""
        config, count = self.config, len(self.labels)
        results = scores(self.values, self.labels, config) | {"samples": count}
        if config.problem_type == ONE_CLASS:
            probabilities = softmax(self.logits, axis=-1)
            results["loss"] = float(log_loss(self.labels, probabilities, labels=range(config.num_labels)))
        if config.problem_type != REGRESSION:
            interval = accuracy_interval(int(self.right.sum()), count, self.inflation)
            results["accuracy_low"], results["accuracy_high"] = interval
        results = {f"eval_{name}": value for name, value in results.items()}
        if self.baseline is not None:
            baseline = scores(self.baseline, self.labels, config)
            results |= {f"baseline_{name}": value for name, value in baseline.items()}
        return results

    def __str__(self) -> str:
        """Return what the scores say, and how certain they are, one sentence a line."""
        labels, baseline, count = self.labels, self.baseline, len(self.labels)
        if self.config.problem_type == REGRESSION:
            score = f"correlation (Pearson) {correlation_in_words(self.values, labels, self.inflation)}"
        else:
            score = f"accuracy {accuracy_in_words(int(self.right.sum()), count, self.inflation)}"
        lines = [f"{self.how}: {score}."]
        if self.config.problem_type == ONE_CLASS:
            name = "always the most frequent class" if baseline is None else BASELINES[self.kind]
            baseline_right = labels == (np.bincount(labels).argmax() if baseline is None else baseline)
            comparison = compare(self.right, baseline_right, self.inflation)
            lines.append(f"The baseline ({name}) has {baseline_right.mean():.3f}: {comparison}.")
        if count < MIN_SCORE_ROWS:
            lines.append(f"{count} rows are too few for a precise estimate.")
        return "\n".join([*lines, *filter(None, [self.calibration]), "To improve: label more rows."])

    def write(self, folder: Path, table: pandas.DataFrame) -> str:
        """Write eval_predictions.csv and, for classes, report.txt and confusion_matrix.png; return what to print.

        Args:
            table: The columns of eval_predictions.csv that precede label, prediction and probability.
        """
        config, labels, values, one_class = self.config, self.labels, self.values, self.config.problem_type == ONE_CLASS
        table = table.assign(label=names_of(labels, config), prediction=names_of(values, config))
        if one_class:
            table["probability"] = softmax(self.logits, axis=-1).max(axis=-1).round(4)
        write_text(folder / "eval_predictions.csv", table.to_csv(index=False, lineterminator="\n"))
        if config.problem_type == REGRESSION:
            return str(self)
        # Like the metric F1, the mean of the report leaves out classes that are neither in the data nor predicted.
        names = list(config.id2label.values())
        present = unique_labels(labels, values) if one_class else np.arange(len(names))
        options: dict[str, Any] = {"labels": present, "zero_division": 0}
        report = classification_report(labels, values, target_names=[names[i] for i in present], digits=3, **options)
        texts = [report]
        wrong = table[table["label"] != table["prediction"]].value_counts(["label", "prediction"])[:10]
        if one_class and len(wrong):
            texts.append(f"Most frequent confusions: label, prediction, rows\n{wrong.to_string(header=False)}\n")
            plot_confusions(folder / "confusion_matrix.png", names, labels, values)
        write_text(folder / "report.txt", "\n".join([*texts, f"{self}\n"]))
        if len(present) > MAX_PRINTED_CLASSES:
            f1 = f1_score(labels, values, average=None, **options)
            header, _, *lines = report.splitlines()
            worst = [lines[row] for row in np.argsort(f1, kind="stable")[:10]]
            title = "The ten classes with the lowest F1, and the averages over all:"
            report = "\n".join([title, header, *worst, *lines[len(present) :], ""])
        return f"{report}\nMore in {folder}: report.txt, eval_predictions.csv\n\n{self}"


def plot_confusions(path: Path, names: Sequence[str], labels: np.ndarray, values: np.ndarray) -> None:
    """Plot the number of rows of each label (down) that are predicted as each class (across)."""
    if len(names) > MAX_MATRIX_CLASSES or find_spec("matplotlib") is None:
        return
    from matplotlib.figure import Figure

    size = 0.3 * len(names) + 1
    figure = Figure((size, size))
    ConfusionMatrixDisplay.from_predictions(
        labels,
        values,
        labels=range(len(names)),
        # Between two dollar signs, matplotlib would read mathematics.
        display_labels=[name[:60].replace("$", r"\$") for name in names],
        include_values=len(names) <= MAX_PRINTED_CLASSES,
        xticks_rotation="vertical",
        cmap="Blues",
        colorbar=False,
        text_kw={"fontsize": 8},
        ax=figure.add_subplot(),
    )
    # The names are outside of the figure.
    figure.savefig(path, dpi=100, bbox_inches="tight")
