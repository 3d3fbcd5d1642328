"""Run the common tests of transformers on gMLP and aMLP for text, with every head."""

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

from .checks import TextModelTest
from .upstream.generation.test_utils import GenerationTesterMixin
from .upstream.test_fsdp_mixin import FSDPTesterMixin
from .upstream.test_tensor_parallel_mixin import TensorParallelTesterMixin


class GMLPTextTest(TextModelTest, GenerationTesterMixin):
    """The base class of the tests below."""

    config_class = GMLPConfig
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
    # With the paper's 1e-6, the tests would hardly notice the spatial projection.
    common_fields = {"spatial_initializer_range": 0.3}
    has_attentions = False

    def test_resize_position_vector_embeddings(self):
        """The common test needs one `nn.Embedding` of positions; a gMLP keeps positions in its spatial weights."""
        for model_class in self.all_model_classes:
            config, inputs = self.model_tester.prepare_config_and_inputs_for_common()
            inputs = self._prepare_for_class(inputs, model_class)
            model = model_class(config).to(torch_device).eval()
            with torch.no_grad():
                before = model(**inputs)[0]
            n = self.model_tester.max_position_embeddings
            for length in (n + 10, n - 5):
                model.resize_position_embeddings(length)
                self.assertEqual(model.config.max_position_embeddings, length)
                for weight in model.get_position_embeddings():
                    # A Toeplitz W keeps its reach, which is at most the length.
                    self.assertEqual(weight.shape[-1], 2 * min(n, length) - 1 if config.toeplitz else length)
                # Short sequences keep their outputs.
                with torch.no_grad():
                    torch.testing.assert_close(model(**inputs)[0], before)


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
