"""What every command line of the package does: one line for an error, and its exit status."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import Literal, NoReturn

from mmsmart.errors import ImageError, InputError, MmsmartError

COMPILE: dict[str, Literal["auto"] | bool] = {"auto": "auto", "on": True, "off": False}
"""How a command line writes the ``compile`` of `mmsmart.load`."""
USAGE_ERROR, FAILURE, INTERRUPTED = 2, 1, 130


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        """Ends with the status of usage errors."""
        self.exit(USAGE_ERROR, f"{self.prog}: {message} (see {self.prog} --help)\n")


def batch_sizes(text: str) -> list[int]:
    """What ``--batch 1,8,32`` says, ascending.

    Raises:
        InputError: Something else than whole numbers from 1 on.
    """
    sizes = text.split(",")
    if not all(size.strip().isdigit() and int(size) > 0 for size in sizes):
        raise InputError(f"--batch takes whole numbers from 1 on, separated by commas, got {text!r}")
    return sorted({int(size) for size in sizes})


def run(command: Callable[[], int]) -> int:
    """Runs a command; returns its exit status: its own, 1 after a failure, 2 after a usage error."""
    try:
        status = command()
        sys.stdout.flush()
        return status
    except (ImageError, OSError, MmsmartError) as error:
        if isinstance(error, BrokenPipeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # whoever read us has gone
            return FAILURE
        print(f"mmsmart: {' '.join(str(error).split())}", file=sys.stderr)
        usage = isinstance(error, InputError) and not isinstance(error, ImageError)
        return USAGE_ERROR if usage else FAILURE
    except KeyboardInterrupt:
        print("mmsmart: stopped", file=sys.stderr)
        return INTERRUPTED
