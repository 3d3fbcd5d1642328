"""The convolution that stands in for a Toeplitz W, alone, in naive and lean blocks, and in compiled models."""

import pytest
import torch
from packaging import version
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from hf_gmlp import GMLPForMaskedLM
from hf_gmlp.kernels import fft
from hf_gmlp.kernels.fft import toeplitz_offsets, toeplitz_product_fft
from hf_gmlp.models.spatial_gating import spatial_matrix

from ..peers.appendix_c import create_toeplitz_matrix
from ..samples import GATINGS


@pytest.fixture
def hooked():
    """hooked(block): the same block with a hook on a layer that is called with the FFT too, so that it is not lean."""

    def hook(block):
        block.proj_in.register_forward_hook(lambda module, inputs, output: None)
        return block

    return hook


@pytest.mark.parametrize("length", [2, 3, 5, 8, 17, 64, 100])
def test_the_product_is_that_of_appendix_c(length):
    offsets = torch.randn(2 * length - 1, dtype=torch.double)
    v, bias = torch.randn(2, length, 3, dtype=torch.double), torch.randn(length, dtype=torch.double)
    matrix = torch.from_numpy(create_toeplitz_matrix(offsets.numpy()))
    expected = torch.einsum("ij,bjd->bid", matrix, v) + bias[:, None]
    torch.testing.assert_close(toeplitz_product_fft(v, offsets, bias), expected, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [1, 4, 9])
def test_offsets_are_those_of_the_matrix(length, causal):
    weight = torch.randn(17)
    offsets = toeplitz_offsets(weight, length, causal)
    assert torch.equal(spatial_matrix(offsets, length), spatial_matrix(weight, length, causal=causal))


def test_gradients_of_the_product():
    shapes = [(2, 5, 3), (9,), (5,)]
    inputs = [torch.randn(shape, dtype=torch.double, requires_grad=True) for shape in shapes]
    assert torch.autograd.gradcheck(toeplitz_product_fft, inputs)
    assert torch.autograd.gradgradcheck(toeplitz_product_fft, inputs)


def test_the_product_of_a_long_sequence():
    length = 3000
    offsets = torch.randn(2 * length - 1) / length**0.5
    v, bias = torch.randn(1, length, 4), torch.randn(length)
    expected = spatial_matrix(offsets.double(), length) @ v.double() + bias.double()[:, None]
    torch.testing.assert_close(toeplitz_product_fft(v, offsets, bias).double(), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("gating", GATINGS)
def test_lean_with_fft_is_naive(make_block, short_fft, assert_same, fft_calls, gating, causal):
    naive, lean = make_block(spatial_gating=gating, attention_size=8, toeplitz=True, is_causal=causal)
    x, mask = torch.randn(2, 9, 16, dtype=torch.double), torch.tensor([[1] * 9, [1] * 5 + [0] * 4])
    assert_same(naive, lean, x, mask, tolerance=1e-11)
    assert_same(naive, lean, x[:1, :1], tolerance=1e-11)
    assert len(fft_calls) == 4


@pytest.mark.parametrize("attention_size", [0, 8])
@pytest.mark.parametrize("gating", GATINGS)
def test_layers_with_hooks_and_fft_are_naive(
    make_block, short_fft, hooked, assert_same, fft_calls, lean_calls, gating, attention_size
):
    naive, block = make_block(spatial_gating=gating, toeplitz=True, attention_size=attention_size)
    x, mask = torch.randn(2, 9, 16, dtype=torch.double), torch.tensor([[1] * 9, [1] * 5 + [0] * 4])
    assert_same(naive, hooked(block), x, mask, tolerance=1e-11)
    assert len(fft_calls) == 2 and not lean_calls


def test_long_sequences_take_the_fft_and_short_ones_do_not(make_block, monkeypatch, hooked, fft_calls):
    monkeypatch.setattr(fft, "FFT_LENGTH", 6)
    naive, lean = make_block(max_position_embeddings=8, toeplitz=True)
    with torch.no_grad():
        for block in (lean, hooked(lean), naive):
            fft_calls.clear()
            block(torch.randn(1, 5, 16, dtype=torch.double))
            assert not fft_calls
            block(torch.randn(1, 6, 16, dtype=torch.double))
            assert bool(fft_calls) == (block is not naive)
    _, dense = make_block(toeplitz=False)
    fft_calls.clear()
    hooked(dense)(torch.randn(1, 9, 16, dtype=torch.double))
    assert not fft_calls


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("gating", ["split", "additive"])
def test_autocast(make_block, short_fft, hooked, fft_calls, output_and_gradients, gating, dtype):
    naive, lean = (block.float() for block in make_block(spatial_gating=gating, toeplitz=True, attention_size=8))
    x, dtypes = torch.randn(4, 12, 16), []
    exact = output_and_gradients(naive, x)
    hooked(lean)
    for block in (naive, lean):
        # Its input shows whether the product had the dtype of the others.
        block.proj_out.register_forward_pre_hook(lambda module, inputs: dtypes.append(inputs[0].dtype))
    with torch.autocast("cpu", dtype):
        half = [output_and_gradients(block, x) for block in (naive, lean)]
        assert toeplitz_product_fft(x, torch.randn(23), torch.randn(12)).dtype == dtype
        assert toeplitz_product_fft(x.double(), torch.randn(23).double(), torch.randn(12)).dtype == torch.double
    assert fft_calls and dtypes == [dtype] * 2
    for reference, found, truth in zip(*half, exact, strict=True):
        assert found.dtype == reference.dtype
        assert (found - truth).norm() <= 1.5 * (reference - truth).norm() + 2e-3 * truth.norm()


def test_float64_under_autocast(make_block, short_fft, hooked, assert_same, fft_calls):
    naive, block = make_block(toeplitz=True)
    with torch.autocast("cpu", torch.bfloat16):
        assert_same(naive, hooked(block), torch.randn(2, 9, 16, dtype=torch.double))
    assert not fft_calls


def test_models_in_half_precision(make_block, short_fft, hooked, fft_calls):
    naive, block = (block.bfloat16() for block in make_block(toeplitz=True))
    x = torch.randn(2, 9, 16).bfloat16()
    found, expected = hooked(block)(x), naive(x)
    assert fft_calls and found.dtype == expected.dtype
    torch.testing.assert_close(found, expected, atol=0.05, rtol=0.05)


@pytest.mark.parametrize("watcher", ["flops", "trace", "vmap", "hooks"])
def test_what_watches_operators_sees_the_matrix(make_block, short_fft, hooked, fft_calls, assert_close, watcher):
    naive, block = make_block(toeplitz=True)
    x = torch.randn(2, 9, 16, dtype=torch.double)
    expected, seen = naive(x), []
    hooked(block)
    if watcher == "flops":
        with FlopCounterMode(display=False) as counter:
            found = block(x)
        with FlopCounterMode(display=False) as other:
            naive(x)
        assert counter.get_total_flops() == other.get_total_flops()
    elif watcher == "trace":
        found = torch.jit.trace(block, (x,), check_trace=False)(x)
    elif watcher == "vmap":
        found = torch.func.vmap(lambda sample: block(sample[None])[0])(x)
    else:
        handle = nn.modules.module.register_module_forward_hook(lambda module, inputs, output: seen.append(module))
        found = block(x)
        handle.remove()
        assert block.spatial_gating_unit in seen and block.spatial_gating_unit.proj in seen
    assert not fft_calls
    assert_close([found], [expected])


@pytest.mark.slow
@pytest.mark.skipif(
    version.parse(torch.__version__) < version.parse("2.15"), reason="torch 2.8 compiles the matrix for any length"
)
@pytest.mark.parametrize("dynamic", [None, True])
def test_compiled_models_of_long_sequences_take_the_fft(far_model, text_config, random_ids, monkeypatch, dynamic):
    monkeypatch.setattr(fft, "FFT_LENGTH", 9)
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph.print_readable(print_output=False))
        return graph

    model = far_model(GMLPForMaskedLM, text_config(max_position_embeddings=20, num_hidden_layers=1, toeplitz=True))
    model.set_gating_implementation("lean")
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend=backend, dynamic=dynamic)
    for length in (8, 10, 9, 11, 15, 12):
        ids = random_ids(2, length)
        torch.testing.assert_close(compiled(ids).logits, model(ids).logits, atol=1e-5, rtol=1e-5)
    taken = ["rfft" in graph for graph in graphs]
    # Lengths from 9 to 16 share a size, and a graph where the length is a variable.
    assert taken == ([False, True] if dynamic else [False, True, True][: len(taken)])


