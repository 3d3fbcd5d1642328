"""Arguments of image classification."""

from collections.abc import Mapping, Sized
from dataclasses import dataclass

from ...training.arguments import BaseModelArguments, flag
from ..classification import ClassificationArguments


@dataclass
class ImageModelArguments(BaseModelArguments):
    """The image classifier to start from."""

    ignore_mismatched_sizes: bool = flag(
        "Give the checkpoint a new classifier if it was trained for other classes.", False
    )


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
    auto_augment: str | None = flag("AutoAugment policy: imagenet, cifar10 or svhn.")
    mixup_alpha: float = flag("Alpha of Mixup; 0 turns it off.", 0.0, interval="[0, inf)")
    cutmix_alpha: float = flag("Alpha of CutMix; 0 turns it off.", 0.0, interval="[0, inf)")
    switch_prob: float = flag("Probability of CutMix where Mixup is on too.", 0.5, interval="[0, 1]")

    def __post_init__(self):
        super().__post_init__()
        if self.image_size is not None and len(self.image_size) > 2:
            raise ValueError(f"--image_size takes one number of pixels, or height and width, got {self.image_size}.")
        if len(self.crop_scale) != 2 or self.crop_scale[0] > self.crop_scale[1]:
            raise ValueError(f"--crop_scale takes two fractions, the smaller first, got {self.crop_scale}.")
        if self.auto_augment not in (None, "imagenet", "cifar10", "svhn"):
            raise ValueError(f"--auto_augment must be imagenet, cifar10 or svhn, got {self.auto_augment}.")

    def size(self) -> tuple[int, int] | None:
        """Return the height and width of --image_size in pixels."""
        return None if self.image_size is None else (self.image_size[0], self.image_size[-1])

    def augmentation(self) -> dict[str, object]:
        """Return the augmentation, for the model card."""
        names = ("crop_scale", "horizontal_flip", "auto_augment", "mixup_alpha", "cutmix_alpha", "switch_prob")
        return {name: getattr(self, name) for name in names}

    def description(self, splits: Mapping[str, Sized], classes: int) -> str:
        """Return the data in words, for the model card: their name and the number of images."""
        sizes = {"train": "{:,} training images", "validation": "{:,} held out"}
        counted = ", ".join(sizes[split].format(len(images)) for split, images in splits.items())
        return f"{self.data_name()}: {counted}; {classes} classes."
