"""Fine-tune a gMLP or aMLP (or any AutoModelForSequenceClassification) on GLUE or on your own texts. For example:

    hf-gmlp run glue --model_name_or_path my-gmlp --task_name sst2 --do_train --do_eval --output_dir out
    hf-gmlp run glue recipes/finetune-sst2.yaml --model_name_or_path my-gmlp --output_dir out
    hf-gmlp classify --model_name_or_path my-gmlp --train_file tickets.csv --label_column_name category --output_dir out

The last command is for your own texts: it uses recipes/classify.yaml, holds out a tenth of the rows, and compares with
tf-idf. The flags have the names of transformers' own run_glue.py. Recipes (YAML files of flags) may come first; flags
override them, and later recipes override earlier ones.
"""

import logging
import math
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas
import torch
from datasets import Dataset, concatenate_datasets
from pyarrow.compute import list_value_length
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
    KNOWN_TEXT_COLUMNS,
    LABEL_COLUMNS,
    TEXT_COLUMNS,
    blank_rows,
    check_text_columns,
    check_texts,
    find_label_column,
    find_text_columns,
    texts,
    tokenize,
    truncation_note,
    visible_columns,
)
from ..errors import InputError, first_line
from ..metrics import load_metric
from ..metrics.calibration import MIN_SCORE_ROWS, accuracy_in_words
from ..tokenizer import padding_for
from ..training.arguments import LabeledTextArguments, ModelArguments, RunArguments, data_access, flag, parse_arguments
from ..training.build import build_config, build_model, build_tokenizer, sequence_length
from ..training.run_folder import total_batch_size, write_text
from ..training.start import start_run
from ..training.trainer import GMLPTrainer
from .classification import (
    ClassificationArguments,
    Evaluation,
    KeptEvaluation,
    balanced_weights,
    check_evaluation,
    conclude,
    cross_validate,
    finish_evaluation,
    fold_numbers,
    logits_only,
    names_of,
    predicted,
    weighted_loss,
)
from .frozen import FOLDS, embed, fit_classifier, set_classifier, should_freeze

logger = logging.getLogger(__name__)


HEAD = "ForSequenceClassification"
GLUE = "nyu-mll/glue"


# Metrics of hf_gmlp/metrics for data outside GLUE, by problem type.
METRICS = {ONE_CLASS: ("accuracy", "f1"), CLASSES: ("f1", "accuracy"), REGRESSION: ("spearman", "pearson")}


@dataclass(frozen=True)
class Task:
    """One of GLUE's nine tasks."""

    columns: tuple[str, ...]
    # The names of the labels 0, 1, ...; None for a task that predicts numbers.
    labels: tuple[str, ...] | None
    metrics: tuple[str, ...]
    validations: tuple[str, ...] = ("validation",)
    tests: tuple[str, ...] = ("test",)

    def splits(self, kind: str) -> tuple[str, ...]:
        """Return the names of the "train", "validation" or "test" splits."""
        return {"validation": self.validations, "test": self.tests}.get(kind, (kind,))


