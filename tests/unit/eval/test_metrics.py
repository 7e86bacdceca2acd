"""Metrics against the official scorers' own results, exactly."""

import copy
import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mmsmart.errors import InputError
from mmsmart.eval.metrics import (
    ai2d_mcq,
    ai2d_mcq_tolerant,
    chartqa_relaxed,
    chartqa_relaxed_tolerant,
    hallusion_verdict,
    hallusion_yesno,
    hallusionbench_aggregate,
    scienceqa_mcq,
    scienceqa_mcq_tolerant,
    textvqa_accuracy,
    textvqa_normalize,
    vqa_accuracy,
    vqa_normalize,
)
from mmsmart.eval.metrics.choice import named_option
from mmsmart.eval.metrics.normalize import CONTRACTIONS

DATA = Path(__file__).parents[2] / "data" / "metrics"
SHARED = Path(__file__).parents[3].parent / "shared" / "data"

Case = dict[str, Any]


def read(path: Path) -> list[Case]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


CASES = read(DATA / "metric_cases.jsonl")


def cases(metric: str) -> pytest.MarkDecorator:
    chosen = [case for case in CASES if case["metric"] == metric]
    assert chosen
    return pytest.mark.parametrize("case", chosen, ids=lambda case: case["id"])


def shared(name: str) -> list[Case]:
    path = SHARED / name
    if not path.is_file():
        pytest.skip(f"{path} is not here")
    return read(path)


# ---- worked cases


@pytest.mark.parametrize("case", read(DATA / "normalize_cases.jsonl"), ids=lambda case: case["input"])
def test_normal_forms(case: Case) -> None:
    assert vqa_normalize(case["input"]) == case["vqa_official"]
    assert textvqa_normalize(case["input"]) == case["textvqa_m4c"]


@cases("vqa_accuracy")
def test_vqa_accuracy(case: Case) -> None:
    assert vqa_accuracy(case["prediction"], case["references"], strict_official=True) == case["score"]
    assert vqa_accuracy(case["prediction"], case["references"]) == case["alt"]["lmms_eval"]


@cases("textvqa_accuracy")
def test_textvqa_accuracy(case: Case) -> None:
    assert textvqa_accuracy(case["prediction"], case["references"]) == case["score"]


@cases("chartqa_relaxed")
def test_chartqa_relaxed(case: Case) -> None:
    assert chartqa_relaxed(case["prediction"], case["references"]) == case["score"]
    assert chartqa_relaxed_tolerant(case["prediction"], case["references"]) >= case["score"]


@cases("ai2d_mcq")
def test_ai2d(case: Case) -> None:
    right = case["references"][0]
    assert ai2d_mcq(case["prediction"], right) == case["score"]
    assert named_option(case["prediction"], case["choices"]) == case["alt"]["vlmevalkit_extracted"]
    assert ai2d_mcq_tolerant(case["prediction"], right, case["choices"]) == case["alt"]["vlmevalkit"]


@cases("scienceqa_mcq")
def test_scienceqa(case: Case) -> None:
    right = case["references"][0]
    assert scienceqa_mcq(case["prediction"], right, len(case["choices"])) == case["score"]
    assert scienceqa_mcq_tolerant(case["prediction"], right) == max(case["score"], case["alt"]["lmms_eval"])


@cases("hallusion_yesno")
def test_hallusion_yesno(case: Case) -> None:
    assert hallusion_yesno(case["prediction"], case["references"][0]) == case["score"]
    assert hallusion_verdict(case["prediction"]) == case["extracted"]


@cases("hallusionbench_aggregate")
def test_hallusionbench(case: Case) -> None:
    found = hallusionbench_aggregate(case["prediction"], case["references"])
    shares = {"aAcc": found.a_acc, "fAcc": found.f_acc, "qAcc": found.q_acc}
    assert {name: round(share, 6) for name, share in shares.items() if share is not None} == case["score"]


def test_inputs_are_not_mutated() -> None:
    kept = copy.deepcopy(CASES)
    for case in CASES:
        if case["metric"] == "hallusionbench_aggregate":
            hallusionbench_aggregate(case["prediction"], case["references"])
        elif case["metric"] == "vqa_accuracy":
            vqa_accuracy(case["prediction"], case["references"])
        elif case["metric"] == "textvqa_accuracy":
            textvqa_accuracy(case["prediction"], case["references"])
        elif case["metric"] == "chartqa_relaxed":
            chartqa_relaxed(case["prediction"], case["references"])
            chartqa_relaxed_tolerant(case["prediction"], case["references"])
        elif case["metric"] == "ai2d_mcq":
            ai2d_mcq_tolerant(case["prediction"], case["references"][0], case["choices"])
    assert kept == CASES


