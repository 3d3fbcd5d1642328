"""Extractive question answering: questions with a context that contains the answers (rows of `hf_gmlp.data.files`,
which also reads SQuAD's format), windows of tokens over both, and answers from their logits.
"""

import itertools
import logging
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import NamedTuple

import numpy as np
from datasets import Dataset, Features, Value
from transformers import PreTrainedTokenizerBase as Tokenizer

from ..errors import InputError
from .files import stream_rows
from .source import Source

logger = logging.getLogger(__name__)

TEXT = {name: Value("string") for name in ("id", "question", "context")}
ANSWERS = {"answers": {"text": [Value("string")], "answer_start": [Value("int32")]}}


def check_question(row: dict, where: str, split: str) -> dict:
    """Return the four fields of a row, checked, and with answers stripped of white space. There may be no answers if
    the question is impossible, or for the split "test".
    """
    name = f"question {row.get('id', row.get('question'))!r} in {where}"
    for field in TEXT:
        if not isinstance(row.get(field), str | int if field == "id" else str) or not str(row[field]).strip():
            fields = ", ".join(row)
            raise InputError(f"The {name} has no text in the field {field!r}, of {fields}: correct or rename it.")
    answers = row.get("answers")
    # A table has no lists of answers.
    if answers is None or isinstance(answers, str):
        answers = [] if row.get("is_impossible") or split == "test" else [{}]
    try:
        if isinstance(answers, dict):
            answers = [dict(zip(answers, values)) for values in zip(*answers.values(), strict=True)]
        texts = [answer["text"].strip() for answer in answers]
        starts = [index(answer["answer_start"]) for answer in answers]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"The {name} needs 'answers', each with a 'text' and an integer 'answer_start'.") from error
    if texts and row.get("is_impossible"):
        raise InputError(f"The {name} has answers, and 'is_impossible': remove one of them.")
    for number, (text, start) in enumerate(zip(texts, starts)):
        tail = row["context"][start:].lstrip()
        if start < 0 or not text or not tail.startswith(text):
            raise InputError(f"The answer {text!r} to {name} is not at character {start} of its context: correct it.")
        # White space before the answer is not a part of it.
        starts[number] = len(row["context"]) - len(tail)
    answers = {"text": texts, "answer_start": starts}
    return {"id": str(row["id"]), "question": row["question"], "context": row["context"], "answers": answers}


def check_windows(tokenizer: Tokenizer, max_seq_length: int, doc_stride: int) -> None:
    """Raise an InputError if a window has no room for new context, or the tokenizer cannot encode or pad it."""
    if doc_stride > max_seq_length // 2:
        raise InputError(f"--doc_stride {doc_stride} is above half of --max_seq_length, {max_seq_length // 2}.")
    pads = tokenizer.pad_token_id is not None and tokenizer.padding_side == "right"
    if not (tokenizer.is_fast and pads and tokenizer("", "")["input_ids"][:1] == [tokenizer.cls_token_id]):
        name = type(tokenizer).__name__
        raise InputError(f"Choose another tokenizer than {name}: a fast one, [CLS] first and padding on the right.")


