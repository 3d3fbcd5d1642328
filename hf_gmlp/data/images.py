"""Labeled images, not decoded: from the Hub, folders or files."""

import logging
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import datasets
from datasets import Dataset

from ..errors import InputError
from .files import COMPRESSIONS, FILE_KINDS, reading
from .labels import ONE_CLASS, Labels, hold_out_rows, number_labels
from .source import Source

logger = logging.getLogger(__name__)

IMAGE_ENDINGS = (".jpg", ".jpeg", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
SYSTEM_FOLDERS = ("@eaDir", "__MACOSX")
# A folder with one of these names is a split, in any case, also as "seg_train" or "test_set".
SPLITS = {
    **dict.fromkeys(("train", "training", "trainval"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}


def check_kind(model: str, data: str, is_image_model: bool) -> None:
    """Raise an InputError unless the data are a folder for an image model, and no folder for a text model."""
    if is_image_model == Path(data).is_dir():
        return
    if not is_image_model:
        raise InputError(f"{model} classifies a file of texts, which {data} is not: pass another model or other data.")
    if not Path(data).exists():
        raise InputError(f"There is no folder {data}: correct the path.")
    raise InputError(
        f"{model} classifies a folder of pictures, which {data} is not: pass the folder of the pictures, or another "
        "model."
    )


def find_images(folder: Path) -> list[Path]:
    """Return the images in a folder and its subfolders, relative to it and sorted. A warning says what else is in it,
    except for hidden files and folders of operating systems.

    Raises:
        InputError: If there are no images.
    """
    images, left_out, root = list[Path](), Counter[str](), os.path.realpath(folder)
    own, seen = {parent for parent, *_ in os.walk(root)}, set[str]()
    for parent, folders, files in os.walk(root, followlinks=True):
        real = os.path.realpath(parent)
        if real in seen or (real in own and real != parent):
            left_out["links to a folder that is read already"] += 1
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in SYSTEM_FOLDERS)
        count = len(images)
        for path in (Path(parent, name).relative_to(root) for name in files if not name.startswith(".")):
            if path.suffix.lower() in IMAGE_ENDINGS:
                images.append(path)
            else:
                left_out[f"{path.suffix.lower() or path.name} (not a supported image)"] += 1
        if parent != root and not folders and len(images) == count:
            left_out[f"folder without supported images ({Path(parent).relative_to(root)})"] += 1
    if left_out:
        reasons = "; ".join(f"{count} {reason}" for reason, count in left_out.most_common())
        logger.warning("Left out of %s: %s", folder, reasons)
    if not images:
        endings = ", ".join(IMAGE_ENDINGS)
        raise InputError(f"{folder} has no pictures of a supported format ({endings}): convert others to JPEG.")
    return sorted(images)


def read_folder(folder: Path) -> dict[str, Dataset]:
    """Return the splits of a folder as columns "image", its path, and "label", the name of its parent folder.

    Folders further up may be named after splits; if they name fewer than two, all images are "train".

    Raises:
        InputError: If the class folders of a split are not side by side, or are named like splits.
    """
    if not folder.is_dir():
        raise InputError(f"There is no folder {folder}: unpack an archive, and pass the folder of its pictures.")
    paths = find_images(folder)
    splits = {path: split_of(path) for path in paths if len(path.parts) > 1}
    if not splits:
        raise InputError(f"{folder} has no class folders: put the images of each class into a folder of that name.")
    if len({*splits.values()} - {None}) < 2:
        splits = dict.fromkeys(splits, "train")
    outside = Counter(path.parent.name or "the folder itself" for path in paths if splits.get(path) is None)
    for name, count in outside.items():
        logger.warning("Left out of %s: %d outside of class folders, in %s", folder, count, name)
    results = {}
    for split in dict.fromkeys(filter(None, splits.values())):
        images = [path for path in paths if splits.get(path) == split]
        class_folders = sorted({path.parent.parent: path.parent for path in reversed(images)}.values())
        if len(class_folders) > 1:
            raise InputError(
                f"The class folders of {folder} must be side by side, but pictures are in {class_folders[0]} and in "
                f"{class_folders[1]}: put the pictures of a class into one folder without subfolders ({folder}/CLASS "
                f"or {folder}/train/CLASS), or pass the folder above the class folders."
            )
        classes = sorted({path.parent.name for path in images})
        if all(map(split_named, classes)):
            raise InputError(
                f"The pictures of {folder} are in folders named like splits ({', '.join(classes)}), not in class "
                f"folders: put the pictures of each class into a folder such as {folder}/{class_folders[0]}/CLASS."
            )
        logger.info("Splits of %s: %d images for %s", folder, len(images), split)
        columns = {"image": [str(folder / path) for path in images], "label": [path.parent.name for path in images]}
        results[split] = Dataset.from_dict(columns)
    return results


def split_of(path: Path) -> str | None:
    """Return the split after which a folder above the class folder of an image is named, if any."""
    return next(filter(None, map(split_named, path.parent.parts[:-1])), None)


def split_named(name: str) -> str | None:
    """Return the split that a folder of this name holds, if any."""
    return SPLITS.get(name.lower().removeprefix("seg_").removesuffix("_set"))


def load_images(
    source: Source,
    *,
    image_column: str = "image",
    label_column: str = "label",
    trained: Labels | None = None,
    train: bool = True,
    validate: bool = True,
    held_out: float = 0.15,
    seed: int = 0,
    max_rows: Mapping[str, int | None] | None = None,
) -> tuple[dict[str, Dataset], Labels]:
    """Return splits with columns "image", not decoded ("bytes" and "path"), and "labels", class ids; and the classes.

    The classes are those of the training data, in the order of `trained`, if a checkpoint was trained on the same
    classes, else in the dataset's own order, else sorted.

    Args:
        source: Its files are folders (see `read_folder`), or files with a column of images or of their paths.
        train, validate: Whether training and validation data are needed.
        held_out: Fraction of each class to hold out if there are no validation data.
        seed: Seed of the rows that are held out, and of the sample for `max_rows`.
        max_rows: Maximum number of rows of "train" and "validation".

    Raises:
        InputError: If something needed is missing or empty, or the training data lack a class of the validation data.
    """
    endings = {Path(path).suffix.lower().removeprefix(".") for paths in source.files.values() for path in paths}
    if not endings <= {*FILE_KINDS, *COMPRESSIONS}:
        splits: dict[str, Dataset] = {}
        for split, paths in source.files.items():
            folders = read_folder(Path(paths[0]))
            # A folder of training images may have several splits.
            wanted = next((name for name in (split, "test", "train") if name in folders), split)
            splits |= folders if split == "train" else {split: folders[wanted]}
        image_column, label_column = "image", "label"
    else:
        splits = source.load()
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
        splits["train"], splits["validation"] = hold_out_rows(splits["train"], held_out, seed)
    splits = {split: rows for split, rows in splits.items() if (train if split == "train" else validate)}
    for split, rows in splits.items():
        limit = (max_rows or {}).get(split)
        if limit is not None and limit < len(rows):
            # A random sample, since the rows of folders are ordered by class.
            splits[split] = rows.shuffle(seed=seed).select(range(limit))
    return splits, labels
