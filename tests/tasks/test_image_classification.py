"""run_image_classification.py, called as by a user, in this process."""

import functools
import shutil
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import timm
import torch
from safetensors.torch import load_file
from transformers import (
    AutoModelForImageClassification,
    TimmWrapperConfig,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessor,
    pipeline,
)

from hf_gmlp import GMLPForImageClassification
from hf_gmlp.errors import InputError
from hf_gmlp.tasks.image_classification import (
    build_image_config,
    build_image_model,
    build_image_processor,
    image_size,
    main,
)
from hf_gmlp.training.arguments import BaseModelArguments as Arguments

from ..samples import COLORS, run_in, write_photos

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
TINY = "patch_size=8,num_hidden_layers=2,hidden_size=32,intermediate_size=64"
GMLP = ("--config_name", "gmlp-ti16-224", "--config_overrides", TINY, "--image_size", "32", "--learning_rate", "3e-3")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    write_photos(folder / "train", 24, 0)
    write_photos(folder / "validation", 8, 1)
    return folder


@pytest.fixture(scope="module")
def run(folder):
    """run(*flags) calls run_image_classification.py with files of the folder by name, and returns its results."""
    return functools.partial(run_in, folder, main)


DATA = ("--train_dir", "train", "--validation_dir", "validation")
TRAIN = (*DATA, "--do_train", "--per_device_train_batch_size", "8", "--save_strategy", "no", "--seed", "1")


@pytest.fixture(scope="module")
def trained(run, folder):
    results = run(*GMLP, *TRAIN, "--do_eval", "--num_train_epochs", "6", "--output_dir", "trained")
    return folder / "trained", results


def test_training_learns_and_the_pipeline_accepts_paths_images_and_batches(trained, folder):
    checkpoint, results = trained
    card = (checkpoint / "README.md").read_text()
    assert "| mixup_alpha | 0.0 |" in card and "\nhf-gmlp run image_classification --config_name gmlp-ti16-224" in card
    assert results["eval_accuracy"] > 0.9 and "eval_top5_accuracy" not in results and "total_flos" not in results
    classify = pipeline("image-classification", model=str(checkpoint), device="cpu")
    paths = sorted((folder / "validation").rglob("*.png"))
    answers = [answer[0] for answer in classify([str(path) for path in paths], top_k=1, batch_size=5)]
    assert np.mean([answer["label"] == path.parent.name for answer, path in zip(answers, paths)]) == pytest.approx(
        results["eval_accuracy"]
    )
    # During the run, a hook of the model normalizes the pixels.
    model, processor = AutoModelForImageClassification.from_pretrained(checkpoint), classify.image_processor
    assert model.config.id2label == dict(enumerate(COLORS)) and model.config.image_size == 32
    assert processor.size == {"shortest_edge": 32} and processor.crop_pct == 0.875
    pixels = processor([PIL.Image.open(path) for path in paths], return_tensors="pt")["pixel_values"]
    labels = torch.tensor([model.config.label2id[path.parent.name] for path in paths])
    assert float(model(pixels, labels=labels).loss.detach()) == pytest.approx(results["eval_loss"], abs=1e-4)
    alone = classify(PIL.Image.open(paths[3]), top_k=1)[0]
    assert alone["label"] == answers[3]["label"] and alone["score"] == pytest.approx(answers[3]["score"], abs=1e-5)


AUGMENTED = "--auto_augment imagenet --mixup_alpha 0.8 --cutmix_alpha 1 --label_smoothing_factor 0.1".split()


def test_a_resumed_run_ends_with_the_same_weights(run, folder):
    flags = (*GMLP, *DATA, "--do_train", "--per_device_train_batch_size", "8", *AUGMENTED, "--max_steps", "14")
    flags = (*flags, "--save_strategy", "steps", "--save_steps", "6")
    run(*flags, "--output_dir", "complete")
    workers = ("--dataloader_num_workers", "2", "--dataloader_persistent_workers", "true")
    run(*flags, *workers, "--output_dir", "cut")
    # Simulate a kill after step 6, within the first epoch of nine steps.
    for left in ("checkpoint-12", "checkpoint-14"):
        shutil.rmtree(folder / "cut" / left)
    for left in ("model.safetensors", "all_results.json"):
        (folder / "cut" / left).unlink()
    run(*flags, *workers, "--output_dir", "cut")
    complete, cut = (load_file(folder / name / "model.safetensors") for name in ("complete", "cut"))
    # AdamW amplifies rounding. With other images, weights would differ a thousand times more.
    torch.testing.assert_close(cut, complete, atol=1e-5, rtol=1e-4)


