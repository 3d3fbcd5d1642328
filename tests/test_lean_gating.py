"""The lean block against the plain one: outputs, gradients, memory, and the places where the plain one must step in."""

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from hf_gmlp import GMLPForMaskedLM, lean_gating, spatial_gating
from hf_gmlp.lean_gating import can_be_lean, lean_block
from hf_gmlp.modeling_gmlp import GMLPBlock
from hf_gmlp.spatial_gating import toeplitz_matrix, toeplitz_product_fft
from hf_gmlp.triton_gating import can_use_triton

from .peers.appendix_c import create_toeplitz_matrix

GATINGS = ["split", "multiplicative", "additive", "linear"]


@pytest.fixture
def make_block(text_config, randomize):
    """make_block(**fields): a plain block and a lean one with the same far weights, in float64."""

    def make(**fields):
        config = text_config(**{"gating_implementation": "lean"} | fields)
        config._attn_implementation = "eager"
        block = GMLPBlock(config, drop_path_rate=0.0).double()
        block.spatial_gating_unit.proj.reset_parameters(0.3)
        randomize(block)
        plain = copy.deepcopy(block)
        plain.lean = plain.spatial_gating_unit.proj.fft = False
        assert block.lean and can_be_lean(block)
        return plain, block

    return make


@pytest.fixture
def short_fft(monkeypatch):
    """FFT for the short sequences of these tests too."""
    monkeypatch.setattr(spatial_gating, "FFT_LENGTH", 1)


def output_and_gradients(block, x, padding_mask=None):
    x = x.detach().requires_grad_()
    output = block(x, padding_mask)
    grad = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).sin().view_as(output)
    return [output.detach(), *torch.autograd.grad(output, [x, *block.parameters()], grad)]


def output_and_gradients_in_grad_mode(block, x):
    with torch.enable_grad():
        return output_and_gradients(block, x)


def assert_same(plain, lean, x, padding_mask=None):
    expected = output_and_gradients(plain, x, padding_mask)
    for ours, theirs in zip(output_and_gradients(lean, x, padding_mask), expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-11, rtol=1e-10)
    with torch.no_grad():
        torch.testing.assert_close(lean(x, padding_mask), expected[0], atol=1e-11, rtol=1e-10)


@pytest.mark.parametrize("attention_size", [0, 8])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("toeplitz", [False, True])
@pytest.mark.parametrize("gating", GATINGS)
def test_lean_is_plain(make_block, gating, toeplitz, padded, attention_size):
    plain, lean = make_block(spatial_gating=gating, toeplitz=toeplitz, attention_size=attention_size)
    # Fewer tokens than n = 12: gradients of the rest are zero.
    x = torch.randn(2, 9, 16, dtype=torch.double)
    mask = torch.tensor([[1] * 9, [1] * 5 + [0] * 4]) if padded else None
    assert_same(plain, lean, x, mask)
    assert_same(plain, lean, torch.randn(1, 12, 16, dtype=torch.double))


def test_models_are_lean_by_default(text_config):
    block = GMLPBlock(text_config(), 0.0)
    assert block.lean and block.spatial_gating_unit.proj.fft
    block = GMLPBlock(text_config(gating_implementation="reference"), 0.0)
    assert not block.lean and not block.spatial_gating_unit.proj.fft


@pytest.mark.skipif(not can_use_triton(torch.device("cpu")), reason="triton is not installed, or not interpreted")
@pytest.mark.parametrize("attention_size", [0, 8])
@pytest.mark.parametrize("toeplitz", [False, True])
@pytest.mark.parametrize("gating", GATINGS)
def test_with_kernels_of_triton(make_block, monkeypatch, gating, toeplitz, attention_size):
    fields = {"spatial_gating": gating, "toeplitz": toeplitz, "attention_size": attention_size}
    plain, lean = make_block(gating_implementation="triton", **fields)
    calls = []
    for name in ("gating_forward", "gating_backward"):
        kernel = getattr(lean_gating, name)
        counted = partial(lambda kernel, *args, **kwargs: calls.append(1) or kernel(*args, **kwargs), kernel)
        monkeypatch.setattr(lean_gating, name, counted)
    x, mask = torch.randn(2, 9, 16), torch.tensor([[1] * 9, [1] * 5 + [0] * 4])
    expected = output_and_gradients(plain, x.double(), mask)
    # Kernels have no double precision.
    assert_same(plain, lean, x.double(), mask)
    assert not calls
    lean.float()
    found = output_and_gradients(lean, x, mask)
    assert len(calls) == 2
    for ours, truth in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.double(), truth, atol=2e-5, rtol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(lean(x, mask), found[0], atol=1e-6, rtol=1e-6)
    assert len(calls) == 3


