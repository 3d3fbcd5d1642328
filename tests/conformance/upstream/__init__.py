"""Make the common tests of transformers one importable package, and fit them to models outside transformers.

The package has two folders: this one, and the fetched `tests/` folder, so that the relative imports between the common
tests work. The source archive lacks the folders from which they import (`exporters`, `generation`, `utils`): the
modules of those names here replace them. The common tests are adapted to these models below, at import, so that this
also happens in spawned processes.
"""

import os

from ..fetch import TESTS_FOLDER

if "HF_GMLP_CONFORMANCE" not in os.environ:
    raise ImportError(
        "Run these tests with `python -m tests.conformance.run`, which fetches and prepares what they need, not with "
        "pytest."
    )
__path__.append(str(TESTS_FOLDER))

import transformers  # noqa: E402

import hf_gmlp  # noqa: E402, F401  # registers its models

from . import test_fsdp_mixin, test_modeling_common, test_tensor_parallel_mixin  # noqa: E402

# By the name of a class in these tables, the common tests determine its inputs, its labels and the tests that it needs.
# Registering a class with the Auto classes does not add it to the tables: without this, no loss and no gradient would
# be tested. The tables are replaced only in the namespace of the tests, not in transformers.
NAMES_IN_TABLES = {
    "MODEL_MAPPING_NAMES": {"gmlp": "GMLPModel", "gmlp_vision": "GMLPVisionModel"},
    "MODEL_FOR_MASKED_LM_MAPPING_NAMES": {"gmlp": "GMLPForMaskedLM"},
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES": {"gmlp": "GMLPForCausalLM"},
    "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES": {"gmlp": "GMLPForSequenceClassification"},
    "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES": {"gmlp": "GMLPForTokenClassification"},
    "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES": {"gmlp": "GMLPForQuestionAnswering"},
    "MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES": {"gmlp": "GMLPForMultipleChoice"},
    "MODEL_FOR_BACKBONE_MAPPING_NAMES": {"gmlp_vision": "GMLPVisionBackbone"},
    "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES": {"gmlp_vision": "GMLPForImageClassification"},
}
for table, names in NAMES_IN_TABLES.items():
    setattr(test_modeling_common, table, {**getattr(test_modeling_common, table), **names})


class AutoLanguageModel:
    """A causal or a masked model, depending on the config. Both accept the same inputs and labels."""

    @staticmethod
    def auto_class(config: transformers.PreTrainedConfig) -> type:
        causal = getattr(config, "is_causal", False)
        return transformers.AutoModelForCausalLM if causal else transformers.AutoModelForMaskedLM

    @classmethod
    def from_config(cls, config: transformers.PreTrainedConfig, **kwargs) -> transformers.PreTrainedModel:
        return cls.auto_class(config).from_config(config, **kwargs)

    @classmethod
    def from_pretrained(cls, folder: str, **kwargs) -> transformers.PreTrainedModel:
        return cls.auto_class(transformers.AutoConfig.from_pretrained(folder)).from_pretrained(folder, **kwargs)


# The FSDP tests build causal language models, but some configs here are those of masked ones. They run for all model
# types only if the list of types is None.
test_fsdp_mixin.AutoModelForCausalLM = AutoLanguageModel
test_fsdp_mixin.FSDP_DISTRIBUTED_TEST_MODEL_TYPES = None
test_tensor_parallel_mixin.TP_DISTRIBUTED_TEST_MODEL_TYPES = None
