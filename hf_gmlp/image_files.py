"""Images in folders."""

import os
from pathlib import Path

IMAGE_ENDINGS = (".jpg", ".jpeg", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")


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


def is_image(path: Path) -> bool:
    return path.suffix.lower() in IMAGE_ENDINGS and system_folder(path) is None


def reason_left_out(path: Path) -> str:
    """Return why a file is not an image, for a line with their numbers."""
    system = system_folder(path)
    return f"in {system}" if system else f"{path.suffix.lower() or path.name} (not a supported image)"
