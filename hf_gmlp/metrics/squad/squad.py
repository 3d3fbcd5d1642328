"""SQuAD's exact match and F1, by the rules of the official evaluation scripts of v1.1 and v2.0.

A module for the `evaluate` library, which copies this file alone: it imports nothing of the package, and every import
stands on its own line, where `evaluate` looks for them. Load it by its folder, with no need of the Hub:

    metric = evaluate.load("hf_gmlp/metrics/squad")                # v1.1
    metric = evaluate.load("hf_gmlp/metrics/squad", "squad_v2")    # v2.0: questions without an answer
    metric.compute(predictions=predictions, references=references)
"""

import re
import string
from collections import Counter
from collections.abc import Iterable, Mapping

import datasets
import evaluate

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)

_INPUTS = """
Args:
    predictions: A list of {"id", "prediction_text"}; for v2 also "no_answer_probability", any number that is the
        larger the surer the model is that there is no answer.
    references: In the same order, a list of {"id", "answers": {"text": [...], "answer_start": [...]}}.
    no_answer_threshold: For v2, the question has no answer if its "no_answer_probability" is above this (default 1).

Returns:
    For v1.1, "exact_match" and "f1", in percent. For v2, what `squad_v2_scores` returns.
"""


class Squad(evaluate.Metric):
    """Exact match and F1; the configuration "squad_v2" has questions without an answer."""

    def _info(self) -> evaluate.MetricInfo:
        if self.config_name not in ("default", "squad", "squad_v2"):
            raise ValueError(f"There is no configuration {self.config_name!r}: use 'squad' (v1.1) or 'squad_v2'.")
        prediction = {"id": datasets.Value("string"), "prediction_text": datasets.Value("string")}
        if self.config_name == "squad_v2":
            prediction["no_answer_probability"] = datasets.Value("float64")
        answers = {"text": [datasets.Value("string")], "answer_start": [datasets.Value("int32")]}
        return evaluate.MetricInfo(
            description="Exact match and F1 of answers, by the rules of SQuAD's official scripts.",
            citation="Rajpurkar et al. 2016 (arXiv:1606.05250) and 2018 (arXiv:1806.03822)",
            inputs_description=_INPUTS,
            features=datasets.Features(
                {"predictions": prediction, "references": {"id": datasets.Value("string"), "answers": answers}}
            ),
            reference_urls=["https://rajpurkar.github.io/SQuAD-explorer/"],
        )

    def _compute(self, predictions, references, no_answer_threshold: float = 1.0) -> dict[str, float]:
        texts = {prediction["id"]: prediction["prediction_text"] for prediction in predictions}
        answers = {reference["id"]: reference["answers"]["text"] for reference in references}
        if self.config_name != "squad_v2":
            return squad_scores(texts, answers)
        no_answer = {prediction["id"]: prediction["no_answer_probability"] for prediction in predictions}
        return squad_v2_scores(texts, answers, no_answer, no_answer_threshold=no_answer_threshold)


def squad_scores(predictions: Mapping[str, str], references: Mapping[str, Iterable[str]]) -> dict[str, float]:
    """
    What the official script of v1.1 prints.

    Args:
        predictions: Question id -> the answer given. A question without one scores 0.
        references: Question id -> the right answers, at least one.

    Returns:
        "exact_match" and "f1", in percent: per question the best over its right answers.

    Raises:
        ValueError: If there are no questions, or one has no right answer.
    """
    _check(references)
    exact = f1 = 0.0
    for key, answers in references.items():
        if not answers:
            raise ValueError(f"Question {key} has no right answer: v1.1 has no such questions, v2 (squad_v2) does.")
        if key in predictions:
            exact += max(exact_match(predictions[key], answer) for answer in answers)
            f1 += max(_overlap(predictions[key], answer) for answer in answers)
    return {"exact_match": 100 * exact / len(references), "f1": 100 * f1 / len(references)}


