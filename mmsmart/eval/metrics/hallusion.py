"""HallusionBench: yes or no by rule, and accuracy per question, figure and group of questions.

The official judge is GPT-4. The rule here is VLMEvalKit's; the grouping is the official one, with its exception for
questions that have no picture.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from mmsmart.eval.metrics.normalize import strip_punctuation

Verdict = Literal["Yes", "No", "Unknown"]

_PERIOD = re.compile(r"(?<!\d)\.(?!\d)")
_RIGHT: dict[str, Verdict] = {"1": "Yes", "0": "No"}


@dataclass(frozen=True)
class HallusionBenchScores:
    """Shares in 0..1; ``None`` where there was nothing to count.

    Attributes:
        a_acc: aAcc, right questions.
        f_acc: fAcc, figures with all their questions right.
        q_acc: qAcc, groups of one question over all figures of its set, all right.
        yes_rate: Questions answered "Yes".
        count: Number of questions.
        num_figures: Number of figures.
        num_groups: Number of question groups.
    """

    a_acc: float | None
    f_acc: float | None
    q_acc: float | None
    yes_rate: float | None
    count: int
    num_figures: int
    num_groups: int


class HallusionBenchTally:
    """Counts answers one at a time; holds one flag a figure and a question group, never the answers."""

    def __init__(self) -> None:
        self._count = self._right = self._yes = 0
        self._figures: dict[tuple[str, ...], bool] = {}
        self._groups: dict[tuple[str, ...], bool] = {}

    def add(self, row: Mapping[str, str], verdict: Verdict) -> None:
        """Counts one answer.

        On a VS question about figure 0, which has no picture, not knowing is right, and the figure is not counted.

        Args:
            row: ``category``, ``subcategory``, ``set_id``, ``figure_id``, ``question_id`` and ``gt_answer`` ("1", "0").
            verdict: What the answer says.
        """
        without_picture = row["category"] == "VS" and row["figure_id"] == "0"
        right = verdict == _RIGHT[row["gt_answer"]] or (without_picture and verdict == "Unknown")
        self._count += 1
        self._right += right
        self._yes += verdict == "Yes"
        origin = (row["category"], row["subcategory"], row["set_id"])
        group = (*origin, row["question_id"])
        self._groups[group] = self._groups.get(group, True) and right
        if not without_picture:
            figure = (*origin, row["figure_id"])
            self._figures[figure] = self._figures.get(figure, True) and right

    def scores(self) -> HallusionBenchScores:
        """The shares so far."""
        return HallusionBenchScores(
            _share(self._right, self._count),
            _share(sum(self._figures.values()), len(self._figures)),
            _share(sum(self._groups.values()), len(self._groups)),
            _share(self._yes, self._count),
            self._count,
            len(self._figures),
            len(self._groups),
        )


def hallusion_verdict(prediction: str) -> Verdict:
    """ "Yes" if ``yes`` is a word of the answer and ``no`` is not, "No" the other way round, else "Unknown"."""
    words = strip_punctuation(prediction.lower(), _PERIOD).split()
    if ("yes" in words) == ("no" in words):
        return "Unknown"
    return "Yes" if "yes" in words else "No"


def hallusion_yesno(prediction: str, reference: str) -> float:
    """1.0 if the answer says what the reference ("1" yes, "0" no) says, else 0.0."""
    return float(hallusion_verdict(prediction) == _RIGHT[reference])


def hallusionbench_aggregate(predictions: Iterable[str], rows: Iterable[Mapping[str, str]]) -> HallusionBenchScores:
    """aAcc, fAcc and qAcc of predictions, in the order of their rows; see `HallusionBenchTally.add` for the fields."""
    tally = HallusionBenchTally()
    for prediction, row in zip(predictions, rows, strict=True):
        tally.add(row, hallusion_verdict(prediction))
    return tally.scores()


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
