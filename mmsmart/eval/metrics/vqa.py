"""VQA accuracy (VQA v2) and its TextVQA variant: agreement with ten people, each left out in turn."""

from collections.abc import Callable, Sequence

from mmsmart.errors import InputError
from mmsmart.eval.metrics.normalize import clean_space, textvqa_normalize, vqa_normalize

TEXTVQA_ANSWERS = 10
_ENOUGH = 3
"""So many agreeing people make an answer wholly right."""


def vqa_accuracy(prediction: str, references: Sequence[str], *, strict_official: bool = False) -> float:
    """Accuracy of one VQA v2 answer, both sides in the normal form that EvalAI users upload.

    ``mean over i of min(1, |{j != i : a_j = p}| / 3)``: with ten answers 0, 0.3, 0.6, 0.9 or 1 for 0, 1, 2, 3 or more
    people who agree. People are left out by position, so equal answers stay apart.

    Args:
        prediction: The model's answer.
        references: The people's answers, ten in the official data.
        strict_official: Leave both sides as they are when all references are the same, as the official script does.

    Raises:
        InputError: Fewer than two references.
    """
    if strict_official and len({clean_space(answer) for answer in references}) == 1:
        return _agreement(prediction, references, clean_space)
    return _agreement(prediction, references, vqa_normalize)


def textvqa_accuracy(prediction: str, references: Sequence[str]) -> float:
    """Accuracy of one TextVQA answer: `vqa_accuracy` with TextVQA's normal form and exactly ten references.

    Raises:
        InputError: Not ten references.
    """
    if len(references) != TEXTVQA_ANSWERS:
        raise InputError(f"TextVQA accuracy needs {TEXTVQA_ANSWERS} references, got {len(references)}")
    return _agreement(prediction, references, textvqa_normalize)


def _agreement(prediction: str, references: Sequence[str], normalize: Callable[[str], str]) -> float:
    count = len(references)
    if count < 2:
        raise InputError(f"VQA accuracy leaves one reference out, so it needs at least two, got {count}")
    answer = normalize(prediction)
    matches = [normalize(reference) == answer for reference in references]
    thirds = sum(min(_ENOUGH, sum(matches) - matched) for matched in matches)
    return thirds / (_ENOUGH * count)  # one division: 0.9 comes out as 0.9
