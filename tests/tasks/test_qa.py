"""run_qa.py, called as by a user, in this process."""

import functools
import json
from pathlib import Path

import numpy as np
import pytest
from datasets import Dataset
from transformers import EvalPrediction, TrainingArguments

from hf_gmlp.data.questions import load_questions
from hf_gmlp.data.source import Source
from hf_gmlp.metrics.squad import squad_scores, squad_v2_scores
from hf_gmlp.tasks.qa import AnswerMetrics, QAArguments, log_long_answers, main, window_dataset
from hf_gmlp.tools.question_answering import QuestionAnswerer

from ..numerics import assert_close
from ..samples import flat, run_script, squad, write

pytestmark = pytest.mark.slow

RECIPES = Path(__file__).parents[2] / "recipes"
run = functools.partial(run_script, main)


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
    """The folder of a small run on data like SQuAD v1.1."""
    folder = tmp_path_factory.mktemp("run") / "out"
    run(RECIPES / "finetune-squad-v1.yaml", RECIPES / "smoke-finetune.yaml", "--train_file", data["v1_train"],
        "--validation_file", data["v1_validation"], "--output_dir", folder)  # fmt: skip
    return folder


def test_smoke_recipe_trains_and_saves_a_model_that_answers(finished, data):
    folder = finished
    results = json.loads((folder / "all_results.json").read_text())
    # Random guesses score far less.
    assert results["eval_exact_match"] > 50 and results["eval_f1"] >= results["eval_exact_match"]
    predictions = json.loads((folder / "eval_predictions.json").read_text())
    scores = squad_scores(predictions, read_answers(data["v1_validation"]))
    assert results["eval_f1"] == pytest.approx(scores["f1"], abs=1e-5)
    assert results["eval_exact_match"] == pytest.approx(scores["exact_match"], abs=1e-5)

    # The saved model gives the same answers, although it does not mask padding, since both pad to the same length.
    answerer = QuestionAnswerer(folder)
    assert answerer.max_seq_length == 64 and answerer.model.config.mask_padding is False
    rows = flat(json.loads(Path(data["v1_validation"]).read_text()))
    answers = answerer([row["question"] for row in rows], [row["context"] for row in rows])
    assert [answer["answer"] for answer in answers] == [predictions[row["id"]] for row in rows]


def test_smoke_recipe_learns_which_questions_have_no_answer(tmp_path, data):
    out = tmp_path / "out"
    results = run(RECIPES / "finetune-squad-v2.yaml", RECIPES / "smoke-finetune.yaml",
                  "--train_file", data["v2_train"], "--validation_file", data["v2_validation"],
                  "--output_dir", out)  # fmt: skip
    predictions = json.loads((out / "eval_predictions.json").read_text())
    odds = json.loads((out / "eval_null_odds.json").read_text())
    # The model finds answers as well as questions without an answer.
    assert results["eval_NoAns_exact"] > 40 and results["eval_HasAns_exact"] > 40
    assert results["eval_best_f1"] >= results["eval_f1"] and set(odds) == set(predictions)


def test_predictions_do_not_need_known_answers(finished, data, tmp_path):
    folder = finished
    rows = flat(json.loads(Path(data["v1_validation"]).read_text()))
    hidden = write(tmp_path / "hidden.json", [{k: row[k] for k in ("id", "question", "context")} for row in rows])
    flags = ["--model_name_or_path", folder, "--do_predict"]
    with_answers = run(*flags, "--test_file", data["v1_validation"], "--output_dir", tmp_path / "known")
    without = run(*flags, "--test_file", hidden, "--output_dir", tmp_path / "hidden")
    expected = json.loads((folder / "all_results.json").read_text())
    assert with_answers["predict_f1"] == pytest.approx(expected["eval_f1"], abs=1e-5)
    assert "predict_f1" not in without and "predict_loss" not in without
    for name in ("known", "hidden"):
        predictions = (tmp_path / name / "predict_predictions.json").read_text()
        assert predictions == (folder / "eval_predictions.json").read_text()


@pytest.mark.parametrize("threshold", [-6.0, 0.0, 2.0])
def test_scores_are_those_of_the_written_predictions(squad_tokenizer, tmp_path, threshold):
    path = write(tmp_path / "x.json", squad(6, unanswerable=True))
    arguments = QAArguments(validation_file=[path], version_2_with_negative=True, null_score_diff_threshold=threshold)
    questions = load_questions(Source({"validation": [path]}), ["validation"], version_2_with_negative=True)[
        "validation"
    ]
    windows = window_dataset(questions, squad_tokenizer, max_seq_length=32, doc_stride=8)
    # These logits are usually correct.
    labels = np.array(windows["start_positions"]), np.array(windows["end_positions"])
    outputs = np.random.default_rng(0).normal(size=(2, len(windows), 32))
    for logits, positions in zip(outputs, labels):
        logits[np.arange(len(windows)), positions] += 2
    metrics = AnswerMetrics(questions, windows, arguments)
    scores = metrics(EvalPrediction(tuple(outputs), labels))
    (tmp_path / "out").mkdir()
    metrics.write(TrainingArguments(tmp_path / "out", use_cpu=True), "eval")
    files = {path.name: json.loads(path.read_text()) for path in (tmp_path / "out").iterdir()}
    assert set(files) == {"eval_predictions.json", "eval_nbest_predictions.json", "eval_null_odds.json"}
    predictions, odds = files["eval_predictions.json"], files["eval_null_odds.json"]
    assert {key for key in odds if odds[key] > threshold} == {key for key in predictions if predictions[key] == ""}
    references = {row["id"]: row["answers"]["text"] for row in questions}
    official = squad_v2_scores(predictions, references, dict.fromkeys(predictions, 0.0))
    names = ("exact", "f1", "HasAns_exact", "HasAns_f1", "NoAns_exact", "NoAns_f1", "total")
    assert_close([float(scores[name]) for name in names], [float(official[name]) for name in names])
    entry = files["eval_nbest_predictions.json"][questions[0]["id"]][0]
    assert set(entry) == {"text", "start", "end", "probability", "start_logit", "end_logit"}


def test_answers_that_are_too_long_are_counted(caplog):
    windows = Dataset.from_dict({"start_positions": [0, 3, 5], "end_positions": [0, 6, 8]})
    log_long_answers(windows, 4)
    assert not caplog.text
    log_long_answers(windows, 3)
    assert "2 answers have more than 3 tokens (--max_answer_length)" in caplog.text
