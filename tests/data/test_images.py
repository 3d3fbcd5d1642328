import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import PIL.Image
import pytest
import torch
from datasets import Dataset, Image
from torchvision.transforms import v2
from torchvision.transforms.functional import rotate
from transformers import ViTImageProcessor

from hf_gmlp.data.files import Access
from hf_gmlp.data.images import find_images, load_images
from hf_gmlp.data.labels import ONE_CLASS, Labels
from hf_gmlp.data.source import Source
from hf_gmlp.errors import InputError
from hf_gmlp.processor import decode_image
from hf_gmlp.tasks.image_classification import (
    ImageCollator,
    check_images,
    mixing_transform,
    training_transform,
)

from ..numerics import assert_close
from ..samples import picture, write_rows

CLASSES = ("apple", "boat", "cloud")


@pytest.fixture
def folder(tmp_path):
    """photos/<class>/<number>.jpg, four images of each of three classes."""
    for number, name in enumerate(CLASSES):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(4):
            picture(10 * number + i).save(tmp_path / "photos" / name / f"{i}.jpg")
    return tmp_path / "photos"


def pixels(dataset):
    return [np.asarray(decode_image(row["image"])) for row in dataset]


def loaded(train_path=None, validation_path=None, *, cache=None, dataset_name=None, **options):
    """Call load_images with single paths, and without validation data by default."""
    files = {split: [str(path)] for split, path in (("train", train_path), ("validation", validation_path)) if path}
    source = Source(files, dataset_name, access=Access(cache and str(cache)))
    splits, labels = load_images(source, **({"validate": False} | options))
    return SimpleNamespace(splits=splits, labels=labels.names, problem_type=labels.problem_type)


def test_folder_csv_and_parquet_are_the_same_data(folder, tmp_path):
    plain = loaded(folder)
    assert plain.labels == list(CLASSES) and plain.problem_type == ONE_CLASS
    assert plain.splits["train"]["labels"][:] == [0] * 4 + [1] * 4 + [2] * 4
    assert plain.splits["train"][5]["image"]["path"].endswith("boat/1.jpg")

    files = sorted(folder.rglob("*.jpg"))
    rows = [{"image": {"bytes": file.read_bytes(), "path": file.name}, "label": file.parent.name} for file in files]
    Dataset.from_list(rows).cast_column("image", Image()).to_parquet(tmp_path / "photos.parquet")
    write_rows(tmp_path / "photos.csv", [{"photo": file, "kind": file.parent.name} for file in files])
    names, cache = {"image_column": "photo", "label_column": "kind"}, tmp_path / "cache"
    for file, columns in (("photos.parquet", {}), ("photos.csv", names)):
        other = loaded(tmp_path / file, cache=cache, **columns)
        assert other.labels == plain.labels
        assert other.splits["train"]["labels"][:] == plain.splits["train"]["labels"][:]
        for a, b in zip(pixels(other.splits["train"]), pixels(plain.splits["train"])):
            np.testing.assert_array_equal(a, b)


def test_a_local_copy_of_a_hub_data_set_is_read(folder, tmp_path):
    rows = [{"img": str(file), "label": file.parent.name} for file in sorted(folder.rglob("*.jpg"))]
    (tmp_path / "hub").mkdir()
    for split in ("train", "test"):
        Dataset.from_list(rows).cast_column("img", Image()).to_parquet(tmp_path / "hub" / f"{split}.parquet")
    options = {"dataset_name": str(tmp_path / "hub"), "validate": True, "cache": tmp_path / "cache"}
    data = loaded(**options, image_column="img")
    assert {split: len(dataset) for split, dataset in data.splits.items()} == {"train": 12, "validation": 12}
    refused("'image'.* img, label", **options)


def test_folders_are_read_once_whatever_links_to_them(folder, tmp_path, caplog):
    shutil.move(folder / "boat", tmp_path / "boats")
    for name, target in (
        ("boat", tmp_path / "boats"),
        ("again", tmp_path / "boats"),
        ("apple/all", folder),
        ("apple/c", folder / "cloud"),
    ):
        (folder / name).symlink_to(target)
    (folder / "empty").mkdir()
    images = find_images(folder)
    assert [str(path) for path in images] == [
        f"{name}/{i}.jpg" for name in ("again", "apple", "cloud") for i in range(4)
    ]
    assert "3 links to a folder that is read already; 1 folder without supported images (empty)" in caplog.text


