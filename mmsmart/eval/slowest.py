"""The slowest samples of a run, and small pictures of them, kept while the run goes on.

A sample that ends up among the slowest was among them when it was answered, so keeping those few at every moment is
enough: nothing is read twice, and memory does not grow.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmsmart import images
from mmsmart.errors import ImageError
from mmsmart.eval.data.fields import Picture
from mmsmart.eval.results import ResultRow
from mmsmart.files import replacing

KEPT = 8
FOLDER = "thumbnails"
_SIDE = 240
_QUALITY = 80
_SHOWN = 400


class Slowest:
    """The slowest answers of one policy."""

    def __init__(self, policy: str, kept: int = KEPT) -> None:
        self._policy, self._kept = policy, kept
        self._heap: list[tuple[float, int, dict[str, Any]]] = []

    def offer(self, row: ResultRow) -> bool:
        """Takes note of a row; returns whether it is now among the slowest."""
        if row.policy != self._policy or row.speed is None:
            return False
        key = (row.speed.stats.total_ms, -row.index)  # of equals the earlier stays
        if len(self._heap) == self._kept and key <= self._heap[0][:2]:
            return False
        heapq.heappush(self._heap, (*key, _record(row)))
        if len(self._heap) > self._kept:
            heapq.heappop(self._heap)
        return True

    def records(self) -> list[dict[str, Any]]:
        """The slowest first, ready for JSON."""
        return [record for *_, record in sorted(self._heap, key=lambda item: item[:2], reverse=True)]


def save_thumbnail(folder: Path, index: int, pictures: Sequence[Picture]) -> None:
    """Writes a small JPEG of a sample's first picture, unless it is there."""
    path = folder / thumbnail(index)
    if not pictures or path.is_file():
        return
    try:
        picture = images.load(pictures[0])
    except ImageError:
        return  # what cannot be read has failed as a sample already
    picture.thumbnail((_SIDE, _SIDE))
    with replacing(path) as draft:
        picture.save(draft, "JPEG", quality=_QUALITY)


def thumbnail(index: int) -> str:
    """Path of a sample's small picture inside the run's folder."""
    return f"{FOLDER}/{index}.jpg"


def _record(row: ResultRow) -> dict[str, Any]:
    assert row.speed is not None
    return {
        "sample": row.sample,
        "policy": row.policy,
        "total_ms": row.speed.stats.total_ms,
        "new_tokens": row.speed.stats.new_tokens,
        "rounds": row.speed.stats.rounds,
        "question": row.question[:_SHOWN],
        "text": row.text[:_SHOWN],
        "thumbnail": thumbnail(row.index),
    }
