"""Whether drafting pays: accounts of what it brought, rests when it does not, and ever rarer new tries."""

from __future__ import annotations

_FIRST_PAUSE = 8
"""Plain rounds before drafting is tried again; doubles with every failed try."""
_LONGEST_PAUSE = 128
_TRIAL = 3
"""Rounds of a try while nothing is known of the drafter; later ones take one."""
_RATE = 0.05
"""Share of the newest round in the running averages."""


class Book:
    """The accounts of batches of about one size, in units of plain decoding.

    Attributes:
        nodes: Drafts a row that were verified last; 0 before any.
        resting: Rounds left without drafting.
    """

    def __init__(self) -> None:
        self.nodes = self.resting = 0
        self._tokens = self._plain = 0.0  # written, and what plain decoding would have written in the same time
        self._stint = [0.0, 0.0, 0]  # the same since the last rest, and its rounds
        self._retry = 0  # rounds of a try when the drafter is known: none before the first rest, one after it
        self._pause = _FIRST_PAUSE

    @property
    def gain(self) -> float:
        """The speed of the last rounds over plain decoding's; 1 before any."""
        return self._tokens / self._plain if self._plain else 1.0

    def drafting(self, promising: bool, known: bool) -> bool:
        """Whether to draft now: it looks promising, it paid since the last rest, or it is being tried.

        Args:
            promising: Whether typical drafts would pay.
            known: Whether that rests on experience with the drafter.
        """
        tokens, plain, rounds = self._stint
        if promising or tokens > plain:
            return True
        if rounds < (self._retry if known else _TRIAL):
            return True
        self.resting, self._pause = self._pause, min(2 * self._pause, _LONGEST_PAUSE)
        self._stint, self._retry = [0.0, 0.0, 0], 1
        return False

    def rest(self, tokens: float) -> None:
        """Books a round of a rest: plain decoding as it is."""
        self.resting -= 1
        self._add(tokens, tokens)

    def note(self, drafted: bool, tokens: float, plain: float) -> None:
        """Books any other round; ``plain`` is what plain decoding would have written in its time."""
        self._add(tokens, plain)
        if not drafted:
            return
        before = self._stint
        self._stint = [(1 - _RATE) * before[0] + tokens, (1 - _RATE) * before[1] + plain, before[2] + 1]
        if self._stint[2] > 4 * _TRIAL:
            self._pause = _FIRST_PAUSE

    def _add(self, tokens: float, plain: float) -> None:
        self._tokens = (1 - _RATE) * self._tokens + tokens
        self._plain = (1 - _RATE) * self._plain + plain
