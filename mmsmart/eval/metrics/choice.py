"""Multiple choice: which option an answer names, by the rules of AI2D and ScienceQA."""

import re
import string
from collections.abc import Sequence

LETTERS = string.ascii_uppercase
SCIENCEQA_LETTERS = "ABCDE"

_LEADING_LETTER = re.compile(r"\s*([A-Z])\.")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_PHRASE = re.compile(r"The answer is ([A-Z]).")
_LOOSE_PHRASE = re.compile(r"answer is ([A-D])", re.IGNORECASE)
_SEPARATORS = str.maketrans(dict.fromkeys(".()[],:;!*#{}", " "))
_LAST_WORDS = 4


def ai2d_mcq(prediction: str, reference: str) -> float:
    """Exact match of an AI2D answer with the right letter, as lmms-eval scores it.

    A leading "X." stands for X; then case and ASCII punctuation are ignored on both sides.

    Args:
        prediction: The model's answer.
        reference: The right option's letter.
    """
    leading = _LEADING_LETTER.match(prediction)
    return float(_bare(leading[1] if leading else prediction) == _bare(reference))


def ai2d_mcq_tolerant(prediction: str, reference: str, choices: Sequence[str]) -> float:
    """As VLMEvalKit reads an AI2D answer without a judge model: finds the letter or option inside a sentence.

    Args:
        prediction: The model's answer.
        reference: The right option's letter.
        choices: Texts of the options.
    """
    return float(named_option(prediction, choices) == reference.upper())


def scienceqa_mcq(prediction: str, reference: str, num_choices: int) -> float:
    """Accuracy of one ScienceQA answer by LLaVA's rule, the one of the published numbers.

    The answer is a letter alone, or begins with "X. ", or holds exactly one "The answer is X" with a character after
    it; nothing is stripped or lower-cased, and a letter beyond the options is wrong.

    Args:
        prediction: The model's answer.
        reference: The right option's letter.
        num_choices: How many options there are.
    """
    if prediction and prediction in SCIENCEQA_LETTERS and len(prediction) == 1:
        letter = prediction
    elif prediction[:1] in tuple(SCIENCEQA_LETTERS) and prediction[1:3] == ". ":
        letter = prediction[0]
    else:
        letter = _phrase_letter(prediction)
    return float(letter == reference and letter in SCIENCEQA_LETTERS[:num_choices])


def scienceqa_mcq_tolerant(prediction: str, reference: str) -> float:
    """lmms-eval's rule for a ScienceQA answer (the letter in any case, or a leading "X."), then LLaVA's phrase.

    Args:
        prediction: The model's answer; space around it is dropped.
        reference: The right option's letter.
    """
    answer = prediction.strip()
    leading = _LEADING_LETTER.match(answer)
    letter = answer.upper() if len(answer) == 1 else leading[1] if leading else _phrase_letter(answer)
    return float(letter == reference)


def named_option(answer: str, choices: Sequence[str]) -> str:
    """The letter of the option that an answer names, "Z" if none or several (VLMEvalKit's rule without a judge).

    Tried in turn: the only option letter among the words, if it is one of the last four; "answer is X"; the only
    option text inside an answer that is at most twice as long as all options together.

    Args:
        answer: The model's answer.
        choices: Texts of the options.
    """
    letters = LETTERS[: len(choices)]
    words = answer.translate(_SEPARATORS).split()
    found = [letter for letter in letters if letter in words]
    if len(found) == 1 and words.index(found[0]) >= len(words) - _LAST_WORDS:
        return found[0]
    if phrase := _LOOSE_PHRASE.search(answer):
        return phrase[1].upper()
    lowered = answer.lower()
    if len(lowered) <= 2 * sum(map(len, choices)):
        inside = [letter for letter, text in zip(letters, choices, strict=False) if text.lower() in lowered]
        if len(inside) == 1:
            return inside[0]
    return "Z"


def _bare(text: str) -> str:
    return text.strip().lower().translate(_NO_PUNCTUATION)


def _phrase_letter(text: str) -> str:
    found: list[str] = _PHRASE.findall(text)
    return found[0] if len(found) == 1 else ""
