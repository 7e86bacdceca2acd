"""A policy and a drafter as somebody else would add them: one file, one row in each table."""

from collections.abc import Sequence

import numpy as np

from mmsmart.drafters.base import Drafter, DraftSession, PromptContext, RoundOutcome
from mmsmart.policies.base import RoundContext, TreePolicy, positive, root_frontier
from mmsmart.tree import Bools, CandidatePool, Candidates, Ints


class Fan(TreePolicy):
    """One layer of ``width`` drafts."""

    def __init__(self, width: int = 2) -> None:
        positive("fan", width=width)
        self.top_k = width

    def frontier(self, pool: CandidatePool, context: RoundContext) -> Ints | None:
        return None if pool.blocks else root_frontier(context.batch_size)

    def select(self, pool: CandidatePool, context: RoundContext) -> Bools:
        return pool.present


class Guess(Drafter):
    """Guesses the same bytes every time, from ``first`` on."""

    def __init__(self, first: int = 0) -> None:
        self.first = first

    def open(self, prompts: Sequence[PromptContext], roots: Ints) -> DraftSession:
        return _Guesses(self.first)


class _Guesses(DraftSession):
    def __init__(self, first: int) -> None:
        self.first = first

    def start_round(self, roots: Ints, depth_limit: Ints) -> None:
        pass

    def expand(self, pool: CandidatePool, frontier: Ints, top_k: int) -> Candidates:
        shape = (*frontier.shape, top_k)
        token_ids = np.broadcast_to(self.first + np.arange(top_k, dtype=np.int64), shape).copy()
        return Candidates(token_ids, np.full(shape, -np.log(256), np.float32))

    def commit(self, outcome: RoundOutcome) -> None:
        pass

    def select_rows(self, rows: Sequence[int]) -> None:
        pass
