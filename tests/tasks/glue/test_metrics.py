import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score
from transformers import EvalPrediction

from hf_gmlp import GMLPConfig
from hf_gmlp.errors import InputError
from hf_gmlp.tasks.glue.arguments import TASKS
from hf_gmlp.tasks.glue.metrics import classification_metrics, metric_keys, metric_names, write_predictions
from hf_gmlp.tasks.labels import CLASSES, ONE_CLASS, REGRESSION, Labels, set_labels

from ...numerics import assert_close


def config_of(labels, problem_type=ONE_CLASS):
    config = GMLPConfig()
    labels = Labels(None if labels is None else list(labels), problem_type)
    set_labels(config, labels, "ForSequenceClassification", train=True, new_classifier=False)
    return config


def computed(task, config, logits, truth):
    names = metric_names(task, config.problem_type)
    return classification_metrics(names, config)(EvalPrediction(logits, truth))


def test_metrics_of_multiclass_binary_and_regression_tasks():
    generator = np.random.default_rng(0)
    logits, truth = generator.normal(size=(40, 3)), generator.integers(3, size=40)
    classes = logits.argmax(-1)
    expected = {"accuracy": accuracy_score(truth, classes), "f1": f1_score(truth, classes, average="macro")}
    assert_close(computed(None, config_of("abc"), (logits, "more"), truth), expected)
    # With two classes, F1 is that of the second, as in MRPC and QQP.
    logits, truth = generator.normal(size=(40, 2)), generator.integers(2, size=40)
    task = TASKS["mrpc"]
    assert_close(computed(task, config_of(task.labels), logits, truth)["f1"], f1_score(truth, logits.argmax(-1)))

    logits, truth = generator.normal(size=(40, 1)), generator.normal(size=40)
    config = config_of(None, REGRESSION)
    results = computed(TASKS["stsb"], config, logits, truth)
    assert list(results) == ["spearman", "pearson"]
    expected = {"spearman": spearmanr(logits[:, 0], truth)[0], "pearson": pearsonr(logits[:, 0], truth)[0]}
    assert_close(results, expected)
    # A run that diverged also gets a result.
    assert computed(None, config, np.full((40, 1), np.nan), truth) == {"spearman": 0.0, "pearson": 0.0}


def test_metrics_of_several_labels_per_row():
    generator = np.random.default_rng(0)
    logits, truth = generator.normal(size=(40, 3)), generator.integers(2, size=(40, 3))
    results = computed(None, config_of("abc", CLASSES), logits, truth.astype(np.float32))
    expected = {"f1": f1_score(truth, logits > 0, average="micro"), "accuracy": accuracy_score(truth, logits > 0)}
    assert list(results) == ["f1", "accuracy"]
    assert_close(results, expected)


def test_the_metric_that_was_chosen_comes_first():
    assert metric_names(None, ONE_CLASS, "f1") == ("f1", "accuracy")
    assert metric_names(TASKS["sst2"], ONE_CLASS, "matthews_correlation") == ("matthews_correlation", "accuracy")
    for problem_type, chosen in ((REGRESSION, "f1"), (CLASSES, "matthews_correlation"), (ONE_CLASS, "bleu")):
        with pytest.raises(InputError, match=f"--metric_name .* {chosen}"):
            metric_names(None, problem_type, chosen)


def test_keys_of_an_evaluation():
    assert metric_keys(("accuracy",), ["train", "validation_matched", "validation_mismatched"]) == [
        "eval_matched_accuracy", "eval_matched_loss", "eval_mismatched_accuracy", "eval_mismatched_loss"
    ]  # fmt: skip
    assert metric_keys(("f1", "accuracy"), ["validation"]) == ["eval_f1", "eval_accuracy", "eval_loss"]


@pytest.mark.parametrize(
    ("labels", "problem_type", "task", "logits", "expected"),
    [
        # GLUE tasks expect class numbers in GLUE's order, class names, or numbers from 0 to 5.
        (["negative", "positive"], ONE_CLASS, "sst2", [[0, 1], [1, 0]], ["1", "0"]),
        (["positive", "negative"], ONE_CLASS, "sst2", [[0, 1], [1, 0]], ["0", "1"]),
        (["entailment", "not_entailment"], ONE_CLASS, "rte", [[0, 1]], ["not_entailment"]),
        (None, REGRESSION, "stsb", [[5.5], [-0.5], [2.25]], ["5", "0", "2.25"]),
        # Custom tasks allow any numbers, and any names without tabs.
        (None, REGRESSION, None, [[5.5]], ["5.5"]),
        (["so, so", 'a "b"'], ONE_CLASS, None, [[1, 0]], ["so, so"]),
        ("abc", CLASSES, None, [[0.1, -1, 2], [-1, -1, -1]], ["a, c", ""]),
    ],
)
def test_files_of_predictions(tmp_path, labels, problem_type, task, logits, expected):
    path = tmp_path / "out.tsv"
    write_predictions(path, np.array(logits, dtype=float), config_of(labels, problem_type), TASKS.get(task))
    lines = [f"{index}\t{text}" for index, text in enumerate(expected)]
    assert path.read_text() == "\n".join(["index\tprediction", *lines, ""])
