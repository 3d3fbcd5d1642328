"""What to train, from which start, and how to score it: decided here, from facts alone, before any work is done."""

import unicodedata
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..data.labels import CLASSES, ONE_CLASS, REGRESSION, Labels
from ..errors import InputError, listed

if TYPE_CHECKING:
    from .classifier import Classifier

# What is trained.
FROZEN = "a classifier on frozen embeddings"
FITTED = "all weights, from a classifier on frozen embeddings"
NEW = "all weights, from a new classifier"
FOLDS = 5
# From so many rows on, fine-tuning of an encoder is tried on a held-out part (docs/log/classify.md).
MIN_COMPARED_ROWS = 2000
# With fewer rows in the typical class, a cross-validation says nothing: with one row each, its score is 0.
MIN_CLASS_ROWS = 4
# Flags that only fine-tuning reads.
FINE_TUNING_FLAGS = ("num_train_epochs", "max_steps", "learning_rate")


class Facts(NamedTuple):
    """What the plan depends on."""

    kind: str  # "text" or "picture"
    # Whether the checkpoint has trained embeddings of complete texts or pictures.
    has_embeddings: bool
    # Whether the model is a gMLP or aMLP, which starts with a higher learning rate than a BERT or ViT.
    is_own: bool
    problem_type: str
    # [N] class ids or numbers, or [N, classes] with 1 for each class, of rows that differ from each other.
    labels: np.ndarray
    has_validation: bool = False


@dataclass(frozen=True)
class Plan:
    """How a classifier is trained and scored."""

    # FROZEN, FITTED or NEW.
    training: str
    # The plan to carry out instead, unless this one is better on the held-out rows.
    otherwise: "Plan | None" = None
    # Folds of a cross-validation, which scores all rows; 0 for none.
    folds: int = 0
    # Fraction of each class that is held out of fine-tuning, for scores, to compare it with `otherwise` and, from a new
    # classifier, to choose the best of ten evaluations.
    held_out: float = 0.0
    # The length of fine-tuning: `max_steps` if above 0, else the epochs, but at least `min_steps`.
    num_train_epochs: float = 4.0
    min_steps: int = 300
    max_steps: int = -1
    learning_rate: float = 1.5e-3

    def hyperparameters(self) -> dict[str, object]:
        """Return what was trained, and the settings of fine-tuning, for the model card."""
        names = ("training", "learning_rate", "num_train_epochs", "min_steps", "max_steps", "held_out")
        return {name: getattr(self, name) for name in names[: 1 if self.training == FROZEN else None]}

    def __str__(self) -> str:
        if self.otherwise is not None:
            return "There are enough rows to try fine-tuning, on a held-out part (--fine_tune false: do not)."
        hint = " (--fine_tune true: all weights)" if self.training == FROZEN else ""
        return f"This trains {self.training}{hint}."


def make_plan(facts: Facts, options: "Classifier") -> Plan:
    """Return the plan for these facts and a user's options, those of `Classifier`; None leaves a choice to the plan.

    Raises:
        InputError: If an option is impossible, or would have no effect.
    """
    can_score = rows_of_typical_class(facts) >= MIN_CLASS_ROWS
    is_frozen = facts.has_embeddings and not options.fine_tune
    # The errors of numbers cannot be compared as the errors of classes are.
    compare = is_frozen and options.fine_tune is None and can_score and facts.problem_type != REGRESSION
    compare = compare and len(facts.labels) >= MIN_COMPARED_ROWS
    check_options(facts, options, is_frozen and not compare, can_score)
    folds = FOLDS if options.cross_validation is None else options.cross_validation
    frozen = Plan(FROZEN, folds=folds if can_score and not facts.has_validation else 0)
    if is_frozen and not compare:
        return frozen
    rate, epochs, min_steps = (1.5e-3 if facts.is_own else 5e-5), 4.0, 300
    if facts.kind == "picture":
        rate, epochs, min_steps = (1e-3 if facts.is_own else 5e-5), 30.0, 0
    elif facts.has_embeddings:
        # Starting from a fitted classifier takes less training, and the encoder keeps more of what it learned.
        rate, min_steps = rate / 2, 60
    is_scored = facts.has_validation or options.cross_validation
    # A class with few rows keeps them for training.
    holds_out = can_score and (compare or not facts.has_embeddings or not is_scored)
    return Plan(
        FITTED if facts.has_embeddings else NEW,
        otherwise=frozen if compare else None,
        folds=options.cross_validation or 0,
        held_out=0.1 if holds_out else 0.0,
        num_train_epochs=options.num_train_epochs or epochs,
        min_steps=0 if options.num_train_epochs else min_steps,
        max_steps=options.max_steps or -1,
        learning_rate=options.learning_rate or rate,
    )


