"""Plays recorded acceptance through a policy on a device of measured costs: what its rounds would bring there."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from acceptance import Trace

from mmsmart.costs.online import CostModel
from mmsmart.costs.profiler import Profile
from mmsmart.costs.table import CostTable
from mmsmart.drafters.base import DraftSession, RoundOutcome
from mmsmart.drafting import grow
from mmsmart.policies.base import RoundContext, RoundRecord, TreePolicy
from mmsmart.tree import CandidatePool, Candidates, Ints, TreeBatch
from mmsmart.verification import accept

_DEEPEST = 64
"""Depth limit of the rounds: an answer's end is not known beforehand."""


@dataclass(frozen=True)
class Prediction:
    """A policy on a simulated device, its first rounds left out.

    Attributes:
        speedup: Tokens a millisecond over those of plain decoding on the same device.
        speedup_with_policy: The same with the policy's own time, taken where the replay ran.
        mean_acceptance_length: Emitted tokens a round and row.
        nodes, depths: Mean verified nodes a row (root included, padding too) and drafted depths of a round.
        draft_ms, verify_ms, other_ms, policy_ms: Means of a round.
    """

    speedup: float
    speedup_with_policy: float
    mean_acceptance_length: float
    nodes: float
    depths: float
    draft_ms: float
    verify_ms: float
    other_ms: float
    policy_ms: float


class Device:
    """A batch of recorded answers on a device of measured costs; a row that ends goes on with another answer.

    Args:
        trace: What was recorded.
        table: The device's costs.
        batch: Rows.
        context: Committed slots at which costs are read.
        plain_other_ms: A plain round outside the target's forward; rounds with drafts take the table's fixed part.
    """

    def __init__(self, trace: Trace, table: CostTable, batch: int, context: int, plain_other_ms: float) -> None:
        self.trace, self.table, self.plain_other_ms = trace, table, plain_other_ms
        self._answers = np.arange(batch) * max(1, trace.answers // batch) % trace.answers
        self._positions = trace.starts[self._answers].copy()
        self._lengths = np.full(batch, context, np.int64)

    @property
    def batch(self) -> int:
        """Rows."""
        return len(self._positions)

    def plain_ms(self) -> float:
        """A round of plain decoding."""
        return float(self._verify_ms(1)) + self.plain_other_ms

    def round(self, policy: TreePolicy) -> tuple[float, ...]:
        """One round: emitted tokens, nodes, depths, and milliseconds of draft, verify, the rest and the policy."""
        batch = len(self._positions)
        session = ReplaySession(self.trace, self._positions)
        context = RoundContext(np.full(batch, _DEEPEST, np.int64), self._lengths)
        start = time.perf_counter()
        tree = grow(policy, session, np.zeros(batch, np.int64), context)
        policy_ms = 1e3 * (time.perf_counter() - start) - session.spent_ms
        sizes = [0, *session.widths[1:]] if session.widths else []
        draft_ms = float(sum(self.table.draft.at(w, batch, float(self._lengths[0])) for w in sizes))
        verify_ms = self._verify_ms(tree.num_nodes)
        verification = accept(tree, session.chosen(tree))
        policy.record(RoundRecord(draft_ms, verify_ms, tree, verification, self._lengths))
        emitted = self._advance(verification.num_accepted + 1)
        other_ms = self.table.fixed_ms if tree.num_nodes > 1 else self.plain_other_ms
        return float(emitted), tree.num_nodes, len(sizes), draft_ms, verify_ms, other_ms, policy_ms

    def _verify_ms(self, nodes: int) -> float:
        return float(self.table.verify.at(nodes, len(self._positions), float(self._lengths[0])))

    def _advance(self, counts: Ints) -> int:
        """Moves on by these tokens, cut at the end of each answer; returns how many were taken."""
        ends = self.trace.starts[self._answers + 1]
        taken = np.minimum(counts, ends - self._positions)
        self._positions = self._positions + taken
        over = self._positions >= ends
        self._answers[over] = (self._answers[over] + 1) % self.trace.answers
        self._positions[over] = self.trace.starts[self._answers[over]]
        return int(taken.sum())


def predict(device: Device, policy: TreePolicy, costs: Profile, *, rounds: int, warm: int) -> Prediction:
    """Plays ``warm`` rounds for the policy to learn, then ``rounds`` that count."""
    policy.bind_costs(CostModel(costs.table), costs.curves)
    for _ in range(warm):
        device.round(policy)
    played = np.array([device.round(policy) for _ in range(rounds)])
    tokens, nodes, depths, draft_ms, verify_ms, other_ms, policy_ms = played.mean(axis=0).tolist()
    batch = device.batch
    elapsed_ms, plain = draft_ms + verify_ms + other_ms, batch / device.plain_ms()
    values = (tokens / elapsed_ms / plain, tokens / (elapsed_ms + policy_ms) / plain, tokens / batch, nodes, depths)
    return Prediction(*(round(v, 4) for v in (*values, draft_ms, verify_ms, other_ms, policy_ms)))


class ReplaySession(DraftSession):
    """Answers from a trace, one position a row: on and off the target's path a depth has the same distribution."""

    def __init__(self, trace: Trace, positions: Ints) -> None:
        self.trace, self.positions = trace, positions
        self.widths: list[int] = []
        self.spent_ms = 0.0

    def start_round(self, roots: Ints, depth_limit: Ints) -> None:
        """Nothing to do."""

    def expand(self, pool: CandidatePool, frontier: Ints, top_k: int) -> Candidates:
        """The child of rank r is token r + 1."""
        start = time.perf_counter()
        rows = np.arange(len(frontier))[:, None]
        depths = pool.depths[rows, np.maximum(frontier, 0)]
        self.widths.append(frontier.shape[1])
        levels = np.minimum(depths, self.trace.log_probs.shape[1] - 1)
        found = self.trace.log_probs[self.positions[:, None], levels][:, :, :top_k]
        tokens = np.broadcast_to(np.arange(1, found.shape[2] + 1), found.shape)
        self.spent_ms += 1e3 * (time.perf_counter() - start)
        return Candidates(tokens, found)

    def chosen(self, tree: TreeBatch) -> Ints:
        """``[B, N]`` the target's token after every node on its path; 0, which is never drafted, where unknown."""
        depth = self.trace.ranks.shape[1]
        known = self.trace.ranks[self.positions[:, None], np.minimum(tree.depths, depth - 1)].astype(np.int64) + 1
        return np.where(tree.depths < depth, known, 0)

    def commit(self, outcome: RoundOutcome) -> None:
        """Nothing to do."""

    def select_rows(self, rows: Sequence[int]) -> None:
        """Keeps these rows."""
        self.positions = self.positions[np.asarray(rows, np.int64)]
