import numpy as np
import PIL.Image
import pytest
import torch
from timm.data import create_transform
from transformers import AutoImageProcessor, ViTImageProcessor

from hf_gmlp.processor import decode_image, evaluation_processor, processor_size

from .samples import picture


@pytest.mark.parametrize("size", [32, 224])
@pytest.mark.parametrize("crop_pct", [0.875, 1.0])
def test_pixels_match_timm_with_pillow_and_nearly_with_torchvision(tmp_path, size, crop_pct):
    processor = evaluation_processor((size, size), crop_pct=crop_pct)
    processor.save_pretrained(tmp_path)
    mean = std = (0.5, 0.5, 0.5)
    reference = create_transform((3, size, size), crop_pct=crop_pct, interpolation="bicubic", mean=mean, std=std)
    # The shorter sides have an even margin, which all backends round identically.
    photos = [picture(seed, size) for seed, size in enumerate([(300, 200), (200, 300), (64, 64)])]
    expected = torch.stack([reference(image) for image in photos])
    for backend, most, mean in (("pil", 1e-6, 1e-7), ("torchvision", 2 * 2 / 255 + 1e-6, 0.001)):
        loaded = AutoImageProcessor.from_pretrained(tmp_path, backend=backend)
        difference = (loaded(photos, return_tensors="pt")["pixel_values"] - expected).abs()
        assert difference.max() <= most and difference.mean() <= mean


def test_processor_size_is_that_of_the_pixels():
    # The last two are resized without a crop.
    for size in ((224, 224), (384, 384), (32, 48)):
        processor = evaluation_processor(size)
        assert processor([picture(size=(100, 80))], return_tensors="pt")["pixel_values"].shape == (1, 3, *size)
        assert processor_size(processor) == size
    assert processor_size(ViTImageProcessor()) == (224, 224)
    cropped = ViTImageProcessor(size={"shortest_edge": 256}, do_center_crop=True, crop_size={"height": 9, "width": 8})
    assert processor_size(cropped) == (9, 8)
    assert processor_size(ViTImageProcessor(size={"shortest_edge": 256})) is None


def cut_out(mode, hidden):
    """A gray square on a `hidden` color that is transparent, and the options with which to save it."""
    if mode in ("P", "L", "RGB"):
        # One color of the palette, or of the picture, is transparent.
        image = PIL.Image.new(mode, (12, 12), hidden if mode == "RGB" else hidden[0])
        image.paste((90, 90, 90) if mode == "RGB" else 90, (3, 3, 9, 9))
        if mode == "P":
            image.putpalette([value for level in range(256) for value in (level, level, level)])
        return image, {"transparency": hidden if mode == "RGB" else hidden[0]}
    image = PIL.Image.new("RGBA", (12, 12), (*hidden, 0))
    image.paste((90, 90, 90, 255), (3, 3, 9, 9))
    return image.convert(mode), {}


@pytest.mark.parametrize(
    ("mode", "ending"), [("RGBA", "png"), ("LA", "png"), ("P", "png"), ("P", "gif"), ("L", "png"), ("RGB", "png")]
)
def test_transparent_pixels_are_white_whatever_their_hidden_color(tmp_path, mode, ending):
    expected = np.full((12, 12, 3), 255, np.uint8)
    expected[3:9, 3:9] = 90
    for hidden in ((0, 0, 0), (0, 200, 0), (255, 255, 255)):
        image, options = cut_out(mode, hidden)
        image.save(tmp_path / f"a.{ending}", **options)
        decoded = decode_image({"bytes": None, "path": str(tmp_path / f"a.{ending}")})
        np.testing.assert_array_equal(np.asarray(decoded), expected)


def test_half_transparent_pixels_are_mixed_with_white(tmp_path):
    PIL.Image.new("RGBA", (4, 4), (55, 155, 255, 51)).save(tmp_path / "a.webp", lossless=True)
    assert decode_image({"bytes": None, "path": str(tmp_path / "a.webp")}).getpixel((1, 2)) == (215, 235, 255)
