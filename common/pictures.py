"""Features of pictures as benchmarks and examples use them, and their scores."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import PIL.Image
import timm
import torch
from sklearn.linear_model import LogisticRegression
from torch.nn import functional as F
from transformers import AutoModel, PreTrainedModel

import hf_gmlp  # noqa: F401 (registers the models)
from hf_gmlp import errors
from hf_gmlp.data.images import read_folder
from hf_gmlp.loading import open_image_processor, open_model
from hf_gmlp.metrics.baseline import color_histogram
from hf_gmlp.processor import decode_image, evaluation_processor

ROWS, SELECTION_ROWS, SAMPLES, SELECTION_SAMPLES = (8, 16, 60), (8, 16), 3, 10
NEAREST = 5

BATCH = 32

Features = Callable[[Sequence[PIL.Image.Image]], np.ndarray]  # pictures -> [pictures, D]


def read_photos(folder: Path) -> dict[str, tuple[list[PIL.Image.Image], np.ndarray]]:
    """Return the square pictures and the labels of each split of a folder."""
    result = {}
    for split, rows in read_folder(folder).items():
        pictures = [square(decode_image({"path": path, "bytes": None})) for path in rows["image"]]
        result[split] = pictures, np.array(rows["label"])
    if missing := {"train", "test"} - set(result):
        raise errors.InputError(f"{folder} has no folder {missing.pop()}: put the photos into train and test.")
    if unknown := set(result["test"][1]) - set(result["train"][1]):
        raise errors.InputError(f"{folder}: train has no photos of the class {unknown.pop()}, but test has.")
    return result


def square(picture: PIL.Image.Image) -> PIL.Image.Image:
    """Cut the center of a picture."""
    side = min(picture.size)
    left, top = ((length - side) // 2 for length in picture.size)
    return picture.crop((left, top, left + side, top + side))


def resize(picture: PIL.Image.Image, size: int) -> PIL.Image.Image:
    return picture.resize((size, size), PIL.Image.Resampling.BICUBIC)


def pixels(pictures: Sequence[PIL.Image.Image]) -> np.ndarray:
    """Return the centered values of 32 x 32 pixels [pictures, 3072]."""
    return np.stack([np.asarray(resize(picture, 32), np.float32).ravel() / 127.5 - 1 for picture in pictures])


def colors(pictures: Sequence[PIL.Image.Image]) -> np.ndarray:
    """Return the color histograms that `hf-gmlp classify` compares with [pictures, 512]."""
    return np.stack([color_histogram(picture) for picture in pictures])


def thumbnails(pictures: Sequence[PIL.Image.Image]) -> np.ndarray:
    """Return 12 x 12 gray pixels of pictures [pictures, 144], centered and of length 1: a product is a correlation."""
    small = [picture.convert("L").resize((12, 12), PIL.Image.Resampling.BOX) for picture in pictures]
    values = np.stack([np.asarray(picture, np.float32).ravel() for picture in small])
    return unit(values - values.mean(1, keepdims=True))


def unlike(
    pictures: Sequence[PIL.Image.Image], labels: np.ndarray, known: np.ndarray
) -> tuple[list[PIL.Image.Image], np.ndarray]:
    """Return the pictures and their labels without those whose thumbnail correlates by more than 0.95 with a `known`
    one."""
    kept = np.flatnonzero((thumbnails(pictures) @ known.T).max(1) <= 0.95)
    return [pictures[i] for i in kept.tolist()], labels[kept]


def make_features(name: str, weights: Path | None = None) -> Features:
    """Return the function that computes the features of a model or a baseline."""
    if "+" in name:
        parts = [make_features(part, weights) for part in name.split("+")]
        return lambda pictures: np.hstack([unit(part(pictures)) for part in parts])
    if name in ("pixels", "colors"):
        return {"pixels": pixels, "colors": colors}[name]
    if name.startswith("timm:"):
        _, model_name, *sizes = name.split(":")
        model = timm.create_model(model_name)
        if weights is not None:
            load_in_order(model, weights)
        size, *small = map(int, sizes)
        mean, std = (torch.tensor(model.default_cfg[key])[:, None, None] for key in ("mean", "std"))

        def read(picture: PIL.Image.Image) -> torch.Tensor:
            for side in (*small, size):
                picture = resize(picture, side)
            return (torch.tensor(np.asarray(picture)).permute(2, 0, 1) / 255 - mean) / std

        def encode(pixel_values: torch.Tensor) -> torch.Tensor:
            return model.forward_head(model.forward_features(pixel_values), pre_logits=True)

        return encoder(model, read, encode)
    folder, *side = name.rsplit(":", 1)
    processor, model = open_image_processor(folder), open_model(AutoModel, folder)
    if side:
        model.resize_image_size(int(side[0]))
        processor = evaluation_processor(
            (int(side[0]), int(side[0])), crop_pct=1.0, mean=processor.image_mean, std=processor.image_std
        )
    return encoder(
        model,
        lambda picture: processor(picture, return_tensors="pt")["pixel_values"][0],
        lambda pixel_values: pooled(model, pixel_values),
    )


def load_in_order(model: torch.nn.Module, weights: Path) -> None:
    """Load weights into a model of timm that has the same layers in the same order, under other names."""
    state, names = torch.load(weights, weights_only=True), list(model.state_dict())
    if len(state) != len(names):
        raise errors.InputError(
            f"{weights} has {len(state)} tensors, but the model {len(names)}: pass its own weights."
        )
    model.load_state_dict(dict(zip(names, state.values())))


def pooled(model: PreTrainedModel, pixel_values: torch.Tensor) -> torch.Tensor:
    """Return the features of a model [B, D]."""
    outputs = model(pixel_values)
    if getattr(outputs, "pooler_output", None) is not None:
        return outputs.pooler_output.flatten(1)
    return outputs.last_hidden_state.mean(1)


def encoder(
    model: torch.nn.Module,
    read: Callable[[PIL.Image.Image], torch.Tensor],
    encode: Callable[[torch.Tensor], torch.Tensor],
) -> Features:
    """Return the function that applies `encode` [B, channels, height, width] -> [B, D] to all pictures."""
    model.eval()

    @torch.no_grad()
    def features(pictures: Sequence[PIL.Image.Image]) -> np.ndarray:
        batches = (pictures[i : i + BATCH] for i in range(0, len(pictures), BATCH))
        return torch.cat([encode(torch.stack([read(picture) for picture in batch])) for batch in batches]).numpy()

    return features


def set_scores(
    features: Features,
    pictures: dict[str, tuple[list[PIL.Image.Image], np.ndarray]],
    rows: Sequence[int],
    samples: int,
    select: bool,
) -> list[float]:
    """Return the scores on one set of photos for each number of `rows` per class, and `nearest_score`."""
    inputs, labels = unit(features(pictures["train"][0])), pictures["train"][1]
    test = None if select else (unit(features(pictures["test"][0])), pictures["test"][1])
    return [*few_row_scores(inputs, labels, rows, samples, test), nearest_score(inputs, labels, test)]


def nearest_score(inputs: np.ndarray, labels: np.ndarray, test: tuple[np.ndarray, np.ndarray] | None = None) -> float:
    """Return the fraction of the `NEAREST` nearest `inputs`, of length 1, that have the class of a row of `test`, or,
    without it, of each of the inputs among the others."""
    vectors, classes = test or (inputs, labels)
    cosines = vectors @ inputs.T
    if test is None:
        np.fill_diagonal(cosines, -np.inf)
    nearest = cosines.argsort(axis=1)[:, -NEAREST:]
    return float((labels[nearest] == classes[:, None]).mean())


def unit(vectors: np.ndarray) -> np.ndarray:
    return F.normalize(torch.from_numpy(vectors), dim=-1).numpy()


def few_row_scores(
    inputs: np.ndarray,
    labels: np.ndarray,
    rows: Sequence[int],
    samples: int,
    test: tuple[np.ndarray, np.ndarray] | None = None,
) -> list[float]:
    """Return the accuracy of logistic regression on each number of `rows` per class (all, if it has fewer), the mean
    over `samples`, on the rows and labels `test`, or on the rows that were not sampled."""
    scores = []
    for count in rows:
        accuracies = []
        for seed in range(samples):
            order = np.random.default_rng(seed).permutation(len(labels))
            sample = np.concatenate([order[labels[order] == label][:count] for label in np.unique(labels)])
            other = np.setdiff1d(order, sample)
            classifier = LogisticRegression(C=10, max_iter=1000).fit(inputs[sample], labels[sample])
            accuracies.append(classifier.score(*(test or (inputs[other], labels[other]))))
        scores.append(float(np.mean(accuracies)))
    return scores