def test_validation_images_are_held_out_or_passed(folder):
    data = loaded(folder, validate=True, held_out=0.25, seed=1)
    names = [{row["image"]["path"] for row in data.splits[split]} for split in ("train", "validation")]
    assert [len(split) for split in names] == [9, 3] and not names[0] & names[1]
    both = loaded(folder, folder, validate=True)
    assert [len(data) for data in both.splits.values()] == [12, 12]
    sampled = loaded(folder, max_rows={"train": 6}, seed=3).splits["train"]["labels"][:]
    assert len(sampled) == 6 and len(set(sampled)) > 1


def test_a_checkpoint_with_the_same_classes_keeps_its_order(folder):
    trained = Labels(["cloud", "apple", "boat"], ONE_CLASS)
    data = loaded(folder, trained=trained)
    assert data.labels == trained.names and data.splits["train"]["labels"][:] == [1] * 4 + [2] * 4 + [0] * 4
    # Evaluation on a subset of the classes keeps all labels.
    shutil.rmtree(folder / "cloud")
    data = loaded(None, folder, trained=trained, train=False, validate=True)
    assert data.labels == trained.names and data.splits["validation"]["labels"][:] == [1] * 4 + [2] * 4
    # Training on the subset creates a new classifier.
    assert loaded(folder, trained=trained).labels == ["apple", "boat"]


def refused(words, *paths, **options):
    with pytest.raises(InputError, match=words):
        loaded(*paths, **options)


def test_bad_paths_are_refused(folder, tmp_path):
    refused("nowhere", tmp_path / "nowhere")
    refused("no class folders", folder / "apple")
    refused("no training images", None, folder)
    (tmp_path / "photos.zip").write_bytes(b"PK")
    refused("no folder .*photos.zip: unpack", tmp_path / "photos.zip")
    shutil.copytree(folder, tmp_path / "other")
    (tmp_path / "other" / "apple").rename(tmp_path / "other" / "apples")
    refused("'apples'", folder, tmp_path / "other")
    refused("training samples", folder, validate=True, held_out=0.01)


def test_common_names_of_splits_are_recognized(folder, tmp_path, caplog):
    caplog.set_level("INFO")
    root, train, test = tmp_path / "archive" / "data", "Training", "seg_val/seg_val"
    shutil.copytree(folder, root / train)
    shutil.copytree(folder, root / test)
    (root / test / "apple" / "0.jpg").unlink()
    # Kaggle archives also contain images without classes.
    shutil.copytree(folder / "apple", root / "seg_pred")
    data = loaded(tmp_path / "archive", validate=True)
    assert {split: len(rows) for split, rows in data.splits.items()} == {"train": 12, "validation": 11}
    assert data.labels == list(CLASSES)
    assert "11 images for validation" in caplog.text and "4 outside of class folders, in seg_pred" in caplog.text
    only = loaded(None, tmp_path / "archive", train=False, validate=True)
    assert len(only.splits["validation"]) == 11


def test_classes_may_be_named_like_splits_or_by_numbers(folder):
    # A single folder is not treated as a split.
    parent = folder.rename(folder.parent / "test").parent
    assert len(loaded(parent).splits["train"]) == 12
    folder = parent / "test"
    for name, number in zip(CLASSES, ("train", "10", "2")):
        (folder / name).rename(folder / number)
    assert loaded(folder).labels == ["10", "2", "train"]
    (folder / "train").rename(folder / "0")
    assert loaded(folder).labels == ["0", "2", "10"]


