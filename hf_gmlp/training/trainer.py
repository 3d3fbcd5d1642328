"""The Trainer of the run_*.py scripts, and the care they take of their output folder."""

import dataclasses
import json
import logging
import math
import shlex
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from zipfile import is_zipfile

import torch
from safetensors import SafetensorError, safe_open
from torch import nn
from torch.utils.data import Dataset, SequentialSampler
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments, set_seed
from transformers.trainer_utils import TrainOutput

from ..cards import TASKS, TrainingRecord, model_card
from ..data.stream import SequenceStream
from ..errors import InputError
from .arguments import RunArguments

logger = logging.getLogger(__name__)

# Written last, when a run is over.
FINISHED = "all_results.json"
# What a run was made with, so that tables know whose result it is, and another command does not take it for its own.
SETTINGS = "settings.json"
# Where a streamed run was in its data; part of a checkpoint.
STREAM_STATE = "stream_state.pt"

CARD_HYPERPARAMETERS = (
    "learning_rate",
    "lr_scheduler_type",
    "warmup_steps",
    "optim",
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "weight_decay",
    "max_grad_norm",
    "label_smoothing_factor",
    "seed",
)


class GMLPTrainer(Trainer):
    """
    transformers' Trainer, with four things put right: accumulated gradients of models that ignore the number of labels
    in the whole batch; label smoothing of causal models from outside transformers; an evaluation loss that weights
    tokens and not batches, where the metrics give one ("token_loss"); and this project's model card.

    Args:
        dataset: The training data in words, for the card.
        license: The license of the weights, for the card.
        hyperparameters: What the card says beyond Trainer's own, such as the augmentation.
    """

    def __init__(
        self,
        *args,
        dataset: str,
        license: str,
        dataset_id: str | None = None,
        hyperparameters: Mapping[str, object] | None = None,
        **kwargs,
    ):
        super().__init__(*args, **kwargs)
        # Pinned memory is for the way to an accelerator; torch warns of it on a machine that has none.
        self.args.dataloader_pin_memory &= torch.accelerator.is_available()
        self.knows_scale = False
        if self.label_smoother is not None and getattr(self.model, "loss_type", None) == "ForCausalLM":
            # Trainer's own call of it shifts the labels only for class names in a table of transformers.
            self.compute_loss_func = partial(self.label_smoother, shift_labels=True)
            # The model computes no loss.
            self.model_accepts_loss_kwargs = False
        self.dataset, self.dataset_id, self.license = dataset, dataset_id, license
        self.hyperparameters = dict(hyperparameters or {})
        self.results: dict[str, float] = {}
        if hasattr(self.data_collator, "set_epoch"):
            self.add_callback(EpochCallback(self.data_collator))

    def train(self, resume_from_checkpoint: str | None = None, **kwargs) -> TrainOutput:
        if isinstance(self.train_dataset, SequenceStream):
            # The stream finds its place itself, at once; Trainer would read all that went before.
            self.args.ignore_data_skip = True
            # And it does so in this process: worker processes would each read all of it.
            self.args.dataloader_num_workers = 0
            if resume_from_checkpoint is not None:
                self.train_dataset.load_state(Path(resume_from_checkpoint) / STREAM_STATE)
                self.add_callback(RandomStateCallback(lambda: self._load_rng_state(resume_from_checkpoint)))
        return super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: Mapping[str, torch.Tensor],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, Mapping]:
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
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

    def _save_optimizer_and_scheduler(self, output_dir: str):
        # Here, and not in a callback, so that it lies in the checkpoint before trainer_state.json, which comes last.
        super()._save_optimizer_and_scheduler(output_dir)
        if isinstance(self.train_dataset, SequenceStream) and self.is_world_process_zero():
            yielded = self.state.global_step * self.get_total_train_batch_size(self.args)
            self.train_dataset.save_state(Path(output_dir) / STREAM_STATE, yielded)

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

    def train_and_evaluate(self, model_args: object, data_args: object, checkpoint: str | None) -> dict[str, float]:
        """
        Trains and saves if `do_train`, and evaluates if `do_eval`, noting first what the run is made with.

        Args:
            model_args, data_args: The dataclasses of the script's flags, as for `run_settings`.
            checkpoint: What the training goes on from, if anything.

        Returns:
            The metrics of both.
        """
        metrics: dict[str, float] = {}
        if self.args.do_train:
            write_settings(model_args, data_args, self.args)
            metrics |= self.train(resume_from_checkpoint=checkpoint).metrics
            self.save_model()
            self.save_state()
        if self.args.do_eval:
            metrics |= self.evaluate()
        return metrics

    def create_model_card(self, **kwargs):
        """Writes README.md into the output folder: this project's card for its models, transformers' for any other."""
        model = self.accelerator.unwrap_model(self.model)
        if type(model).__name__ not in TASKS:
            return super().create_model_card(**kwargs)
        if not self.is_world_process_zero():
            return
        name = self.hub_model_id or str(self.args.output_dir)
        card = model_card(model, name, training=self.training_record(), tags=kwargs.get("tags"), license=self.license)
        card.save(Path(self.args.output_dir) / "README.md")

    def training_record(self) -> TrainingRecord:
        """What the card says of the training."""
        hyperparameters = {key: getattr(self.args, key) for key in CARD_HYPERPARAMETERS}
        hyperparameters = {key: getattr(value, "value", value) for key, value in hyperparameters.items()}
        hyperparameters = {
            "steps": self.state.global_step,
            "epochs": round(self.state.epoch or 0.0, 2),
            "global batch size": self.get_total_train_batch_size(self.args),
            "precision": "bf16" if self.args.bf16 else "fp16" if self.args.fp16 else "fp32",
        } | (hyperparameters | self.hyperparameters)
        timings = ("runtime", "per_second", "epoch", "preparation_time")
        metrics = {
            key.removeprefix("eval_"): value
            for key, value in self.results.items()
            if isinstance(value, int | float) and not key.endswith(timings)
        }
        return TrainingRecord(
            dataset=self.dataset,
            hyperparameters=hyperparameters,
            metrics=metrics,
            command=shlex.join(["python", Path(sys.argv[0]).name, *sys.argv[1:]]),
            dataset_id=self.dataset_id,
        )

    def finish(self, metrics: Mapping[str, float]):
        """Writes the card and all_results.json, and prints the results as a table. The run is over after this."""
        self.create_model_card()
        if not self.is_world_process_zero():
            return
        results = {key: round(value, 6) if isinstance(value, float) else value for key, value in metrics.items()}
        (Path(self.args.output_dir) / FINISHED).write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
        width = max(map(len, results))
        print("\nResults")
        for key, value in results.items():
            print(f"  {key:<{width}}  {value:.4f}" if isinstance(value, float) else f"  {key:<{width}}  {value}")
        print(f"Everything is in {self.args.output_dir}\n")


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


