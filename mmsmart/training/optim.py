"""Optimisers and their schedule: Muon for matrices inside the network, AdamW for everything else."""

from collections.abc import Iterable

import torch
from torch import nn

WARMUP = 0.02
DECAY = 0.4
MAX_NORM = 1.0
ADAMW_SHARE = 0.5


def build_optimizers(module: nn.Module, learning_rate: float) -> list[torch.optim.Optimizer]:
    """Splits a module's trainable parameters between Muon and AdamW.

    Args:
        module: What is trained; frozen parameters are left out.
        learning_rate: Peak rate of Muon; AdamW gets half of it.
    """
    outside = {id(p) for m in module.modules() if isinstance(m, nn.Embedding) for p in m.parameters()}
    outside |= {id(p) for name, p in module.named_parameters() if "head" in name}
    trainable = [p for p in module.parameters() if p.requires_grad]
    matrices = [p for p in trainable if p.ndim == 2 and id(p) not in outside]
    others = [p for p in trainable if p.ndim != 2 or id(p) in outside]
    optimizers: list[torch.optim.Optimizer] = []
    if matrices:
        optimizers.append(
            torch.optim.Muon(matrices, lr=learning_rate, weight_decay=0.01, adjust_lr_fn="match_rms_adamw")
        )
    if others:
        rate = learning_rate * ADAMW_SHARE
        optimizers.append(torch.optim.AdamW(others, lr=rate, betas=(0.9, 0.98), weight_decay=0.0, fused=True))
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["peak_lr"] = group["lr"]
    return optimizers


def rate_factor(progress: float) -> float:
    """Share of the peak rate after ``progress`` (0..1) of a stage: warm up, hold, fall linearly to zero."""
    if progress < WARMUP:
        return (progress + 1e-3) / (WARMUP + 1e-3)
    return max(0.0, min(1.0, (1.0 - progress) / DECAY))


def apply_gradients(module: nn.Module, optimizers: Iterable[torch.optim.Optimizer], factor: float) -> None:
    """Clips the gradients, takes one step at ``factor`` of the peak rates, clears the gradients."""
    nn.utils.clip_grad_norm_([p for p in module.parameters() if p.grad is not None], MAX_NORM)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["peak_lr"] * factor
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