def squad_v2_scores(
    predictions: Mapping[str, str],
    references: Mapping[str, Iterable[str]],
    no_answer: Mapping[str, float] | None = None,
    *,
    no_answer_threshold: float = 1.0,
) -> dict[str, float]:
    """
    What the official script of v2.0 prints.

    Args:
        predictions: Question id -> the answer given, "" for none.
        references: Question id -> the right answers, none if there is none.
        no_answer: Question id -> the larger, the surer that there is no answer; 0 by default.
        no_answer_threshold: Where `no_answer` is above it, the answer given counts as "".

    Returns:
        "exact" and "f1" in percent and "total"; the same of the questions with ("HasAns_...") and without an answer
        ("NoAns_..."), where there are any; and "best_exact", "best_f1" with "best_exact_thresh", "best_f1_thresh": the
        threshold on `no_answer` that would have given the best score, and that score.

    Raises:
        ValueError: If there are no questions, or one has no prediction.
    """
    _check(references)
    missing = next((key for key in references if key not in predictions), None)
    if missing is not None:
        raise ValueError(f"There is no prediction for question {missing}.")
    no_answer = dict.fromkeys(predictions, 0.0) if no_answer is None else no_answer
    has_answer = {key: bool(answers) for key, answers in references.items()}
    exact, f1 = {}, {}
    for key, answers in references.items():
        # An answer that is all articles and punctuation is none.
        answers = [answer for answer in answers if normalize_answer(answer)] or [""]
        exact[key] = max(exact_match(predictions[key], answer) for answer in answers)
        f1[key] = max(f1_score(predictions[key], answer) for answer in answers)

    def withheld(scores: dict[str, float]) -> dict[str, float]:
        """The scores after the answers above the threshold are taken back."""
        return {
            key: float(not has_answer[key]) if no_answer[key] > no_answer_threshold else score
            for key, score in scores.items()
        }

    results: dict[str, float] = {}
    final_exact, final_f1 = withheld(exact), withheld(f1)
    for prefix, kind in (("", (True, False)), ("HasAns_", (True,)), ("NoAns_", (False,))):
        keys = [key for key in references if has_answer[key] in kind]
        if keys:
            results[f"{prefix}exact"] = 100 * sum(final_exact[key] for key in keys) / len(keys)
            results[f"{prefix}f1"] = 100 * sum(final_f1[key] for key in keys) / len(keys)
            results[f"{prefix}total"] = len(keys)
    for name, scores in (("exact", exact), ("f1", f1)):
        best, threshold = _best_threshold(predictions, scores, no_answer, has_answer)
        results[f"best_{name}"], results[f"best_{name}_thresh"] = best, threshold
    return results


def _best_threshold(predictions, scores, no_answer, has_answer) -> tuple[float, float]:
    """The best mean score in percent over all thresholds on `no_answer`, and the lowest threshold that gives it."""
    # Before any question is answered, all those without an answer are right.
    score = best = sum(not has for has in has_answer.values())
    threshold = 0.0
    for key in sorted(no_answer, key=no_answer.__getitem__):
        if key not in scores:
            continue
        # Without an answer: right as long as nothing is said.
        score += scores[key] if has_answer[key] else -bool(predictions[key])
        if score > best:
            best, threshold = score, no_answer[key]
    return 100 * best / len(scores), threshold


def normalize_answer(text: str) -> str:
    """Lower case, without punctuation, without the articles a, an and the, and with single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact_match(prediction: str, answer: str) -> int:
    """1 if both are the same once normalized, else 0."""
    return int(normalize_answer(prediction) == normalize_answer(answer))


def f1_score(prediction: str, answer: str) -> float:
    """F1 over the words of two answers, as in v2.0: of two empty ones it is 1."""
    if not normalize_answer(prediction) or not normalize_answer(answer):
        return float(exact_match(prediction, answer))
    return _overlap(prediction, answer)


def _overlap(prediction: str, answer: str) -> float:
    """F1 over the words of two answers, as in v1.1: of two empty ones it is 0."""
    given, right = normalize_answer(prediction).split(), normalize_answer(answer).split()
    common = sum((Counter(given) & Counter(right)).values())
    if common == 0:
        return 0.0
    precision, recall = common / len(given), common / len(right)
    return 2 * precision * recall / (precision + recall)


def _check(references):
    if not references:
        raise ValueError("There are no questions to score.")
