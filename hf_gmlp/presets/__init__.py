"""Presets: the named architectures of the paper, and one for small images. Each has a folder with a config.json.

`preset_config("amlp-base")` returns a config; `preset_path("amlp-base")` is a folder for `AutoConfig.from_pretrained`
or `--config_name`. Among them are the paper's baseline models that are part of transformers: BERT, without dropout as
in the paper, ViT, and Mixer and ResMLP of timm. paper/models.py adds the other baseline models.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


@dataclass(frozen=True)
class Preset:
    """The numbers that the paper prints for an architecture, and where: parameters in millions, FLOPs in billions. For
    an architecture that is not in the paper ("-"), parameters are counted in the same way.
    """

    name: str
    paper: str
    parameters: float
    flops: float | None = None
    note: str = ""
    folder: Path = Path(__file__).parent  # contains the folder NAME with config.json


_DEEP_AND_THIN = "The paper names no d_ffn or positions; 4 d_model and absolute positions give the printed counts."
_D_FFN = "Table 3 says d_ffn = 3072, which gives 130 M parameters without a split. This preset has d_ffn = 2048: 92 M."
_MINI = "Not in the paper. For a few thousand images: W is Toeplitz over the grid of patches, in four heads."
_MADDS = "Table 2 prints multiply-adds, which are doubled here. Its 86 M exclude the classifier for 1,000 classes."
_DEIT_TI = "Table 2 prints multiply-adds, which are doubled here, and 5 M parameters; there are 5.7 M."
_VIT_L = "Table 2 prints multiply-adds, doubled here, and the ViT paper's 307 M; with 1,000 classes there are 304.7 M."
_TIMM = "A model of timm, which must be installed. Table 2 prints multiply-adds, which are doubled here."

PRESETS = {
    preset.name: preset
    for preset in (
        Preset("gmlp-base", "Table 5", 130, 158.0),
        Preset("gmlp-large", "Table 5", 365, 430.1),
        Preset("gmlp-xlarge", "Table 5", 941, 1091.3),
        Preset("amlp-base", "Table 5", 109, 128.9),
        Preset("amlp-large", "Table 5", 316, 370.3),
        Preset("gmlp-18l", "Table 4", 59),
        Preset("gmlp-36l", "Tables 3 and 4", 102),
        Preset("gmlp-72l", "Table 4", 187),
        Preset("gmlp-144l", "Table 4", 357),
        Preset("gmlp-multiplicative", "Table 3", 92, note=_D_FFN),
        Preset("gmlp-additive", "Table 3", 92, note=_D_FFN),
        Preset("gmlp-linear", "Table 3", 92, note=_D_FFN),
        Preset("bert-base", "Tables 3 and 5", 110, 100.8, note="For Table 3, train it on sequences of 128 tokens."),
        Preset("bert-large", "Table 5", 336, 341.2),
        Preset("bert-24x512", "Table 10", 92, note=_DEEP_AND_THIN),
        Preset("bert-48x384", "Table 10", 98, note=_DEEP_AND_THIN),
        Preset("bert-96x256", "Table 10", 84, note=_DEEP_AND_THIN),
        Preset("gmlp-ti16-224", "Table 1", 5.9, 2.7),
        Preset("gmlp-s16-224", "Table 1", 19.5, 8.9),
        Preset("gmlp-b16-224", "Table 1", 73.4, 31.6),
        Preset("gmlp-mini4-32", "-", 0.84, note=_MINI),
        Preset("deit-ti16-224", "Table 2", 5, 2.6, note=_DEIT_TI),
        Preset("deit-s16-224", "Table 2", 22, 9.2),
        Preset("deit-b16-224", "Table 2", 86, 35.0, note=_MADDS),
        Preset("vit-b16-384", "Table 2", 86, 110.8, note=_MADDS),
        Preset("vit-l16-384", "Table 2", 307, 381.4, note=_VIT_L),
        Preset("mixer-b16-224", "Table 2", 59, 25.4, note=_TIMM),
        Preset("resmlp-12", "Table 2", 15, 6.0, note=_TIMM),
        Preset("resmlp-24", "Table 2", 30, 12.0, note=_TIMM),
        Preset("resmlp-36", "Table 2", 45, 17.8, note=_TIMM),
    )
}


def list_presets() -> list[str]:
    """Return the names of all presets."""
    return list(PRESETS)


def preset_path(name: str) -> Path:
    """Return the folder of a preset; raise InputError, a ValueError, if there is no preset with that name."""
    if name not in PRESETS:
        raise InputError(f"There is no preset {name!r}. Choose one of: {', '.join(PRESETS)}.")
    return PRESETS[name].folder / name


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


def show_presets(name: str | None = None):
    """Print a table of all presets, or one preset with its config; the numbers are those printed in the paper."""
    folder = None if name is None else preset_path(name)
    print(f"{'name':<25}{'in the paper':<15}{'parameters':>12}{'FLOPs':>10}")
    for preset in PRESETS.values() if name is None else [PRESETS[name]]:
        flops = f"{preset.flops:.1f} B" if preset.flops else "-"
        print(f"{preset.name:<25}{preset.paper:<15}{preset.parameters:>10g} M{flops:>10}")
    if folder is not None:
        note = f"\n{PRESETS[folder.name].note}\n" if PRESETS[folder.name].note else ""
        print(f"{note}\n{(folder / 'config.json').read_text(encoding='utf-8').strip()}\n\nfolder: {folder}")
