"""The models that the paper compares with and that transformers lacks, registered with the Auto classes."""

from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerFast
from transformers.models import auto

from . import modeling_baselines
from .configuration_baselines import BertRelposConfig, TextMixerConfig
from .modeling_baselines import (
    BertRelposForMaskedLM,
    BertRelposForQuestionAnswering,
    BertRelposForSequenceClassification,
    BertRelposForTokenClassification,
    BertRelposModel,
    TextMixerForMaskedLM,
    TextMixerForQuestionAnswering,
    TextMixerForSequenceClassification,
    TextMixerForTokenClassification,
    TextMixerModel,
)

for _config in (BertRelposConfig, TextMixerConfig):
    AutoConfig.register(_config.model_type, _config)
    AutoTokenizer.register(_config, tokenizer_class=PreTrainedTokenizerFast)
    for _auto_class, _model_class in _config.code_map().items():
        getattr(auto, _auto_class).register(_config, getattr(modeling_baselines, _model_class))
del _config, _auto_class, _model_class

__all__ = [
    "BertRelposConfig",
    "BertRelposForMaskedLM",
    "BertRelposForQuestionAnswering",
    "BertRelposForSequenceClassification",
    "BertRelposForTokenClassification",
    "BertRelposModel",
    "TextMixerConfig",
    "TextMixerForMaskedLM",
    "TextMixerForQuestionAnswering",
    "TextMixerForSequenceClassification",
    "TextMixerForTokenClassification",
    "TextMixerModel",
]
