"""Fine-tune a gMLP or aMLP (or any AutoModelForSequenceClassification) on GLUE or on your own texts. For example:

    hf-gmlp run glue --model_name_or_path my-gmlp --task_name sst2 --do_train --do_eval --output_dir out
    hf-gmlp run glue recipes/finetune-sst2.yaml --model_name_or_path my-gmlp --output_dir out

For your own texts, `hf-gmlp classify` is simpler. The flags have the names of transformers' own run_glue.py.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pandas
from datasets import Dataset
from transformers import AutoModelForSequenceClassification, DataCollatorWithPadding, set_seed

from ..data.labels import ONE_CLASS, REGRESSION, Labels, set_labels, trained_labels
from ..data.sentences import (
    check_text_columns,
    load_sentences,
    sequence_lengths,
    texts,
    tokenize_sentences,
    truncation_note,
)
from ..errors import InputError
from ..metrics.scores import DEFAULT_METRICS, names_of, predicted
from ..tokenizer import padding_for
from ..training.arguments import LabeledTextArguments, ModelArguments, RunArguments, flag, parse_arguments
from ..training.build import build_config, build_model, build_tokenizer, sequence_length
from ..training.run_folder import start_run, write_text
from ..training.trainer import GMLPTrainer
from .classification import (
    ClassificationArguments,
    balanced_weights,
    classification_metrics,
    logits_only,
    weighted_loss,
)

logger = logging.getLogger(__name__)

HEAD = "ForSequenceClassification"


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

    def loading_options(self) -> dict[str, object]:
        """Return the arguments of `load_sentences`."""
        options: dict[str, object] = {"max_rows": self.max_rows(), "held_out": self.train_val_split}
        options |= {"text_columns": self.text_column_names, "label_column": self.label_column_name}
        task = TASKS.get(self.task_name)
        if task is None:
            return options | {"do_regression": self.do_regression}
        options["text_columns"] = self.text_column_names or task.columns
        options["parts"] = {kind: task.splits(kind) for kind in ("train", "validation", "test")}
        labels = Labels(list(task.labels), ONE_CLASS) if task.labels else Labels(None, REGRESSION)
        return options | {"labels": labels, "do_regression": self.do_regression}


def predict_splits(trainer: GMLPTrainer, tests: Mapping[str, Dataset]) -> dict[str, float]:
    """Write "index<tab>prediction" for each sample of the test splits, and return the metrics of those with labels.

    A prediction is the name of a label, the names of several, or a number.
    """
    results: dict[str, float] = {}
    for split, rows in tests.items():
        output = trainer.predict(rows, metric_key_prefix=split)
        results |= output.metrics
        if trainer.is_world_process_zero():
            config = trainer.model.config
            names = names_of(predicted(output.predictions, config.problem_type), config)
            table = pandas.DataFrame({"prediction": names}).rename_axis("index")
            path = Path(trainer.args.output_dir, f"{split}_predictions.tsv" if len(tests) > 1 else "predictions.tsv")
            write_text(path, table.to_csv(sep="\t", lineterminator="\n"))
    return results


def main(argv: list[str] | None = None, program: str = "hf-gmlp run glue") -> None:
    model_args, data_args, args = parse_arguments((ModelArguments, GlueArguments, RunArguments), __doc__, argv, program)
    checkpoint = start_run(model_args, data_args, args)
    task, config, train = TASKS.get(data_args.task_name), build_config(model_args), args.do_train
    length = sequence_length(config, data_args.max_seq_length, default=512 if task is None else 128)

    needed = {"train": train, "validation": args.do_eval, "test": args.do_predict}
    options = data_args.loading_options() | {"trained": trained_labels(config, HEAD)}
    source, kinds = data_args.source(model_args, args), [kind for kind in needed if needed[kind]]
    with args.main_process_first(desc="reading"):
        splits, labels, config.text_columns, config.label_column = load_sentences(source, kinds, **options)
    new_classifier = set_labels(config, labels, HEAD, train=train, new_classifier=data_args.ignore_mismatched_sizes)
    if (args.label_smoothing_factor or data_args.class_weights) and labels.problem_type != ONE_CLASS:
        raise InputError("--label_smoothing_factor and --class_weights need one class per row: leave them out.")
    metrics, loss = task.metrics if task is not None else DEFAULT_METRICS[labels.problem_type], None
    if train and data_args.class_weights is not None:
        weights = balanced_weights(splits["train"]["labels"][:], config)
        loss = weighted_loss(args.label_smoothing_factor, weights)

    sentences = texts(splits["train"]) if train else ()
    tokenizer = build_tokenizer(model_args, args, sentences, max_length=length, config=config)
    # The saved tokenizer has the length of the texts that the model was trained on.
    tokenizer.model_max_length = length
    padding = padding_for(config, data_args.pad_to_max_length)
    with args.main_process_first(desc="tokenizing"):
        options = {"num_proc": data_args.preprocessing_num_workers, "overwrite_cache": source.access.overwrite_cache}
        datasets = {split: tokenize_sentences(rows, tokenizer, length, **options) for split, rows in splits.items()}
    for split, rows in datasets.items():
        if note := truncation_note(sequence_lengths(rows), length):
            logger.info("%s data: %s (--max_seq_length)", split, note)
    # Several validation sets are evaluated separately, with their names before those of the metrics.
    validation = {split[len("validation_") :]: datasets[split] for split in splits if split.startswith("validation")}

    # The weights of a new head depend on the seed, and not on what preparing the data has used of it.
    set_seed(args.seed)
    options = {"train": train, "new_classifier": new_classifier, "length": length}
    trainer = GMLPTrainer(
        model=build_model(AutoModelForSequenceClassification, model_args, config, tokenizer, **options),
        args=args,
        train_dataset=datasets.get("train"),
        eval_dataset=validation.get("", validation or None),
        processing_class=tokenizer,
        data_collator=DataCollatorWithPadding(tokenizer, padding, max_length=length),
        compute_loss_func=loss,
        compute_metrics=classification_metrics(metrics, config),
        preprocess_logits_for_metrics=logits_only,
        callbacks=data_args.callbacks(args, labels.problem_type),
        metric_names=[f"{split}_{name}".removeprefix("_") for split in validation for name in ("loss", *metrics)],
        card=data_args.card_facts(model_args),
    )
    results = trainer.train_and_evaluate(checkpoint)
    results |= predict_splits(trainer, {split: datasets[split] for split in splits if split.startswith("test")})
    trainer.finish(results)
