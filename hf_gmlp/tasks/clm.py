"""Train a causal gMLP or aMLP (or any AutoModelForCausalLM) to predict the next token. For example:

    hf-gmlp run clm --config_name gmlp-base --train_file corpus.txt --do_train --do_eval --output_dir out

This also trains a tokenizer on the corpus, since none is named. Flags have the names of transformers' own run_clm.py.
"""

from dataclasses import dataclass

import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase

from ..data.documents import load_texts
from ..tokenizer import end_of_text, open_ended
from ..training.arguments import ModelArguments, RunArguments, flag, parse_arguments
from ..training.build import (
    build_config,
    build_model,
    build_tokenizer,
    check_causal,
    check_packing,
    check_pretraining,
    sequence_length,
)
from ..training.run_folder import start_run
from ..training.trainer import GMLPTrainer
from ..training.xla import is_xla
from .language_modeling import (
    LanguageModelMetrics,
    TextArguments,
    count_bytes,
    next_token_losses,
    pad_rows,
    restarting_positions,
    tokenize,
)


@dataclass
class CLMArguments(TextArguments):
    """The text to train a causal language model on."""

    block_size: int | None = flag("Tokens per block; by default, the model's n.", interval="[2, inf)")


class CausalCollator:
    """Batches blocks whose labels are their tokens, which a causal language model shifts by one.

    The first token of a block is not a label, since nothing predicts it. Shorter blocks are padded on the right. With
    `separate_documents`, a batch also has "position_ids", which restart at each end-of-text token, and "shift_labels",
    so that the last token of a document predicts its end. With a `max_length`, all batches are padded to this length.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, separate_documents: bool = False, max_length: int | None = None
    ) -> None:
        self.max_length = max_length
        self.separator = end_of_text(tokenizer) if separate_documents else None
        pad = tokenizer.pad_token_id
        # GPT-2's tokenizer has no padding token. Any token can be used, since the mask hides it and it is not a label.
        self.pad_token_id = end_of_text(tokenizer) if pad is None else pad

    def __call__(self, examples: list[dict]) -> dict[str, torch.Tensor]:
        blocks = [np.asarray(example["input_ids"]) for example in examples]
        rows = [{"input_ids": ids, "labels": np.concatenate([[-100], ids[1:]])} for ids in blocks]
        if self.separator is None:
            return pad_rows(rows, self.pad_token_id, self.max_length)
        for row in rows:
            row["position_ids"] = restarting_positions(row["input_ids"] == self.separator)
        batch = pad_rows(rows, self.pad_token_id, self.max_length)
        return batch | {"shift_labels": torch.nn.functional.pad(batch["labels"][:, 1:], (0, 1), value=-100)}


def main(argv: list[str] | None = None, program: str = "hf-gmlp run clm") -> None:
    model_args, data_args, args = parse_arguments((ModelArguments, CLMArguments, RunArguments), __doc__, argv, program)
    checkpoint = start_run(model_args, data_args, args)
    config = build_config(model_args)
    if model_args.model_name_or_path is not None:
        check_pretraining(config, model_args.model_name_or_path, args.do_train)
    length = sequence_length(config, data_args.block_size, flag="block_size")

    with args.main_process_first(desc="reading"):
        texts = load_texts(data_args.source(model_args, args), **data_args.loading_options(args))
    documents = (row["text"] for row in texts.get("train", ()) if row["text"])
    tokenizer = open_ended(build_tokenizer(model_args, args, documents, max_length=length, config=config))
    with args.main_process_first(desc="tokenizing"):
        options = data_args.tokenizing_options(args)
        train_dataset, eval_dataset = tokenize(texts, tokenizer, length, causal=True, **options)
    num_bytes = count_bytes(texts["validation"]["text"]) if args.do_eval else None

    model = build_model(AutoModelForCausalLM, model_args, config, tokenizer, train=args.do_train, length=length)
    check_causal(model)
    check_packing(model, data_args.separate_documents)

    args.batch_eval_metrics = True
    # Trainer need not remove columns: the collator returns only arguments of the model.
    args.remove_unused_columns = False
    trainer = GMLPTrainer(
        model=model,
        args=args,
        train_dataset=train_dataset,
        eval_dataset=eval_dataset,
        processing_class=tokenizer,
        data_collator=CausalCollator(tokenizer, data_args.separate_documents, length if is_xla(args) else None),
        compute_metrics=LanguageModelMetrics(num_bytes),
        preprocess_logits_for_metrics=next_token_losses,
        metric_names=("loss", "perplexity", "accuracy", "bits_per_byte"),
        card=data_args.card_facts(model_args, f"{data_args.data_name()}, in sequences of up to {length} tokens"),
    )
    trainer.finish(trainer.train_and_evaluate(checkpoint))
