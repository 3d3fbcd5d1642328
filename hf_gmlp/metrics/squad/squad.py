"""SQuAD's exact match and F1, by the rules of the official evaluation scripts of v1.1 and v2.0.

A module for the `evaluate` library, which copies only this file: it imports nothing from the package. Load it by its
folder, without the Hub; the configuration "squad_v2" allows questions without an answer:

    metric = evaluate.load("hf_gmlp/metrics/squad", "squad_v2")
    metric.compute(predictions=predictions, references=references)
"""

import re
import string
from collections import Counter
from collections.abc import Iterable, Mapping

# `evaluate` finds imports line by line: keep each on its own line.
import datasets
import evaluate

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)

_INPUTS = """
Args:
    predictions: A list of {"id", "prediction_text"}; for v2 also "no_answer_probability", any number that grows with
        the model's confidence that there is no answer.
    references: In the same order, a list of {"id", "answers": {"text": [...], "answer_start": [...]}}.
    no_answer_threshold: For v2, a question has no answer if its "no_answer_probability" is above this (default 1).

Returns:
    For v1.1, "exact_match" and "f1", in percent. For v2, the results of `squad_v2_scores`.
"""


class Squad(evaluate.Metric):
    def _info(self) -> evaluate.MetricInfo:
        if self.config_name not in ("default", "squad", "squad_v2"):
            raise ValueError(f"There is no configuration {self.config_name!r}: use 'squad' (v1.1) or 'squad_v2'.")
        prediction = {"id": datasets.Value("string"), "prediction_text": datasets.Value("string")}
        if self.config_name == "squad_v2":
            prediction["no_answer_probability"] = datasets.Value("float64")
        answers = {"text": [datasets.Value("string")], "answer_start": [datasets.Value("int32")]}
        reference = {"id": datasets.Value("string"), "answers": answers}
        return evaluate.MetricInfo(
            description="Exact match and F1 of answers, by the rules of SQuAD's official scripts.",
            citation="Rajpurkar et al. 2016 (arXiv:1606.05250) and 2018 (arXiv:1806.03822)",
            inputs_description=_INPUTS,
            features=datasets.Features({"predictions": prediction, "references": reference}),
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
    """Returns "exact_match" and "f1" in percent, as the script of v1.1, from the answers and correct answers by id.

    A question without a prediction scores 0. Raises a ValueError without questions, or if one has no correct answer.
    """
    _check(references)
    exact = f1 = 0.0
    for key, answers in references.items():
        if not answers:
            raise ValueError(f"Question {key} has no correct answer, which only v2 (squad_v2) allows.")
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
    """Returns the scores of the official script of v2.0.

    Args:
        predictions: Question id -> the model's answer, "" for none.
        references: Question id -> the correct answers, if there are any.
        no_answer: Question id -> the model's confidence that there is no answer, on any scale; 0 by default.
        no_answer_threshold: Where `no_answer` is above it, the model's answer counts as "".

    Returns:
        "exact" and "f1" in percent and "total"; the same for the questions with ("HasAns_...") and without an answer
        ("NoAns_..."), if there are any; and "best_exact", "best_f1" with "best_exact_thresh", "best_f1_thresh": the
        best score that a threshold on `no_answer` gives, and that threshold.

    Raises a ValueError if there are no questions, or one has no prediction.
    """
    _check(references)
    missing = next((key for key in references if key not in predictions), None)
    if missing is not None:
        raise ValueError(f"There is no prediction for question {missing}.")
    no_answer = dict.fromkeys(predictions, 0.0) if no_answer is None else no_answer
    has_answer = {key: bool(answers) for key, answers in references.items()}
    scores: dict[str, dict[str, float]] = {"exact": {}, "f1": {}}
    for key, answers in references.items():
        # An answer of only articles and punctuation does not count.
        answers = [answer for answer in answers if normalize_answer(answer)] or [""]
        for name, score in (("exact", exact_match), ("f1", f1_score)):
            scores[name][key] = max(score(predictions[key], answer) for answer in answers)

    results: dict[str, float] = {}
    for prefix, kind in (("", (True, False)), ("HasAns_", (True,)), ("NoAns_", (False,))):
        keys = [key for key in references if has_answer[key] in kind]
        if not keys:
            continue
        for name in scores:
            # An answer above the threshold is withdrawn.
            final = (not has_answer[k] if no_answer[k] > no_answer_threshold else scores[name][k] for k in keys)
            results[f"{prefix}{name}"] = 100 * sum(final) / len(keys)
        results[f"{prefix}total"] = len(keys)
    for name in scores:
        best, threshold = _best_threshold(predictions, scores[name], no_answer, has_answer)
        results[f"best_{name}"], results[f"best_{name}_thresh"] = best, threshold
    return results


def _best_threshold(predictions, scores, no_answer, has_answer) -> tuple[float, float]:
    """The best mean score in percent over all thresholds on `no_answer`, and the lowest threshold that gives it."""
    # While no question is answered, those without an answer are correct.
    score = best = sum(not has for has in has_answer.values())
    threshold = 0.0
    for key in sorted(no_answer, key=no_answer.__getitem__):
        if key not in scores:
            continue
        # A question without an answer stays correct if the prediction is empty.
        score += scores[key] if has_answer[key] else -bool(predictions[key])
        if score > best:
            best, threshold = score, no_answer[key]
    return 100 * best / len(scores), threshold


def normalize_answer(text: str) -> str:
    """Returns the text in lower case, without punctuation or the articles a, an and the, and with single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact_match(prediction: str, answer: str) -> int:
    """Returns 1 if both are the same once normalized, else 0."""
    return int(normalize_answer(prediction) == normalize_answer(answer))


def f1_score(prediction: str, answer: str) -> float:
    """Returns F1 over the words of two answers, as in v2.0: 1 for two empty ones."""
    if not normalize_answer(prediction) or not normalize_answer(answer):
        return float(exact_match(prediction, answer))
    return _overlap(prediction, answer)


def _overlap(prediction: str, answer: str) -> float:
    """F1 over the words of two answers, as in v1.1: 0 for two empty ones."""
    given, right = normalize_answer(prediction).split(), normalize_answer(answer).split()
    common = sum((Counter(given) & Counter(right)).values())
    if common == 0:
        return 0.0
    precision, recall = common / len(given), common / len(right)
    return 2 * precision * recall / (precision + recall)


def _check(references):
    if not references:
        raise ValueError("There are no questions to score.")
