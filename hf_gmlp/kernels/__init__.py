"""Fast twins of the naive block (`naive_gating` in models/modeling_gmlp.py), in the installed package only.

Each has the signature of `naive_gating`, gives its outputs and gradients, and calls it for whatever it cannot do.
"""

import platform
from functools import partial

import torch

from ..models.modeling_gmlp import GATING_IMPLEMENTATIONS, naive_gating
from .lean import lean_gating

X86 = platform.machine().lower() in ("x86_64", "amd64")


def auto_gating(block: torch.nn.Module, hidden_states: torch.Tensor, *args, **kwargs) -> torch.Tensor:
    """The fastest form as measured (docs/performance.md): "lean" on x86 CPUs; elsewhere, unmeasured, "naive"."""
    measured = X86 and hidden_states.device.type == "cpu"
    return (lean_gating if measured else naive_gating)(block, hidden_states, *args, **kwargs)


def register():
    """Adds "lean", "triton" and this package's "auto" to the models' `GATING_IMPLEMENTATIONS`."""
    GATING_IMPLEMENTATIONS.update(auto=auto_gating, lean=lean_gating, triton=partial(lean_gating, triton=True))
