"""What a visitor may send, and the one line that says why something cannot be used."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from mmsmart import images
from mmsmart.config import SamplingParams
from mmsmart.errors import ImageError, InputError

MAX_BYTES = 12 * 2**20
MAX_PIXELS = 24_000_000
MAX_QUESTION = 1_000
MAX_TOKENS = 512
MAX_BATCH = 32
MAX_PASSES = 5
MAX_BUDGET = 64
MAX_TEMPERATURE = 2.0
MAX_SEED = 2**32


@dataclass(frozen=True)
class Settings:
    """What a visitor chose.

    Attributes:
        model, drafter, policy: Among those that the page offers.
        temperature: 0 is greedy.
        max_new_tokens: Most tokens of an answer.
        budget: Most drafts verified a round; 0 leaves it to the policy.
        seed: Of both answers, for temperatures above 0.
    """

    model: str
    drafter: str
    policy: str
    temperature: float = 0.0
    max_new_tokens: int = 128
    budget: int = 0
    seed: int = 0

    def sampling(self) -> SamplingParams:
        """The engine's parameters.

        Raises:
            InputError: A value out of range.
        """
        within("the maximum length", self.max_new_tokens, 1, MAX_TOKENS)
        within("the temperature", self.temperature, 0, MAX_TEMPERATURE)
        within("the budget", self.budget, 0, MAX_BUDGET)
        within("the seed", self.seed, 0, MAX_SEED)
        return SamplingParams(
            max_new_tokens=int(self.max_new_tokens), temperature=float(self.temperature), seed=int(self.seed)
        )


def within(name: str, value: object, least: float, most: float) -> None:
    """Refuses a number out of range, or none at all.

    Raises:
        InputError: Names it.
    """
    if not isinstance(value, int | float) or not least <= value <= most:
        raise InputError(f"{name} must be from {least} to {most}, got {value!r}")


def checked_question(question: object) -> str:
    """A visitor's question.

    Raises:
        InputError: It is empty or too long.
    """
    if not isinstance(question, str) or not question.strip():
        raise InputError("the question is empty; ask something about the picture")
    if len(question) > MAX_QUESTION:
        raise InputError(f"the question has {len(question):,} characters; ask with at most {MAX_QUESTION:,}")
    return question.strip()


def read_picture(path: str | Path | None) -> Image.Image:
    """A visitor's picture, upright RGB.

    Raises:
        ImageError: There is none, it is too large, or it cannot be read.
    """
    if not path:
        raise ImageError("there is no picture; drop one, or take one of the examples")
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ImageError("the picture is no longer on the server; upload it again") from error
    if len(data) > MAX_BYTES:
        raise ImageError(f"the picture has {len(data) / 2**20:.1f} MiB; upload at most {MAX_BYTES // 2**20} MiB")
    try:
        return images.load(data, max_pixels=MAX_PIXELS)
    except ImageError as error:
        # The visitor knows of no bytes objects.
        raise ImageError(str(error).replace(f"bytes object of length {len(data)}", "the picture")) from error


def one_line(error: BaseException) -> str:
    """An error as the page says it."""
    text = " ".join(str(error).split()) or type(error).__name__
    text = text.replace("max_new_tokens", "the maximum length")
    return f"{text[0].upper()}{text[1:]}"
