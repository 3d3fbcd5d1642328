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
from dataclasses import dataclass
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
from .labels import ONE_CLASS, Labels, data_of, find_labels, in_known_order, label_ids, read_labels

logger = logging.getLogger(__name__)

IMAGE_ENDINGS = (".jpg", ".jpeg", ".jfif", ".png", ".webp", ".avif", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
# Pixels of more than eight bits: converting them to RGB would cut off all that is above 255.
DEEP_MODES = ("I", "F", "I;16", "I;16B", "I;16L", "I;16N")
SPLIT_FOLDERS = {"train", "val", "valid", "validation", "test"}
# A zip file that unpacks to so many times its size, and above so many bytes, is made to fill the disk.
BOMB_RATIO, BOMB_SIZE = 100, 1 << 30


@dataclass
class Images:
    """What `load_images` gives."""

    splits: dict[str, Dataset]
    """ "train" and "validation", with the columns "image", not decoded (a dictionary of "bytes" and "path"), and
    "labels", class ids."""
    labels: Labels
    """One class per image."""


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
) -> Images:
    """
    The images of a data set on the Hub, of folders (or zip files) with a folder for every class, or of files (parquet
    with images in it; csv or json with the paths of images).

    The classes are those of the training data, in the order of the data set's own names, else of the alphabet. A
    checkpoint that tells the same classes keeps its order.

    Args:
        dataset_name: Taken if neither folders nor files are named, so that a recipe may name it.
        train_dir, validation_dir: A folder of class folders, plain or as a zip file.
        known: The classes of the checkpoint, in its order.
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
    if not any(kinds):
        loaded = load_data(dataset_name=dataset_name, dataset_config_name=dataset_config_name, access=access)
        held_out = next((split for split in ("validation", "valid", "val", "test") if split in loaded), None)
        places = {"train": "train", "validation": held_out}
        found = {split: loaded[place] for split, place in places.items() if place in loaded}
    elif any(folders.values()):
        found = {split: read_folder(folder, access) for split, folder in folders.items() if folder is not None}
        image_column, label_column = "image", "label"
    else:
        given = {split: paths for split, paths in files.items() if paths}
        found = dict(load_data(files=given, access=access, text_columns=(image_column, label_column)))
    source = "train" if "train" in found else "validation"
    if source not in found or (train and source == "validation"):
        raise InputError("There are no training images: give --train_dir, --train_file or a --dataset_name with them.")
    values = {}
    for split, dataset in found.items():
        _check_columns(dataset, split, image_column, label_column)
        values[split] = read_labels(dataset, label_column, split)
    labels = find_labels(found[source].features[label_column], values[source], source, False)
    if labels.problem_type != ONE_CLASS:
        raise InputError(f"The column {label_column!r} of the {data_of(source)} must have one class per image.")
    labels = in_known_order(labels, known, train)
    for split, dataset in found.items():
        ids = label_ids(values[split], labels, split)
        dataset = dataset.select_columns([image_column]).rename_columns({image_column: "image"})
        try:
            dataset = dataset.cast_column("image", datasets.Image(decode=False))
        except (TypeError, ValueError, NotImplementedError) as error:
            raise InputError(
                f"The column {image_column!r} of the {data_of(split)} must hold images or paths."
            ) from error
        # A new column: one that is mapped in place may turn back into strings.
        found[split] = dataset.add_column("labels", ids)
        missing = (
            [name for number, name in enumerate(labels.names) if number not in set(ids)] if split != source else []
        )
        if missing:
            logger.warning("The %s have no images of %s.", data_of(split), _listed(missing[:5], len(missing)))
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
    return Images(splits, labels)


def read_folder(path: str | Path, access: Access = Access()) -> Dataset:
    """
    The images of a folder of class folders, plain or as a zip file, which is unpacked into the cache once.

    Returns:
        Columns "image", not decoded, and "label", the alphabet's order.

    Raises:
        InputError: If there is no such folder, it cannot be unpacked or read, it has no class folders, one of these has
            no images, or two differ only in case.
    """
    path = Path(path)
    if path.is_file() and not zipfile.is_zipfile(path):
        raise InputError(f"{path} is neither a folder nor a whole zip file of class folders.")
    if not path.exists():
        raise InputError(f"There is no folder {path}.")
    root = path if path.is_dir() else _unpack(path, access)
    folders = _class_folders(root)
    # A zip file often has one folder around everything.
    while len(folders) == 1 and _class_folders(folders[0]) and not any(map(_is_image, folders[0].iterdir())):
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
    alike: dict[str, str] = {}
    for name in names:
        other = alike.setdefault(name.strip().casefold(), name)
        if other != name:
            raise InputError(f"{path} has the class folders {other} and {name}, which differ only in case: join them.")
    with reading([path], "a folder of images"):
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
        For every image what `image_fault` says of it: "fault", "mode" and "exif".
    """
    found = dataset.select_columns(["image"]).map(
        lambda row: image_fault(row["image"], smallest),
        remove_columns=["image"],
        num_proc=num_proc,
        # Another image may have come under an old name.
        load_from_cache_file=False,
        desc=f"Checking {split} images",
    )
    return {name: found[name][:] for name in ("fault", "mode", "exif")}


