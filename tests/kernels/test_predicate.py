"""Where the naive form must run, beyond what test_interference.py puts on layers, and where it need not."""

import copy

import pytest
import torch
from torch import fx, nn
from torch.autograd import forward_ad
from torch.nn.modules import module as module_tables

from hf_gmlp.kernels import predicate
from hf_gmlp.kernels.lean import lean_gating
from hf_gmlp.kernels.predicate import may_stand_in
from hf_gmlp.models.modeling_gmlp import GMLPBlock, naive_gating


@pytest.fixture
def x():
    return torch.randn(2, 9, 16, dtype=torch.double)


@pytest.fixture
def block(make_block):
    return make_block()[1]


@pytest.fixture
def check(make_block, x, assert_same, lean_calls):
    """check(change, is_lean, **fields): make a change to two blocks, and compare them."""

    def both(change, is_lean, **fields):
        naive, lean = make_block(**fields)
        for block in (naive, lean):
            change(block)
        assert may_stand_in(lean, x) == is_lean
        assert_same(naive, lean, x)
        assert bool(lean_calls) == is_lean

    return both


def set_dropout(block):
    block.activation_dropout.p = 0.1


def freeze(block):
    for parameter in (block.norm.weight, block.proj_in.bias, block.spatial_gating_unit.proj.weight):
        parameter.requires_grad_(False)


def tie_biases(block):
    block.norm.bias = block.proj_out.bias


def share_memory(block):
    both = nn.Parameter(torch.stack([block.norm.weight, block.proj_out.bias]).detach()).detach()
    block.norm.weight, block.proj_out.bias = (nn.Parameter(row) for row in both)
    assert block.norm.weight.untyped_storage().data_ptr() == block.proj_out.bias.untyped_storage().data_ptr()


def change_strides(block):
    block.proj_in.weight = nn.Parameter(block.proj_in.weight.detach().T.contiguous().T)
    projection = block.spatial_gating_unit.proj
    projection.bias = nn.Parameter(torch.stack([projection.bias.detach()] * 2, dim=1)[:, 0])


def swap_order(block):
    """The parameters of a layer come in the order in which they were set."""
    for layer in (block.norm, block.proj_in, block.spatial_gating_unit.proj):
        weight = layer.weight
        del layer.weight
        layer.weight = weight


def change_eps(block):
    block.norm.eps, block.spatial_gating_unit.norm.eps = 0.1, 0.2


def use_other_modules(block):
    block.attention = block.spatial_gating_unit.more = nn.Linear(2, 2)
    block.attention = None
    block.proj_in.note = "something"


@pytest.mark.parametrize(
    "change",
    [set_dropout, freeze, tie_biases, share_memory, change_strides, swap_order, change_eps, use_other_modules],
    ids=lambda change: change.__name__,
)
def test_what_lean_can_do(check, change):
    check(change, True)


def stretch_bias(block):
    block.proj_in.bias = nn.Parameter(block.proj_in.bias.detach()[:1])


def sparse_weight(block):
    block.proj_out.weight = nn.Parameter(block.proj_out.weight.detach().to_sparse_csr(), requires_grad=False)


def buffers(block):
    block.proj_in.register_buffer("weight_scale", torch.ones(1))


def more_parameters(block):
    block.norm.scale = nn.Parameter(torch.ones((), dtype=torch.double))


def tensor_for_parameter(block):
    weight = block.norm.weight
    del block.norm.weight
    block.norm.register_buffer("weight", weight.detach())


@pytest.mark.parametrize(
    "change",
    [stretch_bias, sparse_weight, buffers, tensor_for_parameter],
    ids=lambda change: change.__name__,
)
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_what_naive_must_do(check, change):
    check(change, False)


def test_an_unknown_parameter(block, x):
    more_parameters(block)
    assert not may_stand_in(block, x)


def test_dropout_in_training_is_naive(make_block, x, lean_calls):
    outputs = []
    for block in make_block(activation_dropout=0.5):
        assert may_stand_in(block, x) and not may_stand_in(block.train(), x)
        torch.manual_seed(0)
        outputs.append(block(x))
    assert torch.equal(*outputs) and not lean_calls
    assert not torch.equal(outputs[0], block.eval()(x))


@pytest.mark.parametrize("change", ["norm", "unit.norm", "dtype", "parameter", "length"])
def test_errors_are_those_of_the_naive_form(make_block, x, change):
    messages = []
    for block in make_block():
        value = x
        if change == "norm":
            block.norm.normalized_shape = (8,)
        elif change == "unit.norm":
            block.spatial_gating_unit.norm.normalized_shape = (3,)
        elif change == "dtype":
            value = x.float()
        elif change == "parameter":
            block.proj_in.float()
        else:
            value = torch.randn(1, 13, 16, dtype=torch.double)
        with pytest.raises(RuntimeError) as error:
            block(value)
        messages.append(str(error.value))
    assert change == "length" or messages[0] == messages[1]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_which_inputs_are_plain(block, x):
    assert may_stand_in(block, x) and may_stand_in(block, nn.Parameter(x)) and may_stand_in(block, x, torch.ones(2, 9))
    assert not may_stand_in(block, x, torch.ones(1, 9)) and not may_stand_in(block, x[0])
    assert not may_stand_in(block, x.float()) and not may_stand_in(block, x.to("meta"))
    assert not may_stand_in(block, x.to_sparse())
    assert not may_stand_in(block, torch.nested.as_nested_tensor([x[0], x[1]]))
    with torch.device("cpu"):
        # A `TorchFunctionMode` of PyTorch itself.
        assert not may_stand_in(block, x)


