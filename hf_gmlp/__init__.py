"""gMLP and aMLP ("Pay Attention to MLPs") for Hugging Face Transformers.

Importing this package registers its models with the Auto classes, so that `AutoModel…`, `Trainer`, `pipeline` and
`push_to_hub` work as with any other model. It changes nothing else.
"""

from typing import Any

from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerFast
from transformers.models import auto
from transformers.utils import is_torchvision_available, is_vision_available

from ._version import __version__
from .loading import extend_context
from .models import configuration_gmlp, modeling_gmlp
from .models.configuration_gmlp import *
from .models.modeling_gmlp import *
from .models.modeling_gmlp import GMLPBlock, SpatialGatingUnit, SpatialProjection
from .presets import list_presets, preset_config, preset_path
from .training.checkpointing import enable_selective_checkpointing
from .training.optimization import param_groups

__all__ = [
    *configuration_gmlp.__all__,
    *modeling_gmlp.__all__,
    "GMLPBlock",
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

for _config in (GMLPConfig, GMLPVisionConfig):
    AutoConfig.register(_config.model_type, _config)
    for _auto_class, _model_class in _config.code_map.items():
        getattr(auto, _auto_class).register(_config, getattr(modeling_gmlp, _model_class))
AutoTokenizer.register(GMLPConfig, tokenizer_class=PreTrainedTokenizerFast)

if is_vision_available():
    # Image processors need Pillow, which is in hf-gmlp[vision].
    from transformers import AutoImageProcessor, ViTImageProcessorPil

    _processors = {"pil": ViTImageProcessorPil}
    if is_torchvision_available():
        from transformers import ViTImageProcessor

        _processors["torchvision"] = ViTImageProcessor
    AutoImageProcessor.register(GMLPVisionConfig, image_processor_classes=_processors)


def __getattr__(name: str) -> Any:
    # Imported on first use, since it needs scikit-learn, which is in hf-gmlp[train].
    if name == "Classifier":
        try:
            from .classify import Classifier
        except ImportError as error:
            raise ImportError(f'{error}: pip install "hf-gmlp[train]".', name=error.name) from error
        return Classifier
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
