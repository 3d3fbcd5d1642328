"""The layers that PEFT's adapters change by default, by model type."""

import sys

# PEFT's table -> layers; "" stands for all tables not listed. IA3 scales the input of a feedforward module.
_PROJECTIONS = {"": ["proj_in", "proj_out"], "IA3_FEEDFORWARD": ["proj_out"], "BEFT": ["proj_in"]}
_GMLP = _PROJECTIONS | {"": ["proj_in", "proj_out", "qkv_proj"], "LNTUNING": ["norm"]}
DEFAULT_TARGETS = {
    "gmlp": _GMLP,
    "gmlp_vision": _GMLP,
    "bert_relpos": {
        "": ["q_proj", "v_proj"],
        "LNTUNING": ["attention_norm", "mlp_norm"],
        "IA3": ["k_proj", "v_proj", "mlp.proj_out"],
        "IA3_FEEDFORWARD": ["mlp.proj_out"],
        "BEFT": ["v_proj"],
    },
    "text_mixer": _PROJECTIONS | {"LNTUNING": ["token_norm", "channel_norm"]},
}


def register():
    """Enter `DEFAULT_TARGETS` into the tables of PEFT if it is imported already. Existing entries stay."""
    constants = sys.modules.get("peft.utils.constants")
    if constants is None:
        return
    for name, table in vars(constants).items():
        if name.startswith("TRANSFORMERS_MODELS_TO_") and name.endswith("_MODULES_MAPPING"):
            kind = name.removeprefix("TRANSFORMERS_MODELS_TO_").removesuffix("_MODULES_MAPPING").removesuffix("_TARGET")
            for model_type, targets in DEFAULT_TARGETS.items():
                table.setdefault(model_type, targets.get(kind, targets[""]))
