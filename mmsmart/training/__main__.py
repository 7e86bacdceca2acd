"""``python -m mmsmart.training target|score``: the same as ``python -m mmsmart train target|score``."""

import argparse
import sys

from mmsmart.errors import MmsmartError
from mmsmart.training.cli import add_commands


def main(arguments: list[str] | None = None) -> int:
    """Runs one command; the exit status is 2 where the caller can mend the error."""
    parser = argparse.ArgumentParser(prog="python -m mmsmart.training")
    add_commands(parser.add_subparsers(required=True, metavar="COMMAND"))
    parsed = parser.parse_args(arguments)
    try:
        status: int = parsed.run(parsed)
    except MmsmartError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return status


if __name__ == "__main__":
    sys.exit(main())
