"""Parameter groups for optimizers, with their own weight decay and learning rates, and training with Muon."""

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

NORMS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.modules.batchnorm._NormBase)


def positional_weights(model: nn.Module) -> list[nn.Parameter]:
    """Return the weights that encode positions alone.

    These are W of every gMLP block (Equation 2), tables of relative position biases, position embeddings, and both
    matrices of a Mixer's MLP over the tokens.
    """
    weights: list[Any] = []
    for module in model.modules():
        # The class is compared by name, since a checkpoint may contain its own copy of it.
        if type(module).__name__ == "SpatialProjection":
            weights.append(module.weight)
        # These are the names in BERT and ViT, and in T5.
        for table in ("position_embeddings", "relative_attention_bias"):
            if isinstance(embedding := getattr(module, table, None), nn.Embedding):
                weights.append(embedding.weight)
        # This is the name in timm's Mixer.
        if isinstance(mlp := getattr(module, "mlp_tokens", None), nn.Module):
            weights += [layer.weight for layer in mlp.modules() if isinstance(layer, nn.Linear)]
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
        weight_decay: The decay of matrices, including W. Biases and norms do not decay.
        spatial_lr_multiplier: Factor for the learning rate of positional weights (W of gMLPs, relative position biases,
            position embeddings). Raise it for short runs, in which Adam's small steps cannot move them enough.

    Raises:
        ValueError: If the multiplier is not 1, but the model has no positional weights.
    """
    positional = {id(weight) for weight in positional_weights(model)}
    if spatial_lr_multiplier != 1 and not positional:
        raise ValueError(f"spatial_lr_multiplier must be 1, since a {type(model).__name__} has no positional weights.")
    norms = {id(weight) for module in model.modules() if isinstance(module, NORMS) for weight in module.parameters()}
    groups: list[dict[str, Any]] = [
        {"params": [], "lr": learning_rate * multiplier, "weight_decay": decay}
        for multiplier in (1.0, spatial_lr_multiplier)
        for decay in (weight_decay, 0.0)
    ]
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            # Biases are matched by name, not by shape, which sharding may change.
            has_no_decay = id(weight) in norms or re.search("bias|norm", name.lower()) is not None
            is_multiplied = spatial_lr_multiplier != 1 and id(weight) in positional
            groups[2 * is_multiplied + has_no_decay]["params"].append(weight)
    return [group for group in groups if group["params"]]


def hidden_matrices(model: nn.Module) -> list[nn.Parameter]:
    """Return the trainable weights [out, in] of the encoder's linear layers, except for positional weights."""
    positional = {id(weight) for weight in positional_weights(model)}
    encoder = getattr(model, getattr(model, "base_model_prefix", ""), model)
    weights: list[Any] = [module.weight for module in encoder.modules() if isinstance(module, nn.Linear)]
    return [weight for weight in weights if weight.requires_grad and id(weight) not in positional]


class WithMuon(torch.optim.Optimizer):
    """Optimizer that trains `matrices` with Muon (https://kellerjordan.github.io/posts/muon), and the other weights of
    the `groups` with the optimizer that `make_other` returns.

    Muon moves a matrix by the orthogonalized mean of its gradients. Its updates are scaled to the size of Adam's.
    """

    def __init__(
        self,
        matrices: list[nn.Parameter],
        groups: list[dict[str, Any]],
        make_other: Callable[[list[dict[str, Any]]], torch.optim.Optimizer],
        learning_rate: float,
        weight_decay: float,
    ) -> None:
        ids = {id(weight) for weight in matrices}
        other_groups = [group | {"params": [w for w in group["params"] if id(w) not in ids]} for group in groups]
        muon = torch.optim.Muon(matrices, learning_rate, weight_decay, adjust_lr_fn="match_rms_adamw")
        self.parts = [muon, make_other([group for group in other_groups if group["params"]])]
        # The groups are shared with the parts, so that a learning-rate schedule applies to both.
        super().__init__([group for part in self.parts for group in part.param_groups], {})

    def step(self, closure: Callable | None = None) -> Any:
        loss = None if closure is None else closure()
        for part in self.parts:
            part.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for part, state in zip(self.parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
        self.param_groups = [group for part in self.parts for group in part.param_groups]
