"""Autograd and its tools can do with the fast blocks what they can do with the naive one."""

import copy
from functools import partial

import pytest
import torch
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from hf_gmlp.kernels import lean as lean_module

from ..samples import GATINGS

SMALL = {"hidden_size": 4, "intermediate_size": 6, "max_position_embeddings": 5}


@pytest.fixture
def x():
    return torch.randn(2, 9, 16, dtype=torch.double)


@pytest.fixture(params=[0, 8])
def pair(make_block, request):
    """A naive gMLP block and a lean one, then those of an aMLP."""
    return make_block(attention_size=request.param)


def second_derivatives(block, x, mask=None):
    """The gradients of x and the parameters, and the gradients of their squares' sum."""
    inputs = [x, *block.parameters()]
    inputs = [tensor for tensor in inputs if tensor.requires_grad]
    # The input is not a leaf, as in every block except the first.
    gradients = torch.autograd.grad(block(x.sin(), mask).pow(3).sum(), inputs, create_graph=True)
    total = sum(gradient.pow(2).sum() for gradient in gradients)
    return [*gradients, *torch.autograd.grad(total, inputs, allow_unused=True)]


@pytest.mark.parametrize("attention_size", [0, 3])
@pytest.mark.parametrize("gating", GATINGS)
def test_gradients_of_gradients(make_block, assert_close, lean_calls, gating, attention_size):
    naive, lean = make_block(spatial_gating=gating, attention_size=attention_size, **SMALL)
    x = torch.randn(2, 4, 4, dtype=torch.double, requires_grad=True)
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]])
    assert_close(second_derivatives(lean, x, mask), second_derivatives(naive, x, mask), 1e-10)
    assert lean_calls


@pytest.mark.parametrize("frozen", [["attention"], ["proj_in", "norm"], ["spatial_gating_unit", "attention"]])
@pytest.mark.parametrize("needs_x", [False, True])
def test_gradients_of_gradients_with_frozen_parameters(make_block, assert_close, frozen, needs_x):
    pair = make_block(attention_size=8)
    x = torch.randn(2, 4, 16, dtype=torch.double, requires_grad=needs_x)
    for block in pair:
        for name in frozen:
            block.get_submodule(name).requires_grad_(False)
    naive, lean = pair
    assert_close(second_derivatives(lean, x), second_derivatives(naive, x), 1e-10)


def test_gradients_of_gradients_with_tied_parameters(make_block, assert_close, lean_calls):
    # E is n here, and so b and a weight of the norm can be one parameter.
    pair = make_block(max_position_embeddings=16, attention_size=8)
    for block in pair:
        unit = block.spatial_gating_unit
        unit.proj.bias = unit.norm.weight
        block.norm.bias = block.proj_out.bias
    x = torch.randn(2, 5, 16, dtype=torch.double, requires_grad=True)
    naive, lean = pair
    assert_close(second_derivatives(lean, x), second_derivatives(naive, x), 1e-10)
    assert lean_calls


def test_gradients_of_gradients_with_offloaded_saved_tensors(pair, assert_close, lean_calls, x):
    found = []
    for block in reversed(pair):
        with torch.autograd.graph.save_on_cpu():
            found.append(second_derivatives(block, x.requires_grad_()))
    assert_close(*found, 1e-10)
    assert lean_calls


def test_gradients_of_gradients_when_the_layers_have_changed(make_block):
    for change in (
        lambda block: block.proj_in.register_forward_hook(lambda *args: None),
        lambda block: setattr(block.spatial_gating_unit.norm, "eps", 0.1),
        lambda block: setattr(block.spatial_gating_unit.config, "spatial_gating", "linear"),
    ):
        _, block = make_block()
        output = block(torch.randn(2, 9, 16, dtype=torch.double)).sum()
        change(block)
        # Gradients need no layers, and gradients of gradients do.
        torch.autograd.grad(output, list(block.parameters()), retain_graph=True)
        with pytest.raises(RuntimeError, match='layers of a block have changed .*set_gating_implementation\\("naive"'):
            torch.autograd.grad(output, list(block.parameters()), create_graph=True)


def test_gradients_of_gradients_after_the_mode_has_changed(make_block, assert_close):
    found = []
    for block in make_block(activation_dropout=0.5):
        inputs = list(block.parameters())
        x = torch.randn(2, 9, 16, dtype=torch.double, generator=torch.Generator().manual_seed(0))
        loss = block.eval()(x).pow(3).sum()
        block.train()
        gradients = torch.autograd.grad(loss, inputs, create_graph=True)
        found.append(torch.autograd.grad(sum(gradient.pow(2).sum() for gradient in gradients), inputs))
    assert_close(*found, 1e-10)


