"""The study of small images: models, settings and results, on light and dark squares."""

import io
import json
import random
import sys
import zipfile

import images
import pytest
import torch
from PIL import Image


@pytest.fixture
def archive(tmp_path, monkeypatch):
    """A zip file of 40 dark and 40 light images, of which the last eight of a class are held out."""
    monkeypatch.setattr(images, "HELD_OUT", 8)
    draw, path = random.Random(0), tmp_path / "train.zip"
    with zipfile.ZipFile(path, "w") as file:
        for name, least in (("dark", 0), ("light", 128)):
            for number in range(40):
                buffer, color = io.BytesIO(), tuple(draw.randrange(least, least + 127) for _ in range(3))
                Image.new("RGB", (32, 32), color).save(buffer, "PNG")
                file.writestr(f"train/{name}/{number:03}.png", buffer.getvalue())
    return path


def command(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["images.py", *map(str, words)])
    images.main()


def test_images_are_read_in_order_and_held_out(archive):
    pixels, labels = images.read_images(str(archive))
    assert pixels.shape == (80, 3, 32, 32) and labels.tolist() == [0] * 40 + [1] * 40
    assert pixels[labels == 0].max() < pixels[labels == 1].min()
    assert images.hold_out(labels).nonzero()[:, 0].tolist() == [*range(32, 40), *range(72, 80)]


@pytest.mark.parametrize("name", ["cnn", "vit", *images.GMLPS])
def test_models_have_the_parts_of_their_names(name):
    model = images.build(name, 10, initializer_range=0.1)
    assert images.logits_of(model, torch.zeros(1, 3, 32, 32)).shape == (1, 10)
    if name in images.GMLPS:
        config = model.config
        parts = {"stem": config.stem == "conv", "toeplitz": config.toeplitz, "heads": config.spatial_heads > 1}
        assert [part for part, on in parts.items() if on] == ([*parts] if name == "all" else [name] * (name != "plain"))


def test_trainings_are_lines_that_are_not_repeated(archive, tmp_path, monkeypatch, capsys):
    results = tmp_path / "results.jsonl"
    words = ("train", archive, "held-out", results, "--models", "all", "plain", "--epochs", 12)
    monkeypatch.setattr(images, "SIZES", images.SIZES | {"hidden_size": 16, "intermediate_size": 32})
    command(monkeypatch, *words)
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    assert [(line["model"], line["seed"], line["images"]) for line in lines] == [("all", 0, 64), ("plain", 0, 64)]
    assert all(line["accuracy"] > 0.8 for line in lines)
    command(monkeypatch, *words)
    assert len(results.read_text().splitlines()) == 2
    command(monkeypatch, *words, "--seeds", 1, "--models", "all", "--epochs", 1)
    assert len(results.read_text().splitlines()) == 3
    capsys.readouterr()
    command(monkeypatch, "table", results)
    assert len(capsys.readouterr().out.splitlines()) == 2 + 3
