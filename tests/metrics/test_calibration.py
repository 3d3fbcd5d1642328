import numpy as np
import pytest
from scipy.special import softmax
from scipy.stats import binomtest, pearsonr

from hf_gmlp.metrics.calibration import (
    CROSS_VALIDATED,
    accuracy_interval,
    calibrate,
    calibration_error,
    compare,
    correlation_in_words,
    fit_temperature,
)


def sample(seed: int, rows: int, classes: int = 4, temperature: float = 1.0):
    """Return logits that are `temperature` times those of the true probabilities, and labels from these."""
    rng = np.random.default_rng(seed)
    logits = 2 * rng.standard_normal((rows, classes))
    labels = [rng.choice(classes, p=row) for row in softmax(logits, axis=1)]
    return temperature * logits, np.array(labels)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 5.0])
def test_the_temperature_of_the_logits_is_found(temperature):
    logits, labels = sample(0, 4000, temperature=temperature)
    assert fit_temperature(logits, labels) == pytest.approx(temperature, rel=0.1)


def test_rows_that_are_all_right_do_not_make_the_probabilities_certain():
    labels = np.arange(200) % 2
    logits = 3.0 * np.eye(2)[labels]
    confidence = softmax(logits / fit_temperature(logits, labels), axis=1).max(axis=1)
    assert confidence.max() == pytest.approx(201 / 202, abs=1e-3)


def test_the_calibration_error_is_that_of_a_loop_over_bins():
    logits, labels = sample(1, 300, temperature=3.0)
    probabilities = softmax(logits, axis=1)
    right, confidence, expected = probabilities.argmax(axis=1) == labels, probabilities.max(axis=1), 0.0
    for low in np.arange(10) / 10:
        rows = (low <= confidence) & (confidence < low + 0.1)
        expected += abs(right[rows].sum() - confidence[rows].sum()) / 300
    assert calibration_error(logits, labels) == pytest.approx(expected)


def test_calibration_lowers_the_error_on_other_rows():
    logits, labels = sample(2, 3000, temperature=4.0)
    temperature, error_before, error_after = calibrate(logits[:300], labels[:300])
    assert error_before > 0.15 > 0.1 > error_after
    assert calibration_error(logits[300:] / temperature, labels[300:]) < 0.05


def test_the_interval_of_an_accuracy_is_that_of_wilson():
    assert accuracy_interval(68, 100) == pytest.approx(binomtest(68, 100).proportion_ci(method="wilson"))
    # Scores of a cross-validation have 2.25 times the variance.
    wider, fewer = accuracy_interval(68, 100, CROSS_VALIDATED), accuracy_interval(30, 44)
    assert wider == pytest.approx(fewer, abs=0.01)
    # Two rows say nearly nothing.
    assert accuracy_interval(2, 2) == pytest.approx((0.342, 1.0), abs=1e-3)


def test_a_paired_difference_is_named_only_if_it_is_more_than_chance():
    model, baseline = np.arange(250) < 171, np.arange(250) < 186
    assert str(compare(model, baseline)).startswith("the baseline is better by 6.0 points")
    assert str(compare(baseline, model)).startswith("the model is better by 6.0 points")
    # The same accuracies, but errors on different rows.
    for other in (np.roll(model, 15), model):
        assert "may be chance" in str(compare(model, other))
    few = np.arange(250) < 178
    assert "better" in str(compare(few, model)) and "may be chance" in str(compare(few, model, CROSS_VALIDATED))


def test_intervals_of_differences_hold_the_true_one_in_nineteen_of_twenty_samples():
    rng, held = np.random.default_rng(0), 0
    for _ in range(400):
        baseline = rng.random(120) < 0.7
        model = np.where(rng.random(120) < 0.8, baseline, rng.random(120) < 0.9)
        comparison = compare(model, baseline)
        held += comparison.low <= 100 * 0.2 * (0.9 - 0.7) <= comparison.high
    assert held / 400 > 0.92


@pytest.mark.parametrize("inflation", [1.0, CROSS_VALIDATED, 40.0])
def test_no_interval_leaves_the_possible_values(inflation):
    for rows in (1, 2, 3, 20):
        for right in {0, 1, rows - 1, rows}:
            low, high = accuracy_interval(right, rows, inflation)
            assert 0 <= low < high <= 1 and low - 1e-9 <= right / rows <= high + 1e-9
            comparison = compare(np.arange(rows) < right, np.arange(rows) >= right, inflation)
            assert -100 <= comparison.low <= comparison.high <= 100


def test_the_interval_of_a_correlation_is_that_of_fisher():
    values, numbers = np.random.default_rng(0).standard_normal((2, 30))
    low, high = pearsonr(values, numbers).confidence_interval()
    expected = f"{pearsonr(values, numbers)[0]:.3f} (95 % interval {low:.3f} to {high:.3f}; 30 rows)"
    assert correlation_in_words(values, numbers) == expected
    # Copies of all rows make the interval no narrower.
    copies = correlation_in_words(np.tile(values, 4), np.tile(numbers, 4), inflation=4)
    assert copies == expected.replace("30 rows", "120 rows")
    assert "interval" not in correlation_in_words(values[:3], numbers[:3])
    assert correlation_in_words(np.ones(30), numbers).startswith("undefined")