def test_files_that_are_left_out_are_logged(folder, tmp_path, caplog):
    for name in ("ships", "@eaDir", "wasps"):
        (folder / name).mkdir()
    hidden = ("apple/.hidden.jpg", "wasps/.DS_Store", "@eaDir/0.jpg")
    for name in ("apple/0.heic", "ships/0.ppm", "ships/1.ppm", *hidden):
        (folder / name).write_text("x")
    shutil.copy(folder / "boat" / "0.jpg", folder / "loose.jpg")
    shutil.copytree(folder / "boat", tmp_path / "more")
    (folder / "dove").symlink_to(tmp_path / "more")
    shutil.copy(folder / "boat" / "0.jpg", folder / "boat" / "9.JPG")
    data = loaded(folder)
    assert data.splits["train"]["labels"][:] == [0] * 4 + [1] * 5 + [2] * 4 + [3] * 4
    classes = (f"1 folder without supported images ({name})" for name in ("ships", "wasps"))
    for reason in ("2 .ppm", "1 .heic", "1 outside of class folders", *classes):
        assert reason in caplog.text


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("apple/2024", "boat/2024"), "apple/2024 and in boat/2024"),
        (("apple/train", "apple/test", "boat/train"), "apple/test and in boat/train"),
        (("apple", "apple/blurry", "boat"), "apple and in apple/blurry"),
        (("a/apple", "a/boat", "b/apple", "b/boat"), "a/apple and in b/apple"),
        (("train/apple", "train/boat", "test"), "test and in train/apple"),
        (("test tubes/apple", "train station/boat"), "test tubes/apple and in train station/boat"),
        (("train/apple", "Training/boat", "test/apple"), "Training/boat and in train/apple"),
        (("train", "test_set"), r"named like splits \(test_set, train\)"),
    ],
)
def test_a_class_is_one_folder_beside_those_of_other_classes(tmp_path, names, message):
    for name in names:
        (tmp_path / "photos" / name).mkdir(parents=True)
        picture().save(tmp_path / "photos" / name / "0.png")
    refused(message, tmp_path / "photos")


def test_folders_without_a_supported_format_are_refused(folder):
    for file in folder.rglob("*.jpg"):
        file.rename(file.with_suffix(".HEIC"))
    refused(r"no pictures of a supported format \(.jpg, .* JPEG", folder)


def test_images_that_cannot_be_decoded_are_refused_before_the_training(folder):
    splits = loaded(folder, validate=True, held_out=0.25).splits
    check_images(splits)
    path = Path(splits["train"][2]["image"]["path"])
    # The header is intact.
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(InputError, match=f"{path} cannot be read as a picture .*truncated"):
        check_images(splits)
    path.unlink()
    with pytest.raises(InputError, match="train data, does not exist"):
        check_images(splits)
    path = Path(splits["validation"][1]["image"]["path"])
    picture(size=(1, 1)).save(path)
    with pytest.raises(InputError, match=f"{path} cannot .* only 1 x 1 pixels"):
        check_images({"validation": splits["validation"]})


def test_bad_columns_are_refused(tmp_path):
    columns = {"number": [1, 2], "image": ["a", "b"], "label": ["a", "b"], "several": [["a"], ["b"]]}
    Dataset.from_dict(columns).to_parquet(tmp_path / "a.parquet")
    refused("'number'", tmp_path / "a.parquet", cache=tmp_path / "cache", image_column="number")
    refused("one class per image", tmp_path / "a.parquet", cache=tmp_path / "cache", label_column="several")


def test_missing_deep_and_other_images_are_named(tmp_path):
    PIL.Image.fromarray(np.full((8, 8), 40_000, dtype=np.uint16)).save(tmp_path / "deep.png")
    # Pillow would decode EPS by running Ghostscript.
    picture().save(tmp_path / "a.eps")
    (tmp_path / "a.eps").rename(tmp_path / "a.png")
    for name, reason in (("none.jpg", "No such file"), ("deep.png", "8 bits"), ("a.png", "not an image")):
        with pytest.raises(InputError, match=f"{name} .*{reason}"):
            decode_image({"bytes": None, "path": str(tmp_path / name)})


def test_rotated_images_are_turned_upright(tmp_path):
    exif = PIL.Image.Exif()
    exif[0x0112] = 6
    picture().save(tmp_path / "turned.png", exif=exif)
    upright = np.asarray(rotate(picture(), -90, expand=True))
    np.testing.assert_array_equal(
        np.asarray(decode_image({"bytes": None, "path": str(tmp_path / "turned.png")})), upright
    )


