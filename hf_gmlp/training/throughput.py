"""Training logs beyond the loss: tokens or images per second, how many were seen, MFU and memory."""

import logging
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import PreTrainedModel, TrainerCallback

from .arguments import RunArguments

logger = logging.getLogger(__name__)

# Dense 16-bit TFLOP/s from the data sheets, by a part of a GPU's name. The first match counts.
PEAKS = {"GH200": 989, "H200": 989, "H100 PCIe": 756, "H100": 989, "B200": 2250, "A100": 312, "A10G": 70, "A10": 125}
PEAKS |= {"L40S": 362, "L4": 121, "V100": 125, "T4": 65, "RTX 4090": 165, "RTX 3090": 71}


class Throughput(TrainerCallback):
    """Measures training speed, without the time for evaluations and checkpoints.

    Args:
        model: The model, whose FLOPs are counted once, on the meta device.
        args: The run's arguments, with the number of devices and, if set, their `peak_tflops`.
    """

    def __init__(self, model: PreTrainedModel, args: RunArguments):
        self.model, self.devices = model, args.world_size * max(1, args.n_gpu)
        self.peak = args.peak_tflops or gpu_peak()
        self.unit = "tokens" if model.main_input_name == "input_ids" else "images"
        # Tokens or images in this process since the start, those before the run was resumed, and seconds of pauses.
        self.count, self.seen_before, self.paused = 0, 0, 0.0
        self.flops_per_unit: float | None = None
        self.step_end = time.perf_counter()
        self.begin = self.last = self.now()

    def now(self) -> tuple[float, int]:
        """Return the seconds of training and the count until now."""
        return time.perf_counter() - self.paused, self.count

    def on_train_begin(self, args, state, control, **kwargs):
        # A resumed run continues the count of the logs.
        name = f"{self.unit}_seen"
        self.seen_before = next((int(row[name]) for row in reversed(state.log_history) if name in row), 0)
        self.count, self.paused = 0, 0.0
        self.begin = self.last = self.now()

    def on_step_end(self, args, state, control, **kwargs):
        self.step_end = time.perf_counter()

    def on_evaluate(self, args, state, control, **kwargs):
        now = time.perf_counter()
        self.paused, self.step_end = self.paused + now - self.step_end, now

    on_save = on_evaluate

    def add(self, inputs: Mapping[str, Any]):
        """Count a batch. Padding counts as tokens, since the device computes it."""
        values = inputs[self.model.main_input_name]
        count = values.numel() if self.unit == "tokens" else len(values)
        if self.flops_per_unit is None and self.peak is not None:
            # FLOPs are counted for the first batch only, although W needs more per token in longer batches.
            self.flops_per_unit = training_flops(self.model, inputs) * len(values) / count
        self.count += count

    def numbers(self, since: tuple[float, int]) -> dict[str, float]:
        """Return the numbers to log since an earlier `now`, assuming that all processes are as fast as this one."""
        seconds, count = (new - old for new, old in zip(self.now(), since))
        rate = count / max(seconds, 1e-9)
        numbers = {f"{self.unit}_per_second": round(rate * self.devices, 1)}
        numbers[f"{self.unit}_seen"] = self.seen_before + self.count * self.devices
        if self.flops_per_unit and self.peak is not None:
            numbers["mfu"] = round(rate * self.flops_per_unit / (self.peak * 1e12), 6)
        if torch.cuda.is_available():
            numbers["peak_memory_gb"] = round(torch.cuda.max_memory_allocated() / 1e9, 2)
        return numbers

    def log(self) -> dict[str, float]:
        """Return the `numbers` since the last call."""
        numbers, self.last = self.numbers(self.last), self.now()
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
