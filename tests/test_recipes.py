"""Files that only large machines run: at least they are what accelerate takes."""

from pathlib import Path

import pytest
from accelerate.commands.config.config_args import load_config_from_file

RECIPES = Path(__file__).parent.parent / "recipes"


@pytest.mark.parametrize("path", sorted((RECIPES / "accelerate").glob("*.yaml")), ids=lambda path: path.stem)
def test_accelerate_takes_its_config_files(path):
    config = load_config_from_file(str(path))
    kinds = {"one_gpu": "NO", "ddp": "MULTI_GPU", "fsdp2": "FSDP", "deepspeed_zero2": "DEEPSPEED", "tpu": "XLA"}
    assert config.distributed_type == kinds[path.stem] and config.mixed_precision == "bf16"
    assert config.num_processes == (1 if path.stem == "one_gpu" else 8)


def test_every_pretraining_recipe_has_its_smoke_twin():
    rows = {path for path in RECIPES.glob("table*/*.yaml") if not path.stem.endswith(".smoke")}
    assert len(rows) == 8 + 8 + 7  # the rows of Tables 3, 4 and 6 that are trained here
    for path in rows:
        assert path.with_name(f"{path.stem}.smoke.yaml").is_file()
