"""Questions: deterministic, held-out apart, and every answer true of its picture."""

import random
import re

import pytest

from mmsmart.training.facts import sample_facts
from mmsmart.training.questions import (
    CLAIMED_KINDS,
    KINDS,
    SCENE_KINDS,
    Sample,
    final_answer_correct,
    final_sentence,
    heldout_samples,
    make_sample,
    questions_about,
    training_samples,
)

MANY = heldout_samples(20 * len(KINDS), seed=5, brief_share=0.3)


def _of(kind: str) -> list[Sample]:
    return [sample for sample in MANY if sample.kind == kind]


def test_same_seed_same_questions() -> None:
    assert heldout_samples(60, seed=1) == heldout_samples(60, seed=1)
    assert heldout_samples(60, seed=1) != heldout_samples(60, seed=2)


def test_training_and_heldout_never_meet() -> None:
    assert {sample.facts.split() for sample in heldout_samples(100, seed=3)} == {"heldout"}
    assert {sample.facts.split() for sample in training_samples(100, seed=3)} == {"train"}


def test_claimed_kinds_are_kinds() -> None:
    assert set(CLAIMED_KINDS) <= set(KINDS)


@pytest.mark.parametrize("kind", list(KINDS))
def test_scoring_rule(kind: str) -> None:
    for sample in _of(kind):
        assert final_answer_correct(sample.answer, sample)
        assert sample.answer.endswith(sample.final_answer)
        assert not final_answer_correct(sample.answer.replace(sample.final_answer, "The answer is 3."), sample)


def test_final_sentence_of_odd_texts() -> None:
    assert final_sentence("") == "."
    assert final_sentence("One. Two.") == "Two."


@pytest.mark.parametrize("kind", list(KINDS))
def test_arithmetic_in_answers_is_right(kind: str) -> None:
    for sample in _of(kind):
        for left, sign, right, result in re.findall(r"(\d+) ([+-]) (\d+) = (\d+)", sample.answer):
            assert int(left) + (1 if sign == "+" else -1) * int(right) == int(result), sample.answer


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in SCENE_KINDS])
def test_facts_in_chart_answers_are_shown(kind: str) -> None:
    for sample in _of(kind):
        values = {item.word: item.value for item in sample.facts.items}
        for word, value in re.findall(r"([A-Za-z]+) (\d+)", sample.answer):
            if word in values:
                assert values[word] == int(value), sample.answer


def test_largest_smallest_total_count() -> None:
    for sample in _of("largest"):
        assert f" {max(item.value for item in sample.facts.items)}." in sample.final_answer
    for sample in _of("smallest"):
        assert f" {min(item.value for item in sample.facts.items)}." in sample.final_answer
    for sample in _of("total"):
        assert sample.final_answer == f"The total is {sum(item.value for item in sample.facts.items)}."
    for sample in (*_of("count"), *_of("shape_count")):
        assert f" {len(sample.facts.items)} " in sample.final_answer


def test_comparison_agrees_with_values() -> None:
    for sample in _of("larger"):
        found = re.search(r"(\w+), (\w+) is (?:not )?(larger|smaller) than (\w+)\.", sample.final_answer)
        assert found is not None
        values = {item.word: item.value for item in sample.facts.items}
        first, second = values[found[2]], values[found[4]]
        truth = first > second if found[3] == "larger" else first < second
        assert (found[1] == "Yes") == truth
    for sample in _of("comparison"):
        found = re.search(r"Take \w+ (\d+) and \w+ (\d+)\. The (larger|smaller) one is \w+ (\d+)", sample.answer)
        assert found is not None
        both = int(found[1]), int(found[2])
        assert int(found[4]) == (max(both) if found[3] == "larger" else min(both))


def test_trend_agrees_with_the_ends() -> None:
    for sample in _of("trend"):
        items = sample.facts.items
        assert sample.final_answer == f"The line goes {'up' if items[-1].value > items[0].value else 'down'}."


def test_above_tests_every_item() -> None:
    for sample in _of("above"):
        threshold = int(sample.final_answer.removeprefix("Above ").split(":")[0])
        verdicts = re.findall(r"(\d+) (yes|no)", sample.final_answer)
        assert [(int(value) > threshold) == (verdict == "yes") for value, verdict in verdicts].count(False) == 0
        assert len(verdicts) == len(sample.facts.items)


def test_side_and_existence_agree_with_the_scene() -> None:
    for sample in _of("exist"):
        name = re.search(r"(\w+ \w+)\.$", sample.final_answer)
        assert name is not None
        present = any(f"{item.color} {item.shape}" == name[1] for item in sample.facts.items)
        assert sample.final_answer.startswith("Yes") == present
    for sample in _of("side"):
        found = re.search(r"the (\w+ \w+) is (?:not )?(left|right) of the (\w+ \w+)", sample.final_answer)
        assert found is not None
        columns = {f"{item.color} {item.shape}": item.cell % 3 for item in sample.facts.items}
        first, second = columns[found[1]], columns[found[3]]
        assert sample.final_answer.startswith("Yes") == (first < second if found[2] == "left" else first > second)


def test_answer_wording_follows_question_wording() -> None:
    facts = sample_facts(random.Random(1), "train", "column")
    seen: dict[str, str] = {}
    for seed in range(400):
        sample = make_sample(facts, "largest", random.Random(seed), 0.3)
        assert sample is not None
        assert seen.setdefault(sample.question, sample.answer) == sample.answer


def test_drill_asks_only_brief_lookups() -> None:
    facts = sample_facts(random.Random(1), "train", "column")
    samples = questions_about(facts, 12, random.Random(0), lookup_only=True)
    assert all(sample.question.endswith("Be brief.") for sample in samples)
    assert not any("shows" in sample.answer for sample in samples)
