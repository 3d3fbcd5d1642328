"""Images with a class each: from the Hub, folders or files, to batches of augmented pixels.

Images stay undecoded until the collator, which runs in the worker processes of the data loader, makes a batch of them.
What happens to an image is a function of the image's number, the seed and the epoch, and what is mixed into a batch is
one of the batch's images: neither depends on the number of worker processes or devices, nor on whether the run was cut
off and resumed.
"""

import hashlib
import io
import logging
import os
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import datasets
import numpy as np
import PIL.Image
import PIL.ImageOps
import torch
from datasets import ClassLabel, Dataset, load_dataset
from torchvision.transforms import v2
from transformers import BaseImageProcessor

from ..errors import InputError
from .classification import class_names, data_of, label_ids, label_name, label_values
from .files import read_files

logger = logging.getLogger(__name__)

IMAGE_ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
# What PIL raises for a file that is no image, or only the beginning of one.
DECODING_ERRORS = (OSError, ValueError, SyntaxError, EOFError, PIL.Image.DecompressionBombError)
# Pixels of more than eight bits: converting them to RGB would cut off all that is above 255.
DEEP_MODES = ("I", "F", "I;16", "I;16B", "I;16L", "I;16N")
SPLIT_FOLDERS = {"train", "val", "valid", "validation", "test"}


@dataclass
class Images:
    """What `load_images` gives."""

    splits: dict[str, Dataset]
    """ "train" and "validation", with the columns "image", not decoded (a dictionary of "bytes" and "path"), and
    "labels", class ids."""
    labels: list[str]
    """The names of the class ids."""


def load_images(
    *,
    dataset_name: str | None = None,
    dataset_config_name: str | None = None,
    train_dir: str | None = None,
    validation_dir: str | None = None,
    train_files: list[str] | None = None,
    validation_files: list[str] | None = None,
    image_column: str = "image",
    label_column: str = "label",
    known_labels: list[str] | None = None,
    train: bool = True,
    validate: bool = True,
    train_val_split: float = 0.15,
    max_samples: dict[str, int | None] | None = None,
    seed: int = 0,
    cache_dir: str | None = None,
) -> Images:
    """
    The images of a data set on the Hub, of folders (or zip files) with a folder for every class, or of files (parquet
    with images in it; csv or json with the paths of images).

    The classes are those of the training data, in the order of the data set's own names, else of the alphabet. A
    checkpoint that tells the same classes keeps its order.

    Args:
        dataset_name: Taken if neither folders nor files are named, so that a recipe may name it.
        train_dir, validation_dir: A folder of class folders, plain or as a zip file.
        known_labels: The classes of the checkpoint, in its order.
        train, validate: What is needed.
        train_val_split: Share of the training images that is held out if there are no validation data.
        max_samples: At most so many images of "train" and "validation", drawn with the seed.

    Raises:
        InputError: If no data or two kinds of them are named, something needed is missing or empty, cannot be read, or
            has a class that the training data do not have.
    """
    folders = {"train": train_dir, "validation": validation_dir}
    files = {"train": train_files, "validation": validation_files}
    kinds = [any(folders.values()), any(files.values())]
    if sum(kinds) == 2 or (sum(kinds) == 0 and dataset_name is None):
        raise InputError(
            "Name the images, in one way: --dataset_name for a data set on the Hub, --train_dir and --validation_dir "
            "for folders of class folders, or --train_file and --validation_file for parquet files."
        )
    wanted = [split for split, needed in (("train", train), ("validation", validate)) if needed]
    if not any(kinds):
        found = _read_hub(dataset_name, dataset_config_name, cache_dir)
    elif any(folders.values()):
        found = {split: read_folder(folder, cache_dir) for split, folder in folders.items() if folder is not None}
        image_column, label_column = "image", "label"
    else:
        found = {split: read_files(paths, cache_dir=cache_dir) for split, paths in files.items() if paths}
    if "train" not in found and ("train" in wanted or "validation" not in found):
        raise InputError("There are no training images: give --train_dir, --train_file or a --dataset_name with them.")
    for split, dataset in found.items():
        _check_columns(dataset, split, image_column, label_column)
    if "validation" in wanted and "validation" not in found:
        held_out = found["train"].train_test_split(train_val_split, seed=seed)
        found = {"train": held_out["train"], "validation": held_out["test"]}

    values = {split: label_values(dataset, label_column) for split, dataset in found.items()}
    source = "train" if "train" in found else "validation"
    labels = class_names(found[source].features[label_column], values[source])
    if known_labels is not None and (
        set(labels) == set(known_labels) or ("train" not in wanted and set(labels) <= set(known_labels))
    ):
        labels = known_labels
    _compare_classes(labels, values)
    limits = max_samples or {}
    splits = {}
    for split in wanted:
        ids = label_ids(values[split], labels, {}, split)
        dataset = found[split].select_columns([image_column])
        if image_column != "image":
            dataset = dataset.rename_column(image_column, "image")
        # A new column: one that is mapped in place may turn back into strings.
        dataset = dataset.add_column("labels", ids).cast_column("image", datasets.Image(decode=False))
        if limits.get(split) is not None and limits[split] < len(dataset):
            # Drawn, since folders come class by class.
            dataset = dataset.shuffle(seed=seed).select(range(limits[split]))
        splits[split] = dataset
    return Images(splits, labels)


