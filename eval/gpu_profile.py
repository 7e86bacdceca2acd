"""What decoding LLaVA-1.5-7B, 13B and Qwen2-VL-7B costs on this GPU, and what each policy would make of it.

    PYTHONPATH=. python eval/gpu_profile.py --json eval/results/gpu_profile.json

Targets and MSD heads have random weights of the published shapes, made on the device in bfloat16: times do not depend
on what weights say. Measured through the engine, eager and compiled, batch by batch: plain rounds, the target's forward
over n nodes, a depth of drafting, peak memory, and the share of the device's own memory bandwidth that a plain step
reaches. Then acceptance recorded with ``eval/acceptance.py`` is replayed through the policies on these costs:
predictions, labelled as such, and as good as the recording is like the model in question. The file is written after
every part; ``--replay FILE`` repeats only the predictions, without a GPU.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import transformers
from acceptance import Trace
from gpu_device import bandwidth_gb_s, device_of, free, peak_gb, reset_peak, wait
from random_models import PUBLISHED, TINY, cache_bytes, random_engine, weights_read_bytes
from replay import Device, predict

from mmsmart.command import Parser, run
from mmsmart.costs.profiler import Profile, measure, paper_curves
from mmsmart.costs.table import CostTable, Grid
from mmsmart.engine import Engine
from mmsmart.files import replacing
from mmsmart.policies.base import TreePolicy
from mmsmart.policies.chain import Chain
from mmsmart.policies.likelihood import Likelihood
from mmsmart.policies.none import NoDrafting
from mmsmart.policies.rate_optimal import RateOptimal
from mmsmart.policies.smart import Smart
from mmsmart.policies.static import StaticTree
from mmsmart.profiling import EngineBench, node_sizes

ACCEPTANCE = Path(__file__).resolve().parent / "data" / "acceptance_tiny_llava.json"
MODES = ("eager", "compiled")
_TREE_NODES, _TREE_DEPTH = 59, 6
"""MSD's tree: 59 drafts, at most six deep."""


class Report:
    """The figures so far, on disk after every part."""

    def __init__(self, path: Path, record: dict[str, Any]) -> None:
        self.path, self.record = path, record

    def save(self) -> None:
        """Writes the file, whole or not at all."""
        with replacing(self.path) as draft:
            draft.write_text(json.dumps(self.record, indent=1) + "\n", encoding="utf-8")


class Probe(EngineBench):
    """An engine's batch that also runs whole plain rounds."""

    def plain_round_ms(self) -> float:
        """Median wall time of a round without drafts."""
        plain = Engine(self.engine.target, self.engine.drafter, NoDrafting())
        times = []
        for _ in range(7):
            start = time.perf_counter()
            plain.step(self.batch)
            times.append(1e3 * (time.perf_counter() - start))
        return statistics.median(times)


def measure_batch(engine: Engine, batch: int, context: int, bandwidth: float) -> tuple[CostTable, dict[str, Any]]:
    """One row of the report: every cost of one batch size, and its table."""
    target, probes = engine.target, []
    if target.compiled is not None:
        target.compiled.forget()  # of the batch before, which would count in this one's peak
    reset_peak(target.device)

    def bench(rows: int, slots: int) -> Probe:
        probes.append(Probe(engine, rows, slots))
        return probes[-1]

    sizes = {"batches": (batch,), "contexts": (context,), "nodes": node_sizes(target)}
    with torch.inference_mode():
        measured = measure(bench, {}, **sizes, synchronize=lambda: wait(target.device), progress=False).table
        plain_round_ms = probes[0].plain_round_ms()
    verify, draft = measured.verify.curve(batch, context), measured.draft.curve(batch, context)
    weights, slots = weights_read_bytes(target), cache_bytes(target) * batch * context
    row = {
        "batch": batch,
        "context": context,
        "plain_round_ms": plain_round_ms,
        "plain_forward_ms": float(verify[0]),
        "verify_ms": dict(zip(map(str, measured.verify.sizes), verify.tolist(), strict=True)),
        "draft_ms": dict(zip(map(str, measured.draft.sizes), draft.tolist(), strict=True)),
        "other_ms": measured.fixed_ms,
        "weights_read_gb": weights / 1e9,
        "cache_read_gb": slots / 1e9,
        "bandwidth_share": (weights + slots) / 1e6 / float(verify[0]) / bandwidth,
        "peak_memory_gb": peak_gb(target.device),
    }
    return measured, rounded(row)


