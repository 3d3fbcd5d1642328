"""The gMLP block in the layout of the annotated implementation of labml.ai: tokens first, [n, batch, d_model]."""

import torch
from torch import nn


class AnnotatedGMLPBlock(nn.Module):
    """Pre-norm, projection to d_ffn, GELU, spatial gating unit, projection back, shortcut."""

    def __init__(self, d_model: int, d_ffn: int, seq_len: int):
        super().__init__()
        self.norm = nn.LayerNorm([d_model])
        self.activation = nn.GELU()
        self.proj1 = nn.Linear(d_model, d_ffn)
        self.sgu = AnnotatedSpatialGatingUnit(d_ffn, seq_len)
        self.proj2 = nn.Linear(d_ffn // 2, d_model)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [m, B, d_model]
        gated = self.sgu(self.activation(self.proj1(self.norm(x))))
        return x + self.proj2(gated)


class AnnotatedSpatialGatingUnit(nn.Module):
    """z1 * (W norm(z2) + b), with the leading part of W and b for sequences shorter than seq_len."""

    def __init__(self, d_z: int, seq_len: int):
        super().__init__()
        self.norm = nn.LayerNorm([d_z // 2])
        self.weight = nn.Parameter(torch.empty(seq_len, seq_len).uniform_(-0.01, 0.01))
        self.bias = nn.Parameter(torch.ones(seq_len))

    def forward(self, z: torch.Tensor) -> torch.Tensor:  # [m, B, d_z] -> [m, B, d_z / 2]
        m, half = z.shape[0], z.shape[2] // 2
        normalized = self.norm(z[..., half:])
        mixed = torch.einsum("ij,jbd->ibd", self.weight[:m, :m], normalized) + self.bias[:m, None, None]
        return z[..., :half] * mixed
