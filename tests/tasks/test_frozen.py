"""Classifiers on frozen sentence embeddings, compared with scikit-learn."""

from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from datasets import Dataset
from scipy.special import log_expit
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.multiclass import OneVsRestClassifier
from transformers import AutoModelForSequenceClassification, DataCollatorWithPadding, pipeline

from hf_gmlp import GMLPConfig, GMLPForSequenceClassification, GMLPModel
from hf_gmlp.data.labels import CLASSES, ONE_CLASS, REGRESSION, Labels
from hf_gmlp.errors import InputError
from hf_gmlp.tasks import frozen
from hf_gmlp.tasks.glue import main
from hf_gmlp.tokenizer import train_tokenizer
from hf_gmlp.training.trainer import GMLPTrainer

from ..samples import documents, opinions, run_in, write_rows

RECIPE = Path(__file__).parents[2] / "recipes/classify.yaml"
OUTPUTS = {ONE_CLASS: 3, CLASSES: 3, REGRESSION: 1}


def sample(problem_type, rows=60, classes=3, seed=0):
    """Return inputs [rows, 8], labels, and a fold of each row."""
    rng = np.random.default_rng(seed)
    inputs = rng.standard_normal((rows, 8))
    scores = inputs @ rng.standard_normal((8, classes)) + rng.standard_normal((rows, classes))
    labels = {ONE_CLASS: scores.argmax(1), CLASSES: (scores > 0).astype(float), REGRESSION: scores[:, 0]}
    return inputs, labels[problem_type], np.arange(rows) % 5


@pytest.mark.parametrize("balanced", [False, True])
@pytest.mark.parametrize("problem_type", [ONE_CLASS, CLASSES, REGRESSION])
def test_logits_are_those_of_scikit_learn(problem_type, balanced, monkeypatch):
    monkeypatch.setattr(frozen, "STRENGTHS", (0.5,))
    inputs, labels, folds = sample(problem_type)
    logistic = LogisticRegression(C=0.5, class_weight="balanced" if balanced else None)
    model = {ONE_CLASS: logistic, CLASSES: OneVsRestClassifier(logistic), REGRESSION: Ridge(2.0)}[problem_type]
    classifier = frozen.fit_classifier(inputs, labels, folds, problem_type, OUTPUTS[problem_type], balanced)
    score = "predict" if problem_type == REGRESSION else "decision_function"
    expected = getattr(model.fit(inputs, labels), score)(inputs).reshape(len(inputs), -1)
    np.testing.assert_allclose(inputs @ classifier.weight.T + classifier.bias, expected, atol=1e-3)
    # The logits of a fold are those of a model that was fitted to the other folds.
    model.fit(inputs[folds != 2], labels[folds != 2])
    expected = getattr(model, score)(inputs[folds == 2]).reshape(12, -1)
    np.testing.assert_allclose(classifier.logits[folds == 2], expected, atol=1e-3)


def test_two_classes_share_the_coefficients():
    inputs, labels, folds = sample(ONE_CLASS, classes=2)
    classifier = frozen.fit_classifier(inputs, labels, folds, ONE_CLASS, 2)
    logits = inputs @ classifier.weight.T + classifier.bias
    np.testing.assert_allclose(logits[:, 0], -logits[:, 1])
    model = LogisticRegression(C=classifier.strength).fit(inputs, labels)
    np.testing.assert_allclose(logits[:, 1] - logits[:, 0], model.decision_function(inputs), atol=1e-3)


def test_the_strength_is_the_best_on_other_folds(monkeypatch):
    inputs, labels, folds = sample(ONE_CLASS, seed=1)
    chosen = frozen.fit_classifier(inputs, labels, folds, ONE_CLASS, 3)
    losses, classifiers = [], []
    for strength in frozen.STRENGTHS:
        monkeypatch.setattr(frozen, "STRENGTHS", (strength,))
        classifiers.append(frozen.fit_classifier(inputs, labels, folds, ONE_CLASS, 3))
        # A temperature of any size is allowed for.
        scaled = torch.from_numpy(classifiers[-1].logits) / torch.linspace(0.05, 20, 2000)[:, None, None]
        right = scaled.log_softmax(-1)[:, torch.arange(60), torch.from_numpy(labels)]
        losses.append(-float(right.mean(1).max()))
    assert np.ptp(losses) > 0.01
    np.testing.assert_array_equal(chosen.weight, classifiers[np.argmin(losses)].weight)


def test_classes_that_a_fold_lacks_are_improbable():
    inputs, labels, folds = sample(ONE_CLASS)
    labels[:] = np.minimum(labels, 1)
    labels[7] = 2
    classifier = frozen.fit_classifier(inputs, labels, folds, ONE_CLASS, 4)
    assert np.isfinite(classifier.logits).all() and classifier.logits[7].argmax() != 2
    # The fourth class is in no row.
    assert (inputs @ classifier.weight.T + classifier.bias)[:, 3].max() < 0
    several = np.stack([labels == 0, np.zeros(60), np.ones(60)], axis=1).astype(float)
    classifier = frozen.fit_classifier(inputs, several, folds, CLASSES, 3)
    np.testing.assert_allclose(classifier.weight[1:], 0)
    np.testing.assert_allclose(log_expit(classifier.bias[1:]), np.log([1 / 62, 61 / 62]), atol=1e-6)


