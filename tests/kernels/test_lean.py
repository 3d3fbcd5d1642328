"""The lean block against the naive one: outputs, gradients, and what is kept for the backward pass."""

import copy
import random
from functools import partial

import pytest
import torch
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from hf_gmlp import GMLPForMaskedLM, kernels
from hf_gmlp.kernels import lean as lean_module
from hf_gmlp.kernels.lean import lean_branch
from hf_gmlp.kernels.triton import can_use_triton
from hf_gmlp.models.modeling_gmlp import GMLPBlock, naive_gating

from ..samples import GATINGS

needs_triton = pytest.mark.skipif(
    not can_use_triton(torch.device("cpu")), reason="triton is not installed, or not interpreted"
)


def five_of_nine():
    return torch.tensor([[1] * 9, [1] * 5 + [0] * 4])


@pytest.mark.parametrize("attention_size", [0, 8])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("toeplitz", [False, True])
@pytest.mark.parametrize("gating", GATINGS)
def test_lean_is_naive(make_block, assert_same, lean_calls, gating, toeplitz, padded, attention_size):
    naive, lean = make_block(spatial_gating=gating, toeplitz=toeplitz, attention_size=attention_size)
    # Fewer tokens than n = 12: gradients of the rest are zero.
    assert_same(naive, lean, torch.randn(2, 9, 16, dtype=torch.double), five_of_nine() if padded else None)
    assert_same(naive, lean, torch.randn(1, 12, 16, dtype=torch.double))
    assert len(lean_calls) == 4


@pytest.mark.parametrize("toeplitz", [False, True])
@pytest.mark.parametrize("gating", GATINGS)
def test_causal_blocks(make_block, assert_same, gating, toeplitz):
    naive, lean = make_block(is_causal=True, toeplitz=toeplitz, spatial_gating=gating)
    x = torch.randn(2, 9, 16, dtype=torch.double)
    assert_same(naive, lean, x)
    later = torch.cat([x[:, :6], torch.randn(2, 3, 16, dtype=torch.double)], dim=1)
    assert torch.equal(lean(later)[:, :6], lean(x)[:, :6])


@pytest.mark.parametrize("number", range(40))
def test_blocks_of_any_kind(make_block, monkeypatch, output_and_gradients, assert_close, lean_calls, number):
    """Random shapes, settings and masks; slices of one sample; frozen parameters; and the FFT for some."""
    draw = random.Random(number)
    gating, width, n = draw.choice(GATINGS), draw.choice([5, 8, 24, 65]), draw.choice([1, 2, 7, 12, 40])
    fields = {
        "spatial_gating": gating,
        "hidden_size": draw.choice([5, 16, 33]),
        "intermediate_size": width * (2 if gating == "split" else 1),
        "max_position_embeddings": n,
        "attention_size": draw.choice([0, 4]),
        "toeplitz": draw.choice([False, True]),
        "is_causal": draw.choice([False, True]),
    }
    monkeypatch.setattr("hf_gmlp.kernels.fft.FFT_LENGTH", draw.choice([1, 100]))
    monkeypatch.setattr(lean_module, "SLICE_BYTES", draw.choice([2**13, 2**24]))
    batch, length = draw.randint(1, 7), draw.randint(1, n)
    x = torch.randn(length, batch, fields["hidden_size"], dtype=torch.double).transpose(0, 1)
    mask = draw.choice([None, torch.rand(batch, length) < 0.7, (torch.rand(batch, length) < 0.7).long()])
    naive, lean = make_block(**fields)
    frozen = [name for name, _ in lean.named_parameters() if draw.random() < 0.2]
    for block in (naive, lean):
        for name in frozen:
            block.get_parameter(name).requires_grad_(False)
    expected = output_and_gradients(naive, x, mask)
    assert_close(output_and_gradients(lean, x, mask), expected, 1e-11)
    with torch.inference_mode():
        assert_close([lean(x, mask)], expected[:1])
    assert len(lean_calls) == 2


