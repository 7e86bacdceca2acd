"""SMART, literally: keep a candidate when its marginal benefit exceeds its marginal cost (arXiv 2604.09731)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mmsmart.config import require_whole
from mmsmart.costs.fit import SmartCurves
from mmsmart.costs.online import CostModel
from mmsmart.errors import InputError
from mmsmart.policies.base import RoundContext, TreePolicy, layer_frontier, positive, root_frontier
from mmsmart.tree import Bools, CandidatePool, Ints

# What the text leaves open, each with a test; the third choice is that a layer that would overrun the budget keeps its
# most probable candidates.
ROOT_COUNTS = True
"""The root is verified, so it counts in the tree's size: n = 1 before layer 1."""
ROOT_LENGTH = 0.0
"""L of the bare root sums drafted tokens only: then every child of layer 1 passes."""


class Smart(TreePolicy):
    """Algorithm 1 with equations 9, 12, 13, 15 and 16; the tree terms are frozen at the previous layer.

    Args:
        b_verify: Verification budget of the whole batch, split evenly (``B = B_verify / b``).
        top_k: Candidates of each node.
        depth: Deepest layer.
        alpha: Discount on the drafter's optimism, in (0, 1].
    """

    needs_costs = True

    def __init__(self, b_verify: int = 200, top_k: int = 10, depth: int = 6, alpha: float = 0.8) -> None:
        positive("smart", top_k=top_k, depth=depth)
        require_whole("policy 'smart': b_verify", b_verify, 1)
        if not 0 < alpha <= 1:
            raise InputError(f"policy 'smart': alpha must be in (0, 1], got {alpha!r}")
        self.b_verify, self.top_k, self.depth, self.alpha = b_verify, top_k, depth, alpha
        self.curves: SmartCurves | None = None
        self._tree = _Kept(0)

    def bind_costs(self, costs: CostModel, curves: SmartCurves) -> None:
        """Takes the device's fitted curves."""
        self.curves = curves

    def frontier(self, pool: CandidatePool, context: RoundContext) -> Ints | None:
        """The survivors of the newest layer."""
        budget = max(1, self.b_verify // context.batch_size)
        if not pool.blocks:
            self._tree = _Kept(context.batch_size)
            return root_frontier(context.batch_size)
        self._tree.add(pool, self._survivors(pool, budget))
        if len(pool.blocks) >= self.depth:
            return None
        growing = self._tree.kept.sum(axis=1) < budget
        return layer_frontier(pool, self._tree.kept & growing[:, None])

    def select(self, pool: CandidatePool, context: RoundContext) -> Bools:
        """All survivors; a newest layer without any candidate was not judged."""
        kept = self._tree.kept
        return np.pad(kept, ((0, 0), (0, pool.token_ids.shape[1] - kept.shape[1])))

    def _survivors(self, pool: CandidatePool, budget: int) -> Bools:
        """Equation 16 for every candidate of the newest layer ``[B, W]``, within the budget."""
        if self.curves is None:
            raise InputError("policy 'smart' needs fitted costs; load it through mmsmart.load, or call bind_costs")
        tree = self._tree
        size = tree.kept.sum(axis=1) - (0 if ROOT_COUNTS else 1)
        length, paths = tree.length()
        reward = self.curves.plain_ms * length / self.curves.spec_ms(size)
        probability = np.exp(pool.log_probs[:, pool.last_block].astype(np.float64))  # 0 where absent
        benefit = self.curves.plain_ms * probability / paths[:, None]
        marginal = self.curves.marginal_ms(size)[:, None]
        passed = (probability > 0) & (self.alpha * benefit / marginal > reward[:, None])
        # A layer that would overrun the budget keeps its most probable candidates.
        order = np.argsort(-np.where(passed, probability, -1.0), axis=1, kind="stable")
        rank = np.argsort(order, axis=1, kind="stable")
        kept: Bools = passed & (rank < (budget - tree.kept.sum(axis=1))[:, None])
        return kept


class _Kept:
    """The trees so far: kept nodes, their sums of prefix probabilities (equation 3), and which are leaves."""

    def __init__(self, batch: int) -> None:
        self.kept: Bools = np.ones((batch, 1), np.bool_)
        self._leaf: Bools = np.ones((batch, 1), np.bool_)
        self._sums: NDArray[np.float64] = np.full((batch, 1), ROOT_LENGTH)

    def length(self) -> tuple[NDArray[np.float64], Ints]:
        """Equation 2: the mean over root-to-leaf paths ``[B]``, and the number of paths ``[B]``."""
        paths = self._leaf.sum(axis=1)
        return (self._sums * self._leaf).sum(axis=1) / paths, paths

    def add(self, pool: CandidatePool, survivors: Bools) -> None:
        """Adds the newest layer's survivors ``[B, W]``."""
        rows = np.arange(len(survivors))[:, None]
        parents = pool.parents[:, pool.last_block]
        probability = np.exp(pool.log_probs[:, pool.last_block].astype(np.float64))
        self._leaf[np.broadcast_to(rows, parents.shape)[survivors], parents[survivors]] = False
        self._sums = np.concatenate([self._sums, self._sums[rows, parents] + probability], axis=1)
        self._leaf = np.concatenate([self._leaf, survivors], axis=1)
        self.kept = np.concatenate([self.kept, survivors], axis=1)
