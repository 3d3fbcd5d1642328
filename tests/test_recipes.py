from pathlib import Path

import pytest
from accelerate.commands.config.config_args import load_config_from_file

import paper.models  # noqa: F401  # has presets of its recipes
from hf_gmlp.tasks.clm import CLMArguments
from hf_gmlp.tasks.glue import GlueArguments
from hf_gmlp.tasks.image_classification import ImageArguments
from hf_gmlp.tasks.mlm import MLMArguments
from hf_gmlp.tasks.qa import QAArguments
from hf_gmlp.training.arguments import BaseModelArguments, ModelArguments, RunArguments, parse_arguments
from hf_gmlp.training.build import build_config
from hf_gmlp.training.recipes import command_line, read_recipe

ROOT = Path(__file__).parent.parent
RECIPES, PAPER = ROOT / "recipes", ROOT / "paper" / "recipes"
SMOKE = ("smoke", "smoke-finetune", "smoke-images")
ALL = sorted(path for path in RECIPES.glob("*.yaml") if path.stem not in SMOKE) + sorted(PAPER.rglob("*.yaml"))


def path_id(path):
    return str(path.relative_to(RECIPES if path.is_relative_to(RECIPES) else PAPER))


def script_of(path):
    """Return the dataclasses of a recipe's script, and the smoke recipe for it."""
    name = path.stem if path.parent == RECIPES else path.parent.name
    if "squad" in name:
        return (ModelArguments, QAArguments), "smoke-finetune"
    if name in ("table2", "imagenet", "small-images", "finetune-images", "finetune-288"):
        return (BaseModelArguments, ImageArguments), "smoke-images"
    if "finetun" in path.stem or path.stem in ("laptop-distill", "pairs"):
        return (ModelArguments, GlueArguments), "smoke-finetune"
    return (ModelArguments, CLMArguments if name.startswith("clm") else MLMArguments), "smoke"


def command(path, *later, folder):
    """Return the arguments for a recipe and later ones, and for a model if the recipe does not set one."""
    # Recipes in figure7/ are passed after another recipe.
    first = [str(PAPER / "figure8" / "amlp-18l.yaml")] if path.parent.name == "figure7" else []
    argv = [*first, str(path), *map(str, later), "--use_cpu", "--bf16", "false", "--output_dir", str(folder)]
    if any(word.startswith("--config_name") for word in command_line(argv)):
        return argv
    return [*argv, "--config_name", "gmlp-ti16-224" if ImageArguments in script_of(path)[0] else "gmlp-18l"]


def parse(path, *later, folder):
    return parse_arguments((*script_of(path)[0], RunArguments), "", command(path, *later, folder=folder))


@pytest.mark.parametrize("path", sorted((RECIPES / "accelerate").glob("*.yaml")), ids=lambda path: path.stem)
def test_accelerate_accepts_its_config_files(path):
    config = load_config_from_file(str(path))
    kinds = {"one_gpu": "NO", "ddp": "MULTI_GPU", "fsdp2": "FSDP", "deepspeed_zero2": "DEEPSPEED", "tpu": "XLA"}
    kind = path.stem.removesuffix("_machines")
    assert config.distributed_type == kinds[kind] and config.mixed_precision == "bf16"
    assert config.num_processes == (1 if kind == "one_gpu" else 8 * config.num_machines)


@pytest.mark.parametrize("path", ALL, ids=path_id)
def test_a_smoke_recipe_makes_any_recipe_small(path, tmp_path):
    smoke = script_of(path)[1]
    model, data, training = parse(path, RECIPES / f"{smoke}.yaml", folder=tmp_path)
    assert data.dataset_name in (None, "nyu-mll/glue") or smoke == "smoke-images"
    assert training.train_batch_size * training.gradient_accumulation_steps <= 16
    if smoke == "smoke-images":
        assert (training.max_steps, data.max_train_samples, data.size()) == (4, 64, (32, 32))
        augmentation = ("auto_augment", "mixup_alpha", "cutmix_alpha")
        assert all(getattr(data, name) == value for name, value in read_recipe(path).items() if name in augmentation)
        return
    config, length = build_config(model), 32 if smoke == "smoke" else 64
    assert (config.num_hidden_layers, config.max_position_embeddings) == (2, length)
    # The smoke recipe keeps the defining settings of the recipe.
    overrides = read_recipe(path).get("config_overrides") or {}
    kept = {name for name in overrides if "size" not in name} - {"num_hidden_layers", "max_position_embeddings"}
    assert {name: getattr(config, name) for name in kept} == {name: overrides[name] for name in kept}
    if smoke == "smoke":
        flag = getattr(data, "block_size", None) or getattr(data, "max_seq_length", None)
        assert training.max_steps == 10 and flag in (None, length)
