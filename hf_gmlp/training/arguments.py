"""Command-line arguments of the training scripts, named as in transformers' own examples."""

import argparse
import difflib
import math
import shlex
import sys
from collections.abc import Callable, Mapping, Sized
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import ClassVar

from transformers import HfArgumentParser, PreTrainedConfig, TrainingArguments

from ..data.files import Access
from ..data.questions import check_lengths
from ..errors import InputError
from .recipes import RECIPE_ENDINGS, command_line

# What a number must be, besides finite, and the flags that take such a number or a list of them.
_RULES: tuple[tuple[str, Callable[[float], bool], str], ...] = (
    ("finite", lambda x: True, "null_score_diff_threshold"),
    ("at least 1, or -1 to train for --num_train_epochs", lambda x: x >= 1 or x == -1, "max_steps"),
    (
        "at least 0",
        lambda x: x >= 0,
        "learning_rate weight_decay adam_epsilon max_grad_norm neftune_noise_alpha warmup_steps eval_delay "
        "dataloader_num_workers doc_stride sweep_learning_rates mixup_alpha cutmix_alpha",
    ),
    ("above 0", lambda x: x > 0, "spatial_lr_multiplier num_train_epochs logging_steps eval_steps save_steps"),
    (
        "at least 1 and at most 2147483647",
        lambda x: 1 <= x < 2**31,
        "per_device_train_batch_size per_device_eval_batch_size global_batch_size sweep_batch_sizes "
        "gradient_accumulation_steps eval_accumulation_steps torch_empty_cache_steps dataloader_prefetch_factor "
        "save_total_limit ddp_timeout preprocessing_num_workers max_train_samples max_eval_samples max_predict_samples "
        "max_tokenizer_samples vocab_size n_best_size max_answer_length image_size",
    ),
    ("at least 2", lambda x: x >= 2, "block_size"),
    ("at least 3", lambda x: x >= 3, "max_seq_length"),
    ("at least 0 and at most 4294967295", lambda x: 0 <= x < 2**32, "seed data_seed seeds shuffle_seed"),
    ("at least 0 and at most 1", lambda x: 0 <= x <= 1, "horizontal_flip switch_prob"),
    ("at least 0 and below 1", lambda x: 0 <= x < 1, "adam_beta1 adam_beta2 label_smoothing_factor"),
    ("above 0 and at most 1", lambda x: 0 < x <= 1, "crop_pct crop_scale"),
    ("above 0 and below 1", lambda x: 0 < x < 1, "mlm_probability train_val_split"),
    ("above 0 and below 100", lambda x: 0 < x < 100, "validation_split_percentage"),
)
RANGES = {name: (words, allows) for words, allows, names in _RULES for name in names.split()}

# Models of transformers that count positions from behind the padding token's id.
COUNT_FROM_PADDING = ("roberta", "xlm-roberta", "xlm-roberta-xl", "roberta-prelayernorm", "camembert", "mpnet", "esm")


def check_ranges(arguments: object):
    """Raises InputError if a field of a dataclass of flags is out of its range."""
    for name in RANGES.keys() & {one.name for one in fields(arguments)}:
        value, (words, allows) = getattr(arguments, name), RANGES[name]
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, int | float) and not (math.isfinite(number) and allows(number)):
                raise InputError(f"--{name} must be {words}, got {number}.")


def flag(help: str, default: object = None) -> object:
    """A field of a dataclass of flags, with its text for `--help`."""
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata={"help": help})
    return field(default=default, metadata={"help": help})


@dataclass
class BaseModelArguments:
    """The model to start from."""

    _argument_group_name: ClassVar[str] = "model"

    model_name_or_path: str | None = flag("Checkpoint to start from: a folder or a name on the Hub.")
    config_name: str | None = flag("New model's config: a preset (see hf-gmlp presets), a folder or a name on the Hub.")
    config_overrides: str | None = flag(
        "Changes to the config, such as num_hidden_layers=6,attention_size=64. The weights of a checkpoint "
        "must keep their shapes: change only values such as hidden_dropout_prob=0.1."
    )
    cache_dir: str | None = flag("Folder for downloads and prepared data.")
    model_revision: str = flag("Branch, tag or commit of the checkpoint.", "main")
    token: str | None = flag("Token for private models and data on the Hub; by default, that of `hf auth login`.")
    trust_remote_code: bool = flag("Run code that comes with a checkpoint. gMLPs do not need it.", False)
    attn_implementation: str | None = flag("Implementation of (tiny) attention: sdpa or eager.")

    def __post_init__(self):
        if (self.model_name_or_path is None) == (self.config_name is None):
            raise ValueError("Give either --config_name (for a new model) or --model_name_or_path (a checkpoint).")

    def hub_options(self) -> dict[str, object]:
        """Options of every `from_pretrained`."""
        return {"cache_dir": self.cache_dir, "token": self.token, "trust_remote_code": self.trust_remote_code}


