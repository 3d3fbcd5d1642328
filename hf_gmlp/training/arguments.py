"""Command-line arguments of the run_*.py scripts, with the names of transformers' own examples."""

import argparse
import difflib
import json
import math
import sys
from collections.abc import Mapping, Sized
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import yaml
from transformers import HfArgumentParser, PreTrainedConfig, TrainingArguments

from ..data.qa import check_lengths
from ..errors import InputError

RECIPE_ENDINGS = (".yaml", ".yml", ".json")


@dataclass
class BaseModelArguments:
    """Which model to start from."""

    _argument_group_name: ClassVar[str] = "model"

    model_name_or_path: str | None = field(
        default=None, metadata={"help": "Checkpoint to go on from: a folder or a name on the Hub."}
    )
    config_name: str | None = field(
        default=None,
        metadata={
            "help": "Train from scratch with this config: a preset (hf-gmlp presets lists them), a folder or a name."
        },
    )
    config_overrides: str | None = field(
        default=None,
        metadata={
            "help": "Changes to the config, such as num_hidden_layers=6,attention_size=64; of a checkpoint only what "
            "leaves the shapes of its weights as they are, such as hidden_dropout_prob=0.1."
        },
    )
    cache_dir: str | None = field(default=None, metadata={"help": "Where downloads are kept."})
    model_revision: str = field(default="main", metadata={"help": "Branch, tag or commit of the checkpoint."})
    trust_remote_code: bool = field(
        default=False, metadata={"help": "Run code that comes with a checkpoint; not needed for gMLPs."}
    )
    attn_implementation: str | None = field(
        default=None, metadata={"help": "Implementation of (tiny) attention: sdpa or eager."}
    )

    def __post_init__(self):
        if (self.model_name_or_path is None) == (self.config_name is None):
            raise ValueError(
                "Say what to train: --config_name (a preset or config) for a new model, or --model_name_or_path for "
                "a checkpoint; one of the two."
            )


@dataclass
class ModelArguments(BaseModelArguments):
    """Which text model to start from."""

    tokenizer_name: str | None = field(
        default=None, metadata={"help": "Tokenizer, if it is not the checkpoint's: a folder or a name."}
    )


@dataclass
class ImageModelArguments(BaseModelArguments):
    """Which image model to start from."""

    image_processor_name: str | None = field(
        default=None, metadata={"help": "Image processor, if it is not the checkpoint's: a folder or a name."}
    )
    ignore_mismatched_sizes: bool = field(
        default=False, metadata={"help": "Give a checkpoint a new classifier if it was trained for other classes."}
    )


@dataclass
class RunArguments(TrainingArguments):
    """transformers' own arguments, and the batch size of a recipe, which holds on any number of devices."""

    _argument_group_name: ClassVar[str] = "training (transformers.TrainingArguments)"

    global_batch_size: int | None = field(
        default=None,
        metadata={
            "help": "Samples per optimizer step over all devices; gradient accumulation follows from it, and the batch "
            "per device is lowered if it does not divide it."
        },
    )

    def __post_init__(self):
        super().__post_init__()
        if self.ddp_find_unused_parameters is None:
            # Every parameter of every head takes part in its loss; looking for idle ones costs a walk of the graph.
            self.ddp_find_unused_parameters = False
        if self.global_batch_size is None:
            return
        devices = self.world_size * max(1, self.n_gpu)
        if self.global_batch_size < 1 or self.global_batch_size % devices:
            raise ValueError(
                f"--global_batch_size {self.global_batch_size} is no multiple of the {devices} devices of this run."
            )
        share = self.global_batch_size // devices
        largest = min(share, self.per_device_train_batch_size)
        self.per_device_train_batch_size = next(size for size in range(largest, 0, -1) if share % size == 0)
        self.gradient_accumulation_steps = share // self.per_device_train_batch_size


