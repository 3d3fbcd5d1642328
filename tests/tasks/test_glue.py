"""run_glue.py, called as by a user, in this process."""

import functools
import json
import random
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from scipy.stats import spearmanr
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
    set_seed,
)

from hf_gmlp import GMLPConfig, GMLPForMaskedLM
from hf_gmlp.errors import InputError
from hf_gmlp.tasks.glue import main
from hf_gmlp.tokenizer import train_tokenizer
from hf_gmlp.training.trainer import GMLPTrainer

from ..numerics import assert_close
from ..samples import run_in, write_rows

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
# Each step of Adam adds rounding, as a block does, and divides tiny gradients by their tiny size.
TRAINED = 1000
GOOD, BAD = ("good", "fine", "great", "lovely"), ("bad", "dull", "awful", "poor")
NOUNS = (
    "film story cast plot song book camera ending music painter garden window summer animal letter kitchen village "
    "doctor mountain river sister market soldier minister teacher bridge engine flower dinner castle"
).split()
ANSWERS = ("yes , the {} is", "perhaps the {} is", "no , the {} is not")


def opinions(count, seed):
    """Sentences whose adjective determines their label."""
    pick = random.Random(seed).choice
    sentences = [f"the {pick(NOUNS)} is {pick((BAD, GOOD)[i % 2])} and the {pick(NOUNS)} is long" for i in range(count)]
    return [{"sentence": sentence, "label": i % 2} for i, sentence in enumerate(sentences)]


