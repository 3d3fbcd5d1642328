"""The Trainer of the training scripts, and how each script begins."""

import filecmp
import inspect
import logging
import math
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

import torch
from huggingface_hub import ModelCard, ModelCardData
from huggingface_hub.errors import RemoteEntryNotFoundError
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, SequentialSampler
from transformers import Trainer, TrainerCallback, set_seed
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, HubStrategy, TrainOutput, rotate_checkpoints
from yaml import YAMLError

from ..cards import TASKS, TrainingRecord, completed, model_card, write_card
from ..errors import InputError, hub_reason
from . import run_folder
from .arguments import BaseModelArguments, DataArguments, RunArguments, SeriesArguments, program
from .checkpointing import enable_selective_checkpointing
from .stream import SequenceStream

logger = logging.getLogger(__name__)

# The place of a streamed run in its data; part of a checkpoint.
STREAM_STATE = "stream_state.pt"

# Collators and metrics of the scripts rely on these values.
SET_BY_SCRIPTS = {"label_names": None, "prediction_loss_only": False, "eval_do_concat_batches": True}
SET_BY_SCRIPTS |= {"include_for_metrics": [], "batch_eval_metrics": False, "remove_unused_columns": True}
# Flags whose values are secret.
TOKENS = ("--token", "--hub_token", "--hub-token")


