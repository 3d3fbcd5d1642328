"""PEFT: the layers that an adapter changes by default, entered into PEFT's own tables by model type."""

import functools
import importlib.abc
import importlib.util
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


def register_targets():
    """
    Enters `DEFAULT_TARGETS` into the tables of PEFT, which is imported; existing entries stay. A sequence classifier
    also saves its pooler with its classifier, because most checkpoints have neither.
    """
    from peft import PeftModelForSequenceClassification
    from peft.utils import constants

    initialize = PeftModelForSequenceClassification.__init__

    @functools.wraps(initialize)
    def with_pooler(self, model, peft_config, *args, **kwargs):
        known = getattr(getattr(model, "config", None), "model_type", None) in DEFAULT_TARGETS
        if known and hasattr(peft_config, "modules_to_save"):
            given = peft_config.modules_to_save or []
            peft_config.modules_to_save = [*given, *({"pooler.dense"} - set(given))]
        initialize(self, model, peft_config, *args, **kwargs)

    PeftModelForSequenceClassification.__init__ = with_pooler
    for name, table in vars(constants).items():
        if name.startswith("TRANSFORMERS_MODELS_TO_") and name.endswith("_MODULES_MAPPING"):
            kind = name.removeprefix("TRANSFORMERS_MODELS_TO_").removesuffix("_MODULES_MAPPING").removesuffix("_TARGET")
            for model_type, targets in DEFAULT_TARGETS.items():
                table.setdefault(model_type, targets.get(kind, targets[""]))


class PeftFinder(importlib.abc.MetaPathFinder):
    """Fills PEFT's tables as soon as PEFT is imported. Importing it here would take seconds."""

    searching = False

    def find_spec(self, name, path=None, target=None):
        if name != "peft" or self.searching:
            return None
        self.searching = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.searching = False
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            register_targets()

        spec.loader.exec_module = exec_module
        return spec


def register():
    """Fills PEFT's tables, now if it is imported, and otherwise when it will be."""
    if sys.modules.get("peft") is not None:
        register_targets()
    else:
        sys.meta_path.insert(0, PeftFinder())
