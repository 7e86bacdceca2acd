"""The tree with the best rate, from measured costs: how deep, how many, or none at all.

For the expected tokens ``tau = 1 + sum of P(u)`` the best n nodes are the n most probable ones, a prefix-closed and
nested set; so with drafting charged per depth the optimum is a scan over n along that order, exact for any cost curve.
What is already spent on drafting is sunk when choosing n: with the long-run rate R (tokens a millisecond) the best
choice maximises ``tau(n) - R * verify(n)`` (renewal reward; Dinkelbach, 1967). One more depth is drafted when the best
value reachable with its expected mass, less ``R * draft``, beats the best value now.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mmsmart.costs.calibration import Calibration
from mmsmart.costs.fit import SmartCurves
from mmsmart.costs.online import CostModel
from mmsmart.errors import InputError
from mmsmart.policies.base import RoundContext, RoundRecord, TreePolicy, layer_frontier, positive, root_frontier
from mmsmart.tree import Bools, CandidatePool, Ints

Floats = NDArray[np.float64]

_FIRST_PAUSE = 8
"""Plain rounds before drafting is tried again; doubles with every failed try."""
_LONGEST_PAUSE = 256
_TRIAL = 3
"""Rounds of a try."""
_RATE = 0.05
"""Share of the newest round in the running averages."""
_AHEAD_RATE = 0.2
"""Share of the newest round in what children are expected; their probabilities are smoothed by calibration already."""
_CHILDREN = 3
"""Expected children of a node that are told apart when looking one depth ahead."""


class RateOptimal(TreePolicy):
    """Maximises tokens a second over depth, number of nodes, and not drafting; see the module's text.

    Args:
        depth: Deepest draft.
        top_k: Children of each expanded node.
        width: Most nodes expanded in a layer.
        nodes: Most drafts verified a row.
    """

    needs_costs = True

    def __init__(self, depth: int = 10, top_k: int = 4, width: int = 8, nodes: int = 63) -> None:
        positive("rate-optimal", depth=depth, top_k=top_k, width=width, nodes=nodes)
        self.depth, self.top_k, self.width, self.nodes = depth, top_k, width, nodes
        self.costs: CostModel | None = None
        self.calibration = Calibration()
        self._books: dict[int, _Book] = {}
        self._ahead = np.full((depth + 2, _CHILDREN), 0.5) ** np.arange(1, _CHILDREN + 1)  # typical child probabilities
        self._drafted_ms = 0.0  # this round's drafting as predicted without corrections

    def bind_costs(self, costs: CostModel, curves: SmartCurves) -> None:
        """Takes the device's costs."""
        self.costs = costs

    def frontier(self, pool: CandidatePool, context: RoundContext) -> Ints | None:
        """The nodes worth expanding, or ``None`` when one more depth does not pay (or drafting rests)."""
        costs = self._costs()
        if not pool.blocks:
            self._drafted_ms = 0.0
            plain = self._plain_rate(context)
            if not self._book(context.batch_size).drafting(self._promising(context), plain):
                return None
            self._charge(0, context)
            return root_frontier(context.batch_size)
        self._learn_ahead(pool)
        level = len(pool.blocks)
        if level >= self.depth:
            return None
        probability = self._probabilities(pool)
        rate = self._rate(context)
        now, count = self._best(probability, context, rate)
        chosen = self._expandable(pool, probability, count)
        frontier = layer_frontier(pool, chosen)
        if frontier is None:
            return None
        rows = np.arange(len(frontier))[:, None]
        masses = np.where(frontier >= 0, probability[rows, np.maximum(frontier, 0)], 0.0)
        coming = (masses[:, :, None] * np.minimum(self._ahead[level + 1], self._ahead[level])).reshape(
            len(frontier), -1
        )
        then, _ = self._best(np.concatenate([probability, coming], axis=1), context, rate)
        price = costs.draft_ms(frontier.shape[1], context.batch_size, float(context.context_lengths.mean()))
        if then - rate * price <= now:
            return None
        self._charge(frontier.shape[1], context)
        return frontier

    def select(self, pool: CandidatePool, context: RoundContext) -> Bools:
        """The best number of the most probable nodes, the same number in every row: padding is verified anyway."""
        if not pool.blocks:
            return pool.top(0)
        probability = self._probabilities(pool)
        _, count = self._best(probability, context, self._rate(context))
        scores = np.where(pool.present, probability, -np.inf).astype(np.float32)
        return pool.top(count, scores)

    def record(self, record: RoundRecord) -> None:
        """Corrects costs and acceptance, and keeps the books on drafting against not drafting."""
        costs, batch, nodes = self._costs(), record.batch_size, record.tree.num_nodes
        context = float(record.context_lengths.mean())
        costs.observe_verify(record.verify_ms, nodes, batch, context)
        if self._drafted_ms:
            costs.observe_draft(record.draft_ms, self._drafted_ms)
        self.calibration.observe(record.tree, record.verification)
        tokens = float(record.verification.num_accepted.sum() + batch)
        elapsed_ms = record.draft_ms + record.verify_ms + (costs.table.fixed_ms if nodes > 1 else 0.0)
        self._book(batch).note(self._drafted_ms > 0, tokens, elapsed_ms)

    def _costs(self) -> CostModel:
        if self.costs is None:
            raise InputError(
                "policy 'rate-optimal' needs measured costs; load it through mmsmart.load, or call bind_costs"
            )
        return self.costs

    def _charge(self, width: int, context: RoundContext) -> None:
        mean = float(context.context_lengths.mean())
        self._drafted_ms += float(self._costs().table.draft.at(width, context.batch_size, mean))

    def _book(self, batch: int) -> _Book:
        return self._books.setdefault(batch, _Book())

    def _plain_rate(self, context: RoundContext) -> float:
        return context.batch_size / self._costs().plain_ms(context.batch_size, float(context.context_lengths.mean()))

    def _rate(self, context: RoundContext) -> float:
        """R: the long-run rate, never below plain decoding's."""
        return max(self._plain_rate(context), self._book(context.batch_size).rate)

    def _promising(self, context: RoundContext) -> bool:
        """Whether a chain of typical drafts, at its best depth, beats a plain step at the plain rate."""
        costs, batch, mean = self._costs(), context.batch_size, float(context.context_lengths.mean())
        # Depths that were not reached lately are taken to be no better than those before them.
        mass = np.cumprod(np.minimum.accumulate(self._ahead[1 : self.depth + 1, 0]))
        depths = np.arange(1, self.depth + 1)
        drafting = costs.draft_ms(0, batch, mean) + (depths - 1) * costs.draft_ms(1, batch, mean)
        times = costs.verify_ms(depths + 1, batch, mean) + drafting
        values = batch * (1 + mass.cumsum()) - self._plain_rate(context) * times
        return bool(values.max() > 0)

    def _probabilities(self, pool: CandidatePool) -> Floats:
        """Calibrated probability that each node is accepted ``[B, M]``, 1 at the root, 0 where absent.

        A child is never more probable than its parent, so that the best nodes stay prefix-closed.
        """
        rows = np.arange(len(pool.parents))[:, None]
        step = np.exp(
            np.where(pool.present, pool.log_probs - pool.log_probs[rows, np.maximum(pool.parents, 0)], -np.inf)
        )
        own = self.calibration.conditional(step.astype(np.float64), pool.depths)
        result = np.where(pool.present, own, 0.0)
        result[:, 0] = 1.0
        edges = [*pool.blocks, pool.token_ids.shape[1]]
        for block in map(slice, edges, edges[1:]):
            result[:, block] *= result[rows, pool.parents[:, block]]
        return result

    def _best(self, probability: Floats, context: RoundContext, rate: float) -> tuple[float, int]:
        """The largest ``tau(n) - R verify(n)`` over n, drafts a row, and that n."""
        drafts = -np.sort(-probability[:, 1:], axis=1)[:, : self.nodes]
        gains = np.concatenate([[0.0], drafts.sum(axis=0).cumsum()])
        sizes = np.arange(1, len(gains) + 1)
        times = self._costs().verify_ms(sizes, context.batch_size, float(context.context_lengths.mean()))
        values = context.batch_size + gains - rate * times
        count = int(values.argmax())
        return float(values[count]), count

    def _expandable(self, pool: CandidatePool, probability: Floats, count: int) -> Bools:
        """The newest nodes that are among the best so far (at least the best one of each row), at most ``width``."""
        scores = np.where(pool.present, probability, -np.inf).astype(np.float32)
        among = pool.top(max(count, 1), scores)
        among[:, : pool.last_block.start] = False
        newest = scores.copy()
        newest[:, : pool.last_block.start] = -np.inf
        among |= pool.top(1, newest) & (newest > -np.inf)
        kept = np.where(among, newest, -np.inf).astype(np.float32)
        return pool.top(self.width, kept) & among

    def _learn_ahead(self, pool: CandidatePool) -> None:
        """Typical calibrated probabilities of the best children at this depth, for looking one depth ahead."""
        block, level = pool.last_block, len(pool.blocks)
        step = pool.log_probs[:, block] - pool.log_probs[np.arange(len(pool.parents))[:, None], pool.parents[:, block]]
        present = pool.present[:, block]
        if not present.any():
            return
        own = self.calibration.conditional(
            np.exp(np.where(present, step, 0.0)).astype(np.float64), pool.depths[:, block]
        )
        for rank in range(_CHILDREN):
            where = present & (pool.ranks[:, block] == rank)
            typical = float(own[where].mean()) if where.any() else 0.0
            self._ahead[level, rank] += _AHEAD_RATE * (typical - self._ahead[level, rank])


