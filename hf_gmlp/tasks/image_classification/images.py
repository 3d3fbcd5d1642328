"""Images with a class each: from the Hub, folders or files, to batches of augmented pixels.

Images stay undecoded until the collator makes a batch of them, in a worker process of the data loader. The augmentation
of an image depends only on the seed, the epoch and its number, and mixing on those of the batch: not on the number of
worker processes or devices, or on whether the run was resumed.
"""

import io
import logging
import re
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import PIL.Image
import PIL.ImageOps
import torch
from datasets import ClassLabel, Dataset
from torchvision.transforms import v2
from transformers import BaseImageProcessor

from ...errors import InputError, first_line, listed
from ...training.files import Access, hold_out, load_data, reading
from ..labels import ONE_CLASS, Labels, check_names, number_labels
from .arguments import ImageArguments

logger = logging.getLogger(__name__)

# Pillow's other formats, such as EPS, may run programs.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")
IMAGE_ENDINGS = (".jpg", ".jpeg", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
# More than eight bits per pixel: a conversion to RGB would cut off everything above 255.
DEEP_MODES = ("I", "F", "I;16", "I;16B", "I;16L", "I;16N")
SPLIT_FOLDERS = {"train", "val", "valid", "validation", "test"}


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
    splits: Mapping
    if arguments.train_dir or arguments.validation_dir:
        splits = {split: read_folder(path, access) for split, (path,) in files.items()}
        image_column, label_column = "image", "label"
    else:
        splits = load_data(
            dataset_name=arguments.dataset_name,
            dataset_config_name=arguments.dataset_config_name,
            files=files,
            access=access,
            text_columns=(image_column, label_column),
        )
        held_out = next((split for split in ("validation", "valid", "val", "test") if split in splits), "")
        sources = {"train": "train", "validation": held_out}
        splits = {split: splits[source] for split, source in sources.items() if source in splits}
    if not splits or (train and "train" not in splits):
        raise InputError("There are no training images: give --train_dir, --train_file or a --dataset_name with them.")
    options: dict[str, Any] = {"known": known, "train": train, "do_regression": False}
    splits, labels = number_labels(splits, [image_column], label_column, "image_column_name", **options)
    if labels.problem_type != ONE_CLASS:
        raise InputError(f"The column {label_column!r} must have one class per image, not a list.")
    for split, dataset in splits.items():
        with reading([f"The column {image_column!r} of the {split} data"], "images or paths"):
            dataset = dataset.rename_columns({image_column: "image"})
            splits[split] = dataset.cast_column("image", datasets.Image(decode=False))
    if validate and "validation" not in splits:
        splits = hold_out(splits["train"], arguments.train_val_split, seed, "train_val_split")
    limits = {"train": (train, arguments.max_train_samples), "validation": (validate, arguments.max_eval_samples)}
    for split, (needed, limit) in limits.items():
        if not needed:
            splits.pop(split, None)
        elif limit is not None and limit < len(splits[split]):
            # A random sample, since folders come class by class.
            splits[split] = splits[split].shuffle(seed=seed).select(range(limit))
    return splits, labels


def read_folder(path: str | Path, access: Access = Access()) -> Dataset:
    """Return the images of a folder of class folders, or of a zip file of them: "image", not decoded, and "label".

    `load_dataset("imagefolder")` takes a class "train" for a split, the innermost folder for the class, and no zip file
    of class folders. The images of a zip file are copied into the cache of `datasets` once.
    """
    path = Path(path)
    if not path.is_dir() and not zipfile.is_zipfile(path):
        raise InputError(f"There is no folder and no complete zip file {path}.")
    names = _walk(path) if path.is_dir() else zipfile.ZipFile(path).namelist()
    # Hidden files, and the folder that macOS adds to zip files, are no images.
    names = sorted(name for name in names if name[-1] != "/" and not re.search(r"(^|/)(\.|__MACOSX)", name))
    parts = {name: name.split("/") for name in names if name.lower().endswith(IMAGE_ENDINGS)}
    # A zip file often has one folder around everything.
    while parts and min(map(len, parts.values())) > 2 and len({first for first, *_ in parts.values()}) == 1:
        parts = {name: inner for name, (_, *inner) in parts.items()}
    images = {name: folders for name, (*folders, _) in parts.items() if folders}
    if not images:
        raise InputError(f"{path} has no class folders: put the images of each class into a folder of that name.")
    classes = sorted({folders[0] for folders in images.values()})
    if set(classes) <= SPLIT_FOLDERS and any(len(folders) > 1 for folders in images.values()):
        remedy = f"give --train_dir {path / classes[0]} and so on"
        raise InputError(f"{path} has the folders {' and '.join(classes)}, splits instead of classes: {remedy}.")
    check_names(classes, f"The class folders of {path}")
    if others := [name for name in names if name not in images]:
        words = "%d files of %s lack an image's ending or a class folder, and are left out: %s"
        logger.warning(words, len(others), path, listed(others))
    labels = [folders[0] for folders in images.values()]
    features = datasets.Features({"image": datasets.Image(decode=False), "label": ClassLabel(names=classes)})
    if path.is_dir():
        return Dataset.from_dict({"image": [str(path / name) for name in images], "label": labels}, features)
    # The arguments identify the cached copy. `datasets` would read lists in parts, and so tuples are passed.
    arguments: dict[str, Any] = {"path": str(path.resolve()), "names": tuple(images), "labels": tuple(labels)}
    arguments["time"] = time.time_ns() if access.overwrite_cache else path.stat().st_mtime_ns
    with reading([path], "images"):
        return Dataset.from_generator(_unpack, features, cache_dir=access.cache_dir, gen_kwargs=arguments)


def _walk(folder: Path, prefix: str = "") -> Iterator[str]:
    """Yield the files in a folder, also in linked ones, relative to it; an OSError if one cannot be listed."""
    for entry in folder.iterdir():
        yield from _walk(entry, f"{prefix}{entry.name}/") if entry.is_dir() else [f"{prefix}{entry.name}"]


def _unpack(path: str, names: tuple[str, ...], labels: tuple[str, ...], time: int) -> Iterator[dict]:
    with zipfile.ZipFile(path) as archive:
        for name, label in zip(names, labels):
            yield {"image": {"bytes": archive.read(name), "path": f"{path}/{name}"}, "label": label}


def decode(image: dict) -> PIL.Image.Image:
    """Return the image, upright and in RGB, from its "bytes" or its "path"; an InputError that names it if it cannot be
    decoded without loss.
    """
    try:
        file = io.BytesIO(image["bytes"]) if image["bytes"] is not None else image["path"]
        with PIL.Image.open(file, formats=FORMATS) as picture:
            if picture.mode in DEEP_MODES:
                raise ValueError(f"its pixels have more than 8 bits, mode {picture.mode}")
            return PIL.ImageOps.exif_transpose(picture).convert("RGB")
    except Exception as error:
        # Corrupted files raise nearly any error in PIL.
        fault = "not an image" if isinstance(error, PIL.UnidentifiedImageError) else first_line(error)
        name = image["path"] or "An image without a name"
        raise InputError(f"{name} cannot be read as a picture: {fault}.") from error


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
