"""Parameters and FLOPs as the paper counts them (Tables 1 to 5 and 10), on the meta device: nothing is allocated."""

import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModel, AutoModelForImageClassification, AutoModelForMaskedLM, PreTrainedConfig

from ..models.configuration_gmlp import as_pair

MASKED_FRACTION = 0.15
"""BERT's share of predicted tokens; of 512 tokens, 76 are masked."""


def paper_parameters(config: PreTrainedConfig) -> int:
    """
    Parameters as the paper's tables count them: of a text model the embeddings, blocks and final norm (without pooler
    and masked-language-model transform), of an image model the whole classifier with the labels of `config`.

    Args:
        config: Of a gMLP for text or images, of a model of modeling_baselines.py, or of transformers' BERT or ViT.
    """
    with torch.device("meta"):
        if hasattr(config, "image_size"):
            model = AutoModelForImageClassification.from_config(config)
        else:
            model = AutoModel.from_config(config, add_pooling_layer=False)
    return sum(parameter.numel() for parameter in model.parameters())


def paper_flops(config: PreTrainedConfig) -> int:
    """
    FLOPs of one forward pass as the paper counts them: two per multiply-add of the matrix products, for one sequence
    of n tokens with the masked-language-model head on its masked 15 %, or for one image. Of a causal model, which the
    paper has none of, the head is counted on all tokens, and W as a whole.

    Args:
        config: As for `paper_parameters`.
    """
    # The eager form of attention, whose matrix products the counter sees one by one.
    config = type(config).from_dict(config.to_dict(), attn_implementation="eager")
    with torch.device("meta"):
        if hasattr(config, "image_size"):
            model = AutoModelForImageClassification.from_config(config).eval()
            pixels = torch.empty(1, config.num_channels, *as_pair(config.image_size))
            with FlopCounterMode(display=False) as counter, torch.no_grad():
                model(pixels)
        else:
            model = AutoModelForMaskedLM.from_config(config).eval()
            tokens = torch.empty(1, config.max_position_embeddings, dtype=torch.long)
            share = 1.0 if getattr(config, "is_causal", False) else MASKED_FRACTION
            masked = torch.empty(int(share * config.max_position_embeddings), config.hidden_size)
            with FlopCounterMode(display=False) as counter, torch.no_grad():
                model.base_model(tokens)
                if config.model_type == "bert":
                    model.cls(masked)
                else:
                    model.decoder(model.head(masked))
    return counter.get_total_flops()
