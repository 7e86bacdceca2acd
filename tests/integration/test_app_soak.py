"""A short soak of the app; the long one's record lies in ``eval/results``."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import browser

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.slow
def test_two_visitors_who_stop_reload_and_leave(tmp_path: Path) -> None:
    browser.chromium()
    record = tmp_path / "soak.json"
    script = [sys.executable, "eval/app_soak.py", "--questions", "30", "--seed", "1", "--json", str(record)]
    result = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, timeout=1200)
    assert result.returncode == 0, result.stdout + result.stderr
    counted = json.loads(record.read_text())
    assert counted["asked"] >= 30
    assert counted["answered"] > 0
    assert counted["faults"] == []


def test_the_recorded_soak_is_whole() -> None:
    record = json.loads((ROOT / "eval" / "results" / "app_soak.json").read_text())
    assert record["asked"] >= 200
    assert min(record[what] for what in ("answered", "stopped", "reloaded", "left")) > 0
    assert record["faults"] == []
