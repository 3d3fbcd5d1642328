"""Parameters and FLOPs as the paper counts them (Tables 1 to 5 and 10), on the meta device without allocations."""

import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModel, AutoModelForImageClassification, AutoModelForMaskedLM, PreTrainedConfig

from hf_gmlp.models.configuration_gmlp import as_pair


def paper_parameters(config: PreTrainedConfig) -> int:
    """Return the number of parameters that the paper would print for a config.

    Text models count embeddings, blocks and final norm, without pooler and masked-language-model transform. Image
    classifiers count all parameters, with the labels of `config`.
    """
    with torch.device("meta"):
        if hasattr(config, "image_size") or (config.architectures or [""])[0].endswith("ForImageClassification"):
            model = AutoModelForImageClassification.from_config(config)
        else:
            model = AutoModel.from_config(config, add_pooling_layer=False)
    return sum(parameter.numel() for parameter in model.parameters())


def paper_flops(config: PreTrainedConfig) -> int:
    """Return the FLOPs of one forward pass, two per multiply-add of the matrix products.

    The input is one image, or one sequence of n tokens with the masked-language-model head on the masked 15 %. For a
    causal model, which the paper does not have, the head is counted on all tokens, and both triangles of W.

    Args:
        config: The config of a gMLP, of transformers' BERT or ViT, or of a model with the same heads.
    """
    # Eager attention consists of matrix products, which the counter supports.
    config = type(config).from_dict(config.to_dict(), attn_implementation="eager")
    with torch.device("meta"), FlopCounterMode(display=False) as counter, torch.no_grad():
        if hasattr(config, "image_size"):
            model = AutoModelForImageClassification.from_config(config).eval()
            model(torch.empty(1, config.num_channels, *as_pair(config.image_size)))
        else:
            model = AutoModelForMaskedLM.from_config(config).eval()
            model.base_model(torch.empty(1, config.max_position_embeddings, dtype=torch.long))
            # BERT predicts 15 % of the tokens: 76 of 512.
            fraction = 1.0 if getattr(config, "is_causal", False) else 0.15
            masked = torch.empty(int(fraction * config.max_position_embeddings), config.hidden_size)
            head = model.cls if hasattr(model, "cls") else lambda hidden: model.decoder(model.head(hidden))
            head(masked)
    return counter.get_total_flops()
