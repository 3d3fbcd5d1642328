"""Training on XLA devices, such as TPUs, which compile a graph for each batch shape and wherever a value is read."""

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map
from transformers import TrainerCallback, TrainingArguments
from transformers.training_args import OptimizerNames

from .arguments import DataArguments, LabeledTextArguments

logger = logging.getLogger(__name__)


def is_xla(args: TrainingArguments) -> bool:
    """Return whether a run is on an XLA device."""
    return args.device.type == "xla"


def fix_shapes(data_args: DataArguments, args: TrainingArguments) -> None:
    """On an XLA device, change flags so that all batches have the same shape and the optimizer works."""
    if not is_xla(args):
        return
    if isinstance(data_args, LabeledTextArguments):
        data_args.pad_to_max_length = True
    args.dataloader_drop_last = True
    if args.optim == OptimizerNames.ADAMW_TORCH_FUSED:
        args.optim = OptimizerNames.ADAMW_TORCH
    logger.info("XLA: sequences are padded to the maximum length, and an epoch's last incomplete batch is left out.")


def read_no_values(model: nn.Module) -> None:
    """Switch off the checks of a gMLP that read values, since each would compile another graph."""
    module: Any
    for module in model.modules():
        if hasattr(module, "reads_values"):
            module.reads_values = False


def to_cpu(preprocess: Callable | None, loss: Any, logits: Any, labels: Any) -> tuple[Any, Any, Any]:
    """Return the results of an evaluation batch, with `preprocess` applied, on the CPU, where nothing is compiled."""
    import torch_xla

    if logits is not None and preprocess is not None:
        logits = preprocess(logits, labels)
    torch_xla.sync()
    return tree_map(lambda value: value.cpu() if torch.is_tensor(value) else value, (loss, logits, labels))


class SingleGraphCallback(TrainerCallback):
    """Gives all training steps the same graph."""

    def on_train_begin(self, args, state, control, model, optimizer, **kwargs) -> None:
        # AdamW would create its state in the first step, with zeros in the graph. Its step count is read on the CPU.
        optimizer = getattr(optimizer, "optimizer", optimizer)
        updated = [*model.parameters(), *model.buffers()]
        for weight in (weight for group in optimizer.param_groups for weight in group["params"]):
            moments = optimizer.state[weight]
            if type(optimizer) is torch.optim.AdamW:
                if not moments:
                    zeros = torch.zeros(weight.shape, dtype=weight.dtype)
                    moments |= {name: zeros.to(weight.device) for name in ("exp_avg", "exp_avg_sq")}
                moments["step"] = moments.get("step", torch.tensor(0.0)).cpu()
            updated += [moment for moment in moments.values() if torch.is_tensor(moment)]
        # Values from the host would give the first step another graph, so they are computed on the device.
        with torch.no_grad():
            for values in updated:
                if values.device.type == "xla" and values.dtype != torch.bool:
                    values.mul_(1)

    def on_step_end(self, args, state, control, **kwargs) -> None:
        # Otherwise reading the loss before a step would trigger another compilation.
        import torch_xla

        torch_xla.sync()
