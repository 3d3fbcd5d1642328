"""Pictures in folders."""

import os
from pathlib import Path

IMAGE_ENDINGS = (".jpg", ".jpeg", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")


def find_images(folder: Path) -> list[str]:
    """Return the paths of the pictures in a folder and its subfolders, relative to it, but for hidden ones, sorted."""
    found = []
    for parent, folders, files in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if not is_hidden(name)]
        names = [name for name in files if not is_hidden(name) and name.lower().endswith(IMAGE_ENDINGS)]
        found += [str(Path(parent, name).relative_to(folder)) for name in names]
    return sorted(found)


def is_hidden(name: str) -> bool:
    """Return whether a file or folder is one that systems add, such as .DS_Store, @eaDir or __MACOSX."""
    return name.startswith((".", "@", "__"))
