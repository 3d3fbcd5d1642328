"""BERT's masking: sampled again in every epoch of training, but only once for evaluation.

The masks of a sequence depend only on its tokens, the seed and the epoch: not on the batch, the number of devices or
worker processes, or whether the run was resumed.
"""

import math
import zlib

import numpy as np
import torch
from datasets import Dataset
from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerBase

from ...errors import InputError
from ..packing import pad_rows, restarting_positions


class MaskingCollator:
    """Mask and pad a batch.

    The model is trained to predict 15 % of the tokens: 80 % of these become [MASK], 10 % a random token, and 10 % stay.
    With whole-word masking, whole words are selected, and all of their tokens become [MASK]. Special tokens are never
    selected, except [UNK], which replaces a word.

    Examples have "input_ids" and, for whole words, "offset_mapping"; those that already have "labels", from
    `MaskedOnce`, are only padded. With `separate_documents`, the batch also has "position_ids", which restart after
    each [SEP]. With `fixed_count`, it has the "masked_positions" of `find_labels`. With a `max_length`, all batches
    have that length.

    Raises:
        InputError: If the tokenizer lacks a special token.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        mlm_probability: float = 0.15,
        whole_word_mask: bool = False,
        seed: int = 0,
        separate_documents: bool = False,
        fixed_count: bool = False,
        max_length: int | None = None,
    ):
        if None in (tokenizer.cls_token, tokenizer.sep_token, tokenizer.mask_token, tokenizer.pad_token):
            advice = "choose another with --tokenizer_name, or leave that flag out to train one"
            raise InputError(f"The tokenizer must have [CLS], [SEP], [MASK] and [PAD]: {advice}.")
        self.tokenizer, self.seed, self.separate_documents = tokenizer, seed, separate_documents
        self.mlm_probability, self.fixed_count, self.max_length = mlm_probability, fixed_count, max_length
        self.special = [token for token in tokenizer.all_special_ids if token != tokenizer.unk_token_id]
        self.masking = DataCollatorForLanguageModeling(
            tokenizer,
            mlm_probability=mlm_probability,
            whole_word_mask=whole_word_mask,
            # transformers' whole-word masking has no random replacement.
            mask_replace_prob=1.0 if whole_word_mask else 0.8,
            random_replace_prob=0.0 if whole_word_mask else 0.1,
            return_tensors="np",
        )
        # Shared memory lets worker processes see the current epoch.
        self._epoch = torch.zeros((), dtype=torch.long).share_memory_()

    def set_epoch(self, epoch: int):
        self._epoch.fill_(epoch)

    def mask(self, example: dict, epoch: int | None) -> dict[str, np.ndarray]:
        """Return "input_ids" and "labels" [m], -100 where nothing is predicted. Epoch None is for evaluation."""
        # The masks depend on these bytes: 64 bits per token, regardless of the dtype of the tokens.
        ids = np.array([example["input_ids"]], dtype=np.int64)
        seeds = [self.seed, zlib.crc32(ids.tobytes())] + ([] if epoch is None else [epoch])
        self.masking.generator = np.random.default_rng(seeds)
        inputs, labels = self.masking.numpy_mask_tokens(
            ids,
            special_tokens_mask=np.isin(ids, self.special),
            offset_mapping=np.array([example["offset_mapping"]]) if self.masking.whole_word_mask else None,
        )
        row = {"input_ids": inputs[0], "labels": labels[0]}
        if self.separate_documents:
            row["position_ids"] = restarting_positions(np.roll(ids[0] == self.tokenizer.sep_token_id, 1))
        return row

    def __call__(self, examples: list[dict]) -> dict[str, torch.Tensor]:
        epoch = int(self._epoch)
        rows = [row if "labels" in row else self.mask(row, epoch) for row in examples]
        batch = pad_rows(rows, self.tokenizer.pad_token_id, self.max_length)
        if self.fixed_count:
            batch["masked_positions"] = find_labels(batch["labels"], self.mlm_probability)
        return batch


def find_labels(labels: torch.Tensor, probability: float) -> torch.Tensor:
    """Return the index of every label of a row, filled up with indices of other tokens: [B, m] -> [B, k]

    They are the `masked_positions` of a compiled model. k depends only on m: it is five standard deviations above the
    expected number of labels of a row. If a row has even more labels, k = m, so that none is lost.
    """
    is_label, expected = labels != -100, probability * labels.shape[1]
    indices = is_label.long().argsort(dim=1, descending=True, stable=True)
    count = math.ceil(expected + 5 * math.sqrt(expected))
    return indices if is_label.sum(1).max() > count else indices[:, :count]


class MaskedOnce(torch.utils.data.Dataset):
    """Sequences with fixed masks, so that an evaluation gives the same result at every step, with any batch size and
    any number of devices.

    Rows are those of `MaskingCollator.mask`.

    Raises:
        InputError: If there is nothing to predict.
    """

    def __init__(self, dataset: Dataset, collator: MaskingCollator):
        self.dataset, self.collator = dataset, collator
        # The loop usually ends after the first row.
        if not any((self[index]["labels"] != -100).any() for index in range(len(self))):
            raise InputError("The masks leave nothing to predict: add validation text, or raise --mlm_probability.")

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        return self.collator.mask(self.dataset[index], epoch=None)
