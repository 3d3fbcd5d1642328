"""Fine-tune a gMLP or aMLP (or any AutoModelForQuestionAnswering) to find answers in a text, as in SQuAD. For example:

    hf-gmlp run qa --model_name_or_path my-amlp --dataset_name rajpurkar/squad --do_train --do_eval --output_dir out
    hf-gmlp run qa recipes/finetune-squad-v1.yaml --model_name_or_path my-amlp --output_dir out

The second command trains with five seeds, as the paper does, and reports medians. Questions without an answer (SQuAD
v2.0) need --version_2_with_negative. Name your own files with --train_file, --validation_file and --test_file. The
flags have the names of transformers' own run_qa.py. Recipes (YAML files of flags) may come first; flags override them,
and later recipes override earlier ones.
"""

import logging

from transformers import AutoModelForQuestionAnswering, DataCollatorWithPadding, set_seed

from ...answers import check_windows
from ...tokenizer import padding_for
from ...training import series
from ...training.arguments import ModelArguments, RunArguments, data_access, parse_arguments
from ...training.build import load_config, load_model, load_tokenizer
from ...training.start import start_run
from ...training.trainer import GMLPTrainer
from ..classification import check_evaluation
from .arguments import QAArguments
from .metrics import AnswerMetrics
from .questions import load_questions
from .windows import DECODING_COLUMNS, window_dataset

logger = logging.getLogger(__name__)


def main():
    model_args, data_args, training_args = parse_arguments((ModelArguments, QAArguments, RunArguments), __doc__)
    check_evaluation(training_args)
    checkpoint = start_run(model_args, data_args, training_args)
    runs = series.plan_runs(model_args, data_args, training_args)
    config = load_config(model_args)
    lengths = data_args.window_lengths(config)
    length = lengths["max_seq_length"]

    needed = {"train": training_args.do_train, "validation": training_args.do_eval, "test": training_args.do_predict}
    splits = [split for split in needed if needed[split]]
    questions = load_questions(data_args, splits, data_access(model_args, data_args, training_args))

    words = (text for row in questions.get("train", ()) for text in (row["context"], row["question"]))
    tokenizer = load_tokenizer(model_args, training_args, words, max_length=length, config=config)
    check_windows(tokenizer, **lengths)
    if getattr(config, "type_vocab_size", None) == 1:
        # RoBERTa and its relatives have no second segment.
        tokenizer.model_input_names = [name for name in tokenizer.model_input_names if name != "token_type_ids"]
    # The saved tokenizer has the length of the windows that the model was trained on.
    tokenizer.model_max_length = length
    windows, answers = {}, {}
    for split, rows in questions.items():
        options = lengths | {"num_proc": data_args.preprocessing_num_workers}
        windows[split] = window_dataset(rows, tokenizer, training=split == "train", **options)
        logger.info("%s: %d questions in %d windows", split, len(rows), len(windows[split]))
        if split != "train":
            answers[split] = AnswerMetrics(rows, windows[split], data_args)
            windows[split] = windows[split].remove_columns(DECODING_COLUMNS)
    names = answers["validation"].names() if "validation" in answers else []
    collator = DataCollatorWithPadding(tokenizer, padding_for(config, data_args.pad_to_max_length), max_length=length)

    def run(args: RunArguments, checkpoint: str | None):
        # The weights of a new head depend on the seed of the run.
        set_seed(args.seed)
        options = {"train": args.do_train, "length": length}
        model = load_model(AutoModelForQuestionAnswering, model_args, config, tokenizer, **options)
        trainer = GMLPTrainer(
            model=model,
            args=args,
            train_dataset=windows.get("train"),
            eval_dataset=windows.get("validation"),
            processing_class=tokenizer,
            data_collator=collator,
            compute_metrics=answers.get("validation"),
            metric_names=names and ["loss", *names],
            in_series=bool(data_args.seeds),
            card=data_args.card_facts(model_args),
        )
        metrics = trainer.train_and_evaluate(checkpoint)
        if args.do_eval:
            answers["validation"].write(args, "eval")
        if args.do_predict:
            trainer.compute_metrics = answers["test"]
            output = trainer.predict(windows["test"], metric_key_prefix="predict")
            if output.label_ids is None:
                # Without labels, Trainer does not call `compute_metrics`.
                answers["test"](output)
            metrics |= output.metrics
            answers["test"].write(args, "predict")
        trainer.finish(metrics)

    series.make_runs(training_args, runs, run, checkpoint)