@pytest.mark.skipif(not can_use_triton(torch.device("cpu")), reason="triton is not installed, or not interpreted")
@pytest.mark.parametrize("frozen", [["spatial_gating_unit.proj"], ["proj_out"], ["proj_in", "norm"]])
def test_kernels_of_triton_with_frozen_parameters(make_block, frozen):
    plain, lean = make_block(gating_implementation="triton")
    x = torch.randn(2, 9, 16)
    for block, inputs in ((plain, x.double()), (lean.float(), x)):
        for name in frozen:
            block.get_submodule(name).requires_grad_(False)
        block(inputs).pow(2).sum().backward()
    for (name, ours), theirs in zip(lean.named_parameters(), plain.parameters(), strict=True):
        assert (ours.grad is None) == (theirs.grad is None) == (not ours.requires_grad), name
        if ours.requires_grad:
            torch.testing.assert_close(ours.grad.double(), theirs.grad, atol=1e-4, rtol=1e-4)


@pytest.mark.skipif(not lean_gating.ONEDNN_LINEAR, reason="the products of oneDNN are for x86")
# What PyTorch says on the way out of `flags`.
@pytest.mark.filterwarnings("ignore:TF32 acceleration")
@pytest.mark.parametrize("gating", GATINGS)
def test_products_of_onednn(make_block, monkeypatch, gating):
    plain, lean = (block.float() for block in make_block(spatial_gating=gating))
    calls = []
    usual = lean_gating._uses_onednn
    monkeypatch.setattr(lean_gating, "_uses_onednn", lambda x: calls.append(usual(x)) or calls[-1])
    x = torch.randn(2, 9, 16)

    def results(block):
        with torch.no_grad():
            return [*output_and_gradients_in_grad_mode(block, x), block(x)]

    expected, ours = results(plain), results(lean)
    assert calls and all(calls)
    calls.clear()
    with torch.backends.mkldnn.flags(enabled=False):
        others = results(lean)
    assert calls and not any(calls)
    for truth, first, second in zip(expected, ours, others, strict=True):
        torch.testing.assert_close(first, truth, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(second, truth, atol=1e-4, rtol=1e-4)


def test_a_gradient_without_memory_of_its_own(make_block):
    """A sum gives every output the same gradient, and PyTorch one number for all of them."""
    plain, lean = (block.float() for block in make_block())
    x = torch.randn(2, 9, 16)
    plain.branch(x, None, None, None, None).sum().backward()
    lean_block(lean, x).sum().backward()
    for ours, theirs in zip(lean.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("attention_size", [0, 8])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("gating", GATINGS)
def test_inference_in_slices_of_the_batch(make_block, monkeypatch, gating, padded, attention_size):
    plain, lean = make_block(spatial_gating=gating, attention_size=attention_size)
    # Two of the five samples at a time.
    monkeypatch.setattr(lean_gating, "SLICE_BYTES", 2 * 9 * lean.proj_out.in_features * 8)
    sizes = []
    forward = lean_gating._forward

    def counted(x, *args, **kwargs):
        sizes.append(len(x))
        return forward(x, *args, **kwargs)

    monkeypatch.setattr(lean_gating, "_forward", counted)
    x = torch.randn(5, 9, 16, dtype=torch.double)
    mask = torch.tensor([[1] * 9, [1] * 5 + [0] * 4, [1] * 9, [1] + [0] * 8, [1] * 8 + [0]]) if padded else None
    with torch.no_grad():
        torch.testing.assert_close(lean(x, mask), plain(x, mask), atol=1e-11, rtol=1e-10)
    assert sizes == [2, 2, 1]


@pytest.mark.parametrize("implementation", ["lean", "triton"])
def test_an_empty_batch(make_block, implementation):
    _, lean = make_block(gating_implementation=implementation)
    with torch.no_grad():
        assert lean.float()(torch.empty(0, 9, 16)).shape == (0, 9, 16)


@pytest.mark.skipif(not can_use_triton(torch.device("cpu")), reason="triton is not installed, or not interpreted")
def test_more_channels_than_kernels_take(make_block, monkeypatch):
    plain, lean = make_block(gating_implementation="triton")
    monkeypatch.setattr(lean_gating, "MAX_CHANNELS", lean.proj_out.in_features - 1)
    monkeypatch.setattr(lean_gating, "gating_forward", None)
    x = torch.randn(2, 9, 16)
    torch.testing.assert_close(lean.float()(x), plain.float()(x), atol=1e-5, rtol=1e-5)


def test_flops_are_counted_as_those_of_the_plain_form(make_block):
    plain, lean = (block.float() for block in make_block())
    counts = []
    for block in (plain, lean):
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            block(torch.randn(2, 9, 16))
        counts.append(counter.get_total_flops())
    # The channel projections in and out and the spatial one.
    width = lean.proj_out.in_features
    assert counts == [2 * 2 * 9 * (16 * 2 * width + width * 16 + 9 * width)] * 2


@pytest.mark.parametrize("fft_length", [1, 100])
@pytest.mark.parametrize("toeplitz", [False, True])
def test_causal_blocks(make_block, monkeypatch, toeplitz, fft_length):
    monkeypatch.setattr(spatial_gating, "FFT_LENGTH", fft_length)
    plain, lean = make_block(is_causal=True, toeplitz=toeplitz)
    x = torch.randn(2, 9, 16, dtype=torch.double)
    assert_same(plain, lean, x)
    later = torch.cat([x[:, :6], torch.randn(2, 3, 16, dtype=torch.double)], dim=1)
    torch.testing.assert_close(lean(later)[:, :6], lean(x)[:, :6])


@pytest.mark.parametrize("gating", GATINGS)
def test_lean_with_fft_is_plain(make_block, short_fft, gating):
    plain, lean = make_block(spatial_gating=gating, attention_size=8)
    assert_same(plain, lean, torch.randn(2, 9, 16, dtype=torch.double), torch.tensor([[1] * 9, [1] * 5 + [0] * 4]))
    assert_same(plain, lean, torch.randn(1, 1, 16, dtype=torch.double))


@pytest.mark.parametrize("fft", [False, True])
@pytest.mark.parametrize("gating", GATINGS)
def test_against_finite_differences(make_block, monkeypatch, gating, fft):
    monkeypatch.setattr(spatial_gating, "FFT_LENGTH", 1 if fft else 100)
    _, block = make_block(spatial_gating=gating, hidden_size=4, intermediate_size=6, max_position_embeddings=5)
    size = block.spatial_gating_unit.norm.weight.shape[0]
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]])
    names = [name for name, _ in block.named_parameters()]

    def branch(x, attention_output, *parameters):
        for name, parameter in zip(names, parameters):
            module, _, leaf = name.rpartition(".")
            block.get_submodule(module)._parameters[leaf] = parameter
        return lean_block(block, x, mask, attention_output)

    inputs = [torch.randn(2, 4, 4), torch.randn(2, 4, size), *(value.detach() for value in block.parameters())]
    assert torch.autograd.gradcheck(branch, [value.double().requires_grad_() for value in inputs], fast_mode=True)


