"""``python -m mmsmart.eval``: an evaluation; ``python -m mmsmart.eval report``: tables and figures over runs."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

from mmsmart.command import Parser, run
from mmsmart.eval.cli import add_commands, given_arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line; returns the exit status."""
    parser = Parser(prog="python -m mmsmart.eval")
    add_commands(parser)
    arguments = parser.parse_args(argv)
    arguments.given = given_arguments(argv)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    return run(lambda: int(arguments.run(arguments)))


if __name__ == "__main__":
    sys.exit(main())
