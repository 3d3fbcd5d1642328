"""Images with a class each: from the Hub, folders or files, to batches of augmented pixels.

Images stay undecoded until the collator, which runs in the worker processes of the data loader, makes a batch of them.
What happens to an image is a function of the image's number, the seed and the epoch, and what is mixed into a batch is
one of the batch's images: neither depends on the number of worker processes or devices, nor on whether the run was cut
off and resumed.
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
from .labels import ONE_CLASS, LabeledData, Labels, alike_names, data_of, number_labels

logger = logging.getLogger(__name__)

IMAGE_ENDINGS = (".jpg", ".jpeg", ".jfif", ".png", ".webp", ".avif", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
# Pixels of more than eight bits: converting them to RGB would cut off all that is above 255.
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
    """
    The images of a data set on the Hub, of folders (or zip files) with a folder for every class, or of files (parquet
    with images in it; csv or json with the paths of images): columns "image", not decoded (a dictionary of "bytes" and
    "path"), and "labels", class ids.

    The classes are those of the training data, in the order of the data set's own names, else of the alphabet. A
    checkpoint that tells the same classes keeps its order.

    Args:
        dataset_name: Taken if neither folders nor files are named, so that a recipe may name it.
        known: The classes of the checkpoint, in its order.
        train, validate: What is needed.
        train_val_split: Share of the training images that is held out if there are no validation data.
        max_samples: At most so many images of "train" and "validation", drawn with the seed.

    Raises:
        InputError: If no data or two kinds of them are named, something needed is missing or empty, cannot be read, or
            has a class that the training data do not have.
    """
    folders = {split: path for split, path in (("train", train_dir), ("validation", validation_dir)) if path}
    files = {split: paths for split, paths in (("train", train_files), ("validation", validation_files)) if paths}
    if (folders and files) or not (folders or files or dataset_name):
        raise InputError(
            "Name the images, in one way: --dataset_name for a data set on the Hub, --train_dir and --validation_dir "
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
        raise InputError(f"The column {label_column!r} must have one class per image, and has lists.")
    for split, dataset in found.items():
        with reading([f"The column {image_column!r} of the {data_of(split)}"], "images or paths"):
            dataset = dataset.select_columns([image_column]).rename_columns({image_column: "image"})
            dataset = dataset.cast_column("image", datasets.Image(decode=False))
        # A new column: one that is mapped in place may turn back into strings.
        found[split] = dataset.add_column("labels", ids[split])
    missing = set(range(len(labels.names))).difference(ids.get("validation", ())) if len(found) == 2 else ()
    if missing:
        names = [labels.names[number] for number in sorted(missing)]
        logger.warning("The validation data have no images of %s.", _listed(names))
    if validate and "validation" not in found:
        try:
            held_out = found["train"].train_test_split(train_val_split, seed=seed)
        except ValueError as error:
            raise InputError(
                f"{len(found['train'])} training images are too few to hold out {train_val_split:g} of them: give "
                f"validation images, or another --train_val_split."
            ) from error
        found = {"train": held_out["train"], "validation": held_out["test"]}
    splits = {}
    for split in (split for split, needed in (("train", train), ("validation", validate)) if needed):
        dataset, limit = found[split], (max_samples or {}).get(split)
        # Drawn, since folders come class by class.
        few = limit is not None and limit < len(dataset)
        splits[split] = dataset.shuffle(seed=seed).select(range(limit)) if few else dataset
    return LabeledData(splits, *labels)


def read_folder(path: str | Path, access: Access = Access()) -> Dataset:
    """
    The images of a folder of class folders, plain or as a zip file, which is unpacked into the cache once: columns
    "image", not decoded, and "label", in the order of the alphabet.

    Raises:
        InputError: If there is no such folder, it cannot be unpacked or read, it has no class folders, one of these has
            no images, or two differ only in case.
    """
    path = Path(path)
    if not path.is_dir() and not zipfile.is_zipfile(path):
        raise InputError(f"There is no folder and no whole zip file {path}.")
    root = path if path.is_dir() else _unpack(path, access)
    folders = _class_folders(root)
    # A zip file often has one folder around everything.
    while len(folders) == 1 and _class_folders(folders[0]) and not any(map(_is_image, folders[0].iterdir())):
        root = folders[0]
        folders = _class_folders(root)
    if not folders:
        raise InputError(f"{path} has no class folders: put the images of each class into a folder of its name.")
    names = [folder.name for folder in folders]
    if set(names) <= SPLIT_FOLDERS and any(map(_class_folders, folders)):
        raise InputError(
            f"{path} has the folders {' and '.join(names)}, which look like splits and not like classes: give "
            f"--train_dir {path / names[0]} and so on."
        )
    if alike := alike_names(names):
        raise InputError(f"{path} has the class folders {' and '.join(alike)}, which differ only in case: join them.")
    with reading([path], "a folder of images"):
        files = [_files_in(folder) for folder in folders]
    images = [list(filter(_is_image, paths)) for paths in files]
    if [] in images:
        raise InputError(f"The class folder {folders[images.index([])]} has no images: add some, or remove it.")
    others = [str(path) for paths in files for path in paths if not _is_image(path)]
    if others:
        logger.warning(
            "%d files of %s do not end as images do and are left out: %s", len(others), path, _listed(others)
        )
    with reading([path], "a folder of images"):
        return Dataset.from_dict(
            {
                "image": [str(path) for paths in images for path in paths],
                "label": [number for number, paths in enumerate(images) for _ in paths],
            },
            features=datasets.Features({"image": datasets.Image(decode=False), "label": ClassLabel(names=names)}),
        )


def find_faults(
    dataset: Dataset, split: str, smallest: tuple[int, int], *, num_proc: int | None = None
) -> dict[str, list[str]]:
    """
    Decodes every image of a split once, before any work that a bad one could end.

    Args:
        smallest: Height and width in pixels that an image must have at least: those of a patch.

    Returns:
        For every image what `image_fault` says of it: "fault" and "remark".
    """
    found = dataset.select_columns(["image"]).map(
        lambda row: image_fault(row["image"], smallest),
        remove_columns=["image"],
        num_proc=num_proc,
        # Another image may have come under an old name.
        load_from_cache_file=False,
        desc=f"Checking {split} images",
    )
    return {name: found[name][:] for name in ("fault", "remark")}


def keep_good(dataset: Dataset, split: str, found: dict[str, list[str]], *, skip: bool = False) -> Dataset:
    """
    The images that can be used, by what `find_faults` found. What is changed in them when they are read is said.

    Raises:
        InputError: If an image is bad and not to be skipped, or none is good. It names the first bad ones.
    """

    def named(rows: list[int]) -> str:
        files = {row: dataset[row]["image"]["path"] or f"row {row + 1}" for row in rows[:5]}
        return _listed([f"{file} ({faults[row]})" if faults[row] else file for row, file in files.items()], len(rows))

    faults, remarks = found["fault"], found["remark"]
    bad = [row for row, fault in enumerate(faults) if fault]
    good = [row for row, fault in enumerate(faults) if not fault]
    words = f"{len(bad)} of the {len(dataset)} images of the {data_of(split)}"
    if bad and not (skip and good):
        advice = "Mend or remove them" + (", or give --skip_bad_images." if good else ".")
        raise InputError(f"{words} cannot be used: {named(bad)}. {advice}")
    if bad:
        logger.info("Skipped %s: %s", words, named(bad))
    for remark in sorted({remarks[row] for row in good} - {""}):
        rows = [row for row in good if remarks[row] == remark]
        logger.info("%d images of the %s are %s: %s", len(rows), data_of(split), remark, named(rows))
    return dataset.select(good) if bad else dataset


def image_fault(image: dict, smallest: tuple[int, int]) -> dict[str, str]:
    """
    What is wrong with an image ("fault"), and what is changed when it is read ("remark"); each is empty if nothing is.

    Args:
        image: "bytes", or the "path" to read them from.
        smallest: As for `find_faults`.
    """
    fault, remarks = "", []
    try:
        with PIL.Image.open(_source(image)) as picture:
            mode, (width, height) = picture.mode, picture.size
            # A JPEG is read to its end, but most of the arithmetic is left out.
            picture.draft("RGB", (1, 1))
            picture.load()
            if mode in DEEP_MODES:
                fault = f"pixels of more than 8 bits, mode {mode}"
            elif height < smallest[0] or width < smallest[1]:
                fault = f"{width}x{height} pixels, less than a patch of {smallest[1]}x{smallest[0]}"
            elif mode != "RGB":
                # Not every mode can be.
                PIL.Image.new(mode, (1, 1)).convert("RGB")
                remarks.append(f"converted from {mode} to RGB")
            if _upright(picture) is None:
                remarks.append("not turned upright, as their EXIF is damaged")
    except PIL.UnidentifiedImageError:
        fault = "no image"
    except FileNotFoundError:
        fault = "no such file"
    except Exception as error:
        # There is hardly an error that damaged files do not raise somewhere in PIL.
        fault = f"cut off or damaged: {error or type(error).__name__}"
    return {"fault": fault, "remark": " and ".join(remarks)}


def decode(image: dict) -> PIL.Image.Image:
    """The picture, upright and in RGB, from its "bytes" or its "path"."""
    with PIL.Image.open(_source(image)) as picture:
        return (_upright(picture) or picture).convert("RGB")


def _upright(picture: PIL.Image.Image) -> PIL.Image.Image | None:
    """As the camera was held; None if its EXIF is damaged."""
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
    """
    Random resized crop (bicubic), flip, AutoAugment (Cubuk et al., 2019), and normalization: from a PIL image to
    pixels [3, *size].

    Args:
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
    if mixup and cutmix:
        return v2.RandomChoice([cutmix, mixup], p=[switch_prob, 1 - switch_prob])
    return mixup or cutmix


