"""What a classifier's training is worth: the files of the report, and its conclusion in a few sentences."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas
from scipy.special import softmax
from sklearn.metrics import classification_report, confusion_matrix, f1_score, log_loss
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
from ..metrics.scores import names_of, predicted, scores
from ..training.run_folder import write_text
from .plan import MIN_CLASS_ROWS
from .training import Evaluation

# With more classes, only those with the lowest F1 are printed, and the plotted confusion matrix has no numbers.
MAX_PRINTED_CLASSES = 20
# With more classes there is no confusion matrix: that of ImageNet would have a million numbers.
MAX_MATRIX_CLASSES = 200
NO_ESTIMATE = (
    "There is no estimate of the accuracy. To get one, pass --validation_data, or more rows: a cross-validation needs "
    f"{MIN_CLASS_ROWS} in the typical class (and no --cross_validation 0)."
)


@dataclass
class Report:
    """The report on an `Evaluation`.

    Attributes:
        rows: The columns of eval_predictions.csv that precede label and prediction.
        kind: "text" or "picture".
        baseline: [M], the class ids that the baseline predicts, if it was trained.
    """

    config: PreTrainedConfig
    evaluation: Evaluation
    rows: pandas.DataFrame
    kind: str
    baseline: np.ndarray | None = None

    def __post_init__(self) -> None:
        self.problem_type = self.config.problem_type
        self.names = list(self.config.id2label.values())
        self.values = predicted(self.evaluation.logits, self.problem_type)
        self.metrics = self.results()

    def results(self) -> dict[str, float]:
        """Return the metrics, with the names that all_results.json gives them."""
        labels, count, values = self.evaluation.labels, len(self.evaluation.labels), self.values
        results = scores(values, labels, self.config) | {"samples": count}
        if self.problem_type == ONE_CLASS:
            probabilities = softmax(self.evaluation.logits, axis=-1)
            results["loss"] = float(log_loss(labels, probabilities, labels=range(len(self.names))))
        if "accuracy" in results:
            interval = accuracy_interval(round(results["accuracy"] * count), count, self.evaluation.inflation)
            results["accuracy_low"], results["accuracy_high"] = interval
        results = {f"eval_{name}": value for name, value in results.items()}
        if self.baseline is not None:
            baseline = scores(self.baseline, labels, self.config)
            results |= {f"baseline_{name}": value for name, value in baseline.items()}
        return results

    def sentences(self) -> list[str]:
        """Return what the scores say, and how certain they are."""
        evaluation, labels, count = self.evaluation, self.evaluation.labels, len(self.evaluation.labels)
        how, sentences = evaluation.how, []
        if self.problem_type == REGRESSION:
            words = correlation_in_words(self.values, labels, evaluation.inflation)
            sentences.append(f"{how}: correlation (Pearson) {words}.")
        else:
            right = (self.values == labels).reshape(count, -1).all(axis=1)
            words = accuracy_in_words(int(right.sum()), count, evaluation.inflation)
            sentences.append(f"{how}: accuracy {words}.")
        if self.problem_type == ONE_CLASS:
            name = "always the most frequent class" if self.baseline is None else BASELINES[self.kind]
            baseline_right = labels == (np.bincount(labels).argmax() if self.baseline is None else self.baseline)
            comparison = compare(right, baseline_right, evaluation.inflation)
            sentences.append(f"The baseline ({name}) has {baseline_right.mean():.3f}: {comparison}.")
        if count < MIN_SCORE_ROWS:
            sentences.append(f"{count} rows are too few for a precise estimate.")
        return [*sentences, *filter(None, [evaluation.calibration]), "To improve: label more rows."]

    def table(self) -> pandas.DataFrame:
        """Return the evaluated rows with label, prediction and, for one class per row, probability."""
        table = self.rows.assign(
            label=names_of(self.evaluation.labels, self.config), prediction=names_of(self.values, self.config)
        )
        if self.problem_type == ONE_CLASS:
            table["probability"] = softmax(self.evaluation.logits, axis=-1).max(axis=-1).round(4)
        return table

    def write(self, folder: Path) -> str:
        """Write eval_predictions.csv and, for classes, report.txt and confusion_matrix.png; return what to print."""
        table, conclusion = self.table(), "\n".join(self.sentences())
        write_text(folder / "eval_predictions.csv", table.to_csv(index=False, lineterminator="\n"))
        if self.problem_type == REGRESSION:
            return conclusion
        # Like the metric F1, the mean of the report leaves out classes that are neither in the data nor predicted.
        labels, values, names = self.evaluation.labels, self.values, self.names
        present = unique_labels(labels, values) if self.problem_type == ONE_CLASS else np.arange(len(names))
        options: dict[str, Any] = {"labels": present, "zero_division": 0}
        report = classification_report(labels, values, target_names=[names[i] for i in present], digits=3, **options)
        texts = [report]
        wrong = table[table["label"] != table["prediction"]].value_counts(["label", "prediction"])[:10]
        if self.problem_type == ONE_CLASS and len(wrong):
            texts.append(f"Most frequent confusions: label, prediction, rows\n{wrong.to_string(header=False)}\n")
            plot_confusions(folder / "confusion_matrix.png", names, labels, values)
        write_text(folder / "report.txt", "\n".join([*texts, conclusion, ""]))
        if len(present) > MAX_PRINTED_CLASSES:
            f1 = f1_score(labels, values, labels=present, average=None, zero_division=0)
            header, _, *lines = report.splitlines()
            worst = [lines[row] for row in np.argsort(f1, kind="stable")[:10]]
            title = "The ten classes with the lowest F1, and the averages over all:"
            report = "\n".join([title, header, *worst, *lines[len(present) :], ""])
        return f"{report}\nMore in {folder}: report.txt, eval_predictions.csv\n\n{conclusion}"


def plot_confusions(path: Path, names: Sequence[str], labels: np.ndarray, values: np.ndarray) -> None:
    """Plot the number of rows of each label (down) that are predicted as each class (across)."""
    if len(names) > MAX_MATRIX_CLASSES or find_spec("matplotlib") is None:
        return
    from matplotlib.figure import Figure

    matrix = confusion_matrix(labels, values, labels=range(len(names)))
    # Between two dollar signs, matplotlib would read mathematics.
    names = [name[:60].replace("$", r"\$") for name in names]
    # Inches for the cells, and for the names at both sides.
    cells, side = 0.3 * len(names) + 0.5, 0.08 * max(map(len, names)) + 0.6
    size = cells + side
    figure = Figure((size + 0.4, size + 0.4))
    axes = figure.add_axes((side / (size + 0.4), side / (size + 0.4), cells / (size + 0.4), cells / (size + 0.4)))
    axes.imshow(matrix, cmap="Blues")
    axes.set_xticks(range(len(names)), names, rotation="vertical", fontsize=8)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set(xlabel="prediction", ylabel="label")
    if len(names) <= MAX_PRINTED_CLASSES:
        for row, column in zip(*matrix.nonzero()):
            color = "white" if matrix[row, column] > matrix.max() / 2 else "black"
            axes.text(column, row, matrix[row, column], ha="center", va="center", color=color, fontsize=8)
    figure.savefig(path, dpi=100)
