"""BERT's masking: drawn afresh in every epoch of the training, drawn once and for all for evaluation.

The masks of a sequence are a function of its tokens, the seed and the epoch. They do not depend on the batch, the
number of devices or of worker processes, nor on whether the run was cut off and resumed.
"""

import zlib

import numpy as np
import torch
from datasets import Dataset
from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerBase


class MaskingCollator:
    """
    Masks and pads a batch: 15 % of the tokens are to be predicted, of which 80 % become [MASK], 10 % a random token
    and 10 % stay. With whole-word masking, whole words are chosen, and all of their tokens become [MASK].

    Args:
        tokenizer: Has [MASK] and [PAD].
        mlm_probability: The share of tokens to be predicted.
        whole_word_mask: Needs examples with a column "offset_mapping".
        seed: Where the masks are drawn from.

    Examples have the columns "input_ids" and "special_tokens_mask"; those with "labels", which `mask_once` masked, are
    only padded.

    Returns:
        "input_ids" and "labels" [batch, m], -100 where there is nothing to predict, and, if the sequences differ in
        length, "attention_mask".
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        mlm_probability: float = 0.15,
        whole_word_mask: bool = False,
        seed: int = 0,
    ):
        self.tokenizer = tokenizer
        self.seed = seed
        self.masking = DataCollatorForLanguageModeling(
            tokenizer,
            mlm_probability=mlm_probability,
            whole_word_mask=whole_word_mask,
            # The library's whole-word masking has no random replacement.
            mask_replace_prob=1.0 if whole_word_mask else 0.8,
            random_replace_prob=0.0 if whole_word_mask else 0.1,
            return_tensors="np",
        )
        # Shared memory, so that worker processes see an epoch begin.
        self._epoch = torch.zeros((), dtype=torch.long).share_memory_()

    def set_epoch(self, epoch: int):
        """Other masks from here on."""
        self._epoch.fill_(epoch)

    def mask(self, example: dict, epoch: int | None) -> dict[str, list[int]]:
        """One example's "input_ids" and "labels"; an epoch of None is the evaluation's."""
        ids = np.array([example["input_ids"]])
        draw = [self.seed, zlib.crc32(ids.tobytes())] + ([] if epoch is None else [epoch])
        self.masking.generator = np.random.default_rng(draw)
        inputs, labels = self.masking.numpy_mask_tokens(
            ids,
            special_tokens_mask=np.array([example["special_tokens_mask"]]),
            offset_mapping=np.array([example["offset_mapping"]]) if self.masking.whole_word_mask else None,
        )
        return {"input_ids": inputs[0].tolist(), "labels": labels[0].tolist()}

    def __call__(self, examples: list[dict]) -> dict[str, torch.Tensor]:
        epoch = int(self._epoch)
        # An example of an endless stream says itself which reading of the data it comes from.
        rows = [row if "labels" in row else self.mask(row, row.get("epoch", epoch)) for row in examples]
        return pad_rows(rows, self.tokenizer.pad_token_id)


def pad_rows(rows: list[dict[str, list[int]]], pad_token_id: int) -> dict[str, torch.Tensor]:
    """
    A batch of rows with "input_ids" and "labels", padded on the right to the longest.

    Returns:
        "input_ids" and "labels" [batch, m], -100 at the padding, and, if the rows differ in length, "attention_mask".
    """
    lengths = [len(row["input_ids"]) for row in rows]
    longest = max(lengths)
    padding = {"input_ids": pad_token_id, "labels": -100}
    batch = {
        key: torch.tensor([row[key] + [value] * (longest - len(row[key])) for row in rows])
        for key, value in padding.items()
    }
    if min(lengths) < longest:
        batch["attention_mask"] = (torch.arange(longest) < torch.tensor(lengths)[:, None]).long()
    return batch


def mask_once(dataset: Dataset, collator: MaskingCollator) -> Dataset:
    """
    Masks every sequence once and for all, so that an evaluation gives the same number at every step, with any batch
    size and on any number of devices.

    Args:
        dataset: Columns "input_ids" and "special_tokens_mask".

    Returns:
        Columns "input_ids" and "labels", -100 where there is nothing to predict.
    """
    masked = [collator.mask(example, epoch=None) for example in dataset]
    return Dataset.from_list(masked)
