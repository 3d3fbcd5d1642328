"""BERT's masking: drawn afresh for every training batch, drawn once and for all for evaluation."""

from dataclasses import dataclass

from datasets import Dataset
from transformers import (
    DataCollatorForLanguageModeling,
    DataCollatorForTokenClassification,
    PreTrainedTokenizerBase,
)


@dataclass
class MaskingCollator:
    """
    Pads a batch, and masks it unless `mask_once` did: 15 % of the tokens are to be predicted, of which 80 % become
    [MASK], 10 % a random token and 10 % stay.
    """

    tokenizer: PreTrainedTokenizerBase
    mlm_probability: float = 0.15
    pad_to_multiple_of: int | None = None

    def __post_init__(self):
        self.masking = DataCollatorForLanguageModeling(
            self.tokenizer, mlm_probability=self.mlm_probability, pad_to_multiple_of=self.pad_to_multiple_of
        )
        self.padding = DataCollatorForTokenClassification(self.tokenizer, pad_to_multiple_of=self.pad_to_multiple_of)

    def __call__(self, examples: list[dict]) -> dict:
        return self.padding(examples) if "labels" in examples[0] else self.masking(examples)


def mask_once(dataset: Dataset, tokenizer: PreTrainedTokenizerBase, mlm_probability: float, seed: int) -> Dataset:
    """
    Masks every sequence once, drawn from `seed`, so that an evaluation gives the same number at every step, with any
    batch size and on any number of devices.

    Args:
        dataset: Columns "input_ids" and "special_tokens_mask".

    Returns:
        Columns "input_ids" and "labels", -100 where there is nothing to predict.
    """
    masking = DataCollatorForLanguageModeling(tokenizer, mlm_probability=mlm_probability, seed=seed)

    def mask(example: dict) -> dict:
        batch = masking([example])
        return {"input_ids": batch["input_ids"][0].tolist(), "labels": batch["labels"][0].tolist()}

    # In memory and without a cache: the masks depend on the order in which the generator is called.
    return dataset.map(
        mask, remove_columns=["special_tokens_mask"], keep_in_memory=True, load_from_cache_file=False, desc="Masking"
    )
