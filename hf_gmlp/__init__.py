"""gMLP and aMLP ("Pay Attention to MLPs") for Hugging Face Transformers.

Importing this package registers its models with the Auto classes, so that `AutoModel…`, `Trainer`, `pipeline` and
`push_to_hub` work as with any other model, and registers the fast implementations of the block with the models.
"""

from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerFast
from transformers.models import auto
from transformers.utils import is_torchvision_available, is_vision_available

from . import adapters, cards, kernels
from ._version import __version__
from .models import configuration_baselines, configuration_gmlp, modeling_baselines, modeling_gmlp
from .models.configuration_baselines import *
from .models.configuration_gmlp import *
from .models.modeling_baselines import *
from .models.modeling_gmlp import *
from .models.modeling_gmlp import GMLPBlock
from .models.spatial_gating import SpatialGatingUnit, SpatialProjection
from .presets import list_presets, preset_path

for _config, _code_map, _module in (
    (GMLPConfig, GMLPConfig.code_map, modeling_gmlp),
    (GMLPVisionConfig, GMLPVisionConfig.code_map, modeling_gmlp),
    (BertRelposConfig, BertRelposConfig.code_map(), modeling_baselines),
    (TextMixerConfig, TextMixerConfig.code_map(), modeling_baselines),
):
    AutoConfig.register(_config.model_type, _config)
    for _auto_class, _model_class in _code_map.items():
        getattr(auto, _auto_class).register(_config, getattr(_module, _model_class))
    if _config is not GMLPVisionConfig:
        AutoTokenizer.register(_config, tokenizer_class=PreTrainedTokenizerFast)
del _config, _code_map, _module, _auto_class, _model_class

if is_vision_available():
    # Image processors need Pillow, which is in hf-gmlp[vision].
    from transformers import AutoImageProcessor, ViTImageProcessorPil

    _image_processors = {"pil": ViTImageProcessorPil}
    if is_torchvision_available():
        from transformers import ViTImageProcessor

        _image_processors["torchvision"] = ViTImageProcessor
    AutoImageProcessor.register(GMLPVisionConfig, image_processor_classes=_image_processors)
    del _image_processors

kernels.register()
adapters.register()
# The package uploads a model with this project's card. Without it, a checkpoint is uploaded with the library's card.
GMLPPreTrainedModel.push_to_hub = cards.push_to_hub
GMLPPreTrainedModel.save_pretrained = cards.save_pretrained

__all__ = [
    *configuration_baselines.__all__,
    *configuration_gmlp.__all__,
    *modeling_baselines.__all__,
    *modeling_gmlp.__all__,
    "GMLPBlock",
    "SpatialGatingUnit",
    "SpatialProjection",
    "__version__",
    "list_presets",
    "preset_path",
]
