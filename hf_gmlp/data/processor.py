"""The image processor of our image models, for evaluation: needs Pillow, and torchvision only if it is there."""

from collections.abc import Sequence

from transformers import BaseImageProcessor, ConvNextImageProcessorPil, ViTImageProcessorPil
from transformers.image_utils import PILImageResampling
from transformers.utils import is_torchvision_available

# Up to here transformers' ConvNeXT processor crops; from here on it bends the image into a square.
LARGEST_CROP = 384


def evaluation_processor(
    size: tuple[int, int],
    *,
    crop_pct: float = 0.875,
    resample: PILImageResampling = PILImageResampling.BICUBIC,
    mean: Sequence[float] = (0.5, 0.5, 0.5),
    std: Sequence[float] = (0.5, 0.5, 0.5),
    pillow: bool = False,
) -> BaseImageProcessor:
    """
    The image processor that does what timm does for evaluation: the shorter side resized to the image size over
    `crop_pct`, the center cut out.

    transformers has that for squares of less than 384 pixels, in its ConvNeXT processor, which its own training scripts
    understand; images of other sizes are resized without a crop.

    Args:
        size: Height and width in pixels of what comes out.
        crop_pct: Share of the shorter side that is kept.
        mean, std: Of each channel, on a scale from 0 to 1.
        pillow: Compute with Pillow, as timm does, also where torchvision is installed. Both write the same file.
    """
    convnext, vit = ConvNextImageProcessorPil, ViTImageProcessorPil
    if is_torchvision_available() and not pillow:
        from transformers import ConvNextImageProcessor, ViTImageProcessor

        convnext, vit = ConvNextImageProcessor, ViTImageProcessor
    fields = {"image_mean": list(mean), "image_std": list(std), "resample": resample, "do_convert_rgb": len(mean) == 3}
    height, width = size
    if height == width < LARGEST_CROP:
        return convnext(size={"shortest_edge": height}, crop_pct=crop_pct, **fields)
    return vit(size={"height": height, "width": width}, **fields)


def processor_size(processor: BaseImageProcessor) -> tuple[int, int] | None:
    """Height and width in pixels of what a processor makes; None if that depends on the image."""
    size = getattr(processor, "size", None) or {}
    if getattr(processor, "do_center_crop", False):
        size = processor.crop_size
    elif size.get("shortest_edge") and hasattr(processor, "crop_pct"):
        return (size["shortest_edge"], size["shortest_edge"])
    return (size["height"], size["width"]) if size.get("height") and size.get("width") else None
