"""Runs the common tests of transformers on the models that the paper compares with, with every head."""

import unittest

import hf_gmlp
from hf_gmlp import BertRelposConfig, BertRelposForMaskedLM, TextMixerConfig, TextMixerForMaskedLM

from .checks import TextModelTest
from .upstream.test_fsdp_mixin import FSDPTesterMixin


def classes_of(config_class: type) -> tuple[type, ...]:
    return tuple(getattr(hf_gmlp, name) for name in sorted(set(config_class.code_map().values())))


class BertRelposTest(TextModelTest):
    """The base of the two classes below."""

    config_class = BertRelposConfig
    causal_lm_class = BertRelposForMaskedLM
    all_model_classes = classes_of(BertRelposConfig)
    common_fields = {"num_attention_heads": 4}


class BertRelposModelTest(BertRelposTest, FSDPTesterMixin, unittest.TestCase):
    """BERT with relative position biases, with dropout."""

    config_fields = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "classifier_dropout": 0.1}


class BertRelposWithoutContentModelTest(BertRelposTest, unittest.TestCase):
    """Only the position biases; logits only at the labeled positions."""

    config_fields = {"content_attention": False, "sparse_prediction": True}


class TextMixerModelTest(TextModelTest, FSDPTesterMixin, unittest.TestCase):
    """MLP-Mixer, with dropout."""

    config_class = TextMixerConfig
    causal_lm_class = TextMixerForMaskedLM
    all_model_classes = classes_of(TextMixerConfig)
    has_attentions = False
    config_fields = {"spatial_intermediate_size": 24, "hidden_dropout_prob": 0.1, "classifier_dropout": 0.1}

    def setUp(self):
        super().setUp()
        # It has no attention heads.
        self.config_tester.common_properties = ["hidden_size", "num_hidden_layers"]
