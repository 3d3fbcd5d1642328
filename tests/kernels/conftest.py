"""Pairs of blocks with the same weights, far from the initial ones: one naive, one fast; and their comparison."""

import copy

import pytest
import torch

from hf_gmlp.kernels import fft, lean
from hf_gmlp.kernels.predicate import may_stand_in
from hf_gmlp.models.modeling_gmlp import GMLPBlock


@pytest.fixture
def make_block(text_config, randomize):
    """make_block(**fields): a naive block and a lean one with the same far weights, in float64."""

    def make(**fields):
        config = text_config(**{"gating_implementation": "lean"} | fields)
        config._attn_implementation = "eager"
        block = GMLPBlock(config).double()
        block.spatial_gating_unit.proj.reset_parameters(0.3)
        randomize(block)
        assert may_stand_in(block, torch.zeros(1, 1, config.hidden_size, dtype=torch.double))
        return naive_copy(block), block

    return make


def naive_copy(block):
    # It has its own config.
    naive = copy.deepcopy(block)
    naive.config.gating_implementation = "naive"
    return naive


@pytest.fixture
def naive_of():
    """naive_of(block): a copy of a block that computes naively."""
    return naive_copy


@pytest.fixture
def lean_calls(monkeypatch):
    """A list that grows by one with every lean block."""
    calls, branch = [], lean.lean_branch

    def counted(*args):
        calls.append(1)
        return branch(*args)

    monkeypatch.setattr(lean, "lean_branch", counted)
    return calls


@pytest.fixture
def fft_calls(monkeypatch):
    """A list that grows by one with every product by FFT, in a lean block or not."""
    calls, product = [], fft.toeplitz_product_fft

    def counted(*args):
        calls.append(1)
        return product(*args)

    for module in (fft, lean):
        monkeypatch.setattr(module, "toeplitz_product_fft", counted)
    return calls


@pytest.fixture
def short_fft(monkeypatch):
    """FFT for the short sequences of these tests too."""
    monkeypatch.setattr(fft, "FFT_LENGTH", 1)


def forward_and_backward(block, x, padding_mask=None):
    x = x.detach().requires_grad_()
    output = block(x, padding_mask)
    grad = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).sin().view_as(output)
    inputs = [x, *(parameter for parameter in block.parameters() if parameter.requires_grad)]
    return [output.detach(), *torch.autograd.grad(output, inputs, grad, allow_unused=True)]


@pytest.fixture
def output_and_gradients():
    """output_and_gradients(block, x, padding_mask=None): the output, then the gradients of x and of the parameters."""
    return forward_and_backward


def errors(found, expected):
    """The largest differences, each in units of the largest expected number."""
    assert [value is None for value in found] == [value is None for value in expected]
    pairs = [(a, b) for a, b in zip(found, expected, strict=True) if a is not None]
    assert all(a.dtype == b.dtype and a.shape == b.shape for a, b in pairs)
    return [((a - b).abs().max() / b.abs().max().clamp(min=1e-3)).item() for a, b in pairs if a.numel()]


@pytest.fixture
def assert_close():
    """assert_close(found, expected, tolerance=1e-12): two lists of tensors are the same in float64."""

    def check(found, expected, tolerance=1e-12):
        assert max(errors(found, expected)) <= tolerance

    return check


@pytest.fixture
def assert_same(assert_close):
    """assert_same(naive, lean, x, padding_mask=None): two blocks give the same outputs and gradients."""

    def check(naive, lean, x, padding_mask=None, tolerance=1e-12):
        expected = forward_and_backward(naive, x, padding_mask)
        assert_close(forward_and_backward(lean, x, padding_mask), expected, tolerance)
        with torch.no_grad():
            assert_close([lean(x, padding_mask)], expected[:1], tolerance)

    return check
