"""The policy port: how far to grow a round's trees, and which of the candidates to verify.

A policy sees numbers only: the candidates with the drafter's probabilities, and the round's limits. It knows no model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from mmsmart.config import require_whole
from mmsmart.costs.calibration import Calibration
from mmsmart.costs.fit import SmartCurves
from mmsmart.costs.online import CostModel
from mmsmart.tree import ABSENT, Bools, CandidatePool, Ints, TreeBatch
from mmsmart.verification import Verification


@dataclass(frozen=True)
class RoundContext:
    """What is known before a round is drafted.

    Attributes:
        depth_limit: ``[B]`` deepest node that can still enter the answer (the bonus token needs the last place).
        context_lengths: ``[B]`` committed tokens, prompt included.
    """

    depth_limit: Ints
    context_lengths: Ints

    @property
    def batch_size(self) -> int:
        """B."""
        return len(self.depth_limit)


@dataclass(frozen=True)
class RoundRecord:
    """What a round cost and brought, for policies that learn.

    Attributes:
        draft_ms, verify_ms: Measured wall time.
        tree, verification: What was verified, and what came of it.
        context_lengths: ``[B]`` committed tokens before the round, prompt included.
        unread: Tokens a row, at most, that the drafter had not read when the round began: usually those of the round
            before, but after a rest all of the rest's, and in its first round the whole prompt.
    """

    draft_ms: float
    verify_ms: float
    tree: TreeBatch
    verification: Verification
    context_lengths: Ints
    unread: int = 0

    @property
    def batch_size(self) -> int:
        """B."""
        return len(self.context_lengths)


class TreePolicy(ABC):
    """Decides the shape of every round's draft trees."""

    top_k: int = 1
    """Children wanted for each expanded node."""
    needs_costs: ClassVar[bool] = False
    """Whether `bind_costs` must be called before the first round."""
    calibration: Calibration | None = None
    """What a policy learns of how often its drafter is right, if it does; kept beside the device's profile."""

    def bind_costs(self, costs: CostModel, curves: SmartCurves) -> None:  # noqa: B027 - most policies do not ask
        """Takes the device's measured costs, and SMART's curves fitted to them."""

    @abstractmethod
    def frontier(self, pool: CandidatePool, context: RoundContext) -> Ints | None:
        """Which pool columns to expand next, ``[B, W]`` with -1 for none; ``None`` ends the drafting."""

    @abstractmethod
    def select(self, pool: CandidatePool, context: RoundContext) -> Bools:
        """Which nodes to verify, ``[B, M]``: the root and a prefix-closed set of candidates."""

    def record(self, record: RoundRecord) -> None:  # noqa: B027 - most policies do not learn
        """Takes note of a round."""


def root_frontier(batch: int) -> Ints:
    """The frontier that expands every root."""
    return np.zeros((batch, 1), np.int64)


def layer_frontier(pool: CandidatePool, keep: Bools) -> Ints | None:
    """Columns of the newest block that are kept, most probable first; ``None`` when there are none."""
    start = pool.last_block.start
    scores = np.where(keep[:, start:], pool.log_probs[:, start:], ABSENT)
    width = int((scores > ABSENT).sum(axis=1).max())
    if width == 0:
        return None
    order = np.argsort(-scores, axis=1, kind="stable")[:, :width]
    return np.where(np.take_along_axis(scores, order, axis=1) > ABSENT, order + start, -1)


def positive(policy: str, **options: int) -> None:
    """Refuses options below 1.

    Raises:
        InputError: Names the option and its value.
    """
    for name, value in options.items():
        require_whole(f"policy {policy!r}: {name}", value, 1)
