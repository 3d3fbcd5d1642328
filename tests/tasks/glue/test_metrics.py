import numpy as np
import pytest
from datasets import Dataset
from scipy.stats import spearmanr
from sklearn.metrics import accuracy_score, f1_score
from transformers import EvalPrediction

from hf_gmlp import GMLPConfig
from hf_gmlp.errors import InputError
from hf_gmlp.tasks.glue import metrics as glue
from hf_gmlp.tasks.glue.arguments import GlueArguments, SentenceModelArguments
from hf_gmlp.tasks.glue.sentences import TASKS
from hf_gmlp.tasks.labels import CLASSES, ONE_CLASS, REGRESSION, Labels, set_labels
from hf_gmlp.training import series
from hf_gmlp.training.arguments import RunArguments, parse_arguments

TYPES = (SentenceModelArguments, GlueArguments, RunArguments)
GENERATOR = np.random.default_rng(0)


def parse(folder, *flags):
    usual = ["--config_name", "gmlp-18l", "--do_train", "--do_eval", "--use_cpu", "--output_dir", folder]
    return parse_arguments(TYPES, "A test.", [*map(str, usual), *map(str, flags)])


def told(labels, problem_type=ONE_CLASS):
    config = GMLPConfig()
    labels = Labels(None if labels is None else list(labels), problem_type)
    set_labels(config, labels, "ForSequenceClassification", train=True, new_classifier=False)
    return config


def test_metrics_of_a_task_and_of_other_data():
    logits, truth = GENERATOR.normal(size=(40, 3)), GENERATOR.integers(3, size=40)
    compute = glue.classification_metrics(glue.metric_names(None, ONE_CLASS), told("abc"))
    results = compute(EvalPrediction((logits, "more"), truth))
    assert results["accuracy"] == pytest.approx((logits.argmax(-1) == truth).mean())
    assert results["f1"] == pytest.approx(f1_score(truth, logits.argmax(-1), average="macro"))

    # Of two classes, the second is the one that counts, as in MRPC and QQP.
    task = TASKS["mrpc"]
    compute = glue.classification_metrics(glue.metric_names(task, ONE_CLASS), told(task.labels))
    logits, truth = GENERATOR.normal(size=(40, 2)), GENERATOR.integers(2, size=40)
    assert compute(EvalPrediction(logits, truth))["f1"] == pytest.approx(f1_score(truth, logits.argmax(-1)))

    compute = glue.classification_metrics(glue.metric_names(TASKS["stsb"], REGRESSION), told(None, REGRESSION))
    logits, truth = GENERATOR.normal(size=(40, 1)), GENERATOR.normal(size=40)
    results = compute(EvalPrediction(logits, truth))
    assert list(results) == ["spearman", "pearson"]
    assert results["spearman"] == pytest.approx(spearmanr(logits[:, 0], truth).statistic)
    # A run that diverged has a result all the same.
    assert compute(EvalPrediction(np.full((40, 1), np.nan), truth)) == {"spearman": 0.0, "pearson": 0.0}

    # Several labels per row.
    logits, truth = GENERATOR.normal(size=(40, 3)), GENERATOR.integers(2, size=(40, 3))
    compute = glue.classification_metrics(glue.metric_names(None, CLASSES), told("abc", CLASSES))
    results = compute(EvalPrediction(logits, truth.astype(np.float32)))
    assert list(results) == ["f1", "accuracy"]
    assert results["f1"] == pytest.approx(f1_score(truth, logits > 0, average="micro"))
    assert results["accuracy"] == pytest.approx(accuracy_score(truth, logits > 0))


def test_the_metric_that_was_chosen_comes_first():
    assert glue.metric_names(None, ONE_CLASS, "f1") == ("f1", "accuracy")
    assert glue.metric_names(TASKS["sst2"], ONE_CLASS, "matthews_correlation") == ("matthews_correlation", "accuracy")
    assert glue.metric_names(TASKS["stsb"], REGRESSION, "pearson") == ("pearson", "spearman")
    for problem_type, chosen in ((REGRESSION, "f1"), (CLASSES, "matthews_correlation"), (ONE_CLASS, "bleu")):
        with pytest.raises(InputError, match=f"--metric_name must be one of .* here, got {chosen}"):
            glue.metric_names(None, problem_type, chosen)


def read(path):
    return [line.split("\t") for line in path.read_text().splitlines()]


