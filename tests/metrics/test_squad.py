import random

import pytest

from hf_gmlp.metrics.squad import exact_match, f1_score, normalize_answer, squad_scores, squad_v2_scores

WORDS = ["the", "The", "a", "An", "cat", "Cat.", "dog", "dog's", "-", "U.S.", "1,000", "new", "York", "é", "\u00a0", ""]


def case(seed, count):
    """Questions with answers full of articles, punctuation and spaces, and correct, similar and wrong predictions."""
    rng = random.Random(seed)

    def text(longest):
        return " ".join(rng.choice(WORDS) for _ in range(rng.randint(0, longest)))

    references = {f"q{i}": [text(3) or "x" for _ in range(rng.randint(0, 3))] for i in range(count)}
    predictions = {}
    for key, answers in references.items():
        luck = rng.random()
        if luck < 0.25:
            predictions[key] = ""
        elif answers and luck < 0.7:
            predictions[key] = rng.choice(answers) + (" " + text(1) if rng.random() < 0.4 else "")
        else:
            predictions[key] = text(3)
    return predictions, references, {key: round(rng.gauss(0, 2), 1) for key in references}


V1 = ("exact_match", "f1")
V2 = (
    "exact f1 total HasAns_exact HasAns_f1 HasAns_total NoAns_exact NoAns_f1 NoAns_total "
    "best_exact best_exact_thresh best_f1 best_f1_thresh"
).split()
# The scores of v1.1, of v2.0, and of v2.0 with a threshold, computed once by the official script of v1.1 (as in
# evaluate's metric "squad") and by transformers.data.metrics.squad_metrics.squad_evaluate of transformers 4.57.1.
GOLDEN = (
    "51.111111111 38.518518519",
    "40.0 42.222222222 60 37.777777778 40.740740741 45 46.666666667 46.666666667 15 40.0 0.0 42.222222222 0.0",
    "26.666666667 26.666666667 60 8.888888889 8.888888889 45 80.0 80.0 15 38.333333333 3.3 40.555555556 4.4",
)


def test_answers_are_normalized_and_scored_by_the_rules_of_squad():
    assert normalize_answer(" The  U.S. Army's\tA-team, an\u00a0era ") == "us armys ateam era"
    assert exact_match("The cat!", "cat") == 1 and exact_match("cats", "cat") == 0
    # Precision is 2/3 and recall 2/4, so F1 is 2 * (2/3 * 2/4) / (2/3 + 2/4).
    assert f1_score("big red dog", "red dog in town") == pytest.approx(4 / 7)
    # A repeated word counts as often as it occurs in both.
    assert f1_score("no no no", "no") == pytest.approx(1 / 2)
    assert f1_score("", "the") == 1 and f1_score("", "x") == f1_score("x", "") == 0


def test_versions_differ_on_answers_of_only_articles():
    assert squad_scores({"q": "an"}, {"q": ["the"]}) == {"exact_match": 100, "f1": 0}
    v2 = squad_v2_scores({"q": "an"}, {"q": ["the"]}, {"q": 0.0})
    assert (v2["exact"], v2["f1"], v2["HasAns_total"]) == (100, 100, 1)


def test_same_numbers_as_the_official_scripts():
    predictions, references, odds = case(seed=1, count=60)
    v1, v2, thresholded = (dict(zip(names, map(float, row.split()))) for names, row in zip((V1, V2, V2), GOLDEN))
    assert squad_scores(predictions, {key: value for key, value in references.items() if value}) == pytest.approx(v1)
    # Without no-answer odds, every answer is kept.
    assert squad_v2_scores(predictions, references, dict.fromkeys(predictions, 0.0)) == pytest.approx(v2)
    assert squad_v2_scores(predictions, references, odds, no_answer_threshold=-0.3) == pytest.approx(thresholded)
