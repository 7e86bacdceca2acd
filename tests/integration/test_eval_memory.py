"""A short run of the script that watches an evaluation's memory; the long one's record lies in ``eval/results``."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.slow
def test_memory_while_300_charts_are_answered(tmp_path: Path) -> None:
    record = tmp_path / "memory.json"
    script = [sys.executable, "eval/eval_memory.py", "--samples", "300", "--json", str(record)]
    result = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, timeout=1200)
    assert result.returncode == 0, result.stdout + result.stderr
    assert json.loads(record.read_text())["readings"][-1]["samples"] == 300


def test_the_recorded_memory_is_flat() -> None:
    record = json.loads((ROOT / "eval" / "results" / "eval_memory.json").read_text())
    assert [reading["samples"] for reading in record["readings"]] == [500, 1000, 2000, 5000]
    first, last = record["readings"][0]["peak_mb"], record["readings"][-1]["peak_mb"]
    assert last < 1.03 * first
    assert "--policies none --max-new-tokens 2" in record["evaluation"]
