import json
import statistics

import numpy as np
import pytest
from datasets import Dataset
from scipy.stats import spearmanr
from sklearn.metrics import f1_score
from transformers import EvalPrediction

from hf_gmlp import GMLPConfig
from hf_gmlp.data.classification import TASKS
from hf_gmlp.errors import InputError
from hf_gmlp.training import glue
from hf_gmlp.training.arguments import GlueArguments, ModelArguments, RunArguments, parse_arguments
from hf_gmlp.training.trainer import write_settings

TYPES = (ModelArguments, GlueArguments, RunArguments)
GENERATOR = np.random.default_rng(0)


def parse(folder, *flags):
    usual = ["--config_name", "gmlp-18l", "--do_train", "--do_eval", "--use_cpu", "--output_dir", folder]
    return parse_arguments(TYPES, "A test.", [*map(str, usual), *map(str, flags)])


def plan(folder, *flags):
    return glue.plan_runs(*parse(folder, *flags))


def test_a_run_for_every_setting_and_seed(tmp_path):
    lists = ("--sweep_batch_sizes", 16, 32, "--sweep_learning_rates", 1e-5, 3e-5, "--seeds", 1, 2)
    runs = plan(tmp_path, *lists, "--warmup_steps", 0.1, "--per_device_train_batch_size", 24)
    assert [str(run.output_dir).removeprefix(f"{tmp_path}/") for run in runs] == [
        f"batch-{batch}-lr-{rate}/seed-{seed}" for batch in (16, 32) for rate in ("1e-05", "3e-05") for seed in (1, 2)
    ]
    assert [(glue.total_batch_size(run), run.learning_rate, run.seed) for run in runs] == [
        (batch, rate, seed) for batch in (16, 32) for rate in (1e-5, 3e-5) for seed in (1, 2)
    ]
    # 32 = 2 x 16, as 24 does not divide it.
    assert {(run.per_device_train_batch_size, run.gradient_accumulation_steps) for run in runs} == {(16, 1), (16, 2)}
    assert {run.warmup_steps for run in runs} == {0.1}


def test_one_run_stays_in_the_output_folder(tmp_path):
    (run,) = plan(tmp_path)
    assert run.output_dir == str(tmp_path)
    (run,) = plan(tmp_path, "--seeds", 7)
    assert run.output_dir == str(tmp_path / "seed-7") and run.seed == 7


def test_flags_that_do_not_go_together(tmp_path):
    for flags, message in [
        (("--do_train", "false"), "A new model .* knows nothing yet"),
        (("--seeds", 1, "--do_eval", "false"), "give --do_train and --do_eval"),
        (("--seeds", 1, "--push_to_hub"), "for a single run"),
        (("--seeds", 1, 1), "names a value twice: 1, 1"),
        (("--sweep_batch_sizes", 0), "--global_batch_size 0"),
        (("--max_seq_length", 4), "must be above 4"),
        (("--max_eval_samples", 0), "--max_eval_samples must be at least 1"),
        (("--text_column_names", "a", "b", "c"), "one or two columns, got a, b, c"),
    ]:
        with pytest.raises(InputError, match=message):
            plan(tmp_path, *flags)


def test_runs_of_other_flags_are_not_taken_over(tmp_path):
    arguments = parse(tmp_path, "--seeds", 1, 2, "--train_file", "a.csv")
    runs = glue.plan_runs(*arguments)
    write_settings(*arguments[:2], runs[0])
    # The same once more, with another seed, and where it is computed does not matter.
    assert len(plan(tmp_path, "--seeds", 1, 2, 3, "--train_file", "a.csv", "--preprocessing_num_workers", 2)) == 3
    for flags, message in [
        (("--train_file", "b.csv"), r"seed-1 holds a run with train_file \['a.csv'\], now it is \['b.csv'\]"),
        (("--train_file", "a.csv", "--learning_rate", 1), "with learning_rate 5e-05, now it is 1.0"),
        (("--train_file", "a.csv", "--gradient_accumulation_steps", 2), "with global_batch_size 8, now it is 16"),
        (("--train_file", "a.csv", "--config_overrides", "hidden_size=8"), "with config_overrides None"),
    ]:
        with pytest.raises(InputError, match=message):
            plan(tmp_path, "--seeds", 1, *flags)
    (tmp_path / "seed-9").mkdir()
    (tmp_path / "seed-9" / "all_results.json").write_text("{}")
    with pytest.raises(InputError, match="seed-9 holds a finished run of another command"):
        plan(tmp_path, "--seeds", 9)


