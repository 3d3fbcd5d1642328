import json
import math

import numpy as np
import pytest
from transformers import EvalPrediction, TrainingArguments

from hf_gmlp.errors import InputError
from hf_gmlp.metrics.squad.squad import squad_scores, squad_v2_scores
from hf_gmlp.tasks.qa.answers import AnswerMetrics, Decoded, best_spans, decode
from hf_gmlp.tasks.qa.windows import make_windows, window_dataset

from ...samples import flat, squad, write
from .test_questions import load


@pytest.fixture(scope="module")
def questions(tmp_path_factory):
    path = write(tmp_path_factory.mktemp("qa") / "x.json", squad(6, unanswerable=True))
    return load(path, version_2_with_negative=True)


@pytest.fixture(scope="module")
def windows(questions, squad_tokenizer):
    return window_dataset(questions, squad_tokenizer, max_seq_length=32, doc_stride=8)


def random_logits(windows, width=40, seed=0):
    """As `Trainer` gathers them: padded, with high logits on padding and question, where no answer may be found."""
    draw = np.random.default_rng(seed)
    start, end = draw.normal(size=(2, len(windows), width)).astype(np.float32)
    for row, window in enumerate(windows):
        first, last = window["context_start"], window["context_start"] + len(window["offsets"])
        for logits in (start, end):
            logits[row, 1:first] += 50
            logits[row, last:] += 50
    return start, end


def all_answers(windows, start, end, max_answer_length):
    """Every span of every question, one by one: {question: {(start, end): score}}, and the least score of [CLS]."""
    spans, nulls = {}, {}
    for row, window in enumerate(windows):
        question, first, offsets = window["question_index"], window["context_start"], window["offsets"]
        for i, (from_character, _) in enumerate(offsets):
            for j in range(i, min(i + max_answer_length, len(offsets))):
                to_character = offsets[j][1]
                if offsets[i][0] == offsets[i][1] or offsets[j][0] == offsets[j][1]:
                    continue
                value = float(start[row, first + i]) + float(end[row, first + j])
                best = spans.setdefault(question, {})
                place = from_character, to_character
                best[place] = max(best.get(place, -math.inf), value)
        null = float(start[row, 0]) + float(end[row, 0])
        nulls[question] = min(nulls.get(question, math.inf), null)
    return spans, nulls


@pytest.mark.parametrize(("n_best_size", "max_answer_length"), [(1, 30), (20, 4), (7, 1), (500, 30)])
@pytest.mark.parametrize("negative", [False, True])
def test_decode_finds_the_best_of_all_spans(questions, windows, n_best_size, max_answer_length, negative):
    assert len(windows) > len(questions)
    start, end = random_logits(windows)
    options = {"n_best_size": n_best_size, "max_answer_length": max_answer_length}
    decoded = decode(questions["context"], windows, start, end, version_2_with_negative=negative, **options)
    spans, nulls = all_answers(windows, start, end, max_answer_length)
    for index, one in enumerate(decoded):
        context = questions[index]["context"]
        ranked = sorted(spans[index].items(), key=lambda item: -item[1])
        best_place, best_score = ranked[0]
        assert one.text == context[slice(*best_place)] and one.text == one.text.strip()
        expected = ranked[:n_best_size]
        if negative:
            assert one.null_odds == pytest.approx(nulls[index] - best_score, abs=1e-5)
            expected = sorted([*expected, ((0, 0), nulls[index])], key=lambda item: -item[1])[:n_best_size]
            expected += [] if ((0, 0), nulls[index]) in expected else [((0, 0), nulls[index])]
        else:
            assert one.null_odds is None
        assert [(entry["start"], entry["end"]) for entry in one.nbest] == [place for place, _ in expected]
        assert [entry["text"] for entry in one.nbest] == [context[slice(*place)] for place, _ in expected]
        scores = np.array([value for _, value in expected])
        probabilities = np.exp(scores) / np.exp(scores).sum()
        np.testing.assert_allclose([entry["probability"] for entry in one.nbest], probabilities, rtol=1e-4)
        logits = [entry["start_logit"] + entry["end_logit"] for entry in one.nbest]
        np.testing.assert_allclose(logits, scores, rtol=1e-5)


def test_best_spans_on_a_case_by_hand():
    offsets = [[0, 3], [4, 4], [4, 7], [8, 9]]
    start, end = np.array([1.0, 9.0, 2.0, 0.0]), np.array([0.0, 9.0, 3.0, 1.0])
    spans = best_spans(start, end, offsets, n_best_size=3, max_answer_length=3)
    # White space neither begins nor ends an answer, and [0, 9) is four tokens long.
    assert [(span.start, span.end, span.score) for span in spans] == [(4, 7, 5.0), (0, 7, 4.0), (4, 9, 3.0)]
    # Of equals, the first and shortest.
    spans = best_spans(np.zeros(4), np.zeros(4), offsets, n_best_size=2, max_answer_length=4)
    assert [(span.start, span.end) for span in spans] == [(0, 3), (0, 7)]
    assert best_spans(np.zeros(0), np.zeros(0), [], n_best_size=2, max_answer_length=4) == []
    assert best_spans(start[:1], end[:1], [[2, 2]], n_best_size=2, max_answer_length=4) == []


