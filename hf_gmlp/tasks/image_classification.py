"""Train or fine-tune a gMLP (or any AutoModelForImageClassification) on images. For example:

    hf-gmlp run image_classification --config_name gmlp-ti16-224 --train_dir photos --do_train --output_dir out
    hf-gmlp run image_classification paper/recipes/table2/gmlp-s16-224.yaml --output_dir out

Here, `photos` has a subfolder for each class, possibly inside folders such as "train" and "test". The flags have the
names of transformers' own run_image_classification.py.
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import datasets
import numpy as np
import pandas
import torch
from datasets import Dataset
from huggingface_hub.errors import StrictDataclassError
from torchvision.transforms import v2
from tqdm import tqdm
from transformers import (
    AutoModelForImageClassification,
    BaseImageProcessor,
    EvalPrediction,
    PreTrainedConfig,
    PreTrainedModel,
    TimmWrapperConfig,
)

from ..data.files import Access, load_data, reading
from ..data.images import read_folder
from ..data.labels import ONE_CLASS, Labels, hold_out_rows, number_labels, set_labels, trained_labels
from ..errors import InputError
from ..loading import open_image_processor
from ..models.configuration_gmlp import as_pair
from ..processor import decode_image, evaluation_processor, processor_size
from ..training.arguments import BaseModelArguments, RunArguments, data_access, flag, parse_arguments
from ..training.build import build_config, build_model
from ..training.run_folder import start_run
from ..training.trainer import GMLPTrainer
from .classification import (
    ClassificationArguments,
    Evaluation,
    KeptEvaluation,
    balanced_weights,
    conclude,
    finish_evaluation,
    logits_only,
    weighted_loss,
)

logger = logging.getLogger(__name__)

HEAD = "ForImageClassification"


@dataclass
class ImageArguments(ClassificationArguments):
    """The images to train on, and their augmentation."""

    train_dir: str | None = flag("Folder of training images, with a subfolder for each class, possibly inside splits.")
    validation_dir: str | None = flag("Folder of validation images, with the same structure.")
    train_file: list[str] | None = flag("Training images: parquet files, or csv or json files with paths of images.")
    max_train_samples: int | None = flag("Maximum number of training images (random sample).", interval="[1, inf)")
    max_eval_samples: int | None = flag("Maximum number of validation images (random sample).", interval="[1, inf)")
    train_val_split: float = flag(
        "Fraction of each class to hold out if there are no validation data.", 0.15, interval="(0, 1)"
    )
    image_column_name: str = flag("Column of the image.", "image")
    label_column_name: str = flag("Column of the class.", "label")
    image_size: list[int] | None = flag(
        "Pixels: one number, or height and width. A gMLP checkpoint is resized.", interval="[1, inf)"
    )
    crop_pct: float | None = flag(
        "Fraction of the shorter side kept in evaluation; default: the processor's, or 0.875.", interval="(0, 1]"
    )
    crop_scale: list[float] = flag(
        "Range of the area of random crops, as fractions of the image.", [0.08, 1.0], interval="(0, 1]"
    )
    horizontal_flip: float = flag("Probability of flipping an image from left to right.", 0.5, interval="[0, 1]")
    auto_augment: Literal["imagenet", "cifar10", "svhn"] | None = flag("AutoAugment policy.")
    mixup_alpha: float = flag("Alpha of Mixup; 0 turns it off.", 0.0, interval="[0, inf)")
    cutmix_alpha: float = flag("Alpha of CutMix; 0 turns it off.", 0.0, interval="[0, inf)")
    switch_prob: float = flag("Probability of CutMix where Mixup is on too.", 0.5, interval="[0, 1]")

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.image_size or [1]) > 2 or len(self.crop_scale) != 2 or self.crop_scale[0] > self.crop_scale[1]:
            raise ValueError("--image_size takes one or two numbers, and --crop_scale two, the smaller one first.")

    def files(self) -> dict[str, list[str]]:
        folders = {"train": self.train_dir, "validation": self.validation_dir}
        return super().files() | {split: [folder] for split, folder in folders.items() if folder}

    def size(self) -> tuple[int, int] | None:
        """Return the height and width of --image_size in pixels."""
        return None if self.image_size is None else (self.image_size[0], self.image_size[-1])

    def augmentation(self) -> dict[str, object]:
        """Return the augmentation, for the model card."""
        names = ("crop_scale", "horizontal_flip", "auto_augment", "mixup_alpha", "cutmix_alpha", "switch_prob")
        return {name: getattr(self, name) for name in names}


def load_images(
    arguments: ImageArguments,
    *,
    trained: Labels | None = None,
    train: bool = True,
    validate: bool = True,
    seed: int = 0,
    access: Access = Access(),
) -> tuple[dict[str, Dataset], Labels]:
    """Return splits with columns "image", not decoded ("bytes" and "path"), and "labels", class ids; and the classes.

    The classes are those of the training data, in the order of `trained`, if a checkpoint was trained on the same
    classes, else in the dataset's own order, else sorted.

    Raises:
        InputError: If something needed is missing or empty, or the training data lack a class of the validation data.
    """
    image_column, label_column = arguments.image_column_name, arguments.label_column_name
    if arguments.train_dir or arguments.validation_dir:
        splits = read_folder(Path(arguments.train_dir)) if arguments.train_dir else {}
        if arguments.validation_dir:
            folders = read_folder(Path(arguments.validation_dir))
            splits["validation"] = next(folders[name] for name in ("validation", "test", "train") if name in folders)
        image_column, label_column = "image", "label"
    else:
        source: dict = {"dataset_name": arguments.dataset_name, "dataset_config_name": arguments.dataset_config_name}
        source |= {"files": arguments.files(), "access": access, "text_columns": (image_column, label_column)}
        splits = dict(load_data(**source))
    validation = next((splits[name] for name in ("validation", "valid", "val", "test") if name in splits), None)
    parts = {"train": splits.get("train"), "validation": validation}
    splits = {split: rows for split, rows in parts.items() if rows is not None}
    if not splits or (train and "train" not in splits):
        raise InputError("There are no training images: pass --train_dir, --train_file or a --dataset_name with them.")
    options: dict = {"trained": trained, "train": train, "do_regression": False}
    splits, labels = number_labels(splits, {image_column: "image"}, label_column, **options)
    if labels.problem_type != ONE_CLASS:
        raise InputError(f"The column {label_column!r} must have one class per image: pass --label_column_name.")
    for split, dataset in splits.items():
        with reading([f"The column {image_column!r} of the {split} data"], "images (--image_column_name)"):
            splits[split] = dataset.cast_column("image", datasets.Image(decode=False))
    if validate and "validation" not in splits:
        splits["train"], splits["validation"] = hold_out_rows(splits["train"], arguments.train_val_split, seed)
    limits = {"train": (train, arguments.max_train_samples), "validation": (validate, arguments.max_eval_samples)}
    for split, (needed, limit) in limits.items():
        if not needed:
            splits.pop(split, None)
        elif limit is not None and limit < len(splits[split]):
            # A random sample, since the rows of folders are ordered by class.
            splits[split] = splits[split].shuffle(seed=seed).select(range(limit))
    return splits, labels


def check_images(splits: Mapping[str, Dataset]) -> None:
    """Raise an InputError if an image file is missing or cannot be decoded. Training images are decoded for at most 20
    seconds, validation images all.
    """
    deadline = time.monotonic() + 20
    for split, dataset in splits.items():
        for image in tqdm(dataset["image"], desc=f"Checking {split} images", delay=1):
            if image["bytes"] is None and not Path(image["path"]).is_file():
                raise InputError(f"{image['path']}, named in the {split} data, does not exist: correct the path.")
            if split == "validation" or time.monotonic() < deadline:
                decode_image(image)


def build_image_config(arguments: BaseModelArguments, size: tuple[int, int] | None) -> PreTrainedConfig:
    """Return the config of a checkpoint or preset. The `size` (height and width in pixels) applies to new models."""
    if size is None or arguments.model_name_or_path is not None:
        return build_config(arguments)
    return build_config(arguments, image_size=size[0] if size[0] == size[1] else list(size))


def image_size(config: PreTrainedConfig, processor: BaseImageProcessor | None = None) -> tuple[int, int]:
    """Return the height and width in pixels of a model's input: those of its config or processor, else 224."""
    arguments = getattr(config, "model_args", None) or {}  # of timm
    size = getattr(config, "image_size", None) or arguments.get("img_size")
    return as_pair(size or (processor and processor_size(processor)) or 224)


