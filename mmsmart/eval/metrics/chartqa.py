"""Relaxed accuracy (ChartQA): numbers within five per cent of the right one, other answers to the letter."""

import re
from collections.abc import Sequence

TOLERANCE = 0.05

_PREAMBLE = re.compile(r"^(?:the\s+)?(?:final\s+)?answer\s*(?:is|:)\s*:?\s*", re.IGNORECASE)
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_AMOUNT = re.compile(r"^([-+]?(?:\d+\.?\d*|\.\d+))\s*(%)?(?:\s+[^\W\d_]+)*$")


def chartqa_relaxed(prediction: str, references: Sequence[str]) -> float:
    """Relaxed accuracy of one answer: 1.0 if it fits any reference, else 0.0.

    With both sides read as numbers (``x%`` is x / 100) and the reference t not zero: ``|p - t| / |t| <= 0.05``, the
    border included and the reference below the stroke; otherwise equality ignoring case. Commas, currencies and units
    make a text of a number, years are ordinary numbers, and ``nan`` fits nothing.

    Args:
        prediction: The model's answer; space around it is dropped.
        references: The labels.
    """
    answer = prediction.strip()
    return float(any(_fits(answer, reference) for reference in references))


def chartqa_relaxed_tolerant(prediction: str, references: Sequence[str]) -> float:
    """As `chartqa_relaxed`, after reading past how chatty models write: not an official number.

    Dropped on both sides: "The answer is", a final period, thousands commas, a currency sign, unit words.
    """
    plain = _plain(prediction)
    return float(any(_fits(plain, _plain(reference)) for reference in references))


def _fits(prediction: str, reference: str) -> bool:
    number, right = _number(prediction), _number(reference)
    if number is not None and right:
        return abs(number - right) / abs(right) <= TOLERANCE
    return prediction.lower() == reference.lower()


def _number(text: str) -> float | None:
    try:
        return float(text.rstrip("%")) / 100 if text.endswith("%") else float(text)
    except ValueError:
        return None


def _plain(text: str) -> str:
    text = _PREAMBLE.sub("", text.strip()).rstrip(".").strip()
    bare = re.sub(r"^([-+]?)[$€£¥]\s*", r"\1", _THOUSANDS.sub("", text))
    amount = _AMOUNT.match(bare)
    return amount[1] + (amount[2] or "") if amount else text
