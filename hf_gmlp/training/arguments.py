"""Command-line arguments of the run_*.py scripts, with the names of transformers' own examples."""

import argparse
import difflib
import math
import shlex
import sys
from collections.abc import Mapping, Sized
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import ClassVar

from transformers import HfArgumentParser, PreTrainedConfig, TrainingArguments

from ..data.files import Access
from ..data.questions import check_lengths
from ..errors import InputError
from .recipes import RECIPE_ENDINGS, command_line


@dataclass(frozen=True)
class Range:
    """What a flag's number may be: finite, from `least` (or `above` it) to `most` (or `below` it)."""

    least: float = -math.inf
    most: float = math.inf
    above: float = -math.inf
    below: float = math.inf

    def __contains__(self, value: float) -> bool:
        return math.isfinite(value) and self.least <= value <= self.most and self.above < value < self.below

    def __str__(self) -> str:
        words = {"at least": self.least, "above": self.above, "at most": self.most, "below": self.below}
        limits = [f"{word} {limit:.10g}" for word, limit in words.items() if math.isfinite(limit)]
        return "must be " + " and ".join(limits or ["finite"])


# By the names of the flags, those of transformers.TrainingArguments among them. Lists are checked number by number.
RANGES: dict[str, Range] = {
    name: allowed
    for allowed, names in {
        Range(): "null_score_diff_threshold",
        Range(least=-1): "max_steps",
        Range(
            least=0
        ): "learning_rate weight_decay adam_epsilon max_grad_norm neftune_noise_alpha warmup_steps eval_delay "
        "dataloader_num_workers doc_stride sweep_learning_rates mixup_alpha cutmix_alpha",
        Range(above=0): "spatial_lr_multiplier num_train_epochs logging_steps eval_steps save_steps",
        Range(
            least=1, most=2**31 - 1
        ): "per_device_train_batch_size per_device_eval_batch_size global_batch_size sweep_batch_sizes "
        "gradient_accumulation_steps eval_accumulation_steps torch_empty_cache_steps dataloader_prefetch_factor "
        "save_total_limit ddp_timeout preprocessing_num_workers max_train_samples max_eval_samples max_predict_samples "
        "max_tokenizer_samples vocab_size n_best_size max_answer_length image_size",
        Range(least=2): "block_size",
        Range(least=3): "max_seq_length",
        Range(least=0, most=2**32 - 1): "seed data_seed seeds shuffle_seed",
        Range(least=0, most=1): "horizontal_flip switch_prob",
        Range(least=0, below=1): "adam_beta1 adam_beta2 label_smoothing_factor",
        Range(above=0, most=1): "crop_pct crop_scale",
        Range(above=0, below=1): "mlm_probability train_val_split",
        Range(above=0, below=100): "validation_split_percentage",
    }.items()
    for name in names.split()
}


def check_ranges(arguments: object):
    """
    Raises:
        InputError: If a field of a dataclass of flags is out of its range.
    """
    for name in RANGES.keys() & {one.name for one in fields(arguments)}:
        value = getattr(arguments, name)
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, int | float) and number not in RANGES[name]:
                raise InputError(f"--{name} {RANGES[name]}, got {number}.")
    if getattr(arguments, "max_steps", None) == 0:
        raise InputError("--max_steps must be at least 1, or -1 to train by --num_train_epochs, got 0.")


def flag(help: str, default: object = None) -> object:
    """A field of a dataclass of flags, with what `--help` says of it."""
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata={"help": help})
    return field(default=default, metadata={"help": help})


