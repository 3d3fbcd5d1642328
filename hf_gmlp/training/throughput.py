"""The model FLOPs utilization (MFU) of a training. Trainer itself logs tokens per second, with
--include_num_input_tokens_seen.
"""

import logging
import time
from collections.abc import Mapping

import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import PreTrainedModel, TrainerCallback

logger = logging.getLogger(__name__)

# Dense 16-bit TFLOP/s from the data sheets, by a part of a GPU's name. The first match counts.
PEAKS = {"GH200": 989, "H200": 989, "H100 PCIe": 756, "H100": 989, "B200": 2250, "A100": 312, "A10G": 70, "A10": 125}
PEAKS |= {"L40S": 362, "L4": 121, "V100": 125, "T4": 65, "RTX 4090": 165, "RTX 3090": 71}


class StepTimer(TrainerCallback):
    """Counts steps and their time, without that of evaluations and checkpoints."""

    def __init__(self) -> None:
        self.steps, self.seconds, self.clock = 0, 0.0, time.perf_counter()

    def restart(self, *args, **kwargs) -> None:
        self.clock = time.perf_counter()

    on_train_begin = on_evaluate = on_save = restart

    def on_step_end(self, *args, **kwargs) -> None:
        self.steps, self.seconds = self.steps + 1, self.seconds + time.perf_counter() - self.clock
        self.restart()

    def seconds_per_step(self) -> float:
        """Return the mean time of the steps since the last call."""
        mean, self.steps, self.seconds = self.seconds / max(self.steps, 1), 0, 0.0
        return mean


def gpu_peak() -> float | None:
    """Return the peak of this GPU in TFLOP/s; None if it is not in the list, or there is no GPU."""
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    return next((peak for part, peak in PEAKS.items() if part in name), None)


def training_flops(model: PreTrainedModel, inputs: Mapping[str, torch.Tensor]) -> float:
    """Return the FLOPs of a forward and a backward pass for a batch; 0 if the model cannot be counted.

    They are those of three forward passes, two for each multiply-add of the matrix products. Recomputation is not
    counted. With sparse prediction, the head counts in proportion to the labels of the batch.
    """
    config, batch = model.config, inputs[model.main_input_name]
    labels = inputs.get("labels")
    try:
        with torch.device("meta"), torch.no_grad():
            twin = type(model)(type(config).from_dict(config.to_dict(), attn_implementation="eager")).eval()
            # Images of 8 bits are normalized to float32 on the device.
            batch = torch.empty(batch.shape, dtype=torch.float32 if batch.dtype == torch.uint8 else batch.dtype)
            with FlopCounterMode(display=False) as encoder:
                twin.base_model(batch)
            with FlopCounterMode(display=False) as complete:
                twin(batch)
    except (RuntimeError, TypeError, ValueError, AttributeError, ImportError) as error:
        logger.warning("MFU is not logged: the FLOPs of a %s cannot be counted (%s)", type(model).__name__, error)
        return 0.0
    head = complete.get_total_flops() - encoder.get_total_flops()
    if getattr(config, "sparse_prediction", False) and labels is not None and labels.shape == inputs["input_ids"].shape:
        head *= (labels != -100).float().mean().item()
    return 3.0 * (encoder.get_total_flops() + head)
