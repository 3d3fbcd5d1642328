"""The Trainer of the training scripts."""

import logging
import math
import shutil
import signal
from collections.abc import Callable, Iterable, Mapping, Sized
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, SequentialSampler
from transformers import TrainerCallback
from transformers.trainer_jit_checkpoint import JITCheckpointCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, HubStrategy, TrainOutput

from ..cards import TASKS
from ..errors import InputError, hub_reason
from . import publish, run_folder
from .checkpointing import enable_selective_checkpointing
from .optimization import WithMuon, hidden_matrices, param_groups
from .stream import SequenceStream
from .xla import XLATrainer

logger = logging.getLogger(__name__)

# The position of a streamed run in its data; part of a checkpoint.
STREAM_STATE = "stream_state.pt"
# Types of this package's models.
OWN_TYPES = ("gmlp", "gmlp_vision")


class GMLPTrainer(XLATrainer):
    """transformers' Trainer with corrections.

    They are: accumulated gradients of models that ignore the number of labels; label smoothing of causal models from
    outside transformers; an evaluation loss per token instead of per batch, if the metrics have a "token_loss";
    evaluation of all rows despite `dataloader_drop_last`; `param_groups`; checkpoints that say when they are complete;
    and this project's model card.

    Args:
        metric_names: What `compute_metrics` returns, without "eval_"; `metric_for_best_model` must be one of them.
        card: Facts for the model card, as `DataArguments.card_facts` returns them; "dataset" at least.
        in_series: Whether this is one of several runs, of which some may diverge.
        train_collator: The collator for training, if it is not `data_collator`.
        hyperparameters: What the card lists beyond Trainer's own, such as the augmentation.

    Raises:
        InputError: If the arguments do not go together.
    """

    # Of transformers' Trainer.
    data_collator: Callable
    model_accepts_loss_kwargs: bool
    optimizer: torch.optim.Optimizer | None
    optimizer_cls_and_kwargs: tuple[Any, dict[str, Any]] | None

    def __init__(
        self,
        *args,
        card: Mapping[str, str | None],
        metric_names: Iterable[str] | None = None,
        in_series: bool = False,
        train_collator: Callable | None = None,
        hyperparameters: Mapping[str, object] | None = None,
        **kwargs,
    ):
        try:
            super().__init__(*args, **kwargs)
        except (ValueError, RuntimeError, ImportError, OSError) as error:
            # Flags that do not go together, trackers that are not installed, no permission to push.
            raise InputError(f"The training cannot begin: {hub_reason(error)}.") from error
        self.card = dict(card)
        if self.args.push_to_hub and self.is_world_process_zero():
            publish.check_metadata(self.card.get("license"), self.card.get("language"))
        best = (self.args.metric_for_best_model or "loss").removeprefix("eval_")
        if metric_names is not None and best not in (names := ["loss", *metric_names]):
            raise InputError(f"--metric_for_best_model must be one of {', '.join(names)}, got {best}.")
        if train_collator is not None and self.args.n_gpu > 1:
            raise InputError("A packed batch is one row, which cannot be split: use `accelerate launch`.")
        if self.args.selective_checkpointing:
            try:
                enable_selective_checkpointing(self.model)
            except ValueError as error:
                raise InputError(f"--selective_checkpointing: {error} Leave it out.") from error
        # Pinned memory is for transfers to an accelerator; torch warns where there is none.
        self.args.dataloader_pin_memory &= torch.accelerator.is_available()
        # Trainer lets every model that takes **kwargs divide by the number of labels in all accumulated batches. Some,
        # BERT among them, ignore that number: for other models than ours, Trainer averages over the batches.
        self.model_accepts_loss_kwargs &= self.model.config.model_type in OWN_TYPES
        if self.label_smoother is not None and getattr(self.model, "loss_type", None) == "ForCausalLM":
            # Trainer itself shifts the labels only for class names in a table of transformers.
            self.compute_loss_func = partial(self.label_smoother, shift_labels=True)
            # The model computes no loss.
            self.model_accepts_loss_kwargs = False
        self.in_series, self.train_collator = in_series, train_collator
        self.hyperparameters = dict(hyperparameters or {})
        self.results: dict[str, float] = {}
        self.begun = False
        self.random_state: str | None = None
        if hasattr(self.data_collator, "set_epoch"):
            self.add_callback(EpochCallback(self.data_collator))
        if self.args.enable_jit_checkpoint:
            self.remove_callback(JITCheckpointCallback)
            self.add_callback(SigtermCallback())

    def train(self, resume_from_checkpoint: str | None = None, **kwargs) -> TrainOutput:
        rows, batch = self.train_dataset, self.args.train_batch_size * self.args.world_size
        if self.args.dataloader_drop_last and not isinstance(rows, IterableDataset) and len(rows) < batch:
            raise InputError(
                f"There are {len(rows)} training samples, not one batch of {batch}, and --dataloader_drop_last drops "
                f"incomplete batches: lower --per_device_train_batch_size."
            )
        if isinstance(self.train_dataset, SequenceStream):
            # The stream finds its place at once, where Trainer would read everything before it, and does so in this
            # process, since each worker would read the whole stream.
            self.args.ignore_data_skip = True
            self.args.dataloader_num_workers = 0
            if resume_from_checkpoint is not None:
                self.train_dataset.load_state(Path(resume_from_checkpoint) / STREAM_STATE)
                self.random_state = resume_from_checkpoint
        try:
            return super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)
        except (ImportError, TypeError, ValueError) as error:
            if self.begun or isinstance(error, InputError):
                raise
            # From an optimizer, a schedule or a kernel, before the first step.
            raise InputError(f"The training cannot begin: {error}") from error

    def training_step(self, *args, **kwargs) -> torch.Tensor:
        if self.random_state is not None:
            # Trainer restores the random state (for dropout) only after it has skipped data itself.
            self._load_rng_state(self.random_state)
            self.random_state = None
        loss = super().training_step(*args, **kwargs)
        self.begun = True
        return loss

    def _get_dataloader(self, *args, is_training: bool = False, **kwargs) -> DataLoader:
        drop_last, collator = self.args.dataloader_drop_last, self.data_collator
        self.args.dataloader_drop_last = drop_last and is_training
        if is_training and self.train_collator is not None:
            self.data_collator = self.train_collator
        try:
            return super()._get_dataloader(*args, is_training=is_training, **kwargs)
        finally:
            self.args.dataloader_drop_last, self.data_collator = drop_last, collator

    def _save_optimizer_and_scheduler(self, output_dir: str):
        # Here and not in a callback, so that the checkpoint is complete only with the stream's state.
        super()._save_optimizer_and_scheduler(output_dir)
        if isinstance(self.train_dataset, SequenceStream) and self.is_world_process_zero():
            yielded = self.state.global_step * self.get_total_train_batch_size(self.args)
            self.train_dataset.save_state(Path(output_dir) / STREAM_STATE, yielded)

    def _save_checkpoint(self, model: nn.Module, trial: object):
        # The settings are written after everything else; only then may an older checkpoint go.
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        try:
            super()._save_checkpoint(model, trial)
        finally:
            self.args.save_total_limit = limit
        self.accelerator.wait_for_everyone()
        if not self.args.should_save:
            return
        folder = Path(self.args.output_dir)
        checkpoint = folder / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        if not self.args.save_only_model:
            run_folder.write_json(checkpoint / run_folder.SETTINGS, run_folder.read_settings(folder) or {})
        if self.args.push_to_hub and self.args.hub_strategy != HubStrategy.END:
            # Trainer uploads config and weights, but not the code that the config names. It is not written again, since
            # an earlier upload may still be reading it.
            for code in checkpoint.glob("*.py"):
                if not (folder / code.name).is_file():
                    shutil.copy(code, folder)
            super()._push_from_checkpoint(str(checkpoint))
        best = self.state.best_model_checkpoint
        run_folder.rotate_checkpoints(folder, limit, {checkpoint, Path(best or checkpoint)})

    def _push_from_checkpoint(self, checkpoint_folder: str):
        # `_save_checkpoint` pushes, once the checkpoint is complete.
        pass

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        if self.optimizer is None:
            args, model = self.args, self.model if model is None else model
            optimizer_class, options = self.optimizer_cls_and_kwargs or self.get_optimizer_cls_and_kwargs(args, model)
            # Some optimizers, such as GaLore, make groups of their own.
            plain = isinstance(optimizer_class, type) and issubclass(optimizer_class, torch.optim.Optimizer)
            if plain and not options.keys() & {"params", "model", "optimizer_dict"}:
                groups = param_groups(model, args.learning_rate, args.weight_decay, args.spatial_lr_multiplier)
                if args.muon_learning_rate is not None:
                    self.optimizer = self.optimizer_with_muon(model, groups, partial(optimizer_class, **options))
                else:
                    self.optimizer_cls_and_kwargs = optimizer_class, options | {"params": groups}
            elif args.spatial_lr_multiplier != 1 or args.muon_learning_rate is not None:
                name = "muon_learning_rate" if args.spatial_lr_multiplier == 1 else "spatial_lr_multiplier"
                raise InputError(f"--{name} has no effect on --optim {args.optim}: leave one out.")
        return super().create_optimizer(model)

    def optimizer_with_muon(self, model: nn.Module, groups: list[dict[str, Any]], others: Callable) -> WithMuon:
        if not hasattr(torch.optim, "Muon"):
            raise InputError("--muon_learning_rate needs torch 2.9 or newer: leave it out.")
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:
            raise InputError("--muon_learning_rate needs whole matrices, which FSDP and DeepSpeed split: leave it out.")
        matrices = hidden_matrices(model)
        if not matrices:
            raise InputError("--muon_learning_rate: the encoder has no linear layers to train. Leave it out.")
        return WithMuon(matrices, groups, others, self.args.muon_learning_rate, self.args.weight_decay)

    def _get_eval_sampler(self, eval_dataset: Sized) -> SequentialSampler | None:
        # Predictions are matched to the data by their order, even if training groups samples by length.
        return SequentialSampler(eval_dataset) if self.args.world_size <= 1 else None

    def evaluation_loop(self, *args, **kwargs):
        output = super().evaluation_loop(*args, **kwargs)
        prefix = kwargs.get("metric_key_prefix", "eval")
        token_loss = output.metrics.pop(f"{prefix}_token_loss", None)
        if token_loss is not None:
            output.metrics[f"{prefix}_loss"] = token_loss
        return output

    def evaluate(self, *args, **kwargs) -> dict[str, float]:
        metrics = super().evaluate(*args, **kwargs)
        self.results.update(metrics)
        return metrics

    def train_and_evaluate(self, checkpoint: str | None) -> dict[str, float]:
        """Train, perhaps from a `checkpoint`, and save if `do_train`; evaluate if `do_eval`; return all metrics."""
        metrics: dict[str, float] = {}
        if self.args.do_train:
            metrics |= self.train(resume_from_checkpoint=checkpoint).metrics
            # This process's part of sharded weights. Trainer leaves losses of NaN out of its mean.
            weights = [getattr(weight, "_local_tensor", weight) for weight in self.model.parameters()]
            if not torch.stack([weight.isfinite().all() for weight in weights]).all():
                metrics["train_loss"] = math.nan
            self.check_finite(metrics)
            self.save_model(_internal_call=True)
            self.save_state()
        if self.args.do_eval:
            metrics |= self.evaluate()
        return metrics

    def check_finite(self, metrics: Mapping[str, float]):
        """Raise InputError if a loss is not finite; in a series of runs, which reports it, only warn."""
        if all(math.isfinite(value) for name, value in metrics.items() if name.endswith("loss")):
            return
        message = "The training diverged: its losses or weights are not finite numbers. Lower --learning_rate"
        if not self.in_series:
            raise InputError(f"{message}, and pass --overwrite_output_dir; the final model was not saved.")
        logger.warning("%s.", message)

    def create_model_card(self, **kwargs):
        """Write README.md, for this project's models with its own card; a person's card is only completed."""
        if type(self.accelerator.unwrap_model(self.model)).__name__ not in TASKS:
            super().create_model_card(**kwargs)
        elif self.is_world_process_zero():
            publish.write_training_card(self, kwargs.get("tags"))

    def finish(self, metrics: Mapping[str, float]):
        """End the run: print the results, write them and the card, and push if `push_to_hub`."""
        self.check_finite(metrics)
        if self.is_world_process_zero():
            results = {key: round(value, 6) if isinstance(value, float) else value for key, value in metrics.items()}
            run_folder.write_json(Path(self.args.output_dir, run_folder.FINISHED), results)
            width = max(map(len, results))
            print("\nResults")
            for key, value in results.items():
                print(f"  {key:<{width}}  {value:.4f}" if isinstance(value, float) else f"  {key:<{width}}  {value}")
            print(f"Everything is in {self.args.output_dir}\n")
        if self.args.push_to_hub:
            with publish.pushing(self.args.output_dir):
                self.push_to_hub()
        elif self.args.do_train:
            self.create_model_card()


