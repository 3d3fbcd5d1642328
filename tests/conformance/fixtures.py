"""Write the picture that the common tests of image processors would download."""

from pathlib import Path

import numpy as np
from PIL import Image

PICTURE = "waves.png"


def write_picture(path: Path) -> None:
    """Write a 640 x 480 RGB picture of waves, as smooth as a photograph.

    The backends of an image processor interpolate differently: on noise they would differ too much to compare.
    """
    y, x = np.mgrid[0:480, 0:640]
    waves = [np.sin(x / 40) + np.cos(y / 50), np.sin((x + y) / 60), np.cos((x - y) / 70) * np.sin(y / 90)]
    picture = np.stack([(wave - wave.min()) / (wave.max() - wave.min()) for wave in waves], axis=-1)
    Image.fromarray((picture * 255).astype(np.uint8)).save(path)
