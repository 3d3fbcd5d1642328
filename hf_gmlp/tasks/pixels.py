"""Batches of augmented pixels.

Worker processes of the data loader decode images. Their pixels stay integers from 0 to 255, a quarter of the bytes of
floats, until a hook of the model normalizes them on the device. The augmentation of an image depends only on the seed,
the epoch and the index of the image, and mixing on the indices of the batch: not on the number of worker processes or
devices, or on whether the run was resumed.
"""

from collections.abc import Callable

import numpy as np
import torch
import transformers
from transformers import BaseImageProcessor, PreTrainedModel

from ..processor import decode_image

# Processors whose last step is `Normalization`. Other processors, such as EfficientNet's, have other last steps.
NORMALIZE_LAST = tuple(
    getattr(transformers, f"{name}ImageProcessor{backend}") for name in ("ConvNext", "ViT") for backend in ("", "Pil")
)


class Normalization:
    """Normalize pixels from 0 to 255 by a mean and a standard deviation per channel, on a scale from 0 to 1.

    As in an image processor, the result is `(pixels - 255 * mean) / (255 * std)`.
    """

    def __init__(self, mean: list[float], std: list[float]):
        self.mean, self.std = (255 * torch.tensor(values)[:, None, None] for values in (mean, std))

    def __call__(self, pixels: torch.Tensor) -> torch.Tensor:  # [B, 3, height, width]
        return (pixels - self.mean.to(pixels.device)) / self.std.to(pixels.device)

    def before_forward(self, model: PreTrainedModel, args: tuple, inputs: dict) -> tuple[tuple, dict]:
        """Normalize the "pixel_values" of a call: a forward pre-hook, which saved models do not contain."""
        return args, inputs | {"pixel_values": self(inputs["pixel_values"])}


class ImageCollator:
    """Make "pixel_values" [batch, 3, height, width] and "labels" from rows of an undecoded "image" and "labels".

    The labels are class ids [batch] or, after mixing, probabilities [batch, classes]. Rows of the training data also
    have an "index"; they are augmented by `transform` and mixed by `mixing`. The image processor prepares other rows.

    Attributes:
        on_device: Whether the `normalization` is left to the device, as for the processors in `NORMALIZE_LAST`.
    """

    def __init__(
        self,
        processor: BaseImageProcessor,
        transform: Callable | None = None,
        mixing: Callable | None = None,
        seed: int = 0,
    ):
        self.processor, self.transform, self.mixing, self.seed = processor, transform, mixing, seed
        self.normalization = Normalization(processor.image_mean, processor.image_std)
        fields = [getattr(processor, name, None) for name in ("do_rescale", "do_normalize", "rescale_factor")]
        self.on_device = isinstance(processor, NORMALIZE_LAST) and fields == [True, True, 1 / 255]
        # Shared memory lets worker processes see the current epoch.
        self._epoch = torch.zeros((), dtype=torch.long).share_memory_()

    def set_epoch(self, epoch: int):
        self._epoch.fill_(epoch)

    def __call__(self, rows: list[dict]) -> dict[str, torch.Tensor]:
        labels = torch.tensor([row["labels"] for row in rows])
        if self.transform is None or "index" not in rows[0]:
            options = {"do_rescale": False, "do_normalize": False} if self.on_device else {}
            prepared = self.processor([decode_image(row["image"]) for row in rows], return_tensors="pt", **options)
            return {"pixel_values": prepared["pixel_values"], "labels": labels}
        start, images = _hash(self.seed, int(self._epoch)), []
        # The fork keeps the random state of the run. The generator is seeded directly, since `torch.manual_seed` would
        # seed every accelerator too.
        with torch.random.fork_rng(devices=[]):
            for row in rows:
                # With an odd factor, no two images have the same seed.
                torch.default_generator.manual_seed((start + 0x9E3779B1 * row["index"]) % 2**32)
                images.append(self.transform(decode_image(row["image"])))
            pixels = torch.stack(images)
            if self.mixing is not None:
                torch.default_generator.manual_seed(_hash(start, *(row["index"] for row in rows)))
                pixels, labels = self.mixing(pixels, labels)
        return {"pixel_values": pixels if self.on_device else self.normalization(pixels), "labels": labels}


def _hash(*numbers: int) -> int:
    """Return 32 bits that depend on all of the numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])
