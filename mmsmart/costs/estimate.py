"""Costs guessed from shapes alone, for when nothing may be measured; labelled as such."""

from __future__ import annotations

from mmsmart.costs.profiler import BATCHES, NODES, WIDTHS
from mmsmart.costs.table import CostTable, Grid

_FREE_TOKENS = {"cpu": 16, "cuda": 128}
"""Tokens a forward takes at about the price of one: below it memory is the bound, above it arithmetic."""


def estimate(*, layers: int, drafter_layers: int, device: str) -> CostTable:
    """Relative costs: a plain step of the target is 1, flat up to a device-typical number of tokens, then linear.

    Args:
        layers: Of the target.
        drafter_layers: Of the drafter; 0 for sources that run no model.
        device: ``"cpu"`` or ``"cuda"``.
    """
    free = _FREE_TOKENS.get(device, 64)

    def forward(tokens: int, depth: int) -> float:
        return depth / layers * max(1.0, tokens / free)

    verify = tuple(tuple((forward(n * b, layers),) for b in BATCHES) for n in NODES)
    draft = tuple(tuple((forward(max(w, 1) * b, drafter_layers) + 0.01,) for b in BATCHES) for w in WIDTHS)
    grids = Grid(NODES, BATCHES, (0,), verify), Grid(WIDTHS, BATCHES, (0,), draft)
    return CostTable(*grids, fixed_ms=0.03, settings={"estimate": "from shapes alone"}, measured=False)