@dataclass
class ModelArguments(BaseModelArguments):
    """The text model to start from, and its tokenizer."""

    tokenizer_name: str | None = flag("Tokenizer to use instead of the checkpoint's or a newly trained one.")
    vocab_size: int = flag("Vocabulary size of a new tokenizer.", 32000)
    lowercase: bool = flag("Lowercase the text of a new tokenizer, as in bert-base-uncased.", False)
    max_tokenizer_samples: int = flag("Maximum number of texts to train a tokenizer on.", 1_000_000)


# For sentences and for images.
_NEW_CLASSIFIER = "Give the checkpoint a new classifier if it was trained for other classes."


@dataclass
class SentenceModelArguments(ModelArguments):
    """The sentence classifier to start from."""

    ignore_mismatched_sizes: bool = flag(_NEW_CLASSIFIER, False)


@dataclass
class ImageModelArguments(BaseModelArguments):
    """The image classifier to start from."""

    image_processor_name: str | None = flag("Image processor to use instead of the checkpoint's.")
    ignore_mismatched_sizes: bool = flag(_NEW_CLASSIFIER, False)


@dataclass
class RunArguments(TrainingArguments):
    """transformers' own arguments, and four more."""

    _argument_group_name: ClassVar[str] = "training (transformers.TrainingArguments)"

    global_batch_size: int | None = flag(
        "Samples per optimizer step over all devices. Sets --gradient_accumulation_steps, and lowers "
        "--per_device_train_batch_size where it does not divide the batch."
    )
    spatial_lr_multiplier: float = flag(
        "Factor for the learning rate of positional weights (W of a gMLP, relative position biases, position "
        "embeddings). Raise it for short runs, in which Adam's small steps cannot move these weights far enough; the "
        "paper's recipes use 1.",
        1.0,
    )
    selective_checkpointing: bool = flag(
        "Keep only the results of matrix products for the backward pass, and recompute the rest: about half the memory "
        "for activations, in nearly the same time.",
        False,
    )
    overwrite_output_dir: bool = flag("Delete an earlier run from --output_dir, and start over.", False)

    def __post_init__(self):
        # Before transformers' own checks, which divide by some of these.
        check_ranges(self)
        super().__post_init__()
        if self.selective_checkpointing and self.gradient_checkpointing:
            raise ValueError(
                "--selective_checkpointing and --gradient_checkpointing (or --activation_checkpointing) cannot be "
                "combined: leave one of them out."
            )
        if self.ddp_find_unused_parameters is None:
            # The loss of a head uses every parameter; searching the graph for unused ones takes time.
            self.ddp_find_unused_parameters = False
        if self.global_batch_size is None:
            return
        whole, devices = self.global_batch_size, self.world_size * max(1, self.n_gpu)
        if whole % devices:
            raise ValueError(f"--global_batch_size {whole} is not a multiple of the {devices} devices of this run.")
        share = whole // devices
        largest = min(share, self.per_device_train_batch_size)
        self.per_device_train_batch_size = next(size for size in range(largest, 0, -1) if share % size == 0)
        self.gradient_accumulation_steps = share // self.per_device_train_batch_size

    def __getstate__(self) -> dict[str, object]:
        # training_args.bin is pushed with the weights.
        return self.__dict__ | {"hub_token": None}


