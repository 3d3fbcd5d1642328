"""The Trainer of the run_*.py scripts, and how each of them begins."""

import inspect
import json
import logging
import math
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import torch
import xxhash
from huggingface_hub import ModelCard, ModelCardData
from torch import nn
from torch.utils.data import DataLoader, Dataset, SequentialSampler
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments, set_seed
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, HubStrategy, TrainOutput, rotate_checkpoints

from ..cards import TASKS, TrainingRecord, hyperparameters, model_card, write_trainer_card
from ..data.stream import SequenceStream
from ..errors import InputError, hub_reason
from .arguments import BaseModelArguments, DataArguments, RunArguments, program
from .folder import (
    FINISHED,
    NAMES,
    check_same,
    open_series,
    read_manifest,
    read_settings,
    resume_point,
    run_settings,
    whole_files,
    write_manifest,
    write_text,
)

logger = logging.getLogger(__name__)

# Where a streamed run was in its data; part of a checkpoint.
STREAM_STATE = "stream_state.pt"

# What collators and metrics of the scripts rely on.
SET_BY_SCRIPTS = {"label_names": None, "prediction_loss_only": False, "eval_do_concat_batches": True}
SET_BY_SCRIPTS |= {"include_for_metrics": [], "batch_eval_metrics": False, "remove_unused_columns": True}
# Flags whose values are nobody's business.
TOKENS = ("__token", "__hub_token")


