"""Replaces the helper that downloads test pictures: makes a picture instead."""

import os

import numpy as np
from PIL import Image

from ..fetch import CACHE_FOLDER

PICTURE = CACHE_FOLDER / "waves.png"


def url_to_local_path(url: str) -> str:
    """Return the path of the same picture for every address: 640 x 480 RGB waves, as smooth as a photograph.

    The backends of an image processor interpolate differently: on noise they would differ too much to compare.
    """
    if not PICTURE.exists():
        y, x = np.mgrid[0:480, 0:640]
        waves = [np.sin(x / 40) + np.cos(y / 50), np.sin((x + y) / 60), np.cos((x - y) / 70) * np.sin(y / 90)]
        pixels = np.stack([(wave - wave.min()) / (wave.max() - wave.min()) for wave in waves], axis=-1)
        # Several workers may write the picture at the same time, so it is written atomically.
        unfinished = PICTURE.with_suffix(f".{os.getpid()}.png")
        Image.fromarray((pixels * 255).astype(np.uint8)).save(unfinished)
        unfinished.replace(PICTURE)
    return str(PICTURE)
