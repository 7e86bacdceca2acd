"""The command lines ``eval`` and ``eval report``."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmsmart.config import SamplingParams
from mmsmart.errors import InputError
from mmsmart.registry import DEFAULT_MODEL, DRAFTERS, EMBEDDED_MODELS, POLICIES, TASKS

FAILED_SAMPLES = 3
"""Exit status of a run that finished but in which samples failed."""
_MODES = ("short", "long")
_DESCRIPTION = (
    "Accuracy, speed and equality with plain decoding, from one run. An interrupted run goes on where it stopped. "
    "With accelerate launch or torchrun the samples are shared out and the results merged. "
    "Exit status: 0; 3 when samples failed; 1 after a failure; 2 after a usage error."
)


def add_parser(subparsers: Any) -> None:
    """Adds ``eval`` to a command line."""
    add_commands(subparsers.add_parser("eval", help="accuracy, speed and equality on a data set"))


def add_commands(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a run, and the sub-command ``report``, to a parser."""
    parser.description = _DESCRIPTION
    _add_data(parser.add_argument_group("data").add_argument)
    _add_model(parser.add_argument_group("model").add_argument)
    _add_decoding(parser.add_argument_group("decoding").add_argument)
    output = parser.add_argument_group("output").add_argument
    output("--out", type=Path, metavar="FOLDER", help="folder of the run (runs/DATASET-MODEL-MODE-bB-tT-sS)")
    output("--no-progress", action="store_true", help="no bar on stderr")
    parser.set_defaults(run=run_evaluation)
    commands = parser.add_subparsers(metavar="report", title="other commands")
    report = commands.add_parser("report", help="tables and figures over finished runs")
    help_runs = "folder of a finished run; of runs with equal settings the last counts"
    report.add_argument("runs", nargs="+", type=Path, metavar="RUN", help=help_runs)
    report.add_argument("--html", type=Path, metavar="FILE", help="write one self-contained HTML file")
    report.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables as Markdown (default: print)")
    report.set_defaults(run=run_report)


def _add_data(add: Any) -> None:
    add("--dataset", metavar="NAME", help=f"{', '.join(TASKS)}; with options as name:option=value,...")
    add("--data", type=Path, metavar="PATH", help="JSONL, JSON, TSV or parquet file, or a folder (default: the hub)")
    add("--hub-id", metavar="OWNER/NAME", help="another parquet-backed data set of the hub")
    add("--limit", type=int, metavar="N", help="only the first N samples (the hub is then streamed)")
    add("--seed", type=int, default=0, metavar="N", help="of sampling, and of data made on the fly (0)")
    add("--mode", choices=_MODES, default="short", help="short answers for accuracy, long ones for speed (short)")


def _add_model(add: Any) -> None:
    options = "with options as name:option=value,..."
    add("--model", default=DEFAULT_MODEL, help=f"embedded name, folder or hub id ({DEFAULT_MODEL})")
    add("--drafter", default="auto", help=f"auto, {', '.join(DRAFTERS)}; {options}")
    add("--device", default="auto", help="auto, cpu, cuda, cuda:1, ...")
    add("--dtype", default="auto", help="auto, float32, bfloat16, float16 or float64")
    add("--device-map", metavar="MAP", help="spread a large model over GPUs: auto, balanced, sequential, ...")
    add("--threads", type=int, metavar="N", help="torch threads (torch's own choice)")


def _add_decoding(add: Any) -> None:
    names = ", ".join(POLICIES)
    add(
        "--policies",
        default="none,auto",
        metavar="NAME,...",
        help=f"compared with each other: auto, {names} (none,auto)",
    )
    add("--no-profile", action="store_true", help="policies that weigh costs guess them instead of measuring")
    add("--batch-size", type=int, default=1, metavar="N", help="samples answered at once (1)")
    add("--max-new-tokens", type=int, metavar="N", help="most tokens of an answer (usual for data set and mode)")
    default = SamplingParams().temperature
    add("--temperature", type=float, default=default, metavar="T", help="0 is greedy (0)")


