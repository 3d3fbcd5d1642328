"""The study of small images: models, settings and results, on light and dark squares."""

import io
import json
import random
import zipfile

import pytest
import torch
from PIL import Image

from paper import images
from paper.__main__ import main


@pytest.fixture
def archive(tmp_path, monkeypatch):
    """A zip file of 40 dark and 40 light images, of which the last eight of a class are held out."""
    monkeypatch.setattr(images, "HELD_OUT", 8)
    generator, path = random.Random(0), tmp_path / "train.zip"
    with zipfile.ZipFile(path, "w") as file:
        for name, least in (("dark", 0), ("light", 128)):
            for number in range(40):
                buffer, color = io.BytesIO(), tuple(generator.randrange(least, least + 127) for _ in range(3))
                Image.new("RGB", (32, 32), color).save(buffer, "PNG")
                file.writestr(f"train/{name}/{number:03}.png", buffer.getvalue())
    return path


def test_images_are_read_in_order_and_held_out(archive):
    pixels, labels = images.read_images(str(archive))
    assert pixels.shape == (80, 3, 32, 32) and labels.tolist() == [0] * 40 + [1] * 40
    assert pixels[labels == 0].max() < pixels[labels == 1].min()
    assert images.hold_out(labels).nonzero()[:, 0].tolist() == [*range(32, 40), *range(72, 80)]


def test_models_have_the_parts_of_their_names():
    for name in ("cnn", "vit", *images.GMLPS):
        model = images.build(name, 10, initializer_range=0.1)
        assert images.logits_of(model, torch.zeros(1, 3, 32, 32)).shape == (1, 10)
        if name in images.GMLPS:
            config = model.config
            parts = {"stem": config.stem == "conv", "toeplitz": config.toeplitz, "heads": config.spatial_heads > 1}
            assert {part for part, on in parts.items() if on} == ({*parts} if name == "all" else {name} - {"plain"})


def test_trainings_are_lines_that_are_not_repeated(archive, tmp_path, monkeypatch, capsys):
    results = tmp_path / "results.jsonl"
    words = ("images", "train", archive, "held-out", results, "--models", "all", "plain", "--epochs", 12)
    monkeypatch.setattr(images, "SIZES", images.SIZES | {"hidden_size": 16, "intermediate_size": 32})
    main([*map(str, words)])
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    assert [(line["model"], line["seed"], line["images"]) for line in lines] == [("all", 0, 64), ("plain", 0, 64)]
    assert all(line["accuracy"] > 0.8 for line in lines)
    main([*map(str, words)])
    assert len(results.read_text().splitlines()) == 2
    main([*map(str, words), "--seeds", "1", "--models", "all", "--epochs", "1"])
    assert len(results.read_text().splitlines()) == 3
    capsys.readouterr()
    main(["images", "table", str(results)])
    assert len(capsys.readouterr().out.splitlines()) == 2 + 3
