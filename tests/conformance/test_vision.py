"""Run the common tests of transformers on the vision models."""

import unittest

from torch import nn

from hf_gmlp import GMLPForImageClassification, GMLPVisionBackbone, GMLPVisionConfig, GMLPVisionModel

from .checks import FSDPPlanMixin
from .upstream.test_backbone_common import BackboneTesterMixin
from .upstream.test_configuration_common import ConfigTester
from .upstream.test_modeling_common import ModelTesterMixin, floats_tensor


class GMLPVisionModelTester:
    """Make the small config and the inputs for the common tests, which also read these attributes."""

    is_training = True
    batch_size = 13
    hidden_size = 32
    num_hidden_layers = 2
    image_size = 24
    patch_size = 8
    num_attention_heads = 1

    def __init__(self, **config_fields):
        self.config_fields = config_fields
        self.seq_length = self.get_config().max_position_embeddings

    def get_config(self) -> GMLPVisionConfig:
        return GMLPVisionConfig(
            hidden_size=self.hidden_size,
            num_hidden_layers=self.num_hidden_layers,
            intermediate_size=64,
            image_size=self.image_size,
            patch_size=self.patch_size,
            num_labels=3,
            # With the paper's 1e-6, the tests would hardly notice the spatial projection.
            spatial_initializer_range=0.3,
            **self.config_fields,
        )

    def prepare_config_and_inputs_for_common(self) -> tuple[GMLPVisionConfig, dict]:
        shape = [self.batch_size, 3, self.image_size, self.image_size]
        return self.get_config(), {"pixel_values": floats_tensor(shape)}


class GMLPVisionModelTest(ModelTesterMixin, FSDPPlanMixin, unittest.TestCase):
    all_model_classes = (GMLPVisionModel, GMLPForImageClassification, GMLPVisionBackbone)
    # The paper's vision models: a [CLS] token, no attention.
    config_fields = {"pooling": "cls"}
    has_attentions = False
    # There are no tokens to add.
    test_resize_embeddings = False

    def setUp(self):
        self.model_tester = GMLPVisionModelTester(**self.config_fields)
        properties = ["hidden_size", "num_hidden_layers"]
        self.config_tester = ConfigTester(
            self, config_class=GMLPVisionConfig, has_text_modality=False, common_properties=properties, hidden_size=32
        )

    def test_config(self):
        self.config_tester.run_common_tests()

    def test_model_get_set_embeddings(self):
        """The common test needs an `nn.Embedding`; a convolution embeds the patches."""
        for model_class in self.all_model_classes:
            model = model_class(self.model_tester.get_config())
            self.assertIsInstance(model.get_input_embeddings(), nn.Module)
            self.assertIsNone(model.get_output_embeddings())


class AMLPVisionModelTest(GMLPVisionModelTest):
    """Tiny attention, and the mean over the patches."""

    config_fields = {"pooling": "mean", "attention_size": 16}
    has_attentions = True


class GMLPConvolutionalModelTest(GMLPVisionModelTest):
    """Early convolutions, and a Toeplitz W over the patches for each of four groups of channels."""

    config_fields = {"pooling": "mean", "toeplitz": True, "spatial_heads": 4, "stem": "conv"}


class GMLPVisionBackboneTest(BackboneTesterMixin, unittest.TestCase):
    all_model_classes = (GMLPVisionBackbone,)
    config_class = GMLPVisionConfig

    def setUp(self):
        self.model_tester = GMLPVisionModelTester(attention_size=16)
