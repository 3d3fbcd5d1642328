"""The named architectures of the paper, one folder with a config.json each.

`GMLPConfig.from_preset("amlp-base")` makes a config of one; `preset_path("amlp-base")` is a folder that
`AutoConfig.from_pretrained` and any `--config_name` take. The table below says what the paper prints of each.
"""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Preset:
    """What the paper says of an architecture: parameters in millions, FLOPs in billions, and where it says so."""

    name: str
    paper: str
    parameters: float
    flops: float | None = None
    note: str = ""


_D_FFN_NOTE = (
    "The caption of Table 3 says d_ffn = 3072 for all gMLPs, but without a split that makes 130 M parameters; the "
    "92 M of the table come out with d_ffn = 2048, which this preset has."
)

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
        Preset("gmlp-multiplicative", "Table 3", 92, note=_D_FFN_NOTE),
        Preset("gmlp-additive", "Table 3", 92, note=_D_FFN_NOTE),
        Preset("gmlp-linear", "Table 3", 92, note=_D_FFN_NOTE),
        Preset("gmlp-ti16-224", "Table 1", 5.9, 2.7),
        Preset("gmlp-s16-224", "Table 1", 19.5, 8.9),
        Preset("gmlp-b16-224", "Table 1", 73.4, 31.6),
    )
}


def list_presets() -> list[str]:
    """The names of all presets, in the order of the paper's tables."""
    return list(PRESETS)


def preset_path(name: str) -> Path:
    """
    The folder of a preset, to be given to `AutoConfig.from_pretrained` or to a script's `--config_name`.

    Raises:
        ValueError: If there is no preset of that name.
    """
    if name not in PRESETS:
        raise ValueError(f"There is no preset {name!r}. Choose one of: {', '.join(PRESETS)}.")
    return Path(__file__).parent / name
