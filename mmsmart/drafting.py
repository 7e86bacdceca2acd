"""One round's conversation between drafter and policy."""

from __future__ import annotations

from mmsmart.drafters.base import DraftSession
from mmsmart.policies.base import RoundContext, TreePolicy
from mmsmart.tree import CandidatePool, Ints, TreeBatch


def grow(policy: TreePolicy, session: DraftSession, roots: Ints, context: RoundContext) -> TreeBatch:
    """Grows the trees of one round.

    The policy names nodes, the drafter gives their children, until the policy has enough; then it selects what to
    verify. With nothing to expand the drafter is not called at all, and the result is the empty tree: plain decoding.

    Args:
        policy: Decides sizes and shapes.
        session: The drafter's memory of this batch.
        roots: ``[B]`` last committed tokens.
        context: The round's limits.
    """
    pool = CandidatePool(roots)
    frontier = policy.frontier(pool, context) if context.depth_limit.any() else None
    if frontier is not None:
        session.start_round(roots, context.depth_limit)
    while frontier is not None and (frontier >= 0).any():
        candidates = session.expand(pool, frontier, policy.top_k)
        pool.append(frontier, candidates, context.depth_limit)
        frontier = policy.frontier(pool, context)
    return TreeBatch.pack(pool, policy.select(pool, context))