def test_names_of_implementations(text_config, lean_calls, monkeypatch):
    x = torch.randn(2, 9, 16)

    def goes_lean(**fields):
        lean_calls.clear()
        GMLPBlock(text_config(**fields))(x)
        return bool(lean_calls)

    assert goes_lean(gating_implementation="lean") and not goes_lean(gating_implementation="naive")
    assert text_config().gating_implementation == "auto"
    monkeypatch.setattr(kernels, "X86", True)
    assert goes_lean()
    monkeypatch.setattr(kernels, "X86", False)
    assert not goes_lean()


def test_with_a_cache_blocks_are_naive(text_config, lean_calls):
    block = GMLPBlock(text_config(gating_implementation="lean", is_causal=True))
    x, first = torch.randn(2, 9, 16), torch.tensor([0, 3])
    torch.testing.assert_close(block(x, first=first), x + naive_gating(block, x, first=first))
    assert not lean_calls


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("attention_size", [0, 8])
@pytest.mark.parametrize("toeplitz", [False, True])
@pytest.mark.parametrize("gating", GATINGS)
def test_triton_kernels(
    make_block, monkeypatch, assert_same, assert_close, output_and_gradients, gating, toeplitz, attention_size
):
    fields = {"spatial_gating": gating, "toeplitz": toeplitz, "attention_size": attention_size}
    naive, lean = make_block(gating_implementation="triton", **fields)
    calls = []
    for name in ("gating_forward", "gating_backward"):
        kernel = getattr(lean_module, name)
        counted = partial(lambda kernel, *args, **kwargs: calls.append(1) or kernel(*args, **kwargs), kernel)
        monkeypatch.setattr(lean_module, name, counted)
    x, mask = torch.randn(2, 9, 16), five_of_nine()
    expected = output_and_gradients(naive, x.double(), mask)
    # Kernels have no double precision.
    assert_same(naive, lean, x.double(), mask)
    assert not calls
    lean.float()
    found = output_and_gradients(lean, x, mask)
    assert len(calls) == 2
    assert_close([value.double() for value in found], expected, 1e-5)
    with torch.no_grad():
        assert_close([lean(x, mask)], found[:1], 1e-6)
    assert len(calls) == 3


@needs_triton
@pytest.mark.parametrize("frozen", [["spatial_gating_unit.proj"], ["proj_out"], ["proj_in", "norm"]])
def test_triton_kernels_with_frozen_parameters(make_block, assert_close, output_and_gradients, frozen):
    naive, lean = make_block(gating_implementation="triton")
    x = torch.randn(2, 9, 16)
    for block in (naive, lean.float()):
        for name in frozen:
            block.get_submodule(name).requires_grad_(False)
    found, expected = output_and_gradients(lean, x), output_and_gradients(naive, x.double())
    assert_close([value.double() for value in found], expected, 1e-5)


@pytest.mark.skipif(not lean_module.ONEDNN_LINEAR, reason="the products of oneDNN are for x86")
# PyTorch's message on leaving `flags`.
@pytest.mark.filterwarnings("ignore:TF32 acceleration")
@pytest.mark.parametrize("gating", GATINGS)
def test_products_of_onednn(make_block, monkeypatch, assert_close, output_and_gradients, gating):
    naive, lean = (block.float() for block in make_block(spatial_gating=gating))
    calls = []
    usual = lean_module._uses_onednn
    monkeypatch.setattr(lean_module, "_uses_onednn", lambda x: calls.append(usual(x)) or calls[-1])
    x = torch.randn(2, 9, 16)

    def results(block):
        with torch.no_grad():
            output = block(x)
        return [*output_and_gradients(block, x), output]

    expected = results(naive)
    assert_close(results(lean), expected, 1e-5)
    assert calls and all(calls)
    calls.clear()
    with torch.backends.mkldnn.flags(enabled=False):
        assert_close(results(lean), expected, 1e-5)
    assert calls and not any(calls)


