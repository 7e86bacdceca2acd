"""Prompt texts that several data sets share.

They are part of the published set-ups, word for word: an accuracy is comparable only under the same prompt, which is
why the template's id stands in every result. The families' own chat templates go around them.
"""

from dataclasses import dataclass

OTHERS = "lmms-eval"
"""The style of families without one of their own."""

SHORT_PHRASE = "\nAnswer the question using a single word or phrase."
SHORT_PHRASE_QWEN = "\nPlease try to answer the question with short words or phrases if possible."
LETTER = "\nAnswer with the option's letter from the given choices directly."
LETTER_QWEN = "Question: {question}\nOptions:\n{options}\nPlease select the correct answer from the options above."
EXPLANATION = "For the following question, provide a detailed explanation of your reasoning leading to the answer."
EXPLAIN = f"\n{EXPLANATION}"
"""MSD's setting of long answers (arXiv 2505.14260): for speed, its accuracies mean nothing."""


@dataclass(frozen=True)
class Prompt:
    """What the model is asked.

    Attributes:
        text: The user's turn, without pictures and chat template.
        template_id: ``task/mode/style``.
    """

    text: str
    template_id: str


def option_lines(choices: tuple[str, ...]) -> str:
    """``A. first``, ``B. second``, one a line."""
    return "\n".join(f"{chr(ord('A') + place)}. {choice}" for place, choice in enumerate(choices))
