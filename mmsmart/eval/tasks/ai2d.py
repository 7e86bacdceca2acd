"""AI2D: multiple choice about school diagrams."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from mmsmart.eval.data import fields
from mmsmart.eval.data.source import HubSet, Row
from mmsmart.eval.metrics import ai2d_mcq, ai2d_mcq_tolerant
from mmsmart.eval.tasks.base import EvalSample, Task
from mmsmart.eval.tasks.prompts import EXPLAIN, LETTER, LETTER_QWEN, OTHERS, option_lines


class AI2D(Task):
    """The test split with letters over the labels, 3,088 questions."""

    name = "ai2d"
    metric = "ai2d_mcq"
    hub = HubSet(("lmms-lab/ai2d", "lmms-lab-encoder/ai2d"), "test")
    short_prompts: ClassVar[Mapping[str, str]] = {
        OTHERS: "{question}\n{options}" + LETTER,
        "llava": "{question}\n{options}" + LETTER,
        "qwen2_vl": LETTER_QWEN,
    }
    long_prompt = "{question}\n{options}" + EXPLAIN

    def read(self, key: str, row: Row) -> EvalSample:
        """The sample of a row; see `Task.read`."""
        choices = fields.options(row)
        letter = fields.letter(row, len(choices))
        question = fields.text(row, fields.QUESTION)
        return EvalSample(key, row.index, question, fields.pictures(row), (letter,) if letter else (), choices)

    def rate(self, sample: EvalSample, prediction: str) -> tuple[dict[str, float], str]:
        """Exact match of the letter."""
        official = ai2d_mcq(prediction, sample.references[0])
        tolerant = ai2d_mcq_tolerant(prediction, sample.references[0], sample.choices)
        return {self.metric: official, f"{self.metric}_tolerant": tolerant}, ""

    def _words(self, sample: EvalSample, style: str) -> dict[str, str]:
        return {"question": sample.question, "options": option_lines(sample.choices)}
