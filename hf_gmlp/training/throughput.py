"""The model FLOPs utilization (MFU) of a training, and its peak memory. Trainer itself logs tokens per second, with
--include_num_input_tokens_seen.
"""

import logging
import time
from collections.abc import Mapping

import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import PreTrainedModel, TrainerCallback

from .arguments import RunArguments

logger = logging.getLogger(__name__)

# Dense 16-bit TFLOP/s from the data sheets, by a part of a GPU's name. The first match counts.
PEAKS = {"GH200": 989, "H200": 989, "H100 PCIe": 756, "H100": 989, "B200": 2250, "A100": 312, "A10G": 70, "A10": 125}
PEAKS |= {"L40S": 362, "L4": 121, "V100": 125, "T4": 65, "RTX 4090": 165, "RTX 3090": 71}


class Utilization(TrainerCallback):
    """Computes what to log from the number of steps and their time, without that for evaluations and checkpoints.

    The FLOPs of a step are counted once, for the first batch, although longer batches need more.
    """

    def __init__(self, model: PreTrainedModel, args: RunArguments):
        self.model, self.peak = model, args.peak_tflops or gpu_peak()
        self.flops = 0.0
        self.paused, self.step_end = 0.0, time.perf_counter()

    def count(self, inputs: Mapping[str, torch.Tensor]):
        """Count the FLOPs of a batch, unless they are known or not needed."""
        if self.peak is not None and self.flops == 0:
            self.flops = training_flops(self.model, inputs) * len(inputs[self.model.main_input_name])
            self.peak = self.peak if self.flops else None

    def on_train_begin(self, args, state, control, **kwargs):
        self.paused, self.begin, self.first_step = 0.0, time.perf_counter(), state.global_step

    def on_step_end(self, args, state, control, **kwargs):
        self.step_end = time.perf_counter()

    def on_evaluate(self, args, state, control, **kwargs):
        now = time.perf_counter()
        self.paused, self.step_end = self.paused + now - self.step_end, now

    on_save = on_evaluate

    def log(self, args: RunArguments, step: int) -> dict[str, float]:
        """Return the numbers since the last call."""
        numbers, now = {}, time.perf_counter() - self.paused
        if self.peak is not None and step > self.first_step:
            rate = (step - self.first_step) * args.gradient_accumulation_steps / (now - self.begin)
            numbers["mfu"] = round(rate * self.flops / (self.peak * 1e12), 6)
        if torch.cuda.is_available():
            numbers["peak_memory_gb"] = round(torch.cuda.max_memory_allocated() / 1e9, 2)
        self.begin, self.first_step = now, step
        return numbers


def gpu_peak() -> float | None:
    """Return the peak of this GPU in TFLOP/s; None if it is not in the list, or there is no GPU."""
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    return next((float(peak) for part, peak in PEAKS.items() if part in name), None)


def training_flops(model: PreTrainedModel, inputs: Mapping[str, torch.Tensor]) -> float:
    """Return the FLOPs of a forward and a backward pass for one row of a batch; 0 if the model cannot be counted.

    They are those of three forward passes, two for each multiply-add of the matrix products. Recomputation is not
    counted. With sparse prediction, the head counts in proportion to the labels of the batch.
    """
    config, row = model.config, inputs[model.main_input_name][:1]
    labels = inputs.get("labels")
    try:
        with torch.device("meta"), torch.no_grad():
            twin = type(model)(type(config).from_dict(config.to_dict(), attn_implementation="eager")).eval()
            # Images of 8 bits are normalized to float32 on the device.
            row = torch.empty(row.shape, dtype=torch.float32 if row.dtype == torch.uint8 else row.dtype)
            with FlopCounterMode(display=False) as encoder:
                twin.base_model(row)
            with FlopCounterMode(display=False) as complete:
                twin(row)
    except (RuntimeError, TypeError, ValueError, AttributeError, ImportError) as error:
        logger.warning("MFU is not logged: the FLOPs of a %s cannot be counted (%s)", type(model).__name__, error)
        return 0.0
    head = complete.get_total_flops() - encoder.get_total_flops()
    if getattr(config, "sparse_prediction", False) and labels is not None and labels.shape == inputs["input_ids"].shape:
        head *= (labels != -100).float().mean().item()
    return 3.0 * (encoder.get_total_flops() + head)