def build_image_processor(
    arguments: BaseModelArguments, config: PreTrainedConfig, size: tuple[int, int] | None, crop_pct: float | None
) -> BaseImageProcessor:
    """Return the image processor of the checkpoint.

    A new model, another `size` in pixels or a `crop_pct` needs an `evaluation_processor`. It has the mean, standard
    deviation and crop of the checkpoint's processor, if there is one.
    """
    processor, name = None, arguments.model_name_or_path
    if name is not None:
        processor = open_image_processor(name, revision=arguments.model_revision, **arguments.hub_options())
    new_size = size or image_size(config, processor)
    if processor is not None and crop_pct is None and processor_size(processor) == new_size:
        return processor
    # transformers' wrapper of timm's transforms stores them in `data_config`.
    data = getattr(processor, "data_config", {})
    fields: dict[str, Any] = {
        "crop_pct": crop_pct or getattr(processor, "crop_pct", None) or data.get("crop_pct"),
        "mean": getattr(processor, "image_mean", None) or data.get("mean"),
        "std": getattr(processor, "image_std", None) or data.get("std"),
    }
    return evaluation_processor(new_size, **{name: value for name, value in fields.items() if value})


def build_image_model(
    arguments: BaseModelArguments,
    config: PreTrainedConfig,
    size: tuple[int, int] | None,
    *,
    train: bool,
    new_classifier: bool = False,
) -> PreTrainedModel:
    """Return the image classifier of `build_model`; a gMLP checkpoint is resized to the `size` in pixels."""
    model = build_model(AutoModelForImageClassification, arguments, config, train=train, new_classifier=new_classifier)
    if arguments.model_name_or_path is None and isinstance(config, TimmWrapperConfig):
        # transformers' wrapper initializes all linear layers itself, which overwrites the near-zero W of timm's gMLP.
        import timm

        timm_model = timm.create_model(config.architecture, num_classes=config.num_labels, **(config.model_args or {}))
        model.timm_model.load_state_dict(timm_model.state_dict())
    if size is not None and hasattr(config, "image_size") and size != image_size(config):
        try:
            model.resize_image_size(size)
        except (StrictDataclassError, ValueError, AttributeError) as error:
            raise InputError(f"--image_size {size[0]} {size[1]}: {error.__cause__ or error}") from error
        logger.info("Resized to %d x %d pixels: %d tokens", *size, model.config.max_position_embeddings)
    return model


