"""The device: one job at a time, in the order of asking, freed within a round when its visitor leaves.

Jobs run on one thread of their own and hand over a state when the visitor's side asks for the next one. So nothing that
the page does (drawing, sending) runs beside a round that is being timed, and a visitor's side that vanishes without a
word cannot keep the device: its job ends when nobody asks for ``patience_s``.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from mmsmart.errors import InputError

State = TypeVar("State")
_POLL_S = 0.25


class Stopped(Exception):  # noqa: N818 - what a visitor wished for is no error
    """The visitor pressed Stop or left."""


class Token:
    """A visitor's wish to stop, looked at after every round."""

    def __init__(self) -> None:
        self._wish = threading.Event()

    @property
    def cancelled(self) -> bool:
        """Whether to stop."""
        return self._wish.is_set()

    def cancel(self) -> None:
        """Asks the job to end."""
        self._wish.set()

    def check(self) -> None:
        """Ends the work that calls it, if the visitor wishes so.

        Raises:
            Stopped: He does.
        """
        if self.cancelled:
            raise Stopped


@dataclass(frozen=True)
class Waiting:
    """Others come first.

    Attributes:
        ahead: How many.
    """

    ahead: int


class _Task:
    """A job on its way: what the two sides know of each other."""

    def __init__(self, token: Token) -> None:
        self.token = token
        self.wanted = threading.Semaphore(0)
        self.box: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.started = False
        self.left = False


_END = object()


class Device:
    """Runs jobs one after the other.

    Args:
        longest: Jobs that may wait or run; further ones are refused.
        patience_s: How long a job waits for its visitor to take a state.
    """

    def __init__(self, longest: int = 8, patience_s: float = 20.0) -> None:
        self.longest, self.patience_s = longest, patience_s
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="mmsmart-device")
        self._guard = threading.Lock()
        self._tasks: list[_Task] = []

    @property
    def load(self) -> int:
        """Jobs that wait or run."""
        with self._guard:
            return len(self._tasks)

    def run(
        self, job: Callable[[Token], Generator[State, None, None]], token: Token
    ) -> Generator[State | Waiting, None, None]:
        """The states of a job; closing the iterator, or the token, ends the work within a round.

        Args:
            job: Called on the device's thread; looks at the token after every round.
            token: Shared with whoever may stop the job.

        Raises:
            InputError: Too many wait already.
            Stopped: While the job still waited, or from the job itself.
        """
        task = _Task(token)
        with self._guard:
            if len(self._tasks) >= self.longest:
                raise InputError(f"the device is busy and {self.longest - 1} others wait for it; try again in a minute")
            self._tasks.append(task)
        future = self._pool.submit(self._perform, job, task)
        future.add_done_callback(lambda _: self._finish(task))
        return self._states(task, future)

    def close(self) -> None:
        """Stops all jobs and waits for the thread to end."""
        with self._guard:
            for task in self._tasks:
                _leave(task)
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _states(self, task: _Task, future: Future[None]) -> Generator[Any, None, None]:
        try:
            while True:
                task.wanted.release()
                while (state := self._next(task)) is None:
                    if task.token.cancelled and not task.started:
                        raise Stopped
                    if not task.started:
                        yield Waiting(self._ahead(task))
                if state is _END:
                    if not future.cancelled():
                        future.result()
                    return
                yield state
        finally:
            _leave(task)
            future.cancel()

    def _next(self, task: _Task) -> Any:
        """The next state, ``None`` when there is none yet."""
        try:
            return task.box.get(timeout=_POLL_S)
        except queue.Empty:
            return None

    def _ahead(self, task: _Task) -> int:
        with self._guard:
            return self._tasks.index(task) if task in self._tasks else 0

    def _perform(self, job: Callable[[Token], Generator[State, None, None]], task: _Task) -> None:
        if task.left:
            return
        task.started = True
        states = job(task.token)
        try:
            while task.wanted.acquire(timeout=self.patience_s) and not task.left:
                state = next(states, _END)
                if state is _END:
                    return
                task.box.put(state)
        finally:
            states.close()

    def _finish(self, task: _Task) -> None:
        with self._guard:
            self._tasks.remove(task)
        task.box.put(_END)


def _leave(task: _Task) -> None:
    task.left = True
    task.token.cancel()
    task.wanted.release()
