"""gMLP and aMLP ("Pay Attention to MLPs") for Hugging Face Transformers.

Importing this package registers its models with the Auto classes, so that `AutoModel…`, `Trainer`, `pipeline` and
`push_to_hub` treat them as they treat any other model.
"""

from transformers import AutoConfig, AutoImageProcessor, AutoTokenizer, PreTrainedTokenizerFast, ViTImageProcessorPil
from transformers.models import auto
from transformers.utils import is_torchvision_available

from . import baselines as baselines
from . import modeling_gmlp
from ._version import __version__
from .configuration_gmlp import GMLPConfig, GMLPVisionConfig
from .modeling_gmlp import (
    GMLPForCausalLM,
    GMLPForImageClassification,
    GMLPForMaskedLM,
    GMLPForMultipleChoice,
    GMLPForQuestionAnswering,
    GMLPForSequenceClassification,
    GMLPForTokenClassification,
    GMLPModel,
    GMLPPreTrainedModel,
    GMLPVisionModel,
    GMLPVisionPreTrainedModel,
)
from .presets import list_presets, preset_path

for _config in (GMLPConfig, GMLPVisionConfig):
    AutoConfig.register(_config.model_type, _config)
    for _auto_class, _model_class in _config.code_map.items():
        getattr(auto, _auto_class).register(_config, getattr(modeling_gmlp, _model_class))
AutoTokenizer.register(GMLPConfig, tokenizer_class=PreTrainedTokenizerFast)
_image_processors = {"pil": ViTImageProcessorPil}
if is_torchvision_available():
    from transformers import ViTImageProcessor

    _image_processors["torchvision"] = ViTImageProcessor
AutoImageProcessor.register(GMLPVisionConfig, image_processor_classes=_image_processors)
del _config, _auto_class, _model_class, _image_processors

__all__ = [
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
    "GMLPVisionConfig",
    "GMLPVisionModel",
    "GMLPVisionPreTrainedModel",
    "__version__",
    "list_presets",
    "preset_path",
]
