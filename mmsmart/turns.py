"""A lock that is handed on in the order of asking."""

from __future__ import annotations

import threading
from collections import deque
from types import TracebackType


class TurnLock:
    """A mutual exclusion lock with first-come, first-served order.

    `threading.Lock` lets the thread that released it take it again at once, so that a long answer would starve
    every other caller; here the rounds of several callers really take turns. Not reentrant.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._waiting: deque[threading.Event] = deque()
        self._held = False

    def __enter__(self) -> TurnLock:
        with self._guard:
            if not self._held:
                self._held = True
                return self
            turn = threading.Event()
            self._waiting.append(turn)
        try:
            turn.wait()
        except BaseException:  # Ctrl-C while waiting: leave the queue, or pass on a turn that just came
            self._leave(turn)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pass_on()

    def _leave(self, turn: threading.Event) -> None:
        with self._guard:
            queued = turn in self._waiting
            if queued:
                self._waiting.remove(turn)
        if not queued:
            self._pass_on()

    def _pass_on(self) -> None:
        with self._guard:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._held = False
