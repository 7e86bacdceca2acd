"""The command line ``bench``."""

from __future__ import annotations

import argparse
import json
import logging
from pathlib import Path
from typing import Any

from mmsmart.command import batch_sizes
from mmsmart.config import SamplingParams
from mmsmart.errors import InputError
from mmsmart.files import replacing
from mmsmart.registry import DEFAULT_MODEL, DRAFTERS, POLICIES

DEFAULT_POLICIES = "none,likelihood,smart,rate-optimal,chain,best-first"
BASELINES = ("generate", "prompt-lookup", "assisted")
WORKLOADS = ("charts", "foreign", "mixed")


def add_parser(subparsers: Any) -> None:
    """Adds ``bench`` to a command line."""
    parser = subparsers.add_parser(
        "bench",
        help="compare policies with each other and with transformers' generate",
        description="Answers the same held-out questions in every way, in turn, in one process. Beside mmsmart's "
        "policies: transformers' generate (plain, with prompt lookup, with an assistant). Medians over repeats.",
    )
    add = parser.add_argument
    options = "with options as name:option=value,..."
    add("--model", default=DEFAULT_MODEL, help=f"embedded name, folder or hub id ({DEFAULT_MODEL})")
    add("--drafter", default="auto", help=f"auto, {', '.join(DRAFTERS)}; {options}; wrong: auto's, never right")
    add("--policies", default=DEFAULT_POLICIES, metavar="NAME,...", help=f"of {', '.join(POLICIES)}; {options}")
    add("--batch", default="1,2,4,8,16,32", metavar="N,N,...", help="batch sizes (1,2,4,8,16,32)")
    add(
        "--workload",
        default="charts",
        choices=WORKLOADS,
        help="what is asked: easy, hard, or both, long and short (charts)",
    )
    add("--questions", type=int, default=32, metavar="N", help="held-out questions (32, or the largest batch)")
    add("--max-new-tokens", type=int, default=128, metavar="N", help="most tokens of an answer (128)")
    add("--temperature", type=float, default=0.0, metavar="T", help="0 is greedy (0)")
    add("--repeats", type=int, default=5, metavar="N", help="timed passes of each arm (5)")
    add("--seed", type=int, default=0, metavar="N", help="of questions and sampling (0)")
    add("--baselines", default="generate,prompt-lookup", help="none, or of generate, prompt-lookup, assisted")
    add("--assistant", metavar="MODEL", help="small model of the same vocabulary, for the baseline 'assisted'")
    add("--oracle", action="store_true", help="also find the best fixed tree in hindsight, for each batch size")
    add("--device", default="auto", help="auto, cpu, cuda, cuda:1, ...")
    add("--dtype", default="auto", help="auto, float32, bfloat16, float16 or float64")
    add("--threads", type=int, metavar="N", help="torch threads (torch's own choice)")
    add("--json", type=Path, metavar="FILE", help="write settings and rows here")
    add("--plot", type=Path, metavar="FILE", help="draw speedup against batch size")
    add("--no-progress", action="store_true", help="no bar on stderr")
    parser.set_defaults(run=run_bench)


def run_bench(arguments: argparse.Namespace) -> int:
    """Runs the benchmark; prints a table for each batch size."""
    from mmsmart.bench.report import plot, table
    from mmsmart.bench.run import Benchmark

    sizes = batch_sizes(arguments.batch)
    baselines = _baselines(arguments)
    for name in ("questions", "repeats", "max_new_tokens"):
        if getattr(arguments, name) < 1:
            raise InputError(f"--{name.replace('_', '-')} must be at least 1, got {getattr(arguments, name)}")
    for path in (arguments.json, arguments.plot):
        if path is not None and not path.resolve().parent.is_dir():
            raise InputError(f"the folder of {path} does not exist; make it first")
    sampling = SamplingParams(
        max_new_tokens=arguments.max_new_tokens, temperature=arguments.temperature, seed=arguments.seed
    )
    logging.getLogger("transformers").setLevel(logging.ERROR)
    benchmark = Benchmark(arguments, sizes, baselines, sampling)
    rows: list[dict[str, Any]] = []
    for size in sizes:
        found = benchmark.run(size)
        rows += found
        print(f"batch {size}\n{table(found)}\n", flush=True)
        if arguments.json:  # after every size, so that nothing is lost
            with replacing(arguments.json) as draft:
                draft.write_text(json.dumps({"settings": benchmark.settings(), "rows": rows}, indent=1) + "\n")
    if arguments.plot:
        plot(rows, arguments.plot, benchmark.title())
    return 0


def _baselines(arguments: argparse.Namespace) -> list[str]:
    names = [] if arguments.baselines == "none" else arguments.baselines.split(",")
    for name in names:
        if name not in BASELINES:
            raise InputError(f"--baselines takes none, or names of {', '.join(BASELINES)}; got {name!r}")
    if arguments.assistant and "assisted" not in names:
        names.append("assisted")
    if "assisted" in names and not arguments.assistant:
        raise InputError("the baseline 'assisted' needs --assistant MODEL")
    return names
