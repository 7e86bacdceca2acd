"""Trees of a fixed shape."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np

from mmsmart.errors import InputError
from mmsmart.policies.base import RoundContext, TreePolicy, layer_frontier, root_frontier
from mmsmart.tree import Bools, CandidatePool, Ints

Path: TypeAlias = tuple[int, ...]

DEFAULT_PATHS: tuple[Path, ...] = ((0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 0, 0, 0))


class StaticTree(TreePolicy):
    """Verifies the same ranks every round, whatever their probability.

    The trees of Medusa (arXiv 2401.10774) and EAGLE-1 (arXiv 2401.15077).

    Args:
        paths: Each node as its path of child ranks, e.g. ``((0,), (1,), (0, 0))``; or such a tuple as text.
    """

    def __init__(self, paths: str | Iterable[Sequence[int]] = DEFAULT_PATHS) -> None:
        self.paths = _checked(ast.literal_eval(paths) if isinstance(paths, str) else paths)
        self.top_k = 1 + max(path[-1] for path in self.paths)
        self._inner = {path[:-1] for path in self.paths}

    def frontier(self, pool: CandidatePool, context: RoundContext) -> Ints | None:
        """The nodes of the newest layer that have children in the table."""
        if not pool.blocks:
            return root_frontier(context.batch_size)
        return layer_frontier(pool, self._marked(pool, self._inner))

    def select(self, pool: CandidatePool, context: RoundContext) -> Bools:
        """The nodes of the table."""
        return self._marked(pool, {*self.paths, ()})

    def _marked(self, pool: CandidatePool, wanted: Iterable[Path]) -> Bools:
        base = self.top_k + 1
        codes = np.zeros_like(pool.token_ids)  # a path read as the digits of a number
        rows = np.arange(codes.shape[0])[:, None]
        edges = [*pool.blocks, codes.shape[1]]
        for block in map(slice, edges, edges[1:]):
            codes[:, block] = codes[rows, pool.parents[:, block]] * base + pool.ranks[:, block] + 1
        table = [sum((rank + 1) * base**i for i, rank in enumerate(reversed(path))) for path in wanted]
        return np.isin(codes, table) & pool.present


def _checked(paths: Iterable[Sequence[int]]) -> tuple[Path, ...]:
    table = tuple(tuple(int(rank) for rank in path) for path in paths)
    if not table or any(not path or min(path) < 0 for path in table):
        raise InputError(f"policy 'static': paths must be non-empty tuples of ranks from 0 on, got {table!r}")
    for path in table:
        if len(path) > 1 and path[:-1] not in table:
            raise InputError(f"policy 'static': path {path} has no parent {path[:-1]} in the table; add it")
    return table
