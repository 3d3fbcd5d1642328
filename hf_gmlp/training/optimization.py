"""Groups of parameters for an optimizer: which weights decay, and which have a learning rate of their own."""

import re

from torch import nn

NORMS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.modules.batchnorm._NormBase)


def positional_weights(model: nn.Module) -> list[nn.Parameter]:
    """Return the weights that only know positions.

    These are W and b of every gMLP block (Equation 2), tables of relative position biases, position embeddings, and
    both matrices of a Mixer's MLP over the tokens.
    """
    weights = []
    for module in model.modules():
        # By name, since a checkpoint may bring its own copy of these classes.
        match type(module).__name__:
            case "SpatialProjection":
                weights += [module.weight, module.bias]
            case "RelativePositionBias":
                weights.append(module.biases.weight)
            case "TextMixerLayer":
                weights += [module.token_mlp.proj_in.weight, module.token_mlp.proj_out.weight]
        embedding = getattr(module, "position_embeddings", None)
        if isinstance(embedding, nn.Embedding | nn.Parameter):
            weights.append(embedding.weight if isinstance(embedding, nn.Embedding) else embedding)
    return weights


def param_groups(
    model: nn.Module, learning_rate: float, weight_decay: float = 0.0, spatial_lr_multiplier: float = 1.0
) -> list[dict[str, object]]:
    """Return the trainable parameters of a model in groups, for any optimizer of torch.

    Example:
        optimizer = torch.optim.AdamW(hf_gmlp.param_groups(model, 1e-3, weight_decay=0.01, spatial_lr_multiplier=8))
        trainer = Trainer(model, args, train_dataset=rows, optimizers=(optimizer, None))

    Args:
        model: A gMLP or any other model.
        learning_rate: The learning rate of all weights that are not positional.
        weight_decay: The decay of matrices. Biases, norms and positional weights have none.
        spatial_lr_multiplier: Factor for the learning rate of positional weights (W and b of gMLPs, relative position
            biases, position embeddings). Raise it for short runs, in which Adam's small steps cannot move them enough.

    Raises:
        ValueError: If there is a multiplier, but the model has no positional weights.
    """
    positional = {id(weight) for weight in positional_weights(model)}
    if spatial_lr_multiplier != 1 and not positional:
        raise ValueError(f"spatial_lr_multiplier must be 1, since a {type(model).__name__} has no positional weights.")
    norms = {id(weight) for module in model.modules() if isinstance(module, NORMS) for weight in module.parameters()}
    matrices, vectors, moved = [], [], []
    for name, weight in model.named_parameters():
        if weight.requires_grad and id(weight) in positional:
            moved.append(weight)
        elif weight.requires_grad:
            # By name and not by shape, which sharding may change.
            spared = id(weight) in norms or re.search("bias|norm", name.lower())
            (vectors if spared else matrices).append(weight)
    groups = (
        {"params": matrices, "lr": learning_rate, "weight_decay": weight_decay},
        {"params": vectors, "lr": learning_rate, "weight_decay": 0.0},
        {"params": moved, "lr": learning_rate * spatial_lr_multiplier, "weight_decay": 0.0},
    )
    return [group for group in groups if group["params"]]
