"""The evaluation as a user meets it: killed and continued, shared over processes, refused in one line."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from mmsmart import cli
from mmsmart.embedded import model_folder
from mmsmart.errors import ModelError
from mmsmart.eval import __main__ as command
from mmsmart.eval.cli import default_folder
from mmsmart.eval.results import read_rows
from mmsmart.eval.settings import RunSettings
from support import chart_questions

POLICIES = ("--policies", "none,best-first:nodes=4", "--drafter", "ngram", "--dtype", "float64", "--no-progress")
SECONDS = 280


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)


def evaluate(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = command.main(arguments)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def chartqa(model: Path, data: Path, out: Path, *more: str) -> list[str]:
    base = ["--dataset", "chartqa", "--data", str(data), "--model", str(model), "--out", str(out), *POLICIES]
    return [*base, "--max-new-tokens", "12", *more]


def outcome(folder: Path) -> dict[str, Any]:
    """What must not depend on interruptions or the number of processes."""
    result = json.loads((folder / "result.json").read_text())
    parts = {p: {name: f[name] for name in ("metrics", "groups", "equality")} for p, f in result["policies"].items()}
    return {name: result[name] for name in ("samples", "failed", "failures", "templates")} | {"policies": parts}


def answers(folder: Path) -> dict[tuple[str, str], tuple[Any, ...]]:
    """Sample and policy to what was answered; every pair once."""
    rows = [row for path in sorted(folder.glob("rows*.jsonl")) for row in read_rows(path)]
    found = {(row.sample, row.policy): (row.token_ids, row.text, row.score, row.error) for row in rows}
    assert len(found) == len(rows)
    return found


def test_a_run_killed_in_the_middle_goes_on_where_it_was(
    capsys: pytest.CaptureFixture[str], llava_folder: Path, tmp_path: Path
) -> None:
    data = chart_questions(tmp_path / "data", 40)
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    arguments = chartqa(llava_folder, data, killed)
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}  # as in this process: threads are part of a run's identity
    process = subprocess.Popen([sys.executable, "-m", "mmsmart.eval", *arguments], env=one_thread)
    rows = killed / "rows.jsonl"
    until = time.monotonic() + SECONDS
    while not (rows.is_file() and rows.read_bytes().count(b"\n") >= 5):
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < until
        time.sleep(0.01)
    process.kill()
    process.wait()
    written = rows.read_bytes()
    assert 5 <= written.count(b"\n") < 80
    assert not (killed / "result.json").exists()
    assert evaluate(capsys, *arguments)[0] == 0
    assert rows.read_bytes().startswith(written[: written.rfind(b"\n") + 1])
    assert evaluate(capsys, *chartqa(llava_folder, data, whole))[0] == 0
    assert answers(killed) == answers(whole)
    assert outcome(killed) == outcome(whole)


def test_one_truncated_jpeg_is_a_failed_row_and_the_exit_status_tells(
    capsys: pytest.CaptureFixture[str], llava_folder: Path, tmp_path: Path
) -> None:
    data = chart_questions(tmp_path / "data", 4, broken=[1])
    status, out, err = evaluate(capsys, *chartqa(llava_folder, data, tmp_path / "run", "--batch-size", "3"))
    assert status == 3
    assert err.strip().splitlines()[-1].startswith("mmsmart: 1 of 4 samples failed; the first is 1: image 0: file")
    assert "3 / 3" in out  # equal to plain decoding
    assert "chartqa_relaxed" in out


def test_two_processes_through_accelerate_give_the_result_of_one(
    capsys: pytest.CaptureFixture[str], llava_folder: Path, tmp_path: Path
) -> None:
    data = chart_questions(tmp_path / "data", 7)
    one, two = tmp_path / "one", tmp_path / "two"
    assert evaluate(capsys, *chartqa(llava_folder, data, one))[0] == 0
    launcher = ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1"]
    launcher += ["--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]
    arguments = [*launcher, "-m", "mmsmart.eval", *chartqa(llava_folder, data, two)]
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in two.glob("rows*")) == ["rows-0-of-2.jsonl", "rows-1-of-2.jsonl"]
    assert outcome(two) == outcome(one)
    assert answers(two) == answers(one)
    result = json.loads((two / "result.json").read_text())
    assert not result["speed"]["claimed"]
    assert "shared a device" in done.stdout


def test_the_embedded_model_on_its_own_charts(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    try:
        model = shutil.copytree(model_folder("tiny-llava"), tmp_path / "tiny-llava")
    except ModelError as error:
        pytest.skip(str(error))
    out = tmp_path / "run"
    arguments = ["--dataset", "mmsmart-charts", "--limit", "6", "--model", str(model), "--out", str(out), *POLICIES]
    status, printed, _ = evaluate(capsys, *arguments)
    assert status == 0
    assert "6 / 6" in printed
    result = json.loads((out / "result.json").read_text())
    assert result["speed"]["claimed"]
    first, second = result["policies"].values()
    assert first["metrics"] == second["metrics"]
    assert first["metrics"]["final_answer"]["count"] == 6
    assert result["settings"]["data"].startswith("mmsmart-charts:0:")
    session = result["sessions"][0][0]
    assert session["command"].startswith("python -m mmsmart.eval --dataset mmsmart-charts --limit 6")
    assert {"python", "mmsmart", "torch", "transformers"} <= set(session["versions"])
    report = tmp_path / "report.html"
    assert evaluate(capsys, "report", str(out), "--html", str(report))[:2] == (0, f"written: {report}\n")
    assert report.read_text().count("data:image/jpeg;base64,") == 6
    assert "| T | policy | mmsmart-charts | mean |" in evaluate(capsys, "report", str(out))[1]


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        ((), 2, "--dataset is missing; known: vqav2, chartqa"),
        (("--dataset", "chartqu"), 2, "unknown data set 'chartqu'; did you mean 'chartqa'"),
        (("--dataset", "textvqa:acr=True"), 2, "has no option 'acr'"),
        (("--dataset", "chartqa", "--data", "nowhere.jsonl"), 2, "no such file or folder: nowhere.jsonl"),
        (("--dataset", "chartqa", "--policies", "none,smarter"), 2, "unknown policy 'smarter'; did you mean 'smart'"),
        (("--dataset", "chartqa", "--batch-size", "0"), 2, "batch_size must be a whole number of at least 1, got 0"),
        (("--dataset", "chartqa", "--limit", "0"), 2, "the limit must be at least 1, got 0"),
        (("--dataset", "chartqa", "--temperature", "-1"), 2, "temperature must be at least 0"),
        (("--dataset", "mmsmart-charts", "--data", "x"), 2, "leave --data and --hub-id out"),
        (("--dataset", "mmsmart-charts", "--model", "./nowhere"), 1, "no such folder: ./nowhere"),
        (("--dataset", "mmsmart-charts", "--drafter", "gram"), 2, "unknown drafter 'gram'"),
        (("report", "nowhere"), 2, "no such run folder: nowhere"),
    ],
)
def test_errors_are_one_line(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    status: int,
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    got, out, err = evaluate(capsys, *arguments)
    assert (got, out) == (status, "")
    assert words in err
    assert len(err.strip().splitlines()) == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("arguments", [("--nope",), ("--mode", "medium"), ("--limit", "x"), ("reprot",), ("report",)])
def test_usage_errors_exit_2_in_one_line(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as caught:
        command.main(arguments)
    assert caught.value.code == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_it_is_a_command_of_mmsmart_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["eval", "--dataset", "chartqu"]) == 2
    assert "did you mean 'chartqa'" in capsys.readouterr().err
    assert cli.main(["eval", "report", "nowhere"]) == 2
    assert "no such run folder" in capsys.readouterr().err
    with pytest.raises(SystemExit) as caught:
        command.main(["--help"])
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    for option in (
        "--dataset",
        "--data",
        "--hub-id",
        "--limit",
        "--seed",
        "--mode",
        "--model",
        "--drafter",
        "--policies",
    ):
        assert option in shown
    for option in ("--batch-size", "--max-new-tokens", "--temperature", "--dtype", "--device", "--device-map", "--out"):
        assert option in shown


def test_the_default_folder_names_the_settings() -> None:
    settings = RunSettings("textvqa:ocr=True", model="llava-hf/llava-1.5-7b-hf", mode="long", batch_size=4)
    assert str(default_folder(settings)) == os.path.join("runs", "textvqa_ocr=True-llava-1.5-7b-hf-long-b4-t0-s0")
