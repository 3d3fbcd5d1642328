"""run_qa.py as a user calls it; mostly within this process, since a new one takes seconds to import everything."""

import gzip
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard
from tokenizers import Tokenizer, models, processors
from transformers import AutoModelForQuestionAnswering, AutoTokenizer, PreTrainedTokenizerFast

import run_qa
from hf_gmlp import GMLPConfig, GMLPForMaskedLM
from hf_gmlp.errors import InputError
from hf_gmlp.metrics.squad.squad import squad_scores, squad_v2_scores
from hf_gmlp.tasks.qa.answerer import QuestionAnswerer
from hf_gmlp.tasks.qa.arguments import QAArguments
from hf_gmlp.training.arguments import ModelArguments, RunArguments, parse_arguments
from hf_gmlp.training.recipes import parse_overrides

from ...samples import flat, squad, write

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
RECIPES = ROOT / "recipes"


def run(monkeypatch, *flags):
    """run_qa.py in this process; returns all_results.json."""
    monkeypatch.setattr(sys, "argv", ["run_qa.py", *map(str, flags), "--use_cpu", "--report_to", "none"])
    run_qa.main()
    folder = Path(str(flags[flags.index("--output_dir") + 1]))
    return json.loads((folder / "all_results.json").read_text())


def launch(*command):
    """A command in a process of its own."""
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True, env=environment)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Files by name: {v1,v2}_{train,validation}.json."""
    folder = tmp_path_factory.mktemp("squad")
    paths = {}
    for version in (1, 2):
        for split, count, seed in (("train", 110, 0), ("validation", 20, 1)):
            content = squad(count, seed=seed, unanswerable=version == 2)
            path = folder / f"v{version}_{split}.json"
            paths[path.stem] = write(path, content)
    return paths


def read_answers(path):
    return {row["id"]: row["answers"]["text"] for row in flat(json.loads(Path(path).read_text()))}


@pytest.fixture(scope="module")
def finished(tmp_path_factory, data):
    """SQuAD v1.1 made small, in a process of its own as a user runs it, and what it printed."""
    folder = tmp_path_factory.mktemp("run") / "out"
    process = launch(ROOT / "run_qa.py", RECIPES / "finetune-squad-v1.yaml", RECIPES / "smoke-finetune.yaml",
                     "--use_cpu", "--train_file", data["v1_train"], "--validation_file", data["v1_validation"],
                     "--output_dir", folder)  # fmt: skip
    assert process.returncode == 0, process.stderr
    return folder, process.stdout


def test_smoke_recipe_learns_reports_and_leaves_a_model_that_answers(finished, data):
    folder, output = finished
    results = json.loads((folder / "all_results.json").read_text())
    # Far above what a guess among the words gives.
    assert results["eval_exact_match"] > 50 and results["eval_f1"] >= results["eval_exact_match"]
    assert f"{results['eval_f1']:.4f}" in output and results["eval_loss"] < 2
    predictions = json.loads((folder / "eval_predictions.json").read_text())
    scores = squad_scores(predictions, read_answers(data["v1_validation"]))
    assert results["eval_f1"] == pytest.approx(scores["f1"], abs=1e-5)
    assert results["eval_exact_match"] == pytest.approx(scores["exact_match"], abs=1e-5)
    assert set(json.loads((folder / "eval_nbest_predictions.json").read_text())) == set(predictions)
    assert not (folder / "eval_null_odds.json").exists()

    # The model that is left gives the same answers by itself, though it sees its padding: there is as much of it.
    answerer = QuestionAnswerer(folder)
    assert answerer.max_seq_length == 64 and answerer.model.config.mask_padding is False
    rows = flat(json.loads(Path(data["v1_validation"]).read_text()))
    answers = answerer([row["question"] for row in rows], [row["context"] for row in rows])
    assert [one["answer"] for one in answers] == [predictions[row["id"]] for row in rows]


def test_card_says_what_was_done(finished):
    folder, _ = finished
    card = ModelCard.load(folder / "README.md")
    results = json.loads((folder / "all_results.json").read_text())
    assert card.data.pipeline_tag == "question-answering"
    assert "v1_train.json" in card.text and f"| f1 | {results['eval_f1']:.4g} |" in card.text


def test_smoke_recipe_with_unanswerable_questions(tmp_path, data, monkeypatch):
    out = tmp_path / "out"
    results = run(monkeypatch, RECIPES / "finetune-squad-v2.yaml", RECIPES / "smoke-finetune.yaml",
                  "--train_file", data["v2_train"], "--validation_file", data["v2_validation"],
                  "--output_dir", out)  # fmt: skip
    predictions = json.loads((out / "eval_predictions.json").read_text())
    odds = json.loads((out / "eval_null_odds.json").read_text())
    scores = squad_v2_scores(predictions, read_answers(data["v2_validation"]))
    for name in ("exact", "f1", "total", "HasAns_exact", "HasAns_f1", "NoAns_exact", "NoAns_f1"):
        assert results[f"eval_{name}"] == pytest.approx(scores[name], abs=1e-5)
    # It knows which questions have an answer, and the answers.
    assert results["eval_NoAns_exact"] > 40 and results["eval_HasAns_exact"] > 40
    assert results["eval_best_f1"] >= results["eval_f1"] and set(odds) == set(predictions)

    # The best threshold, set, gives the best score.
    again = run(monkeypatch, "--model_name_or_path", out, "--validation_file", data["v2_validation"], "--do_eval",
                "--version_2_with_negative", "--output_dir", tmp_path / "again",
                "--null_score_diff_threshold", results["eval_best_f1_thresh"])  # fmt: skip
    # The results are rounded.
    assert again["eval_f1"] == pytest.approx(results["eval_best_f1"], abs=100 / 60 + 1e-6)
    assert again["eval_best_f1"] == pytest.approx(results["eval_best_f1"], abs=1e-5)


def test_evaluation_is_the_same_in_other_batches_and_in_two_processes(finished, data, tmp_path, monkeypatch):
    folder, _ = finished
    expected = json.loads((folder / "all_results.json").read_text())
    flags = ["--model_name_or_path", folder, "--validation_file", data["v1_validation"], "--do_eval"]
    alone = run(monkeypatch, *flags, "--per_device_eval_batch_size", 7, "--output_dir", tmp_path / "alone")
    # 7 windows a batch and two processes: the last batch is filled up with windows that must not count twice.
    process = launch("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", 2, ROOT / "run_qa.py", *flags,
                     "--per_device_eval_batch_size", 7, "--use_cpu", "--output_dir", tmp_path / "two")  # fmt: skip
    assert process.returncode == 0, process.stderr
    both = json.loads((tmp_path / "two" / "all_results.json").read_text())
    for results in (alone, both):
        for name in ("eval_exact_match", "eval_f1"):
            assert results[name] == pytest.approx(expected[name], abs=1e-5)
    assert alone["eval_loss"] == pytest.approx(expected["eval_loss"], rel=1e-4)
    answers = (folder / "eval_predictions.json").read_text()
    assert (tmp_path / "two" / "eval_predictions.json").read_text() == answers


def test_prediction_with_and_without_known_answers(finished, data, tmp_path, monkeypatch):
    folder, _ = finished
    rows = flat(json.loads(Path(data["v1_validation"]).read_text()))
    hidden = write(tmp_path / "hidden.json", [{k: row[k] for k in ("id", "question", "context")} for row in rows])
    flags = ["--model_name_or_path", folder, "--do_predict"]
    with_answers = run(monkeypatch, *flags, "--test_file", data["v1_validation"], "--output_dir", tmp_path / "known")
    without = run(monkeypatch, *flags, "--test_file", hidden, "--output_dir", tmp_path / "hidden")
    expected = json.loads((folder / "all_results.json").read_text())
    assert with_answers["predict_f1"] == pytest.approx(expected["eval_f1"], abs=1e-5)
    assert "predict_f1" not in without and "predict_loss" not in without
    for name in ("known", "hidden"):
        predictions = (tmp_path / name / "predict_predictions.json").read_text()
        assert predictions == (folder / "eval_predictions.json").read_text()
    limited = run(monkeypatch, *flags, "--test_file", hidden, "--max_predict_samples", 5,
                  "--output_dir", tmp_path / "five")  # fmt: skip
    assert "predict_runtime" in limited
    assert len(json.loads((tmp_path / "five" / "predict_predictions.json").read_text())) == 5


def test_interrupted_run_resumes_and_evaluates_on_the_way(finished, data, tmp_path, monkeypatch):
    folder, out = finished[0], tmp_path / "out"
    flags = ["--model_name_or_path", folder, "--config_overrides", "hidden_dropout_prob=0.2", "--do_train", "--do_eval",
             "--train_file", data["v1_train"], "--validation_file", data["v1_validation"], "--max_steps", 6,
             "--save_steps", 3, "--eval_strategy", "steps", "--eval_steps", 3, "--load_best_model_at_end",
             "--metric_for_best_model", "f1", "--max_train_samples", 40, "--learning_rate", 1e-3,
             "--output_dir", out]  # fmt: skip
    first = run(monkeypatch, *flags)
    evaluations = evaluations_of(out)
    assert [entry["step"] for entry in evaluations] == [3, 6]
    assert first["eval_f1"] == pytest.approx(max(entry["eval_f1"] for entry in evaluations), abs=1e-5)
    assert AutoModelForQuestionAnswering.from_pretrained(out).config.hidden_dropout_prob == 0.2

    (out / "all_results.json").unlink()
    shutil.rmtree(out / "checkpoint-6")
    again = run(monkeypatch, *flags)
    # The first half, its running times too, is that of the first run; the second was done again, and came out the same.
    resumed = evaluations_of(out)
    assert resumed[0] == evaluations[0] and resumed[1] != evaluations[1]
    assert resumed[1]["eval_loss"] == pytest.approx(evaluations[1]["eval_loss"], rel=1e-4)
    assert again["eval_f1"] == pytest.approx(first["eval_f1"], abs=1e-5)


def evaluations_of(folder):
    history = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    return [entry for entry in history if "eval_f1" in entry]


def test_a_model_of_one_segment_and_a_packed_file(finished, data, tmp_path, monkeypatch):
    packed = tmp_path / "train.json.gz"
    packed.write_bytes(gzip.compress(Path(data["v1_train"]).read_bytes()))
    sizes = "num_hidden_layers=1,hidden_size=16,intermediate_size=32,max_position_embeddings=48,type_vocab_size=1"
    run(monkeypatch, "--config_name", "gmlp-18l", "--config_overrides", sizes, "--tokenizer_name", finished[0],
        "--train_file", packed, "--do_train", "--max_steps", 2, "--save_strategy", "no",
        "--output_dir", tmp_path / "out")  # fmt: skip
    assert QuestionAnswerer(tmp_path / "out")("Who?", "It was Anna.")["answer"]


def test_several_seeds_report_medians_and_finished_ones_are_kept(finished, data, tmp_path, monkeypatch, capsys):
    start, _ = finished
    flags = [
        "--model_name_or_path",
        start,
        "--train_file",
        data["v1_train"],
        "--validation_file",
        data["v1_validation"],
    ]
    flags += ["--do_train", "--do_eval", "--max_steps", 2, "--seeds", 1, 2, 3, "--output_dir", tmp_path]
    monkeypatch.setattr(sys, "argv", ["run_qa.py", *map(str, flags), "--use_cpu", "--save_strategy", "no"])
    run_qa.main()
    results = [json.loads((tmp_path / f"seed-{seed}" / "all_results.json").read_text()) for seed in (1, 2, 3)]
    scores = sorted(one["eval_f1"] for one in results)
    best = json.loads((tmp_path / "summary.json").read_text())["best"]
    assert best["metrics"]["eval_f1"]["median"] == pytest.approx(scores[1], abs=1e-5)
    assert json.loads((tmp_path / "summary.json").read_text())["metric"] == "eval_f1"
    # Each has answers and a model of its own, and none is made twice.
    weights = [(tmp_path / f"seed-{seed}" / "model.safetensors") for seed in (1, 2, 3)]
    assert len({path.read_bytes() for path in weights}) == 3
    assert all((path.parent / "eval_predictions.json").is_file() for path in weights)
    (tmp_path / "seed-2" / "all_results.json").unlink()
    before = [path.stat().st_mtime_ns for path in weights]
    run_qa.main()
    after = [path.stat().st_mtime_ns for path in weights]
    assert [a == b for a, b in zip(before, after)] == [True, False, True]
    assert json.loads((tmp_path / "seed-2" / "all_results.json").read_text())["eval_f1"] == results[1]["eval_f1"]


def test_packing_trains_the_same_weights(data, tmp_path, monkeypatch):
    """As windows one by one, of which the batch is the sum: in a padded batch, padding takes part in the softmax."""
    flags = (RECIPES / "finetune-squad-v1.yaml", RECIPES / "smoke-finetune.yaml", "--train_file", data["v1_train"],
             "--validation_file", data["v1_validation"], "--max_steps", 4)  # fmt: skip
    with pytest.raises(InputError, match="--packing trains without padding, which this model sees"):
        run(monkeypatch, *flags, "--output_dir", tmp_path / "refused", "--packing")
    overrides = "mask_padding=true,hidden_dropout_prob=0,attention_probs_dropout_prob=0"
    flags = (*flags, "--config_overrides", overrides)
    results = [
        run(monkeypatch, *flags, "--output_dir", tmp_path / name, *packing)
        for name, packing in (
            ("single", ("--per_device_train_batch_size", 1, "--pad_to_max_length", "false")),
            ("packed", ("--packing",)),
        )
    ]
    # Rounding may decide between two answers.
    assert results[0]["eval_f1"] == pytest.approx(results[1]["eval_f1"], abs=100 / 60 + 1e-6)
    models = [AutoModelForQuestionAnswering.from_pretrained(tmp_path / name) for name in ("single", "packed")]
    for name, weight in models[0].state_dict().items():
        # A softmax ignores one number added to all logits, so the gradients of these biases are rounding alone.
        if name not in ("qa_outputs.bias", "model.norm.bias"):
            torch.testing.assert_close(models[1].state_dict()[name], weight, rtol=0, atol=1e-5)


def test_bad_input_is_refused_before_any_work(finished, data, tmp_path, monkeypatch):
    folder, _ = finished
    tiny = ["--config_name", "gmlp-18l", "--train_file", data["v1_train"], "--do_train"]
    slow, foreign, unpadded = tmp_path / "slow", tmp_path / "foreign", tmp_path / "unpadded"
    masked, broken = tmp_path / "masked", tmp_path / "broken"
    model, tokenizer = AutoModelForQuestionAnswering.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    GMLPForMaskedLM(model.config).save_pretrained(masked)
    torch.nn.init.constant_(model.qa_outputs.bias, math.nan)
    model.save_pretrained(broken)
    for path in (masked, broken):
        tokenizer.save_pretrained(path)
    tokenizer.pad_token = None
    tokenizer.save_pretrained(unpadded)
    GMLPConfig().save_pretrained(slow)
    vocabulary = {f"w{index}": index for index in range(2000)} | {"[UNK]": 2000, "[CLS]": 2001, "[PAD]": 2002}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.post_processor = processors.BertProcessing(("[UNK]", 2000), ("[CLS]", 2001))
    PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="[UNK]", cls_token="[CLS]", pad_token="[PAD]"
    ).save_pretrained(foreign)
    (slow / "tokenizer_config.json").write_text('{"tokenizer_class": "CanineTokenizer"}')
    cases = [
        ([*tiny, "--max_seq_length", 129], "--max_seq_length 129 is above the model's n = 128"),
        ([*tiny, "--doc_stride", 65], "--doc_stride 65, .* half of --max_seq_length, 64"),
        ([*tiny, "--max_seq_length", 12], "at least 16, got 12"),
        ([*tiny, "--n_best_size", 0], "--n_best_size must be at least 1"),
        (
            [
                *tiny,
                "--vocab_size",
                380,
                "--validation_file",
                data["v1_validation"],
                "--do_eval",
                "--metric_for_best_model",
                "accuracy",
            ],
            "--metric_for_best_model must be one of loss, exact_match, f1, got accuracy",
        ),
        (
            ["--model_name_or_path", masked, "--validation_file", data["v1_validation"], "--do_eval"],
            "was not trained as a GMLPForQuestionAnswering: qa_outputs",
        ),
        (
            ["--model_name_or_path", broken, "--validation_file", data["v1_validation"], "--do_eval"],
            "weights that are not finite numbers",
        ),
        (
            ["--config_name", "gmlp-18l", "--tokenizer_name", unpadded, *tiny[2:]],
            "cannot find answers: choose a fast one",
        ),
        ([*tiny[:-1]], "Say what to do"),
        ([*tiny, "--do_eval"], "no validation data: give --validation_file"),
        (["--config_name", "gmlp-18l", "--do_train"], "Name the data"),
        (["--config_name", "gmlp-18l", "--do_train", "--train_file", data["v2_train"]], "--version_2_with_negative"),
        (["--model_name_or_path", folder, "--tokenizer_name", foreign, *tiny[2:]], "embeddings for 400"),
        (["--config_name", "gmlp-18l", "--tokenizer_name", slow, *tiny[2:]], "CanineTokenizer cannot find answers"),
    ]
    for number, (flags, message) in enumerate(cases):
        out = tmp_path / f"out-{number}"
        with pytest.raises(InputError, match=message) as caught:
            run(monkeypatch, *flags, "--output_dir", out)
        assert "\n" not in str(caught.value)
        # A lock, and where it takes a tokenizer to know, that.
        assert not list(out.glob("*.safetensors")), flags
    before = (folder / "model.safetensors").stat().st_mtime_ns
    with pytest.raises(InputError, match="holds a finished run"):
        run(monkeypatch, *tiny, "--output_dir", folder)
    assert (folder / "model.safetensors").stat().st_mtime_ns == before


@pytest.mark.parametrize(("version", "name"), [(1, "rajpurkar/squad"), (2, "rajpurkar/squad_v2")])
def test_recipes_are_the_hyper_parameters_of_table_9(version, name, tmp_path):
    types = (ModelArguments, QAArguments, RunArguments)
    flags = ["--use_cpu", "true", "--output_dir", str(tmp_path)]
    recipe = RECIPES / f"finetune-squad-v{version}.yaml"
    model, data, training = parse_arguments(types, "", [str(recipe), "--model_name_or_path", "x", *flags])
    assert (data.dataset_name, data.version_2_with_negative) == (name, version == 2)
    assert data.max_seq_length == 512 and data.pad_to_max_length
    assert training.per_device_train_batch_size * training.gradient_accumulation_steps == 32
    assert (training.learning_rate, training.max_steps, training.warmup_steps) == (5e-5, 8000, 1000)
    assert (training.lr_scheduler_type, training.optim, training.weight_decay) == ("linear", "adamw_torch", 0.01)
    assert (training.adam_beta1, training.adam_beta2, training.adam_epsilon) == (0.9, 0.999, 1e-6)
    assert training.max_grad_norm == 0 and training.do_train and training.do_eval
    overrides = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "activation_dropout": 0}
    assert parse_overrides(model.config_overrides) == overrides | {"mask_padding": False}
    assert data.seeds == [1, 2, 3, 4, 5]


def test_help_starts_with_what_it_does(monkeypatch, capsys):
    with pytest.raises(SystemExit):
        run(monkeypatch, "--help")
    text = capsys.readouterr().out
    first_screen = "\n".join(text.splitlines()[:24])
    assert "find answers in a text" in first_screen and "--dataset_name rajpurkar/squad" in first_screen
    assert "--train_file" in text and "--doc_stride" in text
