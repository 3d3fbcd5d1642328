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
SYSTEM_FOLDERS = ("@eaDir", "__MACOSX")
# A folder with one of these words in its name is a split, such as "seg_train", "Training" or "test_set".
SPLITS = {
    **dict.fromkeys(("train", "training", "trainval"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}


def find_images(folder: Path) -> tuple[list[Path], Counter[str]]:
    """Return the images in a folder and its subfolders, relative to it and sorted, and the numbers of other files by
    their extension, of empty folders, and of links to folders that were read already. Hidden files and folders of
    operating systems are ignored.
    """
    images, left_out, root = [], Counter[str](), os.path.realpath(folder)
    own, seen = {parent for parent, *_ in os.walk(root)}, set[str]()
    for parent, folders, files in os.walk(root, followlinks=True):
        real = os.path.realpath(parent)
        if real in seen or (real in own and real != parent):
            left_out["links to a folder that is read already"] += 1
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in SYSTEM_FOLDERS)
        if not folders and not files:
            left_out[f"empty folder ({Path(parent).name})"] += 1
        for path in (Path(parent, name).relative_to(root) for name in files if not name.startswith(".")):
            if path.suffix.lower() in IMAGE_ENDINGS:
                images.append(path)
            else:
                left_out[f"{path.suffix.lower() or path.name} (not a supported image)"] += 1
    return sorted(images), left_out


def read_folder(folder: Path) -> dict[str, Dataset]:
    """Return the splits of a folder as columns "image", its path, and "label", the name of its parent folder.

    Folders further up may be named after splits; if they name fewer than two, all images are "train". One log line
    names what is left out. There must be images in class folders.
    """
    if not folder.is_dir():
        raise InputError(f"There is no folder {folder}: unpack an archive, and pass the folder of its pictures.")
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
    if left_out:
        reasons = (f"{count} {reason}" for reason, count in left_out.most_common())
        logger.warning("Left out of %s: %s", folder, "; ".join(reasons))
    if has_splits:
        names = {split: {path.parent.parts[-2] for path in images if images[path] == split} for split in sorted(rows)}
        sources = ", ".join(f"{split} from {listed(sorted(folders))}" for split, folders in names.items())
        logger.info("Splits of %s: %s", folder, sources)
    return {split: Dataset.from_list(split_rows) for split, split_rows in rows.items()}


def split_of(path: Path) -> str | None:
    """Return the split after which a folder above the class folder of an image is named, if any."""
    words = [word for name in path.parent.parts[:-1] for word in re.split(r"[\W_]+", name.lower())]
    return next((SPLITS[word] for word in words if word in SPLITS), None)
