"""The models that the paper compares with, every head, against the common tests of transformers."""

import unittest

from transformers.testing_utils import torch_device

import hf_gmlp
from hf_gmlp import BertRelposConfig, TextMixerConfig

from .checks import FSDPPlanMixin
from .upstream.test_configuration_common import ConfigTester
from .upstream.test_fsdp_mixin import FSDPTesterMixin
from .upstream.test_modeling_common import ModelTesterMixin, ids_tensor, random_attention_mask
from .upstream.test_training_mixin import TrainingTesterMixin


class BaselineModelTester:
    """Makes the small configuration and the inputs that the common tests ask for; they read its attributes too."""

    is_training = True
    batch_size = 13
    # Shorter than `max_position_embeddings`, so that a part of the Mixer's matrices is used.
    seq_length = 7
    num_labels = 3
    vocab_size = 99
    hidden_size = 32
    num_hidden_layers = 2
    intermediate_size = 64
    # The tests of training and of FSDP feed 64 tokens.
    max_position_embeddings = 64
    num_attention_heads = 4

    def __init__(self, parent, config_class, **config_fields):
        self.parent = parent
        self.config_class = config_class
        self.config_fields = config_fields
        self.base_model_class = getattr(hf_gmlp, config_class.code_map()["AutoModel"])
        # The head that the tests of training and of FSDP train.
        self.causal_lm_class = getattr(hf_gmlp, config_class.code_map()["AutoModelForMaskedLM"])

    def get_config(self):
        return self.config_class(
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            num_hidden_layers=self.num_hidden_layers,
            intermediate_size=self.intermediate_size,
            max_position_embeddings=self.max_position_embeddings,
            num_labels=self.num_labels,
            **self.config_fields,
        )

    def prepare_config_and_inputs_for_common(self):
        shape = [self.batch_size, self.seq_length]
        inputs = {
            "input_ids": ids_tensor(shape, self.vocab_size),
            "attention_mask": random_attention_mask(shape).to(torch_device),
            "token_type_ids": ids_tensor(shape, 2),
        }
        return self.get_config(), inputs


class BaselineTest(ModelTesterMixin, TrainingTesterMixin, FSDPPlanMixin):
    """What the classes below share; each sets the configuration that it tests."""

    config_class = None
    config_fields = {}

    def setUp(self):
        self.model_tester = BaselineModelTester(self, self.config_class, **self.config_fields)
        common = ["hidden_size", "num_hidden_layers"] + ["num_attention_heads"] * self.has_attentions
        self.config_tester = ConfigTester(
            self, config_class=self.config_class, common_properties=common, hidden_size=36
        )

    def test_config(self):
        self.config_tester.run_common_tests()

    def _get_tiny_config(self):
        """The sizes of the FSDP tests, which override this method's namesake: it would set fields that ours lack."""
        config = self.model_tester.get_config()
        config.vocab_size, config.hidden_size, config.intermediate_size = 256, 64, 128
        for name in self.config_fields:
            if "drop" in name:
                # One of them compares a batch on one device with its halves on two.
                setattr(config, name, 0.0)
        return self.config_class, config.to_diff_dict()


class BertRelposModelTest(BaselineTest, FSDPTesterMixin, unittest.TestCase):
    """BERT with relative position biases, with dropout."""

    config_class = BertRelposConfig
    config_fields = {
        "num_attention_heads": 4,
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "classifier_dropout": 0.1,
    }
    all_model_classes = tuple(getattr(hf_gmlp, name) for name in sorted(set(BertRelposConfig.code_map().values())))


class BertRelposWithoutContentModelTest(BaselineTest, unittest.TestCase):
    """Position biases alone; logits at the labeled positions only."""

    config_class = BertRelposConfig
    config_fields = {"num_attention_heads": 4, "content_attention": False, "sparse_prediction": True}
    all_model_classes = BertRelposModelTest.all_model_classes


class TextMixerModelTest(BaselineTest, FSDPTesterMixin, unittest.TestCase):
    """MLP-Mixer, with dropout."""

    has_attentions = False
    config_class = TextMixerConfig
    config_fields = {"spatial_intermediate_size": 24, "hidden_dropout_prob": 0.1, "classifier_dropout": 0.1}
    all_model_classes = tuple(getattr(hf_gmlp, name) for name in sorted(set(TextMixerConfig.code_map().values())))
