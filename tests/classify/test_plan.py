"""What is trained and how it is scored, as a function of facts and options."""

import numpy as np
import pytest

from hf_gmlp import Classifier
from hf_gmlp.classify.plan import (
    FITTED,
    FROZEN,
    NEW,
    Facts,
    data_notes,
    fold_numbers,
    held_out_rows,
    make_plan,
)
from hf_gmlp.data.labels import CLASSES, ONE_CLASS, REGRESSION, Labels
from hf_gmlp.errors import InputError


def facts_of(rows=40, kind="text", has_embeddings=True, is_own=True, problem_type=ONE_CLASS, validation=False):
    labels = {
        ONE_CLASS: np.arange(rows) % 2,
        CLASSES: np.eye(2)[np.arange(rows) % 2],
        REGRESSION: np.linspace(0, 1, rows),
    }[problem_type]
    return Facts(kind, has_embeddings, is_own, problem_type, labels, validation)


def plan_of(options, **facts):
    return make_plan(facts_of(**facts), Classifier("model", **options))


BERT = {"has_embeddings": False, "is_own": False}


@pytest.mark.parametrize(
    ("facts", "options", "expected"),
    [
        ({}, {}, {"training": FROZEN, "folds": 5, "otherwise": None}),
        ({}, {"cross_validation": 0}, {"training": FROZEN, "folds": 0}),
        ({}, {"cross_validation": 8}, {"training": FROZEN, "folds": 8}),
        ({"validation": True}, {}, {"training": FROZEN, "folds": 0}),
        ({"rows": 6}, {}, {"training": FROZEN, "folds": 0}),
        ({"rows": 6}, {"fine_tune": True}, {"training": FITTED, "folds": 0, "held_out": 0.0}),
        ({"problem_type": REGRESSION, "rows": 19}, {}, {"training": FROZEN, "folds": 0}),
        ({"problem_type": REGRESSION, "rows": 20}, {}, {"training": FROZEN, "folds": 5}),
        ({"problem_type": CLASSES}, {}, {"training": FROZEN, "folds": 5}),
        # Fine-tuning of an encoder, if it is asked for.
        ({}, {"fine_tune": True}, {"training": FITTED, "held_out": 0.1, "learning_rate": 7.5e-4, "min_steps": 60}),
        ({}, {"fine_tune": True, "cross_validation": 3}, {"training": FITTED, "folds": 3, "held_out": 0.0}),
        ({"validation": True}, {"fine_tune": True}, {"training": FITTED, "held_out": 0.0, "folds": 0}),
        ({"kind": "picture"}, {"fine_tune": True}, {"training": FITTED, "learning_rate": 1e-3, "min_steps": 0}),
        ({"kind": "picture", "is_own": False}, {"fine_tune": True}, {"learning_rate": 5e-5, "num_train_epochs": 30.0}),
        # Other text models, of which the best of ten evaluations is kept.
        (BERT, {}, {"training": NEW, "held_out": 0.1, "learning_rate": 5e-5, "min_steps": 300, "folds": 0}),
        (BERT | {"is_own": True}, {}, {"training": NEW, "learning_rate": 1.5e-3}),
        (BERT | {"validation": True}, {}, {"training": NEW, "held_out": 0.1}),
        (BERT | {"rows": 6}, {}, {"training": NEW, "held_out": 0.0}),
        # What is typed is kept.
        (BERT, {"num_train_epochs": 2}, {"num_train_epochs": 2, "min_steps": 0, "max_steps": -1}),
        (BERT, {"max_steps": 7, "learning_rate": 1e-4}, {"max_steps": 7, "learning_rate": 1e-4}),
        # With many rows, fine-tuning is tried.
        ({"rows": 2000}, {"fine_tune": False}, {"training": FROZEN, "otherwise": None}),
        ({"rows": 2000}, {"fine_tune": True}, {"training": FITTED, "otherwise": None}),
        ({"rows": 2000, "problem_type": REGRESSION}, {}, {"training": FROZEN}),
        ({"rows": 1999}, {}, {"training": FROZEN}),
    ],
)
def test_the_plan_follows_from_facts_and_options(facts, options, expected):
    plan = plan_of(options, **facts)
    assert {name: getattr(plan, name) for name in expected} == expected and str(plan)


