"""Folders, files and bad images; what augmentation and mixing do and what they depend on."""

import io
import logging
import os
import re
import shutil
import zipfile
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import torch
from datasets import Dataset, Features, Image, Value
from torch.utils.data import DataLoader
from torchvision.transforms import v2
from torchvision.transforms.functional import rotate, to_pil_image
from transformers import ViTImageProcessor

from hf_gmlp.data import images
from hf_gmlp.data.files import Access
from hf_gmlp.data.images import (
    ImageCollator,
    decode,
    find_faults,
    image_fault,
    keep_good,
    load_images,
    mixing_transform,
    read_folder,
    training_transform,
)
from hf_gmlp.data.labels import ONE_CLASS, Labels
from hf_gmlp.errors import InputError

CLASSES = ("apple", "boat", "cloud")


def picture(seed=0, size=(40, 36), mode="RGB"):
    noise = np.random.default_rng(seed).integers(0, 256, (5, 4, 3), dtype=np.uint8)
    return PIL.Image.fromarray(noise).resize(size, PIL.Image.BICUBIC).convert(mode)


@pytest.fixture
def folder(tmp_path):
    """photos/<class>/<number>.jpg, four images of each of three classes."""
    for number, name in enumerate(CLASSES):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(4):
            picture(10 * number + i).save(tmp_path / "photos" / name / f"{i}.jpg")
    return tmp_path / "photos"


def zipped(folder, inside=""):
    path = folder.parent / "photos.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(folder.rglob("*.jpg")):
            archive.write(file, f"{inside}{file.relative_to(folder)}")
    return path


def pixels(dataset):
    return [np.asarray(decode(row["image"])) for row in dataset]


def loaded(**options):
    return load_images(**({"validate": False} | options))


def test_folder_zip_and_parquet_are_the_same_data(folder, tmp_path):
    plain = loaded(train_dir=str(folder))
    assert plain.labels == list(CLASSES) and plain.problem_type == ONE_CLASS
    assert plain.splits["train"]["labels"][:] == [0] * 4 + [1] * 4 + [2] * 4
    assert [name.rsplit("/", 2)[-2:] for name in (plain.splits["train"][5]["image"]["path"],)] == [["boat", "1.jpg"]]

    rows = {
        "image": [{"bytes": file.read_bytes(), "path": file.name} for file in sorted(folder.rglob("*.jpg"))],
        "label": [name for name in CLASSES for _ in range(4)],
    }
    features = Features({"image": Image(), "label": Value("string")})
    Dataset.from_dict(rows, features=features).to_parquet(tmp_path / "photos.parquet")
    for other in (
        loaded(train_dir=str(zipped(folder)), access=Access(str(tmp_path / "cache"))),
        loaded(train_dir=str(zipped(folder, "all/photos/")), access=Access(str(tmp_path / "cache"))),
        loaded(train_files=[str(tmp_path / "photos.parquet")], access=Access(str(tmp_path / "cache"))),
    ):
        assert other.labels == plain.labels
        assert other.splits["train"]["labels"][:] == plain.splits["train"]["labels"][:]
        for a, b in zip(pixels(other.splits["train"]), pixels(plain.splits["train"])):
            np.testing.assert_array_equal(a, b)


def test_a_file_with_paths_of_images(folder, tmp_path):
    lines = [f"{file},{file.parent.name}" for file in sorted(folder.rglob("*.jpg"))]
    (tmp_path / "photos.csv").write_text("\n".join(["photo,kind", *lines]) + "\n")
    data = loaded(train_files=[str(tmp_path / "photos.csv")], image_column="photo", label_column="kind",
                  access=Access(str(tmp_path / "cache")))  # fmt: skip
    for a, b in zip(pixels(data.splits["train"]), pixels(loaded(train_dir=str(folder)).splits["train"])):
        np.testing.assert_array_equal(a, b)