def run_evaluation(arguments: argparse.Namespace) -> int:
    """Runs an evaluation, or this process's part of it; the exit status is 3 when samples failed.

    Raises:
        MmsmartError: Anything that ends the run.
    """
    from mmsmart.eval.merge import wait_and_merge
    from mmsmart.eval.provenance import Process
    from mmsmart.eval.report import Run, details, to_markdown
    from mmsmart.eval.runner import run

    settings = settings_from(arguments)
    path = arguments.out or default_folder(settings)
    _set_up(arguments)
    run(settings, path, arguments=arguments.given, progress=not arguments.no_progress)
    process = Process.from_environment()
    if process.number:
        return 0
    result = wait_and_merge(settings.task(), path, process.count)
    print(to_markdown([details([Run(path, result)])]))
    print(_accuracy_lines(result))
    print(f"{result['speed']['reason']}; rows and result in {path}")
    if result["failed"]:
        first = result["failures"][0]
        print(
            f"mmsmart: {result['failed']} of {result['samples']} samples failed; the first is {first['sample']}: "
            f"{first['error']}",
            file=sys.stderr,
        )
    return FAILED_SAMPLES if result["failed"] else 0


def run_report(arguments: argparse.Namespace) -> int:
    """Writes a report; prints it as Markdown where no file is named.

    Raises:
        InputError: A run that cannot be read.
    """
    from mmsmart.eval.report import write_report

    text = write_report(arguments.runs, arguments.html, arguments.markdown)
    written = [str(path) for path in (arguments.html, arguments.markdown) if path is not None]
    print("\n".join(f"written: {path}" for path in written) if written else text)
    return 0


def default_folder(settings: Any) -> Path:
    """Where a run goes without ``--out``: the same settings, the same folder."""
    model = Path(settings.model).name or settings.model
    name = (
        f"{settings.dataset}-{model}-{settings.mode}-b{settings.batch_size}-t{settings.temperature:g}"
        f"-s{settings.request.seed}"
    )
    return Path("runs") / re.sub(r"[^\w.=-]+", "_", name)


def settings_from(arguments: argparse.Namespace) -> Any:
    """The settings of a run's options; checks them before torch's slow parts are used.

    Raises:
        InputError: An option that does not fit.
    """
    from mmsmart.eval.data.source import DataRequest
    from mmsmart.eval.settings import RunSettings, split_policies

    if not arguments.dataset:
        raise InputError(f"--dataset is missing; known: {', '.join(TASKS)} (or the sub-command report; see --help)")
    return RunSettings(
        dataset=arguments.dataset,
        request=DataRequest(arguments.data, arguments.hub_id, arguments.limit, arguments.seed),
        mode=arguments.mode,
        model=arguments.model,
        drafter=arguments.drafter,
        policies=split_policies(arguments.policies),
        measure_costs=not arguments.no_profile,
        batch_size=arguments.batch_size,
        max_new_tokens=arguments.max_new_tokens,
        temperature=arguments.temperature,
        device=arguments.device,
        dtype=arguments.dtype,
        device_map=arguments.device_map,
    )


def _set_up(arguments: argparse.Namespace) -> None:
    import torch

    from mmsmart.targets.loading import quiet

    if arguments.threads is not None:
        if arguments.threads < 1:
            raise InputError(f"--threads must be at least 1, got {arguments.threads}")
        torch.set_num_threads(arguments.threads)
    quiet(progress=arguments.model not in EMBEDDED_MODELS and not arguments.no_progress)


def _accuracy_lines(result: dict[str, Any]) -> str:
    from mmsmart.eval.report import percent_with_interval

    lines = []
    for policy, figures in result["policies"].items():
        shown = [f"{name} {percent_with_interval(mean)}" for name, mean in figures["metrics"].items()]
        lines.append(f"{policy}: {', '.join(shown) or 'no references to score against'}")
    return "\n".join(lines)


def given_arguments(argv: Sequence[str] | None) -> list[str]:
    """The arguments after the program's (and sub-command's) name, for the record."""
    given = list(sys.argv[1:] if argv is None else argv)
    return given[1:] if given[:1] == ["eval"] else given
