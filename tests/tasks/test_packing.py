"""Samples and documents in one row: each keeps its tokens and labels and counts its places from 0."""

import numpy as np
import pytest
import torch

from hf_gmlp.tasks.clm.blocks import CausalCollator
from hf_gmlp.tasks.mlm.masking import MaskedOnce, MaskingCollator
from hf_gmlp.tasks.packing import PackingCollator, restarting_positions
from hf_gmlp.tokenizer import byte_tokenizer, end_of_text, train_tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(["a tale of two cities and of one more city by the sea"] * 9, vocab_size=362, max_length=32)


def test_positions_restart():
    begins = np.array([False, False, True, False, True, True])
    assert restarting_positions(begins).tolist() == [0, 1, 0, 1, 0, 0]
    assert restarting_positions(begins[:0]).tolist() == []


def test_samples_share_a_row(tokenizer):
    samples = [
        dict(tokenizer("two cities", "a tale")) | {"label": 0.5},
        dict(tokenizer("the sea")) | {"label": 1.5},
    ]
    batch = PackingCollator(tokenizer)(samples)
    assert set(batch) == {"input_ids", "token_type_ids", "position_ids", "labels"}
    for name in ("input_ids", "token_type_ids"):
        assert batch[name].tolist() == [samples[0][name] + samples[1][name]]
    assert batch["position_ids"].tolist() == [
        [*range(len(samples[0]["input_ids"])), *range(len(samples[1]["input_ids"]))]
    ]
    assert batch["labels"].tolist() == [0.5, 1.5]


def test_several_labels_per_sample_stay_rows(tokenizer):
    """Several labels per sample stay a row per sample, whatever their number."""
    samples = [{"input_ids": [5, 6], "labels": [1.0, 0.0]}, {"input_ids": [7, 8], "labels": [0.0, 1.0]}]
    assert PackingCollator(tokenizer)(samples)["labels"].tolist() == [[1.0, 0.0], [0.0, 1.0]]


def test_masked_documents_are_separated(tokenizer):
    """Borders come from the unmasked text, and the masks are the usual ones."""
    sep = tokenizer.sep_token_id
    rows = [{"input_ids": np.array(ids)} for ids in ([2, 9, 8, sep, 7, 9, sep], [2, 9, sep])]
    plain, apart = (MaskingCollator(tokenizer, 0.9, seed=1, separate_documents=flag) for flag in (False, True))
    assert "position_ids" not in plain(rows)
    batch = apart(rows)
    assert batch["position_ids"].tolist() == [[0, 1, 2, 3, 0, 1, 2], [0, 1, 2, 0, 0, 0, 0]]
    for name in ("input_ids", "labels", "attention_mask"):
        assert torch.equal(batch[name], plain(rows)[name])
    once = apart([MaskedOnce(rows, apart)[0]])
    assert once["position_ids"].tolist() == [[0, 1, 2, 3, 0, 1, 2]]


def test_causal_documents_are_separated_and_their_ends_predicted():
    tokenizer = byte_tokenizer(32)
    end = end_of_text(tokenizer)
    batch = CausalCollator(tokenizer, separate_documents=True)(
        [{"input_ids": np.array(ids)} for ids in ([end, 9, 8, end, 7], [6, 9, end])]
    )
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0, 1], [0, 1, 0, 0, 0]]
    assert batch["labels"].tolist() == [[-100, 9, 8, end, 7], [-100, 9, end, -100, -100]]
    assert batch["shift_labels"].tolist() == [[9, 8, end, 7, -100], [9, end, -100, -100, -100]]