def training_transform(arguments: ImageArguments, size: tuple[int, int], mean: list[float]) -> v2.Transform:
    """Return a transform from a PIL image to pixels [3, *size] from 0 to 255.

    Its steps are a random resized crop (bicubic), a flip and AutoAugment (Cubuk et al., 2019). Areas that a shift or a
    rotation uncovers get the `mean` color.
    """
    scale, bicubic = tuple(arguments.crop_scale), v2.InterpolationMode.BICUBIC
    steps: list[v2.Transform] = [
        v2.RandomResizedCrop(size, scale=scale, interpolation=bicubic, antialias=True),
        v2.RandomHorizontalFlip(arguments.horizontal_flip),
    ]
    if arguments.auto_augment is not None:
        fill = [round(255 * channel) for channel in mean]
        steps.append(v2.AutoAugment(v2.AutoAugmentPolicy(arguments.auto_augment), fill=fill))
    return v2.Compose([*steps, v2.PILToTensor()])


def mixing_transform(arguments: ImageArguments, num_classes: int) -> Callable | None:
    """Return Mixup (Zhang et al., 2018) and CutMix (Yun et al., 2019) for batches of pixels and class ids.

    The alphas are parameters of the Beta distribution of the mixing ratio; if both are 0, the result is None. Mixup
    returns floats, still from 0 to 255, whose later normalization gives the same mixture.
    """
    mixup = cutmix = None
    if arguments.mixup_alpha > 0:
        mixup = v2.MixUp(alpha=arguments.mixup_alpha, num_classes=num_classes)
        mixup = v2.Compose([v2.ToDtype(torch.float32), mixup])
    if arguments.cutmix_alpha > 0:
        cutmix = v2.CutMix(alpha=arguments.cutmix_alpha, num_classes=num_classes)
    if mixup and cutmix:
        return v2.RandomChoice([cutmix, mixup], p=[arguments.switch_prob, 1 - arguments.switch_prob])
    return mixup or cutmix