def test_right_logits_give_right_answers(questions, windows):
    start = np.zeros((len(windows), 32), dtype=np.float32)
    end = start.copy()
    for row, window in enumerate(windows):
        start[row, window["start_positions"]] = end[row, window["end_positions"]] = 10
    metrics = AnswerMetrics(questions, windows, version_2_with_negative=True)
    scores = metrics(EvalPrediction(predictions=(start, end), label_ids=None))
    assert metrics.names() == list(scores)
    for one, answers in zip(metrics.decoded, questions["answers"]):
        assert one.answer() == (answers["text"][0] if answers["text"] else "")
    assert scores["exact"] == scores["f1"] == scores["HasAns_f1"] == scores["NoAns_f1"] == scores["best_f1"] == 100


def test_threshold_takes_answers_away():
    one = Decoded("Rome", [], null_odds=1.5)
    assert (one.answer(), one.answer(1.5), one.answer(2)) == ("", "Rome", "Rome")
    assert Decoded("Rome", [], null_odds=None).answer(-100) == "Rome"


def test_context_without_a_word_has_no_answer(squad_tokenizer):
    windows = make_windows(["Q?"], ["\n\n"], squad_tokenizer, max_seq_length=16, doc_stride=4)
    rows = [{name: column[0] for name, column in windows.items()}]
    (one,) = decode(["\n\n"], rows, np.ones((1, 9)), np.ones((1, 9)), version_2_with_negative=True)
    assert one.text == "" and math.isfinite(one.null_odds)
    (one,) = decode(["\n\n"], rows, np.ones((1, 9)), np.ones((1, 9)))
    assert one.answer() == "" and len(one.nbest) == 1


@pytest.mark.parametrize("threshold", [-6.0, 0.0, 2.0])
def test_scores_are_those_of_the_written_predictions(questions, windows, tmp_path, threshold):
    metrics = AnswerMetrics(questions, windows, null_score_diff_threshold=threshold, version_2_with_negative=True)
    start, end = random_logits(windows)
    start[:, 0] += 4
    labels = np.array(windows["start_positions"]), np.array(windows["end_positions"])
    scores = metrics(EvalPrediction(predictions=(start, end), label_ids=labels))
    metrics.write(TrainingArguments(tmp_path / "out", use_cpu=True), "eval")
    files = {path.name: json.loads(path.read_text()) for path in (tmp_path / "out").iterdir()}
    assert set(files) == {"eval_predictions.json", "eval_nbest_predictions.json", "eval_null_odds.json"}

    references = {row["id"]: row["answers"]["text"] for row in questions}
    predictions, odds = files["eval_predictions.json"], files["eval_null_odds.json"]
    assert {key for key in odds if odds[key] > threshold} == {key for key in predictions if predictions[key] == ""}
    official = squad_v2_scores(predictions, references)
    for name in ("exact", "f1", "HasAns_exact", "HasAns_f1", "NoAns_exact", "NoAns_f1", "total"):
        assert scores[name] == pytest.approx(official[name])
    # The best threshold is one that, set, gives the best score.
    again = AnswerMetrics(
        questions, windows, null_score_diff_threshold=scores["best_f1_thresh"], version_2_with_negative=True
    )(EvalPrediction(predictions=(start, end), label_ids=labels))
    assert again["f1"] == pytest.approx(scores["best_f1"]) and scores["best_f1"] >= scores["f1"]
    entry = files["eval_nbest_predictions.json"][questions[0]["id"]][0]
    assert set(entry) == {"text", "start", "end", "probability", "start_logit", "end_logit"}


def test_scores_of_version_1(tmp_path, squad_tokenizer):
    content = squad(4)
    questions = load(write(tmp_path / "x.json", content))
    windows = window_dataset(questions, squad_tokenizer, max_seq_length=64, doc_stride=8)
    start, end = random_logits(windows, width=64)
    metrics = AnswerMetrics(questions, windows)
    labels = np.array(windows["start_positions"]), np.array(windows["end_positions"])
    scores = metrics(EvalPrediction(predictions=(start, end), label_ids=labels))
    assert metrics.names() == ["exact_match", "f1"]
    metrics.write(TrainingArguments(tmp_path, use_cpu=True), "eval")
    predictions = json.loads((tmp_path / "eval_predictions.json").read_text())
    assert not (tmp_path / "eval_null_odds.json").exists()
    assert scores == squad_scores(predictions, {row["id"]: row["answers"]["text"] for row in flat(content)})


def test_logits_that_are_not_finite_are_refused(questions, windows):
    start, end = random_logits(windows)
    end[3, 0] = np.nan
    with pytest.raises(InputError, match="not finite numbers"):
        decode(questions["context"], windows, start, end)


def test_windows_out_of_order_are_refused(questions, windows):
    start, end = random_logits(windows)
    labels = np.array(windows["start_positions"])[::-1], np.array(windows["end_positions"])[::-1]
    metrics = AnswerMetrics(questions, windows, version_2_with_negative=True)
    with pytest.raises(ValueError, match="not evaluated in their order"):
        metrics(EvalPrediction(predictions=(start[::-1], end[::-1]), label_ids=labels))


def test_questions_without_known_answers_are_answered_only(questions, windows):
    hidden = questions.remove_columns("answers")
    metrics = AnswerMetrics(hidden, windows.remove_columns(["start_positions", "end_positions"]))
    assert metrics(EvalPrediction(predictions=random_logits(windows), label_ids=None)) == {}
    assert len(metrics.decoded) == len(questions)