def test_summary(tmp_path, capsys):
    arguments = parse(tmp_path, "--sweep_learning_rates", 1e-5, 2e-5, "--seeds", 1, 2, 3, 4)
    runs = glue.plan_runs(*arguments)
    accuracies = {1e-5: [0.9, 0.5, 0.8, 0.6], 2e-5: [0.7, 0.99, 0.1, 0.6]}
    for run in runs:
        folder = tmp_path / f"lr-{run.learning_rate:g}" / f"seed-{run.seed}"
        folder.mkdir(parents=True)
        accuracy = accuracies[run.learning_rate][run.seed - 1]
        results = {"train_loss": 1, "eval_accuracy": accuracy, "eval_loss": 2 - accuracy, "eval_runtime": 3.0}
        (folder / "all_results.json").write_text(json.dumps(results))
    rows = glue.summarize(runs)
    for row in rows:
        values = accuracies[row["learning_rate"]]
        assert row["seeds"] == [1, 2, 3, 4] and list(row["metrics"]) == ["eval_accuracy", "eval_loss"]
        assert row["folder"] == str(tmp_path / f"lr-{row['learning_rate']:g}")
        assert row["metrics"]["eval_accuracy"] == {
            "median": pytest.approx(np.median(values)),
            "min": min(values),
            "max": max(values),
            "std": pytest.approx(np.std(values, ddof=1), abs=1e-6),
        }
    # By the median: the greatest single accuracy is in the other row.
    best = glue.report_series(arguments[2], rows, "eval_accuracy")
    assert best["learning_rate"] == 1e-5
    assert json.loads((tmp_path / "summary.json").read_text()) == {
        "metric": "eval_accuracy", "best": rows[0], "settings": rows
    }  # fmt: skip
    lines = (tmp_path / "summary.csv").read_text().splitlines()
    assert lines[0].startswith("batch_size,learning_rate,runs,eval_accuracy_median,eval_accuracy_min")
    assert lines[1].startswith("8,1e-05,4,0.7,0.5,0.9,") and len(lines) == 3
    table = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in table if "e-05" in line] == ["*", "8"]
    # The less the better, if that is asked for.
    _, _, args = parse(tmp_path, "--metric_for_best_model", "loss")
    assert glue.report_series(args, rows, "eval_loss")["learning_rate"] == 1e-5
    rows[0]["metrics"]["eval_loss"]["median"] = 5.0
    assert glue.report_series(args, rows, "eval_loss")["learning_rate"] == 2e-5
    # A run that diverged is never the best.
    rows[1]["metrics"]["eval_loss"]["median"] = float("nan")
    assert glue.report_series(args, rows, "eval_loss")["learning_rate"] == 1e-5


def test_spread_of_one_run():
    assert glue.spread([0.5]) == {"median": 0.5, "min": 0.5, "max": 0.5, "std": 0.0}
    assert glue.spread([1.0, 2.0])["std"] == pytest.approx(statistics.stdev([1.0, 2.0]), abs=1e-6)


def test_metrics_of_a_task_and_of_other_data():
    labels = ["a", "b", "c"]
    logits, truth = GENERATOR.normal(size=(40, 3)), GENERATOR.integers(3, size=40)
    compute = glue.classification_metrics(glue.metric_names(None, labels), labels)
    results = compute(EvalPrediction((logits, "more"), truth))
    assert results["accuracy"] == pytest.approx((logits.argmax(-1) == truth).mean())
    assert results["f1"] == pytest.approx(f1_score(truth, logits.argmax(-1), average="macro"))

    # Of two classes, the second is the one that counts, as in MRPC and QQP.
    task = TASKS["mrpc"]
    compute = glue.classification_metrics(glue.metric_names(task, task.labels), task.labels)
    logits, truth = GENERATOR.normal(size=(40, 2)), GENERATOR.integers(2, size=40)
    assert compute(EvalPrediction(logits, truth))["f1"] == pytest.approx(f1_score(truth, logits.argmax(-1)))

    compute = glue.classification_metrics(glue.metric_names(TASKS["stsb"], None), None)
    logits, truth = GENERATOR.normal(size=(40, 1)), GENERATOR.normal(size=40)
    results = compute(EvalPrediction(logits, truth))
    assert list(results) == ["spearman", "pearson"]
    assert results["spearman"] == pytest.approx(spearmanr(logits[:, 0], truth).statistic)
    # A run that diverged has a result all the same.
    assert compute(EvalPrediction(np.full((40, 1), np.nan), truth)) == {"spearman": 0.0, "pearson": 0.0}


