"""Whatever is put on a layer is honored: lean and naive blocks have the same outputs with the same interference.

Every interference is a context manager that puts itself on the layer at `path` in `model` and takes itself off again.
It appends to `seen` whenever it runs, so that no test passes because nothing has happened.
"""

import copy
from contextlib import contextmanager

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.modules import module as module_tables
from torch.nn.utils import parametrizations, parametrize, prune
from torch.nn.utils import weight_norm as old_weight_norm

from hf_gmlp import GMLPForMaskedLM
from hf_gmlp.models.spatial_gating import SPATIAL_GATINGS, SpatialGating, SpatialProjection

BLOCK = "0"
WITH_PARAMETERS = ["0.norm", "0.proj_in", "0.spatial_gating_unit.norm", "0.spatial_gating_unit.proj", "0.proj_out"]
GONE_AROUND = [*WITH_PARAMETERS, "0.activation", "0.activation_dropout", "0.spatial_gating_unit"]


def scaled(result):
    return 1.5 * result


class Other(nn.Module):
    """Another module in place of a layer, which it calls."""

    def __init__(self, layer, seen):
        super().__init__()
        self.layer, self.seen = layer, seen

    def forward(self, *args, **kwargs):
        self.seen.append("forward")
        return scaled(self.layer(*args, **kwargs))


class Adapter(Other):
    """It has all attributes of the layer, too."""

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("layer"), name)


class LowRank(nn.Module):
    """LoRA by hand: W x + B A x, with the attributes of the layer."""

    def __init__(self, layer, seen):
        super().__init__()
        size = layer.weight.shape
        self.layer, self.seen = layer, seen
        self.weight, self.bias = layer.weight, layer.bias
        self.down = nn.Parameter(torch.linspace(-1, 1, 2 * size[1], dtype=torch.double).sin().view(2, -1))
        self.up = nn.Parameter(torch.linspace(1, 2, 2 * size[0], dtype=torch.double).cos().view(-1, 2))

    def forward(self, x):
        self.seen.append("forward")
        return self.layer(x) + x @ self.down.T @ self.up.T


def replacing(make):
    @contextmanager
    def interference(model, path, seen):
        layer = model.get_submodule(path)
        model.set_submodule(path, make(layer, seen))
        yield
        model.set_submodule(path, layer)

    return interference


def subclass_of(layer, seen):
    kind = type(layer)

    def forward(self, *args, **kwargs):
        seen.append("forward")
        return scaled(kind.forward(self, *args, **kwargs))

    return type(f"{kind.__name__}Child", (kind,), {"forward": forward})


def of_a_subclass(layer, seen):
    child = copy.copy(layer)
    child.__class__ = subclass_of(layer, seen)
    return child


@contextmanager
def class_changed(model, path, seen):
    layer = model.get_submodule(path)
    kind = type(layer)
    layer.__class__ = subclass_of(layer, seen)
    yield
    layer.__class__ = kind


@contextmanager
def hidden_by_an_attribute(model, path, seen):
    parent, _, name = path.rpartition(".")
    parent = model.get_submodule(parent)
    # Behind the back of `nn.Module`.
    parent.__dict__[name] = Other(parent.get_submodule(name), seen)
    yield
    del parent.__dict__[name]


def noting(seen, result):
    def hook(module, *args):
        seen.append("hook")
        return result(*args)

    return hook


def scaled_inputs(inputs):
    return (scaled(inputs[0]), *inputs[1:])


def scaled_gradients(grad_input, grad_output):
    return tuple(None if grad is None else scaled(grad) for grad in grad_input)


HOOKS = {
    "forward_hook": lambda inputs, output: scaled(output),
    "forward_pre_hook": scaled_inputs,
    "full_backward_hook": scaled_gradients,
    "full_backward_pre_hook": lambda grad_output: tuple(map(scaled, grad_output)),
}


def hooked(name):
    @contextmanager
    def interference(model, path, seen):
        handle = getattr(model.get_submodule(path), f"register_{name}")(noting(seen, HOOKS[name]))
        yield
        handle.remove()

    return interference


def globally_hooked(name):
    @contextmanager
    def interference(model, path, seen):
        layer, hook = model.get_submodule(path), noting(seen, HOOKS[name])
        register = getattr(module_tables, f"register_module_{name}")
        handle = register(lambda module, *args: hook(module, *args) if module is layer else None)
        yield
        handle.remove()

    return interference