def test_the_classifier_reads_the_embeddings(perturbed_model, text_config, word_tokenizer):
    fields = {"vocab_size": len(word_tokenizer), "max_position_embeddings": 32, "pooling": "mean", "num_labels": 2}
    model, tokenizer = perturbed_model(GMLPForSequenceClassification, text_config(**fields)), word_tokenizer
    texts = documents([3, 9, 1, 20, 5])
    rows = Dataset.from_list([dict(tokenizer(text)) | {"labels": 0} for text in texts])
    inputs = frozen.embed(model, rows, DataCollatorWithPadding(tokenizer), 2)
    with torch.no_grad():
        expected = [model.model(**tokenizer(text, return_tensors="pt")).pooler_output[0] for text in texts]
    np.testing.assert_allclose(inputs, torch.stack(expected), atol=1e-5)
    frozen.set_classifier(model, frozen.Classifier(np.eye(2, 16), np.array([0.5, -0.5]), np.empty(0), 1.0))
    with torch.no_grad():
        logits = model(**tokenizer(texts[3], return_tensors="pt")).logits[0]
    np.testing.assert_allclose(logits, inputs[3, :2] + [0.5, -0.5], atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, frozen.FROZEN),
        ({"fine_tune": True}, frozen.FITTED),
        ({"rows": 64}, frozen.FITTED),
        ({"rows": 64, "fine_tune": False}, frozen.FROZEN),
        ({"has_embeddings": False}, frozen.NEW),
        ({"pair": True}, frozen.NEW),
        ({"pair": True, "fine_tune": False}, frozen.FROZEN),
        ({"soft": True}, frozen.NEW),
    ],
)
def test_few_rows_freeze_a_sentence_encoder(changes, expected):
    case = {"rows": 62, "fine_tune": None, "has_embeddings": True, "pair": False, "soft": False} | changes
    columns = {name: ["text"] * case["rows"] for name in ("sentence1", "sentence2")[: 1 + case["pair"]]}
    columns["labels"] = [[0.5, 0.5] if case["soft"] else i % 2 for i in range(case["rows"])]
    labels, rows = Labels(["a", "b"], ONE_CLASS), Dataset.from_dict(columns)
    assert frozen.choose_training(case["has_embeddings"], labels, rows, case["fine_tune"]) == expected


def test_only_a_sentence_encoder_can_be_frozen():
    rows = Dataset.from_dict({"sentence1": ["text"], "labels": [0]})
    with pytest.raises(InputError, match="trained sentence embeddings"):
        frozen.choose_training(False, Labels(["a", "b"], ONE_CLASS), rows, False)


@pytest.mark.slow
def test_few_rows_give_an_ordinary_classifier(tmp_path, caplog, monkeypatch):
    save = GMLPTrainer.save_model
    tokenizer = train_tokenizer((row["sentence"] for row in opinions(200, 0)), vocab_size=400, max_length=32)
    torch.manual_seed(0)
    sizes = {"vocab_size": len(tokenizer), "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 64}
    encoder = GMLPModel(GMLPConfig(**sizes, max_position_embeddings=64, pooling="mean"))
    torch.nn.init.normal_(encoder.pooler.dense.weight, std=0.2)
    for item in (encoder, tokenizer):
        item.save_pretrained(tmp_path / "encoder")
    rows, new = (
        [{"text": row["sentence"], "label": ("bad", "good")[row["label"]]} for row in opinions(count, seed)]
        for count, seed in ((120, 1), (60, 2))
    )
    write_rows(tmp_path / "few.csv", rows)
    write_rows(tmp_path / "new.csv", new)
    start = (RECIPE, "--model_name_or_path", "encoder", "--train_file", "few.csv")
    flags = (*start, "--fine_tune", "false", "--output_dir", "out")
    caplog.set_level("INFO")
    saves = []
    monkeypatch.setattr(GMLPTrainer, "save_model", lambda *args, **kwargs: saves.append(save(*args, **kwargs)))
    results = run_in(tmp_path, main, *flags)
    # One line says what trains, and the calibrated model is saved once.
    assert "All 120 rows train a classifier" in caplog.text and "held out" not in caplog.text and len(saves) == 1
    # Cross-validation scores all rows, and tf-idf on the same folds.
    assert results["eval_samples"] == 120 and results["eval_accuracy"] > 0.75 and "baseline_accuracy" in results
    table = pandas.read_csv(tmp_path / "out" / "eval_predictions.csv")
    assert table["text"].tolist() == [row["text"] for row in rows]
    assert (table["label"] == table["prediction"]).mean() == pytest.approx(results["eval_accuracy"])
    # Only the classifier was trained.
    trained = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    assert all(torch.equal(weight, trained.model.state_dict()[name]) for name, weight in encoder.state_dict().items())
    classify = pipeline("text-classification", str(tmp_path / "out"), device="cpu")
    answers = classify([row["text"] for row in new])
    assert np.mean([answer["label"] == row["label"] for answer, row in zip(answers, new)]) > 0.75
    assert "only the classifier" in (tmp_path / "out" / "README.md").read_text()
    # With validation data, these are evaluated.
    flags = (*flags[:-1], "out2", "--validation_file", "new.csv")
    assert run_in(tmp_path, main, *flags)["eval_samples"] == 60
    # With 60 rows per class, fine-tuning starts from such a classifier, and a cross-validation scores it too.
    flags = (*start, "--max_steps", "3", "--learning_rate", "2e-5", "--cross_validation", "2", "--output_dir", "tuned")
    results = run_in(tmp_path, main, *flags)
    assert results["eval_samples"] == 120 and results["eval_accuracy"] > 0.75 and "baseline_accuracy" in results
    tuned = AutoModelForSequenceClassification.from_pretrained(tmp_path / "tuned").state_dict()
    changed = {name for name, weight in trained.state_dict().items() if not torch.equal(weight, tuned[name])}
    # The classifier is calibrated too.
    assert changed == tuned.keys() - {"model.embeddings.word_embeddings.weight"}
    difference = trained.model.pooler.dense.weight - tuned["model.pooler.dense.weight"]
    assert difference.abs().max() < 1e-4
