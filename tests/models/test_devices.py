"""The models on a GPU, or on the CPU where there is none: precisions, compilation, mixed precision.

Results are compared with those of the same model and inputs on the CPU in double precision, without compilation.
"""

import copy

import pytest
import torch
from torch.nn.utils import parameters_to_vector
from transformers.testing_utils import torch_device

from hf_gmlp import GMLPForCausalLM, GMLPForImageClassification, GMLPForMaskedLM, GMLPForSequenceClassification

from ..samples import CONVOLUTIONAL
from .helpers import labeled_batch

ON_GPU = torch_device == "cuda"
# Maximum distance of an output or gradient vector from double precision, relative to its norm.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 0.015, torch.bfloat16: 0.12}
# Positions of two documents in each row.
PACKED = torch.tensor([[*range(4), *range(5)]] * 4)
# Model, fields of its config, and inputs besides those of `labeled_batch`.
MODELS = {
    "gMLP": (GMLPForMaskedLM, {}, {}),
    "dense W": (GMLPForSequenceClassification, {"toeplitz": False}, {}),
    "aMLP": (GMLPForMaskedLM, {"attention_size": 16}, {}),
    "causal aMLP": (GMLPForCausalLM, {"attention_size": 16, "spatial_heads": 4}, {}),
    "packed aMLP": (GMLPForMaskedLM, {"attention_size": 16}, {"position_ids": PACKED}),
    "images": (GMLPForImageClassification, CONVOLUTIONAL, {}),
}
every_model = pytest.mark.parametrize("name", MODELS)
every_dtype = pytest.mark.parametrize("dtype", TOLERANCE, ids=lambda dtype: str(dtype).removeprefix("torch."))


@pytest.fixture(autouse=True)
def single_precision(monkeypatch):
    """By default, convolutions on a GPU compute in TF32."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.fixture
def build(text_config, vision_config, perturbed_model):
    """build(name, **fields) returns a model and a batch with labels, both on the CPU."""

    def make(name, **fields):
        model_class, own_fields, more = MODELS[name]
        config = vision_config if name == "images" else text_config
        model = perturbed_model(model_class, config(**(own_fields | fields)))
        torch.manual_seed(0)
        return model.train(), labeled_batch(model_class) | more

    return make


def move(inputs, dtype, device=torch_device):
    """Return the inputs on a device, with images in `dtype`."""
    return {key: x.to(device, dtype if x.is_floating_point() else None) for key, x in inputs.items()}


def results_of(model, inputs):
    """Return the logits and the gradients as one vector each, on the CPU in double precision."""
    model.zero_grad()
    output = model(**inputs)
    output.loss.backward()
    logits, mask = output.logits, inputs.get("attention_mask")
    logits = logits if mask is None or logits.dim() == 2 else logits[mask == 1]
    gradients = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    return [x.detach().cpu().double().flatten() for x in (logits, gradients)]


def expected_of(model, inputs):
    return results_of(copy.deepcopy(model).double(), move(inputs, torch.double, "cpu"))


def assert_near(actual, expected, tolerance):
    for value, reference in zip(actual, expected, strict=True):
        assert (value - reference).norm() <= tolerance * reference.norm()


@every_model
@every_dtype
def test_every_precision_is_near_double_precision(build, name, dtype):
    model, inputs = build(name)
    expected = expected_of(model, inputs)
    assert_near(results_of(model.to(torch_device, dtype), move(inputs, dtype)), expected, TOLERANCE[dtype])


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@every_model
@every_dtype
@pytest.mark.usefixtures("fresh_compiler")
def test_compiled_into_one_graph(build, name, dtype, backend):
    if not ON_GPU and (dtype != torch.float32 or (backend == "inductor" and name != "aMLP")):
        pytest.skip("Compiling a model with inductor takes ten seconds or more on a CPU.")
    model, inputs = build(name, num_hidden_layers=1)
    expected = expected_of(model, inputs)
    compiled = torch.compile(model.to(torch_device, dtype), fullgraph=True, backend=backend)
    assert_near(results_of(compiled, move(inputs, dtype)), expected, TOLERANCE[dtype])


@every_model
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_mixed_precision_trains_like_double_precision(build, name, dtype):
    """Run five SGD steps. float16 uses a loss scale that is small enough for no step to overflow and be skipped."""
    changes = []
    for mixed in (False, True):
        model, inputs = build(name)
        device, precision = (torch_device, torch.float32) if mixed else ("cpu", torch.double)
        model, inputs = model.to(device, precision), move(inputs, precision, device)
        start = parameters_to_vector(model.parameters()).detach()
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        scaler = torch.amp.GradScaler(device, init_scale=64.0, enabled=mixed and dtype == torch.float16)
        for _ in range(5):
            with torch.autocast(device, dtype, enabled=mixed):
                loss = model(**inputs).loss
            assert loss.dtype == precision
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        changes.append((parameters_to_vector(model.parameters()).detach() - start).cpu().double())
    assert_near(changes[1:], changes[:1], TOLERANCE[dtype])