def patched_on_the_instance(name):
    @contextmanager
    def interference(model, path, seen):
        layer = model.get_submodule(path)
        usual = getattr(layer, name)

        def patched(*args, **kwargs):
            seen.append(name)
            return scaled(usual(*args, **kwargs))

        layer.__dict__[name] = patched
        yield
        del layer.__dict__[name]

    return interference


def patched_on_the_class(name, of=None):
    @contextmanager
    def interference(model, path, seen):
        layer = model.get_submodule(path)
        kind = of or type(layer)
        own, usual = name in vars(kind), getattr(kind, name)

        def patched(self, *args, **kwargs):
            result = usual(self, *args, **kwargs)
            if self is not layer:
                return result
            seen.append(name)
            return scaled(result)

        setattr(kind, name, patched)
        yield
        if own:
            setattr(kind, name, usual)
        else:
            delattr(kind, name)

    return interference


class Scale(nn.Module):
    def __init__(self, seen):
        super().__init__()
        self.seen = seen

    def forward(self, weight):
        self.seen.append("parametrization")
        return scaled(weight)


def parametrized(name):
    @contextmanager
    def interference(model, path, seen):
        layer = model.get_submodule(path)
        parametrize.register_parametrization(layer, name, Scale(seen), unsafe=True)
        yield
        parametrize.remove_parametrizations(layer, name, leave_parametrized=False)

    return interference


@contextmanager
def weight_normed(model, path, seen):
    layer = model.get_submodule(path)
    parametrizations.weight_norm(layer, dim=None)
    with torch.no_grad():
        layer.parametrizations.weight.original0.mul_(1.5)
    yield
    parametrize.remove_parametrizations(layer, "weight")


@contextmanager
def weight_normed_the_old_way(model, path, seen):
    layer = model.get_submodule(path)
    old_weight_norm(layer, dim=None)
    with torch.no_grad():
        layer.weight_g.mul_(1.5)
    yield
    nn.utils.remove_weight_norm(layer)


@contextmanager
def pruned(model, path, seen):
    layer = model.get_submodule(path)
    prune.l1_unstructured(layer, "weight", 0.5)
    yield
    prune.remove(layer, "weight")


def parameter_changed(name, make):
    @contextmanager
    def interference(model, path, seen):
        layer = model.get_submodule(path)
        parameter = getattr(layer, name)
        setattr(layer, name, make(parameter, seen))
        yield
        setattr(layer, name, parameter)

    return interference


class Noted(nn.Parameter):
    """A parameter that sees every function, like quantized and sharded ones."""

    __torch_function__ = classmethod(
        lambda cls, function, types, args=(), kwargs=None: cls.note(function, args, kwargs or {})
    )

    @classmethod
    def note(cls, function, args, kwargs):
        with torch._C.DisableTorchFunctionSubclass():
            cls.seen.append(function)
            return function(*args, **kwargs)


def noted(parameter, seen):
    kind = type("Noted", (Noted,), {"seen": seen})
    return kind(1.5 * parameter.detach())


@contextmanager
def weight_hidden_by_a_tensor(model, path, seen):
    """As in a hook or a replica of `nn.DataParallel`."""
    layer = model.get_submodule(path)
    layer.__dict__["weight"] = scaled(layer.weight)
    yield
    del layer.__dict__["weight"]


@contextmanager
def with_a_compiled_call(model, path, seen):
    """What `layer.compile()` leaves."""
    layer = model.get_submodule(path)
    usual = layer._call_impl

    def compiled(*args, **kwargs):
        seen.append("compiled")
        return scaled(usual(*args, **kwargs))

    layer._compiled_call_impl = compiled
    yield
    del layer._compiled_call_impl


