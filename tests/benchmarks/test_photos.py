"""The benchmark of photos with few labeled ones."""

import sys

import datasets
import numpy as np
import PIL.Image
import pytest
import torch
from sklearn.neighbors import NearestNeighbors

from benchmarks import photos
from common import pictures
from hf_gmlp import GMLPVisionConfig, GMLPVisionModel
from hf_gmlp.processor import evaluation_processor

CLASSES, EACH = ("red", "green", "blue"), 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with photos whose classes are colors, and a folder with a model."""
    folder, generator = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for part in ("train", "test"):
        for channel, label in enumerate(CLASSES):
            (folder / "set" / part / label).mkdir(parents=True)
            for i in range(EACH):
                pixels = generator.integers(0, 200, (40, 56, 3))
                pixels[:, :, channel] += 40
                PIL.Image.fromarray(pixels.astype(np.uint8)).save(folder / "set" / part / label / f"{i}.png")
    config = GMLPVisionConfig(
        hidden_size=32, num_hidden_layers=1, intermediate_size=64, image_size=32, patch_size=8, pooling="mean",
        toeplitz=True,
    )  # fmt: skip
    torch.manual_seed(0)
    GMLPVisionModel(config).save_pretrained(folder / "model")
    evaluation_processor((32, 32), crop_pct=1.0).save_pretrained(folder / "model")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("select", [False, True])
def test_all_models_are_compared(folder, monkeypatch, capsys, select):
    random = "timm:mobilenetv3_small_050:32:16"
    names = ["pixels", "colors", str(folder / "model"), f"{folder / 'model'}:64", f"{folder / 'model'}+colors", random]
    words = ["photos", *names, "--photos", str(folder / "set"), *(["--select"] if select else [])]
    monkeypatch.setattr(sys, "argv", words)
    photos.main()
    header, _, *rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.strip().splitlines()]
    assert header[1:] == [
        *(f"set, {rows}" for rows in ((8, 16) if select else (8, 16, 60))),
        "set, nearest 5",
        "ms per picture",
    ]
    assert [row[0] for row in rows] == [*names[:-1], f"{random} (random weights)"]
    # The means of the colors tell the classes; the bins of the histogram do on the whole.
    scores = {row[0]: float(row[2]) for row in rows}
    assert (
        scores["colors"] > 0.9
        and scores[f"{folder / 'model'}+colors"] > 0.9
        and all(0 <= score <= 1 for score in scores.values())
    )


@pytest.mark.slow
def test_photos_that_are_training_pictures_are_left_out(folder, tmp_path, monkeypatch, capsys):
    path = folder / "set/test/blue/7.png"
    # A training picture was cut to a square as the photos are, and has another size.
    pictures.resize(pictures.square(PIL.Image.open(path)), 64).save(tmp_path / "square.png")
    features = datasets.Features({"image": datasets.Image()})
    rows = datasets.Dataset.from_dict({"image": [str(tmp_path / "square.png")]}, features)
    rows.to_parquet(tmp_path / "train.parquet")
    flags = ["--photos", str(folder / "set"), "--samples", "2", "--leave_out", str(tmp_path / "train.parquet")]
    monkeypatch.setattr(sys, "argv", ["photos", "pixels", *flags])
    photos.main()
    assert "60 photos in train" in (text := capsys.readouterr().out) and "59 photos in test" in text


def test_scores_are_those_of_rows_that_were_not_sampled():
    generator = np.random.default_rng(0)
    labels = np.repeat(["a", "b"], 30)
    inputs = pictures.unit(generator.normal(size=(60, 500)).astype(np.float32))
    # Random features tell nothing about other rows, although they separate those of the training.
    assert abs(pictures.few_row_scores(inputs, labels, [16], 10)[0] - 0.5) < 0.15
    assert pictures.few_row_scores(inputs, labels, [60], 1, (inputs, labels)) == [1.0]


def test_the_nearest_are_those_of_scikit_learn():
    generator = np.random.default_rng(0)
    inputs, others = (pictures.unit(generator.normal(size=(40, 8)).astype(np.float32)) for _ in range(2))
    labels = generator.choice(["a", "b", "c"], 40)
    neighbors = NearestNeighbors(metric="cosine").fit(inputs)
    for test, rows in (((others, labels), others), (None, None)):
        expected = labels[neighbors.kneighbors(rows, 5, return_distance=False)] == labels[:, None]
        assert pictures.nearest_score(inputs, labels, test) == pytest.approx(expected.mean())


def test_pictures_are_cut_to_their_center():
    pixels = np.zeros((10, 20, 3), np.uint8)
    pixels[:, 5:15] = 255
    assert np.asarray(pictures.square(PIL.Image.fromarray(pixels))).min() == 255
    assert pictures.pixels([PIL.Image.fromarray(pixels)]).shape == (1, 3072)
    histogram = pictures.colors([pictures.square(PIL.Image.fromarray(pixels))])
    assert histogram[0, -1] == 1 and histogram.sum() == 1


def test_weights_of_another_model_are_refused(tmp_path):
    torch.save({"weight": torch.zeros(2)}, tmp_path / "weights.pth")
    with pytest.raises(photos.errors.InputError, match="has 1 tensors"):
        photos.make_features("timm:mobilenetv3_small_050:32", tmp_path / "weights.pth")
