"""ChartQA: questions about charts, half written by people, half generated."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar

from mmsmart.eval.data import fields
from mmsmart.eval.data.files import fingerprint, read_json
from mmsmart.eval.data.source import DataRequest, HubSet, Row, Source
from mmsmart.eval.metrics import chartqa_relaxed, chartqa_relaxed_tolerant
from mmsmart.eval.tasks.base import EvalSample, Task
from mmsmart.eval.tasks.prompts import OTHERS, SHORT_PHRASE, SHORT_PHRASE_QWEN

_PARTS = ("test_human.json", "test_augmented.json")
_TYPES = {"0": "human", "1": "augmented"}
"""The class numbers of HuggingFaceM4/ChartQA."""


class ChartQA(Task):
    """The test split, 1,250 + 1,250 questions; also in the authors' layout (``test/test_human.json``, ``test/png``)."""

    name = "chartqa"
    metric = "chartqa_relaxed"
    hub = HubSet(("lmms-lab/ChartQA", "lmms-lab-encoder/ChartQA"), "test")
    axes = ("type",)
    short_prompts: ClassVar[Mapping[str, str]] = {
        OTHERS: "{question}\nAnswer the question with a single word.",
        "llava": "{question}" + SHORT_PHRASE,
        "qwen2_vl": "{question}" + SHORT_PHRASE_QWEN,
    }

    def open(self, request: DataRequest) -> Source:
        """Finds the rows; see `Task.open`."""
        parts = _original_layout(request.data) if request.data is not None else []
        if not parts:
            return super().open(request)
        return Source(str(request.data), fingerprint(parts), lambda: _original_rows(parts))

    def read(self, key: str, row: Row) -> EvalSample:
        """The sample of a row; see `Task.read`."""
        kind = fields.optional(row, "type", "human_or_machine", "split")
        named = "human" if "human" in kind else "augmented" if "augmented" in kind else ""
        named = _TYPES.get(kind, named)
        return EvalSample(
            key,
            row.index,
            fields.text(row, fields.QUESTION),
            fields.pictures(row),
            fields.labels(row),
            groups={"type": named} if named else {},
        )

    def rate(self, sample: EvalSample, prediction: str) -> tuple[dict[str, float], str]:
        """Relaxed accuracy."""
        official = chartqa_relaxed(prediction, sample.references)
        tolerant = chartqa_relaxed_tolerant(prediction, sample.references)
        return {self.metric: official, f"{self.metric}_tolerant": tolerant}, ""


def _original_layout(folder: Path) -> list[Path]:
    for root in (folder / "test", folder):
        if found := [root / part for part in _PARTS if (root / part).is_file()]:
            return found
    return []


def _original_rows(parts: list[Path]) -> Iterator[Row]:
    numbers = itertools.count()
    for part in parts:
        for row in read_json(part):
            yield Row(next(numbers), {**row.fields, "type": part.stem}, row.error, part.parent / "png")
