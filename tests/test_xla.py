"""Training and evaluation on an XLA device (the CPU if there is no TPU). `make xla` runs this file."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch

os.environ.setdefault("PJRT_DEVICE", "CPU")
# This must be set before torch_xla is imported, as in `hf_gmlp.tasks.run_task`.
os.environ.setdefault("XLA_NO_SPECIAL_SCALARS", "1")
pytest.importorskip("torch_xla", reason="only `make xla` has torch_xla")
import torch_xla
import torch_xla.debug.metrics as xla_metrics

from hf_gmlp import GMLPForImageClassification, GMLPVisionConfig, tasks
from hf_gmlp.training.xla import read_no_values

from .numerics import assert_close
from .samples import CONVOLUTIONAL
from .tiny_runs import flags_of, write_data

SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "image_size": 16, "patch_size": 4}


def count_work():
    """Return the number of graphs that XLA has compiled so far, and the operations that ran on the CPU instead."""
    compiled = xla_metrics.metric_data("CompileTime")
    # Reading a value, such as a loss for the log, is not counted.
    on_cpu = {name for name in xla_metrics.counter_names() if name.startswith("aten::")}
    return (compiled[0] if compiled else 0), on_cpu - {"aten::_local_scalar_dense"}


@pytest.mark.parametrize("fields", [{}, {"pooling": "mean"}, CONVOLUTIONAL], ids=["cls", "mean", "convolutional"])
def test_image_models_are_one_graph(fields):
    """Run two forward and backward passes on both devices: outputs and gradients agree, and XLA compiles one graph."""
    torch.manual_seed(1)
    model = GMLPForImageClassification(GMLPVisionConfig(**SIZES | fields, num_labels=3)).train()
    inputs = {"pixel_values": torch.randn(4, 3, 16, 16), "labels": torch.tensor([0, 1, 2, 1])}
    read_no_values(model)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    results = {}
    for device in ("cpu", "xla"):
        model.to(device)
        for buffer in model.buffers():
            # Modify buffers in place, as the batch norms do in training.
            buffer.mul_(1)
        torch_xla.sync()
        before = count_work()
        for _ in range(2):
            model.zero_grad(set_to_none=True)
            output = model(**{name: value.to(device) for name, value in inputs.items()})
            output.loss.backward()
            torch_xla.sync()
        after = count_work()
        gradients = {name: weight.grad.cpu() for name, weight in model.named_parameters() if weight.grad is not None}
        results[device] = {"loss": output.loss.detach().cpu(), "gradients": gradients}
    assert_close(results["xla"], results["cpu"], depth=4)
    assert after == (before[0] + 1, set())


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_data(folder)
    return folder


def run(task, *flags, cpu=False):
    """Train with a script, and return its results and the XLA counters."""
    before = count_work()
    tasks.run_task(task, [*map(str, flags), *["--use_cpu"] * cpu])
    after = count_work()
    results = json.loads(Path(flags[flags.index("--output_dir") + 1], "all_results.json").read_text())
    return results, (after[0] - before[0], after[1])


# Overrides are added to those of `flags_of`.
RUNS = {
    "mlm": ("mlm",),
    "mlm-sparse": ("mlm", "--config_overrides", "toeplitz=true,attention_size=16,sparse_prediction=true"),
    "mlm-packed": ("mlm", "--config_overrides", "toeplitz=true,sparse_prediction=true", "--separate_documents", "true"),
    "clm": ("clm", "--config_overrides", "toeplitz=true,attention_size=16,is_causal=true"),
    "glue": ("glue", "--config_overrides", "attention_size=16"),
    "qa": ("qa", "--config_overrides", "toeplitz=true,attention_size=16,spatial_heads=2"),
    "images": ("image_classification",),
}


@pytest.mark.parametrize("name", RUNS)
def test_runs_compile_twice_and_give_the_results_of_the_cpu(name, data, tmp_path):
    task, *more = RUNS[name]
    flags = flags_of(task, data, *more)
    results, work = run(task, *flags, "--output_dir", tmp_path / "xla")
    expected, _ = run(task, *flags, "--output_dir", tmp_path / "cpu", cpu=True)
    numbers = {key for key in expected if not key.endswith(("runtime", "per_second", "flos"))}
    assert numbers <= results.keys() and {"eval_loss", "eval_f1"} & numbers
    assert {key: results[key] for key in numbers} == pytest.approx({key: expected[key] for key in numbers}, rel=1e-3)
    # The graphs are a training step, an evaluation batch, and small ones for the tied bias, logged losses and checks.
    assert work[0] <= 9 and not work[1]


def test_checkpoints_resume_on_both_devices(data, tmp_path):
    task, *more = RUNS["mlm-sparse"]
    flags = flags_of(task, data, *more, "--save_steps", 3)
    expected, _ = run(task, *flags, "--output_dir", tmp_path / "cpu", cpu=True)
    run(task, *flags, "--output_dir", tmp_path / "xla")
    for source, cpu in (("xla", True), ("cpu", False)):
        # Simulate a run that ended after its first checkpoint.
        folder = tmp_path / f"from-{source}"
        shutil.copytree(tmp_path / source, folder, ignore=shutil.ignore_patterns("checkpoint-6", "*.safetensors"))
        shutil.copy(tmp_path / source / "checkpoint-3/model.safetensors", folder / "checkpoint-3")
        (folder / "all_results.json").unlink()
        results, work = run(task, *flags, "--output_dir", folder, cpu=cpu)
        assert results["eval_loss"] == pytest.approx(expected["eval_loss"], rel=1e-4)
        assert work[0] <= 9 and not work[1]
