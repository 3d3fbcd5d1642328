"""XLA devices, such as TPUs: they compile a graph for each new shape of a batch, and wherever a value is read."""

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import EvalLoopOutput
from transformers.training_args import OptimizerNames

from ..errors import InputError
from .arguments import DataArguments

logger = logging.getLogger(__name__)


def is_xla(args: TrainingArguments) -> bool:
    """Return whether a run is on an XLA device."""
    return args.device.type == "xla"


def is_compiled(args: TrainingArguments) -> bool:
    """Return whether a run compiles its model, so that batches should have one shape."""
    return is_xla(args) or args.torch_compile


def fix_shapes(data_args: DataArguments, args: TrainingArguments):
    """On an XLA device, change the flags so that all batches have one shape, and that the optimizer works there.

    Raises:
        InputError: If rows are packed, whose length differs in every batch.
    """
    if not is_xla(args):
        return
    if getattr(data_args, "packing", False):
        raise InputError("With --packing, every batch has another length, for which XLA compiles anew: leave it out.")
    if hasattr(data_args, "pad_to_max_length"):
        data_args.pad_to_max_length = True
    args.dataloader_drop_last = True
    if args.optim == OptimizerNames.ADAMW_TORCH_FUSED:
        args.optim = OptimizerNames.ADAMW_TORCH
    logger.info("XLA: sequences are padded to the maximum length, and an epoch's last incomplete batch is left out.")


class XLATrainer(Trainer):
    """transformers' Trainer, which on XLA devices compiles one graph for training and one for evaluation.

    Evaluation there reads batches without the prefetching loader of accelerate, which forgets which batch is the last,
    and moves results to the CPU at once, where their number does not change any graph.
    """

    # Of transformers' Trainer.
    gather_function: Callable
    preprocess_logits_for_metrics: Callable | None

    # What `prediction_step` applies in place of Trainer.
    preprocess: Callable | None = None

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        if is_xla(self.args):
            self.add_callback(SingleGraphCallback(self))

    def evaluation_loop(self, dataloader: Any, *args, **kwargs) -> EvalLoopOutput:
        if not is_xla(self.args):
            return super().evaluation_loop(dataloader, *args, **kwargs)
        state, preprocess = self.accelerator.gradient_state, self.preprocess_logits_for_metrics

        def without_repeated(results):
            # With several devices, the first rows are repeated to complete the last batch.
            if not state.end_of_dataloader or state.remainder <= 0:
                return results
            if isinstance(results, tuple):
                return tuple(part[: state.remainder] for part in results)
            return results[: state.remainder]

        self.preprocess_logits_for_metrics, self.preprocess = None, preprocess
        gather, self.gather_function = self.gather_function, without_repeated
        pad, self.accelerator.pad_across_processes = self.accelerator.pad_across_processes, lambda rows, **_: rows
        try:
            return super().evaluation_loop(getattr(dataloader, "_loader", dataloader), *args, **kwargs)
        finally:
            self.preprocess_logits_for_metrics, self.gather_function = preprocess, gather
            self.accelerator.pad_across_processes = pad

    def prediction_step(self, *args, **kwargs):
        loss, logits, labels = super().prediction_step(*args, **kwargs)
        if not is_xla(self.args):
            return loss, logits, labels
        import torch_xla

        if logits is not None and self.preprocess is not None:
            logits = self.preprocess(logits, labels)
        results = {"loss": None if loss is None else loss[None], "logits": logits, "labels": labels}
        results = {name: value for name, value in results.items() if value is not None}
        if self.args.world_size > 1:
            results = self.accelerator.gather(results)
        torch_xla.sync()
        results = tree_map(torch.Tensor.cpu, results)
        return results.get("loss"), results.get("logits"), results.get("labels")


class SingleGraphCallback(TrainerCallback):
    """Makes all training steps the same graph."""

    def __init__(self, trainer: Trainer):
        self.trainer = trainer

    def on_train_begin(self, args, state, control, model, optimizer, **kwargs):
        # AdamW creates its state in the first step, with zeros in the graph. It reads the count of steps on the CPU.
        optimizer = getattr(optimizer, "optimizer", optimizer)
        updated = [*model.parameters(), *model.buffers(), self.trainer._tr_loss]
        for weight in (weight for group in optimizer.param_groups for weight in group["params"]):
            moments = optimizer.state[weight]
            if type(optimizer) is torch.optim.AdamW:
                if not moments:
                    zeros = torch.zeros(weight.shape, dtype=weight.dtype)
                    moments |= {name: zeros.to(weight.device) for name in ("exp_avg", "exp_avg_sq")}
                moments["step"] = moments.get("step", torch.tensor(0.0)).cpu()
            updated += [moment for moment in moments.values() if torch.is_tensor(moment)]
        # A step writes its results in place, and is another graph where they replace values from the host.
        with torch.no_grad():
            for values in updated:
                if values.device.type == "xla" and values.dtype != torch.bool:
                    values.mul_(1)

    def on_step_end(self, args, state, control, **kwargs):
        # Else a step before which the loss is read would be another graph.
        import torch_xla

        torch_xla.sync()