def test_many_rows_are_a_reason_to_compare():
    plan = plan_of({"learning_rate": 1e-4}, rows=2000, validation=True)
    assert (plan.training, plan.held_out, plan.learning_rate) == (FITTED, 0.1, 1e-4)
    assert plan.otherwise.training == FROZEN and plan.otherwise.folds == 0
    assert plan_of({}, rows=2000).otherwise.folds == 5
    # Classes of two rows cannot be compared.
    facts = Facts("text", True, True, ONE_CLASS, np.arange(2000) // 2)
    assert make_plan(facts, Classifier("model")).training == FROZEN


@pytest.mark.parametrize(
    ("facts", "options", "message"),
    [
        ({}, {"learning_rate": 1e-4}, "--learning_rate has no effect on a frozen encoder"),
        ({}, {"max_steps": 5}, "--max_steps has no effect"),
        ({}, {"num_train_epochs": 5, "fine_tune": False}, "--num_train_epochs has no effect"),
        (BERT, {"max_steps": 5, "num_train_epochs": 2}, "exclude each other"),
        (BERT, {"max_steps": 0}, "--max_steps must be above 0, got 0"),
        (BERT, {"learning_rate": -1.0}, "--learning_rate must be above 0"),
        (BERT, {"learning_rate": float("nan")}, "--learning_rate must be above 0"),
        ({}, {"batch_size": 0}, "--batch_size must be above 0"),
        ({}, {"random_state": -1}, "--seed must be at least 0"),
        (BERT, {"fine_tune": False}, "--fine_tune false needs a model with trained embeddings"),
        ({"problem_type": REGRESSION}, {"class_weights": "balanced"}, "--class_weights"),
        ({"problem_type": CLASSES}, {"class_weights": "balanced", "fine_tune": True}, "--class_weights"),
        ({}, {"cross_validation": 1}, "--cross_validation must be 0, or from 2"),
        ({}, {"cross_validation": 41}, "--cross_validation must be 0, or from 2"),
        ({"rows": 6}, {"cross_validation": 3}, "--cross_validation must be 0, .* 4 rows in the typical class"),
        ({"validation": True}, {"cross_validation": 3}, "exclude each other"),
    ],
)
def test_options_without_effect_are_refused(facts, options, message):
    with pytest.raises(InputError, match=message):
        plan_of(options, **facts)


def test_folds_keep_equal_rows_together_and_spread_the_classes():
    rng = np.random.default_rng(0)
    groups = np.unique(rng.integers(0, 50, 120), return_inverse=True)[1]
    labels = groups % 3
    folds = fold_numbers(labels, groups, 5)
    assert all(len({*folds[groups == group]}) == 1 for group in groups)
    counts = [[len({*groups[(folds == fold) & (labels == name)]}) for name in range(3)] for fold in range(5)]
    assert np.ptp(counts, axis=0).max() <= 1
    np.testing.assert_array_equal(folds, fold_numbers(labels, groups, 5))
    assert (folds != fold_numbers(labels, groups, 5, seed=1)).any()


def test_a_hold_out_keeps_equal_rows_on_one_side():
    groups = np.repeat(np.arange(40), 3)
    labels = groups % 2
    held_out = held_out_rows(labels, groups, 0.1)
    assert held_out.reshape(40, 3).all(axis=1).sum() == held_out.sum() / 3 == 4
    assert [(labels[held_out] == name).sum() for name in range(2)] == [6, 6]
    # A class whose rows are all equal is left in the training data.
    labels[groups == np.flatnonzero(held_out)[0] // 3] = 2
    assert not (held_out_rows(labels, groups, 0.1) & (labels == 2)).any()


@pytest.mark.parametrize(
    ("names", "ids", "groups", "expected"),
    [
        ("ab", [0, 0, 1, 1], [0, 1, 2, 3], []),
        ("ab", [0, 0, 1, 1], [0, 0, 1, 1], ["2 rows are copies"]),
        ("ab", [0, 1, 1, 0], [0, 0, 1, 1], ["2 rows are copies", "2 rows have copies with another label"]),
        ("abc", [0, 0, 1, 2], [0, 1, 2, 3], ["2 classes have only one row: b, c"]),
        ("ab", [0, 1], [0, 1], ["columns of text and label swapped"]),
        (["Billing", "billing", "other"], [0, 1, 2] * 2, range(6), ["'Billing', 'billing'"]),
        (["\ufb01x", "fix "], [0, 1] * 2, range(4), ["Unicode form"]),
        (None, [0.5, 0.5], [0, 0], ["1 rows are copies"]),
    ],
)
def test_rows_and_classes_that_mislead_are_named(names, ids, groups, expected):
    labels = Labels(names and list(names), ONE_CLASS if names else REGRESSION)
    first, *notes = data_notes(labels, np.array(ids), np.array(groups))
    assert first == f"Each row has {labels}." and len(notes) == len(expected)
    assert all(text in note for text, note in zip(expected, notes))


def test_photos_have_no_columns():
    (_, note) = data_notes(Labels(["a", "b"], ONE_CLASS), np.arange(2), np.arange(2), "picture")
    assert "class of its own" in note and "column" not in note


def test_copies_are_counted_for_several_classes_too():
    notes = data_notes(Labels(["a", "b"], CLASSES), np.eye(2)[[0, 1, 0, 1]], np.array([0, 1, 0, 0]))
    assert any("1 rows have copies with another label" in note for note in notes)
