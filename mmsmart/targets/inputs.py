"""A prompt with its pictures, in the form that a target takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True, eq=False)
class EncodedImage:
    """One picture, ready for the vision tower (or already through it).

    Attributes:
        fingerprint: Content hash, the key of the feature cache.
        num_tokens: Placeholders that it takes in the prompt.
        tensors: The image processor's output for this picture alone; empty when the features are known.
        grid: ``(t, h, w)`` patches for families with dynamic resolution.
        embeds: ``[num_tokens, H]`` projected features, when known.
    """

    fingerprint: str
    num_tokens: int
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    grid: tuple[int, int, int] | None = None
    embeds: Tensor | None = None


@dataclass(frozen=True, eq=False)
class ModelInputs:
    """A prompt as the target takes it.

    Attributes:
        token_ids: ``[T]`` int64, picture placeholders expanded.
        image_mask: ``[T]`` bool, True on placeholders.
        positions: ``[A, T]`` int64 rotary positions on A axes.
        position_offset: Added to a later token's index to get its position on every axis (Qwen2-VL's rope delta).
        images: The pictures in order.
    """

    token_ids: Tensor
    image_mask: Tensor
    positions: Tensor
    position_offset: int
    images: tuple[EncodedImage, ...]

    @property
    def length(self) -> int:
        """T."""
        return int(self.token_ids.shape[0])


@dataclass(frozen=True, eq=False)
class TargetOutput:
    """Logits ``[B, N, V]`` and, when asked for, last hidden states ``[B, N, H]`` (after the final norm)."""

    logits: Tensor
    hidden_states: Tensor | None
