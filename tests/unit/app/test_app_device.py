import threading
import time
from collections.abc import Generator

import pytest

from app.device import Device, Stopped, Token, Waiting
from mmsmart.errors import InputError


@pytest.fixture
def device():
    made = Device(longest=3, patience_s=0.5)
    yield made
    made.close()


class Work:
    """A job of rounds that can be counted."""

    def __init__(self, rounds: int = 5, pause_s: float = 0.0) -> None:
        self.rounds, self.pause_s, self.done, self.closed = rounds, pause_s, 0, threading.Event()

    def __call__(self, token: Token) -> Generator[int, None, None]:
        try:
            for number in range(self.rounds):
                token.check()
                time.sleep(self.pause_s)
                self.done += 1
                yield number
        finally:
            self.closed.set()


def test_states_come_in_order_and_none_is_computed_before_it_is_asked_for(device):
    work = Work()
    states = device.run(work, Token())
    assert next(states) == 0
    time.sleep(0.1)
    assert work.done == 1
    assert list(states) == [1, 2, 3, 4]
    assert work.closed.is_set()
    assert device.load == 0


def test_closing_the_visitors_side_ends_the_job(device):
    work = Work(rounds=1000)
    states = device.run(work, Token())
    next(states)
    states.close()
    assert work.closed.wait(5)
    assert work.done == 1


def test_a_token_stops_the_job_and_the_visitor_hears_of_it(device):
    work, token = Work(rounds=1000), Token()
    states = device.run(work, token)
    next(states)
    token.cancel()
    with pytest.raises(Stopped):
        next(states)
    assert work.closed.is_set()


def test_a_visitor_who_never_asks_again_is_not_waited_for_forever(device):
    abandoned = Work(rounds=1000)
    states = device.run(abandoned, Token())
    next(states)
    assert list(device.run(Work(2), Token()))[-2:] == [0, 1]
    assert abandoned.closed.is_set()
    assert list(states) == []


def test_jobs_do_not_mix_and_who_waits_is_told(device):
    device.patience_s = 30
    first, second = device.run(Work(2, pause_s=0.4), Token()), device.run(Work(2), Token())
    assert next(first) == 0
    assert next(second) == Waiting(1)
    assert list(first) == [1]
    assert list(second)[-2:] == [0, 1]


def test_a_job_that_still_waits_can_be_stopped(device):
    device.patience_s = 30
    first, token = device.run(Work(3), Token()), Token()
    next(first)
    waiting = device.run(Work(), token)
    assert next(waiting) == Waiting(1)
    token.cancel()
    with pytest.raises(Stopped):
        list(waiting)
    assert list(first) == [1, 2]
    assert device.load == 0


def test_too_many_are_refused_in_words(device):
    running = [device.run(Work(), Token()) for _ in range(3)]
    with pytest.raises(InputError, match="the device is busy and 2 others wait"):
        device.run(Work(), Token())
    for states in running:
        list(states)
    assert list(device.run(Work(1), Token())) == [0]


def test_an_error_reaches_its_visitor_and_the_thread_lives_on(device):
    def broken(token: Token) -> Generator[int, None, None]:
        yield 1
        raise RuntimeError("broken")

    states = device.run(broken, Token())
    assert next(states) == 1
    with pytest.raises(RuntimeError, match="broken"):
        next(states)
    assert list(device.run(Work(1), Token())) == [0]


def test_closing_the_device_ends_its_thread_and_its_job():
    device, work = Device(), Work(rounds=1000)
    before = threading.active_count()
    states = device.run(work, Token())
    next(states)
    assert threading.active_count() == before + 1
    device.close()
    assert work.closed.is_set()
    assert threading.active_count() == before