ANYWHERE = {
    "another module": replacing(Other),
    "an adapter": replacing(Adapter),
    "a subclass": replacing(of_a_subclass),
    "another class": class_changed,
    **{f"a {name}": hooked(name) for name in HOOKS},
    **{f"a {name} for all modules": globally_hooked(name) for name in HOOKS},
    "its forward": patched_on_the_instance("forward"),
    "its _call_impl": patched_on_the_instance("_call_impl"),
    "forward of its class": patched_on_the_class("forward"),
    "a __call__ of its class": patched_on_the_class("__call__"),
    "__call__ of all modules": patched_on_the_class("__call__", nn.Module),
    "_call_impl of all modules": patched_on_the_class("_call_impl", nn.Module),
    "a compiled call": with_a_compiled_call,
}
ON_PARAMETERS = {
    "a parametrized weight": parametrized("weight"),
    "a parametrized bias": parametrized("bias"),
    "weight_norm": weight_normed,
    "the old weight_norm": weight_normed_the_old_way,
    "pruning": pruned,
    "a foreign weight": parameter_changed("weight", noted),
    "a foreign bias": parameter_changed("bias", noted),
    "a hidden weight": weight_hidden_by_a_tensor,
}
NO_BIAS = parameter_changed("bias", lambda parameter, seen: None)
SPECIAL = [
    *(("no bias", NO_BIAS, path) for path in WITH_PARAMETERS if not path.endswith("unit.proj")),
    ("low rank", replacing(LowRank), "0.proj_in"),
    ("low rank", replacing(LowRank), "0.proj_out"),
    ("no activation", replacing(lambda layer, seen: nn.Identity()), "0.activation"),
    ("another function", parameter_changed("act", lambda act, seen: F.relu), "0.activation"),
    ("matrix", patched_on_the_instance("matrix"), "0.spatial_gating_unit.proj"),
    ("matrix of the class", patched_on_the_class("matrix"), "0.spatial_gating_unit.proj"),
    ("matrix of its class", patched_on_the_class("matrix", SpatialProjection), "0.spatial_gating_unit.proj"),
]
CASES = [
    *((name, interference, path) for name, interference in ANYWHERE.items() for path in [BLOCK, *GONE_AROUND]),
    *((name, interference, path) for name, interference in ON_PARAMETERS.items() for path in WITH_PARAMETERS),
    *(("an attribute", hidden_by_an_attribute, path) for path in GONE_AROUND),
    *SPECIAL,
]


@pytest.fixture
def models(make_block):
    """A naive and a lean model of one block, which is a module of the model like any other."""
    return [nn.Sequential(block) for block in make_block()]


@pytest.fixture
def run(assert_close):
    """run(model): the output and the gradients of the input and of all parameters."""
    x = torch.randn(2, 9, 16, dtype=torch.double)

    def results(model):
        leaf = x.clone().requires_grad_()
        output = model(leaf)
        gradients = torch.autograd.grad(output.pow(3).sum(), [leaf, *model.parameters()], allow_unused=True)
        return [output.detach(), *gradients]

    return results


def differ(found, expected):
    if len(found) != len(expected):
        return True
    return any(a is not None and b is not None and not torch.allclose(a, b) for a, b in zip(found, expected))


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated", "ignore:Full backward hook")
@pytest.mark.parametrize(
    ("interference", "path"), [case[1:] for case in CASES], ids=[f"{name}-{path}" for name, _, path in CASES]
)
def test_interference(models, run, assert_close, lean_calls, interference, path):
    untouched, results, counts = run(models[0]), [], []
    for model in models:
        lean_calls.clear()
        seen = []
        with interference(model, path, seen):
            results.append(run(model))
            # The block itself is called; only its layers are not.
            assert not lean_calls or path == BLOCK
        counts.append(len(seen))
    expected, found = results
    assert_close(found, expected)
    assert counts[0] == counts[1]
    assert counts[0] or differ(expected, untouched)
    naive, lean = models
    lean_calls.clear()
    assert_close(run(lean), run(naive))
    assert lean_calls


def test_no_bias_of_the_projection(models, run):
    for model in models:
        with NO_BIAS(model, "0.spatial_gating_unit.proj", []), pytest.raises(TypeError, match="NoneType"):
            run(model)


@pytest.mark.parametrize("layer", [nn.Identity(), nn.Dropout(0.5), nn.AlphaDropout(0.5)])
def test_other_dropouts(models, run, assert_close, lean_calls, layer):
    results = []
    for model in models:
        model[0].activation_dropout = layer
        for training in (False, True):
            model.train(training)
            torch.manual_seed(3)
            results.append(run(model))
    assert_close(results[2], results[0])
    assert_close(results[3], results[1])
    assert isinstance(layer, nn.Identity) != differ(results[1], results[0])
    # In inference, a usual dropout does nothing.
    assert len(lean_calls) == (type(layer) is nn.Dropout)


