"""Starts a language model from that of another family, whose layers and vocabulary have the same shapes."""

from collections.abc import Sequence

import torch
from torch import Tensor

from mmsmart.errors import ModelError

ROTATED = ("q_proj.weight", "k_proj.weight")


def adopt_weights(own: dict[str, Tensor], other: dict[str, Tensor], rotary_pairs: Sequence[int]) -> dict[str, Tensor]:
    """Takes every weight that the other model has; biases that it lacks are zero, what only it has is left out.

    Args:
        own: Weights of the new model, by name.
        other: Weights of the model to start from.
        rotary_pairs: For each rotary pair of a head, the pair of the other model's head that goes there.

    Raises:
        ModelError: If a weight is missing or has another shape.
    """
    adopted = {}
    for name, weight in own.items():
        found = other.get(name, torch.zeros_like(weight) if name.endswith(".bias") else None)
        if found is None or found.shape != weight.shape:
            shape = "missing" if found is None else f"of shape {tuple(found.shape)}"
            raise ModelError(f"cannot start from the other run: {name} is {shape} there, {tuple(weight.shape)} here")
        adopted[name] = _reorder(found, rotary_pairs) if name.endswith(ROTATED) else found
    return adopted


def _reorder(weight: Tensor, rotary_pairs: Sequence[int]) -> Tensor:
    """Reorders the rows [heads * head_dim, H] of each head; a rotary pair is a row and the one half a head later."""
    halves = weight.unflatten(0, (-1, 2, len(rotary_pairs)))
    reordered: Tensor = halves[:, :, list(rotary_pairs)].flatten(0, 2)
    return reordered
