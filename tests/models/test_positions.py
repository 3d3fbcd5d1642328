"""Positions as an input: W[p_i, p_j] and b[p_i] of every token, and what hooks see of them."""

import pytest
import torch

from hf_gmlp import GMLPForCausalLM, GMLPForMaskedLM, GMLPModel
from hf_gmlp.models.spatial_gating import SpatialProjection, find_positions

from .helpers import padded


def loop(projection, v, rows, seen):
    """f[i] = sum over the tokens j that i sees of W[p_i, p_j] v[j] + b[p_i], for v [m, E]."""
    size = v.shape[1] // projection.heads
    # For each channel, what its head has.
    matrix = projection.matrix().repeat_interleave(size, 0)
    biases, output = projection.bias.view(projection.heads, -1).repeat_interleave(size, 0), []
    for i, row in enumerate(rows):
        f = biases[:, row]
        for j, column in enumerate(rows):
            if seen[i, j]:
                f = f + matrix[:, row, column] * v[j]
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
    position_ids = None
    if "gaps" in case:
        position_ids = rows = torch.tensor([[0, 2, 3, 7, 8, 9, 10, 11], [1, 2, 4, 5, 6, 8, 9, 11]])
    positions = find_positions(
        config, torch.arange(8), is_causal, mask if "padding" in case else None, position_ids,
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


@pytest.mark.parametrize("positions", [[0, 1, 2, 3, 4, 12], [-2, 1, 2, 3, 4, 5]])
def test_positions_out_of_range_are_refused(perturbed_model, text_config, random_ids, positions):
    with pytest.raises(ValueError, match="`position_ids`.* 11"):
        perturbed_model(GMLPModel, text_config())(random_ids(1, 6), position_ids=torch.tensor([positions]))


def test_a_position_that_occurs_twice_in_a_document(perturbed_model, text_config, random_ids):
    model, ids = perturbed_model(GMLPModel, text_config()), random_ids(1, 6)
    with pytest.raises(ValueError, match="twice"):
        model(ids, position_ids=torch.tensor([[0, 1, 2, 3, 1, 4]]), seq_idx=torch.tensor([[0, 0, 0, 1, 0, 0]]) // 2)
    # In two documents it may, and under padding.
    model(ids, position_ids=torch.tensor([[0, 1, 2, 3, 1, 4]]), seq_idx=torch.tensor([[0, 0, 0, 0, 1, 1]]))
    model(ids, torch.tensor([[0, 0, 0, 1, 1, 1]]), position_ids=torch.tensor([[1, 1, 1, 3, 5, 9]]))


@pytest.mark.parametrize("model_class", [GMLPForMaskedLM, GMLPForCausalLM])
@torch.no_grad()
def test_steering_a_token(perturbed_model, text_config, random_ids, model_class):
    """A vector added to the last token's state behind the first block has the same effect with and without padding."""
    model = perturbed_model(model_class, text_config(attention_size=8)).double()
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
