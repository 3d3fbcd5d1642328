import math

import numpy as np
import pytest

from hf_gmlp.errors import InputError
from hf_gmlp.tasks.qa.decoding import Decoded, best_spans, decode
from hf_gmlp.tasks.qa.windows import make_windows

from ...numerics import assert_close
from ...samples import flat, squad

QUESTIONS = flat(squad(6, unanswerable=True))
CONTEXTS = [row["context"] for row in QUESTIONS]


@pytest.fixture(scope="module")
def windows(squad_tokenizer):
    words = [row["question"] for row in QUESTIONS]
    return make_windows(words, CONTEXTS, squad_tokenizer, max_seq_length=32, doc_stride=8)


def random_logits(windows, width=40):
    """As `Trainer` gathers them: padded, with high logits on padding and question, where no answer may be found."""
    start, end = np.random.default_rng(0).normal(size=(2, len(windows["offsets"]), width)).astype(np.float32)
    for row, offsets in enumerate(windows["offsets"]):
        outside = np.array([*(first == last for first, last in offsets), *[True] * width])[:width]
        for logits in (start, end):
            logits[row, 1:][outside[1:]] += 50
    return start, end


def all_answers(windows, start, end, max_answer_length):
    """Every span of every question, one by one: {question: {(start, end): score}}, and the least score of [CLS]."""
    spans, nulls = {}, {}
    for row, (question, offsets) in enumerate(zip(windows["question_index"], windows["offsets"])):
        for i, (from_character, _) in enumerate(offsets):
            for j in range(i, min(i + max_answer_length, len(offsets))):
                to_character = offsets[j][1]
                if offsets[i][0] == offsets[i][1] or offsets[j][0] == offsets[j][1]:
                    continue
                value = float(start[row, i]) + float(end[row, j])
                best = spans.setdefault(question, {})
                span = from_character, to_character
                best[span] = max(best.get(span, -math.inf), value)
        null = float(start[row, 0]) + float(end[row, 0])
        nulls[question] = min(nulls.get(question, math.inf), null)
    return spans, nulls


@pytest.mark.parametrize(("n_best_size", "max_answer_length"), [(1, 30), (20, 4), (7, 1), (500, 30)])
@pytest.mark.parametrize("negative", [False, True])
def test_decode_finds_the_best_of_all_spans(windows, n_best_size, max_answer_length, negative):
    assert len(windows["offsets"]) > len(CONTEXTS)
    start, end = random_logits(windows)
    options = {"n_best_size": n_best_size, "max_answer_length": max_answer_length}
    decoded = decode(CONTEXTS, windows, start, end, version_2_with_negative=negative, **options)
    spans, nulls = all_answers(windows, start, end, max_answer_length)
    for index, (one, context) in enumerate(zip(decoded, CONTEXTS)):
        ranked = sorted(spans[index].items(), key=lambda item: -item[1])
        best_span, best_score = ranked[0]
        assert one.text == context[slice(*best_span)] == one.text.strip()
        expected = ranked[:n_best_size]
        if negative:
            null = (0, 0), nulls[index]
            assert_close(one.null_odds, nulls[index] - best_score)
            expected = sorted([*expected, null], key=lambda item: -item[1])[:n_best_size]
            expected += [] if null in expected else [null]
        else:
            assert one.null_odds == -math.inf
        assert [(entry["start"], entry["end"]) for entry in one.nbest] == [span for span, _ in expected]
        assert [entry["text"] for entry in one.nbest] == [context[slice(*span)] for span, _ in expected]
        scores = np.array([value for _, value in expected])
        assert_close([entry["start_logit"] + entry["end_logit"] for entry in one.nbest], list(scores))
        assert_close([entry["probability"] for entry in one.nbest], list(np.exp(scores) / np.exp(scores).sum()))


def test_best_spans_on_a_case_by_hand():
    offsets = [[0, 3], [4, 4], [4, 7], [8, 9]]
    start, end = np.array([1.0, 9.0, 2.0, 0.0]), np.array([0.0, 9.0, 3.0, 1.0])
    spans = best_spans(start, end, offsets, n_best_size=3, max_answer_length=3)
    # White space neither begins nor ends an answer, and [0, 9) is four tokens long.
    assert [(span.start, span.end, span.score) for span in spans] == [(4, 7, 5.0), (0, 7, 4.0), (4, 9, 3.0)]
    # Of equals, the first and shortest.
    spans = best_spans(np.zeros(4), np.zeros(4), offsets, n_best_size=2, max_answer_length=4)
    assert [(span.start, span.end) for span in spans] == [(0, 3), (0, 7)]
    assert best_spans(start[:1], end[:1], [[2, 2]], n_best_size=2, max_answer_length=4) == []


def test_threshold_takes_answers_away():
    one = Decoded("Rome", [], null_odds=1.5)
    assert (one.answer(), one.answer(1.5), one.answer(2)) == ("", "Rome", "Rome")
    assert Decoded("Rome", [], null_odds=-math.inf).answer(-100) == "Rome"


def test_logits_that_are_not_finite_are_refused(windows):
    start, end = random_logits(windows)
    end[3, 0] = np.nan
    with pytest.raises(InputError, match="not finite"):
        decode(CONTEXTS, windows, start, end)