@pytest.mark.parametrize("missing", ["operator", "machine"])
def test_without_the_linear_layer_of_onednn(make_block, monkeypatch, assert_close, output_and_gradients, missing):
    if missing == "machine":
        monkeypatch.setattr(lean_module.platform, "machine", lambda: "aarch64")
    else:
        monkeypatch.setattr(torch.ops, "mkldnn", object())
    assert lean_module.onednn_linear() is None
    monkeypatch.setattr(lean_module, "ONEDNN_LINEAR", None)
    naive, lean = (block.float() for block in make_block())
    x = torch.randn(2, 9, 16)
    assert_close(output_and_gradients(lean, x), output_and_gradients(naive, x), 1e-5)


def test_a_gradient_without_memory_of_its_own(make_block):
    """A sum gives every output the same gradient, and PyTorch one number for all of them."""
    naive, lean = (block.float() for block in make_block())
    x = torch.randn(2, 9, 16)
    naive_gating(naive, x).sum().backward()
    lean_branch(lean, x).sum().backward()
    for found, expected in zip(lean.parameters(), naive.parameters(), strict=True):
        if expected.grad is not None:
            torch.testing.assert_close(found.grad, expected.grad, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("attention_size", [0, 8])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("gating", GATINGS)
def test_inference_in_slices_of_the_batch(make_block, monkeypatch, assert_close, gating, padded, attention_size):
    naive, lean = make_block(spatial_gating=gating, attention_size=attention_size)
    # Two of the five samples at a time.
    monkeypatch.setattr(lean_module, "SLICE_BYTES", 2 * 9 * lean.proj_out.in_features * 8)
    sizes = []
    forward = lean_module._forward

    def counted(x, *args, **kwargs):
        sizes.append(len(x))
        return forward(x, *args, **kwargs)

    monkeypatch.setattr(lean_module, "_forward", counted)
    x = torch.randn(5, 9, 16, dtype=torch.double)
    mask = torch.tensor([[1] * 9, [1] * 5 + [0] * 4, [1] * 9, [1] + [0] * 8, [1] * 8 + [0]]) if padded else None
    with torch.no_grad():
        assert_close([lean(x, mask)], [naive(x, mask)])
    assert sizes == [2, 2, 1]


def test_a_mask_for_all_samples_at_once(make_block, monkeypatch, assert_close):
    naive, lean = make_block()
    monkeypatch.setattr(lean_module, "SLICE_BYTES", 1)
    x, mask = torch.randn(5, 9, 16, dtype=torch.double), five_of_nine()[1:]
    with torch.no_grad():
        assert_close([lean(x, mask)], [naive(x, mask)])


def test_memory_may_be_given_back(make_block, monkeypatch, assert_same):
    naive, lean = make_block()
    sizes = []
    monkeypatch.setattr(lean_module, "keep_freed_memory", sizes.append)
    assert_same(naive, lean, torch.randn(2, 9, 16, dtype=torch.double))
    assert sizes == [4 * 2 * 9 * lean.proj_out.in_features * 8]


@pytest.mark.parametrize("system", ["Linux", "Windows"])
def test_memory_that_is_kept(monkeypatch, system):
    made = []
    monkeypatch.setattr(lean_module.platform, "system", lambda: system)
    monkeypatch.setattr(lean_module.torch, "empty", lambda size, dtype: made.append(size))
    for size in (10, 2**40):
        lean_module.keep_freed_memory(size)
    assert made == ([10, 2**25 - 4096] if system == "Linux" else [])


@pytest.mark.parametrize("shape", [(0, 9, 16), (2, 0, 16)])
@pytest.mark.parametrize("implementation", ["lean", "triton"])
def test_empty_inputs(make_block, output_and_gradients, assert_close, implementation, shape):
    naive, lean = (block.float() for block in make_block(gating_implementation=implementation))
    x = torch.empty(shape)
    with torch.no_grad():
        assert lean(x).shape == shape
    assert_close(output_and_gradients(lean, x), output_and_gradients(naive, x))


@needs_triton
def test_too_many_channels_for_the_kernels(make_block, monkeypatch, assert_close):
    naive, lean = (block.float() for block in make_block(gating_implementation="triton"))
    monkeypatch.setattr(lean_module, "MAX_CHANNELS", lean.proj_out.in_features - 1)
    monkeypatch.setattr(lean_module, "gating_forward", None)
    x = torch.randn(2, 9, 16)
    assert_close([lean(x)], [naive(x)], 1e-5)


@pytest.mark.parametrize("backward", [False, True])
def test_flops_equal_those_of_the_naive_form(make_block, lean_calls, backward):
    naive, lean = (block.float() for block in make_block())
    counts = []
    for block in (naive, lean):
        x = torch.randn(2, 9, 16, requires_grad=True)
        if backward:
            loss = block(x).sum()
            assert bool(lean_calls) == (block is lean)
        with FlopCounterMode(display=False) as counter:
            if backward:
                loss.backward()
            else:
                block(x)
        counts.append(counter.get_total_flops())
    # The channel projections in and out and the spatial one.
    width = lean.proj_out.in_features
    assert counts == [2 * 2 * 9 * (16 * 2 * width + width * 16 + 9 * width) * (1 + backward)] * 2


@pytest.mark.parametrize("fft_length", [1, 100])
@pytest.mark.parametrize("gating", GATINGS)
def test_against_finite_differences(make_block, monkeypatch, gating, fft_length):
    monkeypatch.setattr("hf_gmlp.kernels.fft.FFT_LENGTH", fft_length)
    fields = {"hidden_size": 4, "intermediate_size": 6, "max_position_embeddings": 5, "toeplitz": True}
    _, block = make_block(spatial_gating=gating, **fields)
    size = block.spatial_gating_unit.norm.weight.shape[0]
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]])
    names = [name for name, _ in block.named_parameters()]

    def branch(x, attention_output, *parameters):
        for name, parameter in zip(names, parameters, strict=True):
            module, _, leaf = name.rpartition(".")
            block.get_submodule(module)._parameters[leaf] = parameter
        return lean_branch(block, x, mask, attention_output)

    inputs = [torch.randn(2, 4, 4), torch.randn(2, 4, size), *(value.detach() for value in block.parameters())]
    assert torch.autograd.gradcheck(branch, [value.double().requires_grad_() for value in inputs], fast_mode=True)