def test_scoring_twice_gives_the_same() -> None:
    """The official scripts grow their tables and rewrite their references while they score."""
    references = ["Two dogs"] * 5 + ["2 dogs"] * 5
    assert [vqa_accuracy("two dogs", references) for _ in range(2)] == [1.0, 1.0]
    assert references[0] == "Two dogs"
    assert len(CONTRACTIONS) == 120


# ---- real predictions


def test_scienceqa_replay_of_llava() -> None:
    rows = shared("scienceqa/llava15_13b_replay.jsonl")
    scores = [scienceqa_mcq(row["prediction"], row["gt"], row["num_choices"]) for row in rows]
    pictured = [score for score, row in zip(scores, rows, strict=True) if row["is_image"]]
    assert (sum(scores), len(scores)) == (3155, 4241)
    assert round(100 * sum(scores) / len(scores), 2) == 74.39
    assert len(pictured) == 2017
    assert round(100 * sum(pictured) / len(pictured), 2) == 71.64


def test_textvqa_replay_of_llava() -> None:
    rows = [row for row in shared("textvqa/textvqa_val_annotations_noimages.jsonl") if "llava15_13b_score" in row]
    scores = [textvqa_accuracy(row["llava15_13b_prediction"], row["answers"]) for row in rows]
    assert [round(score, 6) for score in scores] == [round(row["llava15_13b_score"], 6) for row in rows]
    assert round(sum(scores) / len(scores), 6) == 0.632386


# ---- HallusionBench

# Sets as rows of figures by questions, Y and N the right answers, with how many of each there are. Together they have
# the totals of the 951 image rows: 346 figures, 25 of them all yes and 42 all no; 455 groups, 21 all yes and 91 all no.
SETS = (
    (25, "Y/N"),
    (17, "N"),
    (21, "YN"),
    (53, "YNN/NYN"),
    (8, "YNN/NYN/NNY"),
    (2, "YNN/NYN/YNY"),
    (1, "YN/NY/YN"),
    (12, "YN/NY"),
    (22, "YNYN/NYNY"),
    (17, "YNYN/NYNY/YNYN"),
)


def anchor_rows() -> list[dict[str, str]]:
    layouts = [layout for count, layout in SETS for _ in range(count)]
    return [
        {
            "category": "VD",
            "subcategory": "illusion",
            "set_id": str(number),
            "figure_id": str(figure),
            "question_id": str(question),
            "gt_answer": "1" if right == "Y" else "0",
        }
        for number, layout in enumerate(layouts)
        for figure, answers in enumerate(layout.split("/"))
        for question, right in enumerate(answers)
    ]


@pytest.mark.parametrize(
    ("answer", "a_acc", "f_acc", "q_acc"), [("Yes", 42.17, 7.23, 4.62), ("No", 57.83, 12.14, 20.0)]
)
def test_constant_answers_on_the_totals_of_the_image_rows(
    answer: str, a_acc: float, f_acc: float, q_acc: float
) -> None:
    rows = anchor_rows()
    found = hallusionbench_aggregate([answer] * len(rows), rows)
    assert (found.count, found.num_figures, found.num_groups) == (951, 346, 455)
    assert found.a_acc is not None
    assert found.f_acc is not None
    assert found.q_acc is not None
    assert [round(100 * share, 2) for share in (found.a_acc, found.f_acc, found.q_acc)] == [a_acc, f_acc, q_acc]
    assert found.yes_rate == float(answer == "Yes")


@pytest.mark.parametrize("answer", ["Yes", "No", "I cannot tell"])
def test_constant_answers_on_real_rows(answer: str) -> None:
    rows = [row for row in shared("hallusionbench/hallusionbench.jsonl") if row["image"]]
    found = hallusionbench_aggregate([answer] * len(rows), rows)
    right = [{"1": "Yes", "0": "No"}[row["gt_answer"]] == answer for row in rows]
    for share, last in ((found.f_acc, "figure_id"), (found.q_acc, "question_id")):
        members = defaultdict(list)
        for row, ok in zip(rows, right, strict=True):
            members["/".join((row["category"], row["subcategory"], row["set_id"], row[last]))].append(ok)
        assert share == sum(map(all, members.values())) / len(members)
    assert found.a_acc == sum(right) / len(rows)


