"""Images with a class each: from the Hub, folders or files, to batches of augmented pixels.

Images stay undecoded until the collator makes a batch of them, in a worker process of the data loader. Augmentation
depends only on the number of the image, the seed and the epoch, and mixing on the batch: not on the number of worker
processes or devices, or whether the run was resumed.
"""

import io
import logging
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import datasets
import numpy as np
import PIL.Image
import PIL.ImageOps
import torch
from datasets import ClassLabel, Dataset
from torchvision.transforms import v2
from transformers import BaseImageProcessor

from ..errors import InputError
from .files import Access, content_hash, load_data, reading
from .labels import ONE_CLASS, LabeledData, Labels, alike_names, data_of, listed, number_labels

logger = logging.getLogger(__name__)

IMAGE_ENDINGS = (".jpg", ".jpeg", ".jfif", ".png", ".webp", ".avif", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
# More than eight bits per pixel: a conversion to RGB would cut off everything above 255.
DEEP_MODES = ("I", "F", "I;16", "I;16B", "I;16L", "I;16N")
SPLIT_FOLDERS = {"train", "val", "valid", "validation", "test"}


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
    known: Labels | None = None,
    train: bool = True,
    validate: bool = True,
    train_val_split: float = 0.15,
    max_samples: dict[str, int | None] | None = None,
    seed: int = 0,
    access: Access = Access(),
) -> LabeledData:
    """Returns images as columns "image", not decoded (a dictionary of "bytes" and "path"), and "labels", class ids.

    They come from folders (or zip files) with a folder for every class; from files (parquet with images in it, csv or
    json with their paths); or, if neither is named, from a data set on the Hub.
    The classes are those of the training data, in the order of the data set's own names or of the alphabet, or in that
    of a checkpoint (`known`) with the same classes.

    If validation data are needed (`validate`) but not given, the share `train_val_split` of the training images is held
    out. `max_samples` are the maximum numbers of images of "train" and "validation" (random samples).

    Raises an InputError if no data are named, something needed is missing, empty or unreadable, or the validation data
    have a class that the training data do not have.
    """
    folders = {split: path for split, path in (("train", train_dir), ("validation", validation_dir)) if path}
    files = {split: paths for split, paths in (("train", train_files), ("validation", validation_files)) if paths}
    if not (folders or files or dataset_name):
        raise InputError(
            "Name the images in one way: --dataset_name for a data set on the Hub, --train_dir and --validation_dir "
            "for folders of class folders, or --train_file and --validation_file for parquet files."
        )
    if folders:
        found = {split: read_folder(path, access) for split, path in folders.items()}
        image_column, label_column = "image", "label"
    elif files:
        found = dict(load_data(files=files, access=access, text_columns=(image_column, label_column)))
    else:
        loaded = load_data(dataset_name=dataset_name, dataset_config_name=dataset_config_name, access=access)
        held_out = next((split for split in ("validation", "valid", "val", "test") if split in loaded), None)
        places = {"train": "train", "validation": held_out}
        found = {split: loaded[place] for split, place in places.items() if place in loaded}
    if not found or (train and "train" not in found):
        raise InputError("There are no training images: give --train_dir, --train_file or a --dataset_name with them.")
    labels, ids = number_labels(
        found, [image_column], label_column, "image_column_name", known=known, train=train, do_regression=False
    )
    if labels.problem_type != ONE_CLASS:
        raise InputError(f"The column {label_column!r} must have one class per image, not a list.")
    for split, dataset in found.items():
        with reading([f"The column {image_column!r} of the {data_of(split)}"], "images or paths"):
            dataset = dataset.select_columns([image_column]).rename_columns({image_column: "image"})
            dataset = dataset.cast_column("image", datasets.Image(decode=False))
        # In a new column: mapped in place, it may turn back into strings.
        found[split] = dataset.add_column("labels", ids[split])
    missing = set(range(len(labels.names))).difference(ids.get("validation", ())) if len(found) == 2 else ()
    if missing:
        names = [labels.names[number] for number in sorted(missing)]
        logger.warning("The validation data have no images of %s.", listed(names))
    if validate and "validation" not in found:
        try:
            held_out = found["train"].train_test_split(train_val_split, seed=seed)
        except ValueError as error:
            few = f"{len(found['train'])} training images are too few to hold out {train_val_split:g} of them"
            raise InputError(f"{few}: give validation images, or another --train_val_split.") from error
        found = {"train": held_out["train"], "validation": held_out["test"]}
    splits = {}
    for split in (split for split, needed in (("train", train), ("validation", validate)) if needed):
        dataset, limit = found[split], (max_samples or {}).get(split)
        # A random sample, since folders come class by class.
        few = limit is not None and limit < len(dataset)
        splits[split] = dataset.shuffle(seed=seed).select(range(limit)) if few else dataset
    return LabeledData(splits, *labels)


