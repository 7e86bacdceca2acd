"""The arms of a benchmark: mmsmart under one policy, with the policy's own time told apart."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from mmsmart.costs.fit import SmartCurves
from mmsmart.costs.online import CostModel
from mmsmart.engine import Engine, Request, output_of
from mmsmart.policies.base import RoundContext, RoundRecord, TreePolicy
from mmsmart.stats import Stopwatch
from mmsmart.tree import Bools, CandidatePool, Ints


@dataclass
class Tally:
    """What one pass over all questions cost; times in milliseconds.

    Attributes:
        token_ids: Each answer.
        wall_ms: From the first picture to the last token.
        decode_ms: Without vision and prefill, up to the first token.
        draft_ms, verify_ms, policy_ms, other_ms: Parts of ``decode_ms``; zero where the arm cannot tell.
        rounds: Of batches.
        row_rounds: Rounds, each counted once for every row in it.
        drafted, accepted: Draft tokens over all rows.
        nodes, depth: Summed over rounds: nodes a row (root included), depths drafted.
        cost_errors: Of each verification, measured over predicted minus one; where costs are predicted.
    """

    token_ids: list[list[int]] = field(default_factory=list)
    wall_ms: float = 0.0
    decode_ms: float = 0.0
    draft_ms: float = 0.0
    verify_ms: float = 0.0
    policy_ms: float = 0.0
    other_ms: float = 0.0
    rounds: int = 0
    row_rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    nodes: int = 0
    depth: int = 0
    cost_errors: list[float] = field(default_factory=list)


class Arm(Protocol):
    """One way of answering."""

    name: str

    def answer(self, requests: Sequence[Request], batch_size: int) -> Tally:
        """Answers all requests, ``batch_size`` at a time."""


class EngineArm:
    """mmsmart under one policy."""

    def __init__(self, name: str, engine: Engine) -> None:
        self.name = name
        self._policy = TimedPolicy(engine.policy)
        self._engine = Engine(engine.target, engine.drafter, self._policy)

    def answer(self, requests: Sequence[Request], batch_size: int) -> Tally:
        """Answers all requests, ``batch_size`` at a time."""
        tally = Tally()
        self._policy.reset()
        watch = Stopwatch(self._engine.target.device)
        for start in range(0, len(requests), batch_size):
            self._batch(requests[start : start + batch_size], tally)
        tally.wall_ms = watch.lap()
        tally.policy_ms = self._policy.elapsed_ms
        tally.draft_ms -= self._policy.drafting_ms
        tally.other_ms = tally.decode_ms - tally.draft_ms - tally.verify_ms - tally.policy_ms
        tally.cost_errors = self._policy.cost_errors
        return tally

    def _batch(self, requests: Sequence[Request], tally: Tally) -> None:
        engine = self._engine
        engine.target.forget_images()  # or the first arm would pay for the others' pictures
        prompts = [engine.prepare(request) for request in requests]
        batch = engine.start(prompts)
        watch = Stopwatch(engine.target.device)
        while not batch.done:
            rows = len(batch.running)
            done = engine.step(batch)
            tally.rounds += 1
            tally.row_rounds += rows
            tally.draft_ms += done.record.draft_ms
            tally.verify_ms += done.record.verify_ms
            tally.nodes += done.record.tree.num_nodes
            tally.depth += len(done.pool.blocks)
        tally.decode_ms += watch.lap()
        tally.drafted += sum(prompt.stats.drafted for prompt in prompts)
        tally.accepted += sum(prompt.stats.accepted for prompt in prompts)
        tally.token_ids += [output_of(prompt).token_ids for prompt in prompts]


class TimedPolicy(TreePolicy):
    """A policy that is told what its own arithmetic costs.

    Attributes:
        elapsed_ms: In all of its methods.
        drafting_ms: In those that run while drafting.
        cost_errors: Measured over predicted verification, minus one.
    """

    def __init__(self, policy: TreePolicy) -> None:
        self.policy = policy
        self.top_k = policy.top_k
        self._records = 0
        self.reset()

    def reset(self) -> None:
        """Starts counting anew; the policy keeps what it has learnt."""
        self.elapsed_ms = self.drafting_ms = 0.0
        self.cost_errors: list[float] = []

    def bind_costs(self, costs: CostModel, curves: SmartCurves) -> None:
        """Handed on."""
        self.policy.bind_costs(costs, curves)

    def frontier(self, pool: CandidatePool, context: RoundContext) -> Ints | None:
        """Handed on, timed."""
        start = time.perf_counter()
        frontier = self.policy.frontier(pool, context)
        self._drafting(start)
        return frontier

    def select(self, pool: CandidatePool, context: RoundContext) -> Bools:
        """Handed on, timed."""
        start = time.perf_counter()
        kept = self.policy.select(pool, context)
        self._drafting(start)
        return kept

    def record(self, record: RoundRecord) -> None:
        """Handed on, timed; before it, the prediction is compared with what was measured."""
        costs: Any = getattr(self.policy, "costs", None)
        self._records += 1
        if isinstance(costs, CostModel) and self._records % 4 == 0:  # seldom: it is no part of the arm
            nodes, context = record.tree.num_nodes, float(np.mean(record.context_lengths))
            predicted = float(costs.target_ms(nodes, record.batch_size, context))
            self.cost_errors.append(record.verify_ms / predicted - 1)
        start = time.perf_counter()
        self.policy.record(record)
        self.elapsed_ms += 1e3 * (time.perf_counter() - start)

    def _drafting(self, start: float) -> None:
        spent = 1e3 * (time.perf_counter() - start)
        self.elapsed_ms += spent
        self.drafting_ms += spent
