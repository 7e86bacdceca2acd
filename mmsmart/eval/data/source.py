"""The records between a data set's storage and its task: what was asked for, where it lies, one raw row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmsmart.errors import InputError


@dataclass(frozen=True)
class HubSet:
    """A data set on the hub.

    Attributes:
        ids: ``owner/name`` under every owner that is known to hold it, in the order of trying.
        split: The split that is evaluated.
        config: Name of the configuration; ``None`` for the only one.
    """

    ids: tuple[str, ...]
    split: str
    config: str | None = None


@dataclass(frozen=True)
class DataRequest:
    """What a user says about the data.

    Attributes:
        data: File or folder; ``None`` for the hub.
        hub_id: ``owner/name`` instead of the known ones.
        limit: Only the first so many samples; the hub is then streamed.
        seed: Seed of data that is made on the fly.
    """

    data: Path | None = None
    hub_id: str | None = None
    limit: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise InputError(f"the limit must be at least 1, got {self.limit}")
        if self.data is not None and self.hub_id is not None:
            raise InputError(f"pass a path or a hub id, not both, got {self.data} and {self.hub_id}")


@dataclass(frozen=True)
class Row:
    """One raw row.

    Attributes:
        index: Place in the data set, from 0.
        fields: Its fields; empty where it could not be read.
        error: Why it could not be read.
        folder: Where relative picture paths start.
    """

    index: int
    fields: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    folder: Path | None = None


@dataclass(frozen=True)
class Source:
    """An opened data set, read anew by every call of ``rows`` and never held in memory.

    Attributes:
        description: Where the rows lie, for people.
        fingerprint: Changes when the rows change.
        rows: Reads them.
    """

    description: str
    fingerprint: str
    rows: Callable[[], Iterator[Row]]


class RowError(ValueError):
    """A row that cannot become a sample; its text goes into the sample's ``error``."""
