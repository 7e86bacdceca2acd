"""The embedded target through the engine: its ids are those of transformers' ``generate`` on held-out questions."""

import functools
from typing import Any

import pytest
import torch

import tiny
from drafters import ScriptedDrafter
from mmsmart.api import load
from mmsmart.config import SamplingParams
from mmsmart.costs.online import CostModel
from mmsmart.drafters.base import Drafter
from mmsmart.drafters.ngram import NgramDrafter
from mmsmart.embedded import model_folder, pictures
from mmsmart.engine import Engine, GenerationOutput, Request
from mmsmart.profiling import estimated
from mmsmart.registry import POLICIES, create
from mmsmart.training.pictures import draw_picture
from mmsmart.training.questions import final_answer_correct, heldout_samples

LENGTH = 80
SAMPLES = {"msd": 100, "right": 25, "wrong": 25, "ngram": 25}  # the drafter that is the default, and the others
POLICY_SPECS = ("none", "chain", "static", "likelihood", "best-first")
COST_AWARE = ("smart", "rate-optimal")
MODELS = ("tiny-llava", "tiny-qwen2-vl")
MATRIX = [
    (model, kind, policy)
    for model in MODELS
    for kind in (SAMPLES if model == MODELS[0] else ("msd",))
    for policy in POLICY_SPECS + COST_AWARE * (kind == "msd")
]


@functools.cache
def embedded(model: str) -> Engine:
    return load(model, dtype="float32", drafter=f"msd:checkpoint={model}-msd")


@pytest.fixture
def engine() -> Engine:
    return embedded(MODELS[0])


@functools.cache
def samples() -> list[Any]:
    return heldout_samples(max(SAMPLES.values()), seed=11)


@functools.cache
def expected(model: str, index: int) -> list[int]:
    sample, folder = samples()[index], model_folder(model)
    return tiny.reference_generate(_reference(str(folder)), [_picture(index)], sample.question, max_new_tokens=LENGTH)


@functools.cache
def _reference(folder: str) -> Any:
    from transformers import AutoModelForImageTextToText

    return AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()


@functools.cache
def _picture(index: int) -> Any:
    return draw_picture(samples()[index].facts)


def drafter_for(kind: str, engine: Engine, indices: range) -> Drafter:
    if kind == "msd":
        return engine.drafter
    if kind == "ngram":
        return NgramDrafter()
    answers = [expected(engine.target.name, i) + [3] * LENGTH for i in indices]
    return ScriptedDrafter(answers, right=kind == "right")


def ask(engine: Engine, kind: str, policy: str, indices: range) -> list[GenerationOutput]:
    made = Engine(engine.target, drafter_for(kind, engine, indices), create(POLICIES, "policy", policy))
    if made.policy.needs_costs:
        guessed = estimated(made)
        made.policy.bind_costs(CostModel(guessed.table), guessed.curves)
    sampling = SamplingParams(max_new_tokens=LENGTH)
    return made.generate_batch([Request(_picture(i), samples()[i].question, sampling) for i in indices])


@pytest.mark.parametrize(
    ("kind", "policy"), [("right", "likelihood"), ("wrong", "chain"), ("ngram", "best-first"), ("msd", "static")]
)
@pytest.mark.parametrize("model", MODELS)
def test_ids_equal_generate_on_a_few_held_out_questions(model: str, kind: str, policy: str) -> None:
    for start in range(0, 12, 3):
        indices = range(start, start + 3)
        found = [output.token_ids for output in ask(embedded(model), kind, policy, indices)]
        assert found == [expected(model, i) for i in indices]


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(("model", "kind", "policy"), MATRIX)
def test_ids_equal_generate_on_held_out_questions(model: str, kind: str, policy: str, batch: int) -> None:
    wrong, count = [], SAMPLES[kind]
    for start in range(0, count, batch):
        indices = range(start, min(start + batch, count))
        for index, output in zip(indices, ask(embedded(model), kind, policy, indices), strict=True):
            if output.token_ids != expected(model, index):
                wrong.append((index, output.token_ids, expected(model, index)))
    assert not wrong


def test_most_held_out_questions_of_the_claimed_kinds_are_answered_right(engine: Engine) -> None:
    from mmsmart.training.questions import CLAIMED_KINDS

    asked = heldout_samples(60, seed=12, kinds=CLAIMED_KINDS)
    sampling = SamplingParams(max_new_tokens=LENGTH)
    outputs = engine.generate_batch([Request(draw_picture(s.facts), s.question, sampling) for s in asked])
    right = sum(final_answer_correct(o.text, s) for o, s in zip(outputs, asked, strict=True))
    assert right >= 50  # the card's own count over 300 questions is above 90 %


def test_the_readmes_question_is_answered_right(engine: Engine) -> None:
    output = engine.generate(pictures()["chart.png"], "Which bar is the tallest?")
    words = (pictures()["chart.png"].parent / "README.md").read_text()
    assert output.text.strip() in words
    assert output.finish_reason == "eos"


@pytest.mark.parametrize(
    "question", ["", "What is the colour of é漢🙂?", "<s> </s> what", "Which bar is the tallest? " * 8]
)
def test_odd_questions_do_not_break_it(engine: Engine, question: str) -> None:
    if not question:
        with pytest.raises(ValueError, match="question is empty"):
            engine.generate(pictures()["chart.png"], question)
    else:
        assert engine.generate(pictures()["chart.png"], question, max_new_tokens=24).stats.new_tokens > 0
