"""Fine-tune a gMLP or aMLP (or any AutoModelForSequenceClassification) on GLUE or on your own texts. For example:

    hf-gmlp run glue --model_name_or_path my-gmlp --task_name sst2 --do_train --do_eval --output_dir out
    hf-gmlp run glue recipes/finetune-sst2.yaml --model_name_or_path my-gmlp --output_dir out
    hf-gmlp classify --model_name_or_path my-gmlp --train_file tickets.csv --label_column_name category --output_dir out

The second command trains with five seeds, as the paper does, and reports medians. The third is for your own texts: it
uses recipes/classify.yaml, holds out a tenth of the rows, and compares with tf-idf. The flags have the names of
transformers' own run_glue.py. Recipes (YAML files of flags) may come first; flags override them, and later recipes
override earlier ones.
"""

from pathlib import Path

from transformers import AutoModelForSequenceClassification, DataCollatorWithPadding, set_seed

from ...errors import InputError
from ...tokenizer import padding_for
from ...training import series
from ...training.arguments import RunArguments, data_access, parse_arguments
from ...training.build import load_config, load_model, load_tokenizer
from ...training.start import start_run
from ...training.trainer import GMLPTrainer
from ..classification import (
    KeptEvaluation,
    balanced_weights,
    check_evaluation,
    classification_loss,
    logits_only,
    write_report,
)
from ..labels import ONE_CLASS, set_labels, trained_labels
from .arguments import GlueArguments, SentenceModelArguments
from .metrics import METRICS, baseline_scores, classification_metrics, write_predictions
from .sentences import load_sentences, report_truncation, texts, tokenize, visible_columns

HEAD = "ForSequenceClassification"


def main():
    types = (SentenceModelArguments, GlueArguments, RunArguments)
    model_args, data_args, training_args = parse_arguments(types, __doc__)
    check_evaluation(training_args)
    data_args.callbacks(training_args)
    checkpoint = start_run(model_args, data_args, training_args)
    runs = series.plan_runs(model_args, data_args, training_args)
    task, config, train = data_args.task(), load_config(model_args), training_args.do_train
    access = data_access(model_args, data_args, training_args)
    length = data_args.sequence_length(config, default=512 if task is None else 128)

    needed = {"train": train, "validation": training_args.do_eval, "test": training_args.do_predict}
    kinds = [kind for kind in needed if needed[kind]]
    with training_args.main_process_first(desc="reading"):
        splits, labels = load_sentences(data_args, kinds, trained=trained_labels(config, HEAD), access=access)
    new_classifier = set_labels(config, labels, HEAD, train=train, new_classifier=model_args.ignore_mismatched_sizes)
    if training_args.label_smoothing_factor and labels.problem_type != ONE_CLASS:
        raise InputError("--label_smoothing_factor is only for data with one class per row: leave it out.")
    metrics = task.metrics if task is not None else METRICS[labels.problem_type]
    loss = None
    if train and data_args.class_weights is not None:
        weights = balanced_weights(splits["train"]["labels"][:], config)
        loss = classification_loss(training_args.label_smoothing_factor, weights)
    baseline = {}
    if data_args.baseline and train and "validation" in splits and training_args.process_index == 0:
        baseline = baseline_scores(splits["train"], splits["validation"], config, metrics)

    sentences = texts(splits["train"]) if train else ()
    tokenizer = load_tokenizer(model_args, training_args, sentences, max_length=length, config=config)
    # The saved tokenizer has the length of the texts that the model was trained on.
    tokenizer.model_max_length = length
    with training_args.main_process_first(desc="tokenizing"):
        datasets = {split: tokenize(rows, tokenizer, length, data_args, access) for split, rows in splits.items()}
    report_truncation(datasets, length)
    padding = padding_for(config, data_args.pad_to_max_length)
    tests = [split for split in splits if split.startswith("test")]
    # Several validation sets are evaluated separately, with their names before those of the metrics.
    validation = {split[len("validation_") :]: datasets[split] for split in splits if split.startswith("validation")}
    names = [f"{split}_{name}".removeprefix("_") for split in validation for name in ("loss", *metrics)]

    def run(args: RunArguments, checkpoint: str | None):
        # The weights of a new head depend on the seed of the run.
        set_seed(args.seed)
        if train:
            data_args.lengthen(args, len(datasets["train"]))
        options = {"train": train, "new_classifier": new_classifier, "length": length}
        model = load_model(AutoModelForSequenceClassification, model_args, config, tokenizer, **options)
        kept = KeptEvaluation(classification_metrics(metrics, config))
        trainer = GMLPTrainer(
            model=model,
            args=args,
            train_dataset=datasets.get("train"),
            eval_dataset=validation.get("", validation or None),
            processing_class=tokenizer,
            data_collator=DataCollatorWithPadding(tokenizer, padding, max_length=length),
            compute_loss_func=loss,
            compute_metrics=kept,
            preprocess_logits_for_metrics=logits_only,
            callbacks=data_args.callbacks(args),
            metric_names=names,
            in_series=bool(data_args.seeds),
            card=data_args.card_facts(model_args),
        )
        results = trainer.train_and_evaluate(checkpoint) | baseline
        if "validation" in splits and trainer.is_world_process_zero():
            write_report(trainer, kept, visible_columns(splits["validation"]))
        for split in tests:
            output = trainer.predict(datasets[split], metric_key_prefix=split)
            results |= output.metrics
            if trainer.is_world_process_zero():
                name = "predictions.tsv" if len(tests) == 1 else f"{split}_predictions.tsv"
                write_predictions(Path(args.output_dir, name), output.predictions, config)
        trainer.finish(results)

    series.make_runs(training_args, runs, run, checkpoint)
