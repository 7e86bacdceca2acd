"""How a family looks at pictures: their sizes, what its vision tower makes of them, what the tower cannot know."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from mmsmart.training.facts import Facts
from mmsmart.training.labels import patch_labels
from mmsmart.training.pictures import DEFAULT_SIZE

USUAL_SIZE = (DEFAULT_SIZE, DEFAULT_SIZE)


def clip_features(tower: Any, images: Tensor) -> Tensor:
    """Features [B, P, width] of images [B, 3, height, width], of a tower whose first output is a class token."""
    features: Tensor = tower(pixel_values=images).last_hidden_state[:, 1:]
    return features


@dataclass(frozen=True)
class View:
    """How a family looks at pictures; the defaults are those of a tower with one size and absolute positions.

    Attributes:
        features: Maps tower and images [B, 3, height, width] to features [B, P, width], P visual tokens by rows.
        token_side: Pixels along one side of a visual token.
        other_sizes: Widths and heights in pixels that are trained besides the usual 128 x 128.
        other_share: Share of the batches that have one of the other sizes.
        hidden: Names of attributes that the tower has no means to know.
        has_places: Whether the oracle adds a vector for the place of each patch.
    """

    features: Callable[[nn.Module, Tensor], Tensor] = clip_features
    token_side: int = 16
    other_sizes: tuple[tuple[int, int], ...] = ()
    other_share: float = 0.0
    hidden: tuple[str, ...] = ()
    has_places: bool = True

    def pick_size(self, seed: str) -> tuple[int, int]:
        """Width and height of the pictures of one batch, a function of the seed."""
        rng = random.Random(f"size/{seed}")
        return rng.choice(self.other_sizes) if rng.random() < self.other_share else USUAL_SIZE

    def grid(self, size: tuple[int, int] = USUAL_SIZE) -> tuple[int, int]:
        """Rows and columns of visual tokens of a picture of a certain width and height."""
        width, height = size
        return height // self.token_side, width // self.token_side

    def labels(self, pictures: Sequence[Facts], size: tuple[int, int] = USUAL_SIZE) -> Tensor:
        """What every visual token shows, as far as the tower can know: int64 [B, P, attributes]."""
        return patch_labels(pictures, self.grid(size), self.hidden)
