import time

import pytest
import torch
from transformers import AutoConfig, AutoModelForMaskedLM, TrainerCallback

from hf_gmlp.presets import preset_path
from hf_gmlp.training.throughput import training_flops

from .test_trainer import make_trainer


@pytest.mark.parametrize(("preset", "forward"), [("gmlp-base", 158.0e9), ("amlp-base", 128.9e9)])
def test_training_step_flops_are_three_times_the_papers(preset, forward):
    with torch.device("meta"):
        config = AutoConfig.from_pretrained(preset_path(preset), sparse_prediction=True)
        model = AutoModelForMaskedLM.from_config(config)
    labels = torch.full((2, 512), -100)
    labels[:, :76] = 5
    flops = training_flops(model, {"input_ids": torch.zeros(2, 512, dtype=torch.long), "labels": labels})
    assert flops == pytest.approx(3 * forward, rel=0.01)
    assert training_flops(model, {"input_ids": torch.zeros(1, 513, dtype=torch.long)}) == 0


class SlowEvaluation(TrainerCallback):
    def on_prediction_step(self, args, state, control, **kwargs):
        time.sleep(0.1)


def test_logs_count_tokens_and_a_resumed_run_counts_on(tmp_path):
    options = {"logging_steps": 2, "save_steps": 4, "eval_strategy": "steps", "eval_steps": 1, "peak_tflops": 1e-3}
    trainer = make_trainer(tmp_path, **options)
    trainer.add_callback(SlowEvaluation())
    begin = time.perf_counter()
    metrics = trainer.train().metrics
    seconds = time.perf_counter() - begin
    rows = [row for row in trainer.state.log_history if "loss" in row]
    # A batch has eight rows of four tokens each.
    assert [row["tokens_seen"] for row in rows] == [64, 128, 192] and metrics["train_tokens_seen"] == 192
    assert all(row["mfu"] > 0 and row["tokens_per_second"] > 0 for row in rows)
    # The rate excludes evaluation time, which is six times four batches.
    assert metrics["train_tokens_per_second"] > 192 / (seconds - 2.4)
    resumed = make_trainer(tmp_path, **options)
    resumed.train(str(tmp_path / "checkpoint-4"))
    assert resumed.throughput.log()["tokens_seen"] == 192