def make_windows(
    questions: Sequence[str],
    contexts: Sequence[str],
    tokenizer: Tokenizer,
    *,
    max_seq_length: int,
    doc_stride: int,
    answers: Sequence[dict[str, list]] | None = None,
) -> dict[str, list]:
    """Make windows [CLS] question [SEP] context [SEP] of each pair.

    A long context gives several windows that overlap by `doc_stride` tokens. A question that leaves too little room for
    the context is shortened.

    Args:
        answers: "text" and "answer_start" of each question's answers, of which only the first is used.

    Returns:
        The columns of the tokenizer; "question_index"; "offsets", the characters [start, end) of the context that each
        token covers, [0, 0) for other tokens; and with `answers` "start_positions" and "end_positions", the first and
        last token of the answer, or 0, the position of [CLS], if the window does not contain it.
    """
    room = max_seq_length - tokenizer.num_special_tokens_to_add(pair=True)
    # The names of special tokens, such as "[SEP]", are ordinary text in an article.
    options: dict[str, object] = {"split_special_tokens": True, "return_offsets_mapping": True, "verbose": False}
    questions = _shorten(questions, tokenizer, (room - doc_stride) // 2, **options)
    options |= {"truncation": "only_second", "max_length": max_seq_length, "stride": doc_stride}
    encoded = tokenizer(questions, list(contexts), return_overflowing_tokens=True, **options)
    sources, all_offsets = encoded.pop("overflow_to_sample_mapping"), encoded.pop("offset_mapping")
    windows: dict[str, list] = dict(encoded) | {"question_index": sources, "offsets": []}
    for window, offsets in enumerate(all_offsets):
        parts = encoded.sequence_ids(window)
        windows["offsets"].append([list(span) if part == 1 else [0, 0] for span, part in zip(offsets, parts)])
    if answers is not None:
        spans = [_answer_tokens(offsets, answers[source]) for source, offsets in zip(sources, windows["offsets"])]
        windows |= {"start_positions": [first for first, _ in spans], "end_positions": [last for _, last in spans]}
    return windows


def _shorten(questions: Sequence[str], tokenizer: Tokenizer, longest: int, **options: object) -> list[str]:
    """Strip white space from the questions, and truncate them to `longest` tokens."""
    questions = [question.strip() for question in questions]
    encoded = tokenizer(questions, add_special_tokens=False, truncation=True, max_length=longest + 1, **options)
    truncated = []
    for question, offsets in zip(questions, encoded["offset_mapping"]):
        if len(offsets) > longest:
            logger.warning("A question was truncated to %d tokens: %s", longest, question)
            question = question[: offsets[longest][0]].rstrip()
        truncated.append(question)
    return truncated


def _answer_tokens(offsets: list[list[int]], answers: dict[str, list]) -> tuple[int, int]:
    """Return the first and last token that overlap the first answer; 0 and 0 if the window lacks a part of it."""
    text = [number for number, (start, end) in enumerate(offsets) if start < end]
    for start, answer in zip(answers["answer_start"][:1], answers["text"]):
        end = start + len(answer)
        tokens = [number for number in text if offsets[number][0] < end and offsets[number][1] > start]
        if tokens and offsets[text[0]][0] <= start and end <= offsets[text[-1]][1]:
            return tokens[0], tokens[-1]
    return 0, 0


class Span(NamedTuple):
    """Characters [start, end) of the context, the logits of their first and last token, and the sum of these."""

    start: int
    end: int
    start_logit: float
    end_logit: float

    @property
    def score(self) -> float:
        return self.start_logit + self.end_logit


@dataclass
class Decoded:
    """The answers to one question.

    Attributes:
        text: The best span.
        nbest: The best spans, best first, with "" for no answer if that is allowed: "text", "start", "end" (characters
            of the context), "probability" (within this list), "start_logit", "end_logit".
        null_odds: The score of no answer minus that of the best span; minus infinity if there is always an answer.
    """

    text: str
    nbest: list[dict]
    null_odds: float

    def answer(self, null_score_diff_threshold: float = 0.0) -> str:
        """Return the best span; "" if the score of no answer exceeds its score by more than the threshold."""
        return "" if self.null_odds > null_score_diff_threshold else self.text


def best_spans(
    start_logits: np.ndarray,
    end_logits: np.ndarray,
    offsets: Sequence[Sequence[int]],
    n_best_size: int,
    max_answer_length: int,
) -> list[Span]:
    """Return the spans of one window with the highest sum of start and end logit [m], best first.

    Tokens without `offsets`, the characters [start, end) of each token, neither start nor end a span, which has at most
    `max_answer_length` tokens.
    """
    is_text = np.array([start < end for start, end in offsets])
    starts = np.where(is_text, np.asarray(start_logits, dtype=np.float64), -np.inf)
    ends = np.where(is_text, np.asarray(end_logits, dtype=np.float64), -np.inf)
    width = min(max_answer_length, len(offsets))
    ends = np.concatenate([ends, np.full(width - 1, -np.inf)])
    # [m, width]: row i, column k is the span from token i to i + k.
    scores = (starts[:, None] + np.lib.stride_tricks.sliding_window_view(ends, width)).ravel()
    # Sorting all scores would take ten times as long.
    least = np.partition(scores, -n_best_size)[-n_best_size] if n_best_size < scores.size else -np.inf
    chosen = np.flatnonzero((scores >= least) & np.isfinite(scores))
    # If scores are equal, the first and shortest span comes first.
    ranked = chosen[np.argsort(-scores[chosen], kind="stable")][:n_best_size]
    firsts, extra = np.divmod(ranked, width)
    pairs = zip(firsts, firsts + extra)
    return [Span(offsets[i][0], offsets[j][1], float(starts[i]), float(ends[j])) for i, j in pairs]


def decode_answers(
    contexts: Sequence[str],
    windows: Mapping[str, Iterable],
    start_logits: Sequence[np.ndarray],
    end_logits: Sequence[np.ndarray],
    *,
    n_best_size: int = 20,
    max_answer_length: int = 30,
    version_2_with_negative: bool = False,
) -> list[Decoded]:
    """Return the answers to questions from the logits of their windows.

    The score of no answer is the sum of the logits of [CLS] in the window where it is lowest, since windows without the
    answer correctly predict no answer.

    Args:
        contexts: The context of each question.
        windows: The columns of `make_windows`, where "question_index" is an index into `contexts`.
        start_logits, end_logits: [m] for each window, at least as long as the window.
        version_2_with_negative: Whether there may be no answer.
    """
    spans: list[list[Span]] = [[] for _ in contexts]
    nulls: list[list[Span]] = [[] for _ in contexts]
    columns = windows["question_index"], windows["offsets"], start_logits, end_logits
    for question, offsets, start, end in zip(*columns, strict=True):
        start, end = start[: len(offsets)], end[: len(offsets)]
        if not np.isfinite([start, end]).all():
            raise InputError("The model's logits are not finite numbers: lower the learning rate of its training.")
        nulls[question].append(Span(0, 0, float(start[0]), float(end[0])))
        spans[question] += best_spans(start, end, offsets, n_best_size, max_answer_length)

    decoded = []
    for context, candidates, null_candidates in zip(contexts, spans, nulls):
        # The same characters in two overlapping windows are a single answer.
        best = {span[:2]: span for span in sorted(candidates, key=lambda span: span.score)}
        # A context of white space has no span.
        ranked = sorted(best.values(), key=lambda span: -span.score)[:n_best_size] or [Span(0, 0, 0.0, 0.0)]
        text, null_odds = context[ranked[0].start : ranked[0].end], -math.inf
        if version_2_with_negative:
            null = min(null_candidates, key=lambda span: span.score)
            null_odds = null.score - ranked[0].score
            ranked = sorted([*ranked, null], key=lambda span: -span.score)[:n_best_size]
            # The score of no answer is always reported.
            ranked = ranked if null in ranked else [*ranked, null]
        weights = np.exp(np.array([span.score for span in ranked]) - max(span.score for span in ranked))
        nbest = [
            {"text": context[span.start : span.end], "probability": float(weight), **span._asdict()}
            for span, weight in zip(ranked, weights / weights.sum())
        ]
        decoded.append(Decoded(text, nbest, null_odds))
    return decoded


def load_questions(
    source: Source,
    splits: Sequence[str],
    *,
    version_2_with_negative: bool = False,
    max_rows: Mapping[str, int | None] | None = None,
) -> dict[str, Dataset]:
    """Return the questions of the `splits`, checked: "id", "question", "context" and "answers" {"text": [...],
    "answer_start": [...]}.

    Both lists are empty if there is no answer, for which `version_2_with_negative` is needed; a "test" split without
    any answer has no column "answers". At most `max_rows` questions of a split are read, the first ones.

    Raises:
        InputError: If data are missing or have another format, two questions share an id, an answer is not at its
            position, or a question has no answer but must have one.
    """
    loaded = {} if source.files else source.load()
    for split, paths in source.files.items():
        loaded[split] = itertools.chain.from_iterable(stream_rows(path, source.encoding) for path in paths)
    questions = {}
    for split in splits:
        where = ", ".join(source.files.get(split, [str(source.dataset_name)]))
        unchecked = itertools.islice(loaded.get(split, ()), (max_rows or {}).get(split))
        rows = [check_question(row, where, split) for row in unchecked]
        if not rows:
            raise InputError(f"There are no {split} questions in {where}: pass other data, such as --{split}_file.")
        ((key, count),) = Counter(row["id"] for row in rows).most_common(1)
        if count > 1:
            raise InputError(f"Two questions in {where} have the id {key}: predictions need unique ids.")
        unanswered = [row["id"] for row in rows if not row["answers"]["text"]]
        answered = split != "test" or len(unanswered) < len(rows)
        if unanswered and answered and not version_2_with_negative:
            raise InputError(f"Question {unanswered[0]} in {where} has no answer: pass --version_2_with_negative.")
        features = Features(TEXT | ANSWERS if answered else TEXT)
        questions[split] = Dataset.from_dict({name: [row[name] for row in rows] for name in features}, features)
    return questions
