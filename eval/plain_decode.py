"""Plain decoding through mmsmart's loop against transformers' ``generate``: speed, per-round overhead, peak memory.

    python eval/plain_decode.py --batch 1,8 --json eval/results/plain_decode.json

Both sides start from the same pictures and questions, answer greedily without an EOS for a fixed number of tokens, in
one process, in turn (ours, theirs, ours, ...); figures are medians. Peak memory is taken in a process of its own for
each side.
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers

import mmsmart
from mmsmart.bench.baselines import GenerateArm
from mmsmart.bench.workload import requests as requests_of
from mmsmart.engine import Engine, Request


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Milliseconds and result of a call."""
    start = time.perf_counter()
    result = call()
    return 1e3 * (time.perf_counter() - start), result


def compare(engine: Engine, requests: list[Request], repeats: int) -> dict[str, Any]:
    """Medians of both sides for one batch, interleaved."""
    rows: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        rows.setdefault(name, []).append(value)

    other, size = GenerateArm("generate", engine.target), len(requests)
    first = [replace(request, sampling=replace(request.sampling, max_new_tokens=1)) for request in requests]
    identical = True
    for turn in range(repeats + 1):
        engine.target.forget_images()
        ours_ms, outputs = timed(lambda: engine.generate_batch(requests))
        first_ms, theirs = other.answer(first, size).wall_ms, other.answer(requests, size)
        theirs_ms = theirs.wall_ms
        if turn == 0:
            identical = [o.token_ids for o in outputs] == theirs.token_ids
            continue  # warm-up
        stats = outputs[0].stats  # rows of one length are in every round together
        note("ours_ms", ours_ms)
        note("theirs_ms", theirs_ms)
        note("ours_decode_ms", stats.decode_ms)
        note("theirs_decode_ms", theirs_ms - first_ms)
        note("ours_first_token_ms", ours_ms - stats.decode_ms)
        note("theirs_first_token_ms", first_ms)
        note("speed", theirs_ms / ours_ms)
        note("decode_speed", (theirs_ms - first_ms) / stats.decode_ms)
        note("overhead", 1 - stats.verify_ms / stats.decode_ms)
    result: dict[str, Any] = {name: round(statistics.median(values), 3) for name, values in rows.items()}
    return result | {"batch": size, "identical": identical}


def peak_memory(arguments: argparse.Namespace, side: str, batch: int) -> float:
    """Peak resident MB of a process that only answers one batch on one side (Linux)."""
    command = [sys.executable, __file__, "--model", arguments.model, "--side", side, "--batch", str(batch)]
    command += ["--tokens", str(arguments.tokens), "--threads", str(arguments.threads)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1])


def one_side(side: str, engine: Engine, requests: list[Request]) -> None:
    """Answers one batch on one side and prints the process's peak memory."""
    if side == "ours":
        engine.generate_batch(requests)
    else:
        GenerateArm("generate", engine.target).answer(requests, len(requests))
    status = Path("/proc/self/status").read_text()  # ru_maxrss would begin at the parent's
    print(int(status.split("VmHWM:")[1].split()[0]) / 1024)


def main() -> None:
    """Runs the comparison and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="tiny-llava", help="embedded name, folder or hub id")
    parser.add_argument("--batch", default="1,8", help="batch sizes, separated by commas")
    parser.add_argument("--tokens", type=int, default=64, help="new tokens of every answer")
    parser.add_argument("--repeats", type=int, default=15, help="turns, of which medians are taken")
    parser.add_argument("--threads", type=int, default=2, help="torch threads")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    parser.add_argument("--side", choices=("ours", "theirs"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    sizes = [int(size) for size in arguments.batch.split(",")]
    engine = mmsmart.load(arguments.model, policy="none", dtype="float32")
    engine.target.model.generation_config.eos_token_id = None
    engine.target.tokenizer.eos_token = None
    drawn = requests_of(max(sizes), 0, mmsmart.SamplingParams(max_new_tokens=arguments.tokens))
    if arguments.side:
        one_side(arguments.side, engine, drawn[: sizes[0]])
        return
    table = []
    for size in sizes:
        row = compare(engine, drawn[:size], arguments.repeats)
        memory = {side: peak_memory(arguments, side, size) for side in ("ours", "theirs")}
        row |= {f"{side}_peak_mb": round(mb, 1) for side, mb in memory.items()}
        row["memory_ratio"] = round(memory["ours"] / memory["theirs"], 3)
        table.append(row)
        print("\n".join(f"{name:18} {value}" for name, value in row.items()), end="\n\n")
    record = {
        "command": " ".join(["python", *sys.argv]),
        "model": arguments.model,
        "dtype": "float32",
        "threads": arguments.threads,
        "machine": platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "rows": table,
    }
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
