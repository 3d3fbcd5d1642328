"""The script that teaches image encoders such as that of checkpoints/."""

import io
import sys

import numpy as np
import pandas
import PIL.Image
import pytest
import timm
import torch
from safetensors.torch import load_file
from sklearn.decomposition import PCA
from transformers import AutoImageProcessor, AutoModel

from common.pictures import make_features
from examples import teach_images, teaching

CLASSES, EACH = ("red", "green", "blue"), 12


def picture(label, generator):
    """A noisy picture in which a color is brighter in one half."""
    pixels = generator.integers(0, 120, (64, 64, 3))
    pixels[:, :32, CLASSES.index(label)] += 120
    return PIL.Image.fromarray(pixels.astype(np.uint8))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with parquet files of pictures, photos, and a teacher with random weights."""
    folder, generator = tmp_path_factory.mktemp("teach"), np.random.default_rng(0)
    for part in ("train", "validation"):
        rows = []
        for label in CLASSES * EACH:
            picture(label, generator).save(file := io.BytesIO(), "PNG")
            rows.append({"image": {"bytes": file.getvalue(), "path": None}, "label": label})
        pandas.DataFrame(rows).to_parquet(folder / f"{part}.parquet")
    for part in ("train", "test"):
        for label in CLASSES:
            (folder / "photos" / part / label).mkdir(parents=True)
            for i in range(20):
                picture(label, generator).save(folder / "photos" / part / label / f"{i}.png")
    torch.manual_seed(0)
    model = timm.create_model("tf_efficientnet_lite0")
    # The weights are saved under other names, in the same order.
    torch.save({f"_{name}": weight for name, weight in model.state_dict().items()}, folder / "teacher.pth")
    return folder


@pytest.fixture
def run(folder, monkeypatch, capsys):
    """run(name, *flags) teaches a model, and returns it and the lines that were printed."""

    def call(name, *flags):
        words = ["teach_images", folder / "teacher.pth", folder, "--photos", folder / "photos", "--batch", 12]
        words += ["--output_dir", folder / "out", "--name", name, *flags]
        monkeypatch.setattr(sys, "argv", list(map(str, words)))
        monkeypatch.setattr(teach_images, "CHUNK", 24)
        monkeypatch.setattr(teach_images, "WARMUP", 2)
        teach_images.main()
        return AutoModel.from_pretrained(folder / "out" / name), capsys.readouterr().out

    return call


@pytest.mark.slow
def test_the_components_are_those_of_the_teacher(folder, run):
    run("untrained", "--budget", 0)
    files = sorted((folder / "out").glob("teacher-*/*.npy"))
    stored = np.concatenate([np.load(path) for path in files]).astype(np.float32)
    assert len(files) == 2 and stored.shape == (3 * EACH, 17, 224)
    pictures = teach_images.read_pictures(folder / "train.parquet")
    model = timm.create_model("tf_efficientnet_lite0").eval()
    weights = torch.load(folder / "teacher.pth")
    model.load_state_dict({name[1:]: weight for name, weight in weights.items()})
    images = [
        PIL.Image.fromarray(pixels).resize((160, 160), PIL.Image.Resampling.BICUBIC) for pixels in pictures.pixels
    ]
    values = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2) / 127.5 - 1
    with torch.no_grad():
        maps = model.forward_features(values)
    features = maps.mean((2, 3))
    # The first components are fitted to the first file; as many as there are pictures have all of the variance.
    saved = np.load(files[0].parent / "components.npz")
    restored = stored[:24, 0] @ saved["components"].T + saved["mean"]
    centered = features[:24].numpy() - saved["mean"]
    # The script enlarges pictures by another function, and computes in bfloat16.
    assert np.square(restored - features[:24].numpy()).sum() < 0.1 * np.square(centered).sum()
    parts = torch.nn.functional.adaptive_avg_pool2d(maps, 4).flatten(2).transpose(1, 2).numpy()
    expected = (parts - saved["mean"]) @ saved["components"]
    assert np.corrcoef(stored[:, 1:].ravel(), expected.ravel())[0, 1] > 0.95


@pytest.mark.slow
def test_teaching_approaches_the_teacher_and_continues(folder, run, monkeypatch):
    flags = ("--budget", 360, "--decay", 120, "--save_steps", 5)
    untrained, _ = run("untrained", "--budget", 0)
    taught, lines = run("taught", *flags)
    assert "Linear probe" in lines and "photos, cross-validated" in lines
    pictures = teach_images.read_pictures(folder / "train.parquet")
    files = sorted((folder / "out").glob("teacher-*/*.npy"))
    targets = torch.from_numpy(np.concatenate([np.load(path) for path in files])[:, 0]).float()
    values = teach_images.pixel_values(pictures.pixels)
    cosines = []
    for model in (untrained, taught):
        with torch.no_grad():
            features = model(values).pooler_output[:, :224]
        cosines.append(torch.cosine_similarity(features, targets).mean().item())
    assert cosines[1] > cosines[0] + 0.2
    stored = load_file(folder / "out" / "taught" / "model.safetensors")
    assert {w.dtype for w in stored.values() if w.is_floating_point()} == {torch.float16}
    assert taught.dtype == torch.float32
    # The saved folder has all that the benchmark needs, and prepares pictures as the training does.
    processor = AutoImageProcessor.from_pretrained(folder / "out" / "taught")
    images = [PIL.Image.fromarray(pixels) for pixels in pictures.pixels[:4]]
    torch.testing.assert_close(processor(images, return_tensors="pt")["pixel_values"], values[:4], atol=1e-5, rtol=0)
    np.testing.assert_allclose(
        make_features(str(folder / "out" / "taught"))(images), taught(values[:4]).pooler_output.detach(), atol=1e-4
    )

    class Stop(teaching.Trainer):
        def _save_checkpoint(self, *args, **kwargs):
            super()._save_checkpoint(*args, **kwargs)
            if self.state.global_step == 15:
                raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(teaching, "Trainer", Stop)
        # A longer training has the same constant part.
        run("long", "--budget", 1200, *flags[2:])
    checkpoint = folder / "out" / "long-training" / "checkpoint-15"
    again, _ = run("branch", *flags, "--start", checkpoint)
    for name, weight in again.state_dict().items():
        torch.testing.assert_close(weight, taught.state_dict()[name], atol=2e-3, rtol=0, msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "without"), [("amlp", "parts"), ("cnn", "colors"), ("vit", "parts"), ("gmlp", "teacher")]
)
def test_controls_are_taught_alike(run, architecture, without):
    _, lines = run(f"{architecture}-{without}", "--architecture", architecture, "--without", without, "--budget", 24)
    size = int(lines.split("Student: ")[1].split(" ")[0].replace(",", ""))
    assert 3.3e6 < size < 4.4e6 and "photos, cross-validated" in lines


def test_color_components_are_those_of_histograms():
    generator = np.random.default_rng(0)
    pixels = (generator.random((50, 64, 64, 3)) * generator.integers(30, 256, (50, 1, 1, 3))).astype(np.uint8)
    roots = [
        np.sqrt(np.histogramdd(picture.reshape(-1, 3), 10, [(0, 256)] * 3)[0] / 4096).ravel() for picture in pixels
    ]
    expected = PCA(32, svd_solver="full").fit_transform(np.stack(roots))
    components = teach_images.color_components(pixels).numpy()
    # The sign of a component is arbitrary.
    np.testing.assert_allclose(np.abs(components), np.abs(expected), atol=1e-4)


def test_batches_hold_every_picture_once_in_each_pass():
    plan = teach_images.make_plan(10, 8, 4, seed=1)
    assert [step for step, _ in plan] == list(range(8))
    order = np.concatenate([rows for _, rows in plan])
    assert all(sorted(order[i : i + 10]) == list(range(10)) for i in (0, 10, 20))
    shorter = teach_images.make_plan(10, 3, 4, seed=1)
    assert all((a == b).all() for (_, a), (_, b) in zip(shorter, plan))


def test_parts_of_flipped_pictures_are_flipped():
    tokens = torch.arange(64.0).reshape(1, 64, 1)
    parts = teach_images.pool_parts(tokens)
    assert parts[0, :2, 0].tolist() == [4.5, 6.5] and parts.shape == (1, 16, 1)
    both = torch.cat([parts, parts])
    flipped = teach_images.flip_parts(both, torch.tensor([False, True]))
    mirrored = tokens.reshape(1, 8, 8, 1).flip(2).reshape(1, 64, 1)
    torch.testing.assert_close(flipped, torch.cat([parts, teach_images.pool_parts(mirrored)]))


def test_augmentation_shifts_and_flips():
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, (6, 64, 64, 3), np.uint8)
    is_flipped = np.array([True, False] * 3)
    values = teach_images.augment(pixels, is_flipped, generator)
    shifts = set()
    for i in range(6):
        original = teach_images.pixel_values(pixels[i : i + 1])[0]
        original = original.flip(2) if is_flipped[i] else original
        matches = [
            (down, right)
            for down in range(-4, 5)
            for right in range(-4, 5)
            if torch.equal(original.roll((down, right), (1, 2))[:, 8:-8, 8:-8], values[i][:, 8:-8, 8:-8])
        ]
        assert len(matches) == 1
        shifts.update(matches)
    assert len(shifts) > 2
