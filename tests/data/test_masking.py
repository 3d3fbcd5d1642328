import numpy as np
import pytest
import torch
from datasets import Dataset

from hf_gmlp.data.masking import MaskingCollator, mask_once

from .test_text import tokenizer  # noqa: F401


@pytest.fixture
def sequences():
    rows = [[2, *range(5, 5 + length), 3] for length in (30, 60, 100) for _ in range(20)]
    return Dataset.from_dict({"input_ids": rows, "special_tokens_mask": [[1, *[0] * (len(r) - 2), 1] for r in rows]})


def test_masks_of_the_evaluation_are_fixed(sequences, tokenizer):  # noqa: F811
    first, again = (mask_once(sequences, tokenizer, 0.15, seed=3) for _ in range(2))
    torch.rand(7)  # nothing else that draws random numbers may matter
    assert list(first["input_ids"]) == list(again["input_ids"]) and list(first["labels"]) == list(again["labels"])
    assert list(mask_once(sequences, tokenizer, 0.15, seed=4)["labels"]) != list(first["labels"])


def test_shares_are_those_of_bert(sequences, tokenizer):  # noqa: F811
    masked = mask_once(sequences, tokenizer, 0.15, seed=0)
    labels = np.concatenate([np.array(row) for row in masked["labels"]])
    inputs = np.concatenate([np.array(row) for row in masked["input_ids"]])
    originals = np.concatenate([np.array(row) for row in sequences["input_ids"]])
    chosen = labels != -100
    assert (labels[chosen] == originals[chosen]).all() and (inputs[~chosen] == originals[~chosen]).all()
    assert not chosen[np.isin(originals, [2, 3])].any()
    # 3,800 tokens: three standard deviations are 0.017 of all, and 0.05 of the chosen ones.
    assert abs(chosen[~np.isin(originals, [2, 3])].mean() - 0.15) < 0.02
    assert abs((inputs[chosen] == 4).mean() - 0.8) < 0.06
    assert abs((inputs[chosen] == originals[chosen]).mean() - 0.1) < 0.05


def test_collator_pads_fixed_masks_and_draws_fresh_ones(sequences, tokenizer):  # noqa: F811
    collator = MaskingCollator(tokenizer, 0.15)
    fixed = mask_once(sequences, tokenizer, 0.15, seed=0)
    batch = collator([fixed[0], fixed[59]])
    assert batch["labels"].shape == batch["input_ids"].shape == (2, 102)
    assert (batch["labels"][0, 32:] == -100).all() and (batch["attention_mask"][0, 32:] == 0).all()
    torch.manual_seed(0)
    one, two = (collator([sequences[i] for i in range(10)])["labels"] for _ in range(2))
    assert not torch.equal(one, two)
