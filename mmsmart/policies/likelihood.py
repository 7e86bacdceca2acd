"""EAGLE-2's tree: grow the most probable nodes of each layer, then keep the most probable of all."""

from __future__ import annotations

from mmsmart.policies.base import RoundContext, TreePolicy, layer_frontier, positive, root_frontier
from mmsmart.tree import ABSENT, Bools, CandidatePool, Ints


class Likelihood(TreePolicy):
    """Expansion and reranking by cumulative probability (Li et al., 2024, arXiv 2406.16858, section 4).

    Scores are float32 sums of log-probabilities and ties go by order, so that the kept set is always prefix-closed.

    Args:
        depth: Layers expanded after the first; the deepest path has ``depth + 1`` drafts, as in the EAGLE and MSD code.
        top_k: Nodes expanded in each layer, and children of each.
        total: Drafts verified, the root excluded.
    """

    def __init__(self, depth: int = 5, top_k: int = 10, total: int = 59) -> None:
        positive("likelihood", depth=depth, top_k=top_k, total=total)
        self.depth, self.top_k, self.total = depth, top_k, total

    def frontier(self, pool: CandidatePool, context: RoundContext) -> Ints | None:
        """The ``top_k`` best nodes of the newest layer."""
        if not pool.blocks:
            return root_frontier(context.batch_size)
        if len(pool.blocks) > self.depth:
            return None
        scores = pool.log_probs.copy()
        scores[:, : pool.last_block.start] = ABSENT
        return layer_frontier(pool, pool.top(self.top_k, scores))

    def select(self, pool: CandidatePool, context: RoundContext) -> Bools:
        """The ``total`` best of all layers."""
        return pool.top(self.total)
