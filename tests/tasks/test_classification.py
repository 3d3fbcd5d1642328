from types import SimpleNamespace

import numpy as np
import pandas
import pytest
import torch
from sklearn.metrics import f1_score
from sklearn.utils.class_weight import compute_class_weight
from torch.nn import functional as F
from transformers import TrainerState, TrainingArguments
from transformers.modeling_outputs import ImageClassifierOutput

from hf_gmlp.data.labels import CLASSES, ONE_CLASS, REGRESSION
from hf_gmlp.tasks.classification import (
    ClassificationArguments,
    Evaluation,
    KeptEvaluation,
    balanced_weights,
    calibrate_classifier,
    conclude,
    finish_evaluation,
    fold_numbers,
    weighted_loss,
)
from hf_gmlp.tasks.glue import METRICS, classification_metrics
from hf_gmlp.training.arguments import RunArguments

from ..numerics import assert_close
from ..samples import config_of


@pytest.mark.parametrize("mixed", [False, True])
def test_loss_is_cross_entropy_with_smoothing_in_training_only(mixed):
    logits, classes = torch.randn(6, 4, requires_grad=True), torch.randint(4, (6,))
    probabilities = torch.rand(6, 4).softmax(-1) if mixed else F.one_hot(classes, 4).float()
    labels = probabilities if mixed else classes
    outputs, loss = ImageClassifierOutput(logits=logits), weighted_loss(0.1)

    def expected(smoothing):
        return -((1 - smoothing) * probabilities + smoothing / 4).mul(logits.log_softmax(-1)).sum(-1).mean()

    assert_close(loss(outputs, labels), expected(0.1))
    # Trainer counts the elements of the labels, here those of two batches.
    assert_close(loss(outputs, labels, torch.tensor(2 * labels.numel())), expected(0.1) / 2)
    with torch.no_grad():
        assert_close(loss(outputs, labels), expected(0.0))


def test_class_weights_are_those_of_scikit_learn():
    labels = [0, 0, 0, 2, 2, 1]
    weights = balanced_weights(labels, config_of("abc"))
    expected = torch.tensor(compute_class_weight("balanced", classes=np.arange(3), y=labels))
    assert_close(weights, expected.float())
    assert_close(balanced_weights(F.one_hot(torch.tensor(labels)).float().tolist(), config_of("abc")), weights)
    logits = torch.randn(6, 3)
    loss = weighted_loss(weights=weights)(ImageClassifierOutput(logits=logits), torch.tensor(labels))
    picked = logits.log_softmax(-1)[range(6), labels]
    assert_close(loss, -(weights[labels] * picked).mean())
    # One class of the checkpoint is absent from the data.
    assert_close(balanced_weights([0, 0, 2], config_of("abc")), torch.tensor([0.75, 0.0, 1.5]))


def test_few_rows_are_trained_on_for_more_epochs(tmp_path):
    cases = ((300, 100, -1, 75), (300, 10_000, -1, 4), (300, 100, 5, 4), (None, 9, -1, 4))
    for steps, rows, max_steps, expected in cases:
        options = {"num_train_epochs": 4, "per_device_train_batch_size": 25, "max_steps": max_steps}
        args = RunArguments(str(tmp_path), use_cpu=True, **options)
        ClassificationArguments(min_train_steps=steps).lengthen(args, rows)
        assert args.num_train_epochs == expected


def test_a_resumed_run_restores_the_count_of_evaluations(tmp_path):
    args = TrainingArguments(tmp_path, use_cpu=True)
    for problem_type, threshold in ((ONE_CLASS, 0.001), (REGRESSION, 0.0)):
        (callback,) = ClassificationArguments(early_stopping_patience=3).callbacks(args, problem_type)
        assert (callback.early_stopping_patience, callback.early_stopping_threshold) == (3, threshold)
    assert args.restore_callback_states_from_checkpoint
    assert ClassificationArguments(early_stopping_patience=0).callbacks(args) == []


@pytest.fixture
def reported(tmp_path, capsys):
    """reported(config, logits, labels, baseline) writes the report of an evaluation, and returns the table of
    predictions, the F1 scores of the model card, and what was printed.
    """

    def report(config, logits, labels, baseline=None):
        rows = pandas.DataFrame({"text": [f"t{row}" for row in range(len(labels))]})
        evaluation = Evaluation(np.asarray(logits), np.asarray(labels), rows, baseline)
        names = METRICS[config.problem_type]
        trainer = SimpleNamespace(
            model=SimpleNamespace(config=config),
            args=TrainingArguments(tmp_path, use_cpu=True),
            state=TrainerState(global_step=9, best_global_step=9),
            compute_metrics=KeptEvaluation(classification_metrics(names, config)),
            is_world_process_zero=lambda: True,
            results={},
            card={},
            hyperparameters={},
        )
        finish_evaluation(trainer, evaluation, calibrate=False)
        conclude(trainer, evaluation)
        scores = {name.removeprefix("F1 of "): value for name, value in trainer.results.items() if "F1" in name}
        table = pandas.read_csv(tmp_path / "eval_predictions.csv", keep_default_na=False)
        return table, scores, capsys.readouterr().out

    return report


