"""Models spread over several GPUs, as by `device_map="auto"`, with fake tensors, which check devices without a GPU."""

import pytest
import torch
from packaging.version import Version
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map_only

from hf_gmlp import GMLPForImageClassification, GMLPForMaskedLM, GMLPForMultipleChoice, GMLPForSequenceClassification
from hf_gmlp.models import modeling_gmlp

from .helpers import labeled_batch

pytestmark = pytest.mark.skipif(
    Version(torch.__version__) < Version("2.10"), reason="torch 2.9 ends the process if it has no GPU."
)

POOLED = [GMLPForMultipleChoice, GMLPForSequenceClassification]
CASES = [(getattr(modeling_gmlp, name), {}) for name in modeling_gmlp.__all__ if name.startswith("GMLPFor")]
CASES += [(head, {"pooling": pooling}) for head in POOLED for pooling in ("mean", "max")]
CASES += [(GMLPForSequenceClassification, {"is_causal": True}), (GMLPForMaskedLM, {"sparse_prediction": True})]


def spread(model):
    """Put the embeddings and blocks on one GPU, and all other modules on another, where their inputs are moved."""
    first = [model.base_model.embeddings, model.base_model.layers]
    on_first = {id(parameter) for module in first for parameter in module.parameters()}
    for module in model.modules():
        for name, x in list(module.named_parameters(recurse=False)):
            device = "cuda:0" if id(x) in on_first else "cuda:1"
            setattr(module, name, torch.nn.Parameter(torch.empty(x.shape, device=device)))

    def move(module, args, kwargs):
        return tree_map_only(torch.Tensor, lambda x: x.to("cuda:1"), (args, kwargs))

    modules = [*model.children(), *model.base_model.children()]
    for module in modules:
        if module is not model.base_model and module not in first:
            module.register_forward_pre_hook(move, with_kwargs=True)
    return model


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("model_class, fields", CASES)
def test_every_head_can_be_spread(text_config, vision_config, model_class, fields, masked):
    is_image = model_class is GMLPForImageClassification
    with FakeTensorMode(allow_non_fake_inputs=True):
        config = (vision_config if is_image else text_config)(attention_size=8, tie_word_embeddings=False, **fields)
        model = spread(model_class(config)).train()
        inputs = labeled_batch(model_class)
        if not masked:
            inputs.pop("attention_mask", None)
        # The number of labels, a shape in sparse prediction, is unknown without values.
        if fields.get("sparse_prediction"):
            inputs["masked_positions"] = torch.zeros(4, 3, dtype=torch.long)
        output = model(**{name: x.to("cuda:0") for name, x in inputs.items()})
        for name, value in output.items():
            assert value.device == torch.device("cuda:1"), name
