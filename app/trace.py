"""What a round did and why, small enough to be kept for every round of an answer."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmsmart.batch import Batch
from mmsmart.costs.calibration import Calibration
from mmsmart.costs.online import CostModel
from mmsmart.engine import Engine, Round
from mmsmart.tree import CandidatePool, TreeBatch

Floats = NDArray[np.float64]

MOST_DROPPED = 12
"""Candidates shown that were drafted and not verified; the rest is counted only."""
MOST_DRAFTS = 64
"""Drafts up to which costs and gains are followed."""
_VISIBLE = {"\n": "\u21b5", "\t": "\u21e5"}


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a round's draft tree.

    Attributes:
        text: Its token, as shown.
        parent: Its parent's place among the nodes, -1 for the root.
        depth: Drafts from the root.
        probability: The drafter's, that it and all before it are right.
        gain: The same as the policy reckons it: what the node adds to the expected tokens.
        kept, accepted: Whether it was verified, and whether it entered the answer.
    """

    text: str
    parent: int
    depth: int
    probability: float
    gain: float
    kept: bool
    accepted: bool


@dataclass(frozen=True, slots=True)
class RoundTrace:
    """One round of one answer.

    Attributes:
        number: From 1.
        nodes: The root, every verified draft, and the best of those that were dropped; parents first.
        bonus: The target's own token after the accepted path; empty when the answer had ended before it.
        num_dropped: Candidates that were drafted and not verified, shown or not.
        best_gains: Gains of the best candidates, largest first, at most `MOST_DRAFTS`.
        verify_ms_of: Predicted milliseconds of verifying 0, 1, 2, ... drafts; the round's fixed part included.
        draft_ms, verify_ms: Measured.
        tokens: Taken by the answer.
        context: Committed tokens before the round.
        calibrated: Whether the policy corrects the drafter's probabilities.
    """

    number: int
    nodes: tuple[Node, ...]
    bonus: str
    num_dropped: int
    best_gains: tuple[float, ...]
    verify_ms_of: tuple[float, ...]
    draft_ms: float
    verify_ms: float
    tokens: int
    context: int
    calibrated: bool

    @property
    def num_drafts(self) -> int:
        """Verified drafts."""
        return sum(node.kept for node in self.nodes) - 1

    @property
    def num_accepted(self) -> int:
        """Accepted drafts."""
        return sum(node.accepted for node in self.nodes) - 1

    @property
    def expected(self) -> float:
        """Expected tokens of the verified tree, bonus included."""
        return 1.0 + sum(node.gain for node in self.nodes[1:] if node.kept)

    def rate(self, tokens: float, drafts: int) -> float:
        """Expected tokens a second when so many drafts are verified, drafting as measured."""
        return 1e3 * tokens / (self.draft_ms + self.verify_ms_of[min(drafts, len(self.verify_ms_of) - 1)])


@dataclass(frozen=True, slots=True)
class Reason:
    """What adding one node costs and brings.

    Attributes:
        place: The node's place in the trace.
        cost_ms: Verification with it less verification without it.
        rate_before, rate_after: Expected tokens a second without and with it.
    """

    place: int
    cost_ms: float
    rate_before: float
    rate_after: float


def reasons(trace: RoundTrace) -> list[Reason]:
    """The verified nodes in order of gain, one after the other, then each dropped one added to the verified tree."""
    order = sorted(range(1, len(trace.nodes)), key=lambda place: -trace.nodes[place].gain)
    found: list[Reason] = []
    tokens, drafts = 1.0, 0
    for place in sorted(order, key=lambda place: not trace.nodes[place].kept):
        node = trace.nodes[place]
        costs = trace.verify_ms_of
        at = min(drafts, len(costs) - 2)
        before, after = trace.rate(tokens, drafts), trace.rate(tokens + node.gain, drafts + 1)
        found.append(Reason(place, costs[at + 1] - costs[at], before, after))
        if node.kept:
            tokens, drafts = tokens + node.gain, drafts + 1
    return found


