"""What to train, from which start, and how to score it: decided here, from facts alone, before any work is done."""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ..data.labels import ONE_CLASS, REGRESSION
from ..errors import InputError

if TYPE_CHECKING:
    from .classifier import Classifier

# Only the classifier is trained, on the embeddings of the frozen encoder; all weights are trained, from such a
# classifier; or all weights are trained, from a new one.
FROZEN, FITTED, NEW = "frozen", "fitted", "new"
FOLDS = 5
# From so many rows on, fine-tuning of an encoder is tried on a held-out part (docs/log/classify.md).
MIN_COMPARED_ROWS = {"text": 2000, "picture": 2000}
# With fewer rows in the typical class, a cross-validation says nothing: with one row each, its score is 0.
MIN_CLASS_ROWS = 4
# Flags that only fine-tuning reads.
FINE_TUNING_FLAGS = ("num_train_epochs", "max_steps", "learning_rate")


@dataclass(frozen=True)
class Facts:
    """What the plan depends on.

    Attributes:
        kind: "text" or "picture".
        has_embeddings: Whether the checkpoint has trained embeddings of complete texts or pictures.
        is_own: Whether the model is a gMLP or aMLP, which starts with a higher learning rate than a BERT or ViT.
        labels: [N], class ids or numbers, or [N, classes] with 1 for each class of a row.
        validation_rows: Number of rows in data for validation.
    """

    kind: str
    has_embeddings: bool
    is_own: bool
    problem_type: str
    labels: np.ndarray
    validation_rows: int = 0

    @property
    def class_rows(self) -> float:
        """The number of rows in the typical class (the median); of numbers, a fifth of all rows."""
        if self.problem_type == REGRESSION:
            return len(self.labels) / FOLDS
        counts = self.labels.sum(0) if self.labels.ndim > 1 else np.bincount(self.labels)
        return float(np.median(counts[counts > 0]))


@dataclass(frozen=True)
class Plan:
    """How a classifier is trained and scored.

    Attributes:
        training: `FROZEN`, `FITTED` or `NEW`.
        compare: Whether `FITTED` is kept only if it is better than `FROZEN` on held-out rows.
        folds: Folds of a cross-validation, which scores all rows; 0 for none.
        held_out: Fraction of each class that is held out of fine-tuning, for scores and, from a `NEW` classifier, to
            choose the best of ten evaluations.
        num_train_epochs, min_steps, max_steps: The length of fine-tuning: `max_steps` if above 0, else the epochs, but
            at least `min_steps`.
        notes: What a default or a mode decided, a line each.
    """

    training: str
    compare: bool = False
    folds: int = 0
    held_out: float = 0.0
    num_train_epochs: float = 4.0
    min_steps: int = 300
    max_steps: int = -1
    learning_rate: float = 1.5e-3
    notes: tuple[str, ...] = field(default=(), compare=False)


def make_plan(facts: Facts, options: "Classifier") -> Plan:
    """Return the plan for these facts and a user's options, those of `Classifier`; None leaves a choice to the plan.

    Raises:
        InputError: If an option is impossible, or would have no effect.
    """
    rows, notes = len(facts.labels), []
    if options.fine_tune is False and not facts.has_embeddings:
        raise InputError("Without --fine_tune, only an encoder with trained embeddings can be used: leave it out.")
    if options.class_weights and facts.problem_type == REGRESSION:
        raise InputError("--class_weights is for classes, and the labels are numbers: leave it out.")
    frozen = facts.has_embeddings and not options.fine_tune
    compare = frozen and options.fine_tune is None and rows >= MIN_COMPARED_ROWS[facts.kind]
    typed = [f"--{name}" for name in FINE_TUNING_FLAGS if getattr(options, name) is not None]
    if frozen and not compare and typed:
        raise InputError(f"{typed[0]} has no effect on a frozen encoder: leave it out, or pass --fine_tune true.")
    can_score = facts.class_rows >= MIN_CLASS_ROWS
    if not can_score and options.cross_validation:
        raise InputError(f"--cross_validation needs {MIN_CLASS_ROWS} rows in the typical class: leave it out.")
    if frozen and not compare:
        notes.append(f"All {rows} rows train a classifier on frozen embeddings (--fine_tune true: train all weights).")
        folds = FOLDS if options.cross_validation is None else options.cross_validation
        return Plan(FROZEN, folds=folds if can_score else 0, notes=tuple(notes))
    training = FITTED if facts.has_embeddings else NEW
    if compare:
        notes.append(f"{rows} rows are enough to try fine-tuning, on a held-out part (--fine_tune false: do not).")
    else:
        start = "a classifier on frozen embeddings" if training == FITTED else "a new classifier"
        notes.append(f"All weights are trained, from {start}.")
    # A class with few rows keeps them for training.
    held_out = 0.1 if not facts.validation_rows and (can_score or training == NEW) else 0.0
    # Starting from a fitted classifier takes less training, and the encoder keeps more of what it learned.
    rate, min_steps = (1.5e-3, 300) if facts.is_own else (5e-5, 300)
    if training == FITTED and facts.kind == "text":
        rate, min_steps = rate / 2, min_steps // 5
    if facts.kind == "picture":
        rate, epochs, min_steps = (1e-3 if facts.is_own else 5e-5), 30.0, 0
    else:
        epochs = 4.0
    return Plan(
        training,
        compare=compare,
        folds=options.cross_validation or 0,
        held_out=held_out,
        num_train_epochs=epochs if options.num_train_epochs is None else options.num_train_epochs,
        min_steps=min_steps if options.num_train_epochs is None else 0,
        max_steps=-1 if options.max_steps is None else options.max_steps,
        learning_rate=rate if options.learning_rate is None else options.learning_rate,
        notes=tuple(notes),
    )


