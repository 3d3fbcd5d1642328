"""Base classes for the tests of all models: small configs, inputs and a check that the common tests lack."""

import torch
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.distributed.parallel_utils import replace_layer_number_by_wildcard
from transformers.testing_utils import torch_device

from .upstream.test_configuration_common import ConfigTester
from .upstream.test_modeling_common import ModelTesterMixin, ids_tensor, random_attention_mask
from .upstream.test_training_mixin import TrainingTesterMixin


class FSDPPlanMixin:
    """Compare the plan with the model, since the common FSDP tests accept a plan with misspelled names."""

    def test_fsdp_plan_names_modules(self):
        for model_class in self.all_model_classes:
            with torch.device("meta"):
                model = model_class(self.model_tester.get_config())
            names = {replace_layer_number_by_wildcard(name) for name, _ in model.named_modules()}
            self.assertTrue(model._fsdp_plan)
            self.assertLessEqual(set(model._fsdp_plan), names)


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
    intermediate_size = 64
    # The tests of training and of FSDP use 64 tokens.
    max_position_embeddings = 64

    def __init__(self, config_class: type, causal_lm_class: type[PreTrainedModel], config_fields: dict):
        self.config_class = config_class
        # The tests of training and of FSDP train this class; despite its name, it may be a masked model.
        self.causal_lm_class = causal_lm_class
        self.config_fields = config_fields
        self.num_attention_heads = config_fields.get("num_attention_heads", 1)

    def get_config(self) -> PreTrainedConfig:
        return self.config_class(
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            num_hidden_layers=self.num_hidden_layers,
            intermediate_size=self.intermediate_size,
            max_position_embeddings=self.max_position_embeddings,
            num_labels=self.num_labels,
            **self.config_fields,
        )

    def prepare_config_and_inputs_for_common(self) -> tuple[PreTrainedConfig, dict]:
        shape = [self.batch_size, self.seq_length]
        inputs = {
            "input_ids": ids_tensor(shape, self.vocab_size),
            "attention_mask": random_attention_mask(shape).to(torch_device),
            "token_type_ids": ids_tensor(shape, 2),
        }
        return self.get_config(), inputs


class TextModelTest(ModelTesterMixin, TrainingTesterMixin, FSDPPlanMixin):
    """The base class of all tests of text models. Each subclass sets the config that it tests."""

    config_class = None
    causal_lm_class = None
    config_fields = {}
    # Fields for all test classes of an architecture.
    common_fields = {}

    def setUp(self):
        fields = self.common_fields | self.config_fields
        self.model_tester = TextModelTester(self.config_class, self.causal_lm_class, fields)
        # `num_attention_heads` is omitted, since tiny attention has one head.
        properties = ["hidden_size", "num_hidden_layers"]
        self.config_tester = ConfigTester(
            self, config_class=self.config_class, common_properties=properties, hidden_size=36
        )

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
        return self.config_class, config.to_diff_dict()