def measure_part(engine: Engine, arguments: argparse.Namespace, bandwidth: float, save: Callable[[Any], None]) -> None:
    """All batch sizes of one model in one mode, as far as the part's time goes."""
    start, part = time.perf_counter(), {"rows": [], "left_out": []}
    tables: list[CostTable] = []
    for batch in arguments.batch:
        if time.perf_counter() - start > arguments.seconds:
            part["left_out"].append({"batch": batch, "why": f"the part's {arguments.seconds} seconds were used up"})
            continue
        try:
            table, row = measure_batch(engine, batch, arguments.context, bandwidth)
        except RuntimeError as error:  # out of memory, or what the compiler does not take: the others are still of use
            part["left_out"].append({"batch": batch, "why": " ".join(str(error).split())[:300]})
            free()
            continue
        tables.append(table)
        part["rows"].append(row)
        part |= {"seconds": round(time.perf_counter() - start, 1), "table": asdict(joined(tables))}
        save(part)
    save(part)


def joined(tables: Sequence[CostTable]) -> CostTable:
    """One table of batches measured apart."""
    ordered = sorted(tables, key=lambda table: table.verify.batches)
    grids = []
    for name in ("verify", "draft"):
        parts: list[Grid] = [getattr(table, name) for table in ordered]
        ms = tuple(tuple(part.ms[i][0] for part in parts) for i in range(len(parts[0].sizes)))
        grids.append(Grid(parts[0].sizes, tuple(p.batches[0] for p in parts), parts[0].contexts, ms))
    return CostTable(grids[0], grids[1], ordered[0].fixed_ms, {})


def policies(trace: Trace) -> dict[str, Callable[[], TreePolicy]]:
    """The arms; a learning policy starts anew in each replay."""
    paths = trace.static_paths(_TREE_NODES, _TREE_DEPTH)
    return {
        "none": NoDrafting,
        "chain:depth=5": lambda: Chain(5),
        f"static:{_TREE_NODES} nodes most often accepted": lambda: StaticTree(paths),
        f"likelihood:depth={_TREE_DEPTH - 1},top_k=10,total={_TREE_NODES}": lambda: Likelihood(
            _TREE_DEPTH - 1, 10, _TREE_NODES
        ),
        "smart": Smart,
        "rate-optimal": RateOptimal,
    }


