"""The named architectures of the paper, and two causal ones that others train, one folder with a config.json each.

`GMLPConfig.from_preset("amlp-base")` makes a config of one; `preset_path("amlp-base")` is a folder that
`AutoConfig.from_pretrained` and any `--config_name` take. The models that the paper compares with are among them:
transformers' own BERT and ViT (without dropout, as the paper trains) and those of modeling_baselines.py. The table
below says what the paper prints of each.
"""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Preset:
    """
    What the paper says of an architecture: parameters in millions, FLOPs in billions, and where it says so. Of one that
    is not in the paper ("-") the parameters are ours, counted likewise.
    """

    name: str
    paper: str
    parameters: float
    flops: float | None = None
    note: str = ""


_NOATTN_NOTE = (
    "Without queries and keys 95.5 M parameters are left, where the paper prints 96: the one count that is not the "
    "printed one when rounded."
)
_MIXER_NOTE = (
    "The caption of Table 3 says d_ffn = 3072, but that makes 140 M parameters; the 112 M of the table come out with "
    "d_ffn = 2304, which this preset has."
)
_DEEP_AND_THIN_NOTE = (
    "The paper does not say d_ffn, here four times d_model, nor how positions are encoded, here absolutely; with both, "
    "the parameters come out as printed."
)
_D_FFN_NOTE = (
    "The caption of Table 3 says d_ffn = 3072 for all gMLPs, but without a split that makes 130 M parameters; the "
    "92 M of the table come out with d_ffn = 2048, which this preset has, or with 24 layers of 3072."
)
_ENWIK8_NOTE = (
    "Not in the paper, which has no causal models. These are the sizes that lucidrains/g-mlp-pytorch trains on enwik8 "
    "(train.py there), with two tokens more than the 256 bytes: [PAD] and [SEP], as --byte_level has them."
)
_LABML_NOTE = (
    "Not in the paper, which has no causal models. These are the sizes of the experiment beside labml.ai's annotated "
    "gMLP (labml_nn/transformers/gmlp/experiment.py), which reads Tiny Shakespeare by characters and adds fixed "
    "position encodings; here there are bytes, [PAD] and [SEP], and no encodings."
)
_MADDS_NOTE = (
    "Table 2 prints multiply-adds, which are doubled here; its 86 M are without the classifier of 1,000 classes."
)
_DEIT_TI_NOTE = "Table 2 prints multiply-adds, which are doubled here, and 5 M parameters, where there are 5.7."
_VIT_L_NOTE = (
    "Table 2 prints multiply-adds, which are doubled here, and 307 M parameters, as the ViT paper does; with 1,000 "
    "classes there are 304.7."
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
        Preset("gmlp-causal-enwik8", "-", 17.5, note=_ENWIK8_NOTE),
        Preset("gmlp-causal-labml", "-", 10.0, note=_LABML_NOTE),
        Preset("bert-base", "Tables 3 and 5", 110, 100.8, note="For Table 3, train it on sequences of 128 tokens."),
        Preset("bert-large", "Table 5", 336, 341.2),
        Preset("bert-6l-relpos", "Table 4", 67),
        Preset("bert-base-relpos", "Tables 3 and 4", 110),
        Preset("bert-24l-relpos", "Table 4", 195),
        Preset("bert-48l-relpos", "Table 4", 365),
        Preset("bert-base-relpos-noattn", "Table 3", 96, note=_NOATTN_NOTE),
        Preset("mixer-mlm", "Table 3", 112, note=_MIXER_NOTE),
        Preset("bert-24x512", "Table 10", 92, note=_DEEP_AND_THIN_NOTE),
        Preset("bert-48x384", "Table 10", 98, note=_DEEP_AND_THIN_NOTE),
        Preset("bert-96x256", "Table 10", 84, note=_DEEP_AND_THIN_NOTE),
        Preset("gmlp-ti16-224", "Table 1", 5.9, 2.7),
        Preset("gmlp-s16-224", "Table 1", 19.5, 8.9),
        Preset("gmlp-b16-224", "Table 1", 73.4, 31.6),
        Preset("deit-ti16-224", "Table 2", 5, 2.6, note=_DEIT_TI_NOTE),
        Preset("deit-s16-224", "Table 2", 22, 9.2),
        Preset("deit-b16-224", "Table 2", 86, 35.0, note=_MADDS_NOTE),
        Preset("vit-b16-384", "Table 2", 86, 110.8, note=_MADDS_NOTE),
        Preset("vit-l16-384", "Table 2", 307, 381.4, note=_VIT_L_NOTE),
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
