"""The tree with the best rate, from measured costs: how deep, how many, or none at all.

For the expected tokens ``tau = 1 + sum of P(u)`` the best n nodes are the n most probable ones, a prefix-closed and
nested set; so with drafting charged per depth the optimum is a scan over n along that order, exact for any cost curve.
What is already spent on drafting is sunk when choosing n: with the long-run rate R (tokens a millisecond) the best
choice maximises ``tau(n) - R * verify(n)`` (renewal reward; Dinkelbach, 1967). One more depth is drafted when the best
value reachable with its expected mass, less ``R * draft``, beats the best value now.

A batch lasts as long as its longest answer: towards its end few rows share a round, and a token that its slowest rows
lack is dear. So R is no more than the pace over the last rounds of all batch sizes, and no less than plain decoding's.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mmsmart.costs.calibration import CHILDREN, Calibration
from mmsmart.costs.fit import SmartCurves
from mmsmart.costs.online import CostModel
from mmsmart.errors import InputError
from mmsmart.policies.base import RoundContext, RoundRecord, TreePolicy, positive, root_frontier
from mmsmart.policies.books import Book
from mmsmart.tree import Bools, CandidatePool, Ints

Floats = NDArray[np.float64]

_LEAST = 1e-9
"""Nodes less probable than this are never expanded."""
_HICCUP = 4.0
"""A round counts as at most so many times what was predicted."""
_LOOKS = (1, 2, 4, 8)
"""Depths that are looked ahead, until one pays: where the cost has a step, one more depth alone may not reach it."""
_UNREAD = 16
"""Unread tokens beyond which a round's drafting time says nothing of the next one's: they are read once."""
_PACE = 0.02
"""Share of the newest round in the pace over all batch sizes."""
_KNOWN = 20
"""Observations of acceptance after which a drafter counts as known."""
_GLANCE = 8
"""Of so many rounds of a rest, one corrects the cost of a plain step."""
_COMMON = 16
"""Nodes up to which the usual price of one more is taken."""
_BEYOND = 4
"""Sizes beyond the last one over which the price of one more node is taken."""


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
        self.calibration: Calibration = Calibration(depths=max(12, depth + 2))
        self._books: dict[int, Book] = {}
        self._round = _REST
        self._written = self._passed_ms = 0.0

    def bind_costs(self, costs: CostModel, curves: SmartCurves) -> None:
        """Takes the device's costs."""
        self.costs = costs

    def frontier(self, pool: CandidatePool, context: RoundContext) -> Ints | None:
        """The nodes worth expanding, or ``None`` when one more depth does not pay (or drafting rests)."""
        if not pool.blocks:
            book = self._book(context.batch_size)
            if book.resting:
                self._round = _REST
                return None
            self._round = now = self._begin(context)
            if not book.drafting(self._promising(now), self.calibration.seen >= _KNOWN):
                return None
            now.charge(0)
            return root_frontier(context.batch_size)
        now, level = self._round, len(pool.blocks)
        self._read(pool)
        if level >= self.depth:
            return None
        frontier, masses = self._expandable(pool, level)
        if not masses.any() or not self._deeper_pays(masses, level):
            return None
        now.charge(frontier.shape[1])
        return frontier

    def select(self, pool: CandidatePool, context: RoundContext) -> Bools:
        """The best number of the most probable nodes, the same number in every row: padding is verified anyway."""
        if not pool.blocks:
            return pool.top(0)
        if self._round.probability.shape[1] < pool.token_ids.shape[1]:
            self._read(pool)  # a last block without any candidate was not asked about
        _, count = self._round.best(self._round.drafts(self.nodes))
        return pool.top(count, np.where(pool.present, self._round.probability, -np.inf).astype(np.float32))

    def record(self, record: RoundRecord) -> None:
        """Corrects costs and acceptance, and keeps the books on drafting against not drafting."""
        costs, batch, nodes = self._costs(), record.batch_size, record.tree.num_nodes
        book, context = self._book(batch), float(record.context_lengths.mean())
        if self._round is _REST:
            book.rest(batch)
            if book.resting % _GLANCE == 0:  # a rest costs nothing but a glance at the clock now and then
                costs.observe_verify(record.verify_ms, nodes, batch, context)
            return
        drafted_ms, draft_ms = self._round.charged_ms, record.draft_ms
        drafting_ms = drafted_ms * costs.factors["draft"]
        expected_ms = float(costs.verify_ms(nodes, batch, context)) + drafting_ms
        costs.observe_verify(record.verify_ms, nodes, batch, context)
        if record.unread > _UNREAD:  # most of the time went into reading a prompt, or what a rest has written
            draft_ms = drafting_ms
        elif drafted_ms:
            costs.observe_draft(draft_ms, drafted_ms)
        self.calibration.observe(record.tree, record.verification)
        tokens = float(record.verification.num_accepted.sum() + batch)
        elapsed_ms = draft_ms + record.verify_ms + (costs.table.fixed_ms if nodes > 1 else 0.0)
        self._written += _PACE * (tokens - self._written)
        self._passed_ms += _PACE * (elapsed_ms - self._passed_ms)
        # A hiccup of the machine says nothing about drafting.
        book.note(drafted_ms > 0, tokens, min(elapsed_ms, _HICCUP * expected_ms) * self._round.plain_rate)
        if nodes > 1:
            book.nodes = nodes - 1

    def _costs(self) -> CostModel:
        if self.costs is None:
            raise InputError(
                "policy 'rate-optimal' needs measured costs; load it through mmsmart.load, or call bind_costs"
            )
        return self.costs

    def _book(self, batch: int) -> Book:
        """Batches up to the next power of two share their accounts."""
        return self._books.setdefault((batch - 1).bit_length(), Book())

    def _begin(self, context: RoundContext) -> _Round:
        """What the round costs at this batch and context, and the rate R, never below plain decoding's."""
        costs, batch, mean = self._costs(), context.batch_size, float(context.context_lengths.mean())
        verify_ms = costs.verify_ms(np.arange(1, self.nodes + 2), batch, mean)
        raw_draft_ms = costs.table.draft.at(np.arange(self.width + 1), batch, mean)
        plain_rate = batch / float(verify_ms[0])
        book = self._book(batch)
        rate = max(plain_rate, min(plain_rate * book.gain, self._pace()))
        return _Round(batch, verify_ms, raw_draft_ms, costs.factors["draft"], plain_rate, rate, book.nodes)

    def _pace(self) -> float:
        """Tokens a millisecond over the last rounds, whatever their batch."""
        return self._written / self._passed_ms if self._passed_ms else np.inf

    def _promising(self, now: _Round) -> bool:
        """Whether a chain of typical drafts, at its best depth, beats a plain step at the plain rate."""
        # Depths that were not reached lately are taken to be no better than those before them.
        mass = np.cumprod(np.minimum.accumulate(self.calibration.expected[1 : self.depth + 1, 0]))[: self.nodes]
        drafting = now.draft_ms[0] + np.arange(len(mass)) * now.draft_ms[1]
        times = now.verify_ms[1 : len(mass) + 1] + drafting
        values = now.batch * (1 + mass.cumsum()) - now.plain_rate * times
        return bool(values.max() > 0)

    def _read(self, pool: CandidatePool) -> None:
        """Calibrated acceptance of the newest block; learns what children to expect at this depth.

        A child is never more probable than its parent, so that the best nodes stay prefix-closed.
        """
        now, level, start = self._round, len(pool.blocks), pool.last_block.start
        parents = pool.parents[:, start:]
        # Absent candidates have no parent that is absent: exp(-inf) = 0.
        step = np.exp(pool.log_probs[:, start:].astype(np.float64) - pool.log_probs[now.rows, parents])
        present = step > 0
        own = self.calibration.conditional(step, level) * present
        now.add(own * now.probability[now.rows, parents])
        siblings = (-1, int(pool.ranks[0, -1]) + 1)  # they stand side by side, most probable first
        counts = present.reshape(siblings)[:, :CHILDREN].sum(axis=0)
        if counts[0]:
            self.calibration.expect(level, own.reshape(siblings)[:, :CHILDREN].sum(axis=0) / np.maximum(counts, 1))

    def _deeper_pays(self, masses: Floats, level: int) -> bool:
        """Whether one more depth, or several at once, are expected to beat the best choice without.

        Args:
            masses: ``[B, W]`` of the nodes to expand, the best of each row first.
            level: Depths drafted so far.
        """
        now, (rows, width) = self._round, masses.shape
        typical = np.minimum(self.calibration.expected[level + 1], self.calibration.expected[level])
        price = float(now.draft_ms[width])
        if masses[:, 0].sum() * typical[0] > now.rate * (price + now.climb_ms):
            return True  # the best child of each row alone pays for the depth
        drafts = now.drafts(self.nodes)
        value, _ = now.best(drafts)
        reach = np.cumprod(np.minimum.accumulate(self.calibration.expected[level : self.depth + 1, 0])[1:])
        columns = [drafts, (masses[:, :, None] * typical).reshape(rows, -1)]
        done = 1
        for depths in _LOOKS:
            if depths > len(reach):
                break
            columns.append((masses[:, :, None] * reach[done:depths]).reshape(rows, -1))
            price, done = price + (depths - done) * float(now.draft_ms[width]), depths
            if now.best(falling(np.concatenate(columns, axis=1), self.nodes))[0] - now.rate * price > value:
                return True
        return False

    def _expandable(self, pool: CandidatePool, level: int) -> tuple[Ints, Floats]:
        """The newest nodes worth expanding: columns ``[B, W]`` (-1 for none) and their probabilities.

        Those that pay for their own verification, and in any case the best one of each row; as many as pay for a
        wider step, at most ``width``.
        """
        now, start = self._round, pool.last_block.start
        newest = now.probability[:, start:]
        order = (-newest).argsort(axis=1, kind="stable")[:, : self.width]
        masses = newest[now.rows, order]
        chosen = masses > max(now.rate * now.margin_ms / now.batch, _LEAST)
        chosen[:, 0] = masses[:, 0] > 0
        masses = masses * chosen
        gains = masses.sum(axis=0).cumsum() * self.calibration.expected[level, 0]
        used = int((gains - now.rate * now.draft_ms[1 : len(gains) + 1]).argmax()) + 1
        return np.where(chosen, order + start, -1)[:, :used], masses[:, :used]