@pytest.mark.parametrize("frozen", [["proj_in"], ["norm"], ["spatial_gating_unit"], ["proj_out", "proj_in"]])
def test_frozen_parameters_get_no_gradient_and_leave_the_others_alone(make_block, frozen):
    naive, lean = make_block()
    x = torch.randn(2, 9, 16, dtype=torch.double)
    for block in (naive, lean):
        for name in frozen:
            block.get_submodule(name).requires_grad_(False)
        # The input of a first block may need no gradient either.
        block(x).pow(2).sum().backward()
    for (name, found), expected in zip(lean.named_parameters(), naive.parameters(), strict=True):
        assert (found.grad is None) == (not found.requires_grad), name
        if found.requires_grad:
            torch.testing.assert_close(found.grad, expected.grad)


def test_backward_twice_through_a_kept_graph(make_block):
    _, block = make_block()
    x = torch.randn(2, 9, 16, dtype=torch.double, requires_grad=True)
    loss = block(x).pow(2).sum()
    first = torch.autograd.grad(loss, [x, *block.parameters()], retain_graph=True)
    for again, gradient in zip(torch.autograd.grad(loss, [x, *block.parameters()]), first, strict=True):
        assert torch.equal(again, gradient)


def test_the_same_twice_to_the_bit(make_block, output_and_gradients):
    _, block = make_block(attention_size=8)
    x = torch.randn(2, 9, 16)
    block = block.float()
    for first, second in zip(output_and_gradients(block, x), output_and_gradients(block, x), strict=True):
        assert torch.equal(first, second)


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing(make_block, reentrant, lean_calls):
    naive, lean = make_block()
    x = torch.randn(2, 9, 16, dtype=torch.double, requires_grad=True)
    naive(x).pow(2).sum().backward()
    checkpoint(lean, x, use_reentrant=reentrant).pow(2).sum().backward()
    assert len(lean_calls) == 2
    for found, expected in zip(lean.parameters(), naive.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad)


