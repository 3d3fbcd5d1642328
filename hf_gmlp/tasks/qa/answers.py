"""From the logits of windows to answers and their scores, without the packages that training needs."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...errors import InputError
from .windows import DECODING_COLUMNS

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import EvalPrediction, TrainingArguments
    from transformers.trainer_utils import PredictionOutput


class Span(NamedTuple):
    """Characters [start, end) of the context, and the logits of their first and last token."""

    start: int
    end: int
    start_logit: float
    end_logit: float

    @property
    def score(self) -> float:
        return self.start_logit + self.end_logit


@dataclass
class Decoded:
    """
    The answers to one question.

    text: The best span.
    nbest: The best spans, best first, and "" for no answer where that is allowed: "text", "start", "end" (characters of
        the context), "probability" (within this list), "start_logit", "end_logit".
    null_odds: The score of no answer minus that of the best span; None if there is always an answer.
    """

    text: str
    nbest: list[dict]
    null_odds: float | None

    def answer(self, null_score_diff_threshold: float = 0.0) -> str:
        """The best span; "" if the score of no answer exceeds its score by more than the threshold."""
        return "" if self.null_odds is not None and self.null_odds > null_score_diff_threshold else self.text


def best_spans(
    start_logits: np.ndarray,
    end_logits: np.ndarray,
    offsets: Sequence[Sequence[int]],
    *,
    n_best_size: int,
    max_answer_length: int,
) -> list[Span]:
    """
    The spans of one window with the highest sum of start and end logit, of all spans of up to `max_answer_length`
    tokens. The logits [c] are those of the context; `offsets` are the characters [start, end) of its tokens, and a
    token without characters neither starts nor ends a span.
    """
    if len(offsets) == 0:
        return []
    is_text = np.array([start < end for start, end in offsets])
    starts = np.where(is_text, np.asarray(start_logits, dtype=np.float64), -np.inf)
    ends = np.where(is_text, np.asarray(end_logits, dtype=np.float64), -np.inf)
    width = min(max_answer_length, len(offsets))
    ends = np.concatenate([ends, np.full(width - 1, -np.inf)])
    # [c, width]: row i, column k is the span from token i to i + k.
    scores = starts[:, None] + np.lib.stride_tricks.sliding_window_view(ends, width)
    flat = scores.ravel()
    # Sorting all of them takes ten times as long.
    least = np.partition(flat, -n_best_size)[-n_best_size] if n_best_size < flat.size else -np.inf
    chosen = np.flatnonzero((flat >= least) & np.isfinite(flat))
    # Among equal scores, the first and shortest span comes first.
    firsts, extra = np.divmod(chosen[np.argsort(-flat[chosen], kind="stable")][:n_best_size], width)
    return [
        Span(offsets[first][0], offsets[last][1], float(starts[first]), float(ends[last]))
        for first, last in zip(firsts, firsts + extra)
    ]


def decode(
    contexts: Sequence[str],
    windows: Iterable[Mapping],
    start_logits: Sequence[np.ndarray],
    end_logits: Sequence[np.ndarray],
    *,
    n_best_size: int = 20,
    max_answer_length: int = 30,
    version_2_with_negative: bool = False,
) -> list[Decoded]:
    """
    The answers to questions from the logits of their windows. The score of no answer is the sum of the logits of [CLS],
    the lowest over all windows: a window without the answer correctly says that there is none.

    Args:
        contexts: One for each question.
        windows: Rows of `make_windows`, whose "question_index" is a place in `contexts`.
        start_logits, end_logits: [m] for each window, at least as long as the window.
        version_2_with_negative: Whether there may be no answer.

    Raises:
        InputError: If a logit is not finite.
    """
    spans: list[list[Span]] = [[] for _ in contexts]
    nulls: list[list[Span]] = [[] for _ in contexts]
    for window, start, end in zip(windows, start_logits, end_logits, strict=True):
        question, first, offsets = window["question_index"], window["context_start"], window["offsets"]
        tokens = slice(first, first + len(offsets))
        null = Span(0, 0, float(start[window["cls_index"]]), float(end[window["cls_index"]]))
        if not np.isfinite([*start[tokens], *end[tokens], null.score]).all():
            raise InputError("The model's logits are not finite numbers: lower the learning rate of its training.")
        nulls[question].append(null)
        spans[question] += best_spans(
            start[tokens], end[tokens], offsets, n_best_size=n_best_size, max_answer_length=max_answer_length
        )

    decoded = []
    for context, candidates, none in zip(contexts, spans, nulls):
        candidates.sort(key=lambda span: -span.score)
        # The same words in two windows are one answer. A context of white space has none.
        places = {(span.start, span.end): span for span in reversed(candidates)}
        ranked = [span for span in candidates if places[span.start, span.end] is span] or [Span(0, 0, 0.0, 0.0)]
        best, ranked, null_odds = ranked[0], ranked[:n_best_size], None
        if version_2_with_negative:
            null = min(none, key=lambda span: span.score)
            null_odds = null.score - best.score
            ranked = sorted([*ranked, null], key=lambda span: -span.score)[:n_best_size]
            # Its score is reported, however low.
            ranked = ranked if null in ranked else [*ranked, null]
        weights = np.exp(np.array([span.score for span in ranked]) - max(span.score for span in ranked))
        nbest = [
            {"text": context[span.start : span.end], "probability": float(weight), **span._asdict()}
            for span, weight in zip(ranked, weights / weights.sum())
        ]
        decoded.append(Decoded(context[best.start : best.end], nbest, null_odds))
    return decoded


class AnswerMetrics:
    """
    `compute_metrics` for Trainer: decodes and scores an evaluation. `decoded` keeps the last answers.

    Scores are exact match and F1 by SQuAD's official rules; for v2 also by kind of question, and with the best
    threshold. That is searched with the best span of every question, while the official script searches it with the
    answers in predictions.json, some of which a threshold has already removed.

    Args:
        questions: From `load_questions`.
        windows: From `window_dataset`, in the order of the evaluation.
        version_2_with_negative, options: As for `decode`.
    """

    def __init__(
        self,
        questions: "Dataset",
        windows: "Dataset",
        *,
        version_2_with_negative: bool = False,
        null_score_diff_threshold: float = 0.0,
        **options,
    ):
        self.questions, self.windows = questions, windows.select_columns(list(DECODING_COLUMNS))
        self.start_positions = windows["start_positions"][:] if "start_positions" in windows.column_names else None
        self.negative, self.threshold, self.options = version_2_with_negative, null_score_diff_threshold, options
        self.decoded: list[Decoded] = []

    def __call__(self, prediction: "EvalPrediction | PredictionOutput") -> dict[str, float]:
        if prediction.label_ids is not None and not np.array_equal(prediction.label_ids[0], self.start_positions):
            raise ValueError("The windows were not evaluated in their order: logits and contexts do not match.")
        options = self.options | {"version_2_with_negative": self.negative}
        self.decoded = decode(self.questions["context"], self.windows, *prediction.predictions[:2], **options)
        return self._scores(self.decoded) if "answers" in self.questions.column_names else {}

    def names(self) -> list[str]:
        """The metrics of an evaluation."""
        return list(self._scores([Decoded("", [], 0.0)] * len(self.questions)))

    def _scores(self, decoded: Sequence[Decoded]) -> dict[str, float]:
        # It needs `evaluate`.
        from ...metrics.squad.squad import squad_scores, squad_v2_scores

        ids = self.questions["id"]
        references = {key: answers["text"] for key, answers in zip(ids, self.questions["answers"])}
        texts = {key: one.text for key, one in zip(ids, decoded)}
        if not self.negative:
            return squad_scores(texts, references)
        null_odds = {key: one.null_odds for key, one in zip(ids, decoded)}
        return squad_v2_scores(texts, references, null_odds, no_answer_threshold=self.threshold)

    def write(self, args: "TrainingArguments", prefix: str):
        """Writes {prefix}_predictions.json (for the official scripts), _nbest_predictions.json and _null_odds.json."""
        from ...training.run_folder import write_text

        if not args.should_save:
            return
        contents = {
            "predictions": [one.answer(self.threshold) for one in self.decoded],
            "nbest_predictions": [one.nbest for one in self.decoded],
        }
        if self.negative:
            contents["null_odds"] = [one.null_odds for one in self.decoded]
        Path(args.output_dir).mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            text = json.dumps(dict(zip(self.questions["id"], content)), indent=2, ensure_ascii=False) + "\n"
            write_text(Path(args.output_dir, f"{prefix}_{name}.json"), text)
