"""``python -m app``: opens the page."""

from __future__ import annotations

import argparse
import importlib.util
import logging
import signal
import sys
from collections.abc import Sequence

from mmsmart.command import USAGE_ERROR, Parser, run
from mmsmart.registry import DEFAULT_MODEL, DRAFTERS, EMBEDDED_MODELS, POLICIES


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status: 0, 1 after a failure, 2 after a usage error."""
    arguments = _parser().parse_args(argv)
    if importlib.util.find_spec("gradio") is None:
        print("app: the page needs Gradio; install it with: pip install 'mmsmart[app]'", file=sys.stderr)
        return USAGE_ERROR
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    return run(lambda: _serve(arguments))


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m app", description="Plain and speculative decoding side by side, on your picture.")
    add = parser.add_argument
    add("--model", default=DEFAULT_MODEL, help=f"{', '.join(EMBEDDED_MODELS)}, a folder or a hub id ({DEFAULT_MODEL})")
    add("--drafter", default="auto", help=f"auto, {', '.join(DRAFTERS)} with options, or a checkpoint (auto)")
    add("--policy", default="auto", help=f"auto, {', '.join(POLICIES)}; options as name:option=value (auto)")
    add("--host", default="127.0.0.1", help="address to listen on (127.0.0.1: this machine only)")
    add("--port", type=int, default=7860, metavar="N", help="port to listen on (7860)")
    add("--share", action="store_true", help="also make a public address through Gradio's relay")
    add("--threads", type=int, metavar="N", help="torch threads (torch's own choice)")
    return parser


def _serve(arguments: argparse.Namespace) -> int:
    import torch

    from app.server import serve
    from app.session import Session
    from app.workbench import Choices, Workbench
    from mmsmart.api import make_policy
    from mmsmart.config import require_whole
    from mmsmart.targets.loading import quiet

    if arguments.threads is not None:
        require_whole("--threads", arguments.threads, 1)
        torch.set_num_threads(arguments.threads)
    quiet(progress=arguments.model not in EMBEDDED_MODELS)
    make_policy(arguments.policy)  # refused before anything is loaded
    workbench = Workbench(Choices.of(arguments.model, arguments.drafter, arguments.policy))
    print(f"loading {arguments.model}", flush=True)
    workbench.base(arguments.model, arguments.drafter)
    session = Session(workbench)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as Ctrl-C does
    try:
        serve(session, arguments.host, arguments.port, share=arguments.share)
    finally:
        session.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