_PAIR = ("sentence1", "sentence2")
_ENTAILMENT = ("entailment", "not_entailment")
TASKS = {
    "cola": Task(("sentence",), ("unacceptable", "acceptable"), ("matthews_correlation",)),
    "mnli": Task(
        ("premise", "hypothesis"),
        ("entailment", "neutral", "contradiction"),
        ("accuracy",),
        validations=("validation_matched", "validation_mismatched"),
        tests=("test_matched", "test_mismatched"),
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
class SentenceModelArguments(ModelArguments):
    """The sentence classifier to start from."""

    ignore_mismatched_sizes: bool = flag(
        "Give the checkpoint a new classifier if it was trained for other classes.", False
    )


@dataclass
class GlueArguments(ClassificationArguments, LabeledTextArguments):
    """The sentences to classify."""

    task_name: str | None = flag("GLUE task: cola, mnli, mrpc, qnli, qqp, rte, sst2, stsb or wnli.")
    validation_file: list[str] | None = flag("Validation files; for MNLI, the matched one first.")
    test_file: list[str] | None = flag("Files to predict labels for; for MNLI, the matched one first.")
    train_split_name: str | None = flag("Split of the dataset to train on.")
    validation_split_name: str | None = flag("Split of the dataset to evaluate on.")
    test_split_name: str | None = flag("Split of the dataset to predict labels for.")
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
        "true: train all weights; false: train only a classifier, on the frozen embeddings of a sentence encoder. By "
        "default false for a sentence encoder and at most 1,000 rows per class."
    )
    baseline: bool = flag("Also report logistic regression on tf-idf, for data with one class per row.", False)
    cross_validation: int | None = flag(
        "Folds of a cross-validation after training, whose scores replace those of the held-out rows; 0: none. By "
        "default 5 with --calibrate, if fewer than 200 rows are held out and it takes at most ten minutes.",
        interval="[0, inf)",
    )
    shuffle_train_dataset: bool = flag("Shuffle the training rows before --max_train_samples is applied.", False)
    shuffle_seed: int = flag("Seed for --shuffle_train_dataset.", 42, interval="[0, 4294967295]")
    # The shortest sequence of a pair is [CLS] A [SEP] B [SEP].
    max_seq_length: int | None = flag(
        "Tokens per text or pair; by default 128 for GLUE's tasks and 512 for others, or the model's n if smaller.",
        interval="[5, inf)",
    )

    def __post_init__(self):
        super().__post_init__()
        if self.task_name is not None and self.task_name.lower() not in TASKS:
            raise ValueError(f"GLUE has no task {self.task_name!r}: --task_name must be one of {', '.join(TASKS)}.")
        task = self.task()
        if task is not None and self.do_regression not in (None, task.labels is None):
            raise ValueError(f"--do_regression does not fit --task_name {self.task_name}: leave it out.")
        for split in self.files():
            if getattr(self, f"{split}_split_name"):
                raise ValueError(f"--{split}_split_name is for a dataset on the Hub, not for files: leave it out.")
        check_text_columns(self.text_column_names or [])

    def task(self) -> Task | None:
        """Return the GLUE task of --task_name, if any."""
        return None if self.task_name is None else TASKS[self.task_name.lower()]

    def folds(self, trainer: GMLPTrainer, runtime: float, held_out: int) -> int:
        """Return the number of folds of the cross-validation after a run, 0 for none.

        Args:
            runtime: Seconds of the training.
            held_out: Number of rows that were held out of the training files.
        """
        if self.cross_validation is not None or not self.calibrate:
            return self.cross_validation or 0
        state = trainer.state
        minutes = 5 * runtime * (state.best_global_step or state.global_step) / max(state.global_step, 1) / 60
        if held_out >= MIN_SCORE_ROWS or trainer.args.world_size > 1:
            return 0
        if minutes > 10:
            words = "%d held-out rows are few: --cross_validation 5 would score all rows, in about %.0f minutes"
            logger.warning(words, held_out, minutes)
            return 0
        return 5

    def data_name(self) -> str:
        name = super().data_name()
        return name if self.task_name is None else f"{name} ({self.task_name})" if name else f"GLUE {self.task_name}"

    def dataset_id(self) -> str | None:
        return super().dataset_id() if self.files() or self.dataset_name is not None else "nyu-mll/glue"


def load_sentences(
    arguments: GlueArguments,
    kinds: Sequence[str] = ("train", "validation"),
    *,
    trained: Labels | None = None,
    access: Access = Access(),
) -> tuple[dict[str, Dataset], Labels, dict[str, object]]:
    """Read a GLUE task, a dataset on the Hub, or files.

    The labels are those of the task, else those in the training files, which are always read, else those of the
    checkpoint. Validation data that are needed but not named are held out of the training files; the column "row" is
    then the number of a row there.

    Args:
        kinds: The data needed: "train", "validation" and "test".
        trained: What the checkpoint predicts. The order of its classes is kept if the data have the same ones.

    Returns:
        The splits, such as "train" and "validation_matched", with the columns "sentence1", for pairs "sentence2", and
        "labels"; what the labels are; and the names of the columns in the data, for the config of the model.

    Raises:
        InputError: If something needed is missing or unreadable, or as in `number_labels`.
    """
    task, train = arguments.task(), "train" in kinds
    read = kinds if train or not arguments.train_file else ["train", *kinds]
    split_names = {kind: task.splits(kind) if task else (kind,) for kind in read}
    has_training_files = train and arguments.train_file and not arguments.validation_file
    holds_out = has_training_files and split_names.pop("validation", None) is not None
    splits = (_read_files if arguments.files() else _read_hub)(arguments, split_names, access)
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
    splits, labels = number_labels(
        splits,
        dict(zip(columns, TEXT_COLUMNS)),
        label_column,
        labels,
        trained=trained,
        train=train,
        do_regression=arguments.do_regression,
    )
    if holds_out:
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
        if split == "train" and arguments.shuffle_train_dataset:
            dataset = dataset.shuffle(seed=arguments.shuffle_seed)
        # Rows are left out only after the labels are collected, so that no class is missing.
        limit = arguments.max_samples()[split.partition("_")[0]]
        splits[split] = dataset if limit is None else dataset.take(min(limit, len(dataset)))
        if limit is not None and labels.names and "labels" in dataset.column_names:
            present, kept = (len(set(map(str, rows["labels"]))) for rows in (dataset, splits[split]))
            if kept == 1 < present:
                logger.warning("The first %d rows of the %s data have only one class: shuffle the file", limit, split)
    return splits, labels, {"text_columns": list(columns), "label_column": label_column}


def _read_files(arguments: GlueArguments, names: dict[str, tuple[str, ...]], access: Access) -> dict[str, Dataset]:
    """Read the files of each kind. If a task has several splits of a kind, there is a file for each."""
    files: dict[str, list[str]] = {}
    for kind, splits in names.items():
        paths = arguments.files().get(kind, [])
        if not paths:
            raise InputError(f"There are no {kind} data: pass --{kind}_file.")
        if len(paths) > len(splits) > 1:
            raise InputError(f"--{kind}_file has {len(paths)} files: pass at most one each for {', '.join(splits)}.")
        files |= {split: [path] for split, path in zip(splits, paths)} if len(splits) > 1 else {kind: paths}
    text_columns = arguments.text_column_names or [column for columns in KNOWN_TEXT_COLUMNS for column in columns]
    label_columns = [arguments.label_column_name] if arguments.label_column_name else LABEL_COLUMNS
    return dict(load_data(files=files, access=access, text_columns=sorted({*text_columns, *label_columns})))


def _read_hub(arguments: GlueArguments, names: dict[str, tuple[str, ...]], access: Access) -> dict[str, Dataset]:
    name, config_name = arguments.dataset_name, arguments.dataset_config_name
    if name is None and arguments.task_name is not None:
        name, config_name = GLUE, arguments.task_name.lower()
    loaded = load_data(dataset_name=name, dataset_config_name=config_name, access=access)
    splits: dict[str, Dataset] = {}
    for kind, default_names in names.items():
        split_name = getattr(arguments, f"{kind}_split_name")
        sources = {kind: split_name} if split_name else {split: split for split in default_names}
        present = {split: loaded[source] for split, source in sources.items() if source in loaded}
        if not present:
            advice = f"name one with --{kind}_split_name, or pass files"
            raise InputError(f"{name} has no split {split_name or kind}, only {', '.join(loaded)}: {advice}.")
        splits |= present
    return splits


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


def baseline_predictions(train: Dataset, rows: Dataset) -> np.ndarray | None:
    """Train logistic regression on tf-idf of words and pairs of words, and return the class ids [N] that it predicts.

    The datasets have the columns of `load_sentences`. There is no baseline if no word occurs, or a single class.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    features = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    model = make_pipeline(features, LogisticRegression(C=10, max_iter=1000))
    try:
        return model.fit(texts(train), train["labels"][:]).predict(texts(rows))
    except ValueError as error:
        logger.warning("The baseline, tf-idf with logistic regression, cannot be computed: %s", first_line(error))
        return None


def log_estimate(trainer: GMLPTrainer, rows: Dataset):
    """Log the minutes and memory that training will take on this CPU, by running one batch of the longest texts."""
    args, model = trainer.args, trainer.model
    lengths = list_value_length(rows.with_format("arrow")[:]["input_ids"]).to_numpy()
    longest = np.argsort(-lengths)[: args.per_device_train_batch_size]
    batch = trainer.data_collator([rows[int(row)] for row in longest])
    # The run must not depend on the random numbers of dropout here.
    with torch.random.fork_rng(devices=[]):
        start = time.perf_counter()
        model.train()(**batch).logits.float().sum().backward()
        seconds = time.perf_counter() - start
    model.zero_grad()
    steps = (
        args.max_steps if args.max_steps > 0 else math.ceil(len(rows) / total_batch_size(args)) * args.num_train_epochs
    )
    # Nearly all of the cost is linear in the number of tokens.
    minutes = seconds * lengths.mean() / lengths[longest].mean() * steps * args.gradient_accumulation_steps / 60
    # Adam has two numbers for each parameter.
    memory = "" if sys.platform != "linux" else f", {(peak_memory() + 8 * model.num_parameters()) / 1e9:.1f} GB"
    logger.info("Estimate for training: up to %.1f minutes%s", minutes, memory)


def peak_memory() -> int:
    """Return the largest memory of this process in bytes, on Linux."""
    import resource

    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def cross_validated_baseline(rows: Dataset, numbers: np.ndarray) -> np.ndarray | None:
    """Return the `baseline_predictions` of all rows, each by a model that was trained on the other folds."""
    predictions = np.empty(len(rows), dtype=int)
    for fold in range(numbers.max() + 1):
        train, held_out = np.flatnonzero(numbers != fold), np.flatnonzero(numbers == fold)
        values = baseline_predictions(rows.select(train), rows.select(held_out))
        if values is None:
            return None
        predictions[held_out] = values
    return predictions


def train_frozen(trainer: GMLPTrainer, rows: Dataset, balanced: bool, has_baseline: bool) -> Evaluation:
    """Train and save only the classifier of a model, on its embeddings of the training rows.

    Args:
        trainer: The run, with the tokenized rows.
        rows: The training rows, in the columns of `load_sentences`.
        balanced: Whether to weight classes by the inverse of their number of rows.
        has_baseline: Whether to compute the predictions of the baseline.

    Returns:
        The cross-validated predictions.
    """
    config, args, start = trainer.model.config, trainer.args, time.perf_counter()
    labels, numbers = np.array(rows["labels"]), fold_numbers(rows["labels"][:], FOLDS)
    inputs = embed(trainer.model, trainer.train_dataset, trainer.data_collator, args.per_device_eval_batch_size)
    classifier = fit_classifier(inputs, labels, numbers, config.problem_type, config.num_labels, balanced)
    set_classifier(trainer.model, classifier)
    trainer.save_model(_internal_call=True)
    method = "ridge" if config.problem_type == REGRESSION else "logistic"
    trainer.hyperparameters = {"trained weights": f"only the classifier, by {method} regression on frozen embeddings"}
    trainer.hyperparameters["inverse regularization strength"] = classifier.strength
    logger.info("Trained in %.1f seconds", time.perf_counter() - start)
    baseline = cross_validated_baseline(rows, numbers) if has_baseline else None
    return Evaluation(classifier.logits, labels, visible_columns(rows), baseline, is_cross_validated=True)


def write_predictions(path: Path, logits: np.ndarray, config: PreTrainedConfig):
    """Write "index<tab>prediction" for each sample: the name of the label, the names of several, or a number."""
    if not np.isfinite(logits).all():
        logger.warning("The model's logits are not finite numbers: %s is not written", path)
        return
    names = names_of(predicted(logits, config.problem_type), config)
    table = pandas.DataFrame({"prediction": names}).rename_axis("index")
    write_text(path, table.to_csv(sep="\t", lineterminator="\n"))


def main():
    types = (SentenceModelArguments, GlueArguments, RunArguments)
    model_args, data_args, training_args = parse_arguments(types, __doc__)
    check_evaluation(training_args)
    # Check these flags now; the callbacks are made once the labels are known.
    data_args.callbacks(training_args)
    checkpoint = start_run(model_args, data_args, training_args)
    task, config, train = data_args.task(), build_config(model_args), training_args.do_train
    access = data_access(model_args, data_args, training_args)
    length = sequence_length(config, data_args.max_seq_length, default=512 if task is None else 128)
    workers = data_args.preprocessing_num_workers

    needed = {"train": train, "validation": training_args.do_eval, "test": training_args.do_predict}
    kinds = [kind for kind in needed if needed[kind]]
    with training_args.main_process_first(desc="reading"):
        splits, labels, columns = load_sentences(data_args, kinds, trained=trained_labels(config, HEAD), access=access)
    new_classifier = set_labels(config, labels, HEAD, train=train, new_classifier=model_args.ignore_mismatched_sizes)
    if training_args.label_smoothing_factor and labels.problem_type != ONE_CLASS:
        raise InputError("--label_smoothing_factor is only for data with one class per row: leave it out.")
    metrics = task.metrics if task is not None else METRICS[labels.problem_type]
    loss = None
    if train and data_args.class_weights is not None:
        weights = balanced_weights(splits["train"]["labels"][:], config)
        loss = weighted_loss(training_args.label_smoothing_factor, weights)
    config.text_columns, config.label_column = columns["text_columns"], columns["label_column"]
    freeze = train and should_freeze(config, labels, splits["train"], data_args.fine_tune)
    if freeze and "row" in splits["train"].column_names:
        # Cross-validation replaces the held-out rows.
        rows = concatenate_datasets([splits["train"], splits.pop("validation")])
        splits["train"] = rows.select(np.argsort(rows["row"]))
    # There is no baseline for a teacher's probabilities.
    has_baseline = data_args.baseline and train and labels.problem_type == ONE_CLASS
    has_baseline = has_baseline and not isinstance(splits["train"]["labels"][0], list)

    sentences = texts(splits["train"]) if train else ()
    tokenizer = build_tokenizer(model_args, training_args, sentences, max_length=length, config=config)
    # The saved tokenizer has the length of the texts that the model was trained on.
    tokenizer.model_max_length = length
    with training_args.main_process_first(desc="tokenizing"):
        datasets = {split: tokenize(rows, tokenizer, length, workers, access) for split, rows in splits.items()}
    for split, rows in datasets.items():
        if note := truncation_note(list_value_length(rows.with_format("arrow")[:]["input_ids"]).to_numpy(), length):
            logger.info("%s data: %s (--max_seq_length)", split, note)
    padding = padding_for(config, data_args.pad_to_max_length)
    tests = [split for split in splits if split.startswith("test")]
    # Several validation sets are evaluated separately, with their names before those of the metrics.
    validation = {split[len("validation_") :]: datasets[split] for split in splits if split.startswith("validation")}
    names = [f"{split}_{name}".removeprefix("_") for split in validation for name in ("loss", *metrics)]

    def make_trainer(args: RunArguments, train_rows: Dataset | None, callbacks: list) -> GMLPTrainer:
        # The weights of a new head depend on the seed of the run.
        set_seed(args.seed)
        options = {"train": train, "new_classifier": new_classifier, "length": length}
        return GMLPTrainer(
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

    if train:
        data_args.lengthen(training_args, len(datasets["train"]))
    callbacks, evaluation, baseline = data_args.callbacks(training_args, labels.problem_type), None, None
    if freeze:
        # There are no steps of training between which to evaluate.
        callbacks, training_args.eval_strategy, training_args.load_best_model_at_end = [], IntervalStrategy.NO, False
    trainer = make_trainer(training_args, datasets.get("train"), callbacks)
    if has_baseline and "validation" in splits:
        baseline = baseline_predictions(splits["train"], splits["validation"])
    if baseline is not None:
        right = int((baseline == splits["validation"]["labels"][:]).sum())
        words = accuracy_in_words(right, len(baseline))
        logger.info("The baseline, tf-idf with logistic regression, has the accuracy %s", words)
    if freeze:
        evaluation = train_frozen(trainer, splits["train"], data_args.class_weights is not None, has_baseline)
        results = trainer.evaluate() if "validation" in splits else {}
    else:
        if train and checkpoint is None and training_args.device.type == "cpu":
            log_estimate(trainer, datasets["train"])
        results = trainer.train_and_evaluate(checkpoint)
    if "validation" in splits:
        kept = trainer.compute_metrics
        evaluation = Evaluation(kept.logits, kept.labels, visible_columns(splits["validation"]), baseline)
        held_out = len(splits["validation"])
        if train and not freeze and (folds := data_args.folds(trainer, results["train_runtime"], held_out)):
            rows, tokenized = (concatenate_datasets([x["train"], x["validation"]]) for x in (splits, datasets))
            numbers = fold_numbers(rows["labels"][:], folds)
            logits = cross_validate(make_trainer, trainer, tokenized, numbers)
            evaluation = Evaluation(logits, np.array(rows["labels"]), visible_columns(rows), None, True)
            if baseline is not None:
                evaluation.baseline = cross_validated_baseline(rows, numbers)
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