class GMLPTrainer(Trainer):
    """
    transformers' Trainer with six corrections: accumulated gradients of models that ignore the number of labels in the
    whole batch; label smoothing of causal models from outside transformers; an evaluation loss per token instead of per
    batch, if the metrics have a "token_loss"; evaluation of all rows despite `dataloader_drop_last`; checkpoints that
    say when they are complete; and this project's model card. Raises InputError if the arguments do not go together.

    Args:
        metric_names: What `compute_metrics` gives, without "eval_"; `metric_for_best_model` must be one of them.
        card: Facts for the model card, as `DataArguments.card_facts` gives them; "dataset" at least.
        in_series: Whether this is one of several runs, of which some may diverge.
        train_collator: The collator for training, if it is not `data_collator`.
        hyperparameters: What the card lists beyond Trainer's own, such as the augmentation.
    """

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
        self.license, language = self.card.pop("license", None), card.get("language")
        if self.args.push_to_hub and (self.license or language) and self.is_world_process_zero():
            data = ModelCardData(license=self.license, language=language)
            try:
                ModelCard(f"---\n{data.to_yaml()}\n---\n").validate()
            except (ValueError, OSError) as error:
                given = f"--license {self.license}, --language {language}"
                raise InputError(f"The Hub does not accept {given}: {hub_reason(error)}.") from error
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
        if self.label_smoother is not None and getattr(self.model, "loss_type", None) == "ForCausalLM":
            if "num_items_in_batch" not in inspect.signature(type(self.label_smoother).__call__).parameters:
                raise InputError("--label_smoothing_factor of a causal model needs a newer transformers: 5.23 has it.")
            # Trainer itself shifts the labels only for class names in a table of transformers.
            self.compute_loss_func = partial(self.label_smoother, shift_labels=True)
            # The model computes no loss.
            self.model_accepts_loss_kwargs = False
        self.in_series, self.train_collator = in_series, train_collator
        self.hyperparameters = dict(hyperparameters or {})
        self.results: dict[str, float] = {}
        self.knows_scale = self.begun = False
        self.random_state: str | None = None
        if hasattr(self.data_collator, "set_epoch"):
            self.add_callback(EpochCallback(self.data_collator))

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
        except InputError:
            raise
        except (ImportError, TypeError, ValueError) as error:
            if self.begun:
                raise
            # From an optimizer, a schedule or a kernel, before the first step.
            raise InputError(f"The training cannot begin: {error}") from error

    def training_step(self, *args, **kwargs) -> torch.Tensor:
        if self.random_state is not None:
            # Trainer restores the random state (for dropout) only after it has skipped data itself.
            self._load_rng_state(self.random_state)
            self.random_state = None
        return super().training_step(*args, **kwargs)

    def _get_dataloader(self, *args, is_training: bool = False, **kwargs) -> DataLoader:
        drop_last, collator = self.args.dataloader_drop_last, self.data_collator
        self.args.dataloader_drop_last = drop_last and is_training
        if is_training and self.train_collator is not None:
            self.data_collator = self.train_collator
        try:
            return super()._get_dataloader(*args, is_training=is_training, **kwargs)
        finally:
            self.args.dataloader_drop_last, self.data_collator = drop_last, collator

    def compute_loss(self, model: nn.Module, inputs, return_outputs: bool = False, num_items_in_batch=None):
        # Models that take packed documents divide by the number of labels, and a packed batch has no single samples.
        self.knows_scale |= self.train_collator is not None
        if self.compute_loss_func is None and num_items_in_batch is not None and not self.knows_scale:
            # Trainer passes the number of labels in the whole batch to every model that takes **kwargs, and then no
            # longer divides by the accumulation steps. Some models, BERT among them, ignore that number. A model that
            # divides its loss by it gives 0 for infinity. One sample is enough, in evaluation mode, which draws no
            # random numbers.
            sample = {k: v[:1] if isinstance(v, torch.Tensor) and v.dim() else v for k, v in inputs.items()}
            training = model.training
            model.eval()
            with torch.no_grad():
                loss = super().compute_loss(model, sample, num_items_in_batch=num_items_in_batch + math.inf)
            model.train(training)
            self.model_accepts_loss_kwargs = not loss.any()
            self.knows_scale = True
        result = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        self.begun = True
        return result

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
        if self.args.should_save:
            folder = Path(self.args.output_dir)
            checkpoint = folder / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
            if not self.args.save_only_model:
                settings = run_folder.read_settings(folder) or {}
                run_folder.write_json(checkpoint / run_folder.SETTINGS, settings)
            if self.args.push_to_hub and self.args.hub_strategy != HubStrategy.END:
                # Trainer uploads config and weights, but not the code that the config names. It is not written
                # again, since an earlier upload may still be reading it.
                for code in checkpoint.glob("*.py"):
                    target = folder / code.name
                    if not target.is_file() or not filecmp.cmp(code, target, shallow=False):
                        shutil.copy(code, target)
                super()._push_from_checkpoint(str(checkpoint))
            rotate_checkpoints(str(folder), limit, self.state.best_model_checkpoint, use_mtime=True)

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        fresh, multiplier = self.optimizer is None, self.args.spatial_lr_multiplier
        optimizer = super().create_optimizer(model)
        if not fresh or multiplier == 1:
            return optimizer
        positional = {id(weight) for weight in positional_weights(self.model if model is None else model)}
        if not positional:
            title = type(self.model).__name__
            raise InputError(f"--spatial_lr_multiplier: a {title} has no positional weights; leave it out.")
        for group in list(optimizer.param_groups):
            moved = [weight for weight in group["params"] if id(weight) in positional]
            if moved:
                group["params"] = [weight for weight in group["params"] if id(weight) not in positional]
                optimizer.add_param_group({**group, "params": moved, "lr": multiplier * group["lr"]})
        return optimizer

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        # Trainer exempts biases and LayerNorms, but not the norms of convolutional networks.
        norms = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.RMSNorm)
        spared = {id(p) for module in model.modules() if isinstance(module, norms) for p in module.parameters()}
        parameters = dict(model.named_parameters(remove_duplicate=False))
        return [name for name in super().get_decay_parameter_names(model) if id(parameters[name]) not in spared]

    def _get_eval_sampler(self, eval_dataset: Dataset) -> SequentialSampler | None:
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
        """Trains, perhaps from a `checkpoint`, and saves if `do_train`; evaluates if `do_eval`; returns all metrics."""
        metrics: dict[str, float] = {}
        if self.args.do_train:
            metrics |= self.train(resume_from_checkpoint=checkpoint).metrics
            # This process's part of sharded weights. Trainer leaves losses of NaN out of its mean.
            weights = (getattr(weight, "_local_tensor", weight) for weight in self.model.parameters())
            if not all(weight.isfinite().all() for weight in weights):
                metrics["train_loss"] = math.nan
            self.check_finite(metrics)
            self.save_model(_internal_call=True)
            self.save_state()
        if self.args.do_eval:
            metrics |= self.evaluate()
        return metrics

    def check_finite(self, metrics: Mapping[str, float]):
        """Raises InputError if a loss is not finite; in a series of runs, which reports it, it only warns."""
        if all(math.isfinite(value) for name, value in metrics.items() if name.endswith("loss")):
            return
        words = "The training diverged: its losses or weights are not finite numbers. Lower --learning_rate"
        if not self.in_series:
            raise InputError(f"{words}, and give --overwrite_output_dir; the final model was not saved.")
        logger.warning("%s.", words)

    def push_to_hub(self, *args, **kwargs):
        try:
            return super().push_to_hub(*args, **kwargs)
        except (OSError, ValueError, RuntimeError) as error:
            # The Hub's objections to a card are a ValueError of several lines.
            reason = hub_reason(error) if isinstance(error, OSError) else " ".join(str(error).split()).rstrip(".")
            raise InputError(
                f"The model in {self.args.output_dir} is complete, but could not be pushed: {reason}."
            ) from error

    def _push_from_checkpoint(self, checkpoint_folder: str):
        # `_save_checkpoint` pushes, once the checkpoint is complete.
        pass

    def _finish_current_push(self):
        super()._finish_current_push()
        jobs = getattr(getattr(self, "push_in_progress", None), "jobs", ())
        for error in filter(None, (job.exception() for job in jobs)):
            logger.warning("A checkpoint could not be pushed: %s", hub_reason(error))

    def create_model_card(self, **kwargs):
        """Writes README.md, for this project's models with its own card; a person's card is only completed."""
        model = self.accelerator.unwrap_model(self.model)
        if type(model).__name__ not in TASKS:
            return super().create_model_card(**kwargs)
        if not self.is_world_process_zero():
            return
        folder = Path(self.args.output_dir)
        done = {"max_steps": self.state.global_step, "num_train_epochs": round(self.state.epoch or 0.0, 2)}
        values = run_folder.hyperparameters(self.args) | done | self.hyperparameters
        record = TrainingRecord(
            **self.card,
            hyperparameters={name: value for name, value in values.items() if value or type(value) in (int, float)},
            metrics=self.results,
            command=shown_command(sys.argv),
        )
        elsewhere = folder.is_absolute() or ".." in folder.parts
        name = self.hub_model_id or (folder.resolve().name if elsewhere else str(folder))
        card = model_card(model, name, training=record, tags=kwargs.get("tags"), license=self.license)
        try:
            write_card(card, folder)
            if self.hub_model_id is not None:
                # The upload replaces the card in the repository.
                earlier = ModelCard.load(self.hub_model_id, token=self.args.hub_token, ignore_metadata_errors=True)
                completed(ModelCard.load(folder / "README.md"), earlier).save(folder / "README.md")
        except RemoteEntryNotFoundError:
            logger.info("There is no card yet in %s", self.hub_model_id)
        except YAMLError as error:
            raise InputError(f"The earlier model card cannot be read: {' '.join(str(error).split())}") from error

    def finish(self, metrics: Mapping[str, float]):
        """Ends the run: writes all_results.json and the card, prints the results, and pushes if `push_to_hub`."""
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
            self.push_to_hub()
        elif self.args.do_train:
            self.create_model_card()