@pytest.mark.parametrize("attention_size", [0, 3])
@pytest.mark.parametrize("gating", GATINGS)
def test_second_derivatives_go_through_the_plain_form(make_block, gating, attention_size):
    fields = {"hidden_size": 4, "intermediate_size": 6, "max_position_embeddings": 5, "attention_size": attention_size}
    plain, lean = make_block(spatial_gating=gating, **fields)
    x = torch.randn(2, 4, 4, dtype=torch.double, requires_grad=True)
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]])
    found = []
    for block in (plain, lean):
        inputs = [x, *block.parameters()]
        # Not a leaf, as in every block but the first.
        gradients = torch.autograd.grad(block(x.sin(), mask).pow(3).sum(), inputs, create_graph=True)
        total = sum(gradient.pow(2).sum() for gradient in gradients)
        found.append([*gradients, *torch.autograd.grad(total, inputs, allow_unused=True)])
    for theirs, ours in zip(*found, strict=True):
        assert (theirs is None) == (ours is None)
        if theirs is not None:
            torch.testing.assert_close(ours, theirs, atol=1e-8, rtol=1e-8)


@pytest.mark.parametrize("frozen", [["attention"], ["proj_in", "norm"], ["spatial_gating_unit", "attention"]])
def test_second_derivatives_with_frozen_parameters(make_block, frozen):
    found = []
    x = torch.randn(2, 4, 16, dtype=torch.double)
    for block in make_block(attention_size=8):
        for name in frozen:
            block.get_submodule(name).requires_grad_(False)
        inputs = [parameter for parameter in block.parameters() if parameter.requires_grad]
        gradients = torch.autograd.grad(block(x).pow(3).sum(), inputs, create_graph=True)
        total = sum(gradient.pow(2).sum() for gradient in gradients)
        found.append([*gradients, *torch.autograd.grad(total, inputs)])
    for theirs, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-8, rtol=1e-8)


