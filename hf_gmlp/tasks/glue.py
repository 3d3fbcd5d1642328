"""Fine-tune a gMLP or aMLP (or any AutoModelForSequenceClassification) on GLUE or on your own texts. For example:

    hf-gmlp run glue --model_name_or_path my-gmlp --task_name sst2 --do_train --do_eval --output_dir out
    hf-gmlp run glue recipes/finetune-sst2.yaml --model_name_or_path my-gmlp --output_dir out
    hf-gmlp classify --model_name_or_path my-gmlp --train_file tickets.csv --label_column_name category --output_dir out

The last command is for your own texts: it uses recipes/classify.yaml, and compares with tf-idf. The flags have the
names of transformers' own run_glue.py.
"""

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pandas
from datasets import Dataset, concatenate_datasets
from pyarrow.compute import list_value_length
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import PredefinedSplit, cross_val_predict
from sklearn.pipeline import make_pipeline
from transformers import (
    AutoModelForSequenceClassification,
    DataCollatorWithPadding,
    EvalPrediction,
    IntervalStrategy,
    PreTrainedConfig,
    set_seed,
)

from ..data.files import Access, load_data
from ..data.labels import (
    CLASSES,
    ONE_CLASS,
    REGRESSION,
    Labels,
    hold_out_rows,
    number_labels,
    set_labels,
    trained_labels,
)
from ..data.sentences import (
    TEXT_COLUMNS,
    blank_rows,
    check_text_columns,
    check_texts,
    find_label_column,
    find_text_columns,
    texts,
    tokenize_sentences,
    truncation_note,
    visible_columns,
)
from ..errors import InputError, first_line
from ..metrics import load_metric
from ..metrics.calibration import CROSS_VALIDATED, MIN_SCORE_ROWS
from ..tokenizer import padding_for
from ..training.arguments import LabeledTextArguments, ModelArguments, RunArguments, data_access, flag, parse_arguments
from ..training.build import build_config, build_model, build_tokenizer, sequence_length
from ..training.run_folder import start_run, write_text
from ..training.trainer import GMLPTrainer
from .classification import (
    ClassificationArguments,
    Evaluation,
    KeptEvaluation,
    balanced_weights,
    conclude,
    cross_validate,
    finish_evaluation,
    fold_numbers,
    logits_only,
    names_of,
    predicted,
    weighted_loss,
)
from .frozen import (
    FITTED,
    FOLDS,
    FROZEN,
    MAX_FITTED_ROWS,
    NEW,
    Classifier,
    choose_training,
    embed,
    fit_classifier,
    set_classifier,
)

logger = logging.getLogger(__name__)


HEAD = "ForSequenceClassification"
# At most as much text, about 100,000 tokens, is read five times in a cross-validation without asking.
MAX_CHARACTERS = 400_000
# A batch of at most as many tokens needs no gradient accumulation, which is slower.
MAX_TOKENS = 8192
# Metrics of hf_gmlp/metrics for data outside GLUE, by problem type.
METRICS = {ONE_CLASS: ("accuracy", "f1"), CLASSES: ("f1", "accuracy"), REGRESSION: ("spearman", "pearson")}


@dataclass(frozen=True)
class Task:
    """One of GLUE's nine tasks."""

    columns: tuple[str, ...]
    # The names of the labels 0, 1, ...; None for a task that predicts numbers.
    labels: tuple[str, ...] | None
    metrics: tuple[str, ...]
    # The endings of the names of the validation and test splits.
    parts: tuple[str, ...] = ("",)

    def splits(self, kind: str) -> list[str]:
        """Return the names of the "train", "validation" or "test" splits."""
        return [kind] if kind == "train" else [f"{kind}{part}" for part in self.parts]


