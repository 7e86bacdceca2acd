"""The benchmark command: same answers in every arm, sums that add up, one line for bad input."""

import json
from pathlib import Path

import pytest

from mmsmart import cli
from mmsmart.api import load
from mmsmart.bench.arms import EngineArm
from mmsmart.bench.measure import Measured, summary
from mmsmart.bench.workload import WrongDrafter, requests
from mmsmart.config import SamplingParams
from mmsmart.drafters.ngram import NgramDrafter

SAMPLING = SamplingParams(max_new_tokens=12)


def bench(*arguments: str) -> int:
    return cli.main(["bench", "--no-progress", "--threads", "1", *arguments])


def test_every_arm_gives_the_same_answers_and_the_file_holds_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, picture = tmp_path / "bench.json", tmp_path / "bench.png"
    policies = "none,likelihood:depth=2,top_k=2,total=4,smart,chain"
    arguments = ("--batch", "2", "--questions", "3", "--max-new-tokens", "8", "--repeats", "2", "--policies", policies)
    assert bench(*arguments, "--json", str(out), "--plot", str(picture)) == 0
    record = json.loads(out.read_text())
    rows = {row["arm"]: row for row in record["rows"]}
    assert set(rows) == {"generate", "prompt-lookup", "none", "likelihood:depth=2,top_k=2,total=4", "smart", "chain"}
    assert "batch_size = 1" in rows.pop("prompt-lookup")["failure"]
    for row in rows.values():
        assert (row["identical"], row["questions"]) == (3, 3)
        assert row["speedup_over_generate"] > 0
    chain = rows["chain"]
    parts = sum(chain[f"{part}_ms"] for part in ("draft", "verify", "policy", "other"))
    assert parts == pytest.approx(chain["round_ms"], rel=0.25)
    assert chain["mean_acceptance_length"] > 1.5
    assert rows["none"]["drafted" if "drafted" in rows["none"] else "depth"] == 0
    assert record["settings"]["threads"] == 1
    assert picture.stat().st_size > 1000
    assert "x generate" in capsys.readouterr().out


def test_the_oracle_names_one_best_fixed_tree(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    arguments = ("--questions", "1", "--max-new-tokens", "4", "--repeats", "1", "--batch", "1", "--baselines", "none")
    assert bench(*arguments, "--policies", "none", "--oracle", "--json", str(out)) == 0
    rows = json.loads(out.read_text())["rows"]
    assert sum(row.get("best_fixed_tree", False) for row in rows) == 1
    assert len(rows[0]["oracle_sweep_ms"]) == 13


def test_the_wrong_drafter_drafts_but_is_never_right() -> None:
    engine = load("tiny-llava", drafter=WrongDrafter(NgramDrafter()), policy="chain:depth=3", dtype="float32")
    tally = EngineArm("chain", engine).answer(requests(2, 0, SAMPLING), 1)
    assert tally.drafted > 0
    assert tally.accepted == 0
    plain = load("tiny-llava", policy="none", dtype="float32")
    assert tally.token_ids == EngineArm("none", plain).answer(requests(2, 0, SAMPLING), 1).token_ids


def test_the_mixed_workload_takes_easy_and_hard_questions_in_turn_long_and_short() -> None:
    easy, hard, mixed = (requests(8, 0, SamplingParams(), name) for name in ("charts", "foreign", "mixed"))
    assert [one.question for one in mixed] == [q.question for pair in zip(easy, hard, strict=True) for q in pair][:8]
    assert [one.sampling.max_new_tokens for one in mixed] == [512, 512, 12, 12] * 2
    assert len({one.question for one in hard}) == 8


def test_a_failed_arm_is_a_row_with_its_reason() -> None:
    failed = Measured("prompt-lookup", 4, (), "not for batches")
    assert summary(failed, failed, None) == {"arm": "prompt-lookup", "batch": 4, "failure": "not for batches"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--batch", "0"), "--batch"),
        (("--baselines", "vllm"), "vllm"),
        (("--baselines", "assisted"), "--assistant"),
        (("--policies", "smrt"), "smart"),
        (("--questions", "0"), "--questions"),
        (("--json", "/nowhere/at/all.json"), "/nowhere/at"),
        (("--temperature", "-1"), "temperature"),
    ],
)
def test_bad_input_is_one_line(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str) -> None:
    assert bench(*arguments) == 2
    error = capsys.readouterr().err
    assert words in error
    assert len(error.splitlines()) == 1
