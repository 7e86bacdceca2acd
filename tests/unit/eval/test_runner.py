"""The runner: a row for each sample and policy, whatever fails or is interrupted; figures that add up."""

import dataclasses
import gc
import itertools
import json
import tracemalloc
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from drafters import ScriptedDrafter
from mmsmart.engine import Engine, Request
from mmsmart.errors import InputError, NumericalError
from mmsmart.eval import arms
from mmsmart.eval.data.source import DataRequest
from mmsmart.eval.folder import Done, Grouping, RunFolder, cut_half_line, recorded
from mmsmart.eval.merge import DIFFERING, Tally, interval, merge, wait_and_merge
from mmsmart.eval.provenance import Process, speed_claim
from mmsmart.eval.results import ResultRow, Speed, Totals, read_rows
from mmsmart.eval.runner import Runner, load_arms, run
from mmsmart.eval.settings import RunSettings, split_policies
from mmsmart.eval.slowest import Slowest
from mmsmart.eval.tasks.base import Mean, Score
from mmsmart.stats import GenerationStats
from support import chart_questions

POLICIES = ("none", "best-first:nodes=4", "chain:depth=2")
ALONE = Process()


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def engines(llava_folder: Path) -> dict[str, Engine]:
    return load_arms(settings_for(llava_folder, Path("unused")), ALONE)


def settings_for(model: Path, data: Path, **options: Any) -> RunSettings:
    request = DataRequest(data, limit=options.pop("limit", None), seed=options.pop("seed", 0))
    given: dict[str, Any] = {"policies": POLICIES, "max_new_tokens": 9, "batch_size": 2, "dtype": "float64"} | options
    return RunSettings("chartqa", request, model=str(model), drafter="ngram", device="cpu", **given)


