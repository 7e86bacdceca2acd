"""What was measured: counts and wall-clock milliseconds, of a round and of a whole answer."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, fields

import torch


class Stopwatch:
    """Laps in milliseconds, with the device synchronised at each."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._last = self._now()

    def lap(self) -> float:
        """Milliseconds since the last lap (or the start)."""
        now = self._now()
        elapsed, self._last = now - self._last, now
        return elapsed * 1e3

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()


@dataclass(frozen=True)
class RoundStats:
    """One draft-verify-commit round of a whole batch.

    Attributes:
        draft_ms, verify_ms, other_ms: Wall time of drafting (policy included), of the target's forward, of the rest.
        drafted, accepted: Draft tokens of each row that was in the batch, end-of-answer trimming applied.
    """

    draft_ms: float
    verify_ms: float
    other_ms: float
    drafted: tuple[int, ...]
    accepted: tuple[int, ...]


@dataclass
class GenerationStats:
    """Counts and wall time of one answer; in a batch, the time of the rounds that the request took part in.

    Attributes:
        prompt_tokens: Prompt length, picture tokens included.
        new_tokens: Tokens written.
        rounds: Draft-verify rounds, i.e. target forwards after the prefill (which emits the first token).
        drafted: Draft tokens verified, the root excluded.
        accepted: Draft tokens kept in the answer.
        prepare_ms: Wall time of reading the pictures and writing the prompt.
        vision_ms, prefill_ms: Of vision tower and projector, and of the language model's prefill.
        draft_ms, verify_ms, other_ms: Of drafting, of verifying, and of the rest of the rounds.
    """

    prompt_tokens: int = 0
    new_tokens: int = 0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    prepare_ms: float = 0.0
    vision_ms: float = 0.0
    prefill_ms: float = 0.0
    draft_ms: float = 0.0
    verify_ms: float = 0.0
    other_ms: float = 0.0

    @property
    def total_ms(self) -> float:
        """Wall time from the request to its last token."""
        return self.prepare_ms + self.vision_ms + self.prefill_ms + self.decode_ms

    @property
    def decode_ms(self) -> float:
        """Wall time of the rounds."""
        return self.draft_ms + self.verify_ms + self.other_ms

    @property
    def tokens_per_s(self) -> float:
        """New tokens per second of total wall time."""
        return 1e3 * self.new_tokens / self.total_ms if self.total_ms else 0.0

    @property
    def decode_tokens_per_s(self) -> float:
        """Tokens after the first one per second of decoding."""
        return 1e3 * max(self.new_tokens - 1, 0) / self.decode_ms if self.decode_ms else 0.0

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens a round, bonus included: ``1 + accepted / rounds``."""
        return 1 + self.accepted / self.rounds if self.rounds else 1.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted over drafted; 0 when nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    def add_round(self, stats: RoundStats, row: int) -> None:
        """Adds one round, in which this request was ``row``."""
        self.rounds += 1
        self.drafted += stats.drafted[row]
        self.accepted += stats.accepted[row]
        self.draft_ms += stats.draft_ms
        self.verify_ms += stats.verify_ms
        self.other_ms += stats.other_ms

    def as_dict(self) -> dict[str, float]:
        """Counts, times and derived rates, ready for JSON."""
        derived = ("total_ms", "tokens_per_s", "decode_tokens_per_s", "mean_acceptance_length", "acceptance_rate")
        values: dict[str, float] = {f.name: getattr(self, f.name) for f in fields(self)}
        return values | {name: getattr(self, name) for name in derived}


def pooled(stats: Iterable[GenerationStats]) -> GenerationStats:
    """Sums counts and times over answers, so that its rates are pooled rates, not means of rates."""
    total = GenerationStats()
    for item in stats:
        for f in fields(GenerationStats):
            setattr(total, f.name, getattr(total, f.name) + getattr(item, f.name))
    return total