@dataclass
class BaseModelArguments:
    """Which model to start from."""

    _argument_group_name: ClassVar[str] = "model"

    model_name_or_path: str | None = flag("Checkpoint to go on from: a folder or a name on the Hub.")
    config_name: str | None = flag(
        "Train from scratch with this config: a preset (hf-gmlp presets lists them), a folder or a name."
    )
    config_overrides: str | None = flag(
        "Changes to the config, such as num_hidden_layers=6,attention_size=64; of a checkpoint only what leaves "
        "the shapes of its weights as they are, such as hidden_dropout_prob=0.1."
    )
    cache_dir: str | None = flag("Where downloads are kept.")
    model_revision: str = flag("Branch, tag or commit of the checkpoint.", "main")
    token: str | None = flag("Token for private models and data on the Hub; that of `hf auth login` if none.")
    trust_remote_code: bool = flag("Run code that comes with a checkpoint; not needed for gMLPs.", False)
    attn_implementation: str | None = flag("Implementation of (tiny) attention: sdpa or eager.")

    def __post_init__(self):
        if (self.model_name_or_path is None) == (self.config_name is None):
            raise ValueError(
                "Say what to train: --config_name (a preset or config) for a new model, or --model_name_or_path for "
                "a checkpoint; one of the two."
            )

    def hub_options(self) -> dict[str, object]:
        """What every `from_pretrained` takes."""
        return {"cache_dir": self.cache_dir, "token": self.token, "trust_remote_code": self.trust_remote_code}


@dataclass
class ModelArguments(BaseModelArguments):
    """Which text model to start from, and with which tokenizer."""

    tokenizer_name: str | None = flag("Tokenizer, if it is not the checkpoint's: a folder or a name.")
    vocab_size: int = flag("Vocabulary of the tokenizer trained when none is given.", 32000)
    max_tokenizer_samples: int = flag("Train the tokenizer on at most this many texts, the first ones.", 1_000_000)


@dataclass
class NewClassifierArguments:
    """Whether a checkpoint may lose its classifier."""

    ignore_mismatched_sizes: bool = flag(
        "Give a checkpoint a new classifier if it was trained for other classes.",
        False,
    )


@dataclass
class SentenceModelArguments(NewClassifierArguments, ModelArguments):
    """Which sentence classifier to start from."""


@dataclass
class ImageModelArguments(NewClassifierArguments, BaseModelArguments):
    """Which image model to start from."""

    image_processor_name: str | None = flag("Image processor, if it is not the checkpoint's: a folder or a name.")


@dataclass
class RunArguments(TrainingArguments):
    """transformers' own arguments, and a batch size for any number of devices, and a way to start anew."""

    _argument_group_name: ClassVar[str] = "training (transformers.TrainingArguments)"

    global_batch_size: int | None = flag(
        "Samples per optimizer step over all devices; gradient accumulation follows from it, and the batch per "
        "device is lowered if it does not divide it."
    )
    spatial_lr_multiplier: float = flag(
        "Learning rate of positional weights (W of a gMLP; relative position biases, position embeddings) over that "
        "of all others. Adam moves a weight by about the learning rate a step, which in a short training is too little "
        "for them; the paper's recipes have 1.",
        1.0,
    )
    overwrite_output_dir: bool = flag(
        "Start anew: remove the checkpoints and results of an earlier run from --output_dir.",
        False,
    )

    def __post_init__(self):
        # Before Trainer's own rules, which divide by some of these.
        check_ranges(self)
        super().__post_init__()
        if self.ddp_find_unused_parameters is None:
            # Every parameter of every head takes part in its loss; looking for idle ones costs a walk of the graph.
            self.ddp_find_unused_parameters = False
        if self.global_batch_size is None:
            return
        devices = self.world_size * max(1, self.n_gpu)
        if self.global_batch_size % devices:
            raise ValueError(
                f"--global_batch_size {self.global_batch_size} is no multiple of the {devices} devices of this run."
            )
        share = self.global_batch_size // devices
        largest = min(share, self.per_device_train_batch_size)
        self.per_device_train_batch_size = next(size for size in range(largest, 0, -1) if share % size == 0)
        self.gradient_accumulation_steps = share // self.per_device_train_batch_size

    def __getstate__(self) -> dict[str, object]:
        # training_args.bin is pushed with the weights.
        return self.__dict__ | {"hub_token": None}