def test_a_local_copy_of_a_hub_data_set(folder, tmp_path):
    rows = [{"img": str(file), "label": file.parent.name} for file in sorted(folder.rglob("*.jpg"))]
    (tmp_path / "hub").mkdir()
    for split in ("train", "test"):
        Dataset.from_list(rows).cast_column("img", Image()).to_parquet(tmp_path / "hub" / f"{split}.parquet")
    data = load_images(dataset_name=str(tmp_path / "hub"), image_column="img", access=Access(str(tmp_path / "cache")))
    assert {split: len(dataset) for split, dataset in data.splits.items()} == {"train": 12, "validation": 12}
    with pytest.raises(InputError, match="no column 'image' but img, label: name yours with --image_column_name"):
        load_images(dataset_name=str(tmp_path / "hub"), access=Access(str(tmp_path / "cache")))


def test_a_changed_zip_file_is_unpacked_again(folder, tmp_path):
    options = {"train_dir": str(zipped(folder)), "access": Access(str(tmp_path / "cache"))}
    assert len(loaded(**options).splits["train"]) == 12
    (folder / "apple" / "3.jpg").unlink()
    zipped(folder)
    assert len(loaded(**options).splits["train"]) == 11


def test_validation_images_are_held_out_or_given(folder):
    data = load_images(train_dir=str(folder), train_val_split=0.25, seed=1)
    names = [{row["image"]["path"] for row in data.splits[split]} for split in ("train", "validation")]
    assert [len(split) for split in names] == [9, 3] and not names[0] & names[1]
    assert [len(data) for data in load_images(train_dir=str(folder), validation_dir=str(folder)).splits.values()] == [
        12,
        12,
    ]


def test_a_limited_sample_has_several_classes(folder):
    drawn = loaded(train_dir=str(folder), max_samples={"train": 6}, seed=3).splits["train"]["labels"][:]
    assert len(drawn) == 6 and len(set(drawn)) > 1


def test_a_checkpoint_with_the_same_classes_keeps_its_order(folder):
    known = Labels(["cloud", "apple", "boat"], ONE_CLASS)
    data = loaded(train_dir=str(folder), known=known)
    assert data.labels == known.names and data.splits["train"]["labels"][:] == [1] * 4 + [2] * 4 + [0] * 4
    # Evaluated on some of its classes, it still has all of them.
    shutil.rmtree(folder / "cloud")
    data = load_images(validation_dir=str(folder), known=known, train=False)
    assert data.labels == known.names and data.splits["validation"]["labels"][:] == [1] * 4 + [2] * 4
    # Trained on them, it becomes another classifier.
    assert loaded(train_dir=str(folder), known=known).labels == ["apple", "boat"]


def test_bad_folders_are_explained(folder, tmp_path, caplog):
    with pytest.raises(InputError, match="Name the images in one way"):
        loaded()
    with pytest.raises(InputError, match="There is no folder and no complete zip file .*nowhere"):
        loaded(train_dir=str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match="apple has no class folders"):
        loaded(train_dir=str(folder / "apple"))
    (tmp_path / "broken.zip").write_bytes(zipped(folder).read_bytes()[:500])
    with pytest.raises(InputError, match="There is no folder and no complete zip file .*broken.zip"):
        loaded(train_dir=str(tmp_path / "broken.zip"))
    shutil.copytree(folder, tmp_path / "root" / "train")
    shutil.copytree(folder, tmp_path / "root" / "val")
    with pytest.raises(InputError, match="train and val, splits instead of classes: give --train_dir .*root/train"):
        loaded(train_dir=str(tmp_path / "root"))
    with pytest.raises(InputError, match="There are no training images"):
        loaded(validation_dir=str(folder))

    shutil.copytree(folder, tmp_path / "other")
    (tmp_path / "other" / "apple").rename(tmp_path / "other" / "apples")
    with pytest.raises(
        InputError, match="Row 1 of the validation data has the label 'apples', which is not one of apple, boat, cloud"
    ):
        load_images(train_dir=str(folder), validation_dir=str(tmp_path / "other"))
    shutil.rmtree(tmp_path / "other" / "apples")
    with caplog.at_level(logging.WARNING):
        load_images(train_dir=str(folder), validation_dir=str(tmp_path / "other"))
    assert "The validation data have no images of apple." in caplog.text

    (folder / "dog").mkdir()
    (folder / "dog" / "notes.txt").write_text("no image")
    with pytest.raises(InputError, match="The class folder .*dog has no images: add some, or remove it"):
        read_folder(folder)


