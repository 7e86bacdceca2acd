"""``python -m mmsmart COMMAND``: results on stdout, all else on stderr, one line for each error."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import logging
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmsmart import __version__
from mmsmart.bench.cli import add_parser as add_bench_parser
from mmsmart.command import COMPILE, Parser, batch_sizes, run
from mmsmart.config import SamplingParams
from mmsmart.eval.cli import add_parser as add_eval_parser
from mmsmart.eval.cli import given_arguments
from mmsmart.registry import DEFAULT_MODEL, DRAFTERS, EMBEDDED_MODELS, POLICIES, TARGETS
from mmsmart.training.cli import add_parser as add_train_parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line; returns the exit status: 0, 1 after a failure, 2 after a usage error."""
    arguments = build_parser().parse_args(argv)
    arguments.given = given_arguments(argv)
    logging.basicConfig(level=logging.INFO if arguments.verbose else logging.WARNING, format="%(message)s")
    return run(lambda: int(arguments.run(arguments)))


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = Parser(prog="python -m mmsmart", description="Faster answers about pictures, the same answers.")
    parser.add_argument("--version", action="version", version=f"mmsmart {__version__}")
    parser.add_argument("--verbose", action="store_true", help="log what happens, on stderr")
    commands: Any = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_generate(commands)
    _add_profile(commands)
    info = commands.add_parser("info", help="device, versions, and what can be chosen")
    info.add_argument("--json", action="store_true", help="print one JSON object")
    info.set_defaults(run=_info)
    add_bench_parser(commands)
    add_train_parser(commands)
    add_eval_parser(commands)
    return parser


def _add_generate(commands: Any) -> None:
    default = SamplingParams()
    cap = default.max_new_tokens
    options = "with options as name:option=value,..."
    parser = commands.add_parser("generate", help="answer a question about a picture")
    add = parser.add_argument
    add("image", metavar="IMAGE", help="picture file; 'none' for a question without a picture")
    add("question", metavar="QUESTION", help="what to ask")
    add("--image", dest="more", action="append", default=[], metavar="IMAGE", help="one more picture; repeatable")
    add("--model", default=DEFAULT_MODEL, help=f"embedded name, folder or hub id ({DEFAULT_MODEL})")
    add("--drafter", default="auto", help=f"auto, {', '.join(DRAFTERS)}; {options}")
    add("--policy", default="auto", help=f"auto, {', '.join(POLICIES)}; {options}")
    add("--device", default="auto", help="auto, cpu, cuda, cuda:1, ...")
    add("--dtype", default="auto", help="auto, float32, bfloat16, float16 or float64")
    add("--compile", default="auto", choices=COMPILE, help="auto (on for GPUs), on or off")
    add("--max-new-tokens", type=int, default=cap, metavar="N", help=f"most tokens to write ({cap})")
    add("--temperature", type=float, default=default.temperature, metavar="T", help="0 is greedy (0)")
    add("--top-p", type=float, default=default.top_p, metavar="P", help="nucleus, in (0, 1] (1: off)")
    add("--top-k", type=int, default=default.top_k, metavar="K", help="most probable tokens kept (0: off)")
    add("--repetition-penalty", type=float, metavar="R", help="1 is off (default: the checkpoint's own)")
    add("--stop", action="append", default=[], metavar="TEXT", help="end before this text; repeatable")
    add("--seed", type=int, metavar="N", help="makes sampling repeatable")
    add("--stream", action="store_true", help="print the answer as it comes")
    add("--json", action="store_true", help="last line: text, token_ids, finish_reason and stats as JSON")
    parser.set_defaults(run=_generate)