@dataclass
class DataArguments:
    """Which data to train on: what all scripts share."""

    _argument_group_name: ClassVar[str] = "data"

    dataset_name: str | None = flag("Data set on the Hub, such as allenai/c4.")
    dataset_config_name: str | None = flag("Its configuration, such as en.")
    train_file: list[str] | None = flag(
        "Training data of your own: txt, json(l), csv, tsv or parquet files of one kind, also packed as gz, bz2, xz."
    )
    validation_file: list[str] | None = flag("Validation data, likewise.")
    max_train_samples: int | None = flag("Maximum number of training samples.")
    max_eval_samples: int | None = flag("Maximum number of validation samples.")
    preprocessing_num_workers: int | None = flag("Processes that prepare the data.")
    overwrite_cache: bool = flag("Read and prepare the data again, though they are in the cache.", False)
    license: str | None = flag("License of the weights, such as apache-2.0, for the model card.")
    language: str | None = flag("Language of the data, such as en, likewise.")

    def card_facts(self, model_args: BaseModelArguments, description: str | None = None) -> dict[str, str | None]:
        """What the model card says of data and weights, by the names of `GMLPTrainer`'s arguments."""
        return {
            "dataset": description or self.data_name(),
            "dataset_id": self.dataset_id(),
            "base_model": model_args.model_name_or_path,
            "license": self.license,
            "language": self.language,
        }

    def files(self) -> dict[str, list[str]]:
        """The local files and folders by split: "train", "validation" and "test", those that were named."""
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
        return f"{self.dataset_name} {self.dataset_config_name or ''}".strip()

    def dataset_id(self) -> str | None:
        """The data's identifier on the Hub, if they are from there."""
        local = self.files() or Path(self.dataset_name or "").exists()
        return None if local else self.dataset_name


def data_access(model_args: BaseModelArguments, data_args: DataArguments, args: RunArguments) -> Access:
    """How the data of a run are had; only one process of a machine reads anew what the others then find."""
    return Access(model_args.cache_dir, model_args.token, data_args.overwrite_cache and args.local_process_index == 0)


@dataclass
class TextArguments(DataArguments):
    """Which text to train a language model on."""

    text_column: str = flag("The column with the text.", "text")
    separate_documents: bool = flag(
        "Documents that share a sequence do not see each other (gMLP and aMLP only).", False
    )
    validation_split_percentage: int = flag(
        "Share of the training documents held out if there are no validation data.",
        5,
    )
    streaming: bool = flag("Read the data as a stream: no download, no cache.", False)

    def texts(self) -> dict[str, object]:
        """Where the text is, by the names of `load_texts`."""
        names = ("dataset_name", "dataset_config_name", "text_column", "streaming", "validation_split_percentage")
        files = {"train_files": self.train_file, "validation_files": self.validation_file}
        return {name: getattr(self, name) for name in (*names, "max_eval_samples")} | files

    def description(self, train: object, validation: Sized | None, sequence_length: int) -> str:
        """The data in words, for the model card: its name and its size in sequences, if it is no stream."""
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
    """Which text to train on, and how it is masked."""

    max_seq_length: int | None = flag("Tokens per sequence; the model's n by default.")
    line_by_line: bool = flag("One sequence per line, truncated; packed without padding by default.", False)
    mlm_probability: float = flag("Share of the tokens that are to be predicted.", 0.15)
    whole_word_mask: bool = flag("Choose whole words, and let all of their tokens become [MASK].", False)

    def sequence_length(self, config: PreTrainedConfig) -> int:
        """
        Tokens per sequence: `max_seq_length`, or the model's n.

        Raises:
            InputError: If that is more than the model's n.
        """
        return _sequence_length("max_seq_length", self.max_seq_length, config)


