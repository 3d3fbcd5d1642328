"""The text models, gMLP and aMLP, every head, against the common tests of transformers."""

import unittest

import torch
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
from .upstream.test_pipeline_mixin import PipelineTesterMixin
from .upstream.test_tensor_parallel_mixin import TensorParallelTesterMixin
from .upstream.test_training_mixin import TrainingTesterMixin


class GMLPModelTester:
    """Makes the small configuration and the inputs that the common tests ask for; they read its attributes too."""

    base_model_class = GMLPModel
    # The head that the tests of training and of FSDP train.
    causal_lm_class = GMLPForMaskedLM
    is_training = True
    batch_size = 13
    # Shorter than `max_position_embeddings`, so that a part of W is used.
    seq_length = 7
    num_labels = 3
    num_choices = 4
    vocab_size = 99
    hidden_size = 32
    num_hidden_layers = 2
    intermediate_size = 64
    # The tests of training and of FSDP feed 64 tokens.
    max_position_embeddings = 64
    num_attention_heads = 1

    def __init__(self, parent, **config_fields):
        self.parent = parent
        self.config_fields = config_fields
        if config_fields.get("is_causal"):
            self.causal_lm_class = GMLPForCausalLM

    def get_config(self) -> GMLPConfig:
        return GMLPConfig(
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            num_hidden_layers=self.num_hidden_layers,
            intermediate_size=self.intermediate_size,
            max_position_embeddings=self.max_position_embeddings,
            num_labels=self.num_labels,
            # Far from the paper's 1e-6, with which the tests would hardly notice the spatial projection.
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


class TextModelTest(ModelTesterMixin, GenerationTesterMixin, TrainingTesterMixin, FSDPPlanMixin):
    """What the classes below share; each sets the configuration that it tests."""

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
        self.model_tester = GMLPModelTester(self, **self.config_fields)
        self.config_tester = ConfigTester(self, config_class=GMLPConfig, hidden_size=32)

    def test_config(self):
        self.config_tester.run_common_tests()

    def test_resize_position_vector_embeddings(self):
        """The common test wants one `nn.Embedding` of positions; a gMLP keeps them in its spatial weights."""
        for model_class in self.all_model_classes:
            config, inputs = self.model_tester.prepare_config_and_inputs_for_common()
            inputs = self._prepare_for_class(inputs, model_class)
            model = model_class(config).to(torch_device).eval()
            with torch.no_grad():
                before = model(**inputs)[0]
            for length in (self.model_tester.max_position_embeddings + change for change in (10, -5)):
                model.resize_position_embeddings(length)
                self.assertEqual(model.config.max_position_embeddings, length)
                for weight in model.get_position_embeddings():
                    self.assertEqual(weight.shape[0], 2 * length - 1 if config.toeplitz else length)
                # What was learned for short sequences stays.
                with torch.no_grad():
                    torch.testing.assert_close(model(**inputs)[0], before)

    def _get_tiny_config(self) -> tuple[type[GMLPConfig], dict]:
        """The sizes of the FSDP tests, which override this method's namesake.

        Theirs asks for four attention heads, where ours has one that cannot be set; and one of them compares a batch
        on one device with its halves on two, which must not draw different dropout.
        """
        config = self.model_tester.get_config()
        config.vocab_size, config.hidden_size, config.intermediate_size = 256, 64, 128
        for name in self.config_fields:
            if "drop" in name:
                setattr(config, name, 0.0)
        return GMLPConfig, config.to_diff_dict()


class GMLPModelTest(TextModelTest, FSDPTesterMixin, unittest.TestCase):
    """The paper's text models: the spatial gating unit, a Toeplitz matrix, no attention."""


class AMLPModelTest(TextModelTest, FSDPTesterMixin, unittest.TestCase):
    """With tiny attention, which hands out attention weights, and with every kind of dropout."""

    has_attentions = True
    config_fields = {
        "attention_size": 8,
        "hidden_dropout_prob": 0.1,
        "activation_dropout": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "classifier_dropout": 0.1,
        "drop_path_rate": 0.1,
    }


class AMLPCausalModelTest(TextModelTest, FSDPTesterMixin, TensorParallelTesterMixin, unittest.TestCase):
    """No token sees a later one, in W and in tiny attention, whichever head is on top."""

    has_attentions = True
    config_fields = {"is_causal": True, "attention_size": 8}


class GMLPDenseModelTest(TextModelTest, unittest.TestCase):
    """W with a weight of its own for every pair of positions; logits at the labelled positions only."""

    config_fields = {"toeplitz": False, "sparse_prediction": True}


class GMLPUnsplitModelTest(TextModelTest, unittest.TestCase):
    """A gating of Table 3 that does not split the channels, padding left visible, and a bare decoder."""

    config_fields = {"spatial_gating": "multiplicative", "mask_padding": False, "mlm_transform": False}


class GMLPTextPipelineTest(PipelineTesterMixin, unittest.TestCase):
    pipeline_model_mapping = {
        "feature-extraction": GMLPModel,
        "fill-mask": GMLPForMaskedLM,
        "text-generation": GMLPForCausalLM,
        "text-classification": GMLPForSequenceClassification,
        "token-classification": GMLPForTokenClassification,
        "zero-shot": GMLPForSequenceClassification,
    }