def replay_part(part: dict[str, Any], trace: Trace, rounds: int) -> list[dict[str, Any]]:
    """Every policy at every measured batch size."""
    record = part["table"]
    verify, draft = (_grid(record[name]) for name in ("verify", "draft"))
    results = []
    for row in part["rows"]:
        table = CostTable(verify, draft, row["other_ms"], {})
        context = row["context"]
        costs = Profile(table, paper_curves(table, context=context))
        for name, make in policies(trace).items():
            other_ms = max(0.0, row["plain_round_ms"] - row["plain_forward_ms"])
            device = Device(trace, table, row["batch"], context, other_ms)
            prediction = predict(device, make(), costs, rounds=rounds, warm=rounds // 2)
            results.append({"batch": row["batch"], "policy": name} | asdict(prediction))
    return results


def rounded(row: dict[str, Any]) -> dict[str, Any]:
    """Four decimals are more than any of these figures is good for."""
    return {
        key: rounded(value) if isinstance(value, dict) else round(value, 4) if isinstance(value, float) else value
        for key, value in row.items()
    }


def show(record: dict[str, Any]) -> None:
    """Prints the figures as tables."""
    for name, part in record["parts"].items():
        print(f"\n{name}: plain round ms, forward ms, share of bandwidth, draft depth ms (4 nodes), peak GB; verify ms")
        for row in part["rows"]:
            verify = " ".join(f"{n}:{ms:.2f}" for n, ms in row["verify_ms"].items())
            print(
                f"batch {row['batch']:>3} {row['plain_round_ms']:8.2f} {row['plain_forward_ms']:8.2f} "
                f"{row['bandwidth_share']:6.2f} {row['draft_ms']['4']:8.2f} {row['peak_memory_gb']:7.2f}   {verify}"
            )
        for left in part["left_out"]:
            print(f"batch {left['batch']:>3} left out: {left['why']}")
    for name, results in record["replay"].items():
        print(f"\n{name}: PREDICTED speedup over plain decoding, from recorded acceptance ({record['acceptance']})")
        batches = sorted({result["batch"] for result in results})
        print(f"{'policy':42}" + "".join(f"{'b' + str(batch):>8}" for batch in batches))
        for policy in dict.fromkeys(result["policy"] for result in results):
            speedups = {r["batch"]: r["speedup"] for r in results if r["policy"] == policy}
            print(f"{policy:42}" + "".join(f"{speedups[batch]:8.2f}" for batch in batches))


def main(arguments: argparse.Namespace) -> int:
    """Measures, replays, writes and prints."""
    trace = Trace.load(arguments.acceptance)
    acceptance = f"{trace.about['model']} with {trace.about['drafter']}, {trace.about['questions']}"
    if arguments.replay:
        report = Report(arguments.json, json.loads(arguments.replay.read_text(encoding="utf-8")))
    else:
        device = device_of(arguments.device)
        report = Report(arguments.json, _about(device, arguments))
        _measure_all(report, device, arguments)
    report.record |= {"acceptance": acceptance, "replay": {}}
    for name, part in report.record["parts"].items():
        if part["rows"]:
            report.record["replay"][name] = replay_part(part, trace, arguments.rounds)
            report.save()
    report.save()
    show(report.record)
    return 0


def _measure_all(report: Report, device: torch.device, arguments: argparse.Namespace) -> None:
    bandwidth = bandwidth_gb_s(device, 4096 if device.type == "cuda" else 64)
    report.record["bandwidth_gb_s"] = bandwidth
    report.save()
    shapes, dtype = (TINY, torch.float32) if arguments.shapes == "tiny" else (PUBLISHED, torch.bfloat16)
    for key in arguments.models:
        start = time.perf_counter()
        engine = random_engine(shapes[key], device, dtype)
        wait(device)
        print(f"{shapes[key].name}: made in {time.perf_counter() - start:.1f} s", file=sys.stderr)
        for mode in arguments.modes:
            if mode == "compiled":
                engine.target.compile()

            def save(part: Any, name: str = f"{shapes[key].name}, {mode}") -> None:
                report.record["parts"][name] = part
                report.save()

            measure_part(engine, arguments, max(bandwidth.values()), save)
        del engine
        free()


def _about(device: torch.device, arguments: argparse.Namespace) -> dict[str, Any]:
    gpu = device.type == "cuda"
    return {
        "command": " ".join(["python", *sys.argv]),
        "date": time.strftime("%Y-%m-%d"),
        "device": torch.cuda.get_device_name(device) if gpu else f"cpu {platform.machine()}",
        "memory_gb": round(torch.cuda.get_device_properties(device).total_memory / 1e9, 1) if gpu else None,
        "shapes": arguments.shapes,
        "weights": "random, normal with deviation 0.02",
        "dtype": "bfloat16" if arguments.shapes == "published" else "float32",
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "parts": {},
    }


def _grid(record: dict[str, Any]) -> Grid:
    axes = {name: tuple(record[name]) for name in ("sizes", "batches", "contexts")}
    return Grid(ms=tuple(tuple(tuple(row) for row in plane) for plane in record["ms"]), **axes)


def _chosen(known: Sequence[str]) -> Callable[[str], list[str]]:
    def read(text: str) -> list[str]:
        names = [name.strip() for name in text.split(",")]
        if wrong := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"unknown {wrong[0]!r}; known: {', '.join(known)}")
        return names

    return read


def _counts(text: str) -> list[int]:
    numbers = [int(part) if part.strip().isdigit() else 0 for part in text.split(",")]
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"takes whole numbers from 1 on, separated by commas, got {text!r}")
    return list(dict.fromkeys(numbers))


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = Parser(prog="python eval/gpu_profile.py", description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--json", type=Path, required=True, help="write the figures here, after every part")
    add("--models", type=_chosen(tuple(PUBLISHED)), default=list(PUBLISHED), help="of 7b,13b,qwen (all)")
    add("--modes", type=_chosen(MODES), default=list(MODES), help="of eager,compiled, in this order (both)")
    add(
        "--batch", type=_counts, default=[1, 8, 32, 4, 16, 2], help="batch sizes in order of importance (1,8,32,4,16,2)"
    )
    add("--context", type=int, default=640, help="committed slots: LLaVA-1.5's picture and a question (640)")
    add("--seconds", type=float, default=60, help="for each model in each mode; no batch size is begun after it (60)")
    add("--rounds", type=int, default=120, help="rounds of each replay, half as many before them to learn (120)")
    add("--device", choices=("cuda", "cpu"), default="cuda", help="cpu is for a try (cuda)")
    add(
        "--shapes", choices=("published", "tiny"), default="published", help="tiny is for trying the script (published)"
    )
    add("--acceptance", type=Path, default=ACCEPTANCE, help="recording of eval/acceptance.py")
    add("--replay", type=Path, metavar="FILE", help="only replay on the costs in FILE, on any machine")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(run(lambda: main(parse())))