def test_torch_func_takes_the_plain_form(make_block):
    plain, lean = make_block()
    x = torch.randn(2, 9, 16, dtype=torch.double)

    def loss(block, parameters):
        return torch.func.functional_call(block, parameters, (x,)).pow(2).sum()

    expected = torch.func.grad(lambda parameters: loss(plain, parameters))(dict(plain.named_parameters()))
    for name, gradient in torch.func.grad(lambda parameters: loss(lean, parameters))(
        dict(lean.named_parameters())
    ).items():
        torch.testing.assert_close(gradient, expected[name])
    per_sample = torch.func.vmap(lambda sample: lean(sample[None])[0])(x)
    torch.testing.assert_close(per_sample, plain(x))


@pytest.mark.parametrize("frozen", [["proj_in"], ["norm"], ["spatial_gating_unit"], ["proj_out", "proj_in"]])
def test_frozen_parameters_get_no_gradient_and_leave_the_others_alone(make_block, frozen):
    plain, lean = make_block()
    x = torch.randn(2, 9, 16, dtype=torch.double)
    for block in (plain, lean):
        for name in frozen:
            block.get_submodule(name).requires_grad_(False)
        # The input of a first block may need no gradient either.
        block(x).pow(2).sum().backward()
    for (name, ours), theirs in zip(lean.named_parameters(), plain.parameters(), strict=True):
        assert (ours.grad is None) == (not ours.requires_grad), name
        if ours.requires_grad:
            torch.testing.assert_close(ours.grad, theirs.grad)


def test_backward_twice_through_a_kept_graph(make_block):
    _, block = make_block()
    x = torch.randn(2, 9, 16, dtype=torch.double, requires_grad=True)
    loss = block(x).pow(2).sum()
    first = torch.autograd.grad(loss, [x, *block.parameters()], retain_graph=True)
    for again, gradient in zip(torch.autograd.grad(loss, [x, *block.parameters()]), first, strict=True):
        assert torch.equal(again, gradient)