@dataclass
class TextArguments:
    """Which text to train a language model on."""

    _argument_group_name: ClassVar[str] = "data"

    dataset_name: str | None = field(default=None, metadata={"help": "Data set on the Hub, such as allenai/c4."})
    dataset_config_name: str | None = field(default=None, metadata={"help": "Its configuration, such as en."})
    train_file: list[str] | None = field(
        default=None,
        metadata={"help": "Training text: txt (documents parted by empty lines), json(l), csv or parquet files."},
    )
    validation_file: list[str] | None = field(default=None, metadata={"help": "Validation text, likewise."})
    text_column: str = field(default="text", metadata={"help": "The column with the text."})
    validation_split_percentage: int = field(
        default=5, metadata={"help": "Share of the training documents held out if there are no validation data."}
    )
    streaming: bool = field(default=False, metadata={"help": "Read the data as a stream: no download, no cache."})
    vocab_size: int = field(default=32000, metadata={"help": "Vocabulary of the tokenizer trained when none is given."})
    max_tokenizer_samples: int = field(
        default=1_000_000, metadata={"help": "Train the tokenizer on so many documents, the first ones."}
    )
    max_train_samples: int | None = field(default=None, metadata={"help": "Train on so many sequences only."})
    max_eval_samples: int | None = field(default=None, metadata={"help": "Evaluate on so many documents only."})
    preprocessing_num_workers: int | None = field(default=None, metadata={"help": "Processes that tokenize."})
    license: str = field(default="apache-2.0", metadata={"help": "License of the weights, for the model card."})

    def description(self, train: object, validation: Sized, sequence_length: int) -> str:
        """The data in words, for the model card: its name and its size in sequences, if it is no stream."""
        name = f"{self.dataset_name} {self.dataset_config_name or ''}".strip()
        if self.dataset_name is None:
            name = ", ".join(Path(path).name for path in self.train_file or [])
        size = f"{len(train):,}" if isinstance(train, Sized) else "a stream of"
        up_to = "up to " if getattr(self, "line_by_line", False) else ""
        return f"{name}: {size} training sequences of {up_to}{sequence_length} tokens, {len(validation):,} held out."


@dataclass
class MLMArguments(TextArguments):
    """Which text to train on, and how it is masked."""

    max_seq_length: int | None = field(
        default=None, metadata={"help": "Tokens per sequence; the model's n by default."}
    )
    line_by_line: bool = field(
        default=False, metadata={"help": "One sequence per line, truncated; packed without padding by default."}
    )
    mlm_probability: float = field(default=0.15, metadata={"help": "Share of the tokens that are to be predicted."})
    whole_word_mask: bool = field(
        default=False, metadata={"help": "Choose whole words, and let all of their tokens become [MASK]."}
    )

    def __post_init__(self):
        if not 0 < self.mlm_probability < 1:
            raise ValueError(f"--mlm_probability is between 0 and 1, got {self.mlm_probability}.")
        if self.max_seq_length is not None and self.max_seq_length < 3:
            raise ValueError(f"--max_seq_length counts [CLS] and [SEP] and must be above 2, got {self.max_seq_length}.")

    def sequence_length(self, config: PreTrainedConfig) -> int:
        """
        Tokens per sequence: `max_seq_length`, or the model's n.

        Raises:
            InputError: If that is more than the model's n.
        """
        return _sequence_length("max_seq_length", self.max_seq_length, config.max_position_embeddings)


@dataclass
class CLMArguments(TextArguments):
    """Which text to train a causal language model on, and in which blocks."""

    block_size: int | None = field(default=None, metadata={"help": "Tokens per block; the model's n by default."})
    byte_level: bool = field(
        default=False,
        metadata={
            "help": "A token for every byte, and no tokenizer to train. A text file is then read as it is, with every "
            "byte of it, and is one document; without validation files its last part is held out."
        },
    )

    def __post_init__(self):
        if self.block_size is not None and self.block_size < 2:
            raise ValueError(f"--block_size is 2 or more, a token and the next one, got {self.block_size}.")
        for name in ("max_train_samples", "max_eval_samples"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"--{name} must be at least 1, got {getattr(self, name)}.")

    def sequence_length(self, config: PreTrainedConfig) -> int:
        """
        Tokens per block: `block_size`, or the model's n.

        Raises:
            InputError: If that is more than the model's n, or the model has none and there is no `block_size`.
        """
        longest = getattr(config, "max_position_embeddings", None)
        if longest is None and self.block_size is None:
            raise InputError("The model has no longest sequence: say by --block_size how many tokens a block has.")
        return _sequence_length("block_size", self.block_size, longest or self.block_size)


def _sequence_length(flag: str, length: int | None, longest: int) -> int:
    if length is not None and length > longest:
        raise InputError(
            f"--{flag} {length} is above the model's n = {longest}. Lower it; or give a new model a longer n by "
            f"--config_overrides max_position_embeddings={length}."
        )
    return length or longest


