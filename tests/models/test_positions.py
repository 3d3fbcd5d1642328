"""Positions as an input: W[p_i, p_j] and b[p_i] for tokens wherever they stand, and what hooks see of them.

The reference for the spatial projection is a loop over tokens.
"""

import pytest
import torch

from hf_gmlp import (
    GMLPForCausalLM,
    GMLPForMaskedLM,
    GMLPForSequenceClassification,
    GMLPModel,
)
from hf_gmlp.models.spatial_gating import SpatialProjection, find_positions

from .helpers import attention_fields, padded

# ---------------------------------------------------------------------------------------------------------------------
# Which entries of W and b are used


def loop(projection, v, rows, seen):
    """f[i] = sum over the tokens j that i sees of W[p_i, p_j] v[j] + b[p_i], for v [m, E]."""
    size = v.shape[1] // projection.heads
    # For each channel, what its head has.
    whole = projection.matrix().repeat_interleave(size, 0)
    biases, output = projection.bias.view(projection.heads, -1).repeat_interleave(size, 0), []
    for i, row in enumerate(rows):
        f = biases[:, row]
        for j, column in enumerate(rows):
            if seen[i, j]:
                f = f + whole[:, row, column] * v[j]
        output.append(f)
    return torch.stack(output)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("toeplitz", [True, False])
@pytest.mark.parametrize("case", ["counted", "gaps", "padding", "gaps and padding", "documents", "gaps and documents"])
def test_entries_of_the_spatial_projection(text_config, toeplitz, is_causal, case):
    """Outputs and gradients of W, b and v."""
    config = text_config(toeplitz=toeplitz)
    projection = SpatialProjection(12, toeplitz, 3).double()
    for parameter in projection.parameters():
        torch.nn.init.normal_(parameter)
    mask = torch.ones(2, 8, dtype=torch.long)
    rows, numbers = torch.arange(8).expand(2, -1).clone(), torch.zeros(2, 8, dtype=torch.long)
    if "documents" in case:
        numbers = torch.tensor([[0, 0, 0, 1, 1, 2, 2, 2], [0, 0, 0, 0, 0, 0, 1, 1]])
        rows = torch.tensor([[0, 1, 2, 0, 1, 0, 1, 2], [0, 1, 2, 3, 4, 5, 0, 1]])
    if "padding" in case:
        mask[0, :3], mask[1, 6:] = 0, 0
        rows[0] -= 3
    given = None
    if "gaps" in case:
        given = rows = torch.tensor([[0, 2, 3, 7, 8, 9, 10, 11], [1, 2, 4, 5, 6, 8, 9, 11]])
    positions = find_positions(
        config, torch.arange(8), is_causal, mask if "padding" in case else None, given,
        numbers if "documents" in case else None,
    )  # fmt: skip
    v = torch.randn(2, 8, 6, dtype=torch.double) * mask[..., None]
    v.requires_grad_()
    found, seen = projection(v, positions), (numbers[:, :, None] == numbers[:, None]) & (mask[:, None] == 1)
    seen = seen.tril() if is_causal else seen
    weights, parameters = torch.randn_like(found) * mask[..., None], [*projection.parameters(), v]
    expected = torch.stack([loop(projection, v[i], rows[i].clamp(min=0).tolist(), seen[i]) for i in range(2)])
    torch.testing.assert_close(found[mask == 1], expected[mask == 1], rtol=1e-10, atol=1e-10)
    gradients = [torch.autograd.grad((output * weights).sum(), parameters) for output in (found, expected)]
    shown = mask[..., None]
    for a, b in zip(*gradients):
        a, b = (a * shown, b * shown) if a.shape == v.shape else (a, b)
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_counted_positions_change_nothing(far_model, text_config, random_ids):
    for model_class in (GMLPModel, GMLPForMaskedLM, GMLPForSequenceClassification):
        model = far_model(model_class, text_config(attention_size=8))
        ids = random_ids(2, 9)
        left, mask = padded([random_ids(5), random_ids(9)])
        positions = (mask.cumsum(-1) - 1).masked_fill(mask == 0, 1)
        assert torch.equal(model(ids, position_ids=torch.arange(9)[None])[0], model(ids)[0])
        torch.testing.assert_close(model(left, mask, position_ids=positions)[0], model(left, mask)[0])