def test_a_checkpoint_can_be_trained_for_another_size_and_other_classes(run, folder, trained):
    again = run("--model_name_or_path", "trained", *DATA, "--do_eval", "--output_dir", "same_size")
    assert again["eval_accuracy"] == trained[1]["eval_accuracy"]
    larger = ("--model_name_or_path", "trained", "--image_size", "48", "40", *TRAIN, "--max_steps", "3")
    results = run(*larger, "--do_eval", "--learning_rate", "1e-4", "--output_dir", "larger")
    assert results["eval_accuracy"] > 0.9  # the features learned at 32 pixels are kept
    model = AutoModelForImageClassification.from_pretrained(folder / "larger")
    assert model.config.grid_size == (6, 5) and model.config.image_size == [48, 40]

    two_classes = folder / "two_classes"
    shutil.copytree(folder / "train", two_classes)
    shutil.rmtree(two_classes / "red")
    flags = ("--model_name_or_path", "trained", "--train_dir", "two_classes", "--do_train", "--max_steps", "2")
    with pytest.raises(InputError, match="--ignore_mismatched_sizes"):
        run(*flags, "--output_dir", "new_head")
    run(*flags, "--ignore_mismatched_sizes", "--output_dir", "new_head")
    assert AutoModelForImageClassification.from_pretrained(folder / "new_head").config.num_labels == 2


VIT = "image_size=32,patch_size=8,num_hidden_layers=1,hidden_size=24,num_attention_heads=3,intermediate_size=32"


@pytest.mark.parametrize(
    ("name", "overrides"), [("deit-ti16-224", VIT), ("resmlp-12", "model_args={img_size: 32}")], ids=["deit", "resmlp"]
)
def test_baselines_of_the_paper_train_with_the_same_flags(run, folder, name, overrides):
    flags = ("--config_name", name, "--config_overrides", overrides, *TRAIN, "--max_steps", "2")
    results = run(*flags, "--do_eval", "--output_dir", name)
    again = run("--model_name_or_path", name, *DATA, "--do_eval", "--output_dir", f"{name}-again")
    assert again["eval_loss"] == pytest.approx(results["eval_loss"], abs=1e-4)
    answer = pipeline("image-classification", model=str(folder / name))(str(folder / "train/blue/000.png"))
    assert {entry["label"] for entry in answer} == set(COLORS)


def test_a_new_model_has_the_size_of_the_flag():
    config = build_image_config(Arguments(config_name="gmlp-s16-224"), (288, 320))
    assert image_size(config) == (288, 320) and config.grid_size == (18, 20)
    # The patch size does not divide the 224 of the preset.
    small = Arguments(config_name="gmlp-ti16-224", config_overrides="patch_size=5")
    assert build_image_config(small, (40, 40)).grid_size == (8, 8)
    assert image_size(build_image_config(Arguments(config_name="deit-ti16-224"), (32, 32))) == (32, 32)
    with pytest.raises(InputError, match="225"):
        build_image_config(Arguments(config_name="gmlp-s16-224"), (225, 224))
    # transformers' own scripts use "shortest_edge" as the size of the model's input.
    new, config = Arguments(config_name="gmlp-s16-224"), build_image_config(Arguments(config_name="gmlp-s16-224"), None)
    processor = build_image_processor(new, config, None, None)
    assert processor.size == {"shortest_edge": 224} and processor.crop_pct == 0.875
    assert build_image_processor(new, config, (288, 320), 1.0).size == {"height": 288, "width": 320}


def test_models_of_timm_have_timm_s_initial_weights():
    config = TimmWrapperConfig(architecture="gmlp_ti16_224", model_args={"img_size": 32})
    arguments = Arguments(config_name="a folder with this config")
    gate = build_image_model(arguments, config, None, train=True).timm_model.blocks[3].mlp_channels.gate
    reference = timm.create_model("gmlp_ti16_224", img_size=32).blocks[3].mlp_channels.gate
    for projection in (gate.proj, reference.proj):
        assert projection.weight.abs().max() < 1e-4 and (projection.bias == 1).all()


def test_the_processor_of_a_checkpoint_is_kept(tmp_path, vision_config, perturbed_model):
    perturbed_model(GMLPForImageClassification, vision_config()).save_pretrained(tmp_path)
    arguments = Arguments(model_name_or_path=str(tmp_path))
    config = build_image_config(arguments, None)
    with pytest.raises(InputError, match="no preprocessor_config.json"):
        build_image_processor(arguments, config, None, None)
    ViTImageProcessor(size={"height": 16, "width": 16}, image_mean=[0.1, 0.2, 0.3]).save_pretrained(tmp_path)
    kept = build_image_processor(arguments, config, None, None)
    assert kept.image_mean == (0.1, 0.2, 0.3) and kept.resample == 2
    other = build_image_processor(arguments, config, (20, 20), None)
    assert other.image_mean == (0.1, 0.2, 0.3) and other.size == {"shortest_edge": 20} and other.crop_pct == 0.875


def test_only_gmlps_are_resized(tmp_path, vision_config, perturbed_model):
    def load(name, size):
        arguments = Arguments(model_name_or_path=str(tmp_path / name))
        return build_image_model(arguments, build_image_config(arguments, size), size, train=False)

    perturbed_model(GMLPForImageClassification, vision_config()).save_pretrained(tmp_path / "gmlp")
    with pytest.raises(InputError, match="--image_size 25 20"):
        load("gmlp", (25, 20))
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    ViTForImageClassification(ViTConfig(image_size=16, patch_size=4, **sizes)).save_pretrained(tmp_path / "vit")
    with pytest.raises(InputError, match="--image_size 24 24: .*resize_image_size"):
        load("vit", (24, 24))