class EpochCallback(TrainerCallback):
    """Tells the epoch to a collator that draws other masks in each."""

    def __init__(self, collator):
        self.collator = collator

    def on_epoch_begin(self, args, state, control, **kwargs):
        # A resumed epoch begins at a fraction.
        self.collator.set_epoch(int(state.epoch or 0.0))


def shown_command(argv: list[str]) -> str:
    """The command as typed, without tokens, and with only the last name of absolute paths."""
    shown, words = [program(argv[0])], iter(argv[1:])
    for word in words:
        flag, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
        if flag not in TOKENS:
            shown.append(shlex.quote(f"{flag}{equals}{Path(value).name}" if Path(value).is_absolute() else word))
        elif not equals:
            next(words, None)
    return " ".join(shown)


def positional_weights(model: nn.Module) -> list[nn.Parameter]:
    """
    The weights that only know positions: W of every gMLP block, tables of relative position biases, position
    embeddings, and both matrices of a Mixer's MLP over the tokens.
    """
    weights = []
    for module in model.modules():
        # By name, since a checkpoint may bring its own copy of these classes.
        match type(module).__name__:
            case "SpatialProjection":
                weights.append(module.weight)
            case "RelativePositionBias":
                weights.append(module.biases.weight)
            case "TextMixerLayer":
                weights += [module.token_mlp.proj_in.weight, module.token_mlp.proj_out.weight]
        if isinstance(embedding := getattr(module, "position_embeddings", None), nn.Embedding):
            weights.append(embedding.weight)
    return weights