@dataclass
class DataArguments:
    """The data to train on: flags of all scripts."""

    _argument_group_name: ClassVar[str] = "data"

    dataset_name: str | None = flag("Data set on the Hub, such as allenai/c4.")
    dataset_config_name: str | None = flag("Configuration of that data set, such as en.")
    train_file: list[str] | None = flag(
        "Training files, all of one kind: txt, json, jsonl, csv, tsv or parquet. They may be compressed (gz, bz2, xz). "
        "Files replace the data set of a recipe."
    )
    validation_file: list[str] | None = flag("Validation files, of the same kinds.")
    max_train_samples: int | None = flag("Maximum number of training samples (the first ones).")
    max_eval_samples: int | None = flag("Maximum number of validation samples (the first ones).")
    preprocessing_num_workers: int | None = flag("Number of processes that prepare the data.")
    overwrite_cache: bool = flag("Prepare the data again instead of taking them from the cache.", False)
    license: str | None = flag("License of the weights for the model card, such as apache-2.0.")
    language: str | None = flag("Language of the data for the model card, such as en.")

    def __post_init__(self):
        names = (
            "dataset_name",
            *(f"{split}_{kind}" for kind in ("file", "dir") for split in ("train", "validation", "test")),
        )
        named = [name for name in names if getattr(self, name, None)]
        if len({name.rpartition("_")[2] for name in named}) > 1:
            flags = " and ".join(f"--{name}" for name in (named[0], named[-1]))
            raise ValueError(f"{flags} both name the data: leave one of them out.")

    def card_facts(self, model_args: BaseModelArguments, description: str | None = None) -> dict[str, str | None]:
        """What the model card says about data and weights; of a checkpoint, only its name on the Hub."""
        start = model_args.model_name_or_path
        return {
            "dataset": description or self.data_name(),
            "dataset_id": self.dataset_id(),
            "base_model": None if start is None or Path(start).exists() else start,
            "license": self.license,
            "language": self.language,
        }

    def files(self) -> dict[str, list[str]]:
        """The local files and folders that were named, by split: "train", "validation", "test"."""
        named = {}
        for split in ("train", "validation", "test"):
            folder = getattr(self, f"{split}_dir", None)
            paths = getattr(self, f"{split}_file", None) or ([folder] if folder else [])
            named |= {split: paths} if paths else {}
        return named

    def data_name(self) -> str:
        """The data in words, for the model card: the names of the first files, else of the data set."""
        for paths in self.files().values():
            return ", ".join(Path(path).name for path in paths)
        return f"{self.dataset_name or ''} {self.dataset_config_name or ''}".strip()

    def dataset_id(self) -> str | None:
        """The data's name on the Hub; None for local data."""
        return None if Path(self.dataset_name or "").exists() else self.dataset_name

    def sequence_length(self, config: PreTrainedConfig, default: float = math.inf) -> int:
        """--max_seq_length or --block_size (InputError if above the model's n), else the model's n or `default`."""
        flag = "block_size" if hasattr(self, "block_size") else "max_seq_length"
        length, longest = getattr(self, flag), getattr(config, "max_position_embeddings", None) or math.inf
        if config.model_type in COUNT_FROM_PADDING:
            longest -= config.pad_token_id + 1
        if length is not None and length > longest:
            raise InputError(
                f"--{flag} {length} is above the model's n = {longest}. Lower it; give a new model a longer n with "
                f"--config_overrides max_position_embeddings={length}; or lengthen a gMLP checkpoint with "
                f"model.resize_position_embeddings({length}) and save it."
            )
        length = length or min(longest, default)
        if length == math.inf:
            raise InputError(f"The model has no maximum length: set the tokens per sequence with --{flag}.")
        return length


def data_access(model_args: BaseModelArguments, data_args: DataArguments, args: RunArguments) -> Access:
    """How a run gets its data: one process per machine fills the cache, and the others read it."""
    return Access(model_args.cache_dir, model_args.token, data_args.overwrite_cache and args.local_process_index == 0)


@dataclass
class TextArguments(DataArguments):
    """The text to train a language model on."""

    text_column: str = flag("Name of the text column.", "text")
    separate_documents: bool = flag("Hide the documents in one sequence from each other (gMLP and aMLP only).", False)
    validation_split_percentage: int = flag("Percentage of documents to hold out if there are no validation data.", 5)
    streaming: bool = flag("Stream the data set instead of downloading it.", False)

    def description(self, train: object, validation: Sized | None, sequence_length: int) -> str:
        """The data in words, for the model card: name and number of sequences, if known."""
        sizes = []
        up_to = "up to " if getattr(self, "line_by_line", False) else ""
        if train is not None:
            size = f"{len(train):,}" if isinstance(train, Sized) else "a stream of"
            sizes.append(f"{size} training sequences of {up_to}{sequence_length} tokens")
        if validation is not None:
            sizes.append(f"{len(validation):,} held out")
        return f"{self.data_name()}: {', '.join(sizes)}."