class Watcher:
    """Makes traces: what a policy knew is noted before each round, as rounds teach it.

    Args:
        engine: Whose rounds are watched, one answer at a time.
        costs: The device's, for policies that keep none of their own.
    """

    def __init__(self, engine: Engine, costs: CostModel) -> None:
        self._engine = engine
        own = getattr(engine.policy, "costs", None)
        self._costs: CostModel = own if own is not None else costs
        self._number = 0
        self._calibration: Calibration | None = None
        self._verify_ms: tuple[float, ...] = ()
        self._context = 0

    def before(self, batch: Batch) -> None:
        """Notes what the policy goes by."""
        self._calibration = copy.deepcopy(getattr(self._engine.policy, "calibration", None))
        self._context = int(batch.context().context_lengths[0])
        times = self._costs.verify_ms(np.arange(1, MOST_DRAFTS + 2), 1, self._context)
        self._verify_ms = tuple(float(ms) for ms in times)

    def after(self, done: Round) -> RoundTrace:
        """The trace of the round that followed."""
        self._number += 1
        record, pool = done.record, done.pool
        taken = done.taken[0]
        kept, accepted = _places(pool, record.tree, record.verification.paths[0, : taken + 1])
        bonus = int(record.verification.bonus_token_id[0])
        probability = np.exp(pool.log_probs[0].astype(np.float64))
        gains = self._gains(pool, probability)
        shown = _shown(gains, kept, pool.present[0])
        where = {column: place for place, column in enumerate(shown)}
        nodes = tuple(
            Node(
                text=self._text(int(pool.token_ids[0, column])),
                parent=where.get(int(pool.parents[0, column]), -1),
                depth=int(pool.depths[0, column]),
                probability=float(probability[column]),
                gain=float(gains[column]),
                kept=bool(kept[column]),
                accepted=bool(accepted[column]),
            )
            for column in shown
        )
        return RoundTrace(
            number=self._number,
            nodes=nodes,
            bonus=self._text(bonus) if taken > record.verification.num_accepted[0] else "",
            num_dropped=int(pool.present[0].sum() - kept.sum()),
            best_gains=tuple(float(gain) for gain in np.sort(gains[1:])[::-1][:MOST_DRAFTS] if gain > 0),
            verify_ms_of=self._verify_ms,
            draft_ms=record.draft_ms,
            verify_ms=record.verify_ms,
            tokens=taken,
            context=self._context,
            calibrated=self._calibration is not None,
        )

    def _gains(self, pool: CandidatePool, probability: Floats) -> Floats:
        """Each candidate's chance of being accepted ``[M]``, corrected as the policy does; 1 at the root."""
        if self._calibration is None:
            return probability
        gains = np.ones_like(probability)
        for column in range(1, len(gains)):  # parents stand first
            parent = int(pool.parents[0, column])
            step = probability[column] / probability[parent] if probability[parent] > 0 else 0.0
            own = self._calibration.conditional(np.array([step]), pool.depths[0, column : column + 1])
            gains[column] = gains[parent] * float(own[0]) if pool.present[0, column] else 0.0
        return gains

    def _text(self, token_id: int) -> str:
        text: str = self._engine.target.tokenizer.decode([token_id])
        shown = "".join(_VISIBLE.get(c, c if c.isprintable() else "\u00b7") for c in text.strip(" "))
        return shown or "\u2423"


def _places(pool: CandidatePool, tree: TreeBatch, path: NDArray[np.int64]) -> tuple[NDArray[np.bool_], ...]:
    """Which of row 0's candidates were verified, and which accepted: siblings are distinct, so paths name nodes."""
    numbers = {(int(p), int(t)): n for n, (p, t) in enumerate(zip(tree.parents[0], tree.token_ids[0], strict=True))}
    verified = {0: 0}
    kept = np.zeros(pool.token_ids.shape[1], np.bool_)
    accepted = kept.copy()
    kept[0] = accepted[0] = True
    on_path = {int(node) for node in path if node >= 0}
    for column in range(1, len(kept)):
        parent = verified.get(int(pool.parents[0, column]))
        node = None if parent is None else numbers.get((parent, int(pool.token_ids[0, column])))
        if node is not None and tree.valid[0, node] and pool.present[0, column]:
            verified[column] = node
            kept[column], accepted[column] = True, node in on_path
    return kept, accepted


def _shown(gains: Floats, kept: NDArray[np.bool_], present: NDArray[np.bool_]) -> list[int]:
    """Columns to show, in the pool's order: the verified, and the best dropped ones below shown parents."""
    dropped = [int(column) for column in np.argsort(-gains, kind="stable") if present[column] and not kept[column]]
    return sorted([*np.flatnonzero(kept).tolist(), *dropped[:MOST_DROPPED]])
