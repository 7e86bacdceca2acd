"""The questions of a benchmark, and drafters that only a benchmark wants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mmsmart.config import SamplingParams
from mmsmart.drafters.base import Drafter, DraftSession, PromptContext, RoundOutcome, TargetFacts
from mmsmart.engine import Request
from mmsmart.training.drafter.questions import foreign_questions
from mmsmart.training.pictures import draw_picture
from mmsmart.training.questions import heldout_samples
from mmsmart.tree import CandidatePool, Candidates, Ints

_FOREIGN_SEED = 900
"""Far from the seeds that drafters are trained on."""
_SHORT = 12
"""Most tokens of a short answer of the mixed workload."""


def requests(count: int, seed: int, sampling: SamplingParams, workload: str = "charts") -> list[Request]:
    """Held-out questions.

    Args:
        count: How many.
        seed: Of the generators.
        sampling: For every question.
        workload: ``charts``: drawn charts and scenes, all kinds in turn, answers of a few to some sixty tokens, easy
            for the embedded drafters. ``foreign``: made-up pictures unlike those, hard for them. ``mixed``: both in
            turn, and every other pair of answers cut short.
    """
    easy = [Request(draw_picture(sample.facts), sample.question, sampling) for sample in heldout_samples(count, seed)]
    if workload == "charts":
        return easy
    hard = [Request(one.pictures(), one.text, sampling) for one in foreign_questions(count, _FOREIGN_SEED + seed)]
    if workload == "foreign":
        return hard
    short = replace(sampling, max_new_tokens=min(_SHORT, sampling.max_new_tokens))
    mixed = [request for pair in zip(easy, hard, strict=True) for request in pair][:count]
    return [replace(one, sampling=short) if place % 4 > 1 else one for place, one in enumerate(mixed)]


class WrongDrafter(Drafter):
    """Another drafter whose every token is replaced by its neighbour: it costs the same and is all but never right."""

    def __init__(self, drafter: Drafter, vocab_size: int = 0) -> None:
        self.drafter, self.vocab_size = drafter, vocab_size
        self.needs_hidden_states = drafter.needs_hidden_states  # type: ignore[misc]
        self.observes_top_k = drafter.observes_top_k  # type: ignore[misc]

    def bind(self, target: TargetFacts) -> Drafter:
        """Binds the drafter inside."""
        return WrongDrafter(self.drafter.bind(target), target.vocab_size)

    def open(self, prompts: Sequence[PromptContext], roots: Ints) -> DraftSession:
        """Opens the drafter inside."""
        return _WrongSession(self.drafter.open(prompts, roots), self.vocab_size)


class _WrongSession(DraftSession):
    def __init__(self, session: DraftSession, vocab_size: int) -> None:
        self._session, self._vocab_size = session, vocab_size

    def start_round(self, roots: Ints, depth_limit: Ints) -> None:
        self._session.start_round(roots, depth_limit)

    def expand(self, pool: CandidatePool, frontier: Ints, top_k: int) -> Candidates:
        right = self._session.expand(pool, frontier, top_k)
        return Candidates((right.token_ids + 1) % self._vocab_size, right.log_probs)

    def commit(self, outcome: RoundOutcome) -> None:
        self._session.commit(outcome)

    def select_rows(self, rows: Sequence[int]) -> Any:
        self._session.select_rows(rows)
