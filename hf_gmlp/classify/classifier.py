"""`Classifier`, a scikit-learn estimator for texts and pictures."""

import copy
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas
import torch
import transformers
from scipy.special import expit, softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import r2_score
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted, column_or_1d
from transformers import PreTrainedModel

from ..cards import TASKS, model_card, write_card
from ..data.labels import CLASSES, ONE_CLASS, REGRESSION, Labels, find_labels, label_ids, label_names, set_labels
from ..errors import InputError
from ..loading import extend_context, open_config, open_model
from ..metrics.scores import predicted
from .inputs import Pictures, Texts, reads_pictures, run
from .plan import FROZEN, NEW, Facts, data_notes, make_plan
from .training import Training, apply_temperature

logger = logging.getLogger(__name__)


@dataclass(eq=False, repr=False)
class Classifier(ClassifierMixin, BaseEstimator):
    """Classify texts, pairs of texts or pictures, with few or many labeled rows.

    With a sentence encoder or an image model, a logistic regression on its frozen embeddings is trained, in seconds;
    with other text models or `fine_tune=True`, all weights. Labels are names or integers (one class per row), lists of
    them or vectors of 0 and 1 (several classes per row), or floats (numbers, by ridge regression).

    Example:
        classifier = Classifier("checkpoints/gmlp-mini-sentences").fit(["It works.", "It broke."], ["good", "bad"])
        classifier.predict(["It works well."])
        classifier.save("sorted")  # an ordinary checkpoint: pipeline("text-classification", "sorted")

    Args:
        model: A checkpoint: a folder or a name on the Hub.
        fine_tune: Whether to train all weights. By default only if the model has no trained embeddings, or if there are
            many rows and fine-tuning is better on a held-out part.
        max_seq_length: Maximum number of tokens of a text or pair; by default 512, or the model's n if it is smaller.
        cross_validation: Number of folds that score all rows, and on which the probabilities are calibrated; by default
            5 on frozen embeddings and 0 with fine-tuning.
        class_weights: "balanced" weights classes by the inverse of their number of rows.
        calibrate: Whether to divide the classifier by a temperature, where this makes the probabilities better.
        num_train_epochs, max_steps, learning_rate: Of fine-tuning; by default those of `Plan`.
        batch_size: Rows per step of fine-tuning, and at most as many at once in predictions.
        dtype: "float32", "bfloat16", or "auto": bfloat16 where the processor or GPU multiplies it fast.
        random_state: Seed of the folds and of fine-tuning.
        trust_remote_code: Whether to run code of the checkpoint. gMLPs do not need it.

    Attributes:
        classes_: The classes as they were passed to `fit`; absent for numbers.
        model_: The trained model, whose final layer is `classifier`.
        plan_: The `Plan` that was carried out.
        evaluation_: The `Evaluation`, what was predicted for rows that did not train; None if there were none.
    """

    model: str | Path = "checkpoints/gmlp-mini-sentences"
    fine_tune: bool | None = None
    max_seq_length: int | None = None
    cross_validation: int | None = None
    class_weights: Literal["balanced"] | None = None
    calibrate: bool = True
    num_train_epochs: float | None = None
    max_steps: int | None = None
    learning_rate: float | None = None
    batch_size: int = 32
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    random_state: int | None = 0
    trust_remote_code: bool = False

    # ---- Training ----

    def fit(self, X: Sequence, y: Sequence, sample_weight: None = None) -> "Classifier":
        """Train on texts, pairs of texts, PIL images or paths of pictures `X` with labels `y`.

        Raises:
            InputError: A ValueError that says which row, label or argument is wrong.
        """
        if sample_weight is not None:
            raise InputError("sample_weight is not supported: pass class_weights='balanced', or leave it out.")
        self.fit_in(None, X, y)
        return self

    def fit_in(
        self, folder: Path | None, X: Sequence, y: Sequence, validation: tuple[Sequence, Sequence] | None = None
    ) -> Training:
        """Train like `fit`, score the result on `validation` data instead of held-out rows, and return the rows.

        Args:
            folder: Where to write checkpoints, from which a run with equal options continues.
            validation: Texts or pictures and their labels.
        """
        options = {"trust_remote_code": self.trust_remote_code}
        self.config_ = config = open_config(self.model, **options)
        for name in {"hidden_dropout_prob", "attention_probs_dropout_prob"} & set(config.to_dict()):
            # Short training needs no dropout.
            setattr(config, name, 0.0)
        kind = Pictures if reads_pictures(config) else Texts
        self.inputs_ = inputs = kind(str(self.model), config, self.max_seq_length, **options)
        rows: list = inputs.check(X)
        y = _as_list(y)
        count = len(rows)
        if not rows or count != len(y):
            raise InputError(f"There are {count} texts or pictures and {len(y)} labels: pass as many of both.")
        self._set_labels(y)
        ids = label_ids(_names(y), self.labels_, "training")
        if validation is not None:
            scored: list = inputs.check(validation[0])
            files = [row["path"] for row in scored] if kind is Pictures else []
            ids += label_ids(_names(_as_list(validation[1])), self.labels_, "validation", files=files)
            rows += scored
        set_labels(config, self.labels_, inputs.head, train=True, new_classifier=True)
        labels, groups = np.array(ids), pandas.factorize(pandas.Series(inputs.keys(rows)))[0]
        # A sentence encoder is saved without a head, and its embeddings in a classifier have length 1. Those of other
        # text models are not trained.
        is_encoder = "GMLPModel" in (config.architectures or ()) or getattr(config, "normalize_pooled", False)
        is_own = config.model_type in ("gmlp", "gmlp_vision")
        # Copies of a row say nothing new.
        different = labels[np.unique(groups[:count], return_index=True)[1]]
        has_embeddings = inputs.kind == "picture" or is_encoder
        problem_type = self.labels_.problem_type
        facts = Facts(inputs.kind, has_embeddings, is_own, problem_type, different, validation is not None)
        plan = make_plan(facts, self)
        if is_own and plan.training != NEW:
            config.normalize_pooled = True
        encoded = inputs.encode(rows)
        notes = data_notes(self.labels_, labels[:count], groups[:count], inputs.kind)
        notes += [*inputs.notes(rows[:count], encoded[:count]), str(plan)]
        if shared := int(np.isin(groups[count:], groups[:count]).sum()):
            notes.append(f"{shared} rows of the validation data are in the training data too: their score is too high.")
        if plan.training == FROZEN and inputs.parts == 2:
            notes.append("A frozen model hardly compares the texts of a pair. For that, fine-tune a pretrained BERT.")
        for note in notes:
            logger.info(note)
        training = Training(self, rows, encoded, labels, groups, count, folder)
        self.model_, self.evaluation_, self.plan_ = training.run(plan)
        if self.evaluation_ is not None and self.calibrate:
            apply_temperature(self.model_, self.evaluation_)
        return training

    def new_model(self) -> PreTrainedModel:
        """Return the checkpoint with a classifier for the labels, which is new unless the checkpoint has one."""
        torch.manual_seed(self.random_state or 0)
        auto_class = getattr(transformers, f"AutoModel{self.inputs_.head}")
        options: dict[str, Any] = {"dtype": torch.float32, "trust_remote_code": self.trust_remote_code}
        options |= {"config": copy.deepcopy(self.config_), "new_head": True, "new_size": self.config_.num_labels}
        model = open_model(auto_class, self.model, **options)
        n = getattr(model.config, "max_position_embeddings", None) or math.inf
        if isinstance(self.inputs_, Texts) and self.inputs_.length > n:
            extend_context(model, self.inputs_.processing_class, self.inputs_.length)
        device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else "cpu"
        return model.to(device)

    def _set_labels(self, y: list) -> None:
        """Find out what the labels are, and keep the classes as they were passed: integers, say, instead of names."""
        self.has_vectors_ = _are_vectors(y)
        self.labels_ = find_labels(None, _names(y))
        if self.has_vectors_:
            # A class without rows keeps its position.
            self.classes_ = np.arange(len(y[0]))
            self.labels_ = Labels([str(number) for number in self.classes_], CLASSES)
        elif self.labels_.names is not None:
            items = [item for label in y for item in (label if isinstance(label, list) else [label])]
            originals = {str(item).strip(): item for item in items}
            self.classes_ = np.array([originals.get(name, name) for name in self.labels_.names])

    # ---- Use ----

    def _logits(self, X: Sequence) -> np.ndarray:
        """Return the logits [N, outputs] of texts or pictures."""
        check_is_fitted(self, "model_")
        rows = self.inputs_.check(X)
        return run(self.model_, self.inputs_, self.inputs_.encode(rows) if rows else [], self)

    def predict(self, X: Sequence) -> np.ndarray:
        """Return the class of each text or picture, its number, or the list of its classes, [N]; 0 and 1 for each
        class, [N, classes], if it was trained on such vectors.
        """
        logits, problem_type = self._logits(X), self.model_.config.problem_type
        values = predicted(logits, problem_type)
        if problem_type == REGRESSION or self.has_vectors_:
            return values
        if problem_type == ONE_CLASS:
            return self.classes_[values]
        results = np.empty(len(values), dtype=object)
        results[:] = [self.classes_[row.astype(bool)].tolist() for row in values]
        return results

    def predict_proba(self, X: Sequence) -> np.ndarray:
        """Return the probability of each class, [N, classes]; each on its own if a row may have several."""
        logits, problem_type = self._logits(X), self.model_.config.problem_type
        if problem_type == REGRESSION:
            raise InputError("The labels are numbers, which have no probabilities: call `predict`.")
        return softmax(logits, axis=1) if problem_type == ONE_CLASS else expit(logits)

    def score(self, X: Sequence, y: Sequence) -> float:
        """Return the accuracy, the fraction of rows with all labels right; for numbers R2."""
        y, values = _as_list(y), predicted(self._logits(X), self.labels_.problem_type)
        if self.labels_.names is None:
            return float(r2_score(y, values))
        classes = np.array(self.labels_.names, dtype=object)
        rows = values.astype(bool) if values.ndim > 1 else values[:, None]
        names = [name if isinstance(name, list) else [name] for name in _names(y)]
        return float(np.mean([{*classes[row]} == {*name} for row, name in zip(rows, names, strict=True)]))

    def save(
        self, folder: str | Path, training: Mapping[str, Any] | None = None, repository: str | None = None
    ) -> None:
        """Write an ordinary checkpoint: weights, config, code, tokenizer or image processor, and a model card.

        Args:
            training: Facts for the card, as in `model_card`.
            repository: Where the folder will be pushed. A card there that was written by hand is kept.
        """
        check_is_fitted(self, "model_")
        self.model_.save_pretrained(folder)
        self.inputs_.processing_class.save_pretrained(folder)
        if type(self.model_).__name__ in TASKS:
            card = model_card(self.model_, repository or Path(folder).resolve().name, training=training)
            write_card(card, folder, repository)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        tags.input_tags.string, tags.input_tags.two_d_array = True, False
        return tags


def _as_list(y: Any) -> list:
    """Return labels as a list, and arrays, tuples and sets of several labels as lists."""
    if getattr(y, "ndim", 1) == 2 and y.shape[1] == 1:
        y = column_or_1d(y, warn=True)
    values = y.tolist() if hasattr(y, "tolist") else list(y)
    several = (list, tuple, set, np.ndarray)
    return [_as_list(value) if isinstance(value, several) else value for value in values]


def _are_vectors(y: list) -> bool:
    """Return whether each label is a vector of 0 and 1 for each class."""
    lists = [label for label in y if isinstance(label, list)]
    items = {item for label in lists for item in label}
    return len(lists) == len(y) and len({*map(len, lists)}) == 1 and len(y[0]) > 1 and items <= {0, 1}


def _names(y: list) -> list:
    """Return the names of labels; those of a vector are its positions."""
    if _are_vectors(y):
        return [[str(number) for number, item in enumerate(label) if item] for label in y]
    return label_names(y)
