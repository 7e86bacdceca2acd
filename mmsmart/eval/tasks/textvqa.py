"""TextVQA: questions that need the text in a photo, ten people's answers each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from mmsmart.eval.data import fields
from mmsmart.eval.data.source import HubSet, Row, RowError
from mmsmart.eval.metrics import textvqa_accuracy
from mmsmart.eval.metrics.vqa import TEXTVQA_ANSWERS
from mmsmart.eval.tasks.base import EvalSample, Task
from mmsmart.eval.tasks.prompts import EXPLAIN, OTHERS, SHORT_PHRASE, SHORT_PHRASE_QWEN

WITH_OCR = "llava-ocr"


class TextVQA(Task):
    """The validation split, 5,000 questions.

    Args:
        ocr: Give LLaVA the row's OCR tokens, as its own evaluation does (about twelve points more); the template's id
            then says so. Rows without that field are asked without.
    """

    name = "textvqa"
    metric = "textvqa_accuracy"
    hub = HubSet(("lmms-lab/textvqa", "lmms-lab-encoder/textvqa"), "validation")
    axes = ("set_name",)
    short_tokens = 128
    short_prompts: ClassVar[Mapping[str, str]] = {
        OTHERS: "{capitalized}" + SHORT_PHRASE,
        "llava": "{capitalized}" + SHORT_PHRASE,
        WITH_OCR: "{capitalized}\nReference OCR token: {ocr_tokens}" + SHORT_PHRASE,
        "qwen2_vl": "{question}" + SHORT_PHRASE_QWEN,
    }
    long_prompt = "{capitalized}" + EXPLAIN

    def __init__(self, ocr: bool = False) -> None:
        self.ocr = ocr

    def read(self, key: str, row: Row) -> EvalSample:
        """The sample of a row; see `Task.read`. The test split's ten blank answers are no references."""
        answers = fields.annotator_answers(row)
        if not any(answer.strip() for answer in answers):
            answers = ()
        elif len(answers) != TEXTVQA_ANSWERS:
            raise RowError(f"TextVQA rows have {TEXTVQA_ANSWERS} answers, this one has {len(answers)}")
        tokens = row.fields.get("ocr_tokens")
        return EvalSample(
            key,
            row.index,
            fields.text(row, fields.QUESTION),
            fields.pictures(row),
            answers,
            groups={axis: value for axis in self.axes if (value := fields.optional(row, axis))},
            extra={"ocr_tokens": ", ".join(map(str, tokens))} if isinstance(tokens, list | tuple) else {},
        )

    def rate(self, sample: EvalSample, prediction: str) -> tuple[dict[str, float], str]:
        """TextVQA accuracy."""
        return {self.metric: textvqa_accuracy(prediction, sample.references)}, ""

    def _style(self, sample: EvalSample, family: str) -> str:
        with_ocr = self.ocr and family == "llava" and "ocr_tokens" in sample.extra
        return WITH_OCR if with_ocr else super()._style(sample, family)

    def _words(self, sample: EvalSample, style: str) -> dict[str, str]:
        return {
            "question": sample.question,
            "capitalized": sample.question.capitalize(),
            "ocr_tokens": sample.extra.get("ocr_tokens", ""),
        }
