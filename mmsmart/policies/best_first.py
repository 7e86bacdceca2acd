"""The n most probable nodes."""

from __future__ import annotations

from mmsmart.policies.base import RoundContext, TreePolicy, layer_frontier, positive, root_frontier
from mmsmart.tree import Bools, CandidatePool, Ints


class BestFirst(TreePolicy):
    """Verifies the ``nodes`` most probable drafts: for a given number, the tree with the largest expected length.

    A node can only be among them when its parent is, so a layer's nodes are expanded while they are among the best so
    far.

    Args:
        nodes: Drafts verified, the root excluded.
        depth: Deepest draft.
        top_k: Children of each expanded node.
    """

    def __init__(self, nodes: int = 16, depth: int = 8, top_k: int = 4) -> None:
        positive("best-first", nodes=nodes, depth=depth, top_k=top_k)
        self.nodes, self.depth, self.top_k = nodes, depth, top_k

    def frontier(self, pool: CandidatePool, context: RoundContext) -> Ints | None:
        """The newest nodes that are among the best."""
        if not pool.blocks:
            return root_frontier(context.batch_size)
        if len(pool.blocks) >= self.depth:
            return None
        return layer_frontier(pool, pool.top(self.nodes))

    def select(self, pool: CandidatePool, context: RoundContext) -> Bools:
        """The best of all layers."""
        return pool.top(self.nodes)
