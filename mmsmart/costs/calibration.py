"""How often drafts are really accepted, by depth and by what the drafter said.

A drafter's probabilities are over-confident in ways that depend on depth and content; counts of what was accepted
correct them, and decay, so that a change of content is followed. Replaces SMART's constant discount alpha.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmsmart.tree import TreeBatch
from mmsmart.verification import Verification

Floats = NDArray[np.float64]

CHILDREN = 3
"""Expected children of a node that are told apart."""
_RATE = 0.2
"""Share of the newest round in what children are expected; their probabilities are smoothed already."""
_EDGES = np.array([0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97])


_STATE = ("accepted", "offered", "expected", "_rounds")


class Calibration:
    """Accepted and offered counts per depth and bucket of the drafter's conditional probability.

    The estimate in a bucket is Beta-smoothed towards the drafter's own number p: ``(accepted + s p) / (offered + s)``.

    Args:
        strength: Prior weight s, in observations.
        decay: Factor on a bucket's counts in each round that offers some of its kind.
        depths: Depths kept apart; deeper ones share the last.

    Attributes:
        expected: ``[depths, 3]`` probability of a typical node's best children, given that it is accepted itself.
    """

    def __init__(self, strength: float = 4.0, decay: float = 0.98, depths: int = 12) -> None:
        self.strength, self.decay = strength, decay
        self.accepted = np.zeros((depths, len(_EDGES) + 1))
        self.offered = np.zeros_like(self.accepted)
        self.seen = 0  # observations ever
        self.expected: Floats = np.full((depths, CHILDREN), 0.5) ** np.arange(1, CHILDREN + 1)
        self._rounds = np.zeros(depths)  # that told something of each depth

    def conditional(self, probs: Floats, depths: NDArray[np.int64] | int) -> Floats:
        """Calibrated acceptance of nodes, given that their parent is accepted; same shape as ``probs``.

        Args:
            probs: What the drafter said.
            depths: Of each node, or one for all.
        """
        place = self._place(probs, depths)
        estimate: Floats = (self.accepted[place] + self.strength * probs) / (self.offered[place] + self.strength)
        return np.minimum(estimate, 1.0)

    def observe(self, tree: TreeBatch, verification: Verification) -> None:
        """Counts a round; only nodes whose parent was accepted say anything."""
        rows = np.arange(len(tree.token_ids))[:, None]
        parents = np.maximum(tree.parents, 0)
        accepted = np.zeros(tree.token_ids.shape, np.bool_)
        kept = np.maximum(verification.paths, 0)
        accepted[rows, kept] = True
        offered = tree.valid & accepted[rows, parents]
        offered[:, 0] = False
        step = tree.log_probs - tree.log_probs[rows, parents]
        probs = np.exp(np.where(offered, step, 0.0).astype(np.float64))
        place = tuple(axis[offered] for axis in self._place(probs, tree.depths))
        seen = np.zeros(self.offered.shape, np.bool_)
        seen[place] = True  # what was not offered is not forgotten: no news while drafting rests
        self.accepted[seen] *= self.decay
        self.offered[seen] *= self.decay
        self.seen += int(offered.sum())
        np.add.at(self.offered, place, 1.0)
        np.add.at(self.accepted, place, accepted[offered].astype(np.float64))

    def expect(self, level: int, typical: Floats) -> None:
        """Takes note of the best children ``[<= 3]`` of a round's nodes at a depth; the first rounds count most."""
        self._rounds[level] += 1
        row = self.expected[level, : len(typical)]
        row += max(_RATE, 1 / (1 + self._rounds[level])) * (typical - row)

    def state(self) -> dict[str, Any]:
        """The counts, as JSON holds them."""
        arrays = {name: getattr(self, name).tolist() for name in _STATE}
        return arrays | {"seen": self.seen}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes counts that `state` gave.

        Raises:
            ValueError: They are of another shape, or no counts.
        """
        arrays = {name: np.asarray(state.get(name), np.float64) for name in _STATE}
        fit = all(array.shape == getattr(self, name).shape for name, array in arrays.items())
        if not fit or not all((np.isfinite(array) & (array >= 0)).all() for array in arrays.values()):
            raise ValueError("no counts of acceptance, or of another shape")
        if (arrays["accepted"] > arrays["offered"]).any() or (arrays["expected"] > 1).any():
            raise ValueError("more accepted than offered")
        for name, array in arrays.items():
            setattr(self, name, array)
        self.seen = int(state["seen"])

    def _place(self, probs: Floats, depths: NDArray[np.int64] | int) -> tuple[Any, NDArray[np.int64]]:
        deepest = len(self.accepted) - 1
        one = isinstance(depths, int)  # NumPy's clip takes longer than all the rest
        level = min(max(depths - 1, 0), deepest) if one else np.clip(depths - 1, 0, deepest)
        return level, np.searchsorted(_EDGES, probs).astype(np.int64)
