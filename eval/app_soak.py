"""Soaks the app: many questions by two visitors at once, with random stops and reloads; memory, threads, answers.

    python eval/app_soak.py --questions 200 --json eval/results/app_soak.json

A server of its own, the system's Chromium with two separate visitors. Each asks a bundled question; then, by chance,
it waits for the answer, presses Stop, reloads the page, or closes it and comes back. The exit status is 1 when an
answer is missing, memory grows, a thread is left over, or the server does not end.
"""

import argparse
import json
import os
import platform
import random
import shutil
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

QUESTIONS = ("Which bar is the tallest?", "What is the largest value?", "Which slice is the smallest?")
TIMEOUT_MS = 300_000
WARM_UP = 0.4
"""Share of the questions before memory is compared: the server remembers so many visitors and no more."""
GROWTH_MB = 16.0
POOL_THREADS = 4
"""The server's pool of threads breathes."""
IDLE_S = 15.0
"""After this long without work the server's pool has let its threads go."""


class Server:
    """``python -m app`` in a process of its own."""

    def __init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [sys.executable, "-m", "app", "--port", str(port), "--threads", "1"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.address = f"http://127.0.0.1:{port}"
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("open "):
                return
        raise SystemExit("the server did not start")

    def status(self, field: str) -> int:
        """A number from the kernel's account of the process."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(next(line for line in text.splitlines() if line.startswith(f"{field}:")).split()[1])

    @property
    def rss_mb(self) -> float:
        """Resident memory."""
        return self.status("VmRSS") / 1024

    @property
    def threads(self) -> int:
        """Threads that live."""
        return self.status("Threads")

    def end(self) -> int:
        """Asks it to end; returns the exit status."""
        self.process.terminate()
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return -1


class Visitor:
    """One page; what it did is counted."""

    def __init__(self, browser: Browser, address: str, rng: random.Random, counts: dict[str, int]) -> None:
        self.browser, self.address, self.rng, self.counts = browser, address, rng, counts
        self.page = self.arrive()

    def arrive(self) -> Page:
        """Opens the page as somebody new."""
        page = self.browser.new_context().new_page()
        page.set_default_timeout(TIMEOUT_MS)
        page.goto(self.address)
        page.wait_for_selector("#run")
        return page

    def ask(self) -> None:
        """Takes an example and presses Run."""
        question = self.rng.choice(QUESTIONS)
        self.page.get_by_text(question, exact=True).first.click()
        self.page.wait_for_function("q => document.querySelector('#question textarea').value === q", arg=question)
        self.page.wait_for_selector("#picture img")
        self.page.evaluate("document.querySelector('#race .badge')?.remove()")
        self.page.click("#run")
        self.counts["asked"] += 1

    def go_on(self) -> None:
        """What the visitor does with the running answer."""
        chance = self.rng.random()
        if chance < 0.2:
            self.page.wait_for_timeout(self.rng.uniform(0, 600))
            self.page.click("#stop")
            self.page.wait_for_function(
                "() => /^(Stopped|Done)$/.test(document.querySelector('#race .status')?.innerText)"
            )
            self.counts["stopped"] += 1
        elif chance < 0.4:
            self.page.wait_for_timeout(self.rng.uniform(0, 400))
            self.page.reload()
            self.page.wait_for_selector("#run")
            self.counts["reloaded"] += 1
        elif chance < 0.55:
            self.page.context.close()
            self.page = self.arrive()
            self.counts["left"] += 1
        else:
            self.page.wait_for_selector("#race .badge.yes")
            self.counts["answered"] += 1


def soak(server: Server, questions: int, seed: int, path: str) -> dict[str, Any]:
    """Asks; returns what was counted and measured."""
    rng = random.Random(seed)
    counts = dict.fromkeys(("asked", "answered", "stopped", "reloaded", "left"), 0)
    memory: list[tuple[int, float]] = []
    start = time.monotonic()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])
        visitors = [Visitor(browser, server.address, rng, counts) for _ in range(2)]
        threads = 0
        while counts["asked"] < questions:
            for visitor in visitors:
                visitor.ask()
            for visitor in visitors:
                visitor.go_on()
            memory.append((counts["asked"], round(server.rss_mb, 1)))
            if counts["asked"] <= WARM_UP * questions:
                threads = max(threads, server.threads)
        elapsed = time.monotonic() - start
        last = Visitor(browser, server.address, rng, dict.fromkeys(counts, 0))
        last.ask()
        last.page.wait_for_selector("#race .badge.yes")
        browser.close()
    time.sleep(IDLE_S)
    after = [mb for asked, mb in memory if asked > WARM_UP * questions]
    half = len(after) // 2
    early, late = (statistics.median(part) if part else 0.0 for part in (after[:half], after[half:]))
    return counts | {
        "seconds": round(elapsed),
        "rss_mb": memory,
        "rss_mb_first_half": early,
        "rss_mb_second_half": late,
        "threads_while_warming_up": threads,
        "threads_at_rest": server.threads,
    }


def main() -> int:
    """Soaks, prints and writes the record."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    path = shutil.which("chromium")
    if path is None:
        raise SystemExit("there is no Chromium on this machine: apt-get install chromium")
    server = Server()
    try:
        record = soak(server, arguments.questions, arguments.seed, path)
    finally:
        status = server.end()
    record |= {"exit_status": status, "machine": f"{platform.machine()}, {os.cpu_count()} CPUs"}
    faults = [
        *(["memory grew"] if record["rss_mb_second_half"] > record["rss_mb_first_half"] + GROWTH_MB else []),
        *(
            ["threads were left over"]
            if record["threads_at_rest"] > record["threads_while_warming_up"] + POOL_THREADS
            else []
        ),
        *(["the server did not end"] if status not in (0, 130) else []),
    ]
    record["faults"] = faults
    if arguments.json:
        command = f"python eval/app_soak.py --questions {arguments.questions} --seed {arguments.seed}"
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps({"command": command} | record) + "\n")
    print(json.dumps({key: value for key, value in record.items() if key != "rss_mb"}))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
