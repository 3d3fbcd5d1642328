"""Train or fine-tune a gMLP (or any AutoModelForImageClassification) on images. For example:

    hf-gmlp run image_classification --config_name gmlp-ti16-224 --train_dir photos --do_train --output_dir out
    hf-gmlp run image_classification paper/recipes/table2/gmlp-s16-224.yaml --output_dir out

Here, `photos` has a subfolder for each class, possibly inside folders such as "train" and "test". The flags have the
names of transformers' own run_image_classification.py.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from datasets import Dataset
from huggingface_hub.errors import StrictDataclassError
from torchvision.transforms import v2
from tqdm import tqdm
from transformers import (
    AutoModelForImageClassification,
    BaseImageProcessor,
    PreTrainedConfig,
    PreTrainedModel,
    TimmWrapperConfig,
)

from ..data.images import load_images
from ..data.labels import set_labels, trained_labels
from ..errors import InputError
from ..loading import open_image_processor
from ..models.configuration_gmlp import as_pair
from ..processor import decode_image, evaluation_processor, processor_size
from ..training.arguments import BaseModelArguments, RunArguments, flag, parse_arguments
from ..training.build import build_config, build_model
from ..training.run_folder import start_run
from ..training.trainer import GMLPTrainer
from .classification import (
    ClassificationArguments,
    balanced_weights,
    classification_metrics,
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

    def augmentation(self) -> dict[str, Any]:
        """Return the options of `training_transform`."""
        return {name: getattr(self, name) for name in ("crop_scale", "horizontal_flip", "auto_augment")}

    def mixing(self) -> dict[str, Any]:
        """Return the options of `mixing_transform`."""
        return {name: getattr(self, name) for name in ("mixup_alpha", "cutmix_alpha", "switch_prob")}


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


def training_transform(
    size: tuple[int, int],
    mean: Sequence[float],
    *,
    crop_scale: Sequence[float] = (0.08, 1.0),
    horizontal_flip: float = 0.5,
    auto_augment: str | None = None,
) -> v2.Transform:
    """Return a transform from a PIL image to pixels [3, *size] from 0 to 255.

    Its steps are a random resized crop (bicubic), a flip and AutoAugment (Cubuk et al., 2019). Areas that a shift or a
    rotation uncovers get the `mean` color. The options are those of `ImageArguments`.
    """
    scale, bicubic = tuple(crop_scale), v2.InterpolationMode.BICUBIC
    steps: list[v2.Transform] = [
        v2.RandomResizedCrop(size, scale=scale, interpolation=bicubic, antialias=True),
        v2.RandomHorizontalFlip(horizontal_flip),
    ]
    if auto_augment is not None:
        fill = [round(255 * channel) for channel in mean]
        steps.append(v2.AutoAugment(v2.AutoAugmentPolicy(auto_augment), fill=fill))
    return v2.Compose([*steps, v2.PILToTensor()])


def mixing_transform(
    num_classes: int, *, mixup_alpha: float = 0.0, cutmix_alpha: float = 0.0, switch_prob: float = 0.5
) -> Callable | None:
    """Return Mixup (Zhang et al., 2018) and CutMix (Yun et al., 2019) for batches of pixels and class ids.

    The alphas are parameters of the Beta distribution of the mixing ratio; if both are 0, the result is None. Mixup
    returns floats, still from 0 to 255, whose later normalization gives the same mixture.
    """
    cutmix = v2.CutMix(alpha=cutmix_alpha, num_classes=num_classes) if cutmix_alpha > 0 else None
    if mixup_alpha == 0:
        return cutmix
    mixup = v2.Compose([v2.ToDtype(torch.float32), v2.MixUp(alpha=mixup_alpha, num_classes=num_classes)])
    return v2.RandomChoice([cutmix, mixup], p=[switch_prob, 1 - switch_prob]) if cutmix else mixup


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
        moments = (processor.image_mean, processor.image_std)
        self.mean, self.std = (255 * torch.tensor(values)[:, None, None] for values in moments)
        # Shared memory lets worker processes see the current epoch.
        self._epoch = torch.zeros((), dtype=torch.long).share_memory_()

    def set_epoch(self, epoch: int) -> None:
        self._epoch.fill_(epoch)

    def normalize(self, pixels: torch.Tensor) -> torch.Tensor:
        """Normalize pixels from 0 to 255 by the mean and the standard deviation of each channel."""
        return (pixels - self.mean.to(pixels.device)) / self.std.to(pixels.device)

    def before_forward(self, model: PreTrainedModel, args: tuple, inputs: dict) -> tuple[tuple, dict]:
        """Normalize integers on the device: a forward pre-hook, which saved models do not contain."""
        pixels = inputs["pixel_values"]
        return args, inputs | {"pixel_values": self.normalize(pixels) if pixels.dtype == torch.uint8 else pixels}

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
        return {"pixel_values": pixels if pixels.dtype == torch.uint8 else self.normalize(pixels), "labels": labels}


def _hash(*numbers: int) -> int:
    """Return 32 bits that depend on all of the numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


