"""The configs of recipes/accelerate, launched on two CPU processes.

FSDP2 is not among them: accelerate shards on accelerators alone, so that its launch here would be data parallel
(test_distributed.py has sharding by transformers itself). TPU's is in tests/test_xla.py.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hf_gmlp import tasks

from ..tiny_runs import TASKS, flags_of, write_data

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


def launch(config, task, *flags):
    """Run a script on two processes, and return its results."""
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--num_processes", "2"]
    launcher += ["--main_process_port", "0", "--mixed_precision", "no"]
    command = [*launcher, "--config_file", ROOT / f"recipes/accelerate/{config}.yaml", ROOT / f"run_{task}.py", *flags]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "DS_ACCELERATOR": "cpu"}
    # DeepSpeed compiles with the ninja that was installed with it.
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    done = subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(Path(flags[flags.index("--output_dir") + 1], "all_results.json").read_text())


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_data(folder)
    return folder


@pytest.mark.parametrize("config", ["ddp", "deepspeed_zero2"])
@pytest.mark.parametrize("task", TASKS)
def test_two_processes_give_the_losses_of_one(task, config, data, tmp_path, monkeypatch):
    if config.startswith("deepspeed"):
        pytest.importorskip("deepspeed", reason="only `make integrations` has deepspeed")
    flags = flags_of(task, data, "--use_cpu", "--save_strategy", "no")
    results = launch(config, task, *flags, "--output_dir", tmp_path / "two")
    monkeypatch.setattr(sys, "argv", ["run.py", *flags, "--output_dir", str(tmp_path / "one")])
    tasks.run(task)
    expected = json.loads((tmp_path / "one/all_results.json").read_text())
    losses = ("train_loss", "eval_loss")
    assert [results[name] for name in losses] == pytest.approx([expected[name] for name in losses], rel=1e-3)