def read(path):
    return [line.split("\t") for line in path.read_text().splitlines()]


def test_what_the_leaderboard_takes(tmp_path):
    path = tmp_path / "out.tsv"
    logits = np.array([[0.0, 1.0], [1.0, 0.0]])
    # By number, whatever order the checkpoint has the classes in; by name; as numbers from 0 to 5.
    glue.write_predictions(path, logits, ["negative", "positive"], TASKS["sst2"])
    assert read(path) == [["index", "prediction"], ["0", "1"], ["1", "0"]]
    glue.write_predictions(path, logits, ["positive", "negative"], TASKS["sst2"])
    assert read(path)[1:] == [["0", "0"], ["1", "1"]]
    glue.write_predictions(path, logits, ["entailment", "not_entailment"], TASKS["rte"])
    assert read(path)[1:] == [["0", "not_entailment"], ["1", "entailment"]]
    glue.write_predictions(path, np.array([[5.5], [-0.5], [2.25]]), None, TASKS["stsb"])
    assert read(path)[1:] == [["0", "5"], ["1", "0"], ["2", "2.25"]]
    # Numbers of one's own may be any.
    glue.write_predictions(path, np.array([[5.5]]), None)
    assert read(path)[1:] == [["0", "5.5"]]


def test_labels_are_written_into_the_config():
    config = GMLPConfig()
    glue.set_labels(config, ["b", "a", "c"], train=True)
    assert (config.num_labels, config.id2label[0], config.label2id["c"]) == (3, "b", 2)
    assert config.problem_type == "single_label_classification"
    # And come back with a checkpoint.
    config.architectures = ["GMLPForSequenceClassification"]
    assert glue.trained_labels(config) == ["b", "a", "c"]
    with pytest.raises(InputError, match=r"trained to tell 3 label\(s\) \(b, a, c\), and the data have 2 \(x, y\)"):
        glue.set_labels(config, ["x", "y"], train=True)
    config = GMLPConfig(architectures=["GMLPForMaskedLM"])
    assert glue.trained_labels(config) is None
    glue.set_labels(config, None, train=True)
    assert config.num_labels == 1 and config.problem_type == "regression"
    config.architectures = ["BertForSequenceClassification"]
    assert glue.trained_labels(config) == []
    with pytest.raises(InputError, match="is no trained classifier"):
        glue.set_labels(GMLPConfig(name_or_path="x", architectures=["GMLPForMaskedLM"]), ["a", "b"], train=False)


def test_the_metric_that_decides(tmp_path):
    mnli = ["train", "validation_matched", "validation_mismatched"]
    *_, args = parse(tmp_path)
    assert glue.main_metric(args, ("accuracy",), mnli) == "eval_matched_accuracy"
    assert glue.main_metric(args, ("f1", "accuracy"), ["validation"]) == "eval_f1"
    assert glue.main_metric(args, ("f1", "accuracy"), ["train"]) is None
    *_, args = parse(tmp_path, "--metric_for_best_model", "accuracy")
    assert glue.main_metric(args, ("f1", "accuracy"), ["validation"]) == "eval_accuracy"
    with pytest.raises(InputError, match="must be one of eval_matched_accuracy, eval_matched_loss, eval_mismatched"):
        glue.main_metric(args, ("accuracy",), mnli)


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
    assert GlueArguments(task_name="sst2").description() == "GLUE sst2"
    assert GlueArguments(task_name="sst2").dataset_id() == "nyu-mll/glue"
    own = GlueArguments(task_name="sst2", train_file=["x/a.csv", "b.csv"])
    assert own.description() == "a.csv, b.csv (sst2)" and own.dataset_id() is None
    assert GlueArguments(dataset_name="some/data").dataset_id() == "some/data"
