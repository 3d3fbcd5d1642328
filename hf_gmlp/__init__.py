"""gMLP and aMLP ("Pay Attention to MLPs") for Hugging Face Transformers.

Importing this package registers its models with the Auto classes, so that `AutoModel…`, `Trainer`, `pipeline` and
`push_to_hub` work as with any other model. It changes nothing else.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ._version import __version__
from .presets import list_presets, preset_config, preset_path

__all__ = [
    "GMLPBlock",
    "GMLPConfig",
    "GMLPForCausalLM",
    "GMLPForImageClassification",
    "GMLPForMaskedLM",
    "GMLPForMultipleChoice",
    "GMLPForQuestionAnswering",
    "GMLPForSequenceClassification",
    "GMLPForTokenClassification",
    "GMLPModel",
    "GMLPPreTrainedModel",
    "GMLPVisionBackbone",
    "GMLPVisionConfig",
    "GMLPVisionModel",
    "GMLPVisionPreTrainedModel",
    "SpatialGatingUnit",
    "SpatialProjection",
    "__version__",
    "enable_selective_checkpointing",
    "extend_context",
    "list_presets",
    "param_groups",
    "preset_config",
    "preset_path",
]

# The command `hf-gmlp`, by its names on Linux, macOS and Windows, prints its help without importing transformers, which
# takes seconds; it registers the models before any work, and needs none of the names above.
if TYPE_CHECKING or Path(*sys.argv[:1]).name not in ("hf-gmlp", "hf-gmlp.exe", "hf-gmlp-script.py"):
    from .registration import *
