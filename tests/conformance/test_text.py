"""Run the common tests of transformers on gMLP and aMLP for text, with every head."""

import unittest

from transformers import PreTrainedConfig, PreTrainedModel
from transformers.testing_utils import torch_device

from hf_gmlp import (
    GMLPConfig,
    GMLPForCausalLM,
    GMLPForMaskedLM,
    GMLPForMultipleChoice,
    GMLPForQuestionAnswering,
    GMLPForSequenceClassification,
    GMLPForTokenClassification,
    GMLPModel,
)

from .checks import FSDPPlanMixin
from .upstream.generation.test_utils import GenerationTesterMixin
from .upstream.test_configuration_common import ConfigTester
from .upstream.test_fsdp_mixin import FSDPTesterMixin
from .upstream.test_modeling_common import ModelTesterMixin, ids_tensor, random_attention_mask
from .upstream.test_tensor_parallel_mixin import TensorParallelTesterMixin
from .upstream.test_training_mixin import TrainingTesterMixin


class TextModelTester:
    """Make the small config and the inputs for the common tests, which also read these attributes."""

    is_training = True
    batch_size = 13
    # This is less than `max_position_embeddings`, so that only a part of each spatial matrix is used.
    seq_length = 7
    num_labels = 3
    num_choices = 4
    vocab_size = 99
    hidden_size = 32
    num_hidden_layers = 2
    num_attention_heads = 1
    intermediate_size = 64
    # The tests of training and of FSDP use 64 tokens.
    max_position_embeddings = 64

    def __init__(self, causal_lm_class: type[PreTrainedModel], config_fields: dict):
        # The tests of training and of FSDP train this class; despite its name, it may be a masked model.
        self.causal_lm_class = causal_lm_class
        self.config_fields = config_fields

    def get_config(self) -> GMLPConfig:
        return GMLPConfig(
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            num_hidden_layers=self.num_hidden_layers,
            intermediate_size=self.intermediate_size,
            max_position_embeddings=self.max_position_embeddings,
            num_labels=self.num_labels,
            # With the paper's 1e-6, the tests would hardly notice the spatial projection.
            spatial_initializer_range=0.3,
            **self.config_fields,
        )

    def prepare_config_and_inputs_for_common(self) -> tuple[GMLPConfig, dict]:
        shape = [self.batch_size, self.seq_length]
        inputs = {
            "input_ids": ids_tensor(shape, self.vocab_size),
            "attention_mask": random_attention_mask(shape).to(torch_device),
            "token_type_ids": ids_tensor(shape, 2),
        }
        return self.get_config(), inputs


class GMLPTextTest(ModelTesterMixin, TrainingTesterMixin, FSDPPlanMixin, GenerationTesterMixin):
    """The base class of the tests below, each of which sets the config that it tests."""

    causal_lm_class = GMLPForMaskedLM
    all_model_classes = (
        GMLPModel,
        GMLPForMaskedLM,
        GMLPForCausalLM,
        GMLPForSequenceClassification,
        GMLPForTokenClassification,
        GMLPForQuestionAnswering,
        GMLPForMultipleChoice,
    )
    config_fields = {}
    has_attentions = False

    def setUp(self):
        self.model_tester = TextModelTester(self.causal_lm_class, self.config_fields)
        # `num_attention_heads` is omitted, since tiny attention has one head.
        properties = ["hidden_size", "num_hidden_layers"]
        self.config_tester = ConfigTester(self, config_class=GMLPConfig, common_properties=properties, hidden_size=36)

    def test_config(self):
        self.config_tester.run_common_tests()

    def _get_tiny_config(self) -> tuple[type[PreTrainedConfig], dict]:
        """Return the sizes for the FSDP tests; the method that it overrides sets fields that these configs lack."""
        config = self.model_tester.get_config()
        config.vocab_size, config.hidden_size, config.intermediate_size = 256, 64, 128
        for name in self.config_fields:
            if "drop" in name:
                # One test compares a batch on one device with its halves on two, where dropout would differ.
                setattr(config, name, 0.0)
        return GMLPConfig, config.to_diff_dict()


class GMLPModelTest(GMLPTextTest, FSDPTesterMixin, unittest.TestCase):
    """The paper's text models: the spatial gating unit, a Toeplitz matrix, no attention."""


class AMLPModelTest(GMLPTextTest, FSDPTesterMixin, unittest.TestCase):
    """Tiny attention, which returns attention weights, and every kind of dropout."""

    has_attentions = True
    config_fields = {
        "attention_size": 16,
        "hidden_dropout_prob": 0.1,
        "activation_dropout": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "classifier_dropout": 0.1,
        "drop_path_rate": 0.1,
    }


class AMLPCausalModelTest(GMLPTextTest, FSDPTesterMixin, TensorParallelTesterMixin, unittest.TestCase):
    """No token sees a later one, in W and in tiny attention, with every head."""

    has_attentions = True
    causal_lm_class = GMLPForCausalLM
    config_fields = {"is_causal": True, "attention_size": 16}


class GMLPDenseModelTest(GMLPTextTest, unittest.TestCase):
    """A W with a separate weight for every pair of positions; logits only at the labeled positions."""

    config_fields = {"toeplitz": False, "sparse_prediction": True}


class GMLPUnsplitModelTest(GMLPTextTest, unittest.TestCase):
    """A gating of Table 3 that does not split the channels, visible padding, and a bare decoder."""

    config_fields = {"spatial_gating": "multiplicative", "mask_padding": False, "mlm_transform": False}


class GMLPHeadsModelTest(GMLPTextTest, unittest.TestCase):
    """A W for each of four groups of channels."""

    config_fields = {"spatial_heads": 4}
