"""What a caller may set: frozen, checked on construction, so that a wrong value is refused before any work."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mmsmart.errors import InputError


@dataclass(frozen=True)
class SamplingParams:
    """How the next token is taken from the target's logits, and when to end.

    Attributes:
        max_new_tokens: Most tokens to write, at least 1.
        temperature: 0 takes the most probable token (greedy); above 0 draws from ``softmax(logits / temperature)``.
        top_p: Keep the smallest set of tokens whose probability reaches this, in (0, 1]; 1 keeps all.
        top_k: Keep this many most probable tokens (ties included); 0 keeps all.
        repetition_penalty: Divides positive and multiplies negative logits of every token already in the prompt or
            the answer (Keskar et al., 2019, arXiv 1909.05858). ``None`` takes the checkpoint's own value from its
            ``generation_config``, as transformers' ``generate`` does; 1 switches it off.
        stop: Strings that end the answer; the text ends before the first one, the token ids with the token that
            completed it.
        seed: Makes sampling repeatable; the same seed gives the same answer under every drafter and policy.
    """

    max_new_tokens: int = 512
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    repetition_penalty: float | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None

    def __post_init__(self) -> None:
        given: Any = self.stop
        if not isinstance(given, (str, tuple, list)):
            raise InputError(f"stop must be a string or a list of strings, got {given!r}")
        stop = (given,) if isinstance(given, str) else tuple(given)
        object.__setattr__(self, "stop", stop)
        if any(not isinstance(s, str) or not s for s in stop):
            raise InputError(f"stop must hold non-empty strings, got {stop!r}")
        require_whole("max_new_tokens", self.max_new_tokens, 1)
        require_whole("top_k", self.top_k, 0)
        _number("temperature", self.temperature, "at least 0", lambda v: v >= 0)
        _number("top_p", self.top_p, "in (0, 1]", lambda v: 0 < v <= 1)
        if self.repetition_penalty is not None:
            _number("repetition_penalty", self.repetition_penalty, "above 0", lambda v: v > 0)
        if self.seed is not None:
            require_whole("seed", self.seed, 0, 2**64 - 1)


def require_whole(name: str, value: object, least: int, most: int | None = None) -> None:
    """Refuses what is not a whole number in range.

    Raises:
        InputError: Names the value.
    """
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or value < least or (most is not None and value > most):  # type: ignore[operator]
        upper = "" if most is None else f" and at most {most}"
        raise InputError(f"{name} must be a whole number of at least {least}{upper}, got {value!r}")


def _number(name: str, value: Any, rule: str, holds: Callable[[float], bool]) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or not holds(value):
        raise InputError(f"{name} must be {rule}, got {value!r}")