def keep_good(dataset: Dataset, split: str, found: dict[str, list[str]], *, skip: bool = False) -> Dataset:
    """
    The images that can be used. Those that are not in RGB are converted when they are read, and those whose EXIF is
    damaged are not turned; that they are there is said.

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
    for rows, words, remark in (
        ([row for row in good if modes[row] != "RGB"], modes, "not RGB and are converted"),
        ([row for row in good if found["exif"][row]], found["exif"], "not turned upright, as their EXIF is damaged"),
    ):
        if rows:
            named = _listed([f"{image_name(dataset, row)} ({words[row]})" for row in rows[:5]], len(rows))
            logger.info("%d images of the %s are %s: %s", len(rows), data, remark, named)
    return dataset.select(good) if bad else dataset


def image_fault(image: dict, smallest: tuple[int, int]) -> dict[str, str]:
    """
    What is wrong with an image ("fault", empty if nothing is), its "mode" in PIL's words ("RGB", "L", "CMYK", ...), and
    what is wrong with its "exif".

    Args:
        image: "bytes", or the "path" to read them from.
        smallest: Height and width in pixels that it must have at least.
    """
    mode = fault = exif = ""
    try:
        with PIL.Image.open(_source(image)) as picture:
            mode, (width, height) = picture.mode, picture.size
            # A JPEG is read to its end, but most of the arithmetic is left out.
            picture.draft("RGB", (1, 1))
            picture.load()
            exif = "" if _upright(picture) is not None else "damaged"
            if mode not in DEEP_MODES:
                # Not every mode can be.
                PIL.Image.new(mode, (1, 1)).convert("RGB")
    except PIL.UnidentifiedImageError:
        fault = "no image"
    except FileNotFoundError:
        fault = "no such file"
    except Exception as error:
        # There is hardly an error that damaged files do not raise somewhere in PIL.
        fault = f"cut off or damaged: {error or type(error).__name__}"
    if not fault and (height < smallest[0] or width < smallest[1]):
        fault = f"{width}x{height} pixels, less than a patch of {smallest[1]}x{smallest[0]}"
    if not fault and mode in DEEP_MODES:
        fault = f"pixels of more than 8 bits, mode {mode}"
    return {"fault": fault, "mode": mode, "exif": exif}


def decode(image: dict) -> PIL.Image.Image:
    """
    The picture, upright and in RGB.

    Args:
        image: "bytes", or the "path" to read them from.
    """
    with PIL.Image.open(_source(image)) as picture:
        return (_upright(picture) or picture).convert("RGB")


def _upright(picture: PIL.Image.Image) -> PIL.Image.Image | None:
    """As the camera was held; None if its EXIF is damaged."""
    try:
        return PIL.ImageOps.exif_transpose(picture)
    except Exception:
        return None


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
            _check_archive(path, archive, shutil.disk_usage(root).free)
            archive.extractall(Path(partial, "contents"))
            shutil.rmtree(folder, ignore_errors=True)
            os.rename(Path(partial, "contents"), folder)
        return folder


def _check_archive(path: Path, archive: zipfile.ZipFile, free: int):
    files = archive.infolist()
    size = sum(file.file_size for file in files)
    outside = [file.filename for file in files if file.filename.startswith("/") or ".." in Path(file.filename).parts]
    if not files:
        raise InputError(f"The zip file {path} is empty.")
    if any(file.flag_bits & 1 for file in files):
        raise InputError(f"The zip file {path} needs a password: unpack it, and give the folder.")
    if outside:
        raise InputError(
            f"The zip file {path} holds {outside[0]}, which would lie outside of its folder: pack it anew."
        )
    if size > max(BOMB_SIZE, BOMB_RATIO * path.stat().st_size):
        raise InputError(f"The zip file {path} would become {size:,} bytes, too many for images: look what is in it.")
    if size > free:
        raise InputError(f"The zip file {path} needs {size:,} bytes and the disk has {free:,}: make room.")


def _class_folders(root: Path) -> list[Path]:
    # macOS adds a folder of its own to zip files.
    hidden = (".", "__MACOSX")
    return sorted(entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith(hidden))


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in IMAGE_ENDINGS and not path.name.startswith(".")


def _images_in(folder: Path) -> list[Path]:
    def stop(error: OSError):
        raise error

    images = []
    for place, folders, files in os.walk(folder, onerror=stop):
        folders[:] = [name for name in folders if not name.startswith(".")]
        images += [path for path in (Path(place, name) for name in files) if _is_image(path)]
    return sorted(images)


def _check_columns(dataset: Dataset, split: str, image_column: str, label_column: str):
    if image_column == label_column:
        raise InputError(f"--image_column_name and --label_column_name both name {image_column!r}: name two columns.")
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


def _listed(names: list[str], count: int | None = None) -> str:
    """Names parted by commas, and how many more there are."""
    more = (count or len(names)) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")
