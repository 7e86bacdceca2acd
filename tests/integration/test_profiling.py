"""Profiles: measured through the code that runs, kept, refused for other settings, used by the policies that ask."""

import gc
import json
import logging
from pathlib import Path

import pytest

import tiny
from mmsmart import cli
from mmsmart.api import load
from mmsmart.costs import profiler
from mmsmart.engine import Engine
from mmsmart.policies.rate_optimal import RateOptimal
from mmsmart.profiling import profile, profile_path, settings_of


@pytest.fixture(autouse=True)
def small_and_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(profiler, "NODES", (1, 4, 16))
    monkeypatch.setattr(profiler, "WIDTHS", (0, 1, 8))
    monkeypatch.setattr(profiler, "BATCHES", (1, 2))
    monkeypatch.setattr("mmsmart.profiling.BATCHES", (1, 2))
    monkeypatch.setattr("mmsmart.profiling.CONTEXTS", (32,))


def test_a_profile_is_measured_once_and_kept(llava_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine = load(str(llava_folder), drafter="ngram", policy="none")
    with caplog.at_level(logging.WARNING):
        first = profile(engine, batches=(1, 2), progress=False)
        assert "measuring this device once" in caplog.text
        caplog.clear()
        again = profile(engine, batches=(1, 2), progress=False)
        assert caplog.text == ""
    assert again.table == first.table
    curve = first.table.verify.curve(1, 32)
    assert (curve > 0).all()
    assert (curve[1:] >= curve[:-1]).all()
    assert first.table.fixed_ms > 0


def test_a_profile_of_other_settings_is_not_used(llava_folder: Path) -> None:
    engine = load(str(llava_folder), drafter="ngram", policy="none")
    profile(engine, batches=(1,), progress=False)
    other = load(str(llava_folder), drafter="ngram", policy="none", dtype="bfloat16")
    assert not profile_path(settings_of(other)).exists()


@pytest.mark.parametrize("policy", ["smart", "rate-optimal"])
@pytest.mark.parametrize("family", ["llava", "qwen2_vl"])
def test_policies_that_weigh_costs_answer_as_plain_decoding_does(
    policy: str, family: str, request: pytest.FixtureRequest
) -> None:
    folder = str(request.getfixturevalue(f"{family}_folder"))
    question = "this and this and this and this, what is this?"
    plain = load(folder, policy="none", dtype="float64").generate(tiny.picture(1), question, max_new_tokens=30)
    for how in ("auto", None):
        engine = load(folder, drafter="ngram", policy=policy, profile=how, dtype="float64")
        assert engine.generate(tiny.picture(1), question, max_new_tokens=30).token_ids == plain.token_ids


def test_the_cost_model_learns_from_real_rounds(llava_folder: Path) -> None:
    engine = load(str(llava_folder), drafter="ngram", policy="rate-optimal")
    engine.generate(tiny.picture(1), "what is what is what?", max_new_tokens=30)
    assert isinstance(engine.policy, RateOptimal)
    assert engine.policy.costs is not None
    assert set(engine.policy.costs.factors.values()) != {1.0}


def test_what_is_learnt_of_a_drafter_is_kept_beside_the_profile(
    llava_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def learnt(engine: Engine) -> RateOptimal:
        assert isinstance(engine.policy, RateOptimal)
        return engine.policy

    engine = load(str(llava_folder), drafter="ngram", policy="rate-optimal")
    path = profile_path(settings_of(engine)).with_suffix(".acceptance.json")
    assert not path.exists()
    engine.generate(tiny.picture(0), "What?", max_new_tokens=24)
    counts = learnt(engine).calibration
    assert counts.seen > 0
    del engine
    gc.collect()
    assert path.is_file()
    again = learnt(load(str(llava_folder), drafter="ngram", policy="rate-optimal")).calibration
    assert again.seen == counts.seen
    assert (again.offered == counts.offered).all()
    assert (again.accepted == counts.accepted).all()
    path.write_text('{"accepted": [[2]], "offered": [[1]], "seen": 1}')
    with caplog.at_level(logging.WARNING):
        fresh = learnt(load(str(llava_folder), drafter="ngram", policy="rate-optimal")).calibration
    assert "learnt anew" in caplog.text
    assert fresh.seen == 0


def test_the_command_prints_and_keeps_it(
    llava_folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert cli.main(["profile", "--model", str(llava_folder), "--drafter", "ngram", "--batch", "1,2"]) == 0
    out = capsys.readouterr().out
    kept = Path(out.strip().splitlines()[-1].removeprefix("kept in "))
    assert json.loads(kept.read_text())["settings"]["model"] == str(llava_folder)
    assert "milliseconds" in out
    assert cli.main(["profile", "--batch", "1,x"]) == 2