@pytest.mark.parametrize("residual", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("attention_size", [0, 8])
def test_gradients_of_gradients_under_autocast(make_block, lean_calls, residual, attention_size):
    naive, lean = (block.float() for block in make_block(attention_size=attention_size))
    x = torch.randn(2, 9, 16).to(residual).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = second_derivatives(lean, x), second_derivatives(naive, x)
    assert lean_calls
    for second, truth in zip(found, expected, strict=True):
        assert second.dtype == truth.dtype
        assert (second - truth).norm() <= 0.1 * truth.norm()


def test_float64_under_autocast(pair, assert_close, output_and_gradients, lean_calls, x):
    """Autocast leaves it alone."""
    naive, lean = pair
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = output_and_gradients(lean, x), output_and_gradients(naive, x)
    assert not lean_calls
    assert_close(found, expected, 0.0)
    assert found[0].dtype == torch.double


def test_batches_of_gradients(pair, assert_close, lean_calls, x):
    grads = torch.randn(3, *x.shape, dtype=torch.double)
    found = []
    for block in reversed(pair):
        inputs = [x.requires_grad_(), *block.parameters()]
        inputs = [tensor for tensor in inputs if tensor.requires_grad]
        found.append(torch.autograd.grad(block(x.sin()), inputs, grads, is_grads_batched=True))
    assert lean_calls
    assert_close(*found)


@pytest.mark.parametrize("fields", [{"vectorize": True}, {"vectorize": True, "create_graph": True}, {}])
def test_jacobians(make_block, assert_close, lean_calls, fields):
    naive, lean = make_block(**SMALL, attention_size=2)
    x = torch.randn(1, 3, 4, dtype=torch.double)
    found, expected = (torch.autograd.functional.jacobian(block, x, **fields) for block in (lean, naive))
    assert lean_calls
    assert_close([found], [expected])


def test_jacobians_by_forward_mode_and_hessians(make_block, assert_close):
    naive, lean = make_block(**SMALL)
    x = torch.randn(1, 3, 4, dtype=torch.double)
    for function in (
        lambda block: torch.autograd.functional.jacobian(block, x, strategy="forward-mode", vectorize=True),
        lambda block: torch.autograd.functional.hessian(lambda x: block(x).pow(2).sum(), x, vectorize=True),
        lambda block: torch.autograd.functional.hvp(lambda x: block(x).pow(2).sum(), x, x)[1],
        lambda block: torch.func.hessian(lambda x: block(x).pow(2).sum())(x),
    ):
        assert_close([function(lean)], [function(naive)], 1e-10)


def test_forward_mode(pair, assert_close, lean_calls, x):
    naive, lean = pair
    tangent = torch.randn_like(x)
    assert_close(torch.func.jvp(lean, (x,), (tangent,)), torch.func.jvp(naive, (x,), (tangent,)))
    found = []
    for block in reversed(pair):
        with forward_ad.dual_level():
            found.append(forward_ad.unpack_dual(block(forward_ad.make_dual(x, tangent))))
    assert_close(*found)
    assert not lean_calls


def test_forward_over_reverse(make_block, assert_close, lean_calls, x):
    """A dual gradient comes back through an earlier output."""
    found = []
    tangent = torch.randn_like(x)
    for block in make_block():
        leaf = x.clone().requires_grad_()
        output = block(leaf)
        with forward_ad.dual_level():
            grad = forward_ad.make_dual(torch.ones_like(output), tangent)
            (gradient,) = torch.autograd.grad(output, leaf, grad)
            found.append(forward_ad.unpack_dual(gradient))
    assert lean_calls
    assert_close(*found)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_torch_func(pair, assert_close, lean_calls, x):
    naive, lean = pair

    def loss(block, parameters, x):
        return torch.func.functional_call(block, parameters, (x,)).pow(2).sum()

    def per_sample(block):
        gradient = torch.func.grad(partial(loss, block))
        parameters = {name: value.detach() for name, value in block.named_parameters()}
        return list(torch.func.vmap(gradient, (None, 0))(parameters, x[:, None]).values())

    assert_close(per_sample(lean), per_sample(naive))
    assert_close([torch.func.vmap(lambda sample: lean(sample[None])[0])(x)], [naive(x)])
    for block in (lean, naive):
        output, backward = torch.func.vjp(block, x)
        assert_close([output, *backward(output)], [naive(x), *torch.func.vjp(naive, x)[1](naive(x))])
    assert not lean_calls


@pytest.mark.parametrize("parameters", [torch.Tensor.detach, torch.nn.Parameter])
def test_functional_call_with_foreign_parameters(pair, assert_close, x, parameters):
    naive, lean = pair
    foreign = {name: parameters(1.5 * value) for name, value in naive.named_parameters()}
    found = []
    for block in (lean, naive):
        leaves = {name: value.detach().clone() for name, value in foreign.items()}
        leaves = {
            name: (value.requires_grad_() if parameters is torch.Tensor.detach else torch.nn.Parameter(value))
            for name, value in leaves.items()
        }
        output = torch.func.functional_call(block, leaves, (x,))
        gradients = torch.autograd.grad(output.pow(3).sum(), list(leaves.values()), create_graph=True)
        total = sum(gradient.pow(2).sum() for gradient in gradients)
        found.append([output, *gradients, *torch.autograd.grad(total, list(leaves.values()))])
    assert_close(*found, 1e-10)


def saves(names):
    def policy(context, operator, *args, **kwargs):
        saved = operator.name().split("::")[1].split(".")[0] in names
        return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE

    return partial(create_selective_checkpoint_contexts, policy)


@pytest.mark.parametrize("names", [{"gelu"}, {"native_layer_norm"}, {"mm", "addmm", "baddbmm"}])
def test_selective_checkpointing(pair, assert_close, x, names):
    found = []
    for block in reversed(pair):
        leaf = x.clone().requires_grad_()
        output = checkpoint(block, leaf, use_reentrant=False, context_fn=saves(names))
        inputs = [leaf, *block.parameters()]
        found.append([output.detach(), *torch.autograd.grad(output.pow(3).sum(), inputs)])
    assert_close(*found)


@pytest.mark.parametrize("kind", [TorchFunctionMode, TorchDispatchMode])
def test_modes_see_every_operation(pair, assert_close, output_and_gradients, lean_calls, x, kind):
    def seen_by_mode(block):
        seen = []

        def see(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **kwargs or {})

        name = "__torch_function__" if kind is TorchFunctionMode else "__torch_dispatch__"
        with type("Mode", (kind,), {name: see})():
            found = output_and_gradients(block, x)
        return found, seen

    naive, lean = pair
    (found, seen), (expected, all_of_them) = seen_by_mode(lean), seen_by_mode(naive)
    assert not lean_calls
    assert_close(found, expected, 0.0)
    assert len(all_of_them) > 5 and list(map(str, seen)) == list(map(str, all_of_them))


class Noted(torch.Tensor):
    """A subclass that sees every function."""

    seen: list = []

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        cls.seen.append(function.__name__)
        return super().__torch_function__(function, types, args, kwargs)


@pytest.mark.parametrize("where", ["input", "mask", "parameter"])
def test_subclasses_of_tensors(pair, assert_close, lean_calls, x, where):
    naive, lean = pair
    mask = torch.tensor([[1] * 9, [1] * 5 + [0] * 4])
    expected = naive(x, mask)
    if where == "parameter":
        weight = lean.proj_out.weight
        lean.proj_out.weight = torch.nn.Parameter(weight.detach().as_subclass(Noted))
        assert type(lean.proj_out.weight) is Noted
    elif where == "mask":
        mask = mask.as_subclass(Noted)
    else:
        x = x.as_subclass(Noted)
    Noted.seen.clear()
    found = lean(x, mask)
    assert Noted.seen and not lean_calls
    assert_close([found.as_subclass(torch.Tensor)], [expected], 0.0)


def test_offloaded_saved_tensors(pair, assert_close, output_and_gradients, lean_calls, x):
    naive, lean = pair
    with torch.autograd.graph.save_on_cpu():
        assert_close(output_and_gradients(lean, x), output_and_gradients(naive, x))
    assert lean_calls


@pytest.mark.slow
def test_compiled_autograd(pair, assert_close, lean_calls, x):
    compiled_autograd = pytest.importorskip("torch._dynamo.compiled_autograd")
    if not hasattr(compiled_autograd, "_enable"):
        pytest.skip("this PyTorch has another name for it")
    for block in pair:
        with compiled_autograd._enable(lambda graph: graph):
            block(x).pow(3).sum().backward()
    assert lean_calls
    assert_close(*([parameter.grad for parameter in block.parameters()] for block in reversed(pair)))


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
def test_anomaly_detection_and_hooks_on_tensors(pair, assert_close, output_and_gradients, lean_calls, x):
    found = []
    for block in reversed(pair):
        seen = []
        for parameter in block.parameters():
            parameter.register_hook(lambda grad, seen=seen: seen.append(grad.clone()))
        with torch.autograd.detect_anomaly(check_nan=True):
            output_and_gradients(block, x)
        found.append(sorted(seen, key=lambda grad: (grad.shape, grad.norm())))
    assert lean_calls and found[0]
    assert_close(*found)


def test_without_the_private_test_for_batches_of_gradients(make_block, monkeypatch, assert_close, lean_calls, x):
    """Then every backward pass goes through the layers."""
    naive, lean = make_block()
    monkeypatch.delattr(torch._C._functorch, "is_legacy_batchedtensor")
    calls, usual = [], lean_module._backward_through_layers
    monkeypatch.setattr(lean_module, "_backward_through_layers", lambda *args: calls.append(1) or usual(*args))
    inputs = list(lean.parameters())
    found = torch.autograd.grad(lean(x).pow(3).sum(), inputs)
    expected = torch.autograd.grad(naive(x).pow(3).sum(), list(naive.parameters()))
    assert lean_calls and calls
    assert_close(found, expected)


def test_copies_of_blocks_that_have_computed(make_block, assert_close, output_and_gradients, lean_calls, x):
    """Copying leaves a note in every class of layers."""
    naive, lean = make_block()
    output_and_gradients(lean, x)
    again = copy.deepcopy(lean)
    lean_calls.clear()
    assert_close(output_and_gradients(again, x), output_and_gradients(naive, x))
    assert lean_calls