def fold_numbers(labels: np.ndarray, groups: np.ndarray, folds: int, seed: int = 0) -> np.ndarray:
    """Return the fold [N] of each row, from 0: equal rows in the same fold, and classes or numbers spread evenly.

    Args:
        labels: [N] class ids or numbers, or [N, classes].
        groups: [N], equal for equal rows, from 0.
    """
    first = np.unique(groups, return_index=True)[1]
    order = np.random.default_rng(seed).permutation(len(first))
    order = np.array(sorted(order, key=lambda group: labels[first[group]].tolist()))
    numbers = np.empty(len(first), dtype=int)
    numbers[order] = np.arange(len(first)) % folds
    return numbers[groups]


def held_out_rows(labels: np.ndarray, groups: np.ndarray, fraction: float, seed: int = 0) -> np.ndarray:
    """Return whether each row [N] is held out: the same fraction of each class, and equal rows on the same side.

    A class without two different rows keeps them for training.
    """
    folds = round(1 / fraction)
    held_out = fold_numbers(labels, groups, folds, seed) == folds // 2
    if labels.ndim == 1 and labels.dtype.kind == "i":
        different = Counter(label for label, _ in {*zip(labels.tolist(), groups.tolist())})
        held_out &= np.array([different[label] > 1 for label in labels.tolist()])
    return held_out


def group_numbers(keys: Sequence[Hashable]) -> np.ndarray:
    """Return a number [N] from 0 for each row, the same for equal keys."""
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return np.array([numbers[key] for key in keys])


def data_notes(names: Sequence[str], labels: np.ndarray, groups: np.ndarray, problem_type: str) -> list[str]:
    """Return a line for each kind of rows or classes that make scores look better or worse than they are.

    Raises:
        InputError: If every row has a class of its own.
    """
    notes, copies = [], len(groups) - len(np.unique(groups))
    if copies:
        notes.append(f"{copies} rows are copies of others; copies stay together in each split of the rows.")
        rows = {*zip(groups.tolist(), map(str, labels.tolist()))}
        if different := len(rows) - len(np.unique(groups)):
            notes.append(f"{different} of the copies have another label than the first of these rows.")
    if problem_type == REGRESSION:
        return notes
    counts = labels.sum(0) if labels.ndim > 1 else np.bincount(labels, minlength=len(names))
    if problem_type == ONE_CLASS and len(labels) > 9 and (counts > 0).sum() == len(labels):
        raise InputError("Every row has a label of its own: are the columns of text and label swapped?")
    if single := [name for name, count in zip(names, counts) if count == 1]:
        notes.append(f"{len(single)} classes have only one row: {', '.join(single[:5])}.")
    twins = Counter(_plain(name) for name in names)
    if alike := [name for name in names if twins[_plain(name)] > 1]:
        notes.append(f"Classes that differ only in case, spaces or Unicode form: {', '.join(map(repr, alike[:6]))}.")
    return notes


def _plain(name: str) -> str:
    import unicodedata

    return " ".join(unicodedata.normalize("NFKC", name).casefold().split())
