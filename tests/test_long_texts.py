"""Rows of the example on long texts."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from examples import long_texts
from hf_gmlp import GMLPForMaskedLM


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("count", [5, 16, 17, 64, 67])
def test_every_token_is_predicted_once_in_a_row_that_has_it(count, overlap):
    rows = list(long_texts.rows_of(count, 16, overlap))
    assert [index for _, part in rows for index in range(count)[part]] == list(range(count))
    for row, part in rows:
        assert row.stop - row.start == 16 and row.start <= part.start < part.stop <= row.stop
        # In overlapping rows, only the ends of the text are near the end of a row.
        assert not overlap or (part.start in (0, row.start + 4) and part.stop in (count, row.stop - 4))


@torch.no_grad()
def test_loss_in_overlapping_rows(perturbed_model, text_config):
    model = perturbed_model(GMLPForMaskedLM, text_config(max_position_embeddings=8, toeplitz=True))
    ids = torch.randint(5, model.config.vocab_size, (12,))
    masked = torch.tensor([0, 1, 0, 0, 1, 1, 0, 1, 0, 0, 1, 0]).bool()
    inputs = ids.masked_fill(masked, 4)
    logits = torch.cat([model(inputs[None, :8]).logits[0, :6], model(inputs[None, 4:]).logits[0, 2:]])
    expected = cross_entropy(logits[masked], ids[masked])
    assert long_texts.masked_loss(model, ids, masked, 8, 4, overlap=True) == pytest.approx(expected.item(), rel=1e-4)
