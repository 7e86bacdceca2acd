"""Whether an evaluation's memory grows with the number of samples: the command itself, watched from outside (Linux).

    python eval/eval_memory.py --samples 5000 --json eval/results/eval_memory.json

Our own charts, drawn on the fly, plain decoding, two new tokens each. Memory is read from the kernel whenever rows were
written; the exit status is 1 when the peak rises by more than 3 % after the first tenth of the samples.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmsmart.eval.provenance import git_state, versions
from mmsmart.files import replacing

MARKS = (0.1, 0.2, 0.4, 1.0)
"""Shares of the samples at which memory is noted."""
MOST_GROWTH = 0.03
POLL_S = 0.05


@dataclass
class Watched:
    """What a process used when so many samples were done.

    Attributes:
        done: Samples.
        rss_mb: Resident memory, at each of them.
        peak_mb: The most so far.
    """

    done: list[int] = field(default_factory=list)
    rss_mb: list[float] = field(default_factory=list)
    peak_mb: list[float] = field(default_factory=list)

    def at(self, samples: int) -> dict[str, float]:
        """The first reading after so many samples, or the last one."""
        place = next((i for i, done in enumerate(self.done) if done >= samples), len(self.done) - 1)
        return {"samples": self.done[place], "rss_mb": self.rss_mb[place], "peak_mb": self.peak_mb[place]}


def watch(command: list[str], rows: Path) -> Watched:
    """Runs an evaluation and reads its memory whenever there are more rows."""
    found, size, done = Watched(), 0, 0
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while process.poll() is None:
        time.sleep(POLL_S)
        if not rows.is_file() or rows.stat().st_size == size:
            continue
        with open(rows, "rb") as file:
            file.seek(size)
            new = file.read()
        size, done = size + len(new), done + new.count(b"\n")
        try:
            status = Path(f"/proc/{process.pid}/status").read_text()
        except OSError:
            continue
        if "VmRSS:" not in status:
            continue  # it is ending
        found.done.append(done)
        found.rss_mb.append(_mb(status, "VmRSS"))
        found.peak_mb.append(_mb(status, "VmHWM"))
    if process.returncode:
        raise SystemExit(f"the evaluation ended with status {process.returncode}")
    return found


def _mb(status: str, name: str) -> float:
    return round(int(status.split(f"{name}:")[1].split()[0]) / 1024, 1)


def main() -> int:
    """Runs the evaluation, prints the readings, returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="tiny-llava", help="embedded name or folder")
    parser.add_argument("--samples", type=int, default=5000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = ["-m", "mmsmart.eval", "--dataset", "mmsmart-charts", "--limit", str(arguments.samples)]
        command += ["--model", arguments.model, "--policies", "none", "--max-new-tokens", "2"]
        command += ["--threads", str(arguments.threads), "--no-progress"]
        found = watch([sys.executable, *command, "--out", str(out)], out / "rows.jsonl")
    readings = [found.at(int(share * arguments.samples)) for share in MARKS]
    growth = readings[-1]["peak_mb"] / readings[0]["peak_mb"] - 1
    for reading in readings:
        print("{samples:6.0f} samples: {rss_mb:7.1f} MB, peak {peak_mb:7.1f} MB".format(**reading))
    print(f"growth of the peak after the first tenth: {100 * growth:.1f} %")
    if arguments.json:
        record: dict[str, Any] = {
            "command": " ".join(["python", "eval/eval_memory.py", *sys.argv[1:]]),
            "evaluation": " ".join(["python", *command]),
            "device": f"cpu {platform.machine()}, {os.cpu_count()} cores",
            "dtype": "float32",
            "threads": arguments.threads,
            "versions": versions(),
            "git": git_state(),
            "readings": readings,
            "peak_growth": round(growth, 4),
        }
        with replacing(arguments.json) as draft:
            draft.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 1 if growth > MOST_GROWTH else 0


if __name__ == "__main__":
    sys.exit(main())