@pytest.mark.parametrize("attention_size", [0, 8])
@pytest.mark.parametrize("gating", ["split", "additive"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(make_block, output_and_gradients, lean_calls, dtype, gating, attention_size):
    naive, lean = (block.float() for block in make_block(spatial_gating=gating, attention_size=attention_size))
    x = torch.randn(4, 12, 16)
    mask = torch.ones(4, 12, dtype=torch.long)
    mask[1:, 8:] = 0
    exact = output_and_gradients(naive, x, mask)
    with torch.autocast("cpu", dtype):
        branch = lean_branch(lean, x, mask, torch.zeros(1))
        assert branch.dtype == dtype
        half = [output_and_gradients(block, x, mask) for block in (naive, lean)]
        with torch.no_grad():
            torch.testing.assert_close(lean(x, mask), half[1][0], atol=0.02, rtol=0.02)
    assert len(lean_calls) == 2
    for reference, found, truth in zip(*half, exact, strict=True):
        assert found.dtype == reference.dtype == torch.float32
        # At most as far from the truth as the naive form.
        assert (found - truth).norm() <= 1.3 * (reference - truth).norm() + 1e-3 * truth.norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_models_of_one_dtype(make_block, output_and_gradients, lean_calls, dtype):
    naive, lean = (block.to(dtype) for block in make_block(attention_size=8))
    x = torch.randn(2, 9, 16, dtype=dtype)
    tolerance = 1e-4 if dtype == torch.float32 else 0.1
    for expected, found in zip(output_and_gradients(naive, x), output_and_gradients(lean, x), strict=True):
        assert found.dtype == dtype
        assert (found - expected).norm() <= tolerance * expected.norm() + 1e-6
    assert lean_calls


def saved_numbers(block, x):
    """How many numbers per token autograd keeps for the backward pass, parameters left out."""
    parameters = {parameter.untyped_storage().data_ptr() for parameter in block.parameters()}
    storages = {}

    def pack(tensor):
        if tensor.untyped_storage().data_ptr() not in parameters:
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = block(x)
    assert output.grad_fn is not None
    return sum(storages.values()) / x.element_size() / (x.shape[0] * x.shape[1])


@pytest.mark.parametrize("toeplitz", [False, True])
def test_lean_keeps_ten_numbers_per_channel_where_naive_keeps_23(make_block, toeplitz):
    d, n = 32, 64
    naive, lean = make_block(hidden_size=d, intermediate_size=6 * d, max_position_embeddings=n, toeplitz=toeplitz)
    x = torch.randn(2, n, d, dtype=torch.double, requires_grad=True)
    assert saved_numbers(lean, x) <= 10 * d
    assert saved_numbers(naive, x) >= 22 * d


@pytest.mark.slow
def test_a_compiled_model_is_one_graph(far_model, text_config, random_ids):
    model = far_model(GMLPForMaskedLM, text_config(gating_implementation="lean", attention_size=8)).train()
    ids = random_ids(2, 12)
    expected = model(ids, labels=ids).loss
    expected.backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    loss = compiled(ids, labels=ids).loss
    loss.backward()
    torch.testing.assert_close(loss, expected)
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, atol=1e-4, rtol=1e-3)


def test_attention_of_another_class_and_dtype(make_block, assert_close, output_and_gradients):
    """Attention is called, so it may be anything; its output is broadcast and promoted as in the naive form."""

    class Attention(torch.nn.Module):
        def __init__(self, width, shape, dtype):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.linspace(-1, 1, width, dtype=dtype))
            self.shape = shape

        def forward(self, hidden_states, attention_mask, past_key_values):
            assert past_key_values is None
            output = hidden_states.to(self.scale.dtype).mean((0, 1)).sum() * self.scale
            return output.expand(*self.shape, -1), None

    x = torch.randn(4, 9, 16, dtype=torch.double)
    for shape, dtype in (((4, 9), torch.double), ((1, 9), torch.double), ((4, 1), torch.float32)):
        naive, lean = make_block(attention_size=8)
        naive.attention = Attention(naive.proj_out.in_features, shape, dtype)
        lean.attention = copy.deepcopy(naive.attention)
        assert_close(output_and_gradients(lean, x), output_and_gradients(naive, x), 1e-12 if dtype == x.dtype else 1e-6)
