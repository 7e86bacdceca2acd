"""The cost table while it is used: kept honest by what rounds really take."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mmsmart.costs.table import CostTable, weights

Floats = NDArray[np.float64]

_RATE = 0.1
"""Share of the newest round in the corrections: about ten rounds to follow a change."""
_LOCAL_RATE = 0.04
"""Likewise in the correction of one size and batch."""
_BOUND = 4.0
"""A single hiccup counts as at most this factor."""


class CostModel:
    """A table with slow corrections: exponential averages of measured over predicted time.

    Plain steps, tree verification and drafting are corrected apart, as a neighbour or a throttled device need not slow
    them alike. Beside these quick factors every size and batch of the table has a slow one of its own, so that a table
    measured in bad moments gets its shape back where it is used.
    """

    def __init__(self, table: CostTable) -> None:
        self.table = table
        self.factors = {"plain": 1.0, "verify": 1.0, "draft": 1.0}
        self._local = np.ones((len(table.verify.sizes), len(table.verify.batches)))

    def target_ms(self, nodes: ArrayLike, batch: int, context: float) -> Floats:
        """Target forward of n nodes a row (root included)."""
        nodes = np.asarray(nodes)
        factor = np.where(nodes > 1, self.factors["verify"], self.factors["plain"])
        return self._tabulated_ms(nodes, batch, context) * factor

    def verify_ms(self, nodes: ArrayLike, batch: int, context: float) -> Floats:
        """Target forward plus the round's fixed part, for n nodes a row (root included)."""
        fixed = np.where(np.asarray(nodes) > 1, self.table.fixed_ms, 0.0)
        return np.asarray(self.target_ms(nodes, batch, context) + fixed, np.float64)

    def plain_ms(self, batch: int, context: float) -> float:
        """One plain decode step."""
        return float(self.verify_ms(1, batch, context))

    def draft_ms(self, width: float, batch: int, context: float) -> float:
        """One depth of drafting."""
        return float(self.table.draft.at(width, batch, context)) * self.factors["draft"]

    def observe_verify(self, measured_ms: float, nodes: int, batch: int, context: float) -> None:
        """Notes the time of a target forward."""
        predicted = float(self._tabulated_ms(nodes, batch, context))
        kind = "verify" if nodes > 1 else "plain"
        self._blend(kind, measured_ms, predicted)
        left = measured_ms / (predicted * self.factors[kind])
        grid = self.table.verify
        share = np.outer(weights(grid.sizes, nodes), weights(grid.batches, batch))
        self._local *= min(max(left, 1 / _BOUND), _BOUND) ** (_LOCAL_RATE * share)

    def observe_draft(self, measured_ms: float, predicted_ms: float) -> None:
        """Notes the time of a round's drafting, predicted without corrections."""
        self._blend("draft", measured_ms, predicted_ms)

    def _tabulated_ms(self, nodes: ArrayLike, batch: int, context: float) -> Floats:
        grid = self.table.verify
        local = np.interp(np.asarray(nodes), grid.sizes, self._local @ weights(grid.batches, batch))
        return np.asarray(grid.at(nodes, batch, context) * local, np.float64)

    def _blend(self, kind: str, measured_ms: float, predicted_ms: float) -> None:
        if predicted_ms <= 0 or measured_ms <= 0:
            return
        ratio = measured_ms / predicted_ms
        now = self.factors[kind]
        self.factors[kind] = (1 - _RATE) * now + _RATE * min(max(ratio, now / _BOUND), now * _BOUND)