@dataclass
class CLMArguments(TextArguments):
    """Which text to train a causal language model on, and in which blocks."""

    block_size: int | None = flag("Tokens per block; the model's n by default.")
    byte_level: bool = flag(
        "A token for every byte, and no tokenizer to train. A text file is then read as it is, with every byte of "
        "it, and is one document; without validation files its last part is held out.",
        False,
    )

    def sequence_length(self, config: PreTrainedConfig) -> int:
        """
        Tokens per block: `block_size`, or the model's n.

        Raises:
            InputError: If that is more than the model's n, or the model has none and there is no `block_size`.
        """
        return _sequence_length("block_size", self.block_size, config)


# Models of transformers whose positions begin behind the padding token's id.
COUNT_FROM_PADDING = ("roberta", "xlm-roberta", "xlm-roberta-xl", "roberta-prelayernorm", "camembert", "mpnet", "esm")


def _sequence_length(flag: str, length: int | None, config: PreTrainedConfig, default: int | None = None) -> int:
    longest = getattr(config, "max_position_embeddings", None)
    if longest is not None and config.model_type in COUNT_FROM_PADDING:
        longest -= config.pad_token_id + 1
    if length is None and longest is None and default is None:
        raise InputError(f"The model has no longest sequence: say by --{flag} how many tokens a sequence has.")
    if length is not None and length > (longest or math.inf):
        raise InputError(
            f"--{flag} {length} is above the model's n = {longest}. Lower it; give a new model a longer n by "
            f"--config_overrides max_position_embeddings={length}; or make a gMLP checkpoint longer by "
            f"model.resize_position_embeddings({length}) and save that."
        )
    return length or min(default or math.inf, longest or math.inf)


@dataclass
class SeriesArguments(DataArguments):
    """Data that one call may train on several times."""

    packing: bool = flag(
        "Train without padding: the samples of a batch share one row and do not see each other (gMLP and aMLP only).",
        False,
    )
    seeds: list[int] | None = flag("Train once with each of these seeds, and report median and spread.")
    sweep_batch_sizes: list[int] | None = flag("Train with each of these global batch sizes, and report the best.")
    sweep_learning_rates: list[float] | None = flag("Train with each of these learning rates, and report the best.")

    def __post_init__(self):
        for name in ("seeds", "sweep_batch_sizes", "sweep_learning_rates"):
            values = getattr(self, name) or []
            if len(set(values)) < len(values):
                raise ValueError(f"--{name} names a value twice: {', '.join(map(str, values))}.")


