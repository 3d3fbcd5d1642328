"""From the logits of windows to answers, and their scores.

What only training needs is imported where it is used: `hf_gmlp.qa` decodes without it.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..data.qa import DECODING_COLUMNS
from ..errors import InputError

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import EvalPrediction, TrainingArguments
    from transformers.trainer_utils import PredictionOutput


class Span(NamedTuple):
    """A candidate: the characters [start, end) of the context, and the logits of its first and last token."""

    start: int
    end: int
    start_logit: float
    end_logit: float

    @property
    def score(self) -> float:
        return self.start_logit + self.end_logit


# For a context that has nothing but white space.
NOTHING = Span(0, 0, 0.0, 0.0)


@dataclass
class Decoded:
    """The answers to one question."""

    text: str
    """The best span."""
    nbest: list[dict]
    """The best spans, with no answer at all ("") among them where that is allowed: "text", "start", "end" (characters
    of the context), "probability" (over this list), "start_logit", "end_logit"; best first."""
    null_odds: float | None
    """Score of no answer minus that of the best span; None where there is always an answer."""

    def answer(self, null_score_diff_threshold: float = 0.0) -> str:
        """The best span; "" if no answer scores higher by more than the threshold."""
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
    The spans of one window with the highest sum of start and end logit: of all spans, not only of those that start at
    one of the best starts and end at one of the best ends.

    Args:
        start_logits: [c], of the tokens of context alone.
        end_logits: [c]
        offsets: The characters [start, end) of each; a span neither starts nor ends with a token that has none.
        max_answer_length: In tokens.
    """
    if len(offsets) == 0:
        return []
    is_text = np.array([start < end for start, end in offsets])
    starts = np.where(is_text, np.asarray(start_logits, dtype=np.float64), -np.inf)
    ends = np.where(is_text, np.asarray(end_logits, dtype=np.float64), -np.inf)
    width = min(max_answer_length, len(offsets))
    ends = np.concatenate([ends, np.full(width - 1, -np.inf)])
    # [c, width]: row i, column k is the span of tokens i to i + k.
    scores = starts[:, None] + np.lib.stride_tricks.sliding_window_view(ends, width)
    flat = scores.ravel()
    least = np.partition(flat, flat.size - n_best_size)[flat.size - n_best_size] if n_best_size < flat.size else -np.inf
    chosen = np.flatnonzero(flat >= least)
    # Of equal scores the first and shortest span comes first.
    chosen = chosen[np.argsort(-flat[chosen], kind="stable")][:n_best_size]
    spans = []
    for index in chosen[np.isfinite(flat[chosen])].tolist():
        first, extra = divmod(index, width)
        last = first + extra
        spans.append(Span(offsets[first][0], offsets[last][1], float(starts[first]), float(ends[last])))
    return spans


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
    The answers to questions from the logits of their windows.

    No answer scores, in a window, the logits of [CLS], and over all windows of a question the least of that: a window
    that does not have the answer says that there is none, and rightly.

    Args:
        contexts: One for each question.
        windows: Rows of `make_windows`, "question_index" pointing into `contexts`.
        start_logits: For each window [m], as long as the window or, where it is padded, longer.
        end_logits: Likewise.
        version_2_with_negative: Whether there may be no answer.

    Raises:
        InputError: If a logit is not a finite number.
    """
    spans: list[dict[tuple[int, int], Span]] = [{} for _ in contexts]
    nulls: list[Span | None] = [None] * len(contexts)
    for window, start, end in zip(windows, start_logits, end_logits, strict=True):
        question, first, offsets = window["question_index"], window["context_start"], window["offsets"]
        tokens = slice(first, first + len(offsets))
        for span in best_spans(
            start[tokens], end[tokens], offsets, n_best_size=n_best_size, max_answer_length=max_answer_length
        ):
            # The same words in two windows are one answer.
            place = span.start, span.end
            if place not in spans[question] or span.score > spans[question][place].score:
                spans[question][place] = span
        null = Span(0, 0, float(start[window["cls_index"]]), float(end[window["cls_index"]]))
        if not np.isfinite([*start[tokens], *end[tokens], null.score]).all():
            raise InputError(
                "The model's logits are not finite numbers, since its training diverged or its weights are damaged: "
                "train it with a lower learning rate, or take an earlier checkpoint."
            )
        if nulls[question] is None or null.score < nulls[question].score:
            nulls[question] = null

    decoded = []
    for context, candidates, null in zip(contexts, spans, nulls):
        ranked = sorted(candidates.values(), key=lambda span: -span.score) or [NOTHING]
        best, ranked, null_odds = ranked[0], ranked[:n_best_size], None
        if version_2_with_negative:
            null_odds = null.score - best.score
            ranked = sorted([*ranked, null], key=lambda span: -span.score)[:n_best_size]
            # Its score is wanted, however low.
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
    Decodes and scores an evaluation; `Trainer` calls it as `compute_metrics`. `decoded` keeps the last answers.

    Scores are exact match and F1 by SQuAD's official rules; of v2, also by question kind, and with the threshold that
    would have been best. That is searched with the best span of every question. The official script searches among the
    answers in predictions.json, where a threshold has already taken answers away that it cannot bring back.

    Args:
        questions: What `load_questions` gave.
        windows: What `window_dataset` made of them, in the order in which it is evaluated.
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
            raise ValueError("The windows were not evaluated in their order, so no logits can be matched to a context.")
        options = self.options | {"version_2_with_negative": self.negative}
        self.decoded = decode(self.questions["context"], self.windows, *prediction.predictions[:2], **options)
        return self._scores(self.decoded) if "answers" in self.questions.column_names else {}

    def names(self) -> list[str]:
        """The metrics that an evaluation will give."""
        return list(self._scores([Decoded("", [], 0.0)] * len(self.questions)))

    def _scores(self, decoded: Sequence[Decoded]) -> dict[str, float]:
        # It needs `evaluate`.
        from ..metrics.squad.squad import squad_scores, squad_v2_scores

        ids = self.questions["id"]
        references = {key: answers["text"] for key, answers in zip(ids, self.questions["answers"])}
        texts = {key: one.text for key, one in zip(ids, decoded)}
        if not self.negative:
            return squad_scores(texts, references)
        null_odds = {key: one.null_odds for key, one in zip(ids, decoded)}
        return squad_v2_scores(texts, references, null_odds, no_answer_threshold=self.threshold)

    def write(self, args: "TrainingArguments", prefix: str):
        """
        Writes the last answers into the output folder, in one process alone: {prefix}_predictions.json (question id ->
        answer, what the official scripts read), {prefix}_nbest_predictions.json and, where there may be no answer,
        {prefix}_null_odds.json.
        """
        from .folder import write_text

        answers = dict(zip(self.questions["id"], self.decoded)) if args.should_save else {}
        contents = {
            "predictions": {key: one.answer(self.threshold) for key, one in answers.items()},
            "nbest_predictions": {key: one.nbest for key, one in answers.items()},
            "null_odds": {key: one.null_odds for key, one in answers.items() if self.negative},
        }
        for name, content in contents.items():
            if content:
                Path(args.output_dir).mkdir(parents=True, exist_ok=True)
                text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
                write_text(Path(args.output_dir, f"{prefix}_{name}.json"), text)