@dataclass
class GlueArguments:
    """Which sentences to classify, and how many runs to make."""

    _argument_group_name: ClassVar[str] = "data"

    task_name: str | None = field(
        default=None, metadata={"help": "A task of GLUE: cola, mnli, mrpc, qnli, qqp, rte, sst2, stsb or wnli."}
    )
    dataset_name: str | None = field(default=None, metadata={"help": "Other data on the Hub, with its own splits."})
    dataset_config_name: str | None = field(default=None, metadata={"help": "Its configuration."})
    train_file: list[str] | None = field(
        default=None, metadata={"help": "Training data of your own: csv, tsv, json(l) or parquet files."}
    )
    validation_file: list[str] | None = field(
        default=None, metadata={"help": "Validation data, likewise; of MNLI first the matched, then the mismatched."}
    )
    test_file: list[str] | None = field(
        default=None, metadata={"help": "Data to predict, likewise; of MNLI matched, mismatched, AX."}
    )
    text_column_names: list[str] | None = field(
        default=None,
        metadata={
            "help": "The column of the sentence or the two of a pair, if they are not named as in a task of GLUE."
        },
    )
    label_column_name: str = field(default="label", metadata={"help": "The column of the label."})
    do_regression: bool | None = field(
        default=None, metadata={"help": "Labels are numbers to be predicted; by default, if they have fractions."}
    )
    max_seq_length: int | None = field(
        default=None,
        metadata={"help": "Tokens per sentence or pair; 128 by default, or the model's n if that is less."},
    )
    pad_to_max_length: bool = field(
        default=False, metadata={"help": "Pad to --max_seq_length; by default, to the longest sequence of a batch."}
    )
    max_train_samples: int | None = field(default=None, metadata={"help": "Train on the first so many rows only."})
    max_eval_samples: int | None = field(default=None, metadata={"help": "Evaluate on the first so many rows only."})
    max_predict_samples: int | None = field(default=None, metadata={"help": "Predict the first so many rows only."})
    seeds: list[int] | None = field(
        default=None, metadata={"help": "Train once with each of these seeds, and report median and spread."}
    )
    sweep_batch_sizes: list[int] | None = field(
        default=None, metadata={"help": "Train with each of these global batch sizes, and report the best."}
    )
    sweep_learning_rates: list[float] | None = field(
        default=None, metadata={"help": "Train with each of these learning rates, and report the best."}
    )
    vocab_size: int = field(default=32000, metadata={"help": "Vocabulary of the tokenizer trained when none is given."})
    preprocessing_num_workers: int | None = field(default=None, metadata={"help": "Processes that tokenize."})
    license: str = field(default="apache-2.0", metadata={"help": "License of the weights, for the model card."})

    def __post_init__(self):
        if self.text_column_names is not None and len(self.text_column_names) > 2:
            raise ValueError(f"--text_column_names takes one or two columns, got {', '.join(self.text_column_names)}.")
        # [CLS] A [SEP] B [SEP] with a token for each sentence.
        if self.max_seq_length is not None and self.max_seq_length < 5:
            raise ValueError(f"--max_seq_length counts [CLS] and [SEP] and must be above 4, got {self.max_seq_length}.")
        for name in ("max_train_samples", "max_eval_samples", "max_predict_samples"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"--{name} must be at least 1, got {getattr(self, name)}.")
        for name in ("seeds", "sweep_batch_sizes", "sweep_learning_rates"):
            values = getattr(self, name) or []
            if len(set(values)) < len(values):
                raise ValueError(f"--{name} names a value twice: {', '.join(map(str, values))}.")

    def sequence_length(self, config: PreTrainedConfig) -> int:
        """
        Tokens per sequence: `max_seq_length`, or 128, or the model's n if that is less.

        Raises:
            InputError: If `max_seq_length` is more than the model's n.
        """
        longest = getattr(config, "max_position_embeddings", None) or math.inf
        if self.max_seq_length is not None and self.max_seq_length > longest:
            raise InputError(
                f"--max_seq_length {self.max_seq_length} is above the model's n = {longest}. Lower it; or make a gMLP "
                f"longer by model.resize_position_embeddings({self.max_seq_length}) and save that."
            )
        return self.max_seq_length or min(128, longest)

    def description(self) -> str:
        """The data in words, for the model card."""
        if self.files():
            names = ", ".join(Path(path).name for path in self.files())
            return f"{names} ({self.task_name})" if self.task_name is not None else names
        if self.dataset_name is not None:
            return f"{self.dataset_name} {self.dataset_config_name or ''}".strip()
        return f"GLUE {self.task_name}"

    def dataset_id(self) -> str | None:
        """The data's identifier on the Hub, if they are from there."""
        return None if self.files() else self.dataset_name or "nyu-mll/glue"

    def files(self) -> list[str]:
        """The training files; without them, those to evaluate or predict."""
        return self.train_file or self.validation_file or self.test_file or []