@dataclass
class GlueArguments(SeriesArguments):
    """Which sentences to classify, and how many runs to make."""

    task_name: str | None = flag("A task of GLUE: cola, mnli, mrpc, qnli, qqp, rte, sst2, stsb or wnli.")
    validation_file: list[str] | None = flag(
        "Validation data, likewise; of MNLI first the matched, then the mismatched."
    )
    test_file: list[str] | None = flag("Data to predict, likewise; of MNLI matched, mismatched, AX.")
    train_split_name: str | None = flag("Split of the data set to train on.")
    validation_split_name: str | None = flag("Split to evaluate on.")
    test_split_name: str | None = flag("Split to predict.")
    text_column_names: list[str] | None = flag(
        "The column of the sentence or the two of a pair, if they are not named as in a task of GLUE; or any "
        "number of columns, to be joined by --text_column_delimiter."
    )
    text_column_delimiter: str | None = flag("Join the text columns into one sentence, with this between them.")
    label_column_name: str = flag("The column of the label, or of the labels.", "label")
    do_regression: bool = flag("Labels are numbers to be predicted; by default, if they have fractions.")
    metric_name: str | None = flag(
        "Metric to report, and to compare runs by: accuracy, f1, matthews_correlation, spearman or pearson; by "
        "default the task's own."
    )
    shuffle_train_dataset: bool = flag(
        "Shuffle the training rows before --max_train_samples takes the first ones.",
        False,
    )
    shuffle_seed: int = flag("Seed of that shuffling.", 42)
    max_seq_length: int | None = flag("Tokens per sentence or pair; 128 by default, or the model's n if that is less.")
    pad_to_max_length: bool = flag("Pad to --max_seq_length; by default, to the longest sequence of a batch.", False)
    max_predict_samples: int | None = flag("Maximum number of rows to predict.")

    def __post_init__(self):
        super().__post_init__()
        if self.packing and self.pad_to_max_length:
            raise ValueError("--packing leaves no padding: give it or --pad_to_max_length, and not both.")
        names = self.text_column_names or []
        if len(names) > 2 and self.text_column_delimiter is None:
            raise ValueError(
                f"--text_column_names takes one or two columns, got {', '.join(names)}; more are joined by "
                f"--text_column_delimiter."
            )
        # [CLS] A [SEP] B [SEP] with a token for each sentence.
        if self.max_seq_length is not None and self.max_seq_length < 5:
            raise ValueError(f"--max_seq_length counts [CLS] and [SEP] and must be above 4, got {self.max_seq_length}.")
        if self.shuffle_seed != GlueArguments.shuffle_seed and not self.shuffle_train_dataset:
            raise ValueError("--shuffle_seed is the seed of --shuffle_train_dataset: give that too.")

    def sequence_length(self, config: PreTrainedConfig) -> int:
        """
        Tokens per sequence: `max_seq_length`, or 128, or the model's n if that is less.

        Raises:
            InputError: If `max_seq_length` is more than the model's n.
        """
        return _sequence_length("max_seq_length", self.max_seq_length, config, default=128)

    def data_name(self) -> str:
        task = "" if self.task_name is None else f" ({self.task_name})" if self.files() else f"GLUE {self.task_name}"
        known = self.files() or self.dataset_name is not None
        return f"{super().data_name()}{task}" if known else task

    def dataset_id(self) -> str | None:
        named = self.files() or self.dataset_name is not None
        return super().dataset_id() if named else "nyu-mll/glue"


