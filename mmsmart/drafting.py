"""One round's conversation between drafter and policy."""

from __future__ import annotations

import numpy as np

from mmsmart.drafters.base import DraftSession
from mmsmart.policies.base import RoundContext, TreePolicy
from mmsmart.tree import CandidatePool, Ints, TreeBatch


def grow(policy: TreePolicy, session: DraftSession, roots: Ints, context: RoundContext) -> TreeBatch:
    """Grows the trees of one round: drafts candidates, then packs those that the policy selects; see `draft`."""
    pool = draft(policy, session, roots, context)
    return TreeBatch.pack(pool, policy.select(pool, context))


def draft(policy: TreePolicy, session: DraftSession, roots: Ints, context: RoundContext) -> CandidatePool:
    """Drafts the candidates of one round.

    The policy names nodes, the drafter gives their children, until the policy has enough. With nothing to expand the
    drafter is not called at all, and the pool holds the roots alone: plain decoding.

    Args:
        policy: Decides sizes and shapes.
        session: The drafter's memory of this batch.
        roots: ``[B]`` last committed tokens.
        context: The round's limits.
    """
    pool = CandidatePool(roots)
    frontier = _useful(policy.frontier(pool, context), pool, context)
    if frontier is not None:
        session.start_round(roots, context.depth_limit)
    while frontier is not None:
        candidates = session.expand(pool, frontier, policy.top_k)
        pool.append(frontier, candidates, context.depth_limit)
        grown = pool.present[:, pool.last_block].any()
        frontier = _useful(policy.frontier(pool, context), pool, context) if grown else None
    return pool


def _useful(frontier: Ints | None, pool: CandidatePool, context: RoundContext) -> Ints | None:
    """The frontier without nodes whose children could not enter the answer; ``None`` when none is left."""
    if frontier is None:
        return None
    rows = np.arange(len(frontier))[:, None]
    shallow = pool.depths[rows, np.maximum(frontier, 0)] < context.depth_limit[:, None]
    frontier = np.where(shallow, frontier, -1)
    return frontier if (frontier >= 0).any() else None
