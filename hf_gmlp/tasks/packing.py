"""Several documents in a row that do not see each other: where each begins, and samples laid end to end."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase


def restarting_positions(begins: np.ndarray) -> np.ndarray:
    """Returns `position_ids` [m] that count from 0 at the first token and wherever `begins` [m] is true."""
    places = np.arange(len(begins))
    return places - np.maximum.accumulate(np.where(begins, places, 0))


class PackingCollator:
    """Lays tokenized samples end to end in one row without padding, for models that take packed documents.

    A batch has "input_ids", "position_ids" and perhaps "token_type_ids" [1, N]; "labels" and other columns that are not
    per token keep a row for each sample [k, ...].
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self.per_token = set(tokenizer.model_input_names)

    def __call__(self, samples: Sequence[Mapping]) -> dict[str, torch.Tensor]:
        batch = {}
        for key in samples[0].keys() - {"attention_mask"}:
            values = [torch.as_tensor(sample[key]) for sample in samples]
            name = "labels" if key == "label" else key
            batch[name] = torch.cat(values)[None] if key in self.per_token else torch.stack(values)
        places = [torch.arange(len(sample["input_ids"])) for sample in samples]
        return batch | {"position_ids": torch.cat(places)[None]}