def main(argv: list[str] | None = None, program: str = "hf-gmlp run image_classification") -> None:
    kinds = (BaseModelArguments, ImageArguments, RunArguments)
    model_args, data_args, args = parse_arguments(kinds, __doc__, argv, program)
    checkpoint, train, image_pixels = start_run(model_args, data_args, args), args.do_train, data_args.size()
    config = build_image_config(model_args, image_pixels)
    processor = build_image_processor(model_args, config, image_pixels, data_args.crop_pct)

    with args.main_process_first(desc="reading"):
        options = {"train": train, "validate": args.do_eval, "seed": args.seed, "trained": trained_labels(config, HEAD)}
        options |= {"image_column": data_args.image_column_name, "label_column": data_args.label_column_name}
        options |= {"held_out": data_args.train_val_split, "max_rows": data_args.max_rows()}
        splits, labels = load_images(data_args.source(model_args, args), **options)
        if train and args.process_index == 0:
            check_images(splits)
    new_classifier = set_labels(config, labels, HEAD, train=train, new_classifier=data_args.ignore_mismatched_sizes)
    train_dataset, weights = splits.get("train"), None
    if train_dataset is not None:
        if data_args.class_weights is not None:
            weights = balanced_weights(train_dataset["labels"][:], config)
        train_dataset = train_dataset.add_column("index", range(len(train_dataset)))
    size = image_pixels or image_size(config, processor)
    transform = training_transform(size, processor.image_mean, **data_args.augmentation())
    collator = ImageCollator(processor, transform, mixing_transform(config.num_labels, **data_args.mixing()), args.seed)

    model = build_image_model(model_args, config, image_pixels, train=train, new_classifier=new_classifier)
    model.register_forward_pre_hook(collator.before_forward, with_kwargs=True)
    # The collator needs columns that are not inputs of the model.
    args.remove_unused_columns = False
    # Of fewer than ten classes, the five best are most.
    metrics = ["accuracy", "top5_accuracy"][: 2 if config.num_labels >= 10 else 1]
    trainer = GMLPTrainer(
        model=model,
        args=args,
        train_dataset=train_dataset,
        eval_dataset=splits.get("validation"),
        processing_class=processor,
        data_collator=collator,
        compute_loss_func=weighted_loss(args.label_smoothing_factor, weights),
        compute_metrics=classification_metrics(metrics, config),
        preprocess_logits_for_metrics=logits_only,
        callbacks=data_args.callbacks(args),
        metric_names=("loss", *metrics),
        card=data_args.card_facts(model_args) | {"hyperparameters": data_args.augmentation() | data_args.mixing()},
    )
    results = trainer.train_and_evaluate(checkpoint)
    # Trainer's FLOPs count pixels as tokens.
    results.pop("total_flos", None)
    trainer.finish(results)