class GMLPTrainer(Trainer):
    """
    transformers' Trainer, with six things put right: accumulated gradients of models that ignore the number of labels
    in the whole batch; label smoothing of causal models from outside transformers; an evaluation loss that weights
    tokens and not batches, where the metrics give one ("token_loss"); evaluation of all rows whatever
    `dataloader_drop_last` leaves out of the training; checkpoints that say what they consist of; and this project's
    model card.

    Args:
        metric_names: What `compute_metrics` gives, without "eval_"; `metric_for_best_model` must be one of them.
        dataset: The training data in words, for the card.
        license: The license of the weights, for the card; None says that it is not stated.
        language: That of the data, for the card.
        in_series: Whether the run is one of several, among which one that diverges is a result too.
        base_model: The checkpoint that the training begins with; the card names it if it is one of the Hub.
        train_collator: What makes the batches of the training, if it is not `data_collator`.
        hyperparameters: What the card says beyond Trainer's own, such as the augmentation.

    Raises:
        InputError: If the arguments do not go together.
    """

    def __init__(
        self,
        *args,
        metric_names: Iterable[str] | None = None,
        dataset: str,
        license: str | None = None,
        language: str | None = None,
        dataset_id: str | None = None,
        base_model: str | None = None,
        in_series: bool = False,
        train_collator: Callable | None = None,
        hyperparameters: Mapping[str, object] | None = None,
        **kwargs,
    ):
        try:
            super().__init__(*args, **kwargs)
        except (ValueError, RuntimeError, ImportError, OSError) as error:
            # Flags that do not go together, trackers that are not installed, a Hub that cannot be pushed to.
            raise InputError(f"The training cannot begin: {hub_reason(error)}.") from error
        if self.args.push_to_hub and (license or language) and self.is_world_process_zero():
            data = ModelCardData(license=license, language=language)
            try:
                ModelCard(f"---\n{data.to_yaml()}\n---\n").validate()
            except (ValueError, OSError) as error:
                given = f"--license {license}, --language {language}"
                raise InputError(f"The Hub does not take {given}: {hub_reason(error)}.") from error
        best = (self.args.metric_for_best_model or "loss").removeprefix("eval_")
        if metric_names is not None and best not in (names := ["loss", *metric_names]):
            raise InputError(f"--metric_for_best_model must be one of {', '.join(names)}, got {best}.")
        # Pinned memory is for the way to an accelerator; torch warns of it on a machine that has none.
        self.args.dataloader_pin_memory &= torch.accelerator.is_available()
        self.knows_scale = self.begun = False
        if self.label_smoother is not None and getattr(self.model, "loss_type", None) == "ForCausalLM":
            if "num_items_in_batch" not in inspect.signature(type(self.label_smoother).__call__).parameters:
                raise InputError("--label_smoothing_factor of a causal model needs a newer transformers: 5.23 has it.")
            # Trainer's own call of it shifts the labels only for class names in a table of transformers.
            self.compute_loss_func = partial(self.label_smoother, shift_labels=True)
            # The model computes no loss.
            self.model_accepts_loss_kwargs = False
        self.dataset, self.dataset_id, self.license, self.language = dataset, dataset_id, license, language
        self.in_series, self.train_collator = in_series, train_collator
        if train_collator is not None and self.args.n_gpu > 1:
            raise InputError("A packed batch is one row, which cannot be shared out: use `accelerate launch`.")
        self.base_model = None if base_model is None or Path(base_model).exists() else base_model
        self.hyperparameters = dict(hyperparameters or {})
        self.results: dict[str, float] = {}
        if hasattr(self.data_collator, "set_epoch"):
            self.add_callback(EpochCallback(self.data_collator))

    def train(self, resume_from_checkpoint: str | None = None, **kwargs) -> TrainOutput:
        self.settings = (read_settings(Path(self.args.output_dir)) or {}) | self._training_rows()
        if resume_from_checkpoint is not None:
            checkpoint = Path(resume_from_checkpoint)
            check_same(checkpoint.parent, read_manifest(checkpoint)["settings"], self.settings)
        if isinstance(self.train_dataset, SequenceStream):
            # The stream finds its place itself, at once; Trainer would read all that went before.
            self.args.ignore_data_skip = True
            # And it does so in this process: worker processes would each read all of it.
            self.args.dataloader_num_workers = 0
            if resume_from_checkpoint is not None:
                self.train_dataset.load_state(Path(resume_from_checkpoint) / STREAM_STATE)
                self.add_callback(RandomStateCallback(lambda: self._load_rng_state(resume_from_checkpoint)))
        try:
            return super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)
        except InputError:
            raise
        except (ImportError, TypeError, ValueError) as error:
            if self.begun:
                raise
            # Of an optimizer, a schedule or a kernel, before the first step.
            raise InputError(f"The training cannot begin: {error}") from error

    def _training_rows(self) -> dict[str, dict]:
        """How many training rows there are, and a hash of some, by which other data under the same name are known."""
        rows = self.train_dataset
        if isinstance(rows, torch.utils.data.IterableDataset):
            return {}
        batch = self.args.train_batch_size * self.args.world_size
        if self.args.dataloader_drop_last and len(rows) < batch:
            raise InputError(
                f"There are {len(rows)} training samples, not one batch of {batch}, and --dataloader_drop_last leaves "
                f"out what does not fill one: lower --per_device_train_batch_size."
            )
        digest = xxhash.xxh3_128()
        for index in range(0, len(rows), max(1, len(rows) // 64)):
            digest.update(json.dumps(rows[index], default=_plain, sort_keys=True).encode())
        return {"training_rows": {"number": len(rows), "contents": digest.hexdigest()}}

    def _get_dataloader(self, *args, is_training: bool = False, **kwargs) -> DataLoader:
        drop_last, collator = self.args.dataloader_drop_last, self.data_collator
        self.args.dataloader_drop_last = drop_last and is_training
        if is_training and self.train_collator is not None:
            self.data_collator = self.train_collator
        try:
            return super()._get_dataloader(*args, is_training=is_training, **kwargs)
        finally:
            self.args.dataloader_drop_last, self.data_collator = drop_last, collator

    def compute_loss(
        self,
        model: nn.Module,
        inputs: Mapping[str, torch.Tensor],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, Mapping]:
        # Models that take packed documents divide by it, and a packed batch cannot be cut down to a sample.
        self.knows_scale |= self.train_collator is not None
        if self.compute_loss_func is None and num_items_in_batch is not None and not self.knows_scale:
            # Trainer tells every model that takes **kwargs the number of labels in the whole batch, and then no longer
            # divides by the accumulation steps. Some models of transformers, BERT among them, ignore the number. One
            # that divides its loss by it gives 0 for infinity. In evaluation mode, nothing random is drawn for this.
            # One sample is enough, and needs less memory than a step, though all of its logits are computed.
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
        # Here, and not in a callback, so that it lies in the checkpoint before the manifest.
        super()._save_optimizer_and_scheduler(output_dir)
        if isinstance(self.train_dataset, SequenceStream) and self.is_world_process_zero():
            yielded = self.state.global_step * self.get_total_train_batch_size(self.args)
            self.train_dataset.save_state(Path(output_dir) / STREAM_STATE, yielded)

    def _save_checkpoint(self, model: nn.Module, trial: object):
        # The manifest is written when all else is, and only then does an older checkpoint go.
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        try:
            super()._save_checkpoint(model, trial)
        finally:
            self.args.save_total_limit = limit
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            folder = Path(self.args.output_dir)
            checkpoint = folder / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
            write_manifest(checkpoint, self.settings, resumable=not self.args.save_only_model)
            if self.args.push_to_hub and self.args.hub_strategy != HubStrategy.END:
                # Trainer uploads config and weights, and forgets the code that the config names.
                for code in checkpoint.glob("*.py"):
                    shutil.copy(code, folder)
                super()._push_from_checkpoint(str(checkpoint))
            rotate_checkpoints(str(folder), limit, self.state.best_model_checkpoint, use_mtime=True)

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        fresh, multiplier = self.optimizer is None, self.args.spatial_lr_multiplier
        optimizer = super().create_optimizer(model)
        if not fresh or multiplier == 1:
            return optimizer
        positional = {id(weight) for weight in positional_weights(self.model if model is None else model)}
        if not positional:
            raise InputError(
                f"--spatial_lr_multiplier: a {type(self.model).__name__} has no positional weights; leave it out."
            )
        for group in list(optimizer.param_groups):
            moved = [weight for weight in group["params"] if id(weight) in positional]
            if moved:
                group["params"] = [weight for weight in group["params"] if id(weight) not in positional]
                optimizer.add_param_group({**group, "params": moved, "lr": multiplier * group["lr"]})
        return optimizer

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        # Trainer spares biases and LayerNorms; the norms of convolutional networks are norms too.
        norms = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.RMSNorm)
        spared = {id(p) for module in model.modules() if isinstance(module, norms) for p in module.parameters()}
        parameters = dict(model.named_parameters(remove_duplicate=False))
        return [name for name in super().get_decay_parameter_names(model) if id(parameters[name]) not in spared]

    def _get_eval_sampler(self, eval_dataset: Dataset) -> SequentialSampler | None:
        # In the order of the data, even where training groups by length: predictions are matched to it.
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
        """
        Trains and saves if `do_train`, and evaluates if `do_eval`.

        Args:
            checkpoint: What the training goes on from, if anything; from `start_run`.

        Returns:
            The metrics of both.
        """
        metrics: dict[str, float] = {}
        if self.args.do_train:
            metrics |= self.train(resume_from_checkpoint=checkpoint).metrics
            # The shares of this process, where they are shared out. Trainer leaves losses of NaN out of the mean.
            weights = (getattr(weight, "_local_tensor", weight) for weight in self.model.parameters())
            if not all(weight.isfinite().all() for weight in weights):
                metrics["train_loss"] = math.nan
            self.check_finite(metrics)
            with whole_files(self.args.output_dir, self.is_world_process_zero()) as folder:
                self.accelerator.wait_for_everyone()
                self.save_model(str(folder), _internal_call=True)
                self.accelerator.wait_for_everyone()
                if self.is_world_process_zero():
                    self.state.save_to_json(str(folder / "trainer_state.json"))
        if self.args.do_eval:
            metrics |= self.evaluate()
        return metrics

    def check_finite(self, metrics: Mapping[str, float]):
        """
        Raises:
            InputError: If a loss is not a number. Among the runs of a series, it is a result, and only said.
        """
        if all(math.isfinite(value) for name, value in metrics.items() if name.endswith("loss")):
            return
        words = "The training diverged: its losses or weights are not numbers. Lower --learning_rate"
        if not self.in_series:
            raise InputError(f"{words}, and give --overwrite_output_dir; no model was saved at its end.")
        logger.warning("%s.", words)

    def push_to_hub(self, *args, **kwargs):
        try:
            return super().push_to_hub(*args, **kwargs)
        except (OSError, ValueError, RuntimeError) as error:
            # What the Hub says of a card comes as a ValueError of several lines.
            reason = hub_reason(error) if isinstance(error, OSError) else " ".join(str(error).split()).rstrip(".")
            raise InputError(
                f"The model in {self.args.output_dir} is whole, but could not be pushed: {reason}."
            ) from error

    def _push_from_checkpoint(self, checkpoint_folder: str):
        # Comes when the checkpoint has its manifest.
        pass

    def _finish_current_push(self):
        super()._finish_current_push()
        jobs = getattr(getattr(self, "push_in_progress", None), "jobs", ())
        for error in filter(None, (job.exception() for job in jobs)):
            logger.warning("A checkpoint could not be pushed: %s", hub_reason(error))

    def create_model_card(self, pushing: bool = True, **kwargs):
        """
        Writes README.md into the output folder: this project's card for its models, transformers' for any other.

        Args:
            pushing: Whether the folder is about to be pushed, if at all.
        """
        model = self.accelerator.unwrap_model(self.model)
        if type(model).__name__ not in TASKS:
            return super().create_model_card(**kwargs)
        if not self.is_world_process_zero():
            return
        folder = Path(self.args.output_dir)
        record = TrainingRecord(
            dataset=self.dataset,
            hyperparameters=hyperparameters(self) | self.hyperparameters,
            metrics=self.results,
            command=shown_command(sys.argv),
            dataset_id=self.dataset_id,
            base_model=self.base_model,
            language=self.language,
        )
        name = self.hub_model_id or (folder.name if folder.is_absolute() else str(folder))
        card = model_card(model, name, training=record, tags=kwargs.get("tags"), license=self.license)
        write_trainer_card(self, card, pushing=pushing)

    def finish(self, metrics: Mapping[str, float]):
        """Writes the card and all_results.json, and prints the results as a table. The run is over after this."""
        self.check_finite(metrics)
        if self.args.do_train:
            # Whether the Hub answers or not.
            self.create_model_card(pushing=False)
        if not self.is_world_process_zero():
            return
        results = {key: round(value, 6) if isinstance(value, float) else value for key, value in metrics.items()}
        write_text(Path(self.args.output_dir) / FINISHED, json.dumps(results, indent=2) + "\n")
        width = max(map(len, results))
        print("\nResults")
        for key, value in results.items():
            print(f"  {key:<{width}}  {value:.4f}" if isinstance(value, float) else f"  {key:<{width}}  {value}")
        print(f"Everything is in {self.args.output_dir}\n")


def shown_command(argv: list[str]) -> str:
    """A command as one types it, without tokens; of paths from the root of this machine, only the last name."""
    words, secret = [], False
    for word in argv[1:]:
        flag, equals, _ = word.replace("-", "_").partition("=")
        named = flag in TOKENS
        if not secret and not named:
            words.append(word)
        secret = named and not equals

    def shown(word: str) -> str:
        flag, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
        return f"{flag}{equals}{Path(value).name}" if Path(value).is_absolute() else word

    return " ".join([program(argv[0]), *map(shlex.quote, map(shown, words))])


def _plain(value: object) -> object:
    """What is in a row besides numbers and text, as JSON takes it."""
    return value.hex() if isinstance(value, bytes) else np.asarray(value).tolist()


def positional_weights(model: nn.Module) -> list[nn.Parameter]:
    """
    What knows of places and nothing else: W of every gMLP block, tables of relative position biases, embeddings of
    positions, and both matrices of a Mixer's MLP over the tokens.
    """
    weights = []
    for module in model.modules():
        # By name, since a checkpoint may bring these classes with it.
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


class EpochCallback(TrainerCallback):
    """Tells a collator that draws other masks in every epoch which epoch it is."""

    def __init__(self, collator):
        self.collator = collator

    def on_epoch_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs):
        # A resumed epoch has a fraction behind it.
        self.collator.set_epoch(int(state.epoch or 0.0))


