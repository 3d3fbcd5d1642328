"""Labeled images, not decoded: from the Hub, folders or files."""

import logging
import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path

import datasets
from datasets import Dataset
from tqdm import tqdm

from ...errors import InputError, listed
from ...image_files import is_image, reason_left_out, walk_files
from ...processor import decode
from ...training.files import Access, load_data
from ..classification import hold_out
from ..labels import ONE_CLASS, Labels, number_labels
from .arguments import ImageArguments

logger = logging.getLogger(__name__)

# A folder with one of these words in its name is a split, such as "seg_train", "Training" or "test_set".
SPLITS = {
    **dict.fromkeys(("train", "training", "trainval"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}


def load_images(
    arguments: ImageArguments,
    *,
    trained: Labels | None = None,
    train: bool = True,
    validate: bool = True,
    seed: int = 0,
    access: Access = Access(),
) -> tuple[dict[str, Dataset], Labels]:
    """Return splits with columns "image", not decoded ("bytes" and "path"), and "labels", class ids; and the classes.

    The classes are those of the training data, in the order of `trained`, if a checkpoint was trained on the same
    classes, else in the data set's own order, else sorted.

    Raises:
        InputError: If something needed is missing or empty, or the training data lack a class of the validation data.
    """
    image_column, label_column = arguments.image_column_name, arguments.label_column_name
    if arguments.train_dir or arguments.validation_dir:
        splits = read_folder(Path(arguments.train_dir)) if arguments.train_dir else {}
        if arguments.validation_dir:
            folders = read_folder(Path(arguments.validation_dir))
            splits["validation"] = next(folders[name] for name in ("validation", "test", "train") if name in folders)
        image_column, label_column = "image", "label"
    else:
        source: dict = {"dataset_name": arguments.dataset_name, "dataset_config_name": arguments.dataset_config_name}
        source |= {"files": arguments.files(), "access": access, "text_columns": (image_column, label_column)}
        splits = dict(load_data(**source))
    validation = next((splits[name] for name in ("validation", "valid", "val", "test") if name in splits), None)
    parts = {"train": splits.get("train"), "validation": validation}
    splits = {split: rows for split, rows in parts.items() if rows is not None}
    if not splits or (train and "train" not in splits):
        raise InputError("There are no training images: pass --train_dir, --train_file or a --dataset_name with them.")
    options: dict = {"trained": trained, "train": train, "do_regression": False}
    splits, labels = number_labels(splits, [image_column], label_column, **options)
    if labels.problem_type != ONE_CLASS:
        raise InputError(f"The column {label_column!r} must have one class per image: pass --label_column_name.")
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
            # A random sample, since the rows of folders are ordered by class.
            splits[split] = splits[split].shuffle(seed=seed).select(range(limit))
    return splits, labels


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
    paths = walk_files(folder)
    images = {path: split_of(path) for path in paths if is_image(path) and len(path.parts) > 1}
    has_splits = len(set(images.values()) - {None}) > 1
    rows: dict[str, list[dict[str, str]]] = defaultdict(list)
    left_out: Counter[str] = Counter()
    for path in paths:
        split = images.get(path) if has_splits else "train"
        if path in images and split is not None:
            rows[split].append({"image": str(folder / path), "label": path.parent.name})
        elif is_image(path):
            left_out[f"outside of class folders, in {path.parent.name or 'the folder itself'}"] += 1
        else:
            left_out[reason_left_out(path)] += 1
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


def check_images(splits: Mapping[str, Dataset]):
    """Raise an InputError if an image file is missing, or a validation image cannot be decoded."""
    for split, dataset in splits.items():
        for image in tqdm(dataset["image"], desc=f"Checking {split} images", delay=1):
            if split == "validation":
                decode(image)
            elif image["bytes"] is None and not Path(image["path"]).is_file():
                raise InputError(f"{image['path']}, named in the {split} data, does not exist: correct the path.")