def entailments(count, seed):
    """Pairs whose second sentence determines their label."""
    pick = random.Random(seed).choice
    nouns = [pick(NOUNS) for _ in range(count)]
    return [
        {"premise": f"the {noun} is {pick(GOOD)}", "hypothesis": ANSWERS[i % 3].format(noun), "label": i % 3}
        for i, noun in enumerate(nouns)
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with data, a tokenizer and two tiny pretrained models."""
    folder = tmp_path_factory.mktemp("glue")
    write_rows(folder / "train.jsonl", opinions(320, 0))
    write_rows(folder / "validation.jsonl", opinions(60, 1))
    write_rows(folder / "mnli.jsonl", entailments(320, 0))
    write_rows(folder / "matched.jsonl", entailments(60, 1))
    write_rows(folder / "mismatched.jsonl", entailments(50, 2))
    texts = [text for row in opinions(320, 0) + entailments(320, 0) for text in row.values() if isinstance(text, str)]
    tokenizer = train_tokenizer(texts, vocab_size=400, max_length=32)
    torch.manual_seed(0)
    sizes = {"vocab_size": 400, "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64}
    for name, model in {
        "gmlp": GMLPForMaskedLM(GMLPConfig(**sizes, attention_size=16, max_position_embeddings=32)),
        "bert": BertForMaskedLM(BertConfig(**sizes, num_attention_heads=2, max_position_embeddings=32)),
    }.items():
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return folder


@pytest.fixture(scope="module")
def run(folder):
    """run(*flags) calls run_glue.py with files of the folder by name, and returns its results."""
    return functools.partial(run_in, folder, main)


def weights_of(path):
    return dict(AutoModelForSequenceClassification.from_pretrained(path).state_dict())


def test_mnli_is_evaluated_on_both_validation_sets(folder, run):
    run(ROOT / "recipes/finetune-mnli.yaml", ROOT / "recipes/smoke-finetune.yaml", "--train_file", "mnli.jsonl",
        "--validation_file", "matched.jsonl", "mismatched.jsonl", "--test_file", "matched.jsonl", "mismatched.jsonl",
        "--do_predict", "--metric_for_best_model", "matched_accuracy", "--output_dir", "mnli")  # fmt: skip
    best = folder / "mnli"
    assert not AutoModelForSequenceClassification.from_pretrained(best).config.mask_padding
    results = json.loads((best / "all_results.json").read_text())
    assert results["eval_matched_accuracy"] > 0.9 and results["eval_mismatched_accuracy"] > 0.9
    names = ("entailment", "neutral", "contradiction")
    for part, rows in (("matched", entailments(60, 1)), ("mismatched", entailments(50, 2))):
        lines = (best / f"test_{part}_predictions.tsv").read_text().splitlines()
        predictions = [line.split("\t")[1] for line in lines[1:]]
        correct = [prediction == names[row["label"]] for prediction, row in zip(predictions, rows, strict=True)]
        assert sum(correct) / len(correct) == pytest.approx(results[f"eval_{part}_accuracy"], abs=1e-6)


def test_same_weights_as_transformers_own_trainer(folder, run):
    hyperparameters = {"seed": 3, "learning_rate": 3e-3, "warmup_steps": 0.1, "weight_decay": 0.01}
    hyperparameters |= {"adam_epsilon": 1e-6, "max_grad_norm": 0.0, "num_train_epochs": 1}
    dropout = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    flags = [text for name, value in hyperparameters.items() for text in (f"--{name}", value)]
    overrides = ",".join(f"{name}={value}" for name, value in dropout.items())
    run("--model_name_or_path", "gmlp", "--config_overrides", overrides, "--train_file", "train.jsonl", "--do_train",
        "--max_train_samples", 80, "--output_dir", "ours", *flags)  # fmt: skip

    tokenizer = AutoTokenizer.from_pretrained(folder / "gmlp")
    rows = opinions(320, 0)[:80]
    data = Dataset.from_list([tokenizer(row["sentence"]) | {"label": row["label"]} for row in rows])
    set_seed(3)
    model = AutoModelForSequenceClassification.from_pretrained(folder / "gmlp", num_labels=2, **dropout)
    arguments = TrainingArguments(
        str(folder / "theirs"), use_cpu=True, report_to="none", disable_tqdm=True, save_strategy="no", **hyperparameters
    )
    Trainer(model, arguments, train_dataset=data, data_collator=DataCollatorWithPadding(tokenizer)).train()
    assert_close(weights_of(folder / "ours"), dict(model.state_dict()), depth=TRAINED)


def test_custom_labels_are_saved_with_the_model(folder, run):
    # Column names and labels are like those of a user's spreadsheet.
    names = {0: "thumbs down", 1: "None"}
    for split, count in (("train", 160), ("validation", 40)):
        rows = [{"review": row["sentence"], "verdict": names[row["label"]]} for row in opinions(count, 5)]
        write_rows(folder / f"own-{split}.csv", rows)
    write_rows(folder / "own-test.csv", [{"review": row["sentence"]} for row in opinions(10, 6)])
    columns = ("--text_column_names", "review", "--label_column_name", "verdict")
    results = run("--model_name_or_path", "gmlp", "--train_file", "own-train.csv", "--validation_file",
                  "own-validation.csv", "--test_file", "own-test.csv", "--do_train", "--do_eval", "--do_predict",
                  "--learning_rate", 5e-3, "--num_train_epochs", 6, "--class_weights", "balanced", "--output_dir",
                  "own", *columns)  # fmt: skip
    assert results["eval_accuracy"] > 0.9 and 0 < results["eval_f1"] <= 1 and "test_accuracy" not in results
    predictions = (folder / "own" / "predictions.tsv").read_text()
    assert {line.split("\t")[1] for line in predictions.splitlines()[1:]} == {"None", "thumbs down"}

    # The checkpoint stores its labels, so metrics and predictions are the same without training data.
    again = run("--model_name_or_path", "own", "--validation_file", "own-validation.csv", "--test_file", "own-test.csv",
                "--do_eval", "--do_predict", "--output_dir", "again", *columns)  # fmt: skip
    assert again["eval_accuracy"] == results["eval_accuracy"] and again["eval_f1"] == results["eval_f1"]
    assert (folder / "again" / "predictions.tsv").read_text() == predictions


def test_regression_reports_the_correlation_of_its_predictions(folder, run):
    columns = ("sentence1", "sentence2", "label")
    rows = [(f"the {noun} is good", f"the {NOUNS[i // 2]} is good", i / 8) for i, noun in enumerate(NOUNS)]
    write_rows(folder / "similar.csv", [dict(zip(columns, row)) for row in rows])
    results = run("--model_name_or_path", "bert", "--train_file", "similar.csv", "--validation_file", "similar.csv",
                  "--test_file", "similar.csv", "--do_train", "--do_eval", "--do_predict", "--num_train_epochs", 2,
                  "--learning_rate", 3e-3, "--output_dir", "similar")  # fmt: skip
    lines = [line.split("\t") for line in (folder / "similar" / "predictions.tsv").read_text().splitlines()[1:]]
    expected = spearmanr([float(value) for _, value in lines], [row[2] for row in rows]).statistic
    assert results["eval_spearman"] == results["test_spearman"] == pytest.approx(expected, abs=1e-6)
    config = AutoModelForSequenceClassification.from_pretrained(folder / "similar").config
    assert config.model_type == "bert" and config.problem_type == "regression" and config.num_labels == 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--do_regression", "true", "--label_smoothing_factor", 0.1), "--label_smoothing_factor"),
        (("--do_regression", "true", "--class_weights", "balanced"), "--class_weights"),
    ],
)
def test_bad_flags_are_refused_before_any_work(folder, run, flags, message):
    data = ("--train_file", "train.jsonl", "--validation_file", "validation.jsonl", "--do_train", "--do_eval")
    with pytest.raises(InputError, match=message):
        run("--model_name_or_path", "gmlp", *data, "--output_dir", "never", *flags)
    assert not (folder / "never" / "model.safetensors").exists()


def test_certain_probabilities_train_like_classes(folder, run):
    rows = opinions(80, 3)
    certain = [row | {"label": {"negative": 1.0 - row["label"], "positive": float(row["label"])}} for row in rows]
    flags = ("--model_name_or_path", "gmlp", "--validation_file", "validation.jsonl", "--task_name", "sst2",
             "--do_train", "--do_eval", "--learning_rate", 3e-3, "--num_train_epochs", 1)  # fmt: skip
    for name, data in (("certain", certain), ("classes", rows)):
        run(*flags, "--train_file", write_rows(folder / f"train-{name}.jsonl", data).name, "--output_dir", name)
    assert_close(weights_of(folder / "certain"), weights_of(folder / "classes"), depth=TRAINED)


def test_a_run_that_stopped_early_and_was_killed_stops_at_its_next_evaluation(folder, run, monkeypatch):
    evaluations = ("--eval_strategy", "steps", "--eval_steps", 2, "--save_strategy", "steps", "--save_steps", 2)
    flags = ("--model_name_or_path", "gmlp", "--train_file", "train.jsonl", "--validation_file", "validation.jsonl",
             "--do_train", "--do_eval", *evaluations, "--learning_rate", 0,
             "--load_best_model_at_end", "--early_stopping_patience", 2,
             "--output_dir", "stopped")  # fmt: skip
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(GMLPTrainer, "check_finite", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        run(*flags)
    (checkpoint,) = sorted((folder / "stopped").glob("checkpoint-6"))
    run(*flags)
    state = json.loads((folder / "stopped" / "trainer_state.json").read_text())
    assert state["global_step"] == 8 and checkpoint.is_dir()