@pytest.mark.parametrize("positions", [[0, 1, 2, 3, 4, 12], [-2, 1, 2, 3, 4, 5]])
def test_positions_out_of_range_are_refused(far_model, text_config, random_ids, positions):
    with pytest.raises(ValueError, match="`position_ids` must be from 0 to 11"):
        far_model(GMLPModel, text_config())(random_ids(1, 6), position_ids=torch.tensor([positions]))


def test_a_position_that_occurs_twice_in_a_document(far_model, text_config, random_ids):
    model, ids = far_model(GMLPModel, text_config()), random_ids(1, 6)
    with pytest.raises(ValueError, match="twice"):
        model(ids, position_ids=torch.tensor([[0, 1, 2, 3, 1, 4]]), seq_idx=torch.tensor([[0, 0, 0, 1, 0, 0]]) // 2)
    # In two documents it may, and under padding.
    model(ids, position_ids=torch.tensor([[0, 1, 2, 3, 1, 4]]), seq_idx=torch.tensor([[0, 0, 0, 0, 1, 1]]))
    model(ids, torch.tensor([[0, 0, 0, 1, 1, 1]]), position_ids=torch.tensor([[1, 1, 1, 3, 5, 9]]))


# ---------------------------------------------------------------------------------------------------------------------
# Padding in front of a sequence: no token is moved


@pytest.mark.parametrize("mask_padding", [True, False])
@torch.no_grad()
def test_padding_on_the_left_is_padding_on_the_right(text_config, far_model, random_ids, mask_padding):
    model = far_model(GMLPModel, text_config(mask_padding=mask_padding, **attention_fields("eager"))).double()
    rows = [random_ids(length) for length in (5, 9, 1)]
    outputs = []
    for side in ("left", "right"):
        ids, mask = padded(rows, side)
        # Segments stand with their tokens.
        outputs.append(model(ids, mask, ids % 2, output_hidden_states=True, output_attentions=True))
    for i, row in enumerate(rows):
        n = len(row)
        for found, expected in zip(*(output.hidden_states for output in outputs)):
            torch.testing.assert_close(found[i, 9 - n :], expected[i, :n], atol=1e-10, rtol=1e-10)
        for found, expected in zip(*(output.attentions for output in outputs)):
            torch.testing.assert_close(found[i, 0, 9 - n :, 9 - n :], expected[i, 0, :n, :n], atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(outputs[0].pooler_output, outputs[1].pooler_output, atol=1e-10, rtol=1e-10)


# ---------------------------------------------------------------------------------------------------------------------
# Hooks and steering


@pytest.mark.parametrize("model_class", [GMLPForMaskedLM, GMLPForCausalLM])
@torch.no_grad()
def test_steering_a_token(far_model, text_config, random_ids, model_class):
    """A vector added to the last token's state behind the first block has the same effect with and without padding."""
    model = far_model(model_class, text_config(attention_size=8)).double()
    row, others = random_ids(5), random_ids(9)
    left, mask = padded([row, others])
    vector = torch.randn(16, dtype=torch.double)

    def steer(module, args, output):
        output = output.clone()
        output[0, -1] += vector
        return output

    plain = model(row[None]).logits[0]
    handle = model.model.layers[0].register_forward_hook(steer)
    expected = model(row[None]).logits[0]
    assert (expected[-1] - plain[-1]).abs().max() > 0.01
    found = model(left, mask).logits
    torch.testing.assert_close(found[0, 4:], expected, rtol=1e-10, atol=1e-10)
    handle.remove()
    torch.testing.assert_close(found[1], model(others[None]).logits[0], rtol=1e-10, atol=1e-10)