def falling(values: Floats, most: int) -> Floats:
    """The largest values of each row, at most ``most``, in falling order."""
    return np.sort(values, axis=1)[:, : -most - 1 : -1]


class _Round:
    """One round's costs and what has been drafted.

    Attributes:
        batch: B.
        verify_ms: ``[nodes + 1]`` verification of 1, 2, ... nodes a row, the fixed part included.
        draft_ms: ``[width + 1]`` one depth of drafting by frontier width; 0 is the opening.
        plain_rate, rate: Tokens a millisecond: of plain decoding, and R.
        rows: ``[B, 1]`` for indexing.
        probability: ``[B, M]`` calibrated probability that each candidate is accepted, 1 at the root, 0 where absent.
        margin_ms: What one more node a row costs beyond the size that was verified last; 0 where nothing is known.
        climb_ms: What one more node a row costs, on average over the sizes that are common.
        charged_ms: This round's drafting as predicted without corrections.
    """

    def __init__(
        self,
        batch: int,
        verify_ms: Floats,
        raw_draft_ms: Floats,
        factor: float,
        plain_rate: float,
        rate: float,
        usual: int,
    ) -> None:
        self.batch, self.verify_ms, self.plain_rate, self.rate = batch, verify_ms, plain_rate, rate
        self.draft_ms = raw_draft_ms * factor
        self.rows = np.arange(batch)[:, None]
        self.probability: Floats = np.ones((batch, 1))
        self.charged_ms = 0.0
        common = min(_COMMON, len(verify_ms) - 1)
        self.climb_ms = float(verify_ms[common] - verify_ms[1]) / (common - 1) if common > 1 else 0.0
        beyond = verify_ms[usual : usual + _BEYOND]
        self.margin_ms = float(beyond[-1] - beyond[0]) / len(beyond) if usual else 0.0
        self._raw_draft_ms = raw_draft_ms
        self._verify_price = rate * verify_ms

    @classmethod
    def none(cls) -> _Round:
        """Before the first round."""
        return cls(1, np.ones(1), np.ones(1), 1.0, 1.0, 1.0, 0)

    def add(self, probability: Floats) -> None:
        """Takes in the newest block's probabilities ``[B, W]``."""
        self.probability = np.concatenate([self.probability, probability], axis=1)

    def drafts(self, most: int) -> Floats:
        """The largest probabilities of each row ``[B, N]``, the root's left out, in falling order."""
        return falling(self.probability[:, 1:], most)

    def charge(self, width: int) -> None:
        """Notes one more depth."""
        self.charged_ms += float(self._raw_draft_ms[width])

    def best(self, drafts: Floats) -> tuple[float, int]:
        """The largest ``tau(n) - R verify(n)`` and its n, drafts ``[B, M]`` given in falling order."""
        gains = drafts.sum(axis=0).cumsum()
        values = gains - self._verify_price[1 : len(gains) + 1]
        index = int(values.argmax()) if len(values) else 0
        plain = -self._verify_price[0]
        if not len(values) or values[index] <= plain:
            return float(self.batch + plain), 0
        return float(self.batch + values[index]), index + 1


_REST = _Round.none()
"""The round of a rest, and what stands before the first round."""
