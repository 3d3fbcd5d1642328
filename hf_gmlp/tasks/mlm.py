"""Pretrain a gMLP or aMLP (or any AutoModelForMaskedLM) by masked language modeling. For example:

    hf-gmlp run mlm --config_name gmlp-base --train_file corpus.txt --do_train --do_eval --output_dir out

This also trains a tokenizer on the corpus, since none is named. The flags have the names of transformers' own
run_mlm.py.
"""

import math
import zlib
from dataclasses import dataclass

import numpy as np
import torch
from datasets import Dataset
from transformers import AutoModelForMaskedLM, DataCollatorForLanguageModeling, PreTrainedTokenizerBase

from ..data.documents import load_texts
from ..errors import InputError
from ..training.arguments import ModelArguments, RunArguments, flag, parse_arguments
from ..training.build import build_config, build_model, build_tokenizer, check_packing, sequence_length
from ..training.run_folder import start_run
from ..training.trainer import GMLPTrainer
from ..training.xla import is_xla
from .language_modeling import (
    LanguageModelMetrics,
    TextArguments,
    pad_rows,
    restarting_positions,
    token_losses,
    tokenize,
)


@dataclass
class MLMArguments(TextArguments):
    """The text to train on, and its masking."""

    max_seq_length: int | None = flag("Tokens per sequence; by default, the model's n.", interval="[3, inf)")
    mlm_probability: float = flag("Fraction of tokens to predict.", 0.15, interval="(0, 1)")


