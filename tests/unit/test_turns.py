import threading
import time

from mmsmart.turns import TurnLock


def test_callers_take_turns() -> None:
    lock, order = TurnLock(), []

    def work(name: str) -> None:
        for _ in range(5):
            with lock:
                order.append(name)
                time.sleep(0.002)

    threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
    with lock:  # both are queued before the first may go
        for thread in threads:
            thread.start()
        time.sleep(0.05)
    for thread in threads:
        thread.join(timeout=10)
    assert "".join(order) in ("ababababab", "bababababa")


def test_an_error_inside_releases_the_lock() -> None:
    lock = TurnLock()
    for _ in range(2):
        try:
            with lock:
                raise KeyboardInterrupt
        except KeyboardInterrupt:
            pass
    with lock:
        pass


def test_only_one_at_a_time() -> None:
    lock, inside, worst = TurnLock(), 0, 0

    def work() -> None:
        nonlocal inside, worst
        for _ in range(50):
            with lock:
                inside += 1
                worst = max(worst, inside)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=10)
    assert worst == 1