def test_nothing_to_count() -> None:
    assert hallusionbench_aggregate([], []).a_acc is None
    row = {
        "category": "VS",
        "subcategory": "map",
        "set_id": "0",
        "figure_id": "0",
        "question_id": "0",
        "gt_answer": "1",
    }
    found = hallusionbench_aggregate(["no idea, yes and no"], [row])
    assert (found.a_acc, found.f_acc, found.q_acc) == (1.0, None, 1.0)
    with pytest.raises(ValueError, match="shorter"):
        hallusionbench_aggregate(["Yes"], [])


# ---- rules that people get wrong


@pytest.mark.parametrize(
    ("prediction", "gold", "score"),
    [
        ("104", "99", 0.0),  # 5.05 % of 99
        ("99", "104", 1.0),  # 4.8 % of 104
        ("105", "100", 1.0),
        ("105.1", "100", 0.0),
        ("95", "100", 1.0),
        ("100", "105", 1.0),
        ("100", "95", 0.0),
    ],
)
def test_g28_tolerance_is_relative_to_the_gold_value(prediction: str, gold: str, score: float) -> None:
    assert chartqa_relaxed(prediction, [gold]) == score


@pytest.mark.parametrize(
    ("prediction", "gold"),
    [("Black.", "black"), ("two", "2"), ("a dog", "dog"), ("dont", "don't"), ("Orange", "orange")],
)
def test_g29_agreeing_references_are_normalised_too(prediction: str, gold: str) -> None:
    assert vqa_accuracy(prediction, [gold] * 10) == 1.0
    assert textvqa_accuracy(prediction, [gold] * 10) == 1.0


def test_agreement_counts_positions_not_texts() -> None:
    assert [vqa_accuracy("x", ["x"] * k + [f"w{i}" for i in range(10 - k)]) for k in range(6)] == [
        0.0,
        0.3,
        0.6,
        0.9,
        1.0,
        1.0,
    ]


def test_at_most_32_periods_go() -> None:
    assert vqa_normalize("." * 40) == "." * 8


@pytest.mark.parametrize("count", [0, 1])
def test_too_few_references(count: int) -> None:
    with pytest.raises(InputError, match=f"at least two, got {count}"):
        vqa_accuracy("x", ["x"] * count)


def test_textvqa_needs_ten_references() -> None:
    with pytest.raises(InputError, match="10 references, got 9"):
        textvqa_accuracy("x", ["x"] * 9)


def test_several_labels_give_the_best_score() -> None:
    assert chartqa_relaxed("blue", ["red", "Blue"]) == 1.0
    assert chartqa_relaxed("blue", []) == 0.0


@pytest.mark.parametrize(
    ("prediction", "gold"),
    [
        ("The answer is 14.", "14"),
        ("Answer: 14", "14"),
        ("1,000", "1000"),
        ("$1,000.50", "1000.5"),
        ("14 dollars", "14"),
        ("-$5", "-5"),
        ("United States.", "united states"),
        ("The final answer is: Yes.", "Yes"),
    ],
)
def test_tolerant_chartqa_reads_past_chatter(prediction: str, gold: str) -> None:
    assert chartqa_relaxed(prediction, [gold]) == 0.0
    assert chartqa_relaxed_tolerant(prediction, [gold]) == 1.0


@pytest.mark.parametrize(("prediction", "gold"), [("14 or 15", "14.5x"), ("2014,2016", "20142016"), ("12", "14")])
def test_tolerant_chartqa_is_not_blind(prediction: str, gold: str) -> None:
    assert chartqa_relaxed_tolerant(prediction, [gold]) == 0.0


@pytest.mark.parametrize(
    "metric",
    [
        lambda text: vqa_accuracy(text, ["a"] * 10),
        lambda text: textvqa_accuracy(text, ["a"] * 10),
        lambda text: chartqa_relaxed(text, ["1"]),
        lambda text: chartqa_relaxed_tolerant(text, ["1"]),
        lambda text: ai2d_mcq_tolerant(text, "A", ["x", "y"]),
        lambda text: scienceqa_mcq(text, "A", 2),
        lambda text: hallusion_yesno(text, "1"),
    ],
)
@pytest.mark.parametrize("text", ["", " ", "\n", "%", "\x00", "🙂", "9" * 5000, "." * 1000, "a" * 100000])
def test_any_text_is_scored(metric: Callable[[str], float], text: str) -> None:
    assert 0.0 <= metric(text) <= 1.0
