"""The evaluation's answers and accuracy are those of a direct ``generate``; a differing answer is found."""

import json
from pathlib import Path

import pytest

from eval import against_generate
from mmsmart.registry import EMBEDDED_MODELS, POLICIES

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)


def charts(model: str, out: Path, limit: int, policies: str) -> list[str]:
    data = ["--dataset", "mmsmart-charts", "--limit", str(limit), "--model", model, "--out", str(out)]
    return [*data, "--policies", policies, "--no-profile", "--no-progress", "--json", str(out.with_suffix(".json"))]


@pytest.mark.parametrize("model", EMBEDDED_MODELS)
def test_a_few_charts_and_a_row_that_was_changed(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = charts(model, tmp_path / "run", 3, "none,best-first:nodes=8")
    assert against_generate.main(command) == 0
    assert "none: final_answer" in (printed := capsys.readouterr().out)
    assert printed.count("3 / 3 answers as generate's") == 2
    rows = tmp_path / "run" / "rows.jsonl"
    lines = [json.loads(line) for line in rows.read_text().splitlines()]
    lines[-1]["token_ids"][0] += 1
    rows.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert against_generate.main(command) == 1
    record = json.loads((tmp_path / "run.json").read_text())
    assert [(one["sample"], one["policy"]) for one in record["different"]] == [
        (lines[-1]["sample"], lines[-1]["policy"])
    ]


def test_what_cannot_be_compared_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = charts("tiny-llava", tmp_path / "run", 3, "none")
    assert against_generate.main([*command, "--temperature", "1"]) == 2
    assert "temperature 0" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("model", EMBEDDED_MODELS)
def test_two_hundred_charts_under_every_policy(model: str, tmp_path: Path) -> None:
    command = charts(model, tmp_path / "run", 200, ",".join(POLICIES))
    assert against_generate.main(command) == 0
    whole(json.loads((tmp_path / "run.json").read_text()))


@pytest.mark.parametrize("model", EMBEDDED_MODELS)
def test_the_recorded_comparison_is_whole(model: str) -> None:
    whole(json.loads((ROOT / "eval" / "results" / f"against_generate_{model}.json").read_text()))


def whole(record: dict[str, object]) -> None:
    assert record["samples"] == 200
    assert record["different"] == []
    assert record["equal"] == dict.fromkeys(POLICIES, 200)
    accuracy = record["accuracy"]
    assert isinstance(accuracy, dict)
    assert set(accuracy) == {"generate", *POLICIES}
    assert len({json.dumps(each) for each in accuracy.values()}) == 1