def start_run(args: RunArguments) -> str | None:
    """
    What every script does first: looks after the output folder, sets up logging and seeds, says how the batch is made.

    Returns:
        The checkpoint that the run goes on from, if an earlier one with this output folder was cut off.

    Raises:
        InputError: If there is nothing to do, or the folder holds a finished run.
    """
    logging.basicConfig(format="%(message)s", level=logging.INFO if args.should_log else logging.WARNING)
    # Every request to the Hub, at the level of information.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    if not (args.do_train or args.do_eval or args.do_predict):
        raise InputError("Say what to do: --do_train, --do_eval, or, where a script predicts, --do_predict.")
    check_unfinished(Path(args.output_dir))
    checkpoint = checkpoint_to_resume(args) if args.do_train else None
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


def total_batch_size(args: RunArguments) -> int:
    """Samples per optimizer step over all devices."""
    devices = args.world_size * max(1, args.n_gpu)
    return devices * args.per_device_train_batch_size * args.gradient_accumulation_steps


def run_settings(model_args: object, data_args: object, args: RunArguments) -> dict:
    """
    All that decides the result of a run, by the names of the flags.

    Args:
        model_args: The dataclass of the script's flags about the model.
        data_args: That of its flags about the data.
    """
    elsewhere = {"cache_dir", "seeds", "sweep_batch_sizes", "sweep_learning_rates", "preprocessing_num_workers"}
    fields = dataclasses.asdict(model_args) | dataclasses.asdict(data_args)
    settings = {name: value for name, value in fields.items() if name not in elsewhere | {"license"}}
    training = (*CARD_HYPERPARAMETERS, "num_train_epochs", "max_steps", "bf16", "fp16", "do_predict")
    settings |= {name: getattr(args, name) for name in training}
    settings["global_batch_size"] = total_batch_size(args)
    # As it is read back.
    return json.loads(json.dumps(settings, default=str))


def write_settings(model_args: object, data_args: object, args: RunArguments):
    """Notes in the folder of a run what it is made with; arguments as for `run_settings`."""
    if args.process_index == 0:
        Path(args.output_dir).mkdir(parents=True, exist_ok=True)
        settings = json.dumps(run_settings(model_args, data_args, args), indent=2)
        Path(args.output_dir, SETTINGS).write_text(settings + "\n", encoding="utf-8")


def check_unfinished(folder: Path):
    """
    Raises:
        InputError: If the folder holds a finished run.
    """
    if (folder / FINISHED).is_file():
        raise InputError(f"{folder} holds a finished run. Choose another --output_dir, or remove that folder first.")


def checkpoint_to_resume(args: TrainingArguments) -> str | None:
    """
    The last complete checkpoint in the output folder, that a cut-off run goes on from; None for a fresh start.

    Raises:
        InputError: If `resume_from_checkpoint` names no complete checkpoint.
    """
    folder = Path(args.output_dir)
    if args.resume_from_checkpoint not in (None, "true", "True"):
        fault = checkpoint_fault(Path(args.resume_from_checkpoint))
        if fault is not None:
            raise InputError(f"{args.resume_from_checkpoint} is no complete checkpoint: {fault}.")
        return args.resume_from_checkpoint
    found = [path for path in folder.glob("checkpoint-*") if path.name.removeprefix("checkpoint-").isdigit()]
    for checkpoint in sorted(found, key=lambda path: int(path.name.removeprefix("checkpoint-")), reverse=True):
        fault = checkpoint_fault(checkpoint)
        if fault is None:
            logger.info("Going on from %s", checkpoint)
            return str(checkpoint)
        logger.warning("Skipping %s, which is half-written: %s", checkpoint, fault)
    return None


def checkpoint_fault(checkpoint: Path) -> str | None:
    """What shows that a checkpoint was not written to its end; None if it was."""
    try:
        # Trainer writes this file last.
        json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
    except OSError:
        return "trainer_state.json is missing"
    except ValueError:
        return "trainer_state.json is cut off"
    for path in sorted(checkpoint.iterdir()):
        # torch.save makes zip files, whose table of contents is at the end.
        if path.suffix in (".pt", ".pth", ".bin") and path.name != "training_args.bin" and not is_zipfile(path):
            return f"{path.name} is cut off"
        if path.suffix == ".safetensors":
            try:
                with safe_open(path, framework="pt"):
                    pass
            except SafetensorError:
                return f"{path.name} is cut off"
    return None
