"""From the rows of all processes to one result: accuracy, pooled speed, equality with plain decoding."""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmsmart.eval.folder import Grouping, Recorded, recorded
from mmsmart.eval.provenance import speed_claim
from mmsmart.eval.results import ResultRow, Totals, read_rows, write_json
from mmsmart.eval.settings import BASELINE
from mmsmart.eval.slowest import Slowest
from mmsmart.eval.tasks.base import Mean, Summary, Task

SCHEMA = 1
RESULT = "result.json"
DIFFERING = "differing.jsonl"
_NORMAL_95 = 1.959963984540054
_LISTED = 50
_POLL_S = 0.2


def wait_and_merge(
    task: Task, path: Path, processes: int, sleep: Callable[[float], None] = time.sleep
) -> dict[str, Any]:
    """Waits until every process has finished, then merges; the launcher ends all of them when one fails."""
    while True:
        found = recorded(path, processes)
        if found is not None and found.finished:
            return merge(task, path, found)
        sleep(_POLL_S)


def merge(task: Task, path: Path, found: Recorded) -> dict[str, Any]:
    """Makes ``result.json`` (and ``differing.jsonl`` where answers differ) out of a finished run's rows.

    Rows are read one group at a time, once for each policy's accuracy and once for the rest.

    Raises:
        InputError: A damaged row.
    """
    settings = found.runs[0]["settings"]
    policies: list[str] = settings["policies"]
    tally = Tally(policies)
    grouping = Grouping(settings["processes"], settings["batch size"])
    (path / DIFFERING).unlink(missing_ok=True)
    for rows in found.rows:
        if rows.is_file():
            for _, group in itertools.groupby(read_rows(rows), lambda row: grouping.number(row.index)):
                _append(path / DIFFERING, tally.add(list(group)))
    sessions = [run["sessions"] for run in found.runs]
    result = {
        "schema": SCHEMA,
        "settings": settings,
        "sessions": sessions,
        "speed": speed_claim([each[-1]["devices"] for each in sessions]),
        **tally.counts(),
        "policies": {policy: _accuracy(task, found, policy) | tally.policy(policy) for policy in policies},
        "slowest": tally.slowest.records(),
    }
    write_json(path / RESULT, result)
    return result


@dataclass
class Tally:
    """Everything but accuracy, group by group; what it keeps does not grow with the number of samples."""

    policies: Sequence[str]
    samples: int = 0
    failed: int = 0
    failures: list[dict[str, str]] = field(default_factory=list)
    templates: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.totals = {policy: Totals() for policy in self.policies}
        self.compared = dict.fromkeys(self.policies, 0)
        self.equal = dict.fromkeys(self.policies, 0)
        self.different: dict[str, list[str]] = {policy: [] for policy in self.policies}
        self.slowest = Slowest(self.policies[-1])

    def add(self, rows: Sequence[ResultRow]) -> Iterator[dict[str, Any]]:
        """Adds a group; gives the answers that differ from plain decoding's."""
        samples: dict[str, dict[str, ResultRow]] = {}
        for row in sorted(rows, key=lambda row: row.index):
            samples.setdefault(row.sample, {})[row.policy] = row
            self.slowest.offer(row)
        for answers in samples.values():
            self._count(answers.values())
            self._time(answers)
            yield from self._compare(answers)

    def counts(self) -> dict[str, Any]:
        """Samples, failures and prompt templates, ready for JSON."""
        return {
            "samples": self.samples,
            "failed": self.failed,
            "failures": self.failures,
            "templates": dict(sorted(self.templates.items())),
        }

    def policy(self, policy: str) -> dict[str, Any]:
        """Speed and equality of one policy, ready for JSON."""
        equality = {
            "compared": self.compared[policy],
            "equal": self.equal[policy],
            "different": self.different[policy],
        }
        return {
            "speed": self.totals[policy].summary(self.totals.get(BASELINE)),
            "equality": equality if BASELINE in self.policies and policy != BASELINE else None,
        }

    def _count(self, rows: Iterable[ResultRow]) -> None:
        errors = [row for row in rows if row.error]
        self.samples += 1
        self.failed += bool(errors)
        for row in errors[: len(self.failures) < _LISTED]:
            self.failures.append({"sample": row.sample, "policy": row.policy, "error": row.error})
        template = next((row.template for row in rows if row.template), "")
        if template:
            self.templates[template] = self.templates.get(template, 0) + 1

    def _time(self, answers: Mapping[str, ResultRow]) -> None:
        """Only samples that every policy answered in a whole batch: the same samples for all."""
        speeds = {policy: row.speed for policy, row in answers.items() if row.speed is not None and row.speed.timed}
        if len(speeds) < len(self.policies):
            return
        for policy, speed in speeds.items():
            self.totals[policy].add(speed)

    def _compare(self, answers: Mapping[str, ResultRow]) -> Iterator[dict[str, Any]]:
        plain = answers.get(BASELINE)
        if plain is None or plain.error:
            return
        for policy, row in answers.items():
            if policy == BASELINE or row.error:
                continue
            self.compared[policy] += 1
            if row.token_ids == plain.token_ids:
                self.equal[policy] += 1
                continue
            if len(self.different[policy]) < _LISTED:
                self.different[policy].append(row.sample)
            yield {"sample": row.sample, "policy": policy, BASELINE: plain.token_ids, "differing": row.token_ids}


def _append(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    if lines := [json.dumps(record) + "\n" for record in records]:
        with open(path, "a", encoding="utf-8") as file:
            file.writelines(lines)


def _accuracy(task: Task, found: Recorded, policy: str) -> dict[str, Any]:
    scores = (row.score for row in found.all_rows() if row.policy == policy and not row.error)
    summary: Summary = task.summarize(scores)
    return {
        "metrics": {name: _mean(mean) for name, mean in summary.metrics.items()},
        "groups": {
            axis: {group: {name: _mean(mean) for name, mean in means.items()} for group, means in groups.items()}
            for axis, groups in summary.groups.items()
        },
        "unscored": summary.unscored,
    }


def _mean(mean: Mean) -> dict[str, Any]:
    low, high = interval(mean) or (None, None)
    return {"percent": mean.percent, "low": low, "high": high, "count": mean.count}


def interval(mean: Mean) -> tuple[float, float] | None:
    """A 95 % confidence interval in percent; ``None`` for too few values.

    Of zeros and ones Wilson's score interval (1927), which also holds near 0 and 100; else mean -+ 1.96 standard
    errors.
    """
    n, value, error = mean.count, mean.value, mean.standard_error
    if value is None:
        return None
    if math.isclose(mean.squares, mean.total, abs_tol=1e-9):
        z2 = _NORMAL_95**2
        middle = (value + z2 / (2 * n)) / (1 + z2 / n)
        half = _NORMAL_95 / (1 + z2 / n) * math.sqrt(max(0.0, value * (1 - value) / n + z2 / (4 * n * n)))
    elif error is None:
        return None
    else:
        middle, half = value, _NORMAL_95 * error
    return round(100 * max(0.0, middle - half), 2), round(100 * min(1.0, middle + half), 2)
