"""The folder of a run: rows appended as they come, and where an interrupted run goes on.

``run.json`` holds the settings and each session's provenance, ``rows.jsonl`` the answers; with several processes each
has its own pair, ``run-0-of-2.json`` and ``rows-0-of-2.jsonl``. ``result.json`` is the merged result.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmsmart.errors import InputError
from mmsmart.eval.provenance import Process
from mmsmart.eval.results import ResultRow, read_json, read_rows, write_json
from mmsmart.eval.settings import differences

_CHUNK = 1 << 16


@dataclass(frozen=True)
class Grouping:
    """How a process cuts its samples into groups: the batches that every policy answers in turn.

    Attributes:
        shards: Number of processes.
        size: Samples of a group, failed ones counted.
    """

    shards: int
    size: int

    def number(self, index: int) -> int:
        """The group of a sample, by its place in the data set."""
        return index // self.shards // self.size


@dataclass(frozen=True)
class Done(Container[str]):
    """What an earlier session wrote: all groups before ``group``, and of that one the pairs of sample and policy."""

    grouping: Grouping
    group: int = 0
    pairs: frozenset[tuple[str, str]] = field(default_factory=frozenset)

    def __contains__(self, sample: object) -> bool:
        """Whether a sample's whole group is finished; ids begin with the sample's place."""
        place = str(sample).partition(":")[0]
        return self.grouping.number(int(place)) < self.group


class RunFolder:
    """One process's files in the folder of a run."""

    def __init__(self, path: Path, process: Process, grouping: Grouping) -> None:
        self.path, self.process, self.grouping = path, process, grouping
        self.rows = _file(path, "rows", "jsonl", process.number, process.count)
        self._run = _file(path, "run", "json", process.number, process.count)

    def begin(
        self, settings: Mapping[str, Any], session: Mapping[str, Any], replay: Callable[[ResultRow], None]
    ) -> Done:
        """Opens the folder for a session and says what earlier ones have finished.

        Args:
            settings: What an answer and its time depend on.
            session: Provenance of this session.
            replay: Is shown every row that is already there.

        Raises:
            InputError: The folder holds a run of other settings, or damaged files.
        """
        settings = json.loads(json.dumps(settings))
        self._make()
        known = [read_json(path) for path in sorted(self.path.glob("run*.json"))]
        for record in known:
            if found := differences(settings, record.get("settings", {})):
                raise InputError(
                    f"{self.path} holds a run of other settings ({'; '.join(found)}); pass another --out, or remove it"
                )
        sessions = read_json(self._run)["sessions"] if self._run.is_file() else []
        if self.rows.is_file() and not self._run.is_file():
            raise InputError(f"{self.rows} is not from a run that is known here; pass another --out")
        write_json(self._run, {"settings": settings, "sessions": [*sessions, dict(session)], "finished": False})
        if not self.rows.is_file():
            return Done(self.grouping)
        cut_half_line(self.rows)
        return self._done(replay)

    def append(self, rows: Sequence[ResultRow]) -> None:
        """Writes rows in one go and hands them to the system, so that a killed process has lost none."""
        with open(self.rows, "ab", buffering=0) as file:
            file.write("".join(row.to_json() + "\n" for row in rows).encode())

    def finish(self) -> None:
        """Notes that this process has written all its rows."""
        write_json(self._run, read_json(self._run) | {"finished": True})

    def _make(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except FileExistsError as error:
            raise InputError(f"{self.path} is a file; pass a folder as --out") from error

    def _done(self, replay: Callable[[ResultRow], None]) -> Done:
        group, pairs = 0, set[tuple[str, str]]()
        for row in read_rows(self.rows):
            if self.grouping.number(row.index) != group:
                group, pairs = self.grouping.number(row.index), set()
            pairs.add((row.sample, row.policy))
            replay(row)
        return Done(self.grouping, group, frozenset(pairs))


@dataclass(frozen=True)
class Recorded:
    """A run's files of all processes, for reading.

    Attributes:
        rows: Files of rows, in the order of the processes.
        runs: Their settings and sessions.
    """

    rows: tuple[Path, ...]
    runs: tuple[Mapping[str, Any], ...]

    @property
    def finished(self) -> bool:
        """Whether every process has written all its rows."""
        return all(run["finished"] for run in self.runs)

    def all_rows(self) -> Iterator[ResultRow]:
        """The rows of all processes, one at a time."""
        for path in self.rows:
            if path.is_file():
                yield from read_rows(path)


def recorded(path: Path, count: int) -> Recorded | None:
    """The files of ``count`` processes; ``None`` while one of them has not begun."""
    runs = [_file(path, "run", "json", number, count) for number in range(count)]
    if not all(run.is_file() for run in runs):
        return None
    rows = tuple(_file(path, "rows", "jsonl", number, count) for number in range(count))
    return Recorded(rows, tuple(read_json(run) for run in runs))


def cut_half_line(path: Path) -> None:
    """Removes what follows the last line end: the part of a row that a killed process got to write."""
    with open(path, "r+b") as file:
        end = file.seek(0, os.SEEK_END)
        place = end
        while place > 0:
            start = max(0, place - _CHUNK)
            file.seek(start)
            found = file.read(place - start).rfind(b"\n")
            if found >= 0:
                place = start + found + 1
                break
            place = start
        if place < end:
            file.truncate(place)


def _file(path: Path, stem: str, suffix: str, number: int, count: int) -> Path:
    return path / (f"{stem}.{suffix}" if count == 1 else f"{stem}-{number}-of-{count}.{suffix}")