def read_folder(path: str | Path, access: Access = Access()) -> Dataset:
    """Returns the images of a folder of class folders, or of a zip file of them, which is unpacked into the cache once:
    columns "image", not decoded, and "label", in alphabetical order.

    Raises an InputError if there is no such folder, it cannot be unpacked or read, it has no class folders, or one of
    them has no images or differs from another only in case.
    """
    path = Path(path)
    if not path.is_dir() and not zipfile.is_zipfile(path):
        raise InputError(f"There is no folder and no complete zip file {path}.")
    root = path if path.is_dir() else _unpack(path, access)
    folders = _class_folders(root)
    # A zip file often has one folder around everything.
    while len(folders) == 1 and _class_folders(folders[0]) and not any(map(_is_image, folders[0].iterdir())):
        root = folders[0]
        folders = _class_folders(root)
    if not folders:
        raise InputError(f"{path} has no class folders: put the images of each class into a folder of that name.")
    names = [folder.name for folder in folders]
    if set(names) <= SPLIT_FOLDERS and any(map(_class_folders, folders)):
        remedy = f"give --train_dir {path / names[0]} and so on"
        raise InputError(f"{path} has the folders {' and '.join(names)}, splits instead of classes: {remedy}.")
    if alike := alike_names(names):
        raise InputError(f"{path} has the class folders {' and '.join(alike)}, which differ only in case: join them.")
    with reading([path], "a folder of images"):
        files = [_files_in(folder) for folder in folders]
    images = [list(filter(_is_image, paths)) for paths in files]
    if [] in images:
        raise InputError(f"The class folder {folders[images.index([])]} has no images: add some, or remove it.")
    others = [str(path) for paths in files for path in paths if not _is_image(path)]
    if others:
        logger.warning("%d files of %s lack an image's ending and are left out: %s", len(others), path, listed(others))
    rows = {"image": [str(path) for paths in images for path in paths]}
    rows["label"] = [number for number, paths in enumerate(images) for _ in paths]
    features = datasets.Features({"image": datasets.Image(decode=False), "label": ClassLabel(names=names)})
    with reading([path], "a folder of images"):
        return Dataset.from_dict(rows, features=features)


def find_faults(
    dataset: Dataset, split: str, smallest: tuple[int, int], *, num_proc: int | None = None
) -> dict[str, list[str]]:
    """Decodes every image of a split, before any work that a bad one could end.

    `smallest` is the minimum height and width in pixels, those of a patch. Returns "fault" and "remark" of every image,
    as `image_fault` gives them.
    """
    found = dataset.select_columns(["image"]).map(
        lambda row: image_fault(row["image"], smallest),
        remove_columns=["image"],
        num_proc=num_proc,
        # The image under this name may be a new one.
        load_from_cache_file=False,
        desc=f"Checking {split} images",
    )
    return {name: found[name][:] for name in ("fault", "remark")}


