"""VQA v2: open questions about photos, ten people's answers each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from mmsmart.eval.data import fields
from mmsmart.eval.data.source import HubSet, Row
from mmsmart.eval.metrics import vqa_accuracy
from mmsmart.eval.tasks.base import EvalSample, Task
from mmsmart.eval.tasks.prompts import OTHERS, SHORT_PHRASE, SHORT_PHRASE_QWEN

LEAST_ANSWERS = 2
"""A single answer cannot be left out in turn: such a row is asked but not scored."""


class VQAv2(Task):
    """The validation split, 214,354 questions."""

    name = "vqav2"
    metric = "vqa_accuracy"
    hub = HubSet(("lmms-lab/VQAv2", "lmms-lab-encoder/VQAv2"), "validation")
    axes = ("answer_type", "question_type")
    short_prompts: ClassVar[Mapping[str, str]] = {
        OTHERS: "{question}" + SHORT_PHRASE,
        "llava": "{question}" + SHORT_PHRASE,
        "qwen2_vl": "{question}" + SHORT_PHRASE_QWEN,
    }

    def read(self, key: str, row: Row) -> EvalSample:
        """The sample of a row; see `Task.read`."""
        answers = () if row.fields.get("answers") is None else fields.annotator_answers(row)
        return EvalSample(
            key,
            row.index,
            fields.text(row, fields.QUESTION),
            fields.pictures(row),
            answers if len(answers) >= LEAST_ANSWERS else (),
            groups={axis: value for axis in self.axes if (value := fields.optional(row, axis))},
        )

    def rate(self, sample: EvalSample, prediction: str) -> tuple[dict[str, float], str]:
        """VQA accuracy."""
        return {self.metric: vqa_accuracy(prediction, sample.references)}, ""
