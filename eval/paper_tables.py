"""The SMART paper's tables 3 (batch), 4 (budget) and 5 (alpha), on whatever model there is.

    python eval/paper_tables.py 3 4 5 --model tiny-llava --threads 2

Each table is one `python -m mmsmart bench` with the arms below; results go to ``eval/results``, and a summary in the
paper's form is printed. ``eval/paper.md`` compares the recorded ones with the paper's.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from mmsmart import cli

RESULTS = Path(__file__).resolve().parent / "results"
MSD = "likelihood:depth=5,top_k=10,total=59"
TABLES: dict[str, dict[str, str]] = {
    "3": {"batch": "1,8,16,24,32", "policies": f"none,{MSD},smart,rate-optimal"},
    "4": {"batch": "16", "policies": f"none,{MSD}," + ",".join(f"smart:b_verify={n}" for n in (100, 200, 300, 400))},
    "5": {"batch": "16", "policies": f"none,{MSD}," + ",".join(f"smart:alpha={a}" for a in (1.0, 0.9, 0.8, 0.7, 0.5))},
}
PAPER: dict[str, dict[str, str]] = {  # RTX Pro 6000, T = 0, average of ChartQA, TextVQA and HallusionBench
    "3": {"MSD": "2.20 1.84 1.22 0.96 0.82", "SMART": "2.17 1.93 1.58 1.45 1.39"},
    "4": {"SMART, budget 100 200 300 400": "1.43 1.58 1.28 1.27"},
    "5": {"SMART, alpha 1 .9 .8 .7 .5": "1.51 1.55 1.56 1.55 1.54"},
}


def summary(rows: list[dict[str, Any]]) -> str:
    """Wall speedup over plain decoding (acceptance rate), arms down, batches across."""
    batches = sorted({row["batch"] for row in rows})
    lines = ["| arm | " + " | ".join(f"b {batch}" for batch in batches) + " |", "| --- |" + " --- |" * len(batches)]
    for arm in dict.fromkeys(row["arm"] for row in rows):
        cells = []
        for batch in batches:
            row = next(row for row in rows if row["arm"] == arm and row["batch"] == batch)
            rate = f" ({row['acceptance_rate']:.2f})" if row.get("acceptance_rate") else ""
            cells.append(f"{row['speedup']:.2f}{rate}" if "speedup" in row else "-")
        lines.append(f"| {arm} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> int:
    """Runs the tables that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("tables", nargs="+", choices=tuple(TABLES), help="tables of the paper")
    parser.add_argument("--model", default="tiny-llava", help="embedded name, folder or hub id")
    parser.add_argument("--questions", default="32", help="held-out questions")
    parser.add_argument("--repeats", default="3", help="timed passes")
    parser.add_argument("--threads", default="2", help="torch threads")
    arguments = parser.parse_args()
    for number in arguments.tables:
        path = RESULTS / f"paper_table_{number}_{Path(arguments.model).name}.json"
        command = ["bench", "--model", arguments.model, "--baselines", "generate", "--json", str(path)]
        for name, value in (TABLES[number] | {"questions": arguments.questions, "repeats": arguments.repeats}).items():
            command += [f"--{name}", value]
        sys.argv[1:] = [*command, "--threads", arguments.threads]
        if status := cli.main(sys.argv[1:]):
            return status
        print(f"table {number}\n{summary(json.loads(path.read_text())['rows'])}")
        for arm, figures in PAPER[number].items():
            print(f"paper, {arm}: {figures}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
