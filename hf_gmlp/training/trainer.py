"""The Trainer of the training scripts."""

import atexit
import logging
import math
import multiprocessing
import signal
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import HfApi
from torch import nn
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainerState
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_jit_checkpoint import JITCheckpointCallback
from transformers.trainer_utils import EvalLoopOutput, TrainOutput

from ..cards import TASKS, model_card, write_card
from ..errors import InputError, hub_reason
from . import run_folder, xla
from .checkpointing import enable_selective_checkpointing
from .optimization import WithMuon, hidden_matrices, param_groups
from .stream import StreamLoader
from .throughput import StepTimer, gpu_peak, training_flops

logger = logging.getLogger(__name__)

# Types of this package's models.
OWN_TYPES = ("gmlp", "gmlp_vision")


class GMLPTrainer(Trainer):
    """transformers' Trainer with corrections and additions.

    Corrections: accumulated gradients of models that ignore the number of labels; an evaluation loss per token instead
    of per batch, if the metrics have a "token_loss"; evaluation of all rows in their order despite flags for training.
    Additions: streams, `param_groups`, logs of the utilization, and this project's model card. An InputError says which
    arguments do not go together.

    Args:
        metric_names: Names of the loss and the metrics of `compute_metrics`, without "eval_"; `metric_for_best_model`
            must be one.
        card: Facts for the model card, as `DataArguments.card_facts` returns them; "dataset" at least. It may have
            "hyperparameters" in addition to Trainer's own, such as the augmentation.
    """

    # Trainer does not declare the types of these attributes.
    optimizer: torch.optim.Optimizer | None
    preprocess_logits_for_metrics: Callable | None

    def __init__(
        self,
        *args,
        card: Mapping[str, Any],
        metric_names: Iterable[str] | None = None,
        **kwargs,
    ) -> None:
        try:
            super().__init__(*args, **kwargs)
        except (ValueError, RuntimeError, ImportError, OSError) as error:
            # The flags contradict each other, a tracker is not installed, or the Hub refuses a repository.
            raise InputError(f"Cannot start training: {hub_reason(error)}.") from error
        # TrainingArguments sets "loss" if the best model is kept and no metric is named.
        best, names = (self.args.metric_for_best_model or "").removeprefix("eval_"), list(metric_names or ())
        if best and names and best not in names:
            raise InputError(f"--metric_for_best_model must be one of {', '.join(names)}, got {best}.")
        if self.args.selective_checkpointing:
            enable_selective_checkpointing(self.model)
        # Pinned memory is for transfers to an accelerator; torch warns where there is none.
        self.args.dataloader_pin_memory &= torch.accelerator.is_available()
        # Trainer gives every model that accepts **kwargs the number of labels in all accumulated batches to divide by.
        # Some, such as BERT, ignore it. For all models but this package's, Trainer averages over the batches instead.
        self.model_accepts_loss_kwargs &= self.model.config.model_type in OWN_TYPES
        if self.args.label_smoothing_factor and getattr(self.model, "loss_type", None) == "ForCausalLM":
            # Trainer would shift the labels only for the model classes of transformers.
            raise InputError("--label_smoothing_factor is not supported for causal language models: leave it out.")
        self.card = dict(card)
        self.results: dict[str, float] = {}
        self.stream: StreamLoader | None = None
        self.checkpoint: str | None = None
        self.timer, self.peak_tflops = StepTimer(), gpu_peak()
        self.batch_flops: float | None = None
        self.add_callback(self.timer)
        if hasattr(self.data_collator, "set_epoch"):
            self.add_callback(EpochCallback(self.data_collator))
        if self.args.enable_jit_checkpoint:
            self.remove_callback(JITCheckpointCallback)
            self.add_callback(SigtermCallback())
        if xla.is_xla(self.args):
            xla.read_no_values(self.model)
            self.add_callback(xla.SingleGraphCallback())
            # `prediction_step` preprocesses the logits, before they leave the device.
            self.preprocess, self.preprocess_logits_for_metrics = self.preprocess_logits_for_metrics, None

    # ---- Data ----

    def get_train_dataloader(self) -> DataLoader:
        rows, batch = self.train_dataset, self.args.train_batch_size * self.args.world_size
        if isinstance(rows, torch.utils.data.IterableDataset):
            # Trainer would read in one process for all others, and resume by reading everything again.
            self.args.ignore_data_skip = True
            self.stream = StreamLoader(rows, self.data_collator, self.args)
            if self.checkpoint is not None:
                self.stream.load(Path(self.checkpoint), self.args.process_index)
            return self.stream
        if self.args.dataloader_drop_last and len(rows) < batch:
            raise InputError(
                f"There are {len(rows)} training samples, less than a batch of {batch}, and --dataloader_drop_last "
                f"drops incomplete batches: lower --per_device_train_batch_size."
            )
        return super().get_train_dataloader()

    def get_eval_dataloader(self, *args, **kwargs) -> DataLoader:
        return self.all_rows_in_order(super().get_eval_dataloader, *args, **kwargs)

    def get_test_dataloader(self, *args, **kwargs) -> DataLoader:
        return self.all_rows_in_order(super().get_test_dataloader, *args, **kwargs)

    def all_rows_in_order(self, make_loader: Callable[..., DataLoader], *args, **kwargs) -> DataLoader:
        """Make a loader without training flags that would drop rows of an evaluation, or change their order."""
        flags = self.args.dataloader_drop_last, self.args.train_sampling_strategy
        self.args.dataloader_drop_last, self.args.train_sampling_strategy = False, "random"
        loader = make_loader(*args, **kwargs)
        self.args.dataloader_drop_last, self.args.train_sampling_strategy = flags
        return loader

    # ---- Training ----

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        if self.optimizer is None:
            args, model = self.args, self.model if model is None else model
            optimizer_class, options = self.get_optimizer_cls_and_kwargs(args, model)
            # Some optimizers, such as GaLore, make their own groups.
            if not options.keys() & {"params", "model", "optimizer_dict"}:
                groups = param_groups(model, args.learning_rate, args.weight_decay, args.spatial_lr_multiplier)
                if args.muon_learning_rate is not None:
                    if self.is_fsdp_enabled or self.is_deepspeed_enabled:
                        raise InputError("--muon_learning_rate needs complete matrices: leave FSDP or DeepSpeed out.")
                    rates, others = (args.muon_learning_rate, args.weight_decay), partial(optimizer_class, **options)
                    self.optimizer = WithMuon(hidden_matrices(model), groups, others, *rates)
                else:
                    self.optimizer_cls_and_kwargs = optimizer_class, options | {"params": groups}
            elif args.spatial_lr_multiplier != 1 or args.muon_learning_rate is not None:
                flags = "--spatial_lr_multiplier and --muon_learning_rate"
                raise InputError(f"{flags} have no effect on --optim {args.optim}: leave them out.")
        return super().create_optimizer(model)

    def set_initial_training_values(self, *args, **kwargs) -> tuple:
        epochs, *numbers, max_steps = super().set_initial_training_values(*args, **kwargs)
        if self.checkpoint is not None:
            state = TrainerState.load_from_json(str(Path(self.checkpoint, TRAINER_STATE_NAME)))
            # Trainer would stop only after another step. If all steps are done, no epoch is left.
            epochs = 0 if state.global_step >= max_steps else epochs
        return epochs, *numbers, max_steps

    def train(self, resume_from_checkpoint: str | None = None, **kwargs) -> TrainOutput:
        self.checkpoint = resume_from_checkpoint
        if not isinstance(self.train_dataset, torch.utils.data.IterableDataset):
            # The weights of other classes would not fit.
            run_folder.check_rows(self.args, self.train_dataset, self.model.config)
        return super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)

    def training_step(self, model: nn.Module, inputs: dict[str, Any], *args, **kwargs) -> torch.Tensor:
        if self.peak_tflops is not None and self.batch_flops is None:
            self.batch_flops = training_flops(self.model, inputs)
        return super().training_step(model, inputs, *args, **kwargs)

    def log(self, logs: dict[str, float], *args, **kwargs) -> None:
        if self.checkpoint is not None:
            # Trainer's mean covers only the steps since the resume. It returns the same dictionary as its results.
            logs.pop("train_loss", None)
        # MFU is logged while training, and not with results of an evaluation or the final summary.
        if "loss" in logs and self.peak_tflops and self.batch_flops:
            flops = self.batch_flops * self.args.gradient_accumulation_steps
            logs = logs | {"mfu": round(flops / self.timer.seconds_per_step() / self.peak_tflops / 1e12, 6)}
        super().log(logs, *args, **kwargs)
        # With --fp16, a step with a gradient that is not finite is skipped.
        if math.isnan(logs.get("grad_norm", 0.0)) and not self.args.fp16:
            self.check_finite({"loss": math.nan})

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model: atomically in the output folder, and with the position of a stream in a checkpoint."""
        folder, args = Path(output_dir or self.args.output_dir), self.args
        if folder != Path(args.output_dir):
            super().save_model(str(folder), _internal_call=True)
            if self.stream is not None:
                self.stream.save(folder, args.process_index)
            return
        with run_folder.saved_atomically(folder) if args.should_save else nullcontext(folder / "_saving") as partial:
            super().save_model(str(partial), _internal_call=True)
            self.accelerator.wait_for_everyone()

    # ---- Evaluation and the end of a run ----

    def evaluation_loop(self, *args, **kwargs) -> EvalLoopOutput:
        output = super().evaluation_loop(*args, **kwargs)
        prefix = kwargs.get("metric_key_prefix", "eval")
        token_loss = output.metrics.pop(f"{prefix}_token_loss", None)
        if token_loss is not None:
            output.metrics[f"{prefix}_loss"] = token_loss
        return output

    def prediction_step(self, *args, **kwargs) -> tuple:
        step = super().prediction_step(*args, **kwargs)
        return xla.to_cpu(self.preprocess, *step) if xla.is_xla(self.args) else step

    def train_and_evaluate(self, checkpoint: str | None) -> dict[str, float]:
        """Train, perhaps from a `checkpoint`, and save if `do_train`; evaluate if `do_eval`; return all metrics."""
        metrics: dict[str, float] = {}
        if self.args.do_train:
            metrics |= self.train(resume_from_checkpoint=checkpoint).metrics
            # Trainer leaves NaN out of its mean loss, so check the weights, or the local part of sharded weights.
            weights = [w.to_local() if hasattr(w, "to_local") else w for w in self.model.parameters()]
            if not torch.stack([weight.isfinite().all() for weight in weights]).all():
                metrics["train_loss"] = math.nan
            self.check_finite(metrics)
            self.save_model(_internal_call=True)
            self.save_state()
        if self.args.do_eval:
            metrics |= self.evaluate()
        return metrics

    def check_finite(self, metrics: Mapping[str, float]) -> None:
        """Raise InputError if a loss is not finite."""
        if not all(math.isfinite(value) for name, value in metrics.items() if name.endswith("loss")):
            raise InputError(
                "The training diverged: its losses or weights are not finite numbers. Lower --learning_rate, and "
                "choose another --output_dir; the final model was not saved."
            )

    def create_model_card(self, **kwargs) -> None:
        """Write README.md: this project's card for its models, and Trainer's card for others."""
        args, state, model = self.args, self.state, self.accelerator.unwrap_model(self.model)
        if type(model).__name__ not in TASKS:
            super().create_model_card(**kwargs)
        elif self.is_world_process_zero():
            length = {"max_steps": state.global_step, "num_train_epochs": round(state.epoch or 0.0, 2)}
            values = run_folder.hyperparameters(args) | length if state.global_step else {}
            values |= self.card.get("hyperparameters", {})
            training = {**self.card, "metrics": self.results, "command": args.command}
            training["hyperparameters"] = {k: v for k, v in values.items() if v or type(v) in (int, float)}
            name = self.hub_model_id or Path(args.output_dir).resolve().name
            card = model_card(model, name, training=training, license=self.card.get("license"), tags=kwargs.get("tags"))
            write_card(card, args.output_dir, self.hub_model_id, args.hub_token)

    def finish(self, metrics: Mapping[str, float]) -> None:
        """End the run: print the results, write them and the card, and push if `push_to_hub`."""
        self.check_finite(metrics)
        self.results |= {name: value for name, value in metrics.items() if name.startswith("eval_")}
        results = {key: round(value, 6) if isinstance(value, float) else value for key, value in metrics.items()}
        if self.is_world_process_zero():
            run_folder.write_json(Path(self.args.output_dir, run_folder.FINISHED), results)
        self.log_metrics("final", results)
        if self.args.push_to_hub:
            try:
                self.push_to_hub()
            except Exception as error:
                # Errors of the network have other types in each version of huggingface_hub.
                command = run_folder.upload_command(self.hub_model_id, Path(self.args.output_dir))
                raise InputError(f"The run is finished, but not pushed ({hub_reason(error)}): use {command}") from error
        elif self.args.do_train:
            self.create_model_card()

    def push_to_hub(self, commit_message: str | None = "End of training", **kwargs) -> None:
        """Upload `run_folder.published_files`; Trainer's own method would upload the complete output folder."""
        self.save_model(_internal_call=True)
        if self.is_world_process_zero():
            self.create_model_card()
            HfApi(token=self.args.hub_token).upload_folder(
                repo_id=self.hub_model_id,
                folder_path=self.args.output_dir,
                commit_message=commit_message,
                revision=self.args.hub_revision,
                allow_patterns=run_folder.published_files(Path(self.args.output_dir)),
            )