class Normalization:
    """Normalize pixels from 0 to 255 by a mean and a standard deviation per channel, on a scale from 0 to 1."""

    def __init__(self, mean: list[float], std: list[float]) -> None:
        self.mean, self.std = (255 * torch.tensor(values)[:, None, None] for values in (mean, std))

    def __call__(self, pixels: torch.Tensor) -> torch.Tensor:  # [B, 3, height, width]
        return (pixels - self.mean.to(pixels.device)) / self.std.to(pixels.device)

    def before_forward(self, model: PreTrainedModel, args: tuple, inputs: dict) -> tuple[tuple, dict]:
        """Normalize integers on the device: a forward pre-hook, which saved models do not contain."""
        pixels = inputs["pixel_values"]
        return args, inputs | {"pixel_values": self(pixels) if pixels.dtype == torch.uint8 else pixels}


class ImageCollator:
    """Make "pixel_values" [batch, 3, height, width] and "labels" from rows of an undecoded "image" and "labels".

    The labels are class ids [batch] or, after mixing, probabilities [batch, classes]. Rows of the training data also
    have an "index"; they are augmented by `transform` and mixed by `mixing`. The image processor prepares other rows.

    Pixels of training images stay integers from 0 to 255, a quarter of the bytes of floats, until a hook of the model
    normalizes them, except after Mixup. The augmentation of an image depends only on the seed, the epoch and the index
    of the image, and mixing on the indices of the batch: not on the number of worker processes or devices, or on
    whether the run was resumed.
    """

    def __init__(
        self,
        processor: BaseImageProcessor,
        transform: Callable | None = None,
        mixing: Callable | None = None,
        seed: int = 0,
    ) -> None:
        self.processor, self.transform, self.mixing, self.seed = processor, transform, mixing, seed
        self.normalization = Normalization(processor.image_mean, processor.image_std)
        # Shared memory lets worker processes see the current epoch.
        self._epoch = torch.zeros((), dtype=torch.long).share_memory_()

    def set_epoch(self, epoch: int) -> None:
        self._epoch.fill_(epoch)

    def __call__(self, rows: list[dict]) -> dict[str, torch.Tensor]:
        labels = torch.tensor([row["labels"] for row in rows])
        if self.transform is None or "index" not in rows[0]:
            prepared = self.processor([decode_image(row["image"]) for row in rows], return_tensors="pt")
            return {"pixel_values": prepared["pixel_values"], "labels": labels}
        start, images = _hash(self.seed, int(self._epoch)), []
        # The fork keeps the random state of the run. The generator is seeded directly, since `torch.manual_seed` would
        # seed every accelerator too.
        with torch.random.fork_rng(devices=[]):
            for row in rows:
                # With an odd factor, no two images have the same seed.
                torch.default_generator.manual_seed((start + 0x9E3779B1 * row["index"]) % 2**32)
                images.append(self.transform(decode_image(row["image"])))
            pixels = torch.stack(images)
            if self.mixing is not None:
                torch.default_generator.manual_seed(_hash(start, *(row["index"] for row in rows)))
                pixels, labels = self.mixing(pixels, labels)
        return {"pixel_values": pixels if pixels.dtype == torch.uint8 else self.normalization(pixels), "labels": labels}