@dataclass
class QAArguments(SeriesArguments):
    """Which questions to answer, and how answers are found."""

    train_file: list[str] | None = flag(
        "Questions to train on: JSON as SQuAD is published, flat, or JSON lines, each also as gz."
    )
    validation_file: list[str] | None = flag("Questions to evaluate on, likewise.")
    test_file: list[str] | None = flag("Questions to answer, likewise.")
    version_2_with_negative: bool = flag("Some questions have no answer, as in SQuAD v2.0.", False)
    null_score_diff_threshold: float = flag("Say that there is no answer if that scores higher by more than this.", 0.0)
    max_seq_length: int | None = flag("Tokens of question and context together; the model's n by default.")
    doc_stride: int | None = flag(
        "Tokens of overlap between the windows of a longer context; 128 by default, or a third of max_seq_length "
        "if that is less."
    )
    pad_to_max_length: bool = flag(
        "Pad to --max_seq_length; by default to the longest sequence of a batch, unless the model sees its "
        "padding (mask_padding=false).",
        False,
    )
    n_best_size: int = flag("Answers kept per question in nbest_predictions.json.", 20)
    max_answer_length: int = flag("Tokens of an answer at most.", 30)
    max_predict_samples: int | None = flag("Maximum number of questions to answer.")

    def window_lengths(self, config: PreTrainedConfig) -> dict[str, int]:
        """
        "max_seq_length" and "doc_stride" of the windows.

        Raises:
            InputError: If `max_seq_length` is more than the model's n, or one does not go with the other.
        """
        longest = getattr(config, "max_position_embeddings", None) or 512
        max_seq_length = _sequence_length("max_seq_length", self.max_seq_length, config, default=longest)
        doc_stride = min(128, max_seq_length // 3) if self.doc_stride is None else self.doc_stride
        check_lengths(max_seq_length, doc_stride)
        return {"max_seq_length": max_seq_length, "doc_stride": doc_stride}


@dataclass
class ImageArguments(DataArguments):
    """Which images to train on, and how they are augmented."""

    train_dir: str | None = flag("Training images: a folder, or a zip file, with a folder for every class.")
    validation_dir: str | None = flag("Validation images, likewise.")
    train_file: list[str] | None = flag("Training images in parquet files, or csv or json files with their paths.")
    train_val_split: float = flag("Share of the training images held out if there are no validation data.", 0.15)
    image_column_name: str = flag("The column of the image.", "image")
    label_column_name: str = flag("The column of its class.", "label")
    skip_bad_images: bool = flag("Leave out, and count, the images that cannot be used; else they end the run.", False)
    image_size: list[int] | None = flag(
        "Pixels, as one number or height and width; by default the model's. A gMLP checkpoint of another size is "
        "resized."
    )
    crop_pct: float | None = flag(
        "Share of the shorter side that evaluation keeps; 0.875 if no image processor says more."
    )
    crop_scale: list[float] = flag(
        "Smallest and largest area of the random crop in training, as shares of the image.",
        [0.08, 1.0],
    )
    horizontal_flip: float = flag("Probability that left and right change places.", 0.5)
    auto_augment: str | None = flag("AutoAugment's policy for imagenet, cifar10 or svhn; none by default.")
    mixup_alpha: float = flag("Mixup's alpha; 0 is none.", 0.0)
    cutmix_alpha: float = flag("CutMix's alpha; 0 is none.", 0.0)
    switch_prob: float = flag("Probability of CutMix, where Mixup is on too.", 0.5)

    def __post_init__(self):
        if self.image_size is not None and len(self.image_size) > 2:
            sizes = " ".join(map(str, self.image_size))
            raise ValueError(f"--image_size is one number of pixels, or height and width, got {sizes}.")
        if len(self.crop_scale) != 2 or self.crop_scale[0] > self.crop_scale[1]:
            scale = " ".join(map(str, self.crop_scale))
            raise ValueError(f"--crop_scale takes two shares, the smaller first, such as 0.08 1, got {scale}.")
        if self.auto_augment not in (None, "imagenet", "cifar10", "svhn"):
            raise ValueError(f"--auto_augment is imagenet, cifar10 or svhn, got {self.auto_augment}.")

    def size(self) -> tuple[int, int] | None:
        """Height and width that were asked for."""
        return None if self.image_size is None else (self.image_size[0], self.image_size[-1])

    def augmentation(self) -> dict[str, object]:
        """What the model card says of it."""
        names = ("crop_scale", "horizontal_flip", "auto_augment", "mixup_alpha", "cutmix_alpha", "switch_prob")
        return {name: getattr(self, name) for name in names}

    def description(self, splits: Mapping[str, Sized], classes: int) -> str:
        """The data in words, for the model card: their name, and how many images there are."""
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
    One instance per dataclass, from recipes and flags.

    Args:
        dataclass_types: As for `HfArgumentParser`.
        description: What the script does, for the top of `--help`.
        argv: The command line; `sys.argv[1:]` by default. Its first words may be recipes, .yaml or .json files: the
            later wins over the earlier, and the flags that follow over all of them.

    Raises:
        InputError: If a recipe cannot be read, there is no such flag, or a value is out of its range.
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
        # What a dataclass or TrainingArguments has to say of its values, and what the libraries below it raise.
        raise InputError(str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}") from error
    if unknown and unknown[0].endswith(RECIPE_ENDINGS):
        raise InputError(f"The recipe {unknown[0]} must come first, before all flags.")
    if unknown:
        flag, known = unknown[0].partition("=")[0], [one for action in parser._actions for one in action.option_strings]
        close = difflib.get_close_matches(flag, known, n=1)
        raise InputError(
            f"There is no flag {flag}" + (f"; did you mean {close[0]}?" if close else "; --help lists them all.")
        )
    for one in arguments:
        check_ranges(one)
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