def test_bad_zip_files_are_not_unpacked(folder, tmp_path, monkeypatch):
    access = Access(str(tmp_path / "cache"))

    def refused(message, path=tmp_path / "made.zip"):
        with pytest.raises(InputError, match=message):
            read_folder(path, access)
        assert not list((tmp_path / "cache").rglob("*.jpg")) and not list((tmp_path / "cache").rglob("contents"))

    def make(files, flag=0):
        with zipfile.ZipFile(tmp_path / "made.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in files.items():
                archive.writestr(name, content)
            for entry in archive.filelist:
                entry.flag_bits |= flag

    make({})
    refused("made.zip has no class folders")
    make({"a/0.jpg": b"x"}, flag=1)
    refused("made.zip cannot be read as a zip file: .*password required")
    for name in ("../0.jpg", "a/../../0.jpg", "/tmp/0.jpg"):
        make({"a/0.jpg": b"x", name: b"x"})
        refused("made.zip holds .*0.jpg, outside its folder")
    make({"a/0.jpg": bytes(100_000)})
    with monkeypatch.context() as patch:
        patch.setattr(images.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(0, 0, 99_999))
        refused("made.zip needs 100,000 bytes and the disk has 99,999")
    whole = zipped(folder).read_bytes()
    damaged = whole[:300] + bytes(200) + whole[500:]
    (tmp_path / "made.zip").write_bytes(damaged)
    refused("made.zip cannot be read as a zip file: ")


@pytest.mark.slow
def test_zip_files_of_zeros_are_not_unpacked(folder, tmp_path):
    path = zipped(folder)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive, archive.open("cat/0.png", "w") as file:
        for _ in range(1100):
            file.write(bytes(1 << 20))
    with pytest.raises(InputError, match="unpacks to 1,15.* bytes, too many for images"):
        load_images(train_dir=str(path), access=Access(cache_dir=str(tmp_path / "cache")))


def test_files_without_an_image_ending_are_listed(folder, tmp_path, caplog):
    for name in ("0.heic", "notes", ".hidden"):
        (folder / CLASSES[0] / name).write_text("x")
    data = load_images(train_dir=str(folder), validate=False)
    assert len(data.splits["train"]) == 12
    assert "2 files of" in caplog.text and "0.heic" in caplog.text and ".hidden" not in caplog.text


def test_unpacked_files_are_identified_by_their_contents(folder, tmp_path):
    access, other = Access(str(tmp_path / "cache")), Access(str(tmp_path / "cache"), overwrite_cache=True)
    path = zipped(folder)
    unpacked = Path(read_folder(path, access)[0]["image"]["path"])
    # The same file with another date and place.
    copy = shutil.copy(path, tmp_path / "cache" / path.name)
    unpacked.unlink()
    assert len(read_folder(copy, access)) == 11
    assert len(read_folder(path, other)) == 12


def test_folders_that_cannot_be_told_apart_or_read(folder, tmp_path):
    (folder / "Apple").mkdir()
    with pytest.raises(InputError, match="has the class folders Apple and apple, which differ only in case"):
        read_folder(folder)
    (folder / "Apple").rmdir()
    # Entries that no list of files should hold.
    (folder / "boat" / ".hidden").mkdir()
    shutil.copy(folder / "boat" / "0.jpg", folder / "boat" / ".hidden" / "0.jpg")
    (folder / "boat" / "folder.jpg").mkdir()
    os.mkfifo(folder / "boat" / "pipe.jpg")
    assert len(read_folder(folder)) == 12
    strange = folder / "boat" / "\udcff.jpg"
    shutil.copy(folder / "boat" / "0.jpg", strange)
    with pytest.raises(InputError, match="cannot be read as a folder of images: .*utf-8"):
        read_folder(folder)
    strange.unlink()
    for name in ("8.jfif", "9.JPG"):
        shutil.copy(folder / "boat" / "0.jpg", folder / "boat" / name)
    (folder / "boat" / "7.jpg").symlink_to(tmp_path / "nowhere.jpg")
    dataset = loaded(train_dir=str(folder)).splits["train"]
    assert len(dataset) == 15
    with pytest.raises(InputError, match=r"1 of the 15 images .*boat/7\.jpg \(no such file\)"):
        keep_good(dataset, "train", find_faults(dataset, "train", (1, 1)))


def test_files_with_paths_that_cannot_be_used(folder, tmp_path):
    def read(lines, **options):
        (tmp_path / "photos.csv").write_text("\n".join(["image,label", *lines]) + "\n")
        return loaded(train_files=[str(tmp_path / "photos.csv")], access=Access(str(tmp_path / "cache")), **options)

    good = [f"{file},00{number}" for number, file in enumerate(sorted(folder.rglob("*.jpg"))[::4])]
    assert read(good).labels == ["000", "001", "002"]
    dataset = read([*good, "none.jpg,000", ",001"]).splits["train"]
    with pytest.raises(InputError, match=r"2 of the 5 images .*none\.jpg \(no such file\), row 5 \(no such file\)"):
        keep_good(dataset, "train", find_faults(dataset, "train", (1, 1)))
    assert read(["a.jpg,0.5", "b.jpg,1"]).labels == ["0.5", "1"]
    with pytest.raises(InputError, match="Row 4 of the training data has no label"):
        read([*good, "x.jpg,"])
    with pytest.raises(InputError, match="mix names and numbers"):
        read([*good, "x.jpg,boat"])
    with pytest.raises(InputError, match=r"The column 'number' of the training data cannot be read as images or paths"):
        Dataset.from_dict({"number": [1, 2], "label": ["a", "b"]}).to_parquet(tmp_path / "numbers.parquet")
        loaded(train_files=[str(tmp_path / "numbers.parquet")], image_column="number",
               access=Access(str(tmp_path / "cache")))  # fmt: skip
    with pytest.raises(InputError, match="must have one class per image"):
        Dataset.from_dict({"image": ["a", "b"], "label": [["a"], ["b"]]}).to_parquet(tmp_path / "lists.parquet")
        loaded(train_files=[str(tmp_path / "lists.parquet")], access=Access(str(tmp_path / "cache")))
    with pytest.raises(InputError, match="The columns image, image of the training data must be different"):
        read(good, label_column="image")
    (tmp_path / "one" / "apple").mkdir(parents=True)
    shutil.copy(folder / "apple" / "0.jpg", tmp_path / "one" / "apple")
    with pytest.raises(InputError, match="1 training images are too few to hold out 0.15 of them"):
        load_images(train_dir=str(tmp_path / "one"))


def test_damaged_images_of_every_format_are_found():
    def saved(image, kind):
        file = io.BytesIO()
        image.save(file, kind)
        return {"bytes": file.getvalue(), "path": None}

    assert image_fault({"bytes": None, "path": None}, (1, 1))["fault"] == "no such file"
    whole = saved(picture(), "AVIF")
    assert image_fault(whole, (1, 1))["fault"] == ""
    # Images without a fault can be decoded.
    for kind in ("PNG", "GIF", "TIFF", "BMP", "WEBP", "AVIF", "PPM"):
        whole = saved(picture(), kind)["bytes"]
        for place in range(0, len(whole), max(1, len(whole) // 60)):
            damaged = whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :]
            if not image_fault({"bytes": damaged, "path": None}, (1, 1))["fault"]:
                decode({"bytes": damaged, "path": None})


def test_bad_images_are_named_or_skipped_and_counted(folder, caplog):
    good = (folder / "apple" / "0.jpg").read_bytes()
    (folder / "apple" / "1.jpg").write_bytes(good[: len(good) // 2])
    (folder / "apple" / "2.jpg").write_text("no image at all")
    picture(size=(15, 40)).save(folder / "boat" / "0.jpg")
    picture(mode="CMYK").save(folder / "boat" / "1.jpg")
    picture(mode="L").save(folder / "boat" / "2.jpg")
    picture(mode="P").save(folder / "cloud" / "0.png")
    PIL.Image.fromarray(np.full((40, 40), 3000, dtype=np.uint16)).save(folder / "cloud" / "1.png")
    dataset = loaded(train_dir=str(folder)).splits["train"]
    found = find_faults(dataset, "train", (16, 16))
    with pytest.raises(InputError) as error:
        keep_good(dataset, "train", found)
    message = str(error.value)
    for words in ("4 of the 14 images of the training data cannot be used", "apple/1.jpg (cut off or damaged: ",
                  "apple/2.jpg (not an image)", "boat/0.jpg (15x40 pixels, less than a patch of 16x16)",
                  "cloud/1.png (pixels of more than 8 bits", "give --skip_bad_images"):  # fmt: skip
        assert words in message
    with caplog.at_level(logging.INFO):
        kept = keep_good(dataset, "train", found, skip=True)
    assert len(kept) == 10 and all("apple/1.jpg" not in row["image"]["path"] for row in kept)
    assert "Skipped 4 of the 14 images of the training data" in caplog.text
    for mode, file in (("CMYK", "boat/1.jpg"), ("L", "boat/2.jpg"), ("P", "cloud/0.png")):
        assert re.search(f"1 images of the training data are converted from {mode} to RGB: .*{file}", caplog.text)
    assert all(image.shape[2] == 3 for image in pixels(kept))


def test_skipping_needs_a_good_image(tmp_path):
    for name in CLASSES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.jpg").write_text("no image")
    dataset = loaded(train_dir=str(tmp_path)).splits["train"]
    with pytest.raises(InputError, match="3 of the 3 images"):
        keep_good(dataset, "train", find_faults(dataset, "train", (1, 1)), skip=True)


def test_truncated_jpegs_are_found(tmp_path):
    picture(size=(200, 150)).save(tmp_path / "whole.jpg", quality=90)
    whole = (tmp_path / "whole.jpg").read_bytes()
    assert image_fault({"bytes": whole, "path": None}, (1, 1)) == {"fault": "", "remark": ""}
    for share in (0.05, 0.3, 0.6, 0.9):
        assert image_fault({"bytes": whole[: int(share * len(whole))], "path": None}, (1, 1))["fault"]


def test_pictures_are_turned_upright(tmp_path):
    exif = PIL.Image.Exif()
    exif[0x0112] = 6
    picture().save(tmp_path / "turned.png", exif=exif)
    upright = np.asarray(rotate(picture(), -90, expand=True))
    np.testing.assert_array_equal(np.asarray(decode({"bytes": None, "path": str(tmp_path / "turned.png")})), upright)


def test_a_picture_with_damaged_exif_is_not_turned(folder, caplog):
    (folder / "apple" / "0.jpg").unlink()
    picture().save(folder / "apple" / "0.png", exif=b"Exif\x00\x00MM\x00*")
    dataset = loaded(train_dir=str(folder)).splits["train"]
    found = find_faults(dataset, "train", (1, 1))
    with caplog.at_level(logging.INFO):
        assert len(keep_good(dataset, "train", found)) == 12
    assert "1 images of the training data are not turned upright, since their EXIF is damaged" in caplog.text
    assert decode(dataset[0]["image"]).size == picture().size


def test_training_transform_is_crop_flip_and_normalization():
    transform = training_transform((24, 16), [0.4, 0.5, 0.6], [0.2, 0.3, 0.4], crop_scale=(1.0, 1.0), horizontal_flip=1)
    image = picture(size=(16, 24))
    # The whole image, since it has the shape of the crop, which does not vary here.
    transform.transforms[0].ratio = (16 / 24, 16 / 24)
    expected = torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1).flip(-1) / 255
    expected = (expected - torch.tensor([0.4, 0.5, 0.6])[:, None, None]) / torch.tensor([0.2, 0.3, 0.4])[:, None, None]
    torch.testing.assert_close(transform(image), expected)
    policy = training_transform((8, 8), [0.5] * 3, [0.5] * 3, auto_augment="cifar10").transforms[2]
    assert isinstance(policy, v2.AutoAugment) and policy.policy == v2.AutoAugmentPolicy.CIFAR10


def test_mixing_applies_mixup_or_cutmix():
    images = torch.stack([torch.full((3, 8, 8), float(i)) for i in range(4)])
    labels = torch.arange(4)
    seen = set()
    for _ in range(40):
        mixed, shares = mixing_transform(4, mixup_alpha=0.8, cutmix_alpha=1.0, switch_prob=0.5)(images, labels)
        torch.testing.assert_close(shares.sum(1), torch.ones(4))
        # Pixels and labels are mixed in the same shares.
        torch.testing.assert_close(mixed.mean((1, 2, 3)), shares @ torch.arange(4.0), atol=1e-4, rtol=0)
        whole = (mixed == mixed.round()).all()
        seen.add("cutmix" if whole and len(mixed[0].unique()) > 1 else "mixup" if not whole else "either")
    assert {"cutmix", "mixup"} <= seen
    always = mixing_transform(4, mixup_alpha=0.8, cutmix_alpha=1.0, switch_prob=1.0)
    cut = torch.cat([always(images, labels)[0] for _ in range(10)])
    assert torch.equal(cut, cut.round())
    assert isinstance(mixing_transform(4, mixup_alpha=0.8), v2.MixUp) and mixing_transform(4) is None


def collator(seed=0, **options):
    processor = ViTImageProcessor(size={"height": 16, "width": 16})
    transform = training_transform((16, 16), [0.5] * 3, [0.5] * 3, auto_augment="imagenet")
    return ImageCollator(processor, transform, mixing_transform(3, 0.8, 1.0), seed, **options)


def rows(folder):
    dataset = loaded(train_dir=str(folder)).splits["train"]
    return dataset.add_column("index", range(len(dataset)))


def test_augmentation_depends_only_on_image_seed_and_epoch(folder):
    dataset, collate = rows(folder), collator()
    batch = [dataset[i] for i in (3, 7, 11)]
    torch.manual_seed(1)
    first, state = collate(batch), torch.get_rng_state()
    torch.manual_seed(1)
    assert torch.equal(torch.get_rng_state(), state)  # nothing was drawn from the run's own random numbers
    torch.manual_seed(2)
    again, other_seed = collate(batch), collator(seed=5)(batch)
    collate.set_epoch(1)
    next_epoch = collate(batch)
    assert first["pixel_values"].shape == (3, 3, 16, 16) and first["labels"].shape == (3, 3)
    for key in first:
        torch.testing.assert_close(again[key], first[key], atol=0, rtol=0)
    assert not torch.equal(other_seed["pixel_values"], first["pixel_values"])
    assert not torch.equal(next_epoch["pixel_values"], first["pixel_values"])
    # Without mixing, an image is the same in any batch.
    collate.mixing = None
    alone, together = collate(batch[:1]), collate(batch)
    assert torch.equal(alone["pixel_values"][0], together["pixel_values"][0])
    assert together["labels"].tolist() == [0, 1, 2]


def test_worker_processes_make_the_same_batches_and_see_an_epoch_begin(folder):
    dataset, collate = rows(folder), collator()

    def batches(workers):
        options = {"persistent_workers": True} if workers else {}
        loader = DataLoader(dataset, batch_size=4, collate_fn=collate, num_workers=workers, **options)
        epochs = []
        for epoch in range(2):
            collate.set_epoch(epoch)
            epochs.append(torch.cat([batch["pixel_values"] for batch in loader]))
        return epochs

    here, there = batches(0), batches(2)
    assert torch.equal(here[0], there[0]) and torch.equal(here[1], there[1]) and not torch.equal(here[0], here[1])


def test_evaluation_uses_the_image_processor(folder):
    dataset, collate = loaded(train_dir=str(folder)).splits["train"], collator()
    batch = collate([dataset[i] for i in (2, 5)])
    expected = collate.processor([PIL.Image.open(dataset[i]["image"]["path"]) for i in (2, 5)], return_tensors="pt")
    assert torch.equal(batch["pixel_values"], expected["pixel_values"]) and batch["labels"].tolist() == [0, 1]
    assert to_pil_image(batch["pixel_values"][0]).size == (16, 16)


def test_numeric_classes_are_sorted_by_value(folder, tmp_path):
    files = sorted(folder.rglob("*.jpg"))
    rows = {"image": [str(file) for file in files], "label": [float(10 - i % 3) for i in range(len(files))]}
    Dataset.from_dict(rows).to_parquet(tmp_path / "photos.parquet")
    data = loaded(train_files=[str(tmp_path / "photos.parquet")], access=Access(str(tmp_path / "cache")))
    assert data.labels == ["8", "9", "10"] and data.splits["train"]["labels"][:4] == [2, 1, 0, 2]