@dataclass
class MLMArguments(TextArguments):
    """The text to train on, and how it is masked."""

    max_seq_length: int | None = flag("Tokens per sequence; by default, the model's n.")
    line_by_line: bool = flag("Make each line a sequence, truncated, instead of packing lines without padding.", False)
    mlm_probability: float = flag("Share of tokens to predict.", 0.15)
    whole_word_mask: bool = flag("Select whole words, and replace all of their tokens with [MASK].", False)


@dataclass
class CLMArguments(TextArguments):
    """The text to train a causal language model on."""

    block_size: int | None = flag("Tokens per block; by default, the model's n.")
    byte_level: bool = flag(
        "Make each byte a token. Text files are read unchanged; without validation files, their end is held out.", False
    )


@dataclass
class SeriesArguments(DataArguments):
    """Data that one command may train on several times."""

    packing: bool = flag("Train on one unpadded row per batch, whose samples do not mix (gMLP and aMLP only).", False)
    max_predict_samples: int | None = flag("Maximum number of samples to predict (the first ones).")
    seeds: list[int] | None = flag("Train once with each of these seeds, and report the median and the spread.")
    sweep_batch_sizes: list[int] | None = flag("Train with each of these global batch sizes, and report the best.")
    sweep_learning_rates: list[float] | None = flag("Train with each of these learning rates, and report the best.")

    def __post_init__(self):
        super().__post_init__()
        for name in ("seeds", "sweep_batch_sizes", "sweep_learning_rates"):
            values = getattr(self, name) or []
            if len(set(values)) < len(values):
                raise ValueError(f"--{name} names a value twice: {', '.join(map(str, values))}.")

    def is_series(self) -> bool:
        """Whether several runs were asked for."""
        return any((self.seeds, self.sweep_batch_sizes, self.sweep_learning_rates))

    def max_samples(self) -> dict[str, int | None]:
        """The maximum number of rows of each split."""
        limits = (self.max_train_samples, self.max_eval_samples, self.max_predict_samples)
        return dict(zip(("train", "validation", "test"), limits))


@dataclass
class GlueArguments(SeriesArguments):
    """The sentences to classify, and the runs to make."""

    task_name: str | None = flag("GLUE task: cola, mnli, mrpc, qnli, qqp, rte, sst2, stsb or wnli.")
    validation_file: list[str] | None = flag("Validation files; for MNLI, the matched one first.")
    test_file: list[str] | None = flag("Files to predict labels for; for MNLI, matched, mismatched, AX.")
    train_split_name: str | None = flag("Split of the data set to train on.")
    validation_split_name: str | None = flag("Split of the data set to evaluate on.")
    test_split_name: str | None = flag("Split of the data set to predict labels for.")
    text_column_names: list[str] | None = flag("Text column, or the two of a pair; by default, named as in GLUE.")
    text_column_delimiter: str | None = flag("Join any number of text columns, with this between them.")
    label_column_name: str = flag("Column of the label or labels.", "label")
    do_regression: bool = flag("Predict numbers; by default, only if the labels have fractions.")
    metric_name: str | None = flag("Metric to compare runs: accuracy, f1, matthews_correlation, spearman or pearson.")
    shuffle_train_dataset: bool = flag("Shuffle the training rows before --max_train_samples is applied.", False)
    shuffle_seed: int = flag("Seed for --shuffle_train_dataset.", 42)
    max_seq_length: int | None = flag("Tokens per sentence or pair; by default 128, or the model's n if smaller.")
    pad_to_max_length: bool = flag("Pad to --max_seq_length instead of the longest sequence of the batch.", False)

    def __post_init__(self):
        super().__post_init__()
        if self.packing and self.pad_to_max_length:
            raise ValueError("--packing leaves no padding: give either --packing or --pad_to_max_length.")
        if len(self.text_column_names or ()) > 2 and self.text_column_delimiter is None:
            raise ValueError(
                "--text_column_names takes one or two columns; to join more, give --text_column_delimiter."
            )
        # [CLS] A [SEP] B [SEP], with one token per sentence.
        if self.max_seq_length is not None and self.max_seq_length < 5:
            raise ValueError(f"--max_seq_length counts [CLS] and [SEP] and must be above 4, got {self.max_seq_length}.")
        if self.shuffle_seed != GlueArguments.shuffle_seed and not self.shuffle_train_dataset:
            raise ValueError("--shuffle_seed is the seed of --shuffle_train_dataset: give that too.")

    def sequence_length(self, config: PreTrainedConfig, default: float = 128) -> int:
        return super().sequence_length(config, default)

    def data_name(self) -> str:
        task = "" if self.task_name is None else f" ({self.task_name})" if self.files() else f"GLUE {self.task_name}"
        known = self.files() or self.dataset_name is not None
        return f"{super().data_name()}{task}" if known else task

    def dataset_id(self) -> str | None:
        named = self.files() or self.dataset_name is not None
        return super().dataset_id() if named else "nyu-mll/glue"


