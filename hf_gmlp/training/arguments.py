"""Command-line arguments of the training scripts, named as in transformers' own examples."""

import argparse
import difflib
import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader
from transformers import HfArgumentParser, Trainer, TrainingArguments, get_scheduler

from ..data.files import COMPRESSIONS, FILE_KINDS, Access
from ..data.source import Source
from ..errors import InputError, first_line
from .recipes import SOURCES, command_line

# Flags whose values are secret.
TOKENS = ("--token", "--hub_token", "--hub-token")
# Intervals of flags of Trainer, which are wrong in silence or only refused after training.
INHERITED = {
    "weight_decay": "[0, inf)",
    "num_train_epochs": "(0, inf)",
    "label_smoothing_factor": "[0, 1)",
}


class FlagHelp(str):
    """The help of a flag, with the rest of its declaration, since HfArgumentParser passes all metadata to argparse."""

    interval: str | None
    may_change: bool


def flag(help: str, default: object = None, interval: str | None = None, may_change: bool = False) -> Any:
    """Declare a flag as a field of a dataclass.

    Args:
        interval: The interval of its numbers, such as "[0, 1)".
        may_change: Whether a run may be resumed with another value. Otherwise `run_folder.check_same` refuses it.
    """
    text = FlagHelp(help if interval is None else f"{help} In {interval}.")
    text.interval, text.may_change = interval, may_change
    if isinstance(default, list):
        return field(default_factory=default.copy, metadata={"help": text})
    return field(default=default, metadata={"help": text})


def is_inside(number: float, interval: str) -> bool:
    """Return whether a number is in an interval such as "[0, 1)"; NaN is in none."""
    low, high = map(float, interval[1:-1].split(","))
    return low <= number <= high and (number != low or interval[0] == "[") and (number != high or interval[-1] == "]")


class Flags:
    """The base of dataclasses of flags, which raises a ValueError for a number outside of the interval of its flag."""

    def __post_init__(self) -> None:
        for declared in fields(cast(Any, self)):
            value, text = getattr(self, declared.name), declared.metadata.get("help")
            interval = text.interval if isinstance(text, FlagHelp) else INHERITED.get(declared.name)
            for number in value if isinstance(value, list) else [value]:
                if interval and isinstance(number, int | float) and not is_inside(number, interval):
                    raise ValueError(f"--{declared.name} must be in {interval}, got {number}.")

    def fixed_flags(self) -> dict[str, object]:
        """Return the flags declared by `flag` that a resumed run may not change."""
        helps = {declared.name: declared.metadata.get("help") for declared in fields(cast(Any, self))}
        names = [name for name, text in helps.items() if isinstance(text, FlagHelp) and not text.may_change]
        return {name: getattr(self, name) for name in names}


