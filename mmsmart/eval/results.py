"""The rows of a run: one answer each, as a line of JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from mmsmart.errors import InputError
from mmsmart.eval.tasks.base import Score
from mmsmart.files import replacing
from mmsmart.stats import GenerationStats


@dataclass(frozen=True)
class Speed:
    """What an answer cost.

    Attributes:
        batch_rows: Samples answered at once.
        timed: False where a failed batch was taken apart and asked anew: correct, but no measurement.
        wall_ms: This sample's share of the batch's wall time, end to end: pictures, prompt, prefill and rounds.
        decode_ms: Its share of the wall time of the rounds.
        first_token_ms: From the batch's start to its first tokens.
        accepted_counts: Of the rounds that drafted: how many accepted 0, 1, 2, ... draft tokens.
        stats: Counts, and stage times of the rounds that the sample took part in.
    """

    batch_rows: int
    timed: bool
    wall_ms: float
    decode_ms: float
    first_token_ms: float
    accepted_counts: tuple[int, ...]
    stats: GenerationStats


@dataclass(frozen=True)
class ResultRow:
    """One sample under one policy.

    Attributes:
        sample: The sample's id.
        index: Its place in the data set.
        policy: Specification of the policy.
        template: Id of the prompt's template.
        question: The sample's question.
        references: Right answers.
        text, token_ids, finish_reason: The answer.
        score: Its official score; ``None`` without references.
        speed: What it cost; ``None`` for a failed sample.
        error: Why the sample failed; "" for an answered one.
    """

    sample: str
    index: int
    policy: str
    template: str = ""
    question: str = ""
    references: tuple[str, ...] = ()
    text: str = ""
    token_ids: tuple[int, ...] = ()
    finish_reason: str = ""
    score: Score | None = None
    speed: Speed | None = None
    error: str = ""

    def to_json(self) -> str:
        """One line without its end."""
        return json.dumps(asdict(self), ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, line: str | bytes) -> ResultRow:
        """The row that `to_json` wrote.

        Raises:
            ValueError: The line is not such a row.
        """
        try:
            record: dict[str, Any] = json.loads(line)
            score, speed = record["score"], record["speed"]
            record["score"] = None if score is None else Score(**score)
            record["speed"] = None if speed is None else _speed(speed)
            for name in ("references", "token_ids"):
                record[name] = tuple(record[name])
            return cls(**record)
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a row of results ({error!r})") from error


def _speed(record: dict[str, Any]) -> Speed:
    stats = GenerationStats(**record.pop("stats"))
    return Speed(stats=stats, accepted_counts=tuple(record.pop("accepted_counts")), **record)


def read_rows(path: Path) -> Iterator[ResultRow]:
    """The rows of a file, one at a time.

    Raises:
        InputError: A line that is no row.
    """
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                yield ResultRow.from_json(line)
            except ValueError as error:
                raise InputError(f"line {number} of {path} is damaged ({error}); remove it and run again") from error


@dataclass
class Totals:
    """Sums over the timed answers of one policy, from which pooled rates come (never means of rates)."""

    samples: int = 0
    wall_ms: float = 0.0
    decode_ms: float = 0.0
    first_token_ms: float = 0.0
    accepted_counts: list[int] = field(default_factory=list)
    stats: GenerationStats = field(default_factory=GenerationStats)

    def add(self, speed: Speed) -> None:
        """Adds an answer."""
        self.samples += 1
        self.wall_ms += speed.wall_ms
        self.decode_ms += speed.decode_ms
        self.first_token_ms += speed.first_token_ms
        missing = len(speed.accepted_counts) - len(self.accepted_counts)
        self.accepted_counts.extend([0] * missing)
        for accepted, rounds in enumerate(speed.accepted_counts):
            self.accepted_counts[accepted] += rounds
        for item in fields(GenerationStats):
            setattr(self.stats, item.name, getattr(self.stats, item.name) + getattr(speed.stats, item.name))

    @property
    def ms_per_token(self) -> float | None:
        """End-to-end wall time of a new token."""
        return self.wall_ms / self.stats.new_tokens if self.stats.new_tokens else None

    @property
    def decode_ms_per_token(self) -> float | None:
        """Wall time of the rounds for each token after the first, which the prefill writes."""
        tokens = self.stats.new_tokens - self.samples
        return self.decode_ms / tokens if tokens > 0 else None

    @property
    def accepted_by_depth(self) -> list[float]:
        """Share of the drafting rounds that accepted at least 1, 2, ... draft tokens."""
        rounds = sum(self.accepted_counts)
        return [sum(self.accepted_counts[depth:]) / rounds for depth in range(1, len(self.accepted_counts))]

    def summary(self, baseline: Totals | None) -> dict[str, Any]:
        """Pooled figures, ready for JSON; the speedups need the plain decoding of the same samples."""
        stats, count = self.stats, max(self.samples, 1)
        plain = Totals() if baseline is None else baseline
        names = ("prompt_tokens", "new_tokens", "rounds", "drafted", "accepted")
        stages = ("prepare_ms", "vision_ms", "prefill_ms", "draft_ms", "verify_ms", "other_ms")
        return {
            "samples": self.samples,
            "speedup": _ratio(plain.ms_per_token, self.ms_per_token),
            "decode_speedup": _ratio(plain.decode_ms_per_token, self.decode_ms_per_token),
            "tokens_per_s": _ratio(1e3, self.ms_per_token),
            "decode_tokens_per_s": _ratio(1e3, self.decode_ms_per_token),
            "acceptance_rate": stats.acceptance_rate,
            "mean_acceptance_length": stats.mean_acceptance_length,
            "first_token_ms": self.first_token_ms / count,
            "wall_ms": self.wall_ms,
            "decode_ms": self.decode_ms,
            **{name: getattr(stats, name) for name in names},
            "mean_stage_ms": {name: getattr(stats, name) / count for name in stages},
            "accepted_counts": self.accepted_counts,
            "accepted_by_depth": self.accepted_by_depth,
        }


def _ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above and below else None


def write_json(path: Path, record: Mapping[str, Any]) -> None:
    """Writes a file whole or not at all."""
    with replacing(path) as draft:
        draft.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> dict[str, Any]:
    """Reads what `write_json` wrote.

    Raises:
        InputError: The file is damaged.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path} is damaged ({error}); remove it and run again") from error
    if not isinstance(record, dict):
        raise InputError(f"{path} is no record of a run; remove it and run again")
    return record