@dataclass
class QAArguments:
    """Which questions to answer, and how answers are found."""

    _argument_group_name: ClassVar[str] = "data"

    dataset_name: str | None = field(
        default=None, metadata={"help": "Data set on the Hub, such as rajpurkar/squad or rajpurkar/squad_v2."}
    )
    dataset_config_name: str | None = field(default=None, metadata={"help": "Its configuration."})
    train_file: list[str] | None = field(
        default=None, metadata={"help": "Questions to train on: JSON as SQuAD is published, flat, or JSON lines."}
    )
    validation_file: list[str] | None = field(default=None, metadata={"help": "Questions to evaluate on, likewise."})
    test_file: list[str] | None = field(default=None, metadata={"help": "Questions to answer, likewise."})
    version_2_with_negative: bool = field(
        default=False, metadata={"help": "Some questions have no answer, as in SQuAD v2.0."}
    )
    null_score_diff_threshold: float = field(
        default=0.0, metadata={"help": "Say that there is no answer if that scores higher by more than this."}
    )
    max_seq_length: int | None = field(
        default=None, metadata={"help": "Tokens of question and context together; the model's n by default."}
    )
    doc_stride: int | None = field(
        default=None,
        metadata={
            "help": "Tokens of overlap between the windows of a longer context; 128 by default, or a third of "
            "max_seq_length if that is less."
        },
    )
    pad_to_max_length: bool = field(
        default=False,
        metadata={
            "help": "Pad to --max_seq_length; by default to the longest sequence of a batch, unless the model sees "
            "its padding (mask_padding=false)."
        },
    )
    n_best_size: int = field(default=20, metadata={"help": "Answers kept per question in nbest_predictions.json."})
    max_answer_length: int = field(default=30, metadata={"help": "Tokens of an answer at most."})
    max_train_samples: int | None = field(default=None, metadata={"help": "Train on the first so many questions only."})
    max_eval_samples: int | None = field(
        default=None, metadata={"help": "Evaluate on the first so many questions only."}
    )
    max_predict_samples: int | None = field(default=None, metadata={"help": "Answer the first so many questions only."})
    vocab_size: int = field(default=32000, metadata={"help": "Vocabulary of the tokenizer trained when none is given."})
    preprocessing_num_workers: int | None = field(default=None, metadata={"help": "Processes that tokenize."})
    license: str = field(default="apache-2.0", metadata={"help": "License of the weights, for the model card."})

    def __post_init__(self):
        for name in (
            "n_best_size",
            "max_answer_length",
            "max_train_samples",
            "max_eval_samples",
            "max_predict_samples",
        ):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"--{name} must be at least 1, got {getattr(self, name)}.")

    def window_lengths(self, config: PreTrainedConfig) -> dict[str, int]:
        """
        "max_seq_length" and "doc_stride" of the windows.

        Raises:
            InputError: If `max_seq_length` is more than the model's n, or one does not go with the other.
        """
        longest = getattr(config, "max_position_embeddings", None) or 512
        if self.max_seq_length is not None and self.max_seq_length > longest:
            raise InputError(
                f"--max_seq_length {self.max_seq_length} is above the model's n = {longest}. Lower it; or make a gMLP "
                f"longer by model.resize_position_embeddings({self.max_seq_length}) and save that."
            )
        max_seq_length = self.max_seq_length or longest
        doc_stride = min(128, max_seq_length // 3) if self.doc_stride is None else self.doc_stride
        check_lengths(max_seq_length, doc_stride)
        return {"max_seq_length": max_seq_length, "doc_stride": doc_stride}

    def description(self) -> str:
        """The training data in words, for the model card."""
        if self.dataset_name is not None:
            return f"{self.dataset_name} {self.dataset_config_name or ''}".strip()
        return ", ".join(Path(path).name for path in self.train_file or [])


@dataclass
class ImageArguments:
    """Which images to train on, and how they are augmented."""

    _argument_group_name: ClassVar[str] = "data"

    dataset_name: str | None = field(
        default=None,
        metadata={"help": "Data set on the Hub, such as ILSVRC/imagenet-1k; folders or files override it."},
    )
    dataset_config_name: str | None = field(default=None, metadata={"help": "Its configuration."})
    train_dir: str | None = field(
        default=None, metadata={"help": "Training images: a folder, or a zip file, with a folder for every class."}
    )
    validation_dir: str | None = field(default=None, metadata={"help": "Validation images, likewise."})
    train_file: list[str] | None = field(
        default=None, metadata={"help": "Training images in parquet files, or csv or json files with their paths."}
    )
    validation_file: list[str] | None = field(default=None, metadata={"help": "Validation images, likewise."})
    train_val_split: float = field(
        default=0.15, metadata={"help": "Share of the training images held out if there are no validation data."}
    )
    image_column_name: str = field(default="image", metadata={"help": "The column of the image."})
    label_column_name: str = field(default="label", metadata={"help": "The column of its class."})
    max_train_samples: int | None = field(default=None, metadata={"help": "Train on so many images only, drawn."})
    max_eval_samples: int | None = field(default=None, metadata={"help": "Evaluate on so many images only, drawn."})
    skip_bad_images: bool = field(
        default=False, metadata={"help": "Leave out, and count, the images that cannot be used; else they end the run."}
    )
    preprocessing_num_workers: int | None = field(
        default=None, metadata={"help": "Processes that check the images; --dataloader_num_workers decode them later."}
    )
    image_size: list[int] | None = field(
        default=None,
        metadata={
            "help": "Pixels, as one number or height and width; by default the model's. A gMLP checkpoint of another "
            "size is resized."
        },
    )
    crop_pct: float | None = field(
        default=None,
        metadata={"help": "Share of the shorter side that evaluation keeps; 0.875 if no image processor says more."},
    )
    crop_scale: list[float] = field(
        default_factory=lambda: [0.08, 1.0],
        metadata={"help": "Smallest and largest area of the random crop in training, as shares of the image."},
    )
    horizontal_flip: float = field(default=0.5, metadata={"help": "How likely left and right change places."})
    auto_augment: str | None = field(
        default=None, metadata={"help": "AutoAugment's policy for imagenet, cifar10 or svhn; none by default."}
    )
    mixup_alpha: float = field(default=0.0, metadata={"help": "Mixup's alpha; 0 is none."})
    cutmix_alpha: float = field(default=0.0, metadata={"help": "CutMix's alpha; 0 is none."})
    switch_prob: float = field(default=0.5, metadata={"help": "How likely it is CutMix, where Mixup is on too."})
    license: str = field(default="apache-2.0", metadata={"help": "License of the weights, for the model card."})

    def __post_init__(self):
        if not 0 < self.train_val_split < 1:
            raise ValueError(f"--train_val_split is between 0 and 1, got {self.train_val_split}.")
        for name in ("max_train_samples", "max_eval_samples"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"--{name} must be at least 1, got {getattr(self, name)}.")
        if self.image_size is not None and (len(self.image_size) > 2 or min(self.image_size) < 1):
            sizes = " ".join(map(str, self.image_size))
            raise ValueError(f"--image_size is one number of pixels, or height and width, got {sizes}.")
        if self.crop_pct is not None and not 0 < self.crop_pct <= 1:
            raise ValueError(f"--crop_pct is above 0 and at most 1, got {self.crop_pct}.")
        if len(self.crop_scale) != 2 or not 0 < self.crop_scale[0] <= self.crop_scale[1] <= 1:
            scale = " ".join(map(str, self.crop_scale))
            raise ValueError(f"--crop_scale takes two shares, the smaller first, such as 0.08 1, got {scale}.")
        for name in ("horizontal_flip", "switch_prob"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"--{name} is between 0 and 1, got {getattr(self, name)}.")
        if self.auto_augment not in (None, "imagenet", "cifar10", "svhn"):
            raise ValueError(f"--auto_augment is imagenet, cifar10 or svhn, got {self.auto_augment}.")
        for name in ("mixup_alpha", "cutmix_alpha"):
            if getattr(self, name) < 0:
                raise ValueError(f"--{name} cannot be negative, got {getattr(self, name)}.")

    def size(self) -> tuple[int, int] | None:
        """Height and width that were asked for."""
        return None if self.image_size is None else (self.image_size[0], self.image_size[-1])

    def augmentation(self) -> dict[str, object]:
        """What the model card says of it."""
        names = ("crop_scale", "horizontal_flip", "auto_augment", "mixup_alpha", "cutmix_alpha", "switch_prob")
        return {name: getattr(self, name) for name in names}

    def description(self, splits: Mapping[str, Sized], classes: int) -> str:
        """The data in words, for the model card: their name, and how many images there are."""
        paths = [self.train_dir or self.validation_dir, *(self.train_file or self.validation_file or [])]
        name = ", ".join(Path(path).name for path in paths if path)
        name = name or f"{self.dataset_name} {self.dataset_config_name or ''}".strip()
        sizes = {"train": "{:,} training images", "validation": "{:,} held out"}
        counted = ", ".join(sizes[split].format(len(images)) for split, images in splits.items())
        return f"{name}: {counted}; {classes} classes."

    def dataset_id(self) -> str | None:
        """The data's identifier on the Hub, if they are from there."""
        local = self.train_dir or self.validation_dir or self.train_file or self.validation_file
        return None if local else self.dataset_name


def parse_arguments(dataclass_types: tuple[type, ...], description: str, argv: list[str] | None = None) -> tuple:
    """
    One instance per dataclass, from a recipe and flags.

    Args:
        dataclass_types: As for `HfArgumentParser`.
        description: What the script does, for the top of `--help`.
        argv: The command line; `sys.argv[1:]` by default. If its first word is a .yaml or .json file, that is a
            recipe: a flat mapping from flags to values, over which the flags that follow win.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    if argv and argv[0].endswith(RECIPE_ENDINGS):
        argv = recipe_flags(argv[0]) + argv[1:]
    script = Path(sys.argv[0]).name
    parser = HfArgumentParser(
        dataclass_types,
        description=description,
        usage=f"{script} [recipe.yaml] [--flag value ...]",
        allow_abbrev=False,
        formatter_class=_HelpFormatter,
    )
    try:
        *arguments, unknown = parser.parse_args_into_dataclasses(argv, return_remaining_strings=True)
    except (ValueError, OSError) as error:
        # What a dataclass or TrainingArguments has to say of its values.
        raise InputError(str(error)) from error
    if unknown and unknown[0].endswith(RECIPE_ENDINGS):
        raise InputError(f"The recipe {unknown[0]} must come first, before all flags.")
    if unknown:
        known = [flag for action in parser._actions for flag in action.option_strings]
        close = difflib.get_close_matches(unknown[0], known, n=1)
        raise InputError(
            f"There is no flag {unknown[0]}" + (f"; did you mean {close[0]}?" if close else "; --help lists them all.")
        )
    return tuple(arguments)


class _HelpFormatter(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """The description as it is written, then each flag in its one usual spelling, with its default."""

    def __init__(self, prog: str):
        super().__init__(prog, max_help_position=32, width=110)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        # HfArgumentParser gives every flag a twin with dashes, and its choices may take ten lines.
        values = "VALUE ..." if action.nargs in ("+", "*") else "VALUE"
        return f"{action.option_strings[0]} {values}"

    def _get_help_string(self, action: argparse.Action) -> str:
        if action.default in (None, argparse.SUPPRESS):
            return action.help or ""
        return super()._get_help_string(action) or ""


def recipe_flags(path: str | Path) -> list[str]:
    """The command-line flags that a recipe stands for."""
    flags = []
    for name, value in read_recipe(Path(path)).items():
        values = value if isinstance(value, list) else [value]
        if value is not None:
            flags += [f"--{name}", *(json.dumps(v) if isinstance(v, dict) else str(v) for v in values)]
    return flags


def read_recipe(path: Path) -> dict[str, object]:
    """
    A recipe as a mapping from flags to values. Under `include` it may name other recipes, by paths relative to its
    own, which it builds on and whose values it overrides; null takes a value away.

    Raises:
        InputError: If a file is missing or is no flat mapping.
    """
    if not path.is_file():
        raise InputError(f"There is no recipe {path}.")
    try:
        recipe = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise InputError(f"The recipe {path} is no YAML: {error}") from error
    if not isinstance(recipe, dict):
        raise InputError(f"The recipe {path} must map flags to values, one a line, such as 'learning_rate: 1e-4'.")
    included = recipe.pop("include", [])
    merged: dict[str, object] = {}
    for other in [included] if isinstance(included, str) else included:
        merged |= read_recipe(path.parent / other)
    return merged | recipe
