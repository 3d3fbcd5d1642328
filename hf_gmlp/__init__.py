"""gMLP and aMLP ("Pay Attention to MLPs") for Hugging Face Transformers.

Importing this package registers its models with the Auto classes, so that `AutoModel…`, `Trainer`, `pipeline` and
`push_to_hub` work as with any other model. It changes nothing else.
"""

from ._version import __version__
from .presets import list_presets, preset_config, preset_path
from .registration import *

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
