"""ScienceQA: multiple choice from school science, with and without pictures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from mmsmart.errors import InputError
from mmsmart.eval.data import fields
from mmsmart.eval.data.source import HubSet, Row
from mmsmart.eval.metrics import scienceqa_mcq, scienceqa_mcq_tolerant
from mmsmart.eval.tasks.base import EvalSample, Task
from mmsmart.eval.tasks.prompts import EXPLAIN, LETTER, LETTER_QWEN, OTHERS, option_lines

SUBSETS = {"image": "ScienceQA-IMG", "full": "ScienceQA-FULL"}
_HIGHEST_LOW_GRADE = 6


class ScienceQA(Task):
    """The test split.

    Args:
        subset: "image" for the 2,017 questions with a picture, "full" for all 4,241 without their pictures.
    """

    name = "scienceqa"
    metric = "scienceqa_mcq"
    hub = HubSet(("lmms-lab/ScienceQA", "lmms-lab-encoder/ScienceQA"), "test", SUBSETS["image"])
    axes = ("picture", "subject", "grades")
    needs_picture = False
    short_prompts: ClassVar[Mapping[str, str]] = {
        OTHERS: "{context}{question}\n{options}" + LETTER,
        "llava": "{context}{question}\n{options}" + LETTER,
        "qwen2_vl": "{hint}" + LETTER_QWEN,
    }
    long_prompt = "{context}{question}\n{options}" + EXPLAIN

    def __init__(self, subset: str = "image") -> None:
        if subset not in SUBSETS:
            raise InputError(f"scienceqa has no subset {subset!r}; known: {', '.join(SUBSETS)}")
        self.subset = subset

    def read(self, key: str, row: Row) -> EvalSample:
        """The sample of a row; see `Task.read`."""
        choices = fields.options(row)
        letter = fields.letter(row, len(choices))
        images = fields.pictures(row)
        groups = {
            "picture": "image" if images else "text",
            "subject": fields.optional(row, "subject"),
            "grades": _grades(fields.optional(row, "grade")),
        }
        return EvalSample(
            key,
            row.index,
            fields.text(row, fields.QUESTION),
            images,
            (letter,) if letter else (),
            choices,
            {axis: value for axis, value in groups.items() if value},
            {"hint": fields.optional(row, "hint")},
        )

    def rate(self, sample: EvalSample, prediction: str) -> tuple[dict[str, float], str]:
        """LLaVA's rule."""
        official = scienceqa_mcq(prediction, sample.references[0], len(sample.choices))
        tolerant = scienceqa_mcq_tolerant(prediction, sample.references[0])
        return {self.metric: official, f"{self.metric}_tolerant": tolerant}, ""

    def _hub(self) -> HubSet:
        known = super()._hub()
        return HubSet(known.ids, known.split, SUBSETS[self.subset])

    def _words(self, sample: EvalSample, style: str) -> dict[str, str]:
        hint = sample.extra.get("hint", "")
        return {
            "question": sample.question,
            "options": option_lines(sample.choices),
            "context": f"Context: {hint}\n" if hint else "",
            "hint": f"Hint: {hint}\n" if hint else "",
        }


def _grades(grade: str) -> str:
    """The published grade bands."""
    digits = grade.removeprefix("grade")
    if not digits.isdecimal():
        return ""
    return "1-6" if int(digits) <= _HIGHEST_LOW_GRADE else "7-12"
