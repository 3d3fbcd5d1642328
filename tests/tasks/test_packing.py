"""Documents in one row: each keeps its tokens and labels and counts its positions from 0."""

import numpy as np
import torch

from hf_gmlp.tasks.clm.blocks import CausalCollator
from hf_gmlp.tasks.mlm.masking import MaskedOnce, MaskingCollator
from hf_gmlp.tasks.packing import pad_rows
from hf_gmlp.tokenizer import end_of_text


def test_rows_are_padded_on_the_right():
    rows = [{"input_ids": np.array([7, 8, 9]), "labels": np.array([-100, 8, 9])}, {"input_ids": [6], "labels": [6]}]
    batch = pad_rows(rows, pad_token_id=3)
    assert batch["input_ids"].tolist() == [[7, 8, 9], [6, 3, 3]]
    assert batch["labels"].tolist() == [[-100, 8, 9], [6, -100, -100]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert "attention_mask" not in pad_rows(rows[:1], pad_token_id=3)
    batch = pad_rows(rows[:1], pad_token_id=3, length=4)
    assert batch["input_ids"].tolist() == [[7, 8, 9, 3]] and batch["attention_mask"].tolist() == [[1, 1, 1, 0]]


def test_masked_documents_are_separated(word_tokenizer):
    """Document boundaries are found before masking, and masking is unchanged."""
    sep = word_tokenizer.sep_token_id
    rows = [{"input_ids": np.array(ids)} for ids in ([2, 9, 8, sep, 7, 9, sep], [2, 9, sep])]
    plain, apart = (MaskingCollator(word_tokenizer, 0.9, seed=1, separate_documents=flag) for flag in (False, True))
    assert "position_ids" not in plain(rows)
    batch = apart(rows)
    assert batch["position_ids"].tolist() == [[0, 1, 2, 3, 0, 1, 2], [0, 1, 2, 0, 0, 0, 0]]
    for name in ("input_ids", "labels", "attention_mask"):
        assert torch.equal(batch[name], plain(rows)[name])
    once = apart([MaskedOnce(rows, apart)[0]])
    assert once["position_ids"].tolist() == [[0, 1, 2, 3, 0, 1, 2]]


def test_causal_labels_are_the_tokens_without_the_first_one_and_padding(word_tokenizer):
    # [PAD] with id 0 in a text is a label.
    batch = CausalCollator(word_tokenizer)([{"input_ids": np.array([1, 5, 0, 7])}, {"input_ids": [8, 9], "epoch": 3}])
    assert batch["input_ids"].tolist() == [[1, 5, 0, 7], [8, 9, 0, 0]]
    assert batch["labels"].tolist() == [[-100, 5, 0, 7], [-100, 9, -100, -100]]
    assert "position_ids" not in batch


def test_causal_documents_are_separated_and_their_ends_predicted(word_tokenizer):
    end = end_of_text(word_tokenizer)
    batch = CausalCollator(word_tokenizer, separate_documents=True)(
        [{"input_ids": np.array(ids)} for ids in ([end, 9, 8, end, 7], [6, 9, end])]
    )
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0, 1], [0, 1, 0, 0, 0]]
    assert batch["labels"].tolist() == [[-100, 9, 8, end, 7], [-100, 9, end, -100, -100]]
    assert batch["shift_labels"].tolist() == [[9, 8, end, 7, -100], [9, end, -100, -100, -100]]