class RandomStateCallback(TrainerCallback):
    """
    Restores the random state (of dropout) before the first step of a resumed stream: Trainer does so only after it
    has skipped data itself.
    """

    def __init__(self, restore: Callable[[], None]):
        self.restore: Callable[[], None] | None = restore

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs):
        if self.restore is not None:
            self.restore()
            self.restore = None


def start_run(
    model_args: BaseModelArguments, data_args: DataArguments, args: RunArguments, *, series: bool = False
) -> str | None:
    """
    What every script does first: looks after the output folder, sets up logging and seeds, says how the batch is made.

    Args:
        series: The output folder holds several runs, each of which looks after its own.

    Returns:
        The checkpoint that the run goes on from, if an earlier one with this output folder was cut off.

    Raises:
        InputError: If there is nothing to do, or the folder is not for this run (see `resume_point`).
    """
    logging.basicConfig(format="%(message)s", level=logging.INFO if args.should_log else logging.WARNING)
    # Every request to the Hub, at the level of information.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    if not (args.do_train or args.do_eval or args.do_predict):
        raise InputError("Say what to do: --do_train, --do_eval, or, where a script predicts, --do_predict.")
    if args.do_predict and not hasattr(data_args, "max_predict_samples"):
        raise InputError("This script does not predict: leave --do_predict out, and give the model to a pipeline.")
    if model_args.config_name is not None and not args.do_train:
        raise InputError("A new model (--config_name) knows nothing yet: give --do_train, or --model_name_or_path.")
    for name, default in SET_BY_SCRIPTS.items():
        if getattr(args, name) != default:
            raise InputError(f"--{name} is set by this script: leave it out.")
    if getattr(data_args, "streaming", False) and args.do_train and args.max_steps < 1:
        raise InputError("A stream has no length: say how long to train by --max_steps.")
    if model_args.cache_dir is not None:
        try:
            Path(model_args.cache_dir).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"--cache_dir {model_args.cache_dir} cannot be used ({error.strerror}).") from error
    folder = os.path.realpath(args.output_dir)
    for name in NAMES:
        given = Path(getattr(model_args, name, None) or "")
        if args.overwrite_output_dir and given.name and given.exists() and given.resolve().is_relative_to(folder):
            raise InputError(f"--overwrite_output_dir would remove --{name} {given}: choose another --output_dir.")
    settings, checkpoint = run_settings(model_args, data_args, args), None
    if series:
        open_series(args, settings)
    else:
        checkpoint = resume_point(args, settings)
    if args.global_batch_size is not None and args.do_train:
        devices = args.world_size * max(1, args.n_gpu)
        logger.info(
            "A batch of %d: %d device(s) x %d x %d step(s) of gradient accumulation",
            args.global_batch_size,
            devices,
            args.per_device_train_batch_size,
            args.gradient_accumulation_steps,
        )
    set_seed(args.seed)
    return checkpoint