def kill_workers() -> None:
    for process in multiprocessing.active_children():
        process.kill()


class EpochCallback(TrainerCallback):
    """Passes the epoch to a collator, whose random numbers depend on it."""

    def __init__(self, collator) -> None:
        self.collator = collator

    def on_epoch_begin(self, args, state, control, **kwargs) -> None:
        # The epoch of a resumed run is a fraction.
        self.collator.set_epoch(int(state.epoch or 0.0))


class SigtermCallback(TrainerCallback):
    """With --enable_jit_checkpoint, writes a checkpoint after SIGTERM and ends the process with exit code 143.

    transformers' own callback saves in the middle of a step, when dropout has used random numbers that the resumed step
    needs again, and then ends the training as if it were complete.
    """

    def __init__(self) -> None:
        self.received = False
        # Remove the handler of transformers' callback.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def receive(self, *_) -> None:
        self.received = True

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        signal.signal(signal.SIGTERM, self.receive)
        # SLURM and torchrun send the signal to all processes. It is blocked in workers of data loaders too: if one
        # died, the training would end without a checkpoint.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        # At exit, Python ends daemonic processes with the signal that is blocked, and would wait for them forever.
        atexit.register(kill_workers)

    def on_step_end(self, args, state, control, **kwargs) -> None:
        # The signal is blocked and pending in this thread, unless another thread has received it.
        self.received |= signal.SIGTERM in signal.sigpending()
        if torch.distributed.is_initialized():
            # The signal may reach the processes in different steps, but a checkpoint is written by all of them.
            received = torch.tensor(self.received, dtype=torch.int32, device=args.device)
            torch.distributed.all_reduce(received)
            self.received = bool(received)
        control.should_save |= self.received

    def on_save(self, args, state, control, **kwargs) -> None:
        if self.received:
            logger.warning("Stopped by SIGTERM at step %d. To continue, repeat the command.", state.global_step)
            self.on_train_end()
            raise SystemExit(128 + signal.SIGTERM)

    def on_train_end(self, *args, **kwargs) -> None:
        # Discard a pending signal.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