def _generate(arguments: argparse.Namespace) -> int:
    from mmsmart.api import load
    from mmsmart.images import load_all
    from mmsmart.targets.loading import quiet

    names = ("max_new_tokens", "temperature", "top_p", "top_k", "repetition_penalty", "stop", "seed")
    options: Any = {name: getattr(arguments, name) for name in names}
    SamplingParams(**options)  # refused before anything is loaded
    pictures = load_all([name for name in (arguments.image, *arguments.more) if name != "none"])
    if not arguments.verbose:
        quiet(progress=arguments.model not in EMBEDDED_MODELS)
    engine = load(
        arguments.model,
        drafter=arguments.drafter,
        policy=arguments.policy,
        device=arguments.device,
        dtype=arguments.dtype,
        compile=COMPILE[arguments.compile],
    )
    output = None
    for chunk in engine.stream(pictures, arguments.question, **options):
        output = chunk.output
        if arguments.stream:
            print(chunk.text, end="", flush=True)
    assert output is not None
    print("" if arguments.stream else output.text)
    if arguments.json:
        record = {"text": output.text, "token_ids": output.token_ids, "finish_reason": output.finish_reason}
        print(json.dumps(record | {"stats": output.stats.as_dict()}))
    return 0


def _add_profile(commands: Any) -> None:
    parser = commands.add_parser("profile", help="measure what drafting and verifying cost on this device")
    add = parser.add_argument
    add("--model", default=DEFAULT_MODEL, help=f"embedded name, folder or hub id ({DEFAULT_MODEL})")
    add("--drafter", default="auto", help=f"auto, {', '.join(DRAFTERS)}")
    add("--batch", default="1,2,4,8,16,32", metavar="N,N,...", help="batch sizes (1,2,4,8,16,32)")
    add("--device", default="auto", help="auto, cpu, cuda, cuda:1, ...")
    add("--dtype", default="auto", help="auto, float32, bfloat16, float16 or float64")
    add("--compile", default="auto", choices=COMPILE, help="auto (on for GPUs), on or off")
    add("--threads", type=int, metavar="N", help="torch threads (torch's own choice)")
    add("--plot", type=Path, metavar="FILE", help="draw measured points, table and fitted curves")
    parser.set_defaults(run=_profile)


def _profile(arguments: argparse.Namespace) -> int:
    import torch

    from mmsmart.api import load
    from mmsmart.costs.plot import plot_profile
    from mmsmart.profiling import profile, profile_path, settings_of
    from mmsmart.targets.loading import quiet

    sizes = batch_sizes(arguments.batch)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    quiet(progress=arguments.model not in EMBEDDED_MODELS)
    engine = load(
        arguments.model,
        drafter=arguments.drafter,
        policy="none",
        device=arguments.device,
        dtype=arguments.dtype,
        compile=COMPILE[arguments.compile],
    )
    measured = profile(engine, batches=sizes, refresh=True)
    _print_grid("target forward, by nodes a row (root included)", measured.table.verify)
    _print_grid("one depth of drafting, by nodes expanded a row (0: the round's opening)", measured.table.draft)
    if arguments.plot:
        plot_profile(measured, arguments.plot)
    print(f"kept in {profile_path(settings_of(engine))}")
    return 0


def _print_grid(what: str, grid: Any) -> None:
    print(f"milliseconds of a {what}, context {grid.contexts[0]}")
    print("batch " + "".join(f"{n:>8}" for n in grid.sizes))
    for batch in grid.batches:
        print(f"{batch:>5} " + "".join(f"{ms:8.2f}" for ms in grid.curve(batch, grid.contexts[0])))


def _info(arguments: argparse.Namespace) -> int:
    import torch

    gpu = torch.cuda.is_available()
    facts: dict[str, Any] = {
        "mmsmart": __version__,
        "device": torch.cuda.get_device_name() if gpu else f"cpu, {torch.get_num_threads()} threads",
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in ("torch", "transformers")},
        "models": [*EMBEDDED_MODELS, "or a folder or hub id of: " + ", ".join(TARGETS)],
        "drafters": list(DRAFTERS),
        "policies": list(POLICIES),
    }
    if arguments.json:
        print(json.dumps(facts))
    else:
        for name, value in facts.items():
            print(f"{name:13}{', '.join(value) if isinstance(value, list) else value}")
    return 0
