"""Positions, lengths and grids that do not fit the model are refused; test_reference.py tests the outputs."""

import pytest
import torch
from transformers import DynamicCache

from hf_gmlp import GMLPModel
from hf_gmlp.models.modeling_gmlp import find_positions

from .helpers import make_projection


def project_in_a_loop(projection, v, rows, seen):
    """Return f[i], the sum of W[p_i, p_j] v[j] over the tokens j that i sees, plus b[p_i], for v [m, E]."""
    size = v.shape[1] // projection.heads
    # Expand the parameters of each head to its channels.
    matrix = projection.matrix().repeat_interleave(size, 0)
    biases, output = projection.bias.view(projection.heads, -1).repeat_interleave(size, 0), []
    for i, row in enumerate(rows):
        f = biases[:, row]
        for j, column in enumerate(rows):
            if seen[i, j]:
                f = f + matrix[:, row, column] * v[j]
        output.append(f)
    return torch.stack(output)


@pytest.mark.parametrize(
    "inputs, message",
    [
        ({"position_ids": torch.tensor([[0, 1, 2, 3, 4, 12]])}, "`position_ids`.* 11"),
        ({"position_ids": torch.tensor([[-2, 1, 2, 3, 4, 5]])}, "`position_ids`.* 11"),
        ({"position_ids": torch.arange(7)[None]}, r"`position_ids`.*\(1, 6\)"),
        # With a cache, a row holds one document, whose positions count its tokens.
        ({"position_ids": torch.arange(6)[None] + 1, "use_cache": True}, "use_cache=False"),
        ({"position_ids": torch.arange(6)[None] - 20, "use_cache": True}, "use_cache=False"),
        ({"position_ids": torch.tensor([[0, 1, 2, 0, 1, 2]]), "past_key_values": DynamicCache()}, "use_cache=False"),
        ({"input_ids": torch.arange(6)}, r"\[batch, tokens\].*\(6,\)"),
        ({"input_ids": torch.ones(1, 0, dtype=torch.long)}, "at least one token"),
    ],
)
def test_wrong_positions_are_refused(perturbed_model, text_config, random_ids, inputs, message):
    with pytest.raises(ValueError, match=message):
        perturbed_model(GMLPModel, text_config(is_causal=True))(**{"input_ids": random_ids(1, 6)} | inputs)


@torch.no_grad()
def test_a_packed_row_does_not_change_its_batch_mates(perturbed_model, text_config, random_ids):
    """Without `mask_padding`, padding stays visible in rows of one document, beside a row of two."""
    model = perturbed_model(GMLPModel, text_config(mask_padding=False, attention_size=8)).double()
    ids, mask = random_ids(2, 8), torch.tensor([[1] * 6 + [0] * 2] * 2)
    positions = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 0, 1, 2, 3, 4]])
    output = model(ids, mask, position_ids=positions).last_hidden_state
    for row in range(2):
        rows = (x[row : row + 1] for x in (ids, mask, positions))
        alone = model(*(next(rows), next(rows)), position_ids=next(rows)).last_hidden_state
        torch.testing.assert_close(output[row, :6], alone[0, :6], rtol=1e-10, atol=1e-10)
    # Padding changes the first row, but not the second.
    hidden = model(ids[:, :6], position_ids=positions[:, :6]).last_hidden_state
    assert (output[0, :6] - hidden[0]).abs().max() > 0.01
    torch.testing.assert_close(output[1, :6], hidden[1], rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_counting_real_tokens_removes_the_hidden_ones(perturbed_model, text_config, random_ids):
    """The positions of `cumsum` are those of the remaining tokens; by default, tokens keep their distances."""
    model = perturbed_model(GMLPModel, text_config(attention_size=8)).double()
    ids, mask = random_ids(1, 8), torch.tensor([[1, 1, 1, 0, 0, 1, 1, 1]])
    counted = model(ids, mask, position_ids=mask.cumsum(-1) - 1).last_hidden_state[mask == 1]
    removed = model(ids[mask == 1][None]).last_hidden_state[0]
    torch.testing.assert_close(counted, removed, rtol=1e-10, atol=1e-10)
    indices = model(ids, mask, position_ids=torch.arange(8)[None]).last_hidden_state[mask == 1]
    torch.testing.assert_close(indices, model(ids, mask).last_hidden_state[mask == 1], rtol=1e-10, atol=1e-10)
    assert (indices - removed).abs().max() > 0.01


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("fields", [{}, {"spatial_reach": 3}, {"toeplitz": False}], ids=["Toeplitz", "reach", "dense"])
@pytest.mark.parametrize("case", ["counted", "gaps", "padding", "gaps and padding", "documents", "gaps and documents"])
def test_entries_of_the_spatial_projection(text_config, fields, is_causal, case):
    """Compare outputs and the gradients of W, b and v with the loop."""
    config = text_config(is_causal=is_causal, **fields)
    projection = make_projection(12, 3, toeplitz=config.toeplitz, reach=config.spatial_reach, dtype=torch.double)
    mask = torch.ones(2, 8, dtype=torch.long)
    rows, numbers = torch.arange(8).expand(2, -1).clone(), torch.zeros(2, 8, dtype=torch.long)
    position_ids = None
    if "documents" in case:
        numbers = torch.tensor([[0, 0, 0, 1, 1, 2, 2, 2], [0, 0, 0, 0, 0, 0, 1, 1]])
        position_ids = rows = torch.tensor([[0, 1, 2, 0, 1, 0, 1, 2], [0, 1, 2, 3, 4, 5, 0, 1]])
    if "padding" in case:
        mask[0, :3], mask[1, 6:] = 0, 0
        rows[0] -= 3
    if "gaps" in case:
        position_ids = rows = torch.tensor([[0, 2, 3, 7, 8, 9, 10, 11], [1, 2, 4, 5, 6, 8, 9, 11]])
        if "documents" in case:
            position_ids = rows = torch.tensor([[0, 2, 11, 7, 9, 1, 3, 4], [1, 2, 4, 5, 6, 8, 8, 11]])
    positions = find_positions(config, torch.zeros(2, 8), mask if "padding" in case else None, position_ids)
    v = torch.randn(2, 8, 6, dtype=torch.double) * mask[..., None]
    v.requires_grad_()
    actual, seen = projection(v, positions), (numbers[:, :, None] == numbers[:, None]) & (mask[:, None] == 1)
    seen = seen.tril() if is_causal else seen
    weights, parameters = torch.randn_like(actual) * mask[..., None], [*projection.parameters(), v]
    expected = torch.stack(
        [project_in_a_loop(projection, v[i], rows[i].clamp(min=0).tolist(), seen[i]) for i in range(2)]
    )
    torch.testing.assert_close(actual[mask == 1], expected[mask == 1], rtol=1e-10, atol=1e-10)
    for output_gradients in zip(*(torch.autograd.grad((x * weights).sum(), parameters) for x in (actual, expected))):
        # Gradients of padding are arbitrary.
        pair = (x * mask[..., None] if x.shape == v.shape else x for x in output_gradients)
        torch.testing.assert_close(*pair, rtol=1e-10, atol=1e-10)