def keep_good(dataset: Dataset, split: str, found: dict[str, list[str]], *, skip: bool = False) -> Dataset:
    """Returns the images without a fault, by what `find_faults` found, and logs how reading changes them; an InputError
    that names the first bad images if there are any, unless they are to be skipped and others are good.
    """

    def named(rows: list[int]) -> str:
        files = {row: dataset[row]["image"]["path"] or f"row {row + 1}" for row in rows[:5]}
        words = [f"{file} ({faults[row]})" if faults[row] else file for row, file in files.items()]
        return listed(words, total=len(rows))

    faults, remarks = found["fault"], found["remark"]
    bad = [row for row, fault in enumerate(faults) if fault]
    good = [row for row, fault in enumerate(faults) if not fault]
    words = f"{len(bad)} of the {len(dataset)} images of the {data_of(split)}"
    if bad and not (skip and good):
        advice = "Repair or remove them" + (", or give --skip_bad_images." if good else ".")
        raise InputError(f"{words} cannot be used: {named(bad)}. {advice}")
    if bad:
        logger.info("Skipped %s: %s", words, named(bad))
    for remark in sorted({remarks[row] for row in good} - {""}):
        rows = [row for row in good if remarks[row] == remark]
        logger.info("%d images of the %s are %s: %s", len(rows), data_of(split), remark, named(rows))
    return dataset.select(good) if bad else dataset


def image_fault(image: dict, smallest: tuple[int, int]) -> dict[str, str]:
    """Returns what is wrong with an image ("bytes", or a "path" to them) as "fault", and how reading changes it as
    "remark"; each is empty if there is nothing to say. `smallest` as for `find_faults`.
    """
    fault, remarks = "", []
    try:
        with PIL.Image.open(_source(image)) as picture:
            mode, (width, height) = picture.mode, picture.size
            # Reads a JPEG to its end, but leaves out most of the arithmetic.
            picture.draft("RGB", (1, 1))
            picture.load()
            if mode in DEEP_MODES:
                fault = f"pixels of more than 8 bits, mode {mode}"
            elif height < smallest[0] or width < smallest[1]:
                fault = f"{width}x{height} pixels, less than a patch of {smallest[1]}x{smallest[0]}"
            elif mode != "RGB":
                # Not every mode can be converted.
                PIL.Image.new(mode, (1, 1)).convert("RGB")
                remarks.append(f"converted from {mode} to RGB")
            if _upright(picture) is None:
                remarks.append("not turned upright, since their EXIF is damaged")
    except PIL.UnidentifiedImageError:
        fault = "not an image"
    except FileNotFoundError:
        fault = "no such file"
    except Exception as error:
        # Damaged files raise nearly any error in PIL.
        fault = f"cut off or damaged: {error or type(error).__name__}"
    return {"fault": fault, "remark": " and ".join(remarks)}


def decode(image: dict) -> PIL.Image.Image:
    """Returns the picture, upright and in RGB, from its "bytes" or its "path"."""
    with PIL.Image.open(_source(image)) as picture:
        return (_upright(picture) or picture).convert("RGB")


def _upright(picture: PIL.Image.Image) -> PIL.Image.Image | None:
    """The picture as the camera was held; None if its EXIF is damaged."""
    try:
        return PIL.ImageOps.exif_transpose(picture)
    except Exception:
        return None


def training_transform(
    size: tuple[int, int],
    mean: list[float],
    std: list[float],
    *,
    crop_scale: tuple[float, float] = (0.08, 1.0),
    horizontal_flip: float = 0.5,
    auto_augment: str | None = None,
) -> v2.Transform:
    """Returns a transform from a PIL image to pixels [3, *size]: random resized crop (bicubic), flip, AutoAugment
    (Cubuk et al., 2019), and normalization.

    `mean` and `std` are per channel, on a scale from 0 to 1; `crop_scale` is the smallest and largest area of the crop,
    as shares of the image; `auto_augment` is the policy for "imagenet", "cifar10" or "svhn".
    """
    steps: list[v2.Transform] = [
        v2.RandomResizedCrop(size, scale=crop_scale, interpolation=v2.InterpolationMode.BICUBIC, antialias=True),
        v2.RandomHorizontalFlip(horizontal_flip),
    ]
    if auto_augment is not None:
        # Areas that a shift or a rotation uncovers get the mean color.
        fill = [round(255 * channel) for channel in mean]
        steps.append(v2.AutoAugment(v2.AutoAugmentPolicy(auto_augment), fill=fill))
    steps += [v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(mean, std)]
    return v2.Compose(steps)


