"""Rotary position embedding (Su et al., 2021, arXiv 2104.09864) on split halves, as the Llama classes lay it out."""

from __future__ import annotations

import torch
from torch import Tensor


def signed(sines: Tensor) -> Tensor:
    """Sines ``[..., dim]`` with the minus sign of the swapped half put in, once for all layers."""
    half = sines.shape[-1] // 2
    return torch.cat([-sines[..., :half], sines[..., half:]], dim=-1)


def rotate(states: Tensor, cosines: Tensor, signed_sines: Tensor) -> Tensor:
    """Turns states ``[..., dim]``; bit for bit what multiplying the half that was negated and swapped would give."""
    return states * cosines + states.roll(states.shape[-1] // 2, -1) * signed_sines