def read_folder(path: str | Path, cache_dir: str | None = None) -> Dataset:
    """
    The images of a folder of class folders, plain or as a zip file, which is unpacked into the cache once.

    Returns:
        Columns "image", not decoded, and "label", the alphabet's order.

    Raises:
        InputError: If there is no such folder, it has no class folders, or one of these has no images.
    """
    path = Path(path)
    if path.is_file() and not zipfile.is_zipfile(path):
        raise InputError(f"{path} is neither a folder nor a whole zip file of class folders.")
    if not path.exists():
        raise InputError(f"There is no folder {path}.")
    root = path if path.is_dir() else _unpack(path, cache_dir)
    folders = _class_folders(root)
    # A zip file often has one folder around everything.
    while len(folders) == 1 and _class_folders(folders[0]) and not _images_in(folders[0], recursive=False):
        root = folders[0]
        folders = _class_folders(root)
    if not folders:
        raise InputError(f"{path} has no class folders: put the images of each class into a folder of its name.")
    names = [folder.name for folder in folders]
    if set(names) <= SPLIT_FOLDERS and any(_class_folders(folder) for folder in folders):
        raise InputError(
            f"{path} has the folders {' and '.join(names)}, which look like splits and not like classes: give "
            f"--train_dir {path / names[0]} and so on."
        )
    images = {folder.name: _images_in(folder) for folder in folders}
    empty = [str(root / name) for name, files in images.items() if not files]
    if empty:
        raise InputError(f"The class folder {_listed(empty)} has no images: add some, or remove it.")
    return Dataset.from_dict(
        {
            "image": [str(file) for files in images.values() for file in files],
            "label": [number for number, files in enumerate(images.values()) for _ in files],
        },
        features=datasets.Features({"image": datasets.Image(decode=False), "label": ClassLabel(names=names)}),
    )


def find_faults(
    dataset: Dataset, split: str, smallest: tuple[int, int], *, num_proc: int | None = None
) -> dict[str, list[str]]:
    """
    Decodes every image once, before any work that a bad one could end.

    Args:
        dataset: Column "image", not decoded.
        smallest: Height and width in pixels that an image must have at least: those of a patch.

    Returns:
        For every image what `image_fault` says of it: "fault" and "mode".
    """
    found = dataset.select_columns(["image"]).map(
        lambda row: image_fault(row["image"], smallest),
        remove_columns=["image"],
        num_proc=num_proc,
        # Another image may have come under an old name.
        load_from_cache_file=False,
        desc=f"Checking {split} images",
    )
    return {"fault": found["fault"][:], "mode": found["mode"][:]}


def keep_good(dataset: Dataset, split: str, found: dict[str, list[str]], *, skip: bool = False) -> Dataset:
    """
    The images that can be used. Those that are not in RGB are converted when they are read; that they are there is
    said.

    Args:
        dataset: As for `find_faults`.
        found: What that gave.
        skip: Leave bad images out.

    Raises:
        InputError: If an image is bad and `skip` is off, or none is good. It names the first bad ones.
    """
    faults, modes = found["fault"], found["mode"]
    bad = [row for row, fault in enumerate(faults) if fault]
    good = [row for row, fault in enumerate(faults) if not fault]
    data = data_of(split)
    named = _listed([f"{image_name(dataset, row)} ({faults[row]})" for row in bad[:5]], len(bad))
    if bad and not (skip and good):
        raise InputError(
            f"{len(bad)} of the {len(dataset)} images of the {data} cannot be used: {named}. Mend or remove them"
            + (", or give --skip_bad_images." if good else ".")
        )
    if bad:
        logger.info("Skipped %d of the %d images of the %s: %s", len(bad), len(dataset), data, named)
    other = [row for row in good if modes[row] != "RGB"]
    if other:
        named = _listed([f"{image_name(dataset, row)} ({modes[row]})" for row in other[:5]], len(other))
        logger.info("%d images of the %s are not RGB and are converted: %s", len(other), data, named)
    return dataset.select(good) if bad else dataset


