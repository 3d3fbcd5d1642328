"""Decoding of images, and image processors for evaluation. This module needs Pillow and torchvision."""

import io
import struct
from collections.abc import Sequence

import PIL.Image
import PIL.ImageOps
import PIL.JpegImagePlugin
from transformers import BaseImageProcessor, ConvNextImageProcessor, ViTImageProcessor
from transformers.image_utils import PILImageResampling

from .errors import InputError, first_line

# Pillow's readers of other formats, such as EPS, may run programs.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")
# Modes with more than eight bits per channel, whose conversion to RGB would clip values above 255.
DEEP_MODES = ("I", "F", "I;16", "I;16B", "I;16L", "I;16N")
# Errors of Pillow for files that are corrupted or not images. OSError includes UnidentifiedImageError.
DECODING_ERRORS = (OSError, ValueError, SyntaxError, EOFError, struct.error, PIL.Image.DecompressionBombError)
# JPEG files with more pixels are reduced by 2, 4 or 8 while they are decoded, and those beyond the maximum are refused.
# Other formats cannot be reduced before they are in memory, and have Pillow's own limit.
LARGE, MAX_JPEG_PIXELS = 25_000_000, 250_000_000
# From this size on, transformers' ConvNeXT processor does not crop, but resizes the image to a square.
LARGEST_CROP = 384


def evaluation_processor(
    size: tuple[int, int],
    *,
    crop_pct: float = 0.875,
    mean: Sequence[float] = (0.5, 0.5, 0.5),
    std: Sequence[float] = (0.5, 0.5, 0.5),
) -> BaseImageProcessor:
    """Return an image processor that prepares images as timm does for evaluation.

    It resizes the shorter side to the image size divided by `crop_pct` (bicubic), and crops the center. If the result
    is a square of 384 pixels or more, or not a square, it only resizes.

    Args:
        size: Height and width of the result in pixels.
        crop_pct: Fraction of the shorter side that is kept.
        mean, std: Mean and standard deviation of each channel, on a scale from 0 to 1.
    """
    fields = {"image_mean": list(mean), "image_std": list(std), "do_convert_rgb": len(mean) == 3}
    fields["resample"] = PILImageResampling.BICUBIC
    height, width = size
    if height == width < LARGEST_CROP:
        return ConvNextImageProcessor(size={"shortest_edge": height}, crop_pct=crop_pct, **fields)
    return ViTImageProcessor(size={"height": height, "width": width}, **fields)


def open_picture(file: io.BytesIO | str) -> PIL.Image.Image:
    """Read the header of an image file; a large JPEG file will be reduced to `LARGE` pixels when it is decoded."""
    try:
        # Unlike PIL.Image.open, the class has no limit of pixels.
        picture = PIL.JpegImagePlugin.JpegImageFile(file)
    except SyntaxError:
        if isinstance(file, io.BytesIO):
            file.seek(0)
        return PIL.Image.open(file, formats=FORMATS)
    pixels = picture.width * picture.height
    if pixels > MAX_JPEG_PIXELS:
        raise ValueError(f"it has {pixels // 1_000_000} million pixels, more than {MAX_JPEG_PIXELS // 1_000_000}")
    scale = next((scale for scale in (1, 2, 4) if pixels <= LARGE * scale**2), 8)
    picture.draft(None, (picture.width // scale, picture.height // scale))
    return picture


def to_rgb(picture: PIL.Image.Image) -> PIL.Image.Image:
    """Return a picture upright and in RGB, on white where it is transparent."""
    picture = PIL.ImageOps.exif_transpose(picture)
    if picture.has_transparency_data:
        picture = picture.convert("RGBA")
        picture = PIL.Image.alpha_composite(PIL.Image.new("RGBA", picture.size, "white"), picture)
    return picture.convert("RGB")


def decode_image(image: dict) -> PIL.Image.Image:
    """Decode an image, as `to_rgb` returns it.

    Args:
        image: An undecoded image of `datasets`: its "bytes", or None, and its "path".

    Raises:
        InputError: If the image cannot be decoded without loss.
    """
    try:
        file = io.BytesIO(image["bytes"]) if image["bytes"] is not None else image["path"]
        with open_picture(file) as picture:
            if picture.mode in DEEP_MODES:
                raise ValueError(f"its pixels have more than 8 bits, mode {picture.mode}")
            if min(picture.size) < 2:
                raise ValueError(f"it has only {picture.width} x {picture.height} pixels")
            return to_rgb(picture)
    except DECODING_ERRORS as error:
        reason = getattr(error, "strerror", None) or first_line(error)
        if isinstance(error, PIL.UnidentifiedImageError):
            reason = "not an image"
        raise InputError(
            f"{image['path'] or 'An image without a name'} cannot be read as a picture ({reason}): replace it, or "
            "remove it and start again."
        ) from error


def processor_size(processor: BaseImageProcessor) -> tuple[int, int] | None:
    """Return the height and width in pixels of a processor's output; None if they depend on the image."""
    size = getattr(processor, "size", None) or {}
    if getattr(processor, "do_center_crop", False):
        size = processor.crop_size
    elif size.get("shortest_edge") and hasattr(processor, "crop_pct"):
        return (size["shortest_edge"], size["shortest_edge"])
    return (size["height"], size["width"]) if size.get("height") and size.get("width") else None