class EpochCallback(TrainerCallback):
    """Pass the epoch to a collator that samples other masks in each."""

    def __init__(self, collator):
        self.collator = collator

    def on_epoch_begin(self, args, state, control, **kwargs):
        # A resumed epoch begins at a fraction.
        self.collator.set_epoch(int(state.epoch or 0.0))


class SigtermCallback(TrainerCallback):
    """With --enable_jit_checkpoint, write a checkpoint after SIGTERM and end the process with exit code 143.

    transformers' own callback saves in the middle of a step, when dropout has used random numbers that the resumed step
    needs again, and then ends the training as if it were complete.
    """

    def __init__(self):
        self.received = False
        # transformers' callback has set a handler.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def receive(self, *_):
        self.received = True

    def on_train_begin(self, args, state, control, **kwargs):
        signal.signal(signal.SIGTERM, self.receive)

    def on_step_end(self, args, state, control, **kwargs):
        if torch.distributed.is_initialized():
            # The signal may reach the processes in different steps, but a checkpoint is written by all of them.
            received = torch.tensor(self.received, dtype=torch.int32, device=args.device)
            torch.distributed.all_reduce(received)
            self.received = bool(received)
        control.should_save |= self.received

    def on_save(self, args, state, control, **kwargs):
        if self.received:
            logger.warning("Stopped by SIGTERM at step %d. To continue, repeat the command.", state.global_step)
            raise SystemExit(128 + signal.SIGTERM)

    def on_train_end(self, args, state, control, **kwargs):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