@dataclass
class QAArguments(SeriesArguments):
    """The questions to answer, and how answers are found."""

    train_file: list[str] | None = flag("Questions to train on: JSON (as SQuAD's, or flat) or JSON lines; also .gz.")
    validation_file: list[str] | None = flag("Questions to evaluate on, in the same formats.")
    test_file: list[str] | None = flag("Questions to answer, in the same formats.")
    version_2_with_negative: bool = flag("Allow questions without an answer, as in SQuAD v2.0.", False)
    null_score_diff_threshold: float = flag(
        'Answer "" if the score of no answer exceeds that of the best answer by more than this.', 0.0
    )
    max_seq_length: int | None = flag("Tokens of a question and a window of context; by default, the model's n.")
    doc_stride: int | None = flag("Overlap of windows in tokens; by default 128, or max_seq_length / 3 if smaller.")
    pad_to_max_length: bool = flag(
        "Pad to --max_seq_length instead of the longest sequence; always on for mask_padding=false.", False
    )
    n_best_size: int = flag("Number of answers per question in nbest_predictions.json.", 20)
    max_answer_length: int = flag("Maximum number of tokens of an answer.", 30)

    def window_lengths(self, config: PreTrainedConfig) -> dict[str, int]:
        """The windows' "max_seq_length" and "doc_stride"; raises InputError if they do not fit together."""
        has_n = getattr(config, "max_position_embeddings", None) is not None
        max_seq_length = self.sequence_length(config, default=math.inf if has_n else 512)
        doc_stride = min(128, max_seq_length // 3) if self.doc_stride is None else self.doc_stride
        check_lengths(max_seq_length, doc_stride)
        return {"max_seq_length": max_seq_length, "doc_stride": doc_stride}


@dataclass
class ImageArguments(DataArguments):
    """The images to train on, and how they are augmented."""

    train_dir: str | None = flag("Training images: a folder, or a zip file, with a folder for each class.")
    validation_dir: str | None = flag("Validation images, in the same form.")
    train_file: list[str] | None = flag("Training images: parquet files, or csv or json files with paths of images.")
    max_train_samples: int | None = flag("Maximum number of training images (random sample).")
    max_eval_samples: int | None = flag("Maximum number of validation images (random sample).")
    train_val_split: float = flag("Share of the training images to hold out if there are no validation data.", 0.15)
    image_column_name: str = flag("Column of the image.", "image")
    label_column_name: str = flag("Column of the class.", "label")
    image_size: list[int] | None = flag("Pixels: one number, or height and width. A gMLP checkpoint is resized.")
    crop_pct: float | None = flag("Share of the shorter side kept in evaluation; default: the processor's, or 0.875.")
    crop_scale: list[float] = flag("Range of the area of random crops, as shares of the image.", [0.08, 1.0])
    horizontal_flip: float = flag("Probability of flipping an image from left to right.", 0.5)
    auto_augment: str | None = flag("AutoAugment policy: imagenet, cifar10 or svhn.")
    mixup_alpha: float = flag("Alpha of Mixup; 0 turns it off.", 0.0)
    cutmix_alpha: float = flag("Alpha of CutMix; 0 turns it off.", 0.0)
    switch_prob: float = flag("Probability of CutMix where Mixup is on too.", 0.5)

    def __post_init__(self):
        super().__post_init__()
        if self.image_size is not None and len(self.image_size) > 2:
            sizes = " ".join(map(str, self.image_size))
            raise ValueError(f"--image_size takes one number of pixels, or height and width, got {sizes}.")
        if len(self.crop_scale) != 2 or self.crop_scale[0] > self.crop_scale[1]:
            scale = " ".join(map(str, self.crop_scale))
            raise ValueError(f"--crop_scale takes two shares, the smaller first, such as 0.08 1, got {scale}.")
        if self.auto_augment not in (None, "imagenet", "cifar10", "svhn"):
            raise ValueError(f"--auto_augment must be imagenet, cifar10 or svhn, got {self.auto_augment}.")

    def size(self) -> tuple[int, int] | None:
        """Height and width that were asked for."""
        return None if self.image_size is None else (self.image_size[0], self.image_size[-1])

    def augmentation(self) -> dict[str, object]:
        """The augmentation, for the model card."""
        names = ("crop_scale", "horizontal_flip", "auto_augment", "mixup_alpha", "cutmix_alpha", "switch_prob")
        return {name: getattr(self, name) for name in names}

    def description(self, splits: Mapping[str, Sized], classes: int) -> str:
        """The data in words, for the model card: their name and the number of images."""
        sizes = {"train": "{:,} training images", "validation": "{:,} held out"}
        counted = ", ".join(sizes[split].format(len(images)) for split, images in splits.items())
        return f"{self.data_name()}: {counted}; {classes} classes."


def program(name: str) -> str:
    """The command that starts a script, by its `sys.argv[0]`: a file, or what `hf-gmlp run` puts there."""
    path = Path(name)
    if path.parent.name == "scripts":
        return f"python -m hf_gmlp.scripts.{path.stem}"
    return name if name.startswith("hf-gmlp ") else shlex.join(["python", path.name])


def parse_arguments(dataclass_types: tuple[type, ...], description: str, argv: list[str] | None = None) -> tuple:
    """
    Returns one instance per dataclass, from recipes and flags.

    Args:
        description: What the script does, for the top of `--help`.
        argv: The command line, `sys.argv[1:]` by default. It may begin with recipes (.yaml or .json files): later
            recipes override earlier ones, and flags override all of them.

    Raises:
        InputError: If a recipe cannot be read, a flag is unknown, or a value is out of range.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    for word in argv:
        # The model card quotes the command, and the libraries take no other paths.
        if not word.isascii() and "\\udc" in ascii(word):
            raise InputError(f"{word!a} is not UTF-8: rename the file or the folder.")
    argv = command_line(argv)
    parser = HfArgumentParser(
        dataclass_types,
        description=description,
        usage=f"{program(sys.argv[0])} [recipe.yaml ...] [--flag value ...]",
        allow_abbrev=False,
        formatter_class=_HelpFormatter,
    )
    try:
        *arguments, unknown = parser.parse_args_into_dataclasses(argv, return_remaining_strings=True)
    except InputError:
        raise
    except Exception as error:
        # Raised by a dataclass, by TrainingArguments, or by the libraries below it.
        raise InputError(str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}") from error
    if unknown and unknown[0].endswith(RECIPE_ENDINGS):
        raise InputError(f"The recipe {unknown[0]} must come before all flags.")
    if unknown:
        flag, known = unknown[0].partition("=")[0], [name for one in parser._actions for name in one.option_strings]
        close = difflib.get_close_matches(flag, known, n=1)
        advice = f"; did you mean {close[0]}?" if close else "; --help lists all flags."
        raise InputError(f"There is no flag {flag}{advice}")
    for one in arguments:
        check_ranges(one)
    return tuple(arguments)


class _HelpFormatter(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """Leaves the description as it is, and shows each flag in one spelling, with its default."""

    def __init__(self, prog: str):
        super().__init__(prog, max_help_position=32, width=110)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        # HfArgumentParser adds a spelling with dashes to every flag, and choices may fill ten lines.
        values = {"+": "VALUE ...", "*": "VALUE ...", "?": "[true|false]"}.get(action.nargs, "VALUE")
        return f"{action.option_strings[0]} {values}"

    def _get_help_string(self, action: argparse.Action) -> str:
        if action.default in (None, argparse.SUPPRESS):
            return action.help or ""
        return super()._get_help_string(action) or ""
