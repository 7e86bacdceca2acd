"""What a round costs on this device: a measured table, read by linear interpolation.

Real verification cost is a staircase (flat, a step where the kernel changes, then linear once compute-bound), so a
table of the sizes that really run serves better than a curve. Between grid points it is linear, beyond the ends
constant.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mmsmart.errors import InputError
from mmsmart.files import replacing

SCHEMA = 1
_CURVES = 64
"""Curves that are kept."""
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Grid:
    """Milliseconds on a grid of three sizes.

    Attributes:
        sizes: First axis: nodes a row (verification) or width (drafting), ascending.
        batches: Second axis: rows, ascending.
        contexts: Third axis: committed slots, ascending.
        ms: ``[sizes][batches][contexts]``.
    """

    sizes: tuple[int, ...]
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    ms: tuple[tuple[tuple[float, ...], ...], ...]

    @cached_property
    def _values(self) -> Floats:
        return np.asarray(self.ms, np.float64)

    @cached_property
    def _curves(self) -> dict[tuple[float, float], Floats]:
        return {}

    def curve(self, batch: float, context: float) -> Floats:
        """Cost at every grid size ``[sizes]`` for this batch and context; not to be written to."""
        curve = self._curves.get((batch, context))
        if curve is None:  # a round asks several times for the same one
            if len(self._curves) >= _CURVES:
                self._curves.clear()
            at_context = self._values @ weights(self.contexts, context)
            curve = self._curves[batch, context] = at_context @ weights(self.batches, batch)
        return curve

    def at(self, size: ArrayLike, batch: float, context: float) -> Floats:
        """Cost at any sizes, for one batch and context."""
        return np.asarray(np.interp(np.asarray(size), self.sizes, self.curve(batch, context)), np.float64)


@dataclass(frozen=True)
class CostTable:
    """A device's measured costs for one target, drafter, dtype and thread setting.

    Attributes:
        verify: Target forward of n nodes a row (root included); n = 1 is a plain decode step.
        draft: One depth of drafting, by frontier width; width 0 is the opening (catching up, and the root's children).
        fixed_ms: Packing, acceptance, commit and text of a round with a tree.
        settings: What it was measured with; a table of other settings must not be used.
        measured: False for an estimate from shapes alone.
    """

    verify: Grid
    draft: Grid
    fixed_ms: float
    settings: Mapping[str, Any]
    measured: bool = True

    def save(self, path: Path) -> None:
        """Writes JSON, whole or not at all."""
        with replacing(path) as draft:
            draft.write_text(json.dumps({"schema": SCHEMA} | asdict(self)) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path, settings: Mapping[str, Any]) -> CostTable:
        """Reads a table.

        Raises:
            InputError: It is damaged, of another schema, or was measured with other settings, which are named.
        """
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            if record.pop("schema") != SCHEMA:
                raise InputError(
                    f"the profile {path} is of another version; measure it anew: python -m mmsmart profile"
                )
            grids = {name: _grid(record[name]) for name in ("verify", "draft")}
            table = cls(**(record | grids))
        except (OSError, ValueError, KeyError, TypeError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(
                f"the profile {path} cannot be read ({error!r}); measure it anew: python -m mmsmart profile"
            ) from error
        differing = [key for key in settings if table.settings.get(key) != settings[key]]
        if differing:
            parts = ", ".join(f"{key} {table.settings.get(key)!r} instead of {settings[key]!r}" for key in differing)
            raise InputError(
                f"the profile {path} was measured with {parts}; measure it anew: python -m mmsmart profile"
            )
        return table


def _grid(record: Mapping[str, Any]) -> Grid:
    axes = {name: tuple(int(n) for n in record[name]) for name in ("sizes", "batches", "contexts")}
    return Grid(ms=tuple(tuple(tuple(map(float, row)) for row in plane) for plane in record["ms"]), **axes)


@functools.lru_cache(maxsize=256)
def weights(axis: tuple[int, ...], value: float) -> Floats:
    """Linear interpolation weights along an axis, clamped at its ends; not to be written to."""
    weights = np.zeros(len(axis))
    place = float(np.interp(value, axis, np.arange(len(axis))))
    low = min(int(place), len(axis) - 1)
    weights[low] = 1 - (place - low)
    if low + 1 < len(axis):
        weights[low + 1] = place - low
    weights.flags.writeable = False
    return weights
