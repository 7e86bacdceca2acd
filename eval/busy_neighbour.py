"""A step change in load: rate-optimal before and while neighbours keep every core busy.

    python eval/busy_neighbour.py --json eval/results/busy_neighbour.json

Questions are answered in turn by plain decoding and by rate-optimal, the second half of them beside busy processes.
Shown: the size of the trees round by round around the change, and the speed over plain decoding on each side.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from mmsmart.api import load, with_policy
from mmsmart.bench.workload import requests
from mmsmart.config import SamplingParams
from mmsmart.engine import Engine, Request

SPIN = "import numpy as np\na = np.ones((300, 300))\nwhile True: a @ a"
WINDOW = 20


def answer(engine: Engine, batch: list[Request]) -> tuple[float, list[dict[str, float]], list[list[int]]]:
    """Wall seconds, a record of every round, and the ids of one batch."""
    engine.target.forget_images()
    start = time.perf_counter()
    prompts = [engine.prepare(request) for request in batch]
    running = engine.start(prompts)
    rounds = []
    while not running.done:
        done = engine.step(running)
        rounds.append({"nodes": float(done.record.tree.num_nodes), "verify_ms": done.record.verify_ms})
    return time.perf_counter() - start, rounds, [prompt.sequence.token_ids for prompt in prompts]


def half(plain: Engine, fast: Engine, batches: list[list[Request]]) -> dict[str, Any]:
    """Both engines over the same batches, in turn."""
    ratios, rounds, identical = [], [], True
    for batch in batches:
        plain_s, _, expected = answer(plain, batch)
        fast_s, seen, ids = answer(fast, batch)
        ratios.append(plain_s / fast_s)
        rounds += seen
        identical &= ids == expected
    return {"speedup": statistics.median(ratios), "identical": identical, "rounds": rounds}


def main() -> None:
    """Runs both halves and prints what changed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="tiny-llava", help="embedded name, folder or hub id")
    parser.add_argument("--batch", type=int, default=8, help="questions answered at once")
    parser.add_argument("--questions", type=int, default=96, help="of each half")
    parser.add_argument("--threads", type=int, default=2, help="torch threads")
    parser.add_argument("--neighbours", type=int, default=os.cpu_count(), help="busy processes")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    plain = load(arguments.model, policy="none", dtype="float32")
    fast = with_policy(plain, "rate-optimal")
    drawn = requests(2 * arguments.questions, 0, SamplingParams(max_new_tokens=128))
    size = arguments.batch
    batches = [drawn[start : start + size] for start in range(0, len(drawn), size)]
    middle = len(batches) // 2
    half(plain, fast, batches[:2])  # warm-up
    before = half(plain, fast, batches[:middle])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    busy = [subprocess.Popen([sys.executable, "-c", SPIN], env=environment) for _ in range(arguments.neighbours)]
    try:
        time.sleep(1.0)
        after = half(plain, fast, batches[middle:])
    finally:
        for process in busy:
            process.kill()
    nodes = [one["nodes"] for one in before["rounds"]], [one["nodes"] for one in after["rounds"]]
    record = {
        "command": " ".join(["python", *sys.argv]),
        "mean_nodes_last_20_quiet": statistics.mean(nodes[0][-WINDOW:]),
        "mean_nodes_first_20_busy": statistics.mean(nodes[1][:WINDOW]),
        "mean_nodes_next_20_busy": statistics.mean(nodes[1][WINDOW : 2 * WINDOW]),
        "verify_ms_quiet": statistics.median(one["verify_ms"] for one in before["rounds"]),
        "verify_ms_busy": statistics.median(one["verify_ms"] for one in after["rounds"]),
        "speedup_quiet": before["speedup"],
        "speedup_busy": after["speedup"],
        "identical": before["identical"] and after["identical"],
        "nodes_quiet": nodes[0][-3 * WINDOW :],
        "nodes_busy": nodes[1][: 3 * WINDOW],
    }
    print("\n".join(f"{name:26} {value}" for name, value in record.items()))
    if arguments.json:
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
