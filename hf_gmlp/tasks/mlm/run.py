"""Pretrain a gMLP or aMLP (or any AutoModelForMaskedLM) by masked language modeling. For example:

    hf-gmlp run mlm --config_name gmlp-base --train_file corpus.txt --do_train --do_eval --output_dir out

This also trains a tokenizer on the corpus, since none is named. The flags have the names of transformers' own
run_mlm.py. Recipes (YAML files of flags) may come first; flags override them, and later recipes override earlier ones.
"""

from transformers import AutoModelForMaskedLM

from ...training.arguments import ModelArguments, RunArguments, data_access, parse_arguments
from ...training.build import check_packing, load_config, load_model, load_tokenizer
from ...training.start import start_run
from ...training.trainer import GMLPTrainer
from ...training.xla import is_xla
from ..perplexity import LanguageModelMetrics, token_losses
from ..text import load_texts, tokenize
from .arguments import MLMArguments
from .masking import MaskedOnce, MaskingCollator


def main():
    model_args, data_args, training_args = parse_arguments((ModelArguments, MLMArguments, RunArguments), __doc__)
    checkpoint = start_run(model_args, data_args, training_args)
    train, validate, seed = training_args.do_train, training_args.do_eval, training_args.seed
    access = data_access(model_args, data_args, training_args)
    config = load_config(model_args)
    length = data_args.sequence_length(config)

    with training_args.main_process_first(desc="reading"):
        texts = load_texts(data_args, train=train, validate=validate, seed=seed, access=access)
    words = (row["text"] for row in texts.get("train", ()) if row["text"])
    tokenizer = load_tokenizer(model_args, training_args, words, max_length=length, config=config)
    # All batches of a compiled model should have the same shape.
    is_compiled = is_xla(training_args) or training_args.torch_compile
    collator = MaskingCollator(
        tokenizer,
        data_args.mlm_probability,
        seed,
        data_args.separate_documents,
        fixed_count=is_compiled and getattr(config, "sparse_prediction", False),
        max_length=length if is_xla(training_args) else None,
    )
    with training_args.main_process_first(desc="tokenizing"):
        train_dataset, eval_dataset = tokenize(texts, tokenizer, length, data_args, seed=seed, access=access)
    description = data_args.description(train_dataset, eval_dataset, length)

    model = load_model(AutoModelForMaskedLM, model_args, config, tokenizer, train=train, length=length)
    check_packing(model, data_args)

    training_args.batch_eval_metrics = True
    # The collator needs columns that are not inputs of the model.
    training_args.remove_unused_columns = False
    trainer = GMLPTrainer(
        model=model,
        args=training_args,
        train_dataset=train_dataset,
        eval_dataset=None if eval_dataset is None else MaskedOnce(eval_dataset, collator),
        processing_class=tokenizer,
        data_collator=collator,
        compute_metrics=LanguageModelMetrics(),
        preprocess_logits_for_metrics=token_losses,
        metric_names=("loss", "perplexity", "accuracy"),
        card=data_args.card_facts(model_args, description),
    )
    trainer.finish(trainer.train_and_evaluate(checkpoint))