class _Book:
    """Drafting or not, for one batch size: rests when drafting does not pay, and tries again after growing pauses.

    Attributes:
        tokens, elapsed_ms: Decayed sums over all rounds; their ratio is the long-run rate R.
    """

    def __init__(self) -> None:
        self.tokens = self.elapsed_ms = 0.0
        self._stint = [0.0, 0.0, 0]  # tokens, milliseconds, rounds since the last rest
        self._resting = 0
        self._pause = _FIRST_PAUSE

    @property
    def rate(self) -> float:
        """Tokens a millisecond over the last rounds; 0 before any."""
        return self.tokens / self.elapsed_ms if self.elapsed_ms else 0.0

    def drafting(self, promising: bool, plain: float) -> bool:
        """Whether to draft now: it looks promising, it paid since the last rest, or it was not tried long enough."""
        if self._resting:
            return False
        tokens, elapsed_ms, rounds = self._stint
        if promising or rounds < _TRIAL or tokens > plain * elapsed_ms:
            return True
        self._stint, self._resting = [0.0, 0.0, 0], self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        return False

    def note(self, drafted: bool, tokens: float, elapsed_ms: float) -> None:
        """Books a round."""
        self.tokens = (1 - _RATE) * self.tokens + tokens
        self.elapsed_ms = (1 - _RATE) * self.elapsed_ms + elapsed_ms
        if not drafted:
            self._resting = max(0, self._resting - 1)
            return
        before = self._stint
        self._stint = [(1 - _RATE) * before[0] + tokens, (1 - _RATE) * before[1] + elapsed_ms, before[2] + 1]
        if self._stint[2] > 4 * _TRIAL:
            self._pause = _FIRST_PAUSE