class ImageCollator:
    """
    From rows with an "image", not decoded, and "labels" to "pixel_values" [batch, 3, height, width] and "labels": class
    ids [batch], or after mixing shares of the classes [batch, classes]. Rows of the training data have an "index"
    besides, and are augmented and mixed; others are prepared by the image processor.

    Args:
        transform: From a PIL image to pixels [3, height, width].
        mixing: From pixels and class ids to mixed pixels and shares.
        seed: What augmentation and mixing are drawn from.
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
    """torch's random numbers on the CPU follow from some numbers, and go on afterwards as if nothing had been drawn."""
    with torch.random.fork_rng(devices=[]):
        # Not `torch.manual_seed`, which would seed every accelerator too.
        seed = int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> 1)
        torch.default_generator.manual_seed(seed)
        yield


def _source(image: dict) -> str | io.BytesIO:
    return io.BytesIO(image["bytes"]) if image["bytes"] is not None else image["path"] or ""


def _unpack(path: Path, access: Access) -> Path:
    """The folder with the contents of a zip file, found by what is in it, not by its time."""
    with reading([path], "a zip file"):
        root = Path(access.cache_dir or datasets.config.HF_DATASETS_CACHE) / "unpacked"
        folder = root / f"{path.stem}-{content_hash([path])}"
        if folder.is_dir() and not access.overwrite_cache:
            return folder
        root.mkdir(parents=True, exist_ok=True)
        # Under its name only when it is whole.
        with zipfile.ZipFile(path) as archive, tempfile.TemporaryDirectory(dir=root) as partial:
            outside = [name for name in archive.namelist() if name.startswith("/") or ".." in Path(name).parts]
            if outside:
                raise InputError(f"The zip file {path} holds {outside[0]}, outside of its folder: pack it anew.")
            size, free = sum(file.file_size for file in archive.infolist()), shutil.disk_usage(root).free
            if size > free:
                raise InputError(f"The zip file {path} needs {size:,} bytes and the disk has {free:,}: make room.")
            if size > max(1 << 30, 100 * path.stat().st_size):
                raise InputError(f"The zip file {path} would become {size:,} bytes, which no images do: look into it.")
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
        # Not pipes, which would be waited for; a broken link is named later.
        paths += [path for path in found if path.is_file() or path.is_symlink()]
    return sorted(paths)


def _listed(names: list[str], count: int | None = None) -> str:
    """The first five of some names, and how many more there are."""
    more = (count or len(names)) - 5
    return ", ".join(names[:5]) + (f" and {more} more" if more > 0 else "")