def test_blocks_of_no_memory(make_block, x):
    naive, lean = (block.to("meta") for block in make_block())
    assert may_stand_in(lean, x.to("meta"))
    output = lean(x.to("meta"))
    assert output.shape == naive(x.to("meta")).shape and output.is_meta
    output.sum().backward()
    assert lean.proj_in.weight.grad.is_meta


def test_subclasses_of_blocks(block, x):
    """The block itself is called; FSDP2 makes a subclass of every block."""
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    block.__class__ = type("FSDPGMLPBlock", (fsdp.FSDPModule, GMLPBlock), {})
    assert may_stand_in(block, x)


class Branch(nn.Module):
    """A block's branch alone: torch.fx does not trace the whole of a `GradientCheckpointingLayer`."""

    def __init__(self, block, gating):
        super().__init__()
        self.block, self.gating = block, gating

    def forward(self, hidden_states):
        return self.gating(self.block, hidden_states)


def test_traces_by_torch_fx(make_block, x, assert_close, short_fft):
    """torch.fx replaces `nn.Module.__call__` while it traces."""
    naive, lean = make_block(toeplitz=True)
    answers = []

    class Tracer(fx.Tracer):
        def is_leaf_module(self, module, name):
            answers.append(may_stand_in(lean, x))
            return True

    graphs = []
    for branch in (Branch(naive, naive_gating), Branch(lean, lean_gating)):
        graphs.append(fx.GraphModule(branch, Tracer().trace(branch)))
    assert answers and not any(answers) and may_stand_in(lean, x)
    assert str(graphs[0].graph) == str(graphs[1].graph)
    assert_close([graphs[1](x)], [graphs[0](x)])


def test_traces_by_torch_jit(make_block, x, assert_close, lean_calls):
    naive, lean = make_block()
    traced = torch.jit.trace(lean, (x,), check_trace=False)
    assert not lean_calls
    again = torch.randn(3, 9, 16, dtype=torch.double)
    assert_close([traced(again)], [naive(again)])


def test_replicas_of_data_parallel(make_block, x, assert_close, lean_calls):
    """Replicas hold tensors in place of parameters."""
    naive, lean = make_block()
    replica = copy.copy(lean)
    replica._modules = {name: module._replicate_for_data_parallel() for name, module in lean._modules.items() if module}
    replica._modules["attention"] = None
    unit = replica.spatial_gating_unit
    unit._modules = {name: module._replicate_for_data_parallel() for name, module in unit._modules.items()}
    for copied, layer in (
        *((replica.get_submodule(name), lean.get_submodule(name)) for name in ("norm", "proj_in", "proj_out")),
        *((unit.get_submodule(name), lean.spatial_gating_unit.get_submodule(name)) for name in ("norm", "proj")),
    ):
        for name, value in layer.named_parameters():
            setattr(copied, name, 1.5 * value)
    for parameter in naive.parameters():
        parameter.data.mul_(1.5)
    assert_close([replica(x)], [naive(x)])
    assert not lean_calls


def test_methods_that_no_call_reaches_may_be_replaced(block, x, monkeypatch):
    for name in ("__init__", "__setstate__"):
        monkeypatch.setattr(nn.Module, name, lambda *args, **kwargs: None)
    monkeypatch.setattr(nn.Linear, "__slotnames__", [], raising=False)
    assert may_stand_in(block, x)
    monkeypatch.setattr(nn.Linear, "extra_repr", lambda self: "")
    assert not may_stand_in(block, x)
    monkeypatch.undo()
    assert may_stand_in(block, x)


def test_attributes_of_a_class(block, x, monkeypatch):
    monkeypatch.setattr(nn.Linear, "weight", property(lambda self: None), raising=False)
    assert not may_stand_in(block, x)


@pytest.mark.parametrize(
    ("place", "name"),
    [
        (torch._C, "_are_functorch_transforms_active"),
        (torch._C, "_len_torch_dispatch_stack"),
        (forward_ad, "_current_level"),
        *((module_tables, name) for name in predicate.GLOBAL_HOOKS),
    ],
)
def test_without_a_private_name_the_naive_form_runs(make_block, x, lean_calls, monkeypatch, place, name):
    naive, lean = make_block()
    expected = naive(x)
    with monkeypatch.context() as patch:
        if place is module_tables:
            # Calls of modules read these tables as well.
            patch.setattr(predicate, "module_tables", without(module_tables, name))
        elif place is forward_ad:
            patch.setattr(predicate, "forward_ad", without(forward_ad, name))
        else:
            patch.setattr(predicate.torch, "_C", without(torch._C, name))
        with torch.no_grad():
            assert torch.equal(lean(x), expected)
        assert not lean_calls
    assert may_stand_in(lean, x)


def without(module, name):
    class Rest:
        def __getattr__(self, attribute):
            if attribute == name:
                raise AttributeError(attribute)
            return getattr(module, attribute)

    return Rest()


@pytest.mark.parametrize("hooks", ["_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"])
def test_without_a_table_of_hooks_the_naive_form_runs(block, x, hooks):
    del block.norm.__dict__[hooks]
    assert not may_stand_in(block, x)
