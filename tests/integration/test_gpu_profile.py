"""The GPU script from end to end on a CPU with tiny shapes, its recording of acceptance, and the replay of it."""

import functools
import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import mmsmart
import tiny
from drafters import ScriptedDrafter
from mmsmart.api import load
from mmsmart.costs.profiler import Profile, paper_curves
from mmsmart.costs.table import CostTable, Grid
from mmsmart.engine import Engine, Request
from mmsmart.errors import InputError
from mmsmart.policies.chain import Chain
from mmsmart.policies.none import NoDrafting

EVAL = Path(__file__).resolve().parents[2] / "eval"
ARMS = 6


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    monkeypatch.syspath_prepend(str(EVAL))
    names = ("acceptance", "replay", "random_models", "gpu_profile")
    return SimpleNamespace(**{name: importlib.import_module(name) for name in names})


def run(script: ModuleType, path: Path, *arguments: str) -> dict[str, Any]:
    base = ("--json", str(path), "--device", "cpu", "--shapes", "tiny", "--context", "40", "--rounds", "6")
    assert script.main(script.parse([*base, *arguments])) == 0
    record: dict[str, Any] = json.loads(path.read_text())
    return record


def test_all_parts_on_a_cpu(
    scripts: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    monkeypatch.setattr("mmsmart.costs.profiler._POINT_MS", 1.0)
    path = tmp_path / "figures.json"
    record = run(scripts.gpu_profile, path, "--models", "qwen", "--batch", "2,1")
    assert record["bandwidth_gb_s"].keys() == {"copy", "read"}
    assert list(record["parts"]) == ["Qwen2-VL, tiny, eager", "Qwen2-VL, tiny, compiled"]
    for part in record["parts"].values():
        assert [row["batch"] for row in part["rows"]] == [2, 1]
        assert part["table"]["verify"]["batches"] == [1, 2]
        assert part["left_out"] == []
        for row in part["rows"]:
            assert 0 < row["plain_forward_ms"] == row["verify_ms"]["1"]
            assert row["bandwidth_share"] > 0
            assert row["cache_read_gb"] == pytest.approx(row["batch"] * 40 * 2 * 2 * 2 * 16 * 4 / 1e9, abs=1e-4)
    assert "33" in record["parts"]["Qwen2-VL, tiny, compiled"]["rows"][0]["verify_ms"]
    for results in record["replay"].values():
        assert len(results) == 2 * ARMS
        assert [result["speedup"] for result in results if result["policy"] == "none"] == [1, 1]
    assert "PREDICTED" in capsys.readouterr().out
    again = scripts.gpu_profile.parse(["--json", str(tmp_path / "again.json"), "--replay", str(path), "--rounds", "6"])
    assert scripts.gpu_profile.main(again) == 0
    assert json.loads((tmp_path / "again.json").read_text())["parts"] == record["parts"]


def test_a_part_without_time_is_said_to_be_left_out(scripts: SimpleNamespace, tmp_path: Path) -> None:
    record = run(scripts.gpu_profile, tmp_path / "x.json", "--models", "7b", "--modes", "eager", "--seconds", "0")
    (part,) = record["parts"].values()
    assert part["rows"] == []
    assert [left["batch"] for left in part["left_out"]] == [1, 8, 32, 4, 16, 2]
    assert record["replay"] == {}


def test_what_cannot_run_is_kept_as_a_sentence(
    scripts: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: Any) -> None:
        raise torch.OutOfMemoryError("no room for this\nand more")

    monkeypatch.setattr(scripts.gpu_profile, "measure_batch", full)
    record = run(scripts.gpu_profile, tmp_path / "x.json", "--models", "7b", "--modes", "eager", "--batch", "4")
    assert record["parts"]["LLaVA, tiny, eager"]["left_out"] == [{"batch": 4, "why": "no room for this and more"}]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_in_one_sentence(tmp_path: Path) -> None:
    command = [sys.executable, "eval/gpu_profile.py", "--json", str(tmp_path / "x.json")]
    environment = {"PYTHONPATH": ".", "PATH": "/usr/bin:/bin"}
    result = subprocess.run(command, cwd=EVAL.parent, env=environment, capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.count("\n") == 1
    assert "there is no GPU here" in result.stderr
    assert not (tmp_path / "x.json").exists()


def test_wrong_arguments_are_one_line(scripts: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--models", "8b"], ["--batch", "0"], ["--modes", "fast"], []):
        with pytest.raises(SystemExit) as caught:
            scripts.gpu_profile.parse([*(["--json", "x"] if arguments else []), *arguments])
        assert caught.value.code == 2
        assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_the_recording_in_the_repository(scripts: SimpleNamespace) -> None:
    trace = scripts.acceptance.Trace.load(scripts.gpu_profile.ACCEPTANCE)
    assert scripts.gpu_profile.ACCEPTANCE.stat().st_size < 300_000
    assert trace.about["model"] == "tiny-llava"
    assert trace.log_probs.shape == (trace.starts[-1], scripts.acceptance.DEPTH, scripts.acceptance.RANKS)
    assert (np.diff(trace.log_probs, axis=2) <= 0).all()
    assert (np.diff((trace.ranks < 0).astype(int), axis=1) >= 0).all()  # what is lost stays lost
    paths = trace.static_paths(59, 6)
    assert len(set(paths)) == 59
    assert all(len(path) <= 6 and (len(path) == 1 or path[:-1] in paths) for path in paths)


def test_shapes_are_the_published_ones(scripts: SimpleNamespace) -> None:
    """Parameters in billions of the targets, and of the MSD heads with their embedding to the last one."""
    known = {"7b": (7.06, 367_009_792), "13b": (13.35, 533_473_280), "qwen": (8.29, 803_748_864)}
    models = scripts.random_models
    for key, (target_billions, head_parameters) in known.items():
        shape = models.PUBLISHED[key]
        with torch.device("meta"):
            target, head = models._FAMILIES[shape.family](shape), models.EagleHead(models._head_config(shape))
        assert sum(p.numel() for p in target.parameters()) / 1e9 == pytest.approx(target_billions, abs=0.005)
        assert sum(p.numel() for p in head.parameters()) == head_parameters


def test_a_recording_follows_the_targets_answer(scripts: SimpleNamespace, llava_folder: Path, tmp_path: Path) -> None:
    plain = load(str(llava_folder), policy="none", drafter="ngram", dtype="float64")
    request = Request(tiny.picture(1), "what is it?", mmsmart.SamplingParams(max_new_tokens=15))
    answer = plain.generate_batch([request])[0].token_ids
    engine = Engine(plain.target, ScriptedDrafter([answer + [5] * 20], place=1), NoDrafting())
    trace = scripts.acceptance.record(engine, [request], {"model": "tiny"})
    assert trace.starts.tolist() == [0, len(trace.ranks)]
    for position, ranks in enumerate(trace.ranks):
        known = min(scripts.acceptance.DEPTH, len(answer) - 1 - position)
        assert ranks.tolist() == [1] * known + [-1] * (scripts.acceptance.DEPTH - known)
    assert np.exp(trace.log_probs[0, 0, :2]) == pytest.approx([0.6, 0.3])
    trace.save(tmp_path / "trace.json")
    loaded = scripts.acceptance.Trace.load(tmp_path / "trace.json")
    assert (loaded.ranks == trace.ranks).all()
    assert loaded.log_probs == pytest.approx(trace.log_probs, abs=1 / 64)
    (tmp_path / "trace.json").write_text("{}")
    with pytest.raises(InputError, match="cannot be read"):
        scripts.acceptance.Trace.load(tmp_path / "trace.json")


def test_the_replay_counts_time_and_tokens(scripts: SimpleNamespace) -> None:
    """Three answers of seven tokens, all drafts right: rounds and costs known by hand."""
    ranks = np.zeros((21, 5), np.int8)
    starts = np.array([0, 7, 14, 21])
    log_probs = np.full((21, 5, 3), np.log(1 / 3), np.float32)
    trace = scripts.acceptance.Trace(log_probs, ranks, starts, {})
    verify = Grid((1, 6), (2,), (10,), (((4.0,),), ((9.0,),)))
    draft = Grid((0, 1), (2,), (10,), (((0.5,),), ((0.25,),)))
    table = CostTable(verify, draft, 1.0, {})
    device = scripts.replay.Device(trace, table, 2, 10, 0.5)
    assert device.plain_ms() == 4.5
    assert device.round(NoDrafting())[:6] == (2, 1, 0, 0, 4.0, 0.5)
    assert device.round(Chain(5))[:6] == (12, 6, 5, 0.5 + 4 * 0.25, 9.0, 1.0)  # 5 accepted and a bonus token, each row
    costs = Profile(table, paper_curves(table, batch=2, context=10))
    fresh = scripts.replay.Device(trace, table, 2, 10, 0.5)
    result = scripts.replay.predict(fresh, Chain(5), costs, rounds=4, warm=0)
    # Of each answer's seven tokens a round takes six, the next one the rest.
    assert result.mean_acceptance_length == pytest.approx(3.5)
    assert result.speedup == pytest.approx(7 / 11.5 / (2 / 4.5), abs=1e-4)
