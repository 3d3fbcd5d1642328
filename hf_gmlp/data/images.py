"""Labeled images, not decoded: from the Hub, folders or files."""

import logging
import os
import re
from collections import Counter, defaultdict
from pathlib import Path

from datasets import Dataset

from ..errors import InputError, listed

logger = logging.getLogger(__name__)

IMAGE_ENDINGS = (".jpg", ".jpeg", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")

# A folder with one of these words in its name is a split, such as "seg_train", "Training" or "test_set".
SPLITS = {
    **dict.fromkeys(("train", "training", "trainval"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}


def walk_files(folder: Path) -> list[Path]:
    """Return the files in a folder and its subfolders, relative to it and sorted, without those named ".something"."""
    paths = []
    for parent, folders, files in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths += [Path(parent, name).relative_to(folder) for name in files if not name.startswith(".")]
    return sorted(paths)


def system_folder(path: Path) -> str | None:
    """Return the part of a path that is a folder of an operating system, such as @eaDir or __MACOSX, if any."""
    return next((part for part in path.parts if part.startswith(("@", "__"))), None)


def find_images(folder: Path) -> tuple[list[Path], Counter[str]]:
    """Return the images in a folder and its subfolders, relative to it, and why how many other files are left out."""
    images, left_out = [], Counter[str]()
    for path in walk_files(folder):
        system = system_folder(path)
        if system is None and path.suffix.lower() in IMAGE_ENDINGS:
            images.append(path)
        else:
            left_out[f"in {system}" if system else f"{path.suffix.lower() or path.name} (not a supported image)"] += 1
    return images, left_out


def read_folder(folder: Path) -> dict[str, Dataset]:
    """Return the splits of a folder as columns "image", its path, and "label", the name of its parent folder.

    Folders further up may be named after splits; if they name fewer than two, all images are "train". One log line
    names what is left out.

    Raises:
        InputError: If there are no images in class folders.
    """
    if not folder.is_dir():
        advice = f"unpack it (python -m zipfile -e {folder} photos), and name the folder"
        raise InputError(f"{folder} is a file: {advice}." if folder.is_file() else f"There is no folder {folder}.")
    paths, left_out = find_images(folder)
    images = {path: split_of(path) for path in paths if len(path.parts) > 1}
    has_splits = len(set(images.values()) - {None}) > 1
    rows: dict[str, list[dict[str, str]]] = defaultdict(list)
    for path in paths:
        split = images.get(path) if has_splits else "train"
        if path in images and split is not None:
            rows[split].append({"image": str(folder / path), "label": path.parent.name})
        else:
            left_out[f"outside of class folders, in {path.parent.name or 'the folder itself'}"] += 1
    if not rows:
        raise InputError(f"{folder} has no class folders: put the images of each class into a folder of that name.")
    used = {parent for path in images for parent in path.parents}
    subfolders = [path.relative_to(folder) for path in sorted(folder.rglob("*/"))]
    empty = {path.name: None for path in subfolders if path not in used and not re.match("[.@]|__", path.name)}
    notes = [f"{count} {reason}" for reason, count in left_out.most_common()]
    notes += [f"folders without images: {listed([*empty])}"] if empty else []
    if notes:
        logger.warning("Left out of %s: %s", folder, "; ".join(notes))
    if has_splits:
        names = {split: {path.parent.parts[-2] for path in images if images[path] == split} for split in sorted(rows)}
        words = ", ".join(f"{split} from {listed(sorted(folders))}" for split, folders in names.items())
        logger.info("Splits of %s: %s", folder, words)
    return {split: Dataset.from_list(split_rows) for split, split_rows in rows.items()}


def split_of(path: Path) -> str | None:
    """Return the split after which a folder above the class folder of an image is named, if any."""
    words = [word for name in path.parent.parts[:-1] for word in re.split(r"[\W_]+", name.lower())]
    return next((SPLITS[word] for word in words if word in SPLITS), None)