def start_run(model_args: BaseModelArguments, data_args: DataArguments, args: RunArguments) -> str | None:
    """
    The first step of every script: checks the flags, prepares the output folder, sets up logging and seeds, and returns
    the checkpoint to resume from, if there is one. Raises InputError if there is nothing to do, or as `resume_point`.
    """
    logging.basicConfig(format="%(message)s", level=logging.INFO if args.should_log else logging.WARNING)
    # It would log every request to the Hub.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    if not (args.do_train or args.do_eval or args.do_predict):
        raise InputError("Say what to do: --do_train, --do_eval, or, in scripts that predict, --do_predict.")
    if args.do_predict and not hasattr(data_args, "max_predict_samples"):
        raise InputError("This script does not predict: leave --do_predict out, and use the model in a pipeline.")
    if model_args.config_name is not None and not args.do_train:
        raise InputError("A new model (--config_name) is untrained: give --do_train, or --model_name_or_path.")
    if getattr(data_args, "streaming", False) and args.do_train and args.max_steps < 1:
        raise InputError("A stream has no length: set the length of the training with --max_steps.")
    for name, default in SET_BY_SCRIPTS.items():
        if getattr(args, name) != default:
            raise InputError(f"--{name} is set by this script: leave it out.")
    folder = os.path.realpath(args.output_dir)
    for name in ("model_name_or_path", "config_name", "tokenizer_name", "image_processor_name"):
        given = Path(getattr(model_args, name, None) or "")
        if args.overwrite_output_dir and given.name and given.exists() and given.resolve().is_relative_to(folder):
            raise InputError(f"--overwrite_output_dir would delete --{name} {given}: choose another --output_dir.")
    if model_args.cache_dir is not None:
        try:
            Path(model_args.cache_dir).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"--cache_dir {model_args.cache_dir} cannot be used ({error.strerror}).") from error
    settings = run_folder.run_settings(model_args, data_args, args)
    if isinstance(data_args, SeriesArguments) and data_args.is_series():
        # Each run prepares its own folder there.
        swept = ("global_batch_size", "learning_rate", "seed")
        settings = {name: value for name, value in settings.items() if name not in swept}
    checkpoint = run_folder.resume_point(args, settings)
    if args.global_batch_size is not None and args.do_train:
        devices, steps = args.world_size * max(1, args.n_gpu), args.gradient_accumulation_steps
        numbers = (args.global_batch_size, devices, args.per_device_train_batch_size, steps)
        logger.info("A batch of %d: %d device(s) x %d x %d step(s) of gradient accumulation", *numbers)
    if data := data_args.data_name():
        logger.info("Data: %s", data)
    set_seed(args.seed)
    return checkpoint
