"""The progress bar of a run, with running accuracy and speedup."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from tqdm import tqdm

from mmsmart.eval.results import ResultRow, Totals
from mmsmart.eval.settings import BASELINE
from mmsmart.eval.tasks.base import Mean


class Progress:
    """Counts samples; shows the first policy's accuracy and the last one's speedup over plain decoding."""

    def __init__(self, name: str, policies: Sequence[str], total: int | None, *, shown: bool) -> None:
        self._accuracy = Mean()
        self._failed = 0
        self._policies = tuple(policies)
        self._totals = {policy: Totals() for policy in policies}
        self._bar = tqdm(total=total, desc=name, unit="sample", disable=not shown, dynamic_ncols=True)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()

    def add(self, row: ResultRow) -> None:
        """Takes note of a row; a sample is done with its last policy's."""
        first, last = self._policies[0], self._policies[-1]
        if row.speed is not None and row.speed.timed:
            self._totals[row.policy].add(row.speed)
        if row.policy == first and row.score is not None:
            self._accuracy = self._accuracy.plus(next(iter(row.score.values.values())))
        self._failed += bool(row.error) and row.policy == first
        if row.policy == last:
            self._bar.update()

    def show(self) -> None:
        """Renews the figures beside the bar."""
        self._bar.set_postfix_str(self.figures())

    def figures(self) -> str:
        """Running accuracy, speedup and failures."""
        parts = [] if self._accuracy.percent is None else [f"accuracy {self._accuracy.percent:.1f} %"]
        plain = self._totals[BASELINE].ms_per_token if BASELINE in self._totals else None
        last = self._totals[self._policies[-1]].ms_per_token
        if plain and last and len(self._policies) > 1:
            parts.append(f"speedup {plain / last:.2f}x")
        if self._failed:
            parts.append(f"{self._failed} failed")
        return ", ".join(parts)
