"""Trees of a fixed shape."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from mmsmart.config import require_whole
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
        self.paths = _checked(_read(paths) if isinstance(paths, str) else paths)
        self.top_k = 1 + max(path[-1] for path in self.paths)
        # The table as a trie: `_next[node, rank]` is the child, -1 outside the table (and, as last row, from there on).
        numbers = {path: i for i, path in enumerate(((), *self.paths))}
        self._next = np.full((len(numbers) + 1, self.top_k), -1, np.int64)
        for path, number in numbers.items():
            if path:
                self._next[numbers[path[:-1]], path[-1]] = number

    def frontier(self, pool: CandidatePool, context: RoundContext) -> Ints | None:
        """The nodes of the newest layer that have children in the table."""
        if not pool.blocks:
            return root_frontier(context.batch_size)
        inner: Bools = np.any(self._next >= 0, axis=1, keepdims=True)[:, 0]
        return layer_frontier(pool, inner[self._numbers(pool)] & pool.present)

    def select(self, pool: CandidatePool, context: RoundContext) -> Bools:
        """The nodes of the table."""
        return (self._numbers(pool) >= 0) & pool.present

    def _numbers(self, pool: CandidatePool) -> Ints:
        """Each candidate's place in the table, -1 outside it."""
        numbers = np.zeros_like(pool.token_ids)
        rows = np.arange(len(numbers))[:, None]
        edges = [*pool.blocks, numbers.shape[1]]
        for block in map(slice, edges, edges[1:]):
            numbers[:, block] = self._next[numbers[rows, pool.parents[:, block]], pool.ranks[:, block]]
        return numbers


def _read(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError) as error:
        raise InputError(f"policy 'static': cannot read the paths {text!r}; write ((0,), (1,), (0, 0))") from error


def _checked(paths: Any) -> tuple[Path, ...]:
    try:
        table = tuple(dict.fromkeys(tuple(path) for path in paths))
    except TypeError as error:
        raise InputError(f"policy 'static': paths must be tuples of ranks, got {paths!r}") from error
    for path in table:
        for rank in path:
            require_whole(f"policy 'static': a rank in path {path}", rank, 0)
        if len(path) > 1 and path[:-1] not in table:
            raise InputError(f"policy 'static': path {path} has no parent {path[:-1]} in the table; add it")
    if not table or () in table:
        raise InputError(f"policy 'static': paths must be non-empty tuples of ranks, got {paths!r}")
    return table
