"""Train a causal gMLP or aMLP (or any AutoModelForCausalLM) to predict the next token. For example:

    hf-gmlp run clm --config_name gmlp-base --train_file corpus.txt --do_train --do_eval --output_dir out

This also trains a tokenizer on the corpus, since none is named. Flags have the names of transformers' own run_clm.py.
Recipes (YAML files of flags) may come first; flags override them, and later recipes override earlier ones.
"""

from transformers import AutoModelForCausalLM

from ...tokenizer import open_ended
from ...training.arguments import ModelArguments, RunArguments, data_access, parse_arguments
from ...training.build import check_causal, check_packing, check_pretraining, load_config, load_model, load_tokenizer
from ...training.start import start_run
from ...training.trainer import GMLPTrainer
from ...training.xla import is_xla
from ..perplexity import LanguageModelMetrics, next_token_losses
from ..text import count_bytes, load_texts, tokenize
from .arguments import CLMArguments
from .blocks import CausalCollator


def main():
    model_args, data_args, training_args = parse_arguments((ModelArguments, CLMArguments, RunArguments), __doc__)
    checkpoint = start_run(model_args, data_args, training_args)
    train, validate, seed = training_args.do_train, training_args.do_eval, training_args.seed
    access = data_access(model_args, data_args, training_args)
    config = load_config(model_args)
    if model_args.model_name_or_path is not None:
        check_pretraining(config, model_args.model_name_or_path, train)
    length = data_args.sequence_length(config)

    with training_args.main_process_first(desc="reading"):
        texts = load_texts(data_args, train=train, validate=validate, seed=seed, access=access)
    words = (row["text"] for row in texts.get("train", ()) if row["text"])
    tokenizer = open_ended(load_tokenizer(model_args, training_args, words, max_length=length, config=config))
    options = {"causal": True, "seed": seed, "access": access}
    with training_args.main_process_first(desc="tokenizing"):
        train_dataset, eval_dataset = tokenize(texts, tokenizer, length, data_args, **options)
    num_bytes = count_bytes(texts["validation"]["text"]) if validate else None
    description = data_args.description(train_dataset, eval_dataset, length)

    model = load_model(AutoModelForCausalLM, model_args, config, tokenizer, train=train, length=length)
    check_causal(model)
    check_packing(model, data_args)

    training_args.batch_eval_metrics = True
    # Trainer need not remove columns: the collator returns only arguments of the model.
    training_args.remove_unused_columns = False
    collator = CausalCollator(tokenizer, data_args.separate_documents, length if is_xla(training_args) else None)
    trainer = GMLPTrainer(
        model=model,
        args=training_args,
        train_dataset=train_dataset,
        eval_dataset=eval_dataset,
        processing_class=tokenizer,
        data_collator=collator,
        compute_metrics=LanguageModelMetrics(num_bytes),
        preprocess_logits_for_metrics=next_token_losses,
        metric_names=("loss", "perplexity", "accuracy", "bits_per_byte"),
        card=data_args.card_facts(model_args, description),
    )
    trainer.finish(trainer.train_and_evaluate(checkpoint))
