"""Images with a class each: from the Hub, folders or files, to batches of augmented pixels.

Images stay undecoded until the collator makes a batch of them, in a worker process of the data loader. The augmentation
of an image depends only on the seed, the epoch and its number, and mixing on those of the batch: not on the number of
worker processes or devices, or on whether the run was resumed.
"""

import logging
import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from datasets import ClassLabel, Dataset
from torchvision.transforms import v2
from tqdm import tqdm
from transformers import BaseImageProcessor

from ...errors import InputError, listed
from ...image_files import IMAGE_ENDINGS, find_images, is_hidden
from ...processor import decode
from ...training.files import Access, load_data
from ..classification import hold_out
from ..labels import ONE_CLASS, Labels, number_labels, sort_names
from .arguments import ImageArguments

logger = logging.getLogger(__name__)

# A folder with one of these names, and perhaps words around it ("seg_train", "Training", "test_set"), is a split.
SPLITS = {
    **dict.fromkeys(("train", "training", "trainval"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}


def load_images(
    arguments: ImageArguments,
    *,
    known: Labels | None = None,
    train: bool = True,
    validate: bool = True,
    seed: int = 0,
    access: Access = Access(),
) -> tuple[dict[str, Dataset], Labels]:
    """Return images as columns "image", not decoded ("bytes" and "path"), and "labels", class ids; and the classes.

    The classes are those of the training data, in the order of a data set's own names or sorted, or in that of a
    checkpoint (`known`) with the same classes. Raises an InputError if something needed is missing, empty or
    unreadable, or the validation data have a class that the training data do not have.
    """
    image_column, label_column, files = arguments.image_column_name, arguments.label_column_name, arguments.files()
    if arguments.train_dir or arguments.validation_dir:
        splits = read_folder(Path(arguments.train_dir)) if arguments.train_dir else {}
        if arguments.validation_dir:
            found = read_folder(Path(arguments.validation_dir))
            splits["validation"] = next(found[name] for name in ("validation", "test", "train") if name in found)
        image_column, label_column = "image", "label"
    else:
        splits = dict(
            load_data(
                dataset_name=arguments.dataset_name,
                dataset_config_name=arguments.dataset_config_name,
                files=files,
                access=access,
                text_columns=(image_column, label_column),
            )
        )
    if held_out := [splits[name] for name in ("validation", "valid", "val", "test") if name in splits]:
        splits["validation"] = held_out[0]
    splits = {split: splits[split] for split in ("train", "validation") if split in splits}
    if not splits or (train and "train" not in splits):
        raise InputError("There are no training images: give --train_dir, --train_file or a --dataset_name with them.")
    options: dict[str, Any] = {"known": known, "train": train, "do_regression": False}
    splits, labels = number_labels(splits, [image_column], label_column, **options)
    if labels.problem_type != ONE_CLASS:
        raise InputError(f"The column {label_column!r} must have one class per image, not a list.")
    for split, dataset in splits.items():
        try:
            dataset = dataset.rename_columns({image_column: "image"})
            splits[split] = dataset.cast_column("image", datasets.Image(decode=False))
        except (NotImplementedError, TypeError, ValueError) as error:
            fault = f"The column {image_column!r} of the {split} data holds neither images nor paths"
            raise InputError(f"{fault}: name yours with --image_column_name.") from error
    if validate and "validation" not in splits:
        splits["train"], splits["validation"] = hold_out(splits["train"], arguments.train_val_split, seed)
    limits = {"train": (train, arguments.max_train_samples), "validation": (validate, arguments.max_eval_samples)}
    for split, (needed, limit) in limits.items():
        if not needed:
            splits.pop(split, None)
        elif limit is not None and limit < len(splits[split]):
            # A random sample, since folders come class by class.
            splits[split] = splits[split].shuffle(seed=seed).select(range(limit))
    return splits, labels


def read_folder(folder: Path) -> dict[str, Dataset]:
    """Return the splits of a folder of class folders, or of folders of them for splits: "image", not decoded, "label".

    Images in subfolders of a class folder are of that class. What is left out, and which folders are splits, is logged
    in one line each. Raises an InputError if there are no class folders with images.
    """
    if not folder.is_dir():
        advice = f"unpack it (python -m zipfile -e {folder} photos), and name the folder"
        raise InputError(f"{folder} is a file: {advice}." if folder.is_file() else f"There is no folder {folder}.")
    inner = folders_in(folder)
    while len(inner) == 1 and folders_in(inner[0]) and not any(map(is_image, folder.iterdir())):
        # Archives often have one folder around everything.
        folder, inner = inner[0], folders_in(inner[0])
    splits = {split: path for path in inner if (split := split_of(path.name)) and folders_in(path)}
    if len(splits) > 1:
        left_out = [path.name for path in inner if path not in splits.values()]
        found = ", ".join(f"{split} from {path.name}" for split, path in splits.items())
        logger.info("Splits of %s: %s%s", folder, found, f"; left out: {listed(left_out)}" if left_out else "")
        return {split: next(iter(read_folder(path).values())) for split, path in splits.items()}
    images = {path.name: [str(path / file) for file in find_images(path)] for path in inner}
    names = sort_names(name for name in images if images[name])
    if not names:
        raise InputError(f"{folder} has no class folders: put the images of each class into a folder of that name.")
    if others := describe_left_out(folder, images):
        logger.warning("Left out of %s: %s", folder, others)
    features = datasets.Features({"image": datasets.Image(decode=False), "label": ClassLabel(names=names)})
    columns = {"image": [path for name in names for path in images[name]]}
    columns["label"] = [name for name in names for _ in images[name]]
    return {"train": Dataset.from_dict(columns, features)}


def folders_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not is_hidden(path.name))


def is_image(path: Path) -> bool:
    return path.suffix.lower() in IMAGE_ENDINGS and not is_hidden(path.name)


def split_of(name: str) -> str | None:
    """Return the split that a folder is named after, such as "train" for "seg_train" or "Training Set"."""
    words = set(re.split(r"[\W_]+", name.lower()))
    return next((split for word, split in SPLITS.items() if word in words), None)


def describe_left_out(folder: Path, images: dict[str, list[str]]) -> str:
    """Return in words which files and folders of a folder are no images of a class, and why; "" if there are none."""
    files = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    visible = [path for path in files if not any(map(is_hidden, path.parts))]
    endings = Counter(path.suffix.lower() or path.name for path in visible if not is_image(path))
    parts = {
        "class folders without images": [name for name, paths in images.items() if not paths],
        "unsupported files": [f"{count} {ending}" for ending, count in endings.most_common()],
        "images outside of class folders": [path.name for path in visible if len(path.parts) == 1 and is_image(path)],
        "folders of the system": sorted({part for path in files for part in path.parts[:-1] if is_hidden(part)}),
    }
    return "; ".join(f"{what}: {listed(names)}" for what, names in parts.items() if names)


def check_images(splits: Mapping[str, Dataset]):
    """Raise an InputError if a file of an image is missing, or a validation image cannot be read."""
    for split, dataset in splits.items():
        for image in tqdm(dataset["image"], desc=f"Checking {split} images", delay=1):
            if split == "validation":
                decode(image)
            elif image["bytes"] is None and not Path(image["path"]).is_file():
                raise InputError(f"{image['path']}, named in the {split} data, does not exist.")


def training_transform(
    arguments: ImageArguments, size: tuple[int, int], mean: list[float], std: list[float]
) -> v2.Transform:
    """Return a transform from a PIL image to pixels [3, *size]: random resized crop (bicubic), flip, AutoAugment
    (Cubuk et al., 2019), and normalization by `mean` and `std` per channel, on a scale from 0 to 1.
    """
    scale, bicubic = tuple(arguments.crop_scale), v2.InterpolationMode.BICUBIC
    steps: list[v2.Transform] = [
        v2.RandomResizedCrop(size, scale=scale, interpolation=bicubic, antialias=True),
        v2.RandomHorizontalFlip(arguments.horizontal_flip),
    ]
    if arguments.auto_augment is not None:
        # Areas that a shift or a rotation uncovers get the mean color.
        fill = [round(255 * channel) for channel in mean]
        steps.append(v2.AutoAugment(v2.AutoAugmentPolicy(arguments.auto_augment), fill=fill))
    steps += [v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(mean, std)]
    return v2.Compose(steps)


def mixing_transform(arguments: ImageArguments, num_classes: int) -> Callable | None:
    """Return Mixup (Zhang et al., 2018) and CutMix (Yun et al., 2019) for batches of pixels and class ids; None if the
    alphas of both, the parameters of the Beta distribution of the mixing ratio, are 0.
    """
    mixup = v2.MixUp(alpha=arguments.mixup_alpha, num_classes=num_classes) if arguments.mixup_alpha > 0 else None
    cutmix = v2.CutMix(alpha=arguments.cutmix_alpha, num_classes=num_classes) if arguments.cutmix_alpha > 0 else None
    if mixup and cutmix:
        return v2.RandomChoice([cutmix, mixup], p=[arguments.switch_prob, 1 - arguments.switch_prob])
    return mixup or cutmix


class ImageCollator:
    """Make "pixel_values" [batch, 3, height, width] and "labels" of rows with an "image", not decoded, and "labels".

    The labels are class ids [batch], or after mixing probabilities [batch, classes]. Rows of the training data also
    have an "index", and are augmented by `transform` and mixed by `mixing`; the image processor prepares others.
    """

    def __init__(
        self,
        processor: BaseImageProcessor,
        transform: Callable | None = None,
        mixing: Callable | None = None,
        seed: int = 0,
    ):
        self.processor, self.transform, self.mixing, self.seed = processor, transform, mixing, seed
        # In shared memory, so that worker processes see an epoch begin.
        self._epoch = torch.zeros((), dtype=torch.long).share_memory_()

    def set_epoch(self, epoch: int):
        self._epoch.fill_(epoch)

    def __call__(self, rows: list[dict]) -> dict[str, torch.Tensor]:
        labels = torch.tensor([row["labels"] for row in rows])
        if self.transform is None or "index" not in rows[0]:
            pixels = self.processor([decode(row["image"]) for row in rows], return_tensors="pt")["pixel_values"]
            return {"pixel_values": pixels, "labels": labels}
        start, images = _hash(self.seed, int(self._epoch)), []
        # Afterwards the run's own random numbers continue as if none had been sampled here. The generator is seeded
        # directly, since `torch.manual_seed` would seed every accelerator too.
        with torch.random.fork_rng(devices=[]):
            for row in rows:
                # An odd factor: no two images have the same seed.
                torch.default_generator.manual_seed((start + 0x9E3779B1 * row["index"]) % 2**32)
                images.append(self.transform(decode(row["image"])))
            pixels = torch.stack(images)
            if self.mixing is not None:
                torch.default_generator.manual_seed(_hash(start, *(row["index"] for row in rows)))
                pixels, labels = self.mixing(pixels, labels)
        return {"pixel_values": pixels, "labels": labels}


def _hash(*numbers: int) -> int:
    """Return 32 bits that depend on all of the numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])