@dataclass
class BaseModelArguments(Flags):
    """The model to start from."""

    _argument_group_name: ClassVar[str] = "model"

    model_name_or_path: str | None = flag("Checkpoint to start from: a folder or a name on the Hub.")
    config_name: str | None = flag("New model's config: a preset (see hf-gmlp presets), a folder or a name on the Hub.")
    config_overrides: str | None = flag("Changes to the config, such as num_hidden_layers=6,attention_size=64.")
    cache_dir: str | None = flag("Folder for downloads and prepared data.", may_change=True)
    model_revision: str = flag("Branch, tag or commit of the checkpoint.", "main")
    token: str | None = flag("Token for the Hub; by default, that of `hf auth login`.", may_change=True)
    trust_remote_code: bool = flag("Run code of a checkpoint. gMLPs do not need it.", False, may_change=True)
    attn_implementation: str | None = flag("Implementation of (tiny) attention: sdpa or eager.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.model_name_or_path is None) == (self.config_name is None):
            raise ValueError("Pass either --config_name (for a new model) or --model_name_or_path (a checkpoint).")

    def hub_options(self) -> dict[str, Any]:
        """Return the options of every `from_pretrained`."""
        return {"cache_dir": self.cache_dir, "token": self.token, "trust_remote_code": self.trust_remote_code}


@dataclass
class ModelArguments(BaseModelArguments):
    """The text model to start from, and its tokenizer."""

    tokenizer_name: str | None = flag("Tokenizer to use instead of the checkpoint's or a newly trained one.")
    vocab_size: int = flag("Maximum vocabulary size of a new tokenizer.", 32000, interval="[1, inf)")
    lowercase: bool = flag("Lowercase the text of a new tokenizer, as in bert-base-uncased.", False)
    max_tokenizer_samples: int = flag("Number of texts to train a tokenizer on.", 1_000_000, interval="[1, inf)")


@dataclass
class RunArguments(Flags, TrainingArguments):
    """The arguments of transformers' Trainer, and this project's own."""

    _argument_group_name: ClassVar[str] = "training (transformers.TrainingArguments)"

    global_batch_size: int | None = flag(
        "Samples per optimizer step over all devices; sets --gradient_accumulation_steps.", interval="[1, inf)"
    )
    spatial_lr_multiplier: float = flag(
        "Factor for the learning rate of positional weights, such as W. Raise it for short runs.",
        1.0,
        interval="(0, inf)",
    )
    muon_learning_rate: float | None = flag(
        "Train the matrices of the encoder with Muon at this rate (two to five times Adam's), the others with --optim.",
        interval="(0, inf)",
    )
    selective_checkpointing: bool = flag(
        "Keep only the results of matrix products for the backward pass: about half the memory for activations.",
        False,
        may_change=True,
    )
    per_device_train_batch_size: int = flag("Samples per device at once, at most.", 8, "[1, inf)", may_change=True)
    gradient_accumulation_steps: int = flag("Batches per optimizer step.", 1, "[1, inf)", may_change=True)
    # The loss of a head uses every parameter.
    ddp_find_unused_parameters: bool = flag("Search for unused parameters in every step.", False, may_change=True)
    # No flag: Trainer would push the complete output folder, with texts and paths, whenever it saves.
    hub_strategy: str = field(default="end", init=False)
    # The command for the model card, set by `parse_arguments`.
    command: str | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            TrainingArguments.__post_init__(self)
        except json.JSONDecodeError as error:
            raise ValueError(f"A flag must be JSON, but is {error.doc!r}: {error}.") from error
        if self.label_names:
            raise ValueError("--label_names has no use here, since every task has its own labels: leave it out.")
        if self.selective_checkpointing and self.gradient_checkpointing:
            raise ValueError("--selective_checkpointing and --gradient_checkpointing cannot be combined: choose one.")
        self.try_flags()
        if self.global_batch_size is not None:
            self.share_batch(self.global_batch_size)

    def share_batch(self, total: int) -> None:
        """Set the batch size per device and the accumulation, so that a step has `total` samples."""
        devices = self.world_size * max(1, self.n_gpu)
        if total % devices:
            raise ValueError(f"--global_batch_size {total} is not a multiple of the {devices} devices of this run.")
        per_device = total // devices
        if self.gradient_accumulation_steps not in (1, per_device / self.per_device_train_batch_size):
            raise ValueError("--global_batch_size sets --gradient_accumulation_steps: leave one of them out.")
        sizes = range(min(per_device, self.per_device_train_batch_size), 0, -1)
        self.per_device_train_batch_size = next(size for size in sizes if per_device % size == 0)
        self.gradient_accumulation_steps = per_device // self.per_device_train_batch_size

    def try_flags(self) -> None:
        """Pass flags to the libraries that use them, which otherwise refuse them only after much work."""
        with _naming("--seed"):
            np.random.RandomState(self.seed)
        with _naming("--per_device_train_batch_size, --per_device_eval_batch_size or --dataloader_num_workers"):
            for size in (self.per_device_train_batch_size, self.per_device_eval_batch_size):
                DataLoader(cast(Any, [0]), size, num_workers=self.dataloader_num_workers)
        # An optimizer of certain modules needs the model.
        if not self.do_train or self.optim_target_modules is not None:
            return
        with _naming("--optim or --optim_args (name=value,name=value)"):
            optimizer_class, options = Trainer.get_optimizer_cls_and_kwargs(self, nn.Identity())
        with _naming("--learning_rate, --weight_decay, --adam_beta1, --adam_beta2, --adam_epsilon or --optim_args"):
            groups = [{"params": [nn.Parameter(torch.zeros(1))], "weight_decay": self.weight_decay}]
            optimizer = optimizer_class(groups, **options)
        with _naming("--lr_scheduler_type, --lr_scheduler_kwargs or --warmup_steps"):
            options = {"optimizer": optimizer, "num_training_steps": 10, "num_warmup_steps": self.get_warmup_steps(10)}
            get_scheduler(self.lr_scheduler_type, **options, scheduler_specific_kwargs=self.lr_scheduler_kwargs)

    def __getstate__(self) -> dict[str, object]:
        # Keep the token out of training_args.bin.
        return self.__dict__ | {"hub_token": None}


@contextmanager
def _naming(flags: str) -> Iterator[None]:
    """Convert an error of a library into a ValueError that names the flags."""
    try:
        yield
    except (ValueError, TypeError, AssertionError, AttributeError) as error:
        raise ValueError(f"Correct {flags}: {first_line(error).rstrip('.')}.") from error


@dataclass
class DataArguments(Flags):
    """The data to train on: flags of all scripts."""

    _argument_group_name: ClassVar[str] = "data"

    dataset_name: str | None = flag("Dataset on the Hub, such as allenai/c4.")
    dataset_config_name: str | None = flag("Configuration of that dataset, such as en.")
    train_file: list[str] | None = flag(
        f"Training files, all of one kind: {', '.join(FILE_KINDS)}; possibly compressed ({', '.join(COMPRESSIONS)}). "
        "They replace the dataset of a recipe."
    )
    validation_file: list[str] | None = flag("Validation files, of the same kinds.")
    encoding: str | None = flag("Encoding of text files, such as cp1252; by default UTF-8.", may_change=True)
    max_train_samples: int | None = flag("Maximum number of training samples (the first ones).", interval="[1, inf)")
    max_eval_samples: int | None = flag("Maximum number of validation samples (the first ones).", interval="[1, inf)")
    preprocessing_num_workers: int | None = flag("Processes to prepare data.", interval="[1, inf)", may_change=True)
    overwrite_cache: bool = flag("Prepare the data again, without the cache.", False, may_change=True)
    license: str | None = flag("License of the weights for the model card, such as apache-2.0.", may_change=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        sources = [name for name in SOURCES if getattr(self, name, None)]
        if len({SOURCES[name] for name in sources}) > 1:
            flags = " and ".join(f"--{name}" for name in (sources[0], sources[-1]))
            raise ValueError(f"{flags} both name the data: leave one of them out.")

    def source(self, model_args: BaseModelArguments, args: RunArguments) -> Source:
        """Return what to read: one process per machine fills the cache, and the others use it."""
        overwrites = self.overwrite_cache and args.local_process_index == 0
        access = Access(model_args.cache_dir, model_args.token, overwrites)
        return Source(self.files(), self.dataset_name, self.dataset_config_name, access, self.encoding)

    def max_rows(self) -> dict[str, int | None]:
        """Return the maximum number of rows of each split."""
        flags = {"train": "max_train_samples", "validation": "max_eval_samples", "test": "max_predict_samples"}
        return {split: getattr(self, flag, None) for split, flag in flags.items()}

    def card_facts(self, model_args: BaseModelArguments, description: str | None = None) -> dict[str, Any]:
        """Return facts for the model card: the data, and the checkpoint to start from if it has a name on the Hub."""
        start = model_args.model_name_or_path
        return {
            "dataset": description or self.data_name(),
            "dataset_id": self.dataset_id(),
            "base_model": None if start is None or Path(start).exists() else start,
            "license": self.license,
        }

    def files(self) -> dict[str, list[str]]:
        """Return the named local files by split: "train", "validation", "test"."""
        files = {split: getattr(self, f"{split}_file", None) for split in ("train", "validation", "test")}
        return {split: paths for split, paths in files.items() if paths}

    def data_name(self) -> str:
        """Return the data in words, for the model card: the names of the first files, or of the dataset."""
        for paths in self.files().values():
            return ", ".join(Path(path).name for path in paths)
        return f"{self.dataset_name or ''} {self.dataset_config_name or ''}".strip()

    def dataset_id(self) -> str | None:
        """Return the data's name on the Hub; None for local data."""
        return None if Path(self.dataset_name or "").exists() else self.dataset_name


@dataclass
class LabeledTextArguments(DataArguments):
    """The data of scripts that fine-tune a text model and predict."""

    test_file: list[str] | None = flag("Files to predict, of the same kinds.")
    max_predict_samples: int | None = flag("Maximum number of samples to predict.", interval="[1, inf)")
    pad_to_max_length: bool = flag("Pad to --max_seq_length, as always for mask_padding=false.", False)


def public_command(program: str, argv: Sequence[str]) -> str:
    """Return a command as typed, but without access tokens and the folders of absolute paths."""
    parts, arguments = [program], iter(argv)
    for argument in arguments:
        flag, equals, value = argument.partition("=") if argument.startswith("--") else ("", "", argument)
        if flag not in TOKENS:
            name = Path(value).name if Path(value).is_absolute() else value
            parts.append(shlex.quote(f"{flag}{equals}{name}"))
        elif not equals:
            next(arguments, None)
    return " ".join(parts)


def parse_arguments(
    dataclass_types: tuple[type, ...], description: str, argv: list[str] | None = None, program: str = "python"
) -> tuple:
    """Return one instance per dataclass, from recipes and flags.

    Args:
        dataclass_types: The groups of flags, in the order of `--help`.
        description: What the script does, for the top of `--help`.
        argv: The flags. They may begin with recipes (.yaml files): later recipes override earlier ones, and flags
            override all of them. By default, those of the command line of a script, `sys.argv`.
        program: The command before the flags, for `--help` and the model card.

    Raises:
        InputError: It says what is wrong with the flags.
    """
    if argv is None:
        name, *argv = sys.argv
        program = shlex.join(["python", Path(name).name])
    parser = HfArgumentParser(
        dataclass_types,
        description=f"{description}\nRecipes (YAML files of flags) may come first; later values override earlier ones.",
        usage=f"{program} [recipe.yaml ...] [--flag value ...]",
        allow_abbrev=False,
        formatter_class=HelpFormatter,
    )
    words = command_line(argv)
    try:
        *parsed, unknown = parser.parse_args_into_dataclasses(words, True, look_for_args_file=False)
    except (ValueError, ImportError) as error:
        # The error comes from a dataclass, or from TrainingArguments and the libraries that it uses.
        raise InputError(" ".join(str(error).split())) from error
    if unknown:
        names = [f"--{declared.name}" for kind in dataclass_types for declared in fields(kind)]
        similar = difflib.get_close_matches(unknown[0].partition("=")[0], names, n=1) or ["--help"]
        raise InputError(f"Unknown argument {unknown[0]}: try {similar[0]}. Recipes (.yaml) come before all flags.")
    for arguments in parsed:
        if isinstance(arguments, RunArguments):
            arguments.command = public_command(program, argv)
    return tuple(parsed)


class HelpFormatter(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """Keep the line breaks of the description, and show defaults."""