class MaskingCollator:
    """Mask and pad a batch.

    The model is trained to predict 15 % of the tokens: 80 % of these become [MASK], 10 % a random token, and 10 % stay.
    Special tokens are never selected, except [UNK], which replaces a word.

    Examples have "input_ids"; those that already have "labels", from `mask_once`, are only padded. With
    `separate_documents`, the batch also has "position_ids", which restart after each [SEP]. With `fixed_count`, it has
    the "masked_positions" of `label_positions`. With `sparse_evaluation`, batches of `mask_once` have them, and only
    their "labels", so that a gMLP computes no other logits. With a `max_length`, all batches have that length.

    Raises:
        InputError: If the tokenizer lacks a special token.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        mlm_probability: float = 0.15,
        seed: int = 0,
        separate_documents: bool = False,
        fixed_count: bool = False,
        sparse_evaluation: bool = False,
        max_length: int | None = None,
    ) -> None:
        if None in (tokenizer.cls_token, tokenizer.sep_token, tokenizer.mask_token, tokenizer.pad_token):
            raise InputError("The tokenizer must have [CLS], [SEP], [MASK] and [PAD]: pass another --tokenizer_name.")
        self.tokenizer, self.seed, self.separate_documents = tokenizer, seed, separate_documents
        self.mlm_probability, self.fixed_count, self.max_length = mlm_probability, fixed_count, max_length
        self.sparse_evaluation = sparse_evaluation
        self.special = [token for token in tokenizer.all_special_ids if token != tokenizer.unk_token_id]
        self.masking = DataCollatorForLanguageModeling(tokenizer, mlm_probability=mlm_probability, return_tensors="np")
        # Shared memory lets worker processes see the current epoch.
        self._epoch = torch.zeros((), dtype=torch.long).share_memory_()

    def set_epoch(self, epoch: int) -> None:
        self._epoch.fill_(epoch)

    def mask(self, example: dict, epoch: int | None) -> dict[str, np.ndarray]:
        """Return "input_ids" and "labels" [m], -100 where nothing is predicted. Epoch None is for evaluation."""
        # The masks depend on these bytes: 64 bits per token, regardless of the dtype of the tokens.
        ids = np.array([example["input_ids"]], dtype=np.int64)
        seeds = [self.seed, zlib.crc32(ids.tobytes())] + ([] if epoch is None else [epoch])
        self.masking.generator = np.random.default_rng(seeds)
        inputs, labels = self.masking.numpy_mask_tokens(ids, special_tokens_mask=np.isin(ids, self.special))
        row = {"input_ids": inputs[0], "labels": labels[0]}
        if self.separate_documents:
            row["position_ids"] = restarting_positions(np.roll(ids[0] == self.tokenizer.sep_token_id, 1))
        return row

    def mask_batch(self, batch: dict[str, list]) -> dict[str, list]:
        """Return the columns of the rows of `mask`, for evaluation."""
        rows = [self.mask({"input_ids": ids}, epoch=None) for ids in batch["input_ids"]]
        return {name: [row[name] for row in rows] for name in rows[0]}

    def __call__(self, examples: list[dict]) -> dict[str, torch.Tensor]:
        epoch = int(self._epoch)
        rows = [row if "labels" in row else self.mask(row, epoch) for row in examples]
        batch = pad_rows(rows, self.tokenizer.pad_token_id, self.max_length)
        is_sparse = self.sparse_evaluation and "labels" in examples[0]
        if self.fixed_count or is_sparse:
            batch["masked_positions"] = label_positions(batch["labels"], self.mlm_probability)
        if is_sparse:
            batch["labels"] = batch["labels"].gather(1, batch["masked_positions"])
        return batch


def label_positions(labels: torch.Tensor, probability: float) -> torch.Tensor:
    """Return the index of every label of a row, filled up with indices of other tokens, in order: [B, m] -> [B, k]

    They are the `masked_positions` of a model. k depends only on m: it is five standard deviations above the
    expected number of labels of a row. If a row has even more labels, k = m, so that none is lost.
    """
    is_label, expected = labels != -100, probability * labels.shape[1]
    indices = is_label.long().argsort(dim=1, descending=True, stable=True)
    count = math.ceil(expected + 5 * math.sqrt(expected))
    count = labels.shape[1] if is_label.sum(1).max() > count else count
    return indices[:, :count].sort(1)[0]


def mask_once(dataset: Dataset, collator: MaskingCollator) -> Dataset:
    """Return sequences with fixed masks, so that an evaluation gives the same result at every step, with any batch size
    and any number of devices.
    """
    return dataset.with_transform(collator.mask_batch)


def main(argv: list[str] | None = None, program: str = "hf-gmlp run mlm") -> None:
    model_args, data_args, args = parse_arguments((ModelArguments, MLMArguments, RunArguments), __doc__, argv, program)
    checkpoint = start_run(model_args, data_args, args)
    config = build_config(model_args)
    length = sequence_length(config, data_args.max_seq_length)

    with args.main_process_first(desc="reading"):
        texts = load_texts(data_args.source(model_args, args), **data_args.loading_options(args))
    documents = (row["text"] for row in texts.get("train", ()) if row["text"])
    tokenizer = build_tokenizer(model_args, args, documents, max_length=length, config=config)
    # All batches of a compiled model should have the same shape.
    is_compiled = is_xla(args) or args.torch_compile
    collator = MaskingCollator(
        tokenizer,
        data_args.mlm_probability,
        args.seed,
        data_args.separate_documents,
        fixed_count=is_compiled and getattr(config, "sparse_prediction", False),
        sparse_evaluation=config.model_type == "gmlp",
        max_length=length if is_xla(args) else None,
    )
    with args.main_process_first(desc="tokenizing"):
        train_dataset, eval_dataset = tokenize(texts, tokenizer, length, **data_args.tokenizing_options(args))

    model = build_model(AutoModelForMaskedLM, model_args, config, tokenizer, train=args.do_train, length=length)
    check_packing(model, data_args.separate_documents)

    args.batch_eval_metrics = True
    # The collator needs columns that are not inputs of the model.
    args.remove_unused_columns = False
    trainer = GMLPTrainer(
        model=model,
        args=args,
        train_dataset=train_dataset,
        eval_dataset=None if eval_dataset is None else mask_once(eval_dataset, collator),
        processing_class=tokenizer,
        data_collator=collator,
        compute_metrics=LanguageModelMetrics(),
        preprocess_logits_for_metrics=token_losses,
        metric_names=("loss", "perplexity", "accuracy"),
        card=data_args.card_facts(model_args, f"{data_args.data_name()}, in sequences of up to {length} tokens"),
    )
    trainer.finish(trainer.train_and_evaluate(checkpoint))