@pytest.mark.slow
def test_a_compiled_model_trains_with_the_fft(far_model, text_config, random_ids, short_fft, assert_close):
    fields = {"num_hidden_layers": 1, "attention_size": 8, "toeplitz": True, "is_causal": True}
    model = far_model(GMLPForMaskedLM, text_config(**fields)).double().train()
    model.set_gating_implementation("naive")
    ids = random_ids(2, 9)
    parameters = list(model.parameters())
    expected = torch.autograd.grad(model(ids, labels=ids).loss, parameters, allow_unused=True)
    model.set_gating_implementation("auto")
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    found = torch.autograd.grad(compiled(ids, labels=ids).loss, parameters, allow_unused=True)
    assert_close(found, expected, 1e-11)


@pytest.mark.parametrize("interference", ["hook", "subclass"])
def test_hooks_and_subclasses_are_compiled(make_block, short_fft, assert_close, interference):
    naive, block = make_block(toeplitz=True)
    for one in (naive, block):
        if interference == "hook":
            one.spatial_gating_unit.proj.register_forward_hook(lambda module, inputs, output: 2 * output)
        else:
            one.spatial_gating_unit.proj.__class__ = type(
                "Doubled",
                (type(one.spatial_gating_unit.proj),),
                {"forward": lambda self, v, *args: 2 * (self.matrix(9) @ v + self.bias[:9, None])},
            )
    x = torch.randn(2, 9, 16, dtype=torch.double)
    torch.compiler.reset()
    assert_close([torch.compile(block, fullgraph=True, backend="eager")(x)], [naive(x)])


@pytest.mark.filterwarnings("ignore:While compiling, we found certain side effects")
@pytest.mark.parametrize("strict", [False, True])
def test_exported_models_take_the_matrix(far_model, text_config, random_ids, short_fft, fft_calls, strict):
    model = far_model(GMLPForMaskedLM, text_config(toeplitz=True, num_hidden_layers=1))
    model.set_gating_implementation("lean")
    batch, length = torch.export.Dim("batch", min=2, max=64), torch.export.Dim("length", min=2, max=12)
    shapes = ({0: batch, 1: length},)
    program = torch.export.export(model, (random_ids(2, 12),), dynamic_shapes=shapes, strict=strict)
    assert not fft_calls
    assert "fft" not in program.graph_module.print_readable(print_output=False)
    exported = program.module()
    for shape in ((2, 12), (3, 7)):
        ids = random_ids(*shape)
        torch.testing.assert_close(exported(ids).logits, model(ids).logits, atol=1e-5, rtol=1e-5)


def test_compilers_without_is_exporting_take_the_matrix(monkeypatch):
    monkeypatch.delattr(torch.compiler, "is_exporting", raising=False)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert fft.is_exporting()
