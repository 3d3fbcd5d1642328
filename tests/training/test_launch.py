"""The configs of recipes/accelerate, launched on two CPU processes, or on one GPU.

accelerate shards with FSDP2 only on accelerators (test_distributed.py tests the sharding of transformers on CPUs).
tests/test_xla.py tests the config for TPUs.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hf_gmlp import tasks

from ..tiny_runs import TASKS, flags_of, write_data

pytestmark = pytest.mark.heavy
ROOT = Path(__file__).parents[2]
# Config -> number of processes.
ON_CPU = {"ddp": 2, "deepspeed_zero2": 2}
ON_GPU = {"one_gpu": 1, "fsdp2": 1}


def launch(config, task, *flags):
    """Launch a script and return its results."""
    processes = str((ON_CPU | ON_GPU)[config])
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--num_processes", processes]
    launcher += ["--main_process_port", "0", "--mixed_precision", "no"]
    command = [*launcher, "--config_file", ROOT / f"recipes/accelerate/{config}.yaml", ROOT / f"run_{task}.py", *flags]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "DS_ACCELERATOR": "cpu"}
    if config in ON_CPU:
        environment["CUDA_VISIBLE_DEVICES"] = ""
    # DeepSpeed compiles with the ninja that was installed alongside it.
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    done = subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(Path(flags[flags.index("--output_dir") + 1], "all_results.json").read_text())


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_data(folder)
    return folder


@pytest.mark.parametrize("config", ON_CPU | ON_GPU)
@pytest.mark.parametrize("task", TASKS)
def test_a_launched_script_has_the_losses_of_a_plain_run(task, config, data, tmp_path):
    if config.startswith("deepspeed"):
        pytest.importorskip("deepspeed", reason="only `make integrations` has deepspeed")
    if config in ON_GPU and not torch.cuda.is_available():
        pytest.skip("There is no GPU.")
    # Every process accumulates the gradients of two batches or more.
    sizes = ["--per_device_train_batch_size", 2]
    flags = flags_of(task, data, *sizes, "--save_strategy", "no", *["--use_cpu"] * (config in ON_CPU))
    results = launch(config, task, *flags, "--output_dir", tmp_path / "launched")
    tasks.run_task(task, [*flags, "--output_dir", str(tmp_path / "plain")])
    expected = json.loads((tmp_path / "plain/all_results.json").read_text())
    losses = ("train_loss", "eval_loss")
    assert [results[name] for name in losses] == pytest.approx([expected[name] for name in losses], rel=1e-3)
