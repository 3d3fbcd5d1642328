import time

import pytest
import torch
from transformers import AutoConfig, AutoModelForMaskedLM, TrainerCallback

from hf_gmlp.presets import preset_path
from hf_gmlp.training.throughput import training_flops

from .test_trainer import make_trainer


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


class SlowEvaluation(TrainerCallback):
    def on_prediction_step(self, args, state, control, **kwargs):
        time.sleep(0.1)


def test_logs_have_the_utilization_without_the_time_of_evaluations(tmp_path):
    trainer = make_trainer(tmp_path, logging_steps=2, eval_strategy="steps", eval_steps=1, peak_tflops=1e-3)
    trainer.add_callback(SlowEvaluation())
    begin = time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - begin
    rows = [row for row in trainer.state.log_history if "loss" in row]
    flops = training_flops(trainer.model, trainer.data_collator(list(trainer.train_dataset)[:8]))
    # The evaluations take six times four batches, a tenth of a second each.
    assert len(rows) == 3 and all(row["mfu"] > 0 for row in rows)
    assert sum(row["mfu"] for row in rows) / 3 > 6 * flops / (seconds - 2.4) / 1e9
