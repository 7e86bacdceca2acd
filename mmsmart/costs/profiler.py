"""Measures a device: lower quartiles of the forwards that really run, on a grid of sizes, batches and contexts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from tqdm import tqdm

from mmsmart.costs.fit import SmartCurves, fit_curves
from mmsmart.costs.table import CostTable, Grid

NODES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)
WIDTHS = (0, 1, 2, 4, 8, 16)
BATCHES = (1, 2, 4, 8, 16, 32)
CONTEXTS = (128, 512)
_POINT_MS = 25.0
_LEAST, _MOST = 3, 15
_DEAR_MS = 60.0
"""Sizes beyond one that took so long are not measured but extrapolated."""


class Bench(Protocol):
    """A batch of one size and context, ready to be timed; see `mmsmart.profiling`."""

    def verify(self, nodes: int) -> None:
        """One target forward of ``nodes`` a row."""

    def draft(self, width: int) -> None:
        """One depth of drafting from ``width`` nodes a row; 0 is the round's opening."""

    def other_ms(self) -> float:
        """Median milliseconds of a round outside drafting and verification."""


@dataclass(frozen=True)
class Profile:
    """What was measured: the table, and beside it the paper's two fits from five forwards each."""

    table: CostTable
    curves: SmartCurves


def measure(
    bench: Callable[[int, int], Bench],
    settings: Mapping[str, Any],
    *,
    batches: Sequence[int] = BATCHES,
    contexts: Sequence[int] = CONTEXTS,
    nodes: Sequence[int] = (),
    synchronize: Callable[[], None] = lambda: None,
    progress: bool = True,
) -> Profile:
    """Times every point of the grid.

    Args:
        bench: Makes a batch of ``(rows, committed slots)``.
        settings: What the table is for; stored with it.
        batches, contexts: The grid's other axes.
        nodes: Tree sizes to measure; `NODES` where none are given.
        synchronize: Waits for the device.
        progress: Show a bar on stderr.
    """
    nodes = tuple(nodes) or NODES
    points = [(b, c) for b in batches for c in contexts]
    verify: dict[tuple[int, int], list[float]] = {}
    draft: dict[tuple[int, int], list[float]] = {}
    other: list[float] = []
    with tqdm(total=len(points), desc="profiling", disable=not progress) as bar:
        for point in points:
            batch = bench(*point)
            verify[point] = _rising(_sizes_ms(batch, nodes, synchronize))
            draft[point] = [_typical_ms(partial(batch.draft, w), synchronize) for w in WIDTHS]
            if point[1] == contexts[0]:
                other.append(batch.other_ms())
            bar.update()
    grids = [
        Grid(sizes, tuple(batches), tuple(contexts), _stacked(times, sizes, batches, contexts))
        for sizes, times in ((nodes, verify), (WIDTHS, draft))
    ]
    table = CostTable(grids[0], grids[1], other[0], dict(settings))
    return Profile(table, paper_curves(table))


def paper_curves(table: CostTable, batch: int = 1, context: int = CONTEXTS[0]) -> SmartCurves:
    """The paper's fits, from five sizes each: whole draft trees of growing depth, and verification inputs."""
    sizes = (1, 8, 16, 32, 64)
    depths = (1, 2, 4, 6, 8)
    opening, layer = (float(x) for x in table.draft.at([0, 8], batch, context))
    tokens = [10 * depth for depth in depths]
    drafting = [opening + (depth - 1) * layer for depth in depths]
    times = table.verify.at(sizes, batch, context)
    return fit_curves(tokens, drafting, sizes, times, float(times[0]))


def _sizes_ms(batch: Bench, nodes: Sequence[int], synchronize: Callable[[], None]) -> list[float]:
    """Verification of each size; beyond one that took long, where nothing is hidden any more, on the last line."""
    times: list[float] = []
    for count in nodes:
        if len(times) >= _LEAST and times[-1] > _DEAR_MS:
            last = nodes[len(times) - 1]
            slope = max(times[-1] - times[0], 0.0) / (last - nodes[0])
            times += [times[-1] + slope * (more - last) for more in nodes[len(times) :]]
            break
        times.append(_typical_ms(partial(batch.verify, count), synchronize))
    return times


def _typical_ms(call: Callable[[], None], synchronize: Callable[[], None]) -> float:
    call()  # warm-up
    times: list[float] = []
    while len(times) < _LEAST or (sum(times) < _POINT_MS and len(times) < _MOST):
        synchronize()
        start = time.perf_counter()
        call()
        synchronize()
        times.append(1e3 * (time.perf_counter() - start))
    return sorted(times)[len(times) // 4]  # noise only adds


def _rising(times: list[float]) -> list[float]:
    """A larger forward is never cheaper: what says otherwise is noise, averaged with its neighbours (isotonic fit)."""
    blocks: list[list[float]] = []
    for value in times:
        blocks.append([value, 1.0])
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            mean, weight = blocks.pop()
            blocks[-1] = [
                (blocks[-1][0] * blocks[-1][1] + mean * weight) / (blocks[-1][1] + weight),
                blocks[-1][1] + weight,
            ]
    return [mean for mean, weight in blocks for _ in range(int(weight))]


def _stacked(
    times: Mapping[tuple[int, int], list[float]], sizes: Sequence[int], batches: Sequence[int], contexts: Sequence[int]
) -> tuple[tuple[tuple[float, ...], ...], ...]:
    return tuple(tuple(tuple(times[b, c][i] for c in contexts) for b in batches) for i in range(len(sizes)))