def test_the_report_has_the_numbers_of_scikit_learn(tmp_path, reported):
    random = np.random.default_rng(0)
    logits, labels = random.normal(size=(40, 3)).astype(np.float32), random.integers(3, size=40)
    table, scores, printed = reported(config_of(["so, so", "good", "bad"]), logits, labels)
    predictions, names = logits.argmax(-1), np.array(["so, so", "good", "bad"])
    assert (table["label"] == names[labels]).all() and (table["prediction"] == names[predictions]).all()
    expected = torch.from_numpy(logits).softmax(-1).max(-1).values
    np.testing.assert_allclose(table["probability"], expected, atol=1e-4)
    f1 = f1_score(labels, predictions, average=None)
    assert scores == pytest.approx(dict(zip(names, f1)) | {
        "F1, macro avg": f1.mean(), "F1, weighted avg": f1_score(labels, predictions, average="weighted")
    })  # fmt: skip
    text = (tmp_path / "report.txt").read_text()
    assert f"{f1[1]:.3f}" in text and f"{f1[1]:.3f}" in printed and "confusions" in text
    # The report also says how far its numbers can be trusted.
    count = (labels == predictions).sum()
    for words in (f"{count} of 40 rows", "95 % interval", "40 rows are too few", "To improve: train longer"):
        assert words in text and words in printed
    assert (tmp_path / "confusion_matrix.png").stat().st_size > 0


def test_the_mean_of_the_report_is_the_metric_with_an_absent_class(reported):
    labels, predictions = np.array([0, 0, 1, 1, 2]), [0, 1, 1, 1, 0]
    _, scores, _ = reported(config_of("abcd"), np.eye(4, dtype=np.float32)[predictions], labels)
    assert scores["F1, macro avg"] == pytest.approx(f1_score(labels, predictions, average="macro"))
    assert "d" not in scores and scores["c"] == 0


def test_reports_of_multiclass_multilabel_and_regression_tasks(tmp_path, reported):
    names, labels = [f"c{number:02}" for number in range(30)], np.arange(30)
    labels[:2] = 1, 0
    _, scores, printed = reported(config_of(names), np.eye(30, dtype=np.float32), labels)
    assert "lowest F1" in printed and "c01" in printed and "c29" not in printed and "macro avg" in printed
    assert set(scores) == {"F1, macro avg", "F1, weighted avg"}
    table, scores, _ = reported(config_of("ab", CLASSES), [[1.0, -1.0], [1.0, 1.0]], [[1, 0], [0, 1]])
    assert table[["label", "prediction"]].values.tolist() == [["a", "a"], ["b", "a, b"]]
    assert scores["a"] == pytest.approx(2 / 3) and scores["b"] == 1
    table, _, printed = reported(config_of(None, REGRESSION), [[0.5], [2.0], [3.0], [5.0]], [1.0, 2.0, 3.0, 4.0])
    assert table["prediction"].tolist() == [0.5, 2.0, 3.0, 5.0] and "correlation (Pearson) 0.992" in printed


def test_classes_may_have_the_names_of_averages_or_dollar_signs(tmp_path, reported):
    names = ["accuracy", "macro avg", "$", "$$", "a$b$c", r"$\x$"]
    _, scores, printed = reported(config_of(names), np.eye(6, dtype=np.float32)[[1, 0, 2, 3, 4, 5]], np.arange(6))
    assert scores["accuracy"] == scores["macro avg"] == 0 and scores["F1, macro avg"] == pytest.approx(4 / 6)
    assert all(name in printed for name in names) and (tmp_path / "confusion_matrix.png").stat().st_size > 0


def test_the_last_sentence_compares_with_a_baseline(reported):
    labels = np.arange(300) % 2
    logits = np.eye(2)[labels]
    logits[:30] = logits[:30, ::-1]
    cases = {90: "the model is better by 20.0 points", 30: "may be chance", 3: "the baseline is better by 9.0 points"}
    for wrong, message in cases.items():
        baseline = np.where(np.arange(300) < wrong, 1 - labels, labels)
        _, _, printed = reported(config_of("ab"), logits, labels, baseline)
        assert "accuracy 0.900 (95 % interval 0.861 to 0.929; 270 of 300 rows)" in printed
        assert message in printed and ("sentence encoder" in printed) == (wrong < 90)


def test_a_temperature_becomes_part_of_the_classifier():
    random = np.random.default_rng(0)
    features, labels = torch.randn(400, 8), random.integers(3, size=400)
    classifier = torch.nn.Linear(8, 3)
    logits = 5 * np.eye(3)[np.where(random.random(400) < 0.7, labels, random.integers(3, size=400))]
    evaluation, before = Evaluation(logits.copy(), labels, pandas.DataFrame()), classifier(features)
    sentence = calibrate_classifier(classifier, evaluation)
    temperature = logits.max() / evaluation.logits.max()
    assert_close(classifier(features), before / temperature)
    assert 2 < temperature < 4 and f"temperature {temperature:.2f}" in sentence
    few = Evaluation(logits[:99], labels[:99], pandas.DataFrame())
    assert "not calibrated" in calibrate_classifier(classifier, few)
    assert_close(classifier(features), before / temperature)


def test_every_fold_has_the_same_fraction_of_each_class():
    labels = ["a"] * 20 + ["b"] * 10 + ["c"] * 3
    numbers = fold_numbers(labels, 5)
    for name, least in (("a", 4), ("b", 2), ("c", 0)):
        counts = np.bincount(numbers[np.array(labels) == name], minlength=5)
        assert counts.min() >= least and counts.max() <= least + 1