_PAIR = ("sentence1", "sentence2")
_ENTAILMENT = ("entailment", "not_entailment")
# By --task_name, which may be None.
TASKS: dict[str | None, Task] = {
    "cola": Task(("sentence",), ("unacceptable", "acceptable"), ("matthews_correlation",)),
    "mnli": Task(
        ("premise", "hypothesis"),
        ("entailment", "neutral", "contradiction"),
        ("accuracy",),
        ("_matched", "_mismatched"),
    ),
    "mrpc": Task(_PAIR, ("not_equivalent", "equivalent"), ("f1", "accuracy")),
    "qnli": Task(("question", "sentence"), _ENTAILMENT, ("accuracy",)),
    "qqp": Task(("question1", "question2"), ("not_duplicate", "duplicate"), ("f1", "accuracy")),
    "rte": Task(_PAIR, _ENTAILMENT, ("accuracy",)),
    "sst2": Task(("sentence",), ("negative", "positive"), ("accuracy",)),
    "stsb": Task(_PAIR, None, ("spearman", "pearson")),
    "wnli": Task(_PAIR, ("not_entailment", "entailment"), ("accuracy",)),
}


@dataclass
class GlueArguments(ClassificationArguments, LabeledTextArguments):
    """The sentences to classify."""

    task_name: Literal["cola", "mnli", "mrpc", "qnli", "qqp", "rte", "sst2", "stsb", "wnli"] | None = flag("GLUE task.")
    validation_file: list[str] | None = flag("Validation files; for MNLI, the matched one first.")
    test_file: list[str] | None = flag("Files to predict labels for; for MNLI, the matched one first.")
    train_val_split: float = flag(
        "Fraction of each class to hold out if there are no validation data.", 0.1, interval="(0, 1)"
    )
    text_column_names: list[str] | None = flag(
        "Text column, or the two of a pair; by default, named as in GLUE, or the only one besides the label."
    )
    label_column_name: str | None = flag(
        "Column of the label or labels; by default label, labels, category, class, target or sentiment."
    )
    do_regression: bool = flag("Predict numbers; by default, only if the labels have fractions.")
    fine_tune: bool | None = flag(
        "false: train only a classifier, on the frozen embeddings of a sentence encoder; by default with fewer than 32 "
        "rows per class. true: fine-tune; a sentence encoder starts from that classifier, leaves its token vectors as "
        "they are, takes half of --learning_rate and a fifth of --min_train_steps, and keeps the last model."
    )
    baseline: bool = flag("Also report logistic regression on tf-idf, for data with one class per row.", False)
    cross_validation: int | None = flag(
        "Folds of a cross-validation after training, whose scores replace those of the held-out rows; 0: none. By "
        "default 5 with --calibrate, if fewer than 200 rows are held out and it takes at most ten minutes.",
        interval="[0, inf)",
    )
    # The shortest sequence of a pair is [CLS] A [SEP] B [SEP].
    max_seq_length: int | None = flag(
        "Tokens per text or pair; by default 128 for GLUE's tasks and 512 for others, or the model's n if smaller.",
        interval="[5, inf)",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        task = TASKS.get(self.task_name)
        if task is not None and self.do_regression not in (None, task.labels is None):
            raise ValueError(f"--do_regression does not fit --task_name {self.task_name}: leave it out.")
        check_text_columns(self.text_column_names or [])
        if task is not None and self.dataset_name is None and not self.files():
            self.dataset_name, self.dataset_config_name = "nyu-mll/glue", self.task_name

    def cross_validates(self, rows: Dataset) -> bool:
        """Return whether to hold out none of the rows, which would be few, since a cross-validation takes minutes."""
        few = len(rows) * self.train_val_split < MIN_SCORE_ROWS and sum(map(len, texts(rows))) <= MAX_CHARACTERS
        return few and (self.calibrate if self.cross_validation is None else self.cross_validation > 0)

    def folds(self, trainer: GMLPTrainer, runtime: float, held_out: int) -> int:
        """Return the number of folds of the cross-validation after a run, 0 for none.

        Args:
            runtime: Seconds of the training.
            held_out: Number of validation rows; 0 if `cross_validates` chose to hold out none.
        """
        if self.cross_validation is not None or not self.calibrate:
            return self.cross_validation or 0
        state = trainer.state
        minutes = FOLDS * runtime * (state.best_global_step or state.global_step) / max(state.global_step, 1) / 60
        few = held_out < MIN_SCORE_ROWS and minutes <= 10 and trainer.args.world_size == 1
        return FOLDS if few or not held_out else 0


def load_sentences(
    arguments: GlueArguments,
    kinds: Sequence[str] = ("train", "validation"),
    *,
    trained: Labels | None = None,
    has_embeddings: bool = False,
    access: Access = Access(),
) -> tuple[dict[str, Dataset], Labels, dict[str, object], str]:
    """Read a GLUE task, a dataset on the Hub, or files.

    The labels are those of the task, else those in the training files, which are always read, else those of the
    checkpoint. Validation data that are needed but missing are held out of the training data, unless all rows train and
    a cross-validation replaces them; the column "row" is then the number of a row there.

    Args:
        kinds: The data needed: "train", "validation" and "test".
        trained: What the checkpoint predicts. The order of its classes is kept if the data have the same ones.
        has_embeddings: Whether the checkpoint has trained sentence embeddings.

    Returns:
        The splits, such as "train" and "validation_matched", with the columns "sentence1", for pairs "sentence2", and
        "labels"; what the labels are; the names of the columns in the data, for the config of the model; and the result
        of `choose_training`.

    Raises:
        InputError: If something needed is missing or unreadable, or as in `number_labels`.
    """
    task, train = TASKS.get(arguments.task_name), "train" in kinds
    read = kinds if train or not arguments.train_file else ["train", *kinds]
    split_names = {kind: task.splits(kind) if task else [kind] for kind in read}
    splits = _read(arguments, split_names, access)
    missing = [kind for kind in read if not splits.keys() & set(split_names[kind])]
    holds_out = train and missing == ["validation"]
    if missing and not holds_out:
        raise InputError(f"There are no {missing[0]} data: pass --{missing[0]}_file, or a dataset with that split.")
    names = next(iter(splits.values())).column_names
    label_column = arguments.label_column_name or find_label_column(names)
    columns = find_text_columns(names, label_column, arguments.text_column_names or (task.columns if task else None))
    logger.info("Texts: %s", " and ".join(columns))
    labels = None
    if task is not None:
        labels = Labels(list(task.labels), ONE_CLASS) if task.labels else Labels(None, REGRESSION)
    elif "train" not in splits:
        labels = Labels(None, REGRESSION) if arguments.do_regression else trained
        if labels is None:
            raise InputError("The labels are unknown: pass --task_name, a --train_file, or a trained classifier.")
    options: dict = {"trained": trained, "train": train, "do_regression": arguments.do_regression}
    splits, labels = number_labels(splits, dict(zip(columns, TEXT_COLUMNS)), label_column, labels, **options)
    limits = arguments.max_samples()
    rows = splits["train"].take(min(limits["train"] or len(splits["train"]), len(splits["train"]))) if train else None
    training = choose_training(has_embeddings, labels, rows, arguments.fine_tune) if train else NEW
    if holds_out and training != FROZEN and not (training == FITTED and arguments.cross_validates(rows)):
        if labels.problem_type == ONE_CLASS and isinstance(splits["train"]["labels"][0], list):
            raise InputError("Probabilities cannot be held out: pass --validation_file with class names.")
        splits["train"], splits["validation"] = hold_out_rows(splits["train"], arguments.train_val_split)
    if not train:
        # It was read only for its labels.
        splits.pop("train", None)
    for split, dataset in splits.items():
        check_texts(dataset, columns)
        if blank := blank_rows(dataset):
            logger.warning("%d row(s) of the %s data have no text, such as row %d", len(blank), split, blank[0] + 1)
        # Rows are left out only after the labels are collected, so that no class is missing.
        limit = limits[split.partition("_")[0]]
        splits[split] = dataset if limit is None else dataset.take(min(limit, len(dataset)))
        if limit is not None and labels.names and "labels" in dataset.column_names:
            present, kept = (len(set(map(str, rows["labels"]))) for rows in (dataset, splits[split]))
            if kept == 1 < present:
                logger.warning("The first %d rows of the %s data have only one class: shuffle the file", limit, split)
    return splits, labels, {"text_columns": list(columns), "label_column": label_column}, training


def _read(arguments: GlueArguments, names: dict[str, list[str]], access: Access) -> dict[str, Dataset]:
    """Return the named splits of each kind that exist. If a kind has several splits, each has a file of its own."""
    if not arguments.files():
        name, config_name = arguments.dataset_name, arguments.dataset_config_name
        loaded = load_data(dataset_name=name, dataset_config_name=config_name, access=access)
        return {split: loaded[split] for splits in names.values() for split in splits if split in loaded}
    files: dict[str, list[str]] = {}
    for kind, splits in names.items():
        paths = arguments.files().get(kind, [])
        if len(paths) > len(splits) > 1:
            raise InputError(f"--{kind}_file has {len(paths)} files: pass at most one each for {', '.join(splits)}.")
        parts = [paths] if len(splits) == 1 else [[path] for path in paths]
        files |= {split: part for split, part in zip(splits, parts) if part}
    # All columns are text, since texts may look like numbers.
    return dict(load_data(files=files, access=access, text_columns=None))


def classification_metrics(
    names: Iterable[str], config: PreTrainedConfig
) -> Callable[[EvalPrediction], dict[str, float]]:
    """Return `compute_metrics` for Trainer, from hf_gmlp/metrics.

    F1 is that of the second of two classes, or the mean over more classes. If a row may have several classes, F1 is
    that of all decisions, and accuracy is the fraction of rows with all labels right.
    """
    metrics = {name: load_metric(name) for name in names}
    several = config.problem_type == CLASSES
    average = {"average": "binary" if several or config.num_labels == 2 else "macro"}

    def compute(prediction: EvalPrediction) -> dict[str, float]:
        values, truth = predicted(prediction.predictions, config.problem_type), prediction.label_ids
        results: dict[str, float] = {}
        for name, metric in metrics.items():
            if several and name == "accuracy":
                results[name] = float((values == truth).all(axis=1).mean())
                continue
            options = average if name == "f1" else {}
            results |= metric.compute(predictions=values.ravel(), references=truth.ravel(), **options)
        return results

    return compute


def baseline_predictions(
    train: Dataset, rows: Dataset | None = None, numbers: np.ndarray | None = None
) -> np.ndarray | None:
    """Train logistic regression on tf-idf of words and pairs of words, and return the class ids [N] that it predicts.

    There is no baseline if no word occurs, or a single class.

    Args:
        train: The training rows, in the columns of `load_sentences`.
        rows: The rows to predict. By default, each training row is predicted by a model of the other folds.
        numbers: [N], the folds of the training rows.
    """
    features = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    model = make_pipeline(features, LogisticRegression(C=10, max_iter=1000))
    try:
        if rows is None:
            return cross_val_predict(model, texts(train), train["labels"][:], cv=PredefinedSplit(numbers))
        return model.fit(texts(train), train["labels"][:]).predict(texts(rows))
    except ValueError as error:
        logger.warning("The baseline, tf-idf with logistic regression, cannot be computed: %s", first_line(error))
        return None


def sequence_lengths(rows: Dataset) -> np.ndarray:
    """Return the number of tokens of each row [N]."""
    return list_value_length(rows.with_format("arrow")[:]["input_ids"]).to_numpy()


def fit_to_embeddings(trainer: GMLPTrainer, rows: Dataset, numbers: np.ndarray, balanced: bool) -> Classifier:
    """Fit the classifier of a model to its embeddings of tokenized rows.

    Args:
        numbers: [N], the fold of each row.
        balanced: Whether to weight classes by the inverse of their number of rows.
    """
    config = trainer.model.config
    inputs = embed(trainer.model, rows, trainer.data_collator, trainer.args.per_device_eval_batch_size)
    labels = np.array(rows["labels"])
    classifier = fit_classifier(inputs, labels, numbers, config.problem_type, config.num_labels, balanced)
    set_classifier(trainer.model, classifier)
    return classifier


def start_from_embeddings(trainer: GMLPTrainer, balanced: bool) -> None:
    """Let fine-tuning start from a classifier that fits the embeddings, and leave the token vectors as they are."""
    rows = trainer.train_dataset
    if len(rows) > MAX_FITTED_ROWS:
        rows = rows.shuffle(seed=0).take(MAX_FITTED_ROWS)
    fit_to_embeddings(trainer, rows, fold_numbers(rows["labels"][:], FOLDS), balanced)
    trainer.model.get_input_embeddings().requires_grad_(False)
    trainer.hyperparameters = {"start": "a classifier on the embeddings", "frozen weights": "the token vectors"}


def train_frozen(trainer: GMLPTrainer, numbers: np.ndarray, balanced: bool) -> np.ndarray:
    """Train only the classifier of a model, and return cross-validated logits [N, classes]; see `fit_to_embeddings`."""
    classifier = fit_to_embeddings(trainer, trainer.train_dataset, numbers, balanced)
    method = "ridge" if trainer.model.config.problem_type == REGRESSION else "logistic"
    trainer.hyperparameters = {"trained weights": f"only the classifier, by {method} regression on frozen embeddings"}
    trainer.hyperparameters["inverse regularization strength"] = classifier.strength
    return classifier.logits


def cross_validated(logits: np.ndarray, rows: Dataset, numbers: np.ndarray, has_baseline: bool) -> Evaluation:
    """Return the evaluation of logits [N, classes], each of a model that was trained on other folds, and a baseline."""
    baseline = baseline_predictions(rows, numbers=numbers) if has_baseline else None
    return Evaluation(logits, np.array(rows["labels"]), visible_columns(rows), baseline, CROSS_VALIDATED)


def write_predictions(path: Path, logits: np.ndarray, config: PreTrainedConfig) -> None:
    """Write "index<tab>prediction" for each sample: the name of the label, the names of several, or a number."""
    if not np.isfinite(logits).all():
        logger.warning("The model's logits are not finite numbers: %s is not written", path)
        return
    names = names_of(predicted(logits, config.problem_type), config)
    table = pandas.DataFrame({"prediction": names}).rename_axis("index")
    write_text(path, table.to_csv(sep="\t", lineterminator="\n"))


def main() -> None:
    model_args, data_args, training_args = parse_arguments((ModelArguments, GlueArguments, RunArguments), __doc__)
    checkpoint = start_run(model_args, data_args, training_args)
    task, config, train = TASKS.get(data_args.task_name), build_config(model_args), training_args.do_train
    access = data_access(model_args, data_args, training_args)
    length = sequence_length(config, data_args.max_seq_length, default=512 if task is None else 128)
    workers = data_args.preprocessing_num_workers

    needed = {"train": train, "validation": training_args.do_eval, "test": training_args.do_predict}
    kinds = [kind for kind in needed if needed[kind]]
    with training_args.main_process_first(desc="reading"):
        # A sentence encoder is saved without a head.
        has_embeddings = "GMLPModel" in (config.architectures or ())
        options: dict = {"trained": trained_labels(config, HEAD), "has_embeddings": has_embeddings, "access": access}
        splits, labels, columns, training = load_sentences(data_args, kinds, **options)
    new_classifier = set_labels(config, labels, HEAD, train=train, new_classifier=data_args.ignore_mismatched_sizes)
    if (training_args.label_smoothing_factor or data_args.class_weights) and labels.problem_type != ONE_CLASS:
        raise InputError("--label_smoothing_factor and --class_weights need one class per row: leave them out.")
    metrics = task.metrics if task is not None else METRICS[labels.problem_type]
    loss, balanced = None, train and data_args.class_weights is not None
    if balanced:
        weights = balanced_weights(splits["train"]["labels"][:], config)
        loss = weighted_loss(training_args.label_smoothing_factor, weights)
    config.text_columns, config.label_column = columns["text_columns"], columns["label_column"]
    # There is no baseline for a teacher's probabilities.
    has_baseline = data_args.baseline and train and labels.problem_type == ONE_CLASS
    has_baseline = has_baseline and not isinstance(splits["train"]["labels"][0], list)
    # Cross-validation then replaces the held-out rows.
    all_train = training == FROZEN or (training == FITTED and training_args.do_eval and "validation" not in splits)
    if training == FITTED:
        training_args.learning_rate /= 2
        data_args.min_train_steps = data_args.min_train_steps and math.ceil(data_args.min_train_steps / 5)

    sentences = texts(splits["train"]) if train else ()
    tokenizer = build_tokenizer(model_args, training_args, sentences, max_length=length, config=config)
    # The saved tokenizer has the length of the texts that the model was trained on.
    tokenizer.model_max_length = length
    with training_args.main_process_first(desc="tokenizing"):
        datasets = {
            split: tokenize_sentences(rows, tokenizer, length, workers, access) for split, rows in splits.items()
        }
    for split, rows in datasets.items():
        if note := truncation_note(sequence_lengths(rows), length):
            logger.info("%s data: %s (--max_seq_length)", split, note)
    per_device = training_args.per_device_train_batch_size * training_args.gradient_accumulation_steps
    if training == FITTED and per_device * sequence_lengths(datasets["train"]).max() <= MAX_TOKENS:
        training_args.per_device_train_batch_size, training_args.gradient_accumulation_steps = per_device, 1
    padding = padding_for(config, data_args.pad_to_max_length)
    tests = [split for split in splits if split.startswith("test")]
    # Several validation sets are evaluated separately, with their names before those of the metrics.
    validation = {split[len("validation_") :]: datasets[split] for split in splits if split.startswith("validation")}
    names = [f"{split}_{name}".removeprefix("_") for split in validation for name in ("loss", *metrics)]

    def make_trainer(args: RunArguments, train_rows: Dataset | None, callbacks: list) -> GMLPTrainer:
        # The weights of a new head depend on the seed of the run.
        set_seed(args.seed)
        options = {"train": train, "new_classifier": new_classifier, "length": length}
        trainer = GMLPTrainer(
            model=build_model(AutoModelForSequenceClassification, model_args, config, tokenizer, **options),
            args=args,
            train_dataset=train_rows,
            eval_dataset=validation.get("", validation or None),
            processing_class=tokenizer,
            data_collator=DataCollatorWithPadding(tokenizer, padding, max_length=length),
            compute_loss_func=loss,
            compute_metrics=KeptEvaluation(classification_metrics(metrics, config)),
            preprocess_logits_for_metrics=logits_only,
            callbacks=callbacks,
            metric_names=names,
            card=data_args.card_facts(model_args),
        )
        if training == FITTED:
            start_from_embeddings(trainer, balanced)
        return trainer

    if train:
        data_args.lengthen(training_args, len(datasets["train"]))
    callbacks, evaluation = data_args.callbacks(training_args, labels.problem_type), None
    if training != NEW:
        # Such a training is short, and its last model the best one. Its loss rises earlier, until it is calibrated.
        training_args.do_eval = bool(validation)
        callbacks, training_args.eval_strategy, training_args.load_best_model_at_end = [], IntervalStrategy.NO, False
    trainer = make_trainer(training_args, datasets.get("train"), callbacks)
    if training == FROZEN:
        numbers = fold_numbers(splits["train"]["labels"][:], FOLDS)
        logits = train_frozen(trainer, numbers, balanced)
        results = trainer.evaluate() if "validation" in splits else {}
        if "validation" not in splits:
            evaluation = cross_validated(logits, splits["train"], numbers, has_baseline)
    else:
        results = trainer.train_and_evaluate(checkpoint)
    held_out, folds = len(splits.get("validation", ())), 0
    if train and training != FROZEN and (all_train or held_out):
        folds = data_args.folds(trainer, results["train_runtime"], held_out)
    if folds:
        parts = [split for split in ("train", "validation") if split in splits]
        rows, tokenized = (concatenate_datasets([x[part] for part in parts]) for x in (splits, datasets))
        numbers = fold_numbers(rows["labels"][:], folds)
        logits = cross_validate(make_trainer, trainer, tokenized, numbers)
        evaluation = cross_validated(logits, rows, numbers, has_baseline)
    elif held_out:
        kept = trainer.compute_metrics
        baseline = baseline_predictions(splits["train"], splits["validation"]) if has_baseline else None
        evaluation = Evaluation(kept.logits, kept.labels, visible_columns(splits["validation"]), baseline)
    if evaluation is not None:
        results |= finish_evaluation(trainer, evaluation, data_args.calibrate and train)
    for split in tests:
        output = trainer.predict(datasets[split], metric_key_prefix=split)
        results |= output.metrics
        if trainer.is_world_process_zero():
            name = "predictions.tsv" if len(tests) == 1 else f"{split}_predictions.tsv"
            write_predictions(Path(training_args.output_dir, name), output.predictions, config)
    trainer.finish(results)
    if evaluation is not None and trainer.is_world_process_zero():
        conclude(trainer, evaluation)
