"""Presets: named architectures, most of them from the paper. Each is a folder with a config.json.

`preset_config("amlp-base")` returns a config; `preset_path("amlp-base")` is a folder for `AutoConfig.from_pretrained`
or `--config_name`. Among them are the paper's baseline models that are part of transformers: BERT, without dropout as
in the paper, ViT, and Mixer and ResMLP of timm. paper/models.py adds the other baseline models.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

# The folder of each preset.
PRESETS = {path.parent.name: path.parent for path in sorted(Path(__file__).parent.glob("*/config.json"))}


def list_presets() -> list[str]:
    """Return the names of all presets."""
    return list(PRESETS)


def preset_path(name: str) -> Path:
    """Return the folder of a preset; raise InputError, a ValueError, if there is no preset with that name."""
    if name not in PRESETS:
        raise InputError(f"There is no preset {name!r}. Choose one of: {', '.join(PRESETS)}.")
    return PRESETS[name]


def preset_config(name: str, **overrides: Any) -> "PreTrainedConfig":
    """Return the config of a preset, with some fields changed: `preset_config("amlp-base", num_labels=3)`.

    Raises:
        InputError: A ValueError, if there is no preset with that name, or its config has no such field.
    """
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(preset_path(name), **overrides)
    if unknown := [field for field in overrides if not hasattr(config, field)]:
        raise InputError(f"The config of {name!r} has no field {', '.join(map(repr, unknown))}.")
    # The folder of a preset is not the origin of a new model.
    config.name_or_path = ""
    return config


def show_presets(name: str | None = None) -> None:
    """Print the sizes of all presets, or the config of one."""
    if name is not None:
        print(f"{(preset_path(name) / 'config.json').read_text(encoding='utf-8')}\nfolder: {preset_path(name)}")
        return
    print(f"{'name':<25}{'model type':<15}blocks x d_model x d_ffn")
    for name, folder in PRESETS.items():
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        sizes = [config.get(field) for field in ("num_hidden_layers", "hidden_size", "intermediate_size")]
        print(f"{name:<25}{config['model_type']:<15}{config.get('architecture') or ' x '.join(map(str, sizes))}")
