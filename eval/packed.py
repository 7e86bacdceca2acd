"""Products of few rows by torch and by rearranged weights (`mmsmart.packed`), with weights in and out of the caches.

    python eval/packed.py --threads 2 --hidden 256 --intermediate 704

Microseconds, the lower quartile of many. Weights change with every call: "many" runs over 64 MB of them, as a target's
layers do; "few" over two, as a drafter's do.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from itertools import count

import torch
from torch import Tensor
from torch.nn import functional

from mmsmart.command import Parser, run
from mmsmart.errors import ModelError
from mmsmart.packed import PackedLinear, supported

ROWS = (1, 2, 4, 8, 16, 32, 64, 208)
_MANY_BYTES = 64 * 2**20


def quartile_us(call: Callable[[], object], repeats: int) -> float:
    """Lower quartile of the time of one call."""
    times = []
    for index in range(repeats + 10):
        start = time.perf_counter()
        call()
        if index >= 10:
            times.append(time.perf_counter() - start)
    return 1e6 * statistics.quantiles(times, n=4)[0]


def turning(functions: Sequence[Callable[[Tensor], Tensor]], rows: Tensor) -> Callable[[], object]:
    """Calls the functions in turn."""
    places = count()
    return lambda: functions[next(places) % len(functions)](rows)


def main(arguments: argparse.Namespace) -> int:
    """Prints a table for each shape."""
    torch.set_num_threads(arguments.threads)
    dtype: torch.dtype = getattr(torch, arguments.dtype)
    if not supported(dtype):
        raise ModelError(f"this machine or torch {torch.__version__} has no kernels for rearranged {arguments.dtype}")
    hidden, inner = arguments.hidden, arguments.intermediate
    print(
        f"torch {torch.__version__}, {arguments.dtype}, {arguments.threads} threads: microseconds of torch / rearranged"
    )
    print(f"{'in x out':>14}{'weights':>9}" + "".join(f"{f'{rows} rows':>15}" for rows in ROWS))
    for size, out in ((hidden, 3 * hidden), (hidden, hidden), (hidden, inner), (inner, hidden)):
        for name, copies in (("many", max(2, _MANY_BYTES // (size * out * dtype.itemsize))), ("few", 2)):
            weights = [torch.randn(out, size, dtype=dtype) for _ in range(copies)]
            theirs = [lambda rows, w=w: functional.linear(rows, w) for w in weights]
            ours = [PackedLinear([w]) for w in weights]
            cells = []
            for number in ROWS:
                rows = torch.randn(number, size, dtype=dtype)
                pair = [quartile_us(turning(some, rows), arguments.repeats) for some in (theirs, ours)]
                cells.append(f"{pair[0]:6.0f} /{pair[1]:6.0f}")
            print(f"{f'{size} x {out}':>14}{name:>9}" + "".join(f"{cell:>15}" for cell in cells), flush=True)
    return 0


def parse() -> argparse.Namespace:
    """The command line."""
    parser = Parser(prog="python eval/packed.py", description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=int, default=2, help="torch threads (2)")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of everything (float32)")
    parser.add_argument("--hidden", type=int, default=256, help="width of the model (256)")
    parser.add_argument("--intermediate", type=int, default=704, help="width of its MLP (704)")
    parser.add_argument("--repeats", type=int, default=100, help="calls of each (100)")
    return parser.parse_args()


if __name__ == "__main__":
    with torch.inference_mode():
        sys.exit(run(lambda: main(parse())))