def test_what_the_leaderboard_takes(tmp_path):
    path = tmp_path / "out.tsv"
    logits = np.array([[0.0, 1.0], [1.0, 0.0]])
    # By number, whatever order the checkpoint has the classes in; by name; as numbers from 0 to 5.
    glue.write_predictions(path, logits, told(["negative", "positive"]), TASKS["sst2"])
    assert read(path) == [["index", "prediction"], ["0", "1"], ["1", "0"]]
    glue.write_predictions(path, logits, told(["positive", "negative"]), TASKS["sst2"])
    assert read(path)[1:] == [["0", "0"], ["1", "1"]]
    glue.write_predictions(path, logits, told(["entailment", "not_entailment"]), TASKS["rte"])
    assert read(path)[1:] == [["0", "not_entailment"], ["1", "entailment"]]
    glue.write_predictions(path, np.array([[5.5], [-0.5], [2.25]]), told(None, REGRESSION), TASKS["stsb"])
    assert read(path)[1:] == [["0", "5"], ["1", "0"], ["2", "2.25"]]
    # Numbers of one's own may be any.
    glue.write_predictions(path, np.array([[5.5]]), told(None, REGRESSION))
    assert read(path)[1:] == [["0", "5.5"]]
    glue.write_predictions(path, np.array([[0.1, -1.0, 2.0], [-1.0, -1.0, -1.0]]), told("abc", CLASSES))
    assert read(path)[1:] == [["0", "a, c"], ["1", ""]]


def test_no_predictions_of_a_model_that_diverged(tmp_path, caplog):
    glue.write_predictions(tmp_path / "p.tsv", np.array([[0.0, np.nan]]), told("ab"))
    assert not (tmp_path / "p.tsv").exists() and "not finite" in caplog.text


def test_the_metric_that_decides(tmp_path):
    mnli = glue.metric_keys(("accuracy",), ["train", "validation_matched", "validation_mismatched"])
    both = glue.metric_keys(("f1", "accuracy"), ["validation"])
    assert both == ["eval_f1", "eval_accuracy", "eval_loss"]
    *_, args = parse(tmp_path)
    assert series.main_metric(args, mnli) == "eval_matched_accuracy"
    assert series.main_metric(args, both, "f1") == "eval_f1"
    assert series.main_metric(args, glue.metric_keys(("f1", "accuracy"), ["train"])) is None
    *_, args = parse(tmp_path, "--metric_for_best_model", "accuracy")
    assert series.main_metric(args, both) == series.main_metric(args, both, "accuracy") == "eval_accuracy"
    with pytest.raises(InputError, match="must be one of eval_matched_accuracy, eval_matched_loss, eval_mismatched"):
        series.main_metric(args, mnli)
    with pytest.raises(
        InputError, match="--metric_for_best_model accuracy .* must be one of eval_f1 where --metric_name is f1"
    ):
        series.main_metric(args, both, "f1")
    *_, args = parse(tmp_path, "--metric_for_best_model", "mismatched_accuracy")
    assert series.main_metric(args, mnli, "accuracy") == "eval_mismatched_accuracy"


def test_several_validation_sets_are_evaluated_apart():
    data = Dataset.from_dict({"labels": [0]})
    assert glue.validation_sets({"train": data, "validation": data}) is data
    assert glue.validation_sets({"validation_matched": data, "validation_mismatched": data}).keys() == {
        "matched", "mismatched"
    }  # fmt: skip
    assert glue.validation_sets({"train": data}) is None


def test_sequence_length():
    assert GlueArguments().sequence_length(GMLPConfig()) == 128
    assert GlueArguments().sequence_length(GMLPConfig(max_position_embeddings=64)) == 64
    with pytest.raises(InputError, match="--max_seq_length 65 is above the model's n = 64"):
        GlueArguments(max_seq_length=65).sequence_length(GMLPConfig(max_position_embeddings=64))


def test_the_data_in_words():
    assert GlueArguments(task_name="sst2").data_name() == "GLUE sst2"
    assert GlueArguments(task_name="sst2").dataset_id() == "nyu-mll/glue"
    own = GlueArguments(task_name="sst2", train_file=["x/a.csv", "b.csv"])
    assert own.data_name() == "a.csv, b.csv (sst2)" and own.dataset_id() is None
    assert GlueArguments(dataset_name="some/data").dataset_id() == "some/data"
