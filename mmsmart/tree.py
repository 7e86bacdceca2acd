"""Draft trees on the host: candidates while they grow, and the packed batch that the target verifies.

Nodes are kept so that a parent always stands before its children; node 0 of every row is the root, the last committed
token. Everything is NumPy: a round handles a few hundred numbers, and they are needed on the host anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
Bools = NDArray[np.bool_]

ABSENT = np.float32(-np.inf)


@dataclass(frozen=True)
class Candidates:
    """A drafter's children for a frontier of W nodes in each of B rows.

    Attributes:
        token_ids: ``[B, W, K]``.
        log_probs: ``[B, W, K]`` float32, conditional on the parent; ``-inf`` where there is no candidate. Siblings are
            distinct tokens, most probable first.
    """

    token_ids: Ints
    log_probs: Floats


class CandidatePool:
    """All candidates of one round, every row side by side; grows by blocks of ``W * K`` columns.

    Attributes:
        token_ids, parents, depths: ``[B, M]``.
        ranks: ``[B, M]`` place among the siblings, most probable first.
        log_probs: ``[B, M]`` float32, cumulative from the root (0 there), ``-inf`` where a row has no such node.
        blocks: First column of each block, for drafters that keep per-node tensors in the same order.
    """

    def __init__(self, roots: Sequence[int] | Ints) -> None:
        size = (len(roots), 1)
        self.token_ids: Ints = np.asarray(roots, np.int64).reshape(size)
        self.parents: Ints = np.full(size, -1, np.int64)
        self.depths: Ints = np.zeros(size, np.int64)
        self.ranks: Ints = np.zeros(size, np.int64)
        self.log_probs: Floats = np.zeros(size, np.float32)
        self.blocks: list[int] = []

    @property
    def present(self) -> Bools:
        """Which nodes exist, ``[B, M]``."""
        return np.isfinite(self.log_probs)

    @property
    def last_block(self) -> slice:
        """Columns of the newest block (the root before any was added)."""
        return slice(self.blocks[-1] if self.blocks else 0, self.token_ids.shape[1])

    def append(self, frontier: Ints, candidates: Candidates, depth_limit: Ints) -> None:
        """Adds children, but none below ``depth_limit`` ``[B]``.

        Args:
            frontier: ``[B, W]`` the parents' columns, -1 where a row has fewer.
            candidates: Their children.
            depth_limit: Deepest node allowed in each row.
        """
        batch = frontier.shape[0]
        parent = np.maximum(frontier, 0)
        rows = np.arange(batch)[:, None]
        depths = self.depths[rows, parent] + 1
        # Clamped at zero so that rounding never ranks a child above its parent: kept sets stay prefix-closed.
        step = np.minimum(candidates.log_probs, np.float32(0))
        scores = self.log_probs[rows, parent][:, :, None] + step
        absent = (frontier < 0) | (depths > depth_limit[:, None])
        scores = np.where(absent[:, :, None], ABSENT, scores).astype(np.float32)
        _, width, siblings = candidates.token_ids.shape
        self.blocks.append(self.token_ids.shape[1])
        self.token_ids = _join(self.token_ids, candidates.token_ids)
        self.parents = _join(self.parents, parent.repeat(siblings, axis=1))
        self.depths = _join(self.depths, depths.repeat(siblings, axis=1))
        ranks = np.arange(width * siblings)[None] % siblings
        self.ranks = _join(self.ranks, ranks.repeat(batch, axis=0))
        self.log_probs = np.concatenate([self.log_probs, scores.reshape(batch, -1)], axis=1)

    def top(self, count: int, scores: Floats | None = None) -> Bools:
        """Marks the root and the ``count`` best nodes of each row ``[B, M]``, ties by order: a prefix-closed set."""
        scores = self.log_probs if scores is None else scores
        drafts = scores[:, 1:]
        keep = np.zeros(self.token_ids.shape, np.bool_)
        keep[:, 0] = True
        if count > 0 and drafts.shape[1]:
            order = np.argsort(-drafts, axis=1, kind="stable")[:, :count] + 1
            np.put_along_axis(keep, order, True, axis=1)
        return keep & self.present


def _join(left: Ints, right: Ints) -> Ints:
    return np.concatenate([left, right.reshape(left.shape[0], -1)], axis=1)


@dataclass(frozen=True)
class TreeBatch:
    """The trees of B rows, padded to N nodes with the root first; the shape that the target verifies.

    Attributes:
        token_ids, parents, depths: ``[B, N]``; the root has parent -1 and depth 0. Padding repeats the root.
        valid: ``[B, N]``, False on padding.
        log_probs: ``[B, N]`` float32, the drafter's cumulative log-probability.
    """

    token_ids: Ints
    parents: Ints
    depths: Ints
    valid: Bools
    log_probs: Floats

    @classmethod
    def roots(cls, token_ids: Sequence[int] | Ints) -> TreeBatch:
        """The empty tree in every row: plain decoding."""
        pool = CandidatePool(token_ids)
        return cls(pool.token_ids, pool.parents, pool.depths, pool.present, pool.log_probs)

    @classmethod
    def pack(cls, pool: CandidatePool, keep: Bools) -> TreeBatch:
        """Packs the kept nodes ``[B, M]`` of a pool; the root must be kept and the set prefix-closed."""
        if pool.token_ids.shape[1] == 1:
            return cls(pool.token_ids, pool.parents, pool.depths, pool.present, pool.log_probs)
        rows = np.arange(keep.shape[0])[:, None]
        parents = np.maximum(pool.parents, 0)
        assert keep[:, 0].all(), "a policy must keep the root"
        assert not (keep & ~keep[rows, parents]).any(), "a policy kept a node without its parent"
        counts = keep.sum(axis=1)
        order = np.argsort(~keep, axis=1, kind="stable")[:, : int(counts.max())]
        valid = np.arange(order.shape[1]) < counts[:, None]
        order = np.where(valid, order, 0)
        rank = np.cumsum(keep, axis=1) - 1
        packed_parents = rank[rows, parents[rows, order]]
        packed_parents[:, 0] = -1
        return cls(
            token_ids=pool.token_ids[rows, order],
            parents=np.where(valid, packed_parents, 0),
            depths=pool.depths[rows, order],
            valid=valid,
            log_probs=pool.log_probs[rows, order],
        )

    @property
    def num_nodes(self) -> int:
        """N, the root and padding included."""
        return int(self.token_ids.shape[1])

    @property
    def num_draft_tokens(self) -> Ints:
        """Drafted nodes of each row ``[B]``, root and padding excluded."""
        counts: Ints = self.valid.sum(axis=1) - 1
        return counts

    def ancestor_mask(self) -> Bools:
        """``[B, N, N]``: entry ``[b, i, j]`` says that node j is node i or one of its ancestors."""
        batch, nodes = self.token_ids.shape
        mask = np.zeros((batch, nodes, nodes), np.bool_)
        rows, columns = np.arange(batch)[:, None], np.arange(nodes)[None, :]
        current = np.broadcast_to(columns, (batch, nodes))
        for _ in range(int(self.depths.max()) + 1):
            mask[rows, columns, current] = True
            current = np.maximum(self.parents[rows, current], 0)
        mask[:, :, 0] = True
        return mask
