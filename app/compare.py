"""Policies side by side on the same requests."""

from __future__ import annotations

import statistics
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass

from app.device import Token
from mmsmart.engine import Engine, Request
from mmsmart.stats import pooled


@dataclass(frozen=True)
class Outcome:
    """One batch under one policy.

    Attributes:
        wall_ms: From the first request's preparation to the last token of the batch.
        tokens: Written by all.
        mean_acceptance_length: Tokens a round and row, bonus included.
        drafts_per_round: Drafts verified a round and row.
        token_ids: Each answer's.
    """

    wall_ms: float
    tokens: int
    mean_acceptance_length: float
    drafts_per_round: float
    token_ids: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Row:
    """A policy's line of the table.

    Attributes:
        policy: Its name.
        wall_ms: Median over the passes so far.
        tokens_per_s: New tokens of all rows per second of it.
        speedup: Plain decoding's ``wall_ms`` / its own.
        mean_acceptance_length, drafts_per_round: As in `Outcome`.
        identical: Whether every answer has plain decoding's token ids.
    """

    policy: str
    wall_ms: float
    tokens_per_s: float
    speedup: float
    mean_acceptance_length: float
    drafts_per_round: float
    identical: bool


@dataclass(frozen=True)
class CompareView:
    """What the page shows of a comparison at one moment."""

    phase: str
    batch: int = 1
    rows: tuple[Row, ...] = ()
    done: bool = False


def compare_policies(
    engines: Mapping[str, Engine], requests: Sequence[Request], passes: int, token: Token
) -> Generator[CompareView, None, None]:
    """Runs every policy on one batch, ``passes`` times in turn; a view after each run.

    Args:
        engines: Name to engine, plain decoding first.
        requests: The batch.
        passes: Runs of each, of which the median counts.
        token: Looked at after each round.

    Raises:
        Stopped: The token said so.
        InputError: A request that cannot be used.
    """
    outcomes: dict[str, list[Outcome]] = {name: [] for name in engines}
    rows: tuple[Row, ...] = ()
    for turn in range(passes):
        for name, engine in engines.items():
            yield CompareView(f"Running {name} ({turn + 1} of {passes})", len(requests), rows)
            outcomes[name].append(run_batch(engine, requests, token))
            rows = _rows(outcomes)
    yield CompareView("Done", len(requests), rows, done=True)


def run_batch(engine: Engine, requests: Sequence[Request], token: Token) -> Outcome:
    """Answers one batch, as `Engine.generate_batch` does, looking at the token after each round.

    Raises:
        Stopped: The token said so.
        InputError: A request that cannot be used.
    """
    prompts = [engine.prepare(request, index, len(requests)) for index, request in enumerate(requests)]
    batch = engine.start(list(prompts))
    while not batch.done:
        token.check()
        engine.step(batch)
    total = pooled(prompt.stats for prompt in prompts)
    return Outcome(
        # Preparing is done one by one; all the rest in common, and the longest answer takes part in all of it.
        wall_ms=total.prepare_ms + max(prompt.stats.total_ms - prompt.stats.prepare_ms for prompt in prompts),
        tokens=total.new_tokens,
        mean_acceptance_length=total.mean_acceptance_length,
        drafts_per_round=total.drafted / total.rounds if total.rounds else 0.0,
        token_ids=tuple(tuple(prompt.sequence.token_ids) for prompt in prompts),
    )


def _rows(outcomes: Mapping[str, Sequence[Outcome]]) -> tuple[Row, ...]:
    plain = next(iter(outcomes.values()))
    plain_ms = statistics.median(outcome.wall_ms for outcome in plain)
    rows = []
    for name, runs in outcomes.items():
        if not runs:
            continue
        wall_ms, last = statistics.median(run.wall_ms for run in runs), runs[-1]
        rows.append(
            Row(
                policy=name,
                wall_ms=wall_ms,
                tokens_per_s=1e3 * last.tokens / wall_ms,
                speedup=plain_ms / wall_ms,
                mean_acceptance_length=statistics.fmean(run.mean_acceptance_length for run in runs),
                drafts_per_round=statistics.fmean(run.drafts_per_round for run in runs),
                identical=all(run.token_ids == plain[0].token_ids for run in runs),
            )
        )
    return tuple(rows)