@pytest.fixture
def evaluate(llava_folder: Path, engines: dict[str, Engine], tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Runs and merges; the engines are made once."""

    def run_once(data: Path, out: str = "run", process: Process = ALONE, **options: Any) -> dict[str, Any]:
        settings = settings_for(llava_folder, data, **options)
        task = settings.task()
        folder = RunFolder(tmp_path / out, process, Grouping(process.count, settings.batch_size))
        arms_of = {policy: engines[policy] for policy in settings.policies}
        Runner(settings, task, task.open(settings.request), arms_of, folder).run()
        found = recorded(folder.path, process.count)
        return merge(task, folder.path, found) if found and found.finished else {}

    return run_once


def rows_of(path: Path) -> list[ResultRow]:
    return list(read_rows(path))


def untimed(rows: Sequence[ResultRow]) -> list[ResultRow]:
    """Rows without their times: what must be the same in every run."""
    return [dataclasses.replace(row, speed=None) for row in rows]


def speed(wall_ms: float = 10.0, *, timed: bool = True, counts: tuple[int, ...] = (), **stats: Any) -> Speed:
    return Speed(1, timed, wall_ms, wall_ms / 2, 1.0, counts, GenerationStats(**({"new_tokens": 5} | stats)))


# ---- rows


def test_every_sample_has_a_row_under_every_policy_in_alternating_order(
    evaluate: Callable[..., Any], engines: dict[str, Engine], tmp_path: Path
) -> None:
    data = chart_questions(tmp_path / "data", 5)
    result = evaluate(data)
    rows = rows_of(tmp_path / "run" / "rows.jsonl")
    order = [(row.index, row.policy) for row in rows]
    first, second, third = POLICIES
    assert order[:6] == [(0, first), (1, first), (0, second), (1, second), (0, third), (1, third)]
    assert order[6:12] == [(2, third), (3, third), (2, second), (3, second), (2, first), (3, first)]
    assert order[12:] == [(4, first), (4, second), (4, third)]
    assert (result["samples"], result["failed"]) == (5, 0)
    assert result["templates"] == {"chartqa/short/llava": 5}
    row = rows[0]
    prompt = "What is bar 0?\nAnswer the question using a single word or phrase."
    expected = engines[first].generate(tmp_path / "data" / "0.jpg", prompt, max_new_tokens=9)
    assert (row.text, list(row.token_ids), row.finish_reason) == (expected.text, expected.token_ids, "length")
    assert row.question == "What is bar 0?"
    assert row.references == ("0",)
    assert row.score is not None
    assert row.score.groups == {"type": "human"}
    assert ResultRow.from_json(row.to_json()) == row


def test_answers_equal_plain_decoding_and_are_counted(evaluate: Callable[..., Any], tmp_path: Path) -> None:
    result = evaluate(chart_questions(tmp_path / "data", 4))
    assert result["policies"]["none"]["equality"] is None
    for policy in POLICIES[1:]:
        assert result["policies"][policy]["equality"] == {"compared": 4, "equal": 4, "different": []}
        assert result["policies"][policy]["metrics"] == result["policies"]["none"]["metrics"]
    assert not (tmp_path / "run" / DIFFERING).exists()


def test_sampling_draws_the_same_answer_under_every_policy_and_another_for_every_sample(
    evaluate: Callable[..., Any], tmp_path: Path
) -> None:
    data = chart_questions(tmp_path / "data", 4)
    result = evaluate(data, temperature=1.0)
    assert result["policies"][POLICIES[1]]["equality"]["equal"] == 4
    again = evaluate(data, "again", temperature=1.0)
    other = evaluate(data, "other", temperature=1.0, seed=1)
    texts = [[row.text for row in rows_of(tmp_path / out / "rows.jsonl")] for out in ("run", "again", "other")]
    assert texts[0] == texts[1] != texts[2]
    assert again["settings"]["seed"] == 0
    assert other["settings"]["seed"] == 1


def test_g31_counts_of_every_row_and_of_the_pool_add_up(
    evaluate: Callable[..., Any], engines: dict[str, Engine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = chart_questions(tmp_path / "data", 1)
    data.write_text(data.read_text() * 6)
    evaluate(data, "plain", max_new_tokens=24, policies=("none",))
    answer = rows_of(tmp_path / "plain" / "rows.jsonl")[0].token_ids
    for engine in engines.values():
        monkeypatch.setattr(engine, "drafter", ScriptedDrafter([answer] * 2))
    result = evaluate(data, max_new_tokens=24)
    pools = {policy: GenerationStats() for policy in POLICIES}
    for row in rows_of(tmp_path / "run" / "rows.jsonl"):
        assert row.speed is not None
        stats, counts = row.speed.stats, row.speed.accepted_counts
        missing_bonus = 1 + stats.rounds + stats.accepted - stats.new_tokens
        assert missing_bonus == 0 or (missing_bonus == 1 and row.finish_reason == "eos")
        assert stats.new_tokens == len(row.token_ids)
        assert sum(depth * rounds for depth, rounds in enumerate(counts)) == stats.accepted
        assert sum(counts) <= stats.rounds
        assert (stats.drafted == 0) == (counts == ())
        pool = pools[row.policy]
        for name in ("rounds", "accepted", "drafted", "new_tokens"):
            setattr(pool, name, getattr(pool, name) + getattr(stats, name))
    for policy, pool in pools.items():
        figures = result["policies"][policy]["speed"]
        assert figures["mean_acceptance_length"] == 1 + pool.accepted / pool.rounds
        assert figures["acceptance_rate"] == pool.acceptance_rate
        assert figures["new_tokens"] == pool.new_tokens
    assert pools["none"].drafted == 0
    assert pools[POLICIES[1]].accepted > 0


def test_g31_three_rounds_of_four_none_and_two() -> None:
    totals = Totals()
    totals.add(speed(counts=(1, 0, 1, 0, 1), new_tokens=10, rounds=3, drafted=12, accepted=6))
    figures = totals.summary(None)
    assert figures["mean_acceptance_length"] == 3.0
    assert figures["acceptance_rate"] == 0.5
    assert figures["accepted_by_depth"] == pytest.approx([2 / 3, 2 / 3, 1 / 3, 1 / 3])


def test_rates_are_pooled_and_speedups_are_of_times_per_token() -> None:
    plain, drafted = Totals(), Totals()
    for wall in (100.0, 300.0):
        plain.add(speed(wall, new_tokens=10))
        drafted.add(speed(wall / 4, new_tokens=5))
    figures = drafted.summary(plain)
    assert figures["speedup"] == 2.0  # 20 ms a token over 10
    assert figures["decode_speedup"] == pytest.approx((200 / 18) / (50 / 8))
    assert figures["tokens_per_s"] == 100.0
    assert plain.summary(plain)["speedup"] == 1.0
    assert Totals().summary(plain)["speedup"] is None


# ---- failures


def test_g27_a_truncated_picture_is_a_failed_row_and_the_rest_is_intact(
    evaluate: Callable[..., Any], tmp_path: Path
) -> None:
    good, bad = chart_questions(tmp_path / "good", 5), chart_questions(tmp_path / "bad", 5, broken=[2])
    evaluate(good, "whole")
    result = evaluate(bad, "broken")
    whole, broken = (rows_of(tmp_path / out / "rows.jsonl") for out in ("whole", "broken"))
    assert len(broken) == len(whole) == 15
    failed = [row for row in broken if row.error]
    assert {(row.index, row.policy) for row in failed} == {(2, policy) for policy in POLICIES}
    assert all("2.jpg" in row.error and "damaged" in row.error for row in failed)
    intact = [row for row in whole if row.index != 2]
    assert untimed([row for row in broken if not row.error]) == untimed(intact)
    assert result["failed"] == 1
    assert result["failures"][0]["sample"] == "2"
    assert result["policies"]["none"]["metrics"]["chartqa_relaxed"]["count"] == 4


def test_rows_that_cannot_be_asked_and_prompts_that_are_too_long_fail_alone(
    evaluate: Callable[..., Any], tmp_path: Path
) -> None:
    data = chart_questions(tmp_path / "data", 3)
    lines = data.read_text().splitlines()
    lines[1:1] = ["{broken", json.dumps({"question": "long " * 500, "answer": "1", "image": "0.jpg"})]
    data.write_text("\n".join(lines))
    result = evaluate(data)
    assert (result["samples"], result["failed"]) == (5, 2)
    assert "not JSON" in result["failures"][0]["error"]
    assert "limit of 1024 positions" in result["failures"][1]["error"]


def test_a_batch_that_fails_is_taken_apart(
    evaluate: Callable[..., Any], engines: dict[str, Engine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = chart_questions(tmp_path / "data", 4)
    evaluate(data, "whole")
    engine = engines[POLICIES[1]]
    start = engine.start

    def fails_at_bar_1(prompts: list[Any], first_number: int = 0) -> Any:
        if any("bar 1" in engine.target.tokenizer.decode(prompt.inputs.token_ids) for prompt in prompts):
            raise NumericalError("the target's logits hold NaN")
        return start(prompts, first_number)

    monkeypatch.setattr(engine, "start", fails_at_bar_1)
    result = evaluate(data, "broken")
    rows = rows_of(tmp_path / "broken" / "rows.jsonl")
    assert [(row.index, row.policy) for row in rows if row.error] == [(1, POLICIES[1])]
    alone = [row for row in rows if row.speed is not None and not row.speed.timed]
    assert [(row.index, row.policy, row.speed and row.speed.batch_rows) for row in alone] == [(0, POLICIES[1], 1)]
    whole = {(row.index, row.policy): row.token_ids for row in rows_of(tmp_path / "whole" / "rows.jsonl")}
    assert all(row.token_ids == whole[row.index, row.policy] for row in rows if not row.error)
    assert result["failed"] == 1
    assert {figures["speed"]["samples"] for figures in result["policies"].values()} == {2}  # of the other batch
    assert result["policies"][POLICIES[1]]["equality"]["compared"] == 3


def test_only_errors_of_samples_are_caught(engines: dict[str, Engine], monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engines["none"]
    monkeypatch.setattr(engine, "start", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        arms.answer(engine, [Request(None, "hm?")])


# ---- interruptions


def test_a_run_cut_anywhere_goes_on_as_if_it_had_not_been(evaluate: Callable[..., Any], tmp_path: Path) -> None:
    data = chart_questions(tmp_path / "data", 5, broken=[3])
    whole_result = evaluate(data, "whole")
    content = (tmp_path / "whole" / "rows.jsonl").read_bytes()
    whole = rows_of(tmp_path / "whole" / "rows.jsonl")
    ends = [place + 1 for place, byte in enumerate(content) if byte == 10]
    for cut in (0, 7, ends[0], ends[0] + 1, ends[3] - 1, ends[8], ends[10] + 30, len(content) - 1, len(content)):
        folder = tmp_path / f"cut{cut}"
        folder.mkdir()
        (folder / "run.json").write_bytes((tmp_path / "whole" / "run.json").read_bytes())
        (folder / "rows.jsonl").write_bytes(content[:cut])
        result = evaluate(data, folder.name)
        rows = rows_of(folder / "rows.jsonl")
        assert Counter((row.sample, row.policy) for row in rows) == Counter((row.sample, row.policy) for row in whole)
        key = lambda row: (row.index, row.policy)  # noqa: E731
        assert sorted(untimed(rows), key=key) == sorted(untimed(whole), key=key)
        for policy in POLICIES:
            assert result["policies"][policy]["metrics"] == whole_result["policies"][policy]["metrics"]
            assert result["policies"][policy]["equality"] == whole_result["policies"][policy]["equality"]
        assert all(row.speed.batch_rows == 2 for row in rows if row.speed and row.index < 2)
        assert len(result["sessions"][0]) == 2


def test_a_finished_run_asks_nothing_again(
    evaluate: Callable[..., Any], engines: dict[str, Engine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = chart_questions(tmp_path / "data", 4)
    first = evaluate(data)
    for engine in engines.values():
        monkeypatch.setattr(engine, "start", lambda *_: pytest.fail("asked again"))
    second = evaluate(data)
    assert second["policies"] == first["policies"]
    assert second["slowest"] == first["slowest"]


def test_a_run_of_other_settings_is_refused(evaluate: Callable[..., Any], tmp_path: Path) -> None:
    data = chart_questions(tmp_path / "data", 2)
    evaluate(data)
    with pytest.raises(InputError, match=r"holds a run of other settings \(batch size 2, now 1\); pass another --out"):
        evaluate(data, batch_size=1)
    with pytest.raises(InputError, match=r"other settings.*processes 1, now 2"):
        evaluate(data, process=Process(0, 2))
    chart_questions(tmp_path / "data", 3)
    with pytest.raises(InputError, match=r"other settings \(data "):
        evaluate(data)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file"):
        evaluate(data, "file")


def test_damaged_files_are_named(evaluate: Callable[..., Any], tmp_path: Path) -> None:
    data = chart_questions(tmp_path / "data", 2)
    evaluate(data)
    rows = tmp_path / "run" / "rows.jsonl"
    rows.write_text("{}\n" + rows.read_text())
    with pytest.raises(InputError, match=r"line 1 of .*rows\.jsonl is damaged"):
        evaluate(data)
    (tmp_path / "run" / "run.json").write_text("{")
    with pytest.raises(InputError, match=r"run\.json is damaged"):
        evaluate(data)


@pytest.mark.parametrize(
    ("content", "kept"),
    [
        (b"", b""),
        (b"abc", b""),
        (b"a\n", b"a\n"),
        (b"a\nbc", b"a\n"),
        (b"a\n" + b"x" * 200_000, b"a\n"),
        (b"\n", b"\n"),
    ],
)
def test_half_a_line_is_cut_off(tmp_path: Path, content: bytes, kept: bytes) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    cut_half_line(path)
    assert path.read_bytes() == kept


def test_finished_groups_are_told_by_a_samples_place() -> None:
    done = Done(Grouping(shards=2, size=3), group=2)
    assert [str(index) for index in range(16) if str(index) in done] == [str(index) for index in range(12)]
    assert "11:own-id" in done
    assert "12:own-id" not in done


# ---- several processes


def test_two_processes_share_the_samples_and_give_the_result_of_one(
    evaluate: Callable[..., Any], tmp_path: Path
) -> None:
    data = chart_questions(tmp_path / "data", 7, broken=[4])
    one = evaluate(data, "one")
    assert evaluate(data, "two", Process(1, 2)) == {}  # process 0 has not begun
    two = evaluate(data, "two", Process(0, 2))
    shares = [[row.index for row in rows_of(tmp_path / "two" / f"rows-{n}-of-2.jsonl")] for n in (0, 1)]
    assert [sorted(set(share)) for share in shares] == [[0, 2, 4, 6], [1, 3, 5]]
    for policy in POLICIES:
        for part in ("metrics", "groups", "equality"):
            assert two["policies"][policy][part] == one["policies"][policy][part]
    assert (two["samples"], two["failed"]) == (7, 1)
    assert not two["speed"]["claimed"]
    assert "shared a device" in two["speed"]["reason"]
    assert one["speed"] == {"claimed": True, "reason": "one process"}


def test_process_0_waits_for_the_others(evaluate: Callable[..., Any], llava_folder: Path, tmp_path: Path) -> None:
    data = chart_questions(tmp_path / "data", 4)
    evaluate(data, process=Process(0, 2))
    task = settings_for(llava_folder, data).task()
    waits: list[float] = []

    def meanwhile(seconds: float) -> None:
        waits.append(seconds)
        evaluate(data, process=Process(1, 2))

    assert wait_and_merge(task, tmp_path / "run", 2, meanwhile)["samples"] == 4
    assert len(waits) == 1


def test_speed_is_claimed_only_of_processes_with_devices_of_their_own() -> None:
    assert speed_claim([["a cuda 0"]])["claimed"]
    assert speed_claim([["a cuda 0"], ["a cuda 1"], ["b cuda 0"]])["claimed"]
    assert not speed_claim([["a cuda 0", "a cuda 1"], ["a cuda 1"]])["claimed"]


def test_the_launchers_environment_is_read(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    assert Process.from_environment() == ALONE
    for name, value in (("RANK", "3"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(name, value)
    assert Process.from_environment() == Process(3, 4, 1)
    monkeypatch.setenv("RANK", "x")
    with pytest.raises(InputError, match="RANK=x"):
        Process.from_environment()
    monkeypatch.delenv("RANK")
    monkeypatch.delenv("WORLD_SIZE")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    Process.from_environment()
    assert "one process only" in caplog.text


# ---- what is kept


def test_differing_answers_are_counted_and_saved() -> None:
    def row(index: int, policy: str, *ids: int, error: str = "") -> ResultRow:
        return ResultRow(str(index), index, policy, token_ids=ids, error=error, speed=None if error else speed())

    tally = Tally(["none", "chain"])
    group = [row(0, "none", 1, 2), row(1, "none", 3), row(2, "none", error="x"), row(3, "none", 4)]
    group += [row(0, "chain", 1, 2), row(1, "chain", 5), row(2, "chain", 6), row(3, "chain", error="x")]
    differing = list(tally.add(group))
    assert differing == [{"sample": "1", "policy": "chain", "none": (3,), "differing": (5,)}]
    assert tally.policy("chain")["equality"] == {"compared": 2, "equal": 1, "different": ["1"]}
    assert tally.counts()["failed"] == 2
    assert tally.policy("none")["speed"]["samples"] == 2


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0] * 8 + [0.0] * 2, (49.02, 94.33)),
        ([1.0] * 10, (72.25, 100.0)),
        ([0.3, 0.6, 0.9, 1.0], (39.01, 100.0)),
        ([0.3], None),
        ([], None),
    ],
)
def test_intervals(values: list[float], expected: tuple[float, float] | None) -> None:
    mean = Mean()
    for value in values:
        mean = mean.plus(value)
    assert interval(mean) == expected


def test_the_slowest_are_kept_with_their_pictures(evaluate: Callable[..., Any], tmp_path: Path) -> None:
    result = evaluate(chart_questions(tmp_path / "data", 12), batch_size=1, policies=("none", "chain:depth=2"))
    slowest = result["slowest"]
    assert len(slowest) == 8
    assert [record["total_ms"] for record in slowest] == sorted((r["total_ms"] for r in slowest), reverse=True)
    assert all((tmp_path / "run" / record["thumbnail"]).stat().st_size > 100 for record in slowest)
    assert {record["policy"] for record in slowest} == {"chain:depth=2"}


def test_the_slowest_do_not_depend_on_the_order() -> None:
    rows = [
        ResultRow(str(i), i, "chain", speed=dataclasses.replace(speed(), stats=GenerationStats(verify_ms=i % 4)))
        for i in range(12)
    ]
    kept = []
    for order in (rows, rows[::-1], rows[5:] + rows[:5]):
        slowest = Slowest("chain", 5)
        for row in order:
            slowest.offer(row)
        kept.append([record["sample"] for record in slowest.records()])
    assert kept[0] == kept[1] == kept[2] == ["3", "7", "11", "2", "6"]


def test_memory_does_not_grow_with_the_number_of_samples(llama_folder: Path, tmp_path: Path) -> None:
    data = tmp_path / "scienceqa.jsonl"
    row = {"question": "Which?", "choices": ["a", "b"], "answer": 0}
    data.write_text("".join(json.dumps(row | {"id": f"q{number}"}) + "\n" for number in range(400)))
    request, peaks = DataRequest(data), []
    settings = RunSettings(
        "scienceqa", request, model=str(llama_folder), drafter="ngram", policies=("none",), max_new_tokens=1
    )
    engines = load_arms(settings, ALONE)
    for limit in (20, 40, 400):
        limited = dataclasses.replace(settings, request=DataRequest(data, limit=limit))
        task, folder = settings.task(), RunFolder(tmp_path / str(limit), ALONE, Grouping(1, 1))
        gc.collect()
        tracemalloc.start()
        Runner(limited, task, task.open(limited.request), engines, folder).run()
        merge(task, folder.path, recorded(folder.path, 1))  # type: ignore[arg-type]
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[2] < peaks[1] + 100_000, peaks


def test_no_answer_is_left_for_the_garbage_collector(evaluate: Callable[..., Any], tmp_path: Path) -> None:
    """It runs rarely, and memory would grow in between: what a batch holds goes with it, that of failed ones too."""
    data = chart_questions(tmp_path / "data", 6, broken=[1])
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        evaluate(data)
        gc.collect()
        kept = [each for each in gc.garbage if isinstance(each, (torch.Tensor, np.ndarray, Image.Image))]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert not kept


# ---- settings


def test_policies_are_split_before_names_only() -> None:
    text = "none, likelihood:depth=5,top_k=10,total=59,rate-optimal,static:shape=(1,2),auto"
    assert split_policies(text)[:3] == ("none", "likelihood:depth=5,top_k=10,total=59", "rate-optimal")
    assert split_policies(text)[-1] == "auto"
    assert split_policies("") == ()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"policies": ("none", "likelyhood")}, "did you mean 'likelihood'"),
        ({"policies": ("none", "none")}, "named twice"),
        ({"policies": ()}, "no policy"),
        ({"mode": "medium"}, "unknown mode 'medium'"),
        ({"batch_size": 0}, "batch_size"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"temperature": -1.0}, "temperature"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**63}, "seed"),
    ],
)
def test_wrong_settings_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        settings_for(Path("model"), Path("data"), **options)


def test_unknown_data_and_paths_are_refused_before_the_model_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="did you mean 'chartqa'"):
        RunSettings("chartqu")
    with pytest.raises(InputError, match="no such file or folder"):
        run(settings_for(tmp_path / "no-model", tmp_path / "nowhere"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_scores_and_speeds_survive_a_round_trip() -> None:
    score = Score({"a": 0.5}, "b", {"kind": "x"})
    for row in itertools.chain([ResultRow("0", 0, "none", error="é\n")], [ResultRow("1", 1, "none", score=score)]):
        assert ResultRow.from_json(row.to_json()) == row
        assert "\n" not in row.to_json()
    with pytest.raises(ValueError, match="not a row"):
        ResultRow.from_json('{"sample": "0"}')
