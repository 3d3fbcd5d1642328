"""Batches of blocks for causal language modeling."""

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from ...tokenizer import end_of_text
from ..packing import pad_rows, restarting_positions


class CausalCollator:
    """Batches blocks whose labels are their tokens, which a causal language model shifts by one.

    The first token of a block is not a label, since nothing predicts it. Shorter blocks are padded on the right. With
    `separate_documents`, a batch also has "position_ids", which restart at each end-of-text token, and "shift_labels",
    so that the last token of a document predicts its end. With a `max_length`, all batches are padded to this length.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, separate_documents: bool = False, max_length: int | None = None
    ):
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
