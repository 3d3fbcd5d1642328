"""XLA devices, such as TPUs: they compile a graph for each new shape of a batch, and wherever a value is read."""

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map
from transformers import TrainerCallback, TrainingArguments
from transformers.training_args import OptimizerNames

from .arguments import DataArguments

logger = logging.getLogger(__name__)


def is_xla(args: TrainingArguments) -> bool:
    """Return whether a run is on an XLA device."""
    return args.device.type == "xla"


def is_compiled(args: TrainingArguments) -> bool:
    """Return whether a run compiles its model, so that batches should have one shape."""
    return is_xla(args) or args.torch_compile


def fix_shapes(data_args: DataArguments, args: TrainingArguments):
    """On an XLA device, change the flags so that all batches have one shape, and that the optimizer works there."""
    if not is_xla(args):
        return
    if hasattr(data_args, "pad_to_max_length"):
        data_args.pad_to_max_length = True
    args.dataloader_drop_last = True
    if args.optim == OptimizerNames.ADAMW_TORCH_FUSED:
        args.optim = OptimizerNames.ADAMW_TORCH
    logger.info("XLA: sequences are padded to the maximum length, and an epoch's last incomplete batch is left out.")


def read_no_values(model: nn.Module):
    """Make a gMLP leave out the checks that read values, each of which would compile a graph of its own."""
    module: Any
    for module in model.modules():
        if hasattr(module, "reads_values"):
            module.reads_values = False


def to_cpu(preprocess: Callable | None, loss: Any, logits: Any, labels: Any) -> tuple[Any, Any, Any]:
    """Return the results of an evaluation batch, `preprocess`ed, on the CPU, where their number changes no graph."""
    import torch_xla

    if logits is not None and preprocess is not None:
        logits = preprocess(logits, labels)
    torch_xla.sync()
    return tree_map(lambda value: value.cpu() if torch.is_tensor(value) else value, (loss, logits, labels))


class SingleGraphCallback(TrainerCallback):
    """Makes all training steps the same graph."""

    def on_train_begin(self, args, state, control, model, optimizer, **kwargs):
        # AdamW creates its state in the first step, with zeros in the graph. It reads the count of steps on the CPU.
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
        # Values from the host would make the first step another graph, so they are computed on the device.
        with torch.no_grad():
            for values in updated:
                if values.device.type == "xla" and values.dtype != torch.bool:
                    values.mul_(1)

    def on_step_end(self, args, state, control, **kwargs):
        # Otherwise reading the loss before a step would trigger another compilation.
        import torch_xla

        torch_xla.sync()
