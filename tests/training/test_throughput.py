from unittest.mock import Mock

import pytest
import torch
from transformers import AutoConfig, AutoModelForMaskedLM

from hf_gmlp.presets import preset_path
from hf_gmlp.training.throughput import StepTimer, training_flops

from .helpers import make_trainer


@pytest.mark.parametrize(("preset", "forward"), [("gmlp-base", 158.0e9), ("amlp-base", 128.9e9)])
def test_a_row_of_training_has_three_times_the_flops_of_the_paper(preset, forward):
    with torch.device("meta"):
        config = AutoConfig.from_pretrained(preset_path(preset), sparse_prediction=True)
        model = AutoModelForMaskedLM.from_config(config)
    labels = torch.full((2, 512), -100)
    labels[:, :76] = 5
    flops = training_flops(model, {"input_ids": torch.zeros(2, 512, dtype=torch.long), "labels": labels})
    assert flops == pytest.approx(2 * 3 * forward, rel=0.01)
    assert training_flops(model, {"input_ids": torch.zeros(1, 513, dtype=torch.long)}) == 0


def test_the_time_of_evaluations_does_not_count(monkeypatch):
    clock = Mock()
    monkeypatch.setattr("hf_gmlp.training.throughput.time.perf_counter", clock)
    timer = StepTimer()
    for seconds, event in ((0, timer.on_train_begin), (2, timer.on_step_end), (9, timer.on_evaluate)):
        clock.return_value = seconds
        event()
    clock.return_value = 13
    timer.on_step_end()
    assert timer.seconds_per_step() == 3


def test_the_utilization_is_logged(tmp_path, monkeypatch):
    monkeypatch.setattr("hf_gmlp.training.trainer.gpu_peak", lambda: 1e-3)
    trainer = make_trainer(tmp_path, logging_steps=2)
    trainer.train()
    assert [row["mfu"] > 0 for row in trainer.state.log_history if "loss" in row] == [True] * 3
