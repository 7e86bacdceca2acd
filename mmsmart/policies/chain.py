"""One path of the most probable tokens."""

from __future__ import annotations

import numpy as np

from mmsmart.policies.base import RoundContext, TreePolicy, positive, root_frontier
from mmsmart.tree import Bools, CandidatePool, Ints


class Chain(TreePolicy):
    """Drafts ``depth`` tokens one after another (Leviathan et al., 2023, arXiv 2211.17192).

    Args:
        depth: Tokens drafted each round.
    """

    def __init__(self, depth: int = 5) -> None:
        positive("chain", depth=depth)
        self.depth = depth

    def frontier(self, pool: CandidatePool, context: RoundContext) -> Ints | None:
        """The end of the chain."""
        if not pool.blocks:
            return root_frontier(context.batch_size)
        end = pool.token_ids.shape[1] - 1
        if end >= self.depth or not pool.present[:, end].any():
            return None
        return np.where(pool.present[:, end:], end, -1)

    def select(self, pool: CandidatePool, context: RoundContext) -> Bools:
        """The whole chain."""
        return pool.present
