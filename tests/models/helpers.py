"""What several files of this folder use to compare models."""

import torch

ATTENTIONS = [None, "eager", "sdpa"]


def attention_fields(attention):
    """Config fields of a gMLP, or of an aMLP with that implementation of attention."""
    return {} if attention is None else {"attention_size": 8, "attn_implementation": attention}


def both(layer, reference_layer):
    """Pairs of the weights and of the biases of two layers."""
    return [(layer.weight, reference_layer.weight), (layer.bias, reference_layer.bias)]


def copy_parameters(pairs):
    """Copies the second parameter of each pair into the first."""
    with torch.no_grad():
        for parameter, reference_parameter in pairs:
            assert parameter.shape == reference_parameter.shape
            parameter.copy_(reference_parameter)


def per_token(output, length):
    """The outputs for the first `length` tokens and for the whole sequence, as one flat vector per row."""
    parts = []
    for name, value in output.items():
        if name in ("last_hidden_state", "start_logits", "end_logits") or (name == "logits" and value.ndim == 3):
            parts.append(value[:, :length].flatten(1))
        elif name in ("logits", "pooler_output"):
            parts.append(value.flatten(1))
    return torch.cat(parts, dim=1)