@pytest.mark.parametrize("gating", [SpatialGating(True, torch.sub), SpatialGating(False, torch.sub)])
def test_a_fifth_gating(make_block, monkeypatch, run, assert_close, lean_calls, gating):
    monkeypatch.setitem(SPATIAL_GATINGS, "fifth", gating)
    naive, lean = make_block(spatial_gating="split" if gating.splits else "linear")
    before = run(naive)
    for block in (naive, lean):
        block.spatial_gating_unit.config.spatial_gating = "fifth"
    expected = run(naive)
    assert_close(run(lean), expected)
    assert differ(expected, before) and not lean_calls


def test_another_gating_with_the_name_of_one_of_the_four(make_block, monkeypatch, run, assert_close, lean_calls):
    naive, lean = make_block(spatial_gating="additive")
    before = run(naive)
    monkeypatch.setitem(SPATIAL_GATINGS, "additive", SpatialGating(False, torch.sub))
    expected = run(naive)
    assert_close(run(lean), expected)
    assert differ(expected, before) and not lean_calls


@pytest.mark.parametrize("change", [{"spatial_gating": "multiplicative"}, {"is_causal": True}])
def test_the_config_of_the_unit_is_what_counts(make_block, run, assert_close, lean_calls, change):
    """It may be another object than the block's, and may change at any time."""
    naive, lean = make_block(spatial_gating="additive")
    before = run(naive)
    for block in (naive, lean):
        unit = block.spatial_gating_unit
        unit.config = copy.deepcopy(block.config)
        for name, value in change.items():
            setattr(unit.config, name, value)
    expected = run(naive)
    assert_close(run(lean), expected)
    assert differ(expected, before) and lean_calls


PATCHED_FUNCTIONS = [
    (F, "linear"),
    (F, "layer_norm"),
    (F, "dropout"),
    (torch, "baddbmm"),
    ("hf_gmlp.models.spatial_gating", "spatial_matrix"),
]


@pytest.mark.parametrize(("place", "name"), PATCHED_FUNCTIONS)
def test_functions_that_layers_call(models, run, assert_close, lean_calls, monkeypatch, place, name):
    seen = []
    if isinstance(place, str):
        place = __import__(place, fromlist=[name])
    usual = getattr(place, name)
    monkeypatch.setattr(place, name, lambda *args, **kwargs: seen.append(name) or scaled(usual(*args, **kwargs)))
    expected, count = run(models[0]), len(seen)
    assert_close(run(models[1]), expected)
    assert len(seen) == 2 * count > 0 and not lean_calls


@pytest.fixture
def logits_and_gradients(random_ids):
    ids = random_ids(2, 9)

    def results(model):
        loss = model(input_ids=ids, labels=ids).loss
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        return [loss.detach(), *torch.autograd.grad(loss, parameters, allow_unused=True)]

    return results


LORA = {
    "all-linear": {"target_modules": "all-linear"},
    "target_parameters": {"target_modules": [], "target_parameters": ["spatial_gating_unit.proj.weight"]},
}


@pytest.mark.parametrize("target", LORA)
def test_lora_by_peft(far_model, text_config, logits_and_gradients, assert_close, lean_calls, target):
    peft = pytest.importorskip("peft")
    results, merged = [], []
    for name in ("naive", "lean"):
        # Parameters of LoRA have two axes.
        model = far_model(GMLPForMaskedLM, text_config(attention_size=8, toeplitz=target == "all-linear")).double()
        model.set_gating_implementation(name)
        before = logits_and_gradients(model)
        assert bool(lean_calls) == (name == "lean")
        lean_calls.clear()
        adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, init_lora_weights=True, **LORA[target])).double()
        with torch.no_grad():
            for number, (path, parameter) in enumerate(adapted.named_parameters()):
                if "lora_" in path:
                    parameter.copy_(torch.linspace(1, 2, parameter.numel()).mul(number).sin().view_as(parameter))
        results.append(logits_and_gradients(adapted))
        assert not lean_calls and differ(results[-1][:1], before[:1])
        assert any(gradient.abs().sum() > 0 for gradient in results[-1][1:])
        merged.append(logits_and_gradients(adapted.merge_and_unload().requires_grad_()))
        assert bool(lean_calls) == (name == "lean")
    assert_close(results[1], results[0])
    assert_close(merged[1], merged[0])
    assert_close(merged[1][:1], results[1][:1], 1e-10)
