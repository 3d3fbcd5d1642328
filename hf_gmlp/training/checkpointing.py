"""Selective activation checkpointing: less memory for the backward pass, in slightly more time."""

import torch
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts
from transformers import PreTrainedModel

aten = torch.ops.aten
# Operators of layers that compute matrix products, which take nearly all of a block's time.
PRODUCTS = {
    operator.default
    for operator in (
        *(aten.mm, aten.addmm, aten.bmm, aten.baddbmm, aten.convolution),
        *(aten._scaled_dot_product_flash_attention, aten._scaled_dot_product_flash_attention_for_cpu),
        *(aten._scaled_dot_product_efficient_attention, aten._scaled_dot_product_cudnn_attention),
    )
}


def keep_products(context, operator, *args, **kwargs) -> CheckpointPolicy:
    if operator in PRODUCTS and not has_dropout(operator, args, kwargs):
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


def has_dropout(operator: torch._ops.OpOverload, args: tuple, kwargs: dict) -> bool:
    """Return whether attention draws random numbers. Without drawing them again, layers after it would recompute their
    dropout with other random numbers, and the gradients would be wrong."""
    names = [argument.name for argument in operator._schema.arguments]
    return (dict(zip(names, args)) | kwargs).get("dropout_p", 0.0) > 0.0


def enable_selective_checkpointing(model: PreTrainedModel) -> None:
    """Keep only the inputs of blocks and the results of matrix products for the backward pass in training, and
    recompute the rest (norms, activations, gating). Outputs and gradients stay the same, even in compiled models.

    Args:
        model: A model of this package, or any other that supports gradient checkpointing.
            `model.gradient_checkpointing_disable()` undoes it.
    """
    # transformers renamed `gradient_checkpointing_enable` in 5.23.
    enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
    enable({"use_reentrant": False, "context_fn": lambda: create_selective_checkpoint_contexts(keep_products)})