def rows_of_typical_class(facts: Facts) -> float:
    """Return the number of rows in the typical class (the median); of numbers, a fifth of all rows."""
    if facts.problem_type == REGRESSION:
        return len(facts.labels) / FOLDS
    counts = facts.labels.sum(0) if facts.labels.ndim > 1 else np.bincount(facts.labels)
    return float(np.median(counts[counts > 0]))


def check_options(facts: Facts, options: "Classifier", is_frozen: bool, can_score: bool) -> None:
    """Raise an InputError for an option that is impossible, or would have no effect."""
    for name in ("batch_size", *FINE_TUNING_FLAGS):
        value = getattr(options, name)
        # NaN is not above 0 either.
        if value is not None and not value > 0:
            raise InputError(f"--{name} must be above 0, got {value}.")
        if value is not None and is_frozen and name in FINE_TUNING_FLAGS:
            raise InputError(f"--{name} has no effect on a frozen encoder: leave it out, or pass --fine_tune true.")
    if (options.random_state or 0) < 0:
        raise InputError(f"--seed must be at least 0, got {options.random_state}.")
    if options.max_steps and options.num_train_epochs:
        raise InputError("--max_steps and --num_train_epochs exclude each other: leave one out.")
    if options.fine_tune is False and not facts.has_embeddings:
        raise InputError("--fine_tune false needs a model with trained embeddings, unlike this one: leave it out.")
    weighted = (ONE_CLASS, CLASSES) if is_frozen else (ONE_CLASS,)
    if options.class_weights and facts.problem_type not in weighted:
        raise InputError("--class_weights is for one class per row (on a frozen encoder, also several): leave it out.")
    folds, rows = options.cross_validation or 0, len(facts.labels)
    if folds and not (can_score and 2 <= folds <= rows):
        raise InputError(
            f"--cross_validation must be 0, or from 2 to the number of rows ({rows}) with {MIN_CLASS_ROWS} rows in the "
            f"typical class, got {folds}."
        )
    if folds and facts.has_validation:
        raise InputError("--cross_validation and --validation_data exclude each other: leave one out.")


def fold_numbers(labels: np.ndarray, groups: np.ndarray, folds: int, seed: int = 0) -> np.ndarray:
    """Return the fold [N] of each row, from 0: rows of a group in the same fold, and labels spread evenly."""
    first = np.unique(groups, return_index=True)[1]
    order = np.random.default_rng(seed).permutation(len(first))
    order = np.array(sorted(order, key=lambda group: labels[first[group]].tolist()))
    numbers = np.empty(len(first), dtype=int)
    numbers[order] = np.arange(len(first)) % folds
    return numbers[groups]


def held_out_rows(labels: np.ndarray, groups: np.ndarray, fraction: float, seed: int = 0) -> np.ndarray:
    """Return whether each row [N] is held out: the same fraction of each class, and rows of a group on the same side. A
    class without two different rows keeps them for training.
    """
    folds = round(1 / fraction)
    held_out = fold_numbers(labels, groups, folds, seed) == folds // 2
    if labels.ndim == 1 and labels.dtype.kind == "i":
        different = Counter(label for label, _ in {*zip(labels.tolist(), groups.tolist())})
        held_out &= np.array([different[label] > 1 for label in labels.tolist()])
    return held_out


def data_notes(labels: Labels, ids: np.ndarray, groups: np.ndarray, kind: str = "text") -> list[str]:
    """Return a line for each kind of rows or classes that make scores look better or worse than they are, from class
    ids as in `Facts`, and numbers [N] from 0, the same for equal rows.
    """
    notes, copies = [f"Each row has {labels}."], len(groups) - len(np.unique(groups))
    if copies:
        notes.append(f"{copies} rows are copies of others; copies stay together in each split of the rows.")
    different = Counter(group for group, _ in {*zip(groups.tolist(), map(str, ids.tolist()))})
    if mixed := sum(count > 1 for count in different.values()):
        notes.append(f"{mixed} rows have copies with another label.")
    if labels.names is None:
        return notes
    counts = ids.sum(0) if ids.ndim > 1 else np.bincount(ids)
    single = [name for name, count in zip(labels.names, counts) if count == 1]
    if len(single) == len(ids):
        advice = "are the columns of text and label swapped?" if kind == "text" else "add pictures to each class."
        notes.append(f"Every row has a class of its own: {advice}")
    elif single:
        notes.append(f"{len(single)} classes have only one row: {listed(single)}.")
    plain = [" ".join(unicodedata.normalize("NFKC", name).casefold().split()) for name in labels.names]
    twins = Counter(plain)
    if alike := [repr(name) for name, form in zip(labels.names, plain) if twins[form] > 1]:
        notes.append(f"Classes that differ only in case, spaces or Unicode form: {listed(alike)}.")
    return notes
