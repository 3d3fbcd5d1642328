"""SQuAD's exact match and F1, by the rules of the official evaluation scripts of v1.1 and v2.0."""

import re
import string
from collections import Counter
from collections.abc import Iterable, Mapping

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def squad_scores(predictions: Mapping[str, str], references: Mapping[str, Iterable[str]]) -> dict[str, float]:
    """Return "exact_match" and "f1" in percent, as the script of v1.1, from the answers and correct answers by id."""
    exact = sum(max(exact_match(predictions[key], text) for text in answers) for key, answers in references.items())
    f1 = sum(max(_overlap(predictions[key], text) for text in answers) for key, answers in references.items())
    return {"exact_match": 100 * exact / len(references), "f1": 100 * f1 / len(references)}


def squad_v2_scores(
    predictions: Mapping[str, str],
    references: Mapping[str, Iterable[str]],
    no_answer: Mapping[str, float],
    no_answer_threshold: float = 1.0,
) -> dict[str, float]:
    """Return the scores of the official script of v2.0, from answers, "" for none, and correct answers by question id.

    Args:
        no_answer: Question id -> the model's score of "no answer", on any scale.
        no_answer_threshold: If `no_answer` is above it, the model's answer counts as "".

    Returns:
        "exact" and "f1" in percent and "total"; the same for the questions with ("HasAns_...") and without an answer
        ("NoAns_..."), if there are any; and "best_exact", "best_f1" with "best_exact_thresh", "best_f1_thresh": the
        best score that a threshold on `no_answer` gives, and that threshold.
    """
    has_answer = {key: bool(answers) for key, answers in references.items()}
    scores: dict[str, dict[str, float]] = {"exact": {}, "f1": {}}
    for key, answers in references.items():
        # An answer of only articles and punctuation does not count.
        answers = [answer for answer in answers if normalize_answer(answer)] or [""]
        scores["exact"][key] = max(exact_match(predictions[key], answer) for answer in answers)
        scores["f1"][key] = max(f1_score(predictions[key], answer) for answer in answers)

    results: dict[str, float] = {}
    for prefix, kind in (("", (True, False)), ("HasAns_", (True,)), ("NoAns_", (False,))):
        keys = [key for key in references if has_answer[key] in kind]
        for name in scores if keys else ():
            # Above the threshold, the answer counts as "".
            final = (not has_answer[k] if no_answer[k] > no_answer_threshold else scores[name][k] for k in keys)
            results |= {f"{prefix}{name}": 100 * sum(final) / len(keys), f"{prefix}total": len(keys)}
    for name in scores:
        # The search starts with no question answered: those without an answer are correct.
        score = best = float(len(references) - sum(has_answer.values()))
        threshold = 0.0
        for key in sorted(references, key=no_answer.__getitem__):
            # A question without an answer stays correct if the prediction is empty.
            score += scores[name][key] if has_answer[key] else -bool(predictions[key])
            if score > best:
                best, threshold = score, no_answer[key]
        results |= {f"best_{name}": 100 * best / len(references), f"best_{name}_thresh": threshold}
    return results


def normalize_answer(text: str) -> str:
    """Return the text in lower case, without punctuation or the articles a, an and the, and with single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact_match(prediction: str, answer: str) -> int:
    """Return 1 if both are the same once normalized, else 0."""
    return int(normalize_answer(prediction) == normalize_answer(answer))


def f1_score(prediction: str, answer: str) -> float:
    """Return F1 over the words of two answers, as in v2.0: 1 for two empty ones."""
    if not normalize_answer(prediction) or not normalize_answer(answer):
        return float(exact_match(prediction, answer))
    return _overlap(prediction, answer)


def _overlap(prediction: str, answer: str) -> float:
    """Return F1 over the words of two answers, as in v1.1: 0 for two empty ones."""
    predicted, correct = normalize_answer(prediction).split(), normalize_answer(answer).split()
    common = sum((Counter(predicted) & Counter(correct)).values())
    # 2PR / (P + R), with precision P and recall R over the words.
    return 2 * common / (len(predicted) + len(correct)) if common else 0.0
