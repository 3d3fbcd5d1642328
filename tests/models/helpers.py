"""Functions that several tests use to compare models."""

import pytest
import torch
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from hf_gmlp.models.modeling_gmlp import SpatialProjection

from ..numerics import assert_close, assert_gradients

ATTENTIONS = [None, "eager", "sdpa"]


def attention_fields(attention):
    """Return config fields of a gMLP if `attention` is None, or of an aMLP with this implementation of attention."""
    return {} if attention is None else {"attention_size": 8, "attn_implementation": attention}


def make_projection(length=None, heads=1, *, toeplitz=False, grid=None, reach=None, dtype=torch.float32):
    """Return a spatial projection with random weights for `length` tokens or a grid of patches."""
    length = grid[0] * grid[1] if grid else length
    projection = SpatialProjection(length, toeplitz or grid is not None, heads, grid, reach).to(dtype)
    for parameter in projection.parameters():
        torch.nn.init.normal_(parameter)
    return projection


def padded(rows, side="left", pad=0):
    """Return the ids and the mask [B, m] of rows of different lengths, with padding on the left or right."""
    ids = pad_sequence(rows, batch_first=True, padding_value=pad, padding_side=side)
    return ids, pad_sequence([torch.ones_like(row) for row in rows], batch_first=True, padding_side=side)


# The two text models that differ most.
KINDS_OF_GMLP = pytest.mark.parametrize("fields", [{}, {"toeplitz": False, "attention_size": 8}], ids=["gMLP", "aMLP"])


def gradients(model, loss):
    """Run the backward pass; return the gradients of all parameters by name, and clear them."""
    loss.backward()
    by_name = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    model.zero_grad()
    return by_name


def labeled_batch(model_class):
    """Return a labeled batch for a head: 4 texts of 9 tokens with padding, or 4 images of 16 x 16 pixels."""
    name, classes = model_class.__name__, torch.tensor([0, 2, 1, 1])
    if "Image" in name:
        return {"pixel_values": torch.randn(4, 3, 16, 16), "labels": classes}
    if "MultipleChoice" in name:
        return {"input_ids": torch.randint(5, 40, (4, 3, 9)), "labels": classes}
    inputs = {"input_ids": torch.randint(5, 40, (4, 9)), "attention_mask": torch.ones(4, 9, dtype=torch.long)}
    inputs["attention_mask"][1, 5:] = 0
    if "QuestionAnswering" in name:
        return inputs | {"start_positions": torch.tensor([1, 0, 8, 2]), "end_positions": torch.tensor([2, 4, 8, 3])}
    if "SequenceClassification" in name:
        return inputs | {"labels": classes}
    labels = inputs["input_ids"] % 3 if "Token" in name else inputs["input_ids"]
    return inputs | {"labels": torch.where(torch.rand(4, 9) < 0.5, labels, -100)}


def assert_losses_and_gradients(model, vanishing=()):
    """Assert that the loss is that of PyTorch, that every parameter gets a gradient, and that accumulated gradients
    equal those of one batch."""
    inputs = labeled_batch(type(model))
    output = model.train()(**inputs)
    if "labels" in inputs:
        expected = F.cross_entropy(output.logits.flatten(0, -2), inputs["labels"].flatten())
    else:
        start = F.cross_entropy(output.start_logits, inputs["start_positions"])
        expected = (start + F.cross_entropy(output.end_logits, inputs["end_positions"])) / 2
    torch.testing.assert_close(output.loss, expected)
    output.loss.backward(retain_graph=True)
    assert_gradients(model, vanishing)
    model.zero_grad()
    expected, total = gradients(model, output.loss), 0.0
    # Trainer passes the number of labels in all accumulated batches.
    count = (inputs["labels"] != -100).sum() if "labels" in inputs else torch.tensor(4)
    for rows in (slice(0, 1), slice(1, 4)):
        part = model(**{key: value[rows] for key, value in inputs.items()}, num_items_in_batch=count)
        part.loss.backward()
        total += part.loss.item()
    assert total == pytest.approx(output.loss.item(), rel=1e-5)
    assert_close({name: parameter.grad for name, parameter in model.named_parameters()}, expected, depth=2)


@torch.no_grad()
def assert_padding_is_hidden(model):
    """Assert that a row has the same outputs alone and in a batch, for padding on either side and any padding token."""
    rows = [torch.randint(5, 40, (length,)) for length in (5, 9, 1)]
    for side, pad in (("left", 0), ("right", 7)):
        ids, mask = padded(rows, side, pad)
        for any_mask in (mask, mask.bool(), mask.float()):
            output = model(ids, any_mask)
            for i, row in enumerate(rows):
                actual = {name: x[i][mask[i] == 1] if x.shape[1] == 9 else x[i] for name, x in output.items()}
                assert_close(actual, {name: x[0] for name, x in model(row[None]).items()}, depth=2)
    # Outputs are finite even if all rows consist of padding.
    assert all(value.isfinite().all() for value in model(ids, 0 * mask).values())