def test_training_transform_is_crop_flip_and_normalization():
    transform = training_transform((24, 16), [0.4, 0.5, 0.6], crop_scale=[1.0, 1.0], horizontal_flip=1.0)
    image = picture(size=(16, 24))
    # The crop is the complete image, since both have the same shape, which does not vary here.
    transform.transforms[0].ratio = (16 / 24, 16 / 24)
    expected = torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1).flip(-1) / 255
    expected = (expected - torch.tensor([0.4, 0.5, 0.6])[:, None, None]) / torch.tensor([0.2, 0.3, 0.4])[:, None, None]
    processor = ViTImageProcessor(image_mean=[0.4, 0.5, 0.6], image_std=[0.2, 0.3, 0.4])
    assert transform(image).dtype == torch.uint8
    assert_close(ImageCollator(processor).normalize(transform(image)), expected)
    policy = training_transform((8, 8), [0.5] * 3, auto_augment="cifar10").transforms[2]
    assert isinstance(policy, v2.AutoAugment) and policy.policy == v2.AutoAugmentPolicy.CIFAR10


def test_mixing_applies_mixup_or_cutmix():
    images = torch.stack([torch.full((3, 8, 8), i, dtype=torch.uint8) for i in range(4)])
    labels, both = torch.arange(4), {"mixup_alpha": 0.8, "cutmix_alpha": 1.0}
    # CutMix keeps the integers.
    mixing = mixing_transform(4, **both)
    assert {mixing(images, labels)[0].dtype for _ in range(40)} == {torch.uint8, torch.float32}
    always = mixing_transform(4, **both, switch_prob=1.0)
    assert all(always(images, labels)[0].dtype == torch.uint8 for _ in range(10))
    assert mixing_transform(4, mixup_alpha=0.8)(images, labels)[0].dtype == torch.float32
    assert mixing_transform(4) is None


def collator(seed=0):
    processor = ViTImageProcessor(size={"height": 16, "width": 16})
    transform = training_transform((16, 16), [0.5] * 3, auto_augment="imagenet")
    return ImageCollator(processor, transform, mixing_transform(3, mixup_alpha=0.8, cutmix_alpha=1.0), seed)


def test_augmentation_depends_only_on_image_seed_and_epoch(folder):
    dataset, collate = loaded(folder).splits["train"], collator()
    batch = [dataset[i] | {"index": i} for i in (3, 7, 11)]
    state = torch.get_rng_state()
    first = collate(batch)
    # Augmentation does not advance the random state of the run.
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    again, other_seed = collate(batch), collator(seed=5)(batch)
    collate.set_epoch(1)
    next_epoch = collate(batch)
    assert first["pixel_values"].shape == (3, 3, 16, 16) and first["labels"].shape == (3, 3)
    assert all(torch.equal(again[key], first[key]) for key in first)
    assert not torch.equal(other_seed["pixel_values"], first["pixel_values"])
    assert not torch.equal(next_epoch["pixel_values"], first["pixel_values"])
    # Without mixing, augmentation depends on the index of an image but not on its batch.
    collate.mixing = None
    together = collate(batch)
    assert torch.equal(collate(batch[:1])["pixel_values"][0], together["pixel_values"][0])
    assert not torch.equal(collate([batch[0] | {"index": 4}])["pixel_values"][0], together["pixel_values"][0])
    assert together["labels"].tolist() == [0, 1, 2]


def test_evaluation_uses_the_image_processor(folder):
    dataset, collate = loaded(folder).splits["train"], collator()
    batch = collate([dataset[i] for i in (2, 5)])
    expected = collate.processor([PIL.Image.open(dataset[i]["image"]["path"]) for i in (2, 5)], return_tensors="pt")
    assert torch.equal(batch["pixel_values"], expected["pixel_values"]) and batch["labels"].tolist() == [0, 1]
    # The hook normalizes only integers.
    _, inputs = collate.before_forward(None, (), batch)
    assert torch.equal(inputs["pixel_values"], expected["pixel_values"])
