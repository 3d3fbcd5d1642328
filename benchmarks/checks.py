"""Checks that the compared systems compute the same, so that no wrong result is timed."""

from typing import Any

import torch
from torch import nn

from hf_gmlp.errors import InputError

from .peers import LUCIDRAINS, TIMM, System, base_of

# 48 layers in single precision differ by about 5e-6; results in TF32 exceed this limit.
LARGEST_DISTANCE = 2e-4
SAMPLES = 2


def compare(what: str, value: torch.Tensor, reference: torch.Tensor, whose: str) -> None:
    """Check that a value equals a reference within single precision.

    Raises:
        InputError: The relative distance is larger than rounding explains.
    """
    # A zero reference, with which nothing can be compared, gives NaN and fails the check.
    distance = float((value.detach() - reference.detach()).norm() / reference.detach().norm())
    if not distance < LARGEST_DISTANCE:
        raise InputError(f"No times: {what} are {distance:.1e} away from {whose}, relative to their size.")


def check(systems: dict[str, System]) -> None:
    """Compare the outputs of peers with those of hf_gmlp with the same weights. Compare the outputs and gradients of
    systems with compilation or checkpointing with those of the same system without.

    Raises:
        InputError: They differ.
    """
    for name, system in systems.items():
        if base_of(name) == name:
            system.model.eval()
            with torch.no_grad():
                if model := converted(name, system.model):
                    model = model.eval().to(system.inputs.device)
                    expected = System(name, model, system.inputs).run(SAMPLES)
                    compare(f"the outputs of {name}", system.run(SAMPLES), expected, "those of hf_gmlp")
            continue
        plain = systems[base_of(name)]
        system.model.load_state_dict(plain.model.state_dict())
        (output, gradients), (expected, expected_gradients) = values_of(system), values_of(plain)
        compare(f"the outputs of {name}", output, expected, f"those of {plain.name}")
        compare(f"the gradients of {name}", gradients, expected_gradients, f"those of {plain.name}")


def values_of(system: System) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the output, and all gradients as one vector."""
    system.model.train()
    system.loss(SAMPLES).backward()
    gradients: Any = [parameter.grad for parameter in system.model.parameters()]
    system.model.zero_grad()
    return system.run(SAMPLES), torch.cat([gradient.flatten() for gradient in gradients])


def converted(name: str, peer: nn.Module) -> nn.Module | None:
    """Return an hf_gmlp model with the weights of a peer, or None if the peer is not a gMLP."""
    from hf_gmlp.tools.conversion import model_from_lucidrains, model_from_timm

    weights = {key: value.cpu() for key, value in peer.state_dict().items()}
    if name == TIMM:
        return model_from_timm(weights)
    return model_from_lucidrains(weights) if name == LUCIDRAINS else None
