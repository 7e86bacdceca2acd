"""HallusionBench: yes-or-no questions about true and edited figures."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar, cast

from mmsmart.eval.data import fields
from mmsmart.eval.data.source import HubSet, Row, RowError
from mmsmart.eval.metrics import HallusionBenchTally, hallusion_verdict, hallusion_yesno
from mmsmart.eval.metrics.hallusion import Verdict
from mmsmart.eval.tasks.base import EvalSample, Mean, Score, Summary, Task
from mmsmart.eval.tasks.prompts import EXPLANATION, OTHERS

KEYS = ("category", "subcategory", "set_id", "figure_id", "question_id")
_INDEX = re.compile(r"(VD|VS)_(.+)_\d+_(\d+)_(\d+)_(\d+)$")
"""How VLMEvalKit writes category, subcategory, visual input, set, figure and question into one field."""
_ANSWERS = {"1": "1", "0": "0", "yes": "1", "no": "0"}


class HallusionBench(Task):
    """The questions with a picture, 951; rows without one are asked as text and counted by the official exception."""

    name = "hallusionbench"
    metric = "aAcc"
    hub = HubSet(("lmms-lab/HallusionBench", "lmms-lab-encoder/HallusionBench"), "image")
    axes = ("category", "subcategory")
    needs_picture = False
    short_tokens = 128
    short_prompts: ClassVar[Mapping[str, str]] = {
        OTHERS: "{question}",
        "llava": "{question}",
        "qwen2_vl": "{question} Please answer yes or no.",
    }
    long_prompt = EXPLANATION + "{question}"

    def read(self, key: str, row: Row) -> EvalSample:
        """The sample of a row; see `Task.read`."""
        answer = fields.optional(row, "gt_answer", *fields.ANSWER).strip().lower()
        if answer and answer not in _ANSWERS:
            raise RowError(f"the answer {answer!r} is none of {', '.join(_ANSWERS)}")
        right = _ANSWERS.get(answer, "")
        return EvalSample(
            key,
            row.index,
            fields.text(row, fields.QUESTION),
            fields.pictures(row),
            (right,) if right else (),
            groups={**_keys(row), "gt_answer": right},
        )

    def rate(self, sample: EvalSample, prediction: str) -> tuple[dict[str, float], str]:
        """Whether yes or no was said rightly; not knowing is right where a VS question has no picture."""
        tally = HallusionBenchTally()
        tally.add(sample.groups, verdict := hallusion_verdict(prediction))
        by_rule = hallusion_yesno(prediction, sample.references[0])
        return {self.metric: tally.scores().a_acc or 0.0, "hallusion_yesno": by_rule}, verdict

    def summarize(self, scores: Iterable[Score | None]) -> Summary:
        """As `Task.summarize`, with fAcc over figures, qAcc over question groups, and the rate of "Yes"."""
        tally = HallusionBenchTally()
        summary = super().summarize(_counted(scores, tally))
        found = tally.scores()
        more = {
            "fAcc": _mean(found.f_acc, found.num_figures),
            "qAcc": _mean(found.q_acc, found.num_groups),
            "yes_rate": _mean(found.yes_rate, found.count),
        }
        return replace(summary, metrics={**summary.metrics, **more})


def _counted(scores: Iterable[Score | None], tally: HallusionBenchTally) -> Iterator[Score | None]:
    for score in scores:
        if score is not None:
            tally.add(score.groups, cast(Verdict, score.verdict))
        yield score


def _mean(share: float | None, count: int) -> Mean:
    total = (share or 0.0) * count
    return Mean(total, total, count)  # of zeros and ones, so the squares sum to the same


def _keys(row: Row) -> dict[str, str]:
    """What questions are grouped by, from their own fields or from VLMEvalKit's index."""
    values: dict[str, Any] = {key: row.fields.get(key) for key in KEYS}
    if values["set_id"] is None and (parts := _INDEX.match(fields.optional(row, "index"))):
        values = dict(zip(KEYS, parts.groups(), strict=True))
    missing = [key for key, value in values.items() if value is None or value == ""]
    if missing:
        raise RowError(f"HallusionBench groups its questions by {', '.join(KEYS)}; missing: {', '.join(missing)}")
    return {key: str(value) for key, value in values.items()}