def test_the_same_twice_to_the_bit(make_block):
    _, block = make_block(attention_size=8)
    x = torch.randn(2, 9, 16)
    block = block.float()
    for first, second in zip(output_and_gradients(block, x), output_and_gradients(block, x), strict=True):
        assert torch.equal(first, second)


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing(make_block, reentrant):
    plain, lean = make_block()
    x = torch.randn(2, 9, 16, dtype=torch.double, requires_grad=True)
    plain(x).pow(2).sum().backward()
    checkpoint(lean, x, use_reentrant=reentrant).pow(2).sum().backward()
    for ours, theirs in zip(lean.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


@pytest.mark.parametrize("attention_size", [0, 8])
@pytest.mark.parametrize("gating", ["split", "additive"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(make_block, dtype, gating, attention_size):
    plain, lean = (block.float() for block in make_block(spatial_gating=gating, attention_size=attention_size))
    x = torch.randn(4, 12, 16)
    mask = torch.ones(4, 12, dtype=torch.long)
    mask[1:, 8:] = 0
    exact = output_and_gradients(plain, x, mask)
    with torch.autocast("cpu", dtype):
        branch = lean_block(lean, x, mask, torch.zeros(1))
        assert branch.dtype == dtype
        half = [output_and_gradients(block, x, mask) for block in (plain, lean)]
        with torch.no_grad():
            torch.testing.assert_close(lean(x, mask), half[1][0], atol=0.02, rtol=0.02)
    for theirs, ours, truth in zip(*half, exact, strict=True):
        assert ours.dtype == theirs.dtype == torch.float32
        # As far from the truth as the plain form is, and no farther.
        assert (ours - truth).norm() <= 1.3 * (theirs - truth).norm() + 1e-3 * truth.norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_models_of_one_dtype(make_block, dtype):
    plain, lean = (block.to(dtype) for block in make_block(attention_size=8))
    x = torch.randn(2, 9, 16, dtype=dtype)
    tolerance = 1e-4 if dtype == torch.float32 else 0.1
    for theirs, ours in zip(output_and_gradients(plain, x), output_and_gradients(lean, x), strict=True):
        assert ours.dtype == dtype
        assert (ours - theirs).norm() <= tolerance * theirs.norm() + 1e-6


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
def test_lean_keeps_ten_numbers_per_channel_where_plain_keeps_23(make_block, toeplitz):
    d, n = 32, 64
    plain, lean = make_block(hidden_size=d, intermediate_size=6 * d, max_position_embeddings=n, toeplitz=toeplitz)
    x = torch.randn(2, n, d, dtype=torch.double, requires_grad=True)
    assert saved_numbers(lean, x) <= 10 * d
    assert saved_numbers(plain, x) >= 22 * d


@pytest.mark.parametrize("change", ["dropout", "hook", "layer", "forward", "dtype", "activation", "setting"])
def test_the_plain_form_steps_in(make_block, text_config, change):
    _, block = make_block()
    if change == "dropout":
        block.activation_dropout.p = 0.1
        assert can_be_lean(block)
        block.train()
    elif change == "hook":
        block.proj_in.register_forward_hook(lambda module, inputs, output: output)
    elif change == "layer":
        block.proj_out = nn.Sequential(block.proj_out)
    elif change == "forward":
        block.proj_in.forward = block.proj_in.forward
    elif change == "dtype":
        block.norm.float()
    else:
        config = text_config(
            **{"activation": {"hidden_act": "relu"}, "setting": {"gating_implementation": "reference"}}[change]
        )
        assert not GMLPBlock(config, 0.0).lean
        return
    assert not can_be_lean(block)


def test_hooks_on_layers_are_called(make_block):
    plain, lean = make_block()
    seen = []
    lean.proj_in.register_forward_hook(lambda module, inputs, output: seen.append(output))
    x = torch.randn(1, 4, 16, dtype=torch.double)
    torch.testing.assert_close(lean(x), plain(x))
    assert len(seen) == 1


def test_a_compiled_model_is_one_graph(far_model, text_config, random_ids):
    model = far_model(GMLPForMaskedLM, text_config(gating_implementation="lean", attention_size=8)).train()
    ids = random_ids(2, 12)
    expected = model(ids, labels=ids).loss
    expected.backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    loss = compiled(ids, labels=ids).loss
    loss.backward()
    torch.testing.assert_close(loss, expected)
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_compiled_model_of_long_sequences_takes_the_fft(far_model, text_config, random_ids, monkeypatch, dynamic):
    monkeypatch.setattr(spatial_gating, "FFT_LENGTH", 6)
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph.print_readable(print_output=False))
        return graph

    model = far_model(GMLPForMaskedLM, text_config(gating_implementation="lean"))
    compiled = torch.compile(model, fullgraph=True, backend=backend, dynamic=dynamic)
    for length in (5, 9, 12):
        ids = random_ids(2, length)
        torch.testing.assert_close(compiled(ids).logits, model(ids).logits, atol=1e-5, rtol=1e-5)
        assert ("rfft" in graphs[-1]) == (length >= 6)


def test_an_exported_model_computes_the_same(far_model, text_config, random_ids, short_fft):
    model = far_model(GMLPForMaskedLM, text_config(gating_implementation="lean"))
    batch, length = torch.export.Dim("batch", min=2, max=64), torch.export.Dim("length", min=2, max=12)
    exported = torch.export.export(model, (random_ids(2, 12),), dynamic_shapes=({0: batch, 1: length},)).module()
    for shape in ((2, 12), (3, 7)):
        ids = random_ids(*shape)
        torch.testing.assert_close(exported(ids).logits, model(ids).logits, atol=1e-5, rtol=1e-5)


def test_the_plain_block_takes_the_fft_too_unless_it_is_the_reference(make_block, short_fft, monkeypatch):
    plain, lean = make_block(max_position_embeddings=8)
    calls = []
    product = spatial_gating.toeplitz_product_fft
    monkeypatch.setattr(spatial_gating, "toeplitz_product_fft", lambda *args: calls.append(1) or product(*args))
    x = torch.randn(1, 6, 16, dtype=torch.double)
    expected = plain(x)
    assert not calls
    # Layers with hooks are called, so this one is not lean.
    lean.proj_in.register_forward_hook(lambda module, inputs, output: None)
    torch.testing.assert_close(lean(x), expected, atol=1e-11, rtol=1e-10)
    assert calls


@pytest.mark.parametrize("length", [2, 3, 5, 8, 17, 64, 100])
def test_fft_product_is_that_of_appendix_c(length):
    offsets = torch.randn(2 * length - 1, dtype=torch.double)
    v, bias = torch.randn(2, length, 3, dtype=torch.double), torch.randn(length, dtype=torch.double)
    matrix = torch.from_numpy(create_toeplitz_matrix(offsets.numpy()))
    expected = torch.einsum("ij,bjd->bid", matrix, v) + bias[:, None]
    torch.testing.assert_close(toeplitz_product_fft(v, offsets, bias), expected, atol=1e-10, rtol=1e-10)


def test_gradients_of_the_fft_product():
    shapes = [(2, 5, 3), (9,), (5,)]
    inputs = [torch.randn(shape, dtype=torch.double, requires_grad=True) for shape in shapes]
    assert torch.autograd.gradcheck(toeplitz_product_fft, inputs)
    assert torch.autograd.gradgradcheck(toeplitz_product_fft, inputs)


def test_fft_product_of_a_long_sequence():
    length = 3000
    offsets = torch.randn(2 * length - 1) / length**0.5
    v, bias = torch.randn(1, length, 4), torch.randn(length)
    expected = toeplitz_matrix(offsets.double(), length) @ v.double() + bias.double()[:, None]
    torch.testing.assert_close(toeplitz_product_fft(v, offsets, bias).double(), expected, atol=1e-4, rtol=1e-4)


def test_long_sequences_take_the_fft_and_short_ones_do_not(make_block, monkeypatch):
    _, block = make_block(max_position_embeddings=8)
    monkeypatch.setattr(spatial_gating, "FFT_LENGTH", 6)
    calls = []
    product = lean_gating.toeplitz_product_fft
    monkeypatch.setattr(lean_gating, "toeplitz_product_fft", lambda *args: calls.append(1) or product(*args))
    with torch.no_grad():
        block(torch.randn(1, 5, 16, dtype=torch.double))
        assert not calls
        block(torch.randn(1, 6, 16, dtype=torch.double))
        assert calls
