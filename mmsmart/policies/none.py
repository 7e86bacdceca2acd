"""Plain decoding: the empty tree."""

from __future__ import annotations

from mmsmart.policies.base import RoundContext, TreePolicy
from mmsmart.tree import Bools, CandidatePool, Ints


class NoDrafting(TreePolicy):
    """Never drafts; the baseline of every comparison, through the same loop."""

    def frontier(self, pool: CandidatePool, context: RoundContext) -> Ints | None:
        """Nothing to expand."""
        return None

    def select(self, pool: CandidatePool, context: RoundContext) -> Bools:
        """The root alone."""
        return pool.top(0)