def image_fault(image: dict, smallest: tuple[int, int]) -> dict[str, str]:
    """
    What is wrong with an image ("fault", empty if nothing is), and its "mode" in PIL's words ("RGB", "L", "CMYK", ...).

    Args:
        image: "bytes", or the "path" to read them from.
        smallest: Height and width in pixels that it must have at least.
    """
    mode = ""
    try:
        with PIL.Image.open(_source(image)) as picture:
            mode, (width, height) = picture.mode, picture.size
            # A JPEG is read to its end, but most of the arithmetic is left out.
            picture.draft("RGB", (1, 1))
            picture.load()
    except DECODING_ERRORS as error:
        unknown = isinstance(error, PIL.UnidentifiedImageError)
        reason = "no image" if unknown else f"cut off or damaged: {error or type(error).__name__}"
        return {"fault": reason, "mode": mode}
    if height < smallest[0] or width < smallest[1]:
        return {
            "fault": f"{width}x{height} pixels, less than a patch of {smallest[1]}x{smallest[0]}",
            "mode": mode,
        }
    if mode in DEEP_MODES:
        return {"fault": f"pixels of more than 8 bits, mode {mode}", "mode": mode}
    return {"fault": "", "mode": mode}


def decode(image: dict) -> PIL.Image.Image:
    """
    The picture, upright and in RGB.

    Args:
        image: "bytes", or the "path" to read them from.
    """
    with PIL.Image.open(_source(image)) as picture:
        return PIL.ImageOps.exif_transpose(picture).convert("RGB")


def image_name(dataset: Dataset, row: int) -> str:
    """The file of an image, or its row where it has none."""
    return dataset[row]["image"]["path"] or f"row {row + 1}"


def training_transform(
    size: tuple[int, int],
    mean: list[float],
    std: list[float],
    *,
    crop_scale: tuple[float, float] = (0.08, 1.0),
    horizontal_flip: float = 0.5,
    auto_augment: str | None = None,
) -> v2.Transform:
    """
    Random resized crop (bicubic), flip, AutoAugment (Cubuk et al., 2019), and normalization: from a PIL image to
    pixels [3, height, width].

    Args:
        size: Height and width of what comes out.
        mean, std: Of each channel, on a scale from 0 to 1.
        crop_scale: Smallest and largest area of the crop, as shares of the image.
        horizontal_flip: How likely left and right change places.
        auto_augment: The policy found for "imagenet", "cifar10" or "svhn"; None for none.
    """
    steps: list[v2.Transform] = [
        v2.RandomResizedCrop(size, scale=crop_scale, interpolation=v2.InterpolationMode.BICUBIC, antialias=True),
        v2.RandomHorizontalFlip(horizontal_flip),
    ]
    if auto_augment is not None:
        # What a shift or a rotation uncovers takes the mean color.
        fill = [round(255 * channel) for channel in mean]
        steps.append(v2.AutoAugment(v2.AutoAugmentPolicy(auto_augment), fill=fill))
    steps += [v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(mean, std)]
    return v2.Compose(steps)


def mixing_transform(
    num_classes: int, mixup_alpha: float = 0.0, cutmix_alpha: float = 0.0, switch_prob: float = 0.5
) -> Callable | None:
    """
    Mixup (Zhang et al., 2018) and CutMix (Yun et al., 2019) of a batch of pixels and class ids, one of the two at a
    time; None if both are off.

    Args:
        mixup_alpha, cutmix_alpha: Of the Beta distribution of the share; 0 turns one off.
        switch_prob: How likely it is CutMix, if both are on.
    """
    mixup = v2.MixUp(alpha=mixup_alpha, num_classes=num_classes) if mixup_alpha > 0 else None
    cutmix = v2.CutMix(alpha=cutmix_alpha, num_classes=num_classes) if cutmix_alpha > 0 else None
    if mixup is not None and cutmix is not None:
        return v2.RandomChoice([cutmix, mixup], p=[switch_prob, 1 - switch_prob])
    return mixup or cutmix


class ImageCollator:
    """
    From rows with an image to a batch of pixels: decoded, and for training augmented and mixed, for evaluation as the
    image processor does it.

    Args:
        processor: For evaluation; the one that is saved with the model.
        transform: For training, from a PIL image to pixels [3, height, width].
        mixing: For training, from pixels and class ids to mixed pixels and shares [batch, classes].
        seed: What augmentation and mixing are drawn from.

    Rows have "image", not decoded, and "labels"; those of the training data have an "index" besides.

    Returns:
        "pixel_values" [batch, 3, height, width] and "labels", class ids [batch], or after mixing the shares of the
        classes [batch, classes].
    """

    def __init__(
        self,
        processor: BaseImageProcessor,
        transform: v2.Transform | None = None,
        mixing: Callable | None = None,
        seed: int = 0,
    ):
        self.processor, self.transform, self.mixing, self.seed = processor, transform, mixing, seed
        # Shared memory, so that worker processes see an epoch begin.
        self._epoch = torch.zeros((), dtype=torch.long).share_memory_()

    def set_epoch(self, epoch: int):
        """Other crops from here on."""
        self._epoch.fill_(epoch)

    def __call__(self, rows: list[dict]) -> dict[str, torch.Tensor]:
        labels = torch.tensor([row["labels"] for row in rows])
        if "index" not in rows[0]:
            pictures = [decode(row["image"]) for row in rows]
            pixels = self.processor(pictures, return_tensors="pt")["pixel_values"]
            return {"pixel_values": pixels, "labels": labels}
        epoch, numbers = int(self._epoch), [row["index"] for row in rows]
        augmented = []
        for number, row in zip(numbers, rows):
            with _seeded(self.seed, epoch, number):
                augmented.append(self.transform(decode(row["image"])))
        pixels = torch.stack(augmented)
        if self.mixing is not None:
            with _seeded(self.seed, epoch, *numbers):
                pixels, labels = self.mixing(pixels, labels)
        return {"pixel_values": pixels, "labels": labels}


