"""Files that only large machines run: at least they are what accelerate takes."""

from pathlib import Path

import pytest
from accelerate.commands.config.config_args import load_config_from_file

from hf_gmlp import GMLPVisionConfig
from hf_gmlp.training.arguments import read_recipe

RECIPES = Path(__file__).parent.parent / "recipes"


@pytest.mark.parametrize("path", sorted((RECIPES / "accelerate").glob("*.yaml")), ids=lambda path: path.stem)
def test_accelerate_takes_its_config_files(path):
    config = load_config_from_file(str(path))
    kinds = {"one_gpu": "NO", "ddp": "MULTI_GPU", "fsdp2": "FSDP", "deepspeed_zero2": "DEEPSPEED", "tpu": "XLA"}
    assert config.distributed_type == kinds[path.stem] and config.mixed_precision == "bf16"
    assert config.num_processes == (1 if path.stem == "one_gpu" else 8)


def test_every_recipe_of_a_table_has_its_smoke_twin():
    rows = {path for path in RECIPES.glob("table*/*.yaml") if not path.stem.endswith(".smoke")}
    assert len(rows) == 4 + 8 + 8 + 7  # the rows of Tables 2, 3, 4 and 6 that the paper trains
    for path in rows:
        assert path.with_name(f"{path.stem}.smoke.yaml").is_file()
    for path in RECIPES.glob("finetune*.yaml"):
        assert (RECIPES / "smoke" / path.name).is_file()


@pytest.mark.parametrize(
    ("row", "survival", "config"),
    [
        ("gmlp-ti16-224", 1.0, GMLPVisionConfig(hidden_size=128, intermediate_size=768)),
        ("gmlp-s16-224", 0.95, GMLPVisionConfig(hidden_size=256, intermediate_size=1536)),
        ("gmlp-b16-224", 0.8, GMLPVisionConfig(hidden_size=512, intermediate_size=3072)),
        ("mixer-b16-224", 0.95, None),
    ],
)
def test_image_recipes_say_what_table_7_says(row, survival, config):
    recipe = read_recipe(RECIPES / f"table2/{row}.yaml")
    table = {
        "auto_augment": "imagenet", "num_train_epochs": 300, "global_batch_size": 4096, "warmup_steps": 10000,
        "cutmix_alpha": 1.0, "mixup_alpha": 0.8, "switch_prob": 0.5, "label_smoothing_factor": 0.1,
        "learning_rate": 1e-3, "lr_scheduler_type": "cosine", "optim": "adamw_torch", "adam_epsilon": 1e-6,
        "adam_beta1": 0.9, "adam_beta2": 0.999, "weight_decay": 0.05, "max_grad_norm": 1.0,
    }  # fmt: skip
    assert {key: recipe[key] for key in table} == table
    if config is None:
        assert recipe["config_name"] == "timm/mixer_b16_224" and recipe["config_overrides"] == "drop_path_rate=0.05"
        return
    assert recipe["config_name"] == row and "config_overrides" not in recipe
    preset = GMLPVisionConfig.from_preset(row)
    assert (preset.hidden_size, preset.intermediate_size) == (config.hidden_size, config.intermediate_size)
    assert preset.drop_path_rate == pytest.approx(1 - survival) and preset.image_size == 224
    for rate in ("hidden_dropout_prob", "activation_dropout", "attention_probs_dropout_prob", "classifier_dropout"):
        assert getattr(preset, rate) == 0