def _hash(*numbers: int) -> int:
    """Return 32 bits that depend on all of the numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


def accuracies(prediction: EvalPrediction) -> dict[str, float]:
    """`compute_metrics` for Trainer: "accuracy" and, with five classes or more, "top5_accuracy"."""
    best = prediction.predictions.argsort(axis=-1)[:, ::-1][:, :5]
    right = best == prediction.label_ids[:, None]  # [images, 5]
    results = {"accuracy": float(right[:, 0].mean())}
    return results | ({"top5_accuracy": float(right.any(axis=1).mean())} if right.shape[1] == 5 else {})


def main() -> None:
    model_args, data_args, training_args = parse_arguments((BaseModelArguments, ImageArguments, RunArguments), __doc__)
    callbacks = data_args.callbacks(training_args)
    for folder in filter(None, (data_args.train_dir, data_args.validation_dir)):
        if Path(folder).resolve() in Path(training_args.output_dir).resolve().parents:
            raise InputError(f"--output_dir is inside of {folder}, and its pictures would be a class: choose another.")
    checkpoint = start_run(model_args, data_args, training_args)
    config = build_image_config(model_args, data_args.size())
    processor = build_image_processor(model_args, config, data_args.size(), data_args.crop_pct)

    with training_args.main_process_first(desc="reading"):
        access = data_access(model_args, data_args, training_args)
        options = {"train": training_args.do_train, "validate": training_args.do_eval, "access": access}
        options |= {"trained": trained_labels(config, HEAD), "seed": training_args.seed}
        splits, labels = load_images(data_args, **options)
        if training_args.do_train and training_args.process_index == 0:
            check_images(splits)
    train, new_classifier = training_args.do_train, data_args.ignore_mismatched_sizes
    new_classifier = set_labels(config, labels, HEAD, train=train, new_classifier=new_classifier)
    train_dataset, eval_dataset, weights = splits.get("train"), splits.get("validation"), None
    if train_dataset is not None:
        if data_args.class_weights is not None:
            weights = balanced_weights(train_dataset["labels"][:], config)
        data_args.lengthen(training_args, len(train_dataset))
        train_dataset = train_dataset.add_column("index", range(len(train_dataset)))
    size = data_args.size() or image_size(config, processor)
    transform = training_transform(data_args, size, processor.image_mean)
    collator = ImageCollator(processor, transform, mixing_transform(data_args, config.num_labels), training_args.seed)

    model = build_image_model(model_args, config, data_args.size(), train=train, new_classifier=new_classifier)
    model.register_forward_pre_hook(collator.normalization.before_forward, with_kwargs=True)
    # The collator needs columns that are not inputs of the model.
    training_args.remove_unused_columns = False
    kept = KeptEvaluation(accuracies)
    trainer = GMLPTrainer(
        model=model,
        args=training_args,
        train_dataset=train_dataset,
        eval_dataset=eval_dataset,
        processing_class=processor,
        data_collator=collator,
        compute_loss_func=weighted_loss(training_args.label_smoothing_factor, weights),
        compute_metrics=kept,
        preprocess_logits_for_metrics=logits_only,
        callbacks=callbacks,
        metric_names=("loss", "accuracy", *(["top5_accuracy"] if config.num_labels >= 5 else [])),
        card=data_args.card_facts(model_args),
        hyperparameters=data_args.augmentation(),
    )
    metrics = trainer.train_and_evaluate(checkpoint)
    if eval_dataset is not None:
        files = pandas.DataFrame({"file": [image["path"] for image in eval_dataset["image"]]})
        evaluation = Evaluation(kept.logits, kept.labels, files)
        metrics |= finish_evaluation(trainer, evaluation, data_args.calibrate and train)
    # Trainer's FLOPs count pixels as tokens.
    metrics.pop("total_flos", None)
    trainer.finish(metrics)
    if eval_dataset is not None and trainer.is_world_process_zero():
        conclude(trainer, evaluation)