@contextmanager
def _seeded(*numbers: int) -> Iterator[None]:
    """torch's random numbers on the CPU follow from some numbers, and go on afterwards as if nothing had been drawn."""
    generator = torch.default_generator
    state = generator.get_state()
    # Not `torch.manual_seed`, which would seed every accelerator too.
    generator.manual_seed(int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> 1))
    try:
        yield
    finally:
        generator.set_state(state)


def _source(image: dict) -> str | io.BytesIO:
    return io.BytesIO(image["bytes"]) if image["bytes"] is not None else image["path"]


def _read_hub(name: str, config_name: str | None, cache_dir: str | None) -> dict[str, Dataset]:
    try:
        loaded = load_dataset(name, config_name, cache_dir=cache_dir)
    except (OSError, ValueError) as error:
        title = f"{name} {config_name or ''}".strip()
        raise InputError(f"{title} cannot be loaded from the Hub: {error}") from error
    validation = next((split for split in ("validation", "valid", "val", "test") if split in loaded), None)
    named = {"train": "train", "validation": validation}
    return {split: loaded[found] for split, found in named.items() if found in loaded}


def _unpack(path: Path, cache_dir: str | None) -> Path:
    """The folder with the contents of a zip file; unpacked anew if the file has changed."""
    stat = path.stat()
    key = hashlib.sha256(f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns}".encode()).hexdigest()[:16]
    folder = Path(cache_dir or datasets.config.HF_DATASETS_CACHE) / "unpacked" / f"{path.stem}-{key}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Under its name only when it is whole.
        with tempfile.TemporaryDirectory(dir=folder.parent) as partial:
            try:
                with zipfile.ZipFile(path) as archive:
                    archive.extractall(Path(partial, "contents"))
            except (zipfile.BadZipFile, OSError, EOFError) as error:
                raise InputError(f"{path} cannot be unpacked: {error}") from error
            os.rename(Path(partial, "contents"), folder)
    return folder


def _class_folders(root: Path) -> list[Path]:
    # macOS adds a folder of its own to zip files.
    hidden = (".", "__MACOSX")
    return sorted(entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith(hidden))


def _images_in(folder: Path, recursive: bool = True) -> list[Path]:
    entries = folder.rglob("*") if recursive else folder.iterdir()
    return sorted(
        entry for entry in entries if entry.suffix.lower() in IMAGE_ENDINGS and not entry.name.startswith(".")
    )


def _check_columns(dataset: Dataset, split: str, image_column: str, label_column: str):
    for flag, column in (("image", image_column), ("label", label_column)):
        if column not in dataset.column_names:
            raise InputError(
                f"The {data_of(split)} have no column {column!r} but {', '.join(dataset.column_names)}: name the "
                f"one of the {flag}s by --{flag}_column_name."
            )
    if len(dataset) == 0:
        raise InputError(f"The {data_of(split)} have no images.")
    if dataset.data.column(image_column).null_count:
        row = next(number for number, image in enumerate(dataset.data.column(image_column), 1) if not image.is_valid)
        raise InputError(f"Row {row} of the {data_of(split)} has no image.")


def _compare_classes(labels: list[str], values: dict[str, list]):
    """Classes of the validation data that nothing is trained for are an error; those it lacks are only worth a word."""
    if "validation" not in values:
        return
    given = Counter(label_name(value) for value in values["validation"] if value is not None)
    unknown = [name for name in given if name not in labels]
    if unknown:
        raise InputError(
            f"The validation data have {sum(given[name] for name in unknown)} images of classes that the training data "
            f"do not have: {_listed(unknown[:5], len(unknown))}. Both must have the same class names."
        )
    missing = [name for name in labels if name not in given]
    if missing:
        logger.warning("The validation data have no images of %s.", _listed(missing[:5], len(missing)))


def _listed(names: list[str], count: int | None = None) -> str:
    """Names parted by commas, and how many more there are."""
    more = (count or len(names)) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")
