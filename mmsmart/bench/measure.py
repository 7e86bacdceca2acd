"""Runs the arms in turn over the same questions, and sums up: medians over the repeats, with their spread."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tqdm import tqdm

from mmsmart.bench.arms import Arm, Tally
from mmsmart.engine import Request
from mmsmart.errors import MmsmartError

logger = logging.getLogger(__name__)

FAILURES = (MmsmartError, ValueError, RuntimeError, AttributeError, TypeError, LookupError, AssertionError)
"""What another library's arm may raise without ending the benchmark."""


@dataclass(frozen=True)
class Measured:
    """One arm's passes at one batch size; ``failure`` says why there are none."""

    name: str
    batch_size: int
    tallies: tuple[Tally, ...]
    failure: str = ""


def measure(
    arms: Sequence[Arm], questions: Sequence[Request], batch_size: int, repeats: int, bar: tqdm[Any]
) -> list[Measured]:
    """Times every arm ``repeats`` times after a warm-up, in an order that turns by one each time.

    Without any repeats the warm-up itself is what is returned: one cold pass, for a first look.

    Args:
        arms: What is compared; one that raises is left out from then on.
        questions: The same for every arm.
        batch_size: Questions answered at once.
        repeats: Timed passes.
        bar: Advances by one each pass.
    """
    failures: dict[str, str] = {}
    tallies: dict[str, list[Tally]] = {arm.name: [] for arm in arms}
    for turn in range(repeats + 1):
        shift = turn % len(arms)
        for arm in (*arms[shift:], *arms[:shift]):
            if arm.name not in failures:
                try:
                    tally = arm.answer(questions, batch_size)
                except FAILURES as error:
                    failures[arm.name] = " ".join(str(error).split())[:200] or type(error).__name__
                    logger.warning("%s is left out at batch %d: %s", arm.name, batch_size, failures[arm.name])
                else:
                    if turn or not repeats:  # the first pass warms caches, and policies that learn
                        tallies[arm.name].append(tally)
            bar.update()
    for name in failures:
        tallies[name].clear()
    return [Measured(name, batch_size, tuple(passes), failures.get(name, "")) for name, passes in tallies.items()]


def summary(measured: Measured, plain: Measured, reference: Measured | None) -> dict[str, Any]:
    """One row of the table: medians over passes; ratios are medians of the ratios of passes of the same turn.

    Args:
        measured: The arm.
        plain: Our plain decoding.
        reference: transformers' ``generate``, if it ran.
    """
    row: dict[str, Any] = {"arm": measured.name, "batch": measured.batch_size}
    if not measured.tallies:
        return row | {"failure": measured.failure}
    middle = _medians(measured.tallies)
    last, count = measured.tallies[-1], len(measured.tallies[-1].token_ids)
    tokens = sum(len(ids) for ids in last.token_ids)
    row["wall_ms"] = middle(lambda t: t.wall_ms)
    row["spread"] = _spread([t.wall_ms for t in measured.tallies])
    row["speedup"] = _ratio(plain, measured, lambda t: t.wall_ms)
    row["decode_speedup"] = _ratio(plain, measured, lambda t: t.decode_ms)
    if reference is not None and reference.tallies:
        row["speedup_over_generate"] = _ratio(reference, measured, lambda t: t.wall_ms)
        row["decode_speedup_over_generate"] = _ratio(reference, measured, lambda t: t.decode_ms)
    row["tokens_per_s"] = 1e3 * tokens / row["wall_ms"]
    row["identical"] = sum(a == b for a, b in zip(last.token_ids, plain.tallies[-1].token_ids, strict=True))
    row["questions"], row["tokens"] = count, tokens
    if last.rounds:
        row |= _rounds(measured.tallies)
    return row


def _rounds(tallies: Sequence[Tally]) -> dict[str, Any]:
    """What our own arms know of their rounds."""
    middle = _medians(tallies)
    row: dict[str, Any] = {
        "mean_acceptance_length": middle(lambda t: 1 + t.accepted / t.row_rounds),
        "acceptance_rate": middle(lambda t: t.accepted / t.drafted if t.drafted else 0.0),
        "nodes": middle(lambda t: t.nodes / t.rounds),
        "depth": middle(lambda t: t.depth / t.rounds),
        "round_ms": middle(lambda t: t.decode_ms / t.rounds),
    }
    for part in ("draft", "verify", "policy", "other"):
        row[f"{part}_ms"] = middle(lambda t, part=part: getattr(t, f"{part}_ms") / t.rounds)  # type: ignore[misc]
    errors = [abs(error) for tally in tallies for error in tally.cost_errors]
    if errors:
        row["cost_error"] = statistics.median(errors)
    return row


def _medians(tallies: Sequence[Tally]) -> Callable[[Callable[[Tally], float]], float]:
    return lambda value: statistics.median(value(tally) for tally in tallies)


def _ratio(base: Measured, other: Measured, value: Callable[[Tally], float]) -> float:
    pairs = zip(base.tallies, other.tallies, strict=True)
    return statistics.median(value(a) / value(b) if value(b) else float("nan") for a, b in pairs)


def _spread(values: Sequence[float]) -> float:
    """Half the distance of the quartiles, as a share of the median."""
    if len(values) < 2:
        return 0.0
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / 2 / middle