def mixing_transform(
    num_classes: int, mixup_alpha: float = 0.0, cutmix_alpha: float = 0.0, switch_prob: float = 0.5
) -> Callable | None:
    """Returns Mixup (Zhang et al., 2018) and CutMix (Yun et al., 2019) for batches of pixels and class ids. Alpha is
    the parameter of the Beta distribution of the share; 0 turns a method off (None if both are off). If both are on,
    `switch_prob` is the probability of CutMix.
    """
    mixup = v2.MixUp(alpha=mixup_alpha, num_classes=num_classes) if mixup_alpha > 0 else None
    cutmix = v2.CutMix(alpha=cutmix_alpha, num_classes=num_classes) if cutmix_alpha > 0 else None
    if mixup and cutmix:
        return v2.RandomChoice([cutmix, mixup], p=[switch_prob, 1 - switch_prob])
    return mixup or cutmix


class ImageCollator:
    """Makes "pixel_values" [batch, 3, height, width] and "labels" of rows with an "image", not decoded, and "labels".

    The labels are class ids [batch], or after mixing shares of the classes [batch, classes]. Rows of the training data
    also have an "index", and are augmented by `transform` and mixed by `mixing`; the image processor prepares others.
    """

    def __init__(
        self,
        processor: BaseImageProcessor,
        transform: v2.Transform | None = None,
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
        if "index" not in rows[0]:
            pixels = self.processor([decode(row["image"]) for row in rows], return_tensors="pt")["pixel_values"]
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
    """Seeds torch's random numbers on the CPU, which continue afterwards as if none had been drawn."""
    with torch.random.fork_rng(devices=[]):
        # Not `torch.manual_seed`, which would seed every accelerator too.
        seed = int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> 1)
        torch.default_generator.manual_seed(seed)
        yield


def _source(image: dict) -> str | io.BytesIO:
    return io.BytesIO(image["bytes"]) if image["bytes"] is not None else image["path"] or ""


def _unpack(path: Path, access: Access) -> Path:
    """The folder with the contents of a zip file, identified by its contents, not by its time."""
    with reading([path], "a zip file"):
        root = Path(access.cache_dir or datasets.config.HF_DATASETS_CACHE) / "unpacked"
        folder = root / f"{path.stem}-{content_hash([path])}"
        if folder.is_dir() and not access.overwrite_cache:
            return folder
        root.mkdir(parents=True, exist_ok=True)
        # It gets its name only when it is complete.
        with zipfile.ZipFile(path) as archive, tempfile.TemporaryDirectory(dir=root) as partial:
            outside = [name for name in archive.namelist() if name.startswith("/") or ".." in Path(name).parts]
            if outside:
                raise InputError(f"The zip file {path} holds {outside[0]}, outside its folder: pack it again.")
            size, free = sum(file.file_size for file in archive.infolist()), shutil.disk_usage(root).free
            if size > free:
                raise InputError(f"The zip file {path} needs {size:,} bytes and the disk has {free:,}: make room.")
            if size > max(1 << 30, 100 * path.stat().st_size):
                raise InputError(f"The zip file {path} unpacks to {size:,} bytes, too many for images: check it.")
            contents = Path(partial, "contents")
            contents.mkdir()
            archive.extractall(contents)
            shutil.rmtree(folder, ignore_errors=True)
            contents.rename(folder)
        return folder


def _class_folders(root: Path) -> list[Path]:
    # macOS adds a folder of its own to zip files.
    hidden = (".", "__MACOSX")
    return sorted(entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith(hidden))


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in IMAGE_ENDINGS and not path.name.startswith(".")


def _files_in(folder: Path) -> list[Path]:
    def stop(error: OSError):
        raise error

    paths = []
    for place, folders, files in os.walk(folder, onerror=stop):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found = [Path(place, name) for name in files if not name.startswith(".")]
        # Without pipes, which would block; a broken link is named later.
        paths += [path for path in found if path.is_file() or path.is_symlink()]
    return sorted(paths)
