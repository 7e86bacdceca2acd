"""At temperature 0 the token ids are those of transformers' ``generate``, whatever is drafted and in whatever shape."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import mmsmart
import tiny
from drafters import ScriptedDrafter
from mmsmart.api import load
from mmsmart.costs.online import CostModel
from mmsmart.drafters.base import Drafter
from mmsmart.drafters.head import EagleHead
from mmsmart.drafters.msd import MSDDrafter
from mmsmart.engine import Engine, Request
from mmsmart.profiling import estimated
from mmsmart.registry import DRAFTERS, POLICIES, create
from mmsmart.training.drafter.publish import new_head_config

LENGTH = 20
FAMILIES = ("llava", "qwen2_vl", "llama")
PICTURES = {  # ragged on purpose: one picture, two, none
    "llava": ([tiny.picture(1)], [tiny.picture(2, (40, 90)), tiny.picture(3)], []),
    "qwen2_vl": ([tiny.picture(1, (90, 120))], [tiny.picture(2, (40, 90)), tiny.picture(3, (60, 61))], []),
    "llama": ([], [], []),
}
QUESTIONS = ("what is it, what is it?", "a much longer question about all of this, is it not?", "hm")
STOP_POLICY = "likelihood:depth=4,top_k=3,total=12"
POLICY_SPECS = (
    "none",
    "chain:depth=4",
    "static",
    "likelihood:depth=3,top_k=3,total=9",
    "best-first:nodes=7,top_k=3",
    "smart:top_k=3",
    "rate-optimal",
)


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Engine]:
    made: dict[str, Engine] = {}

    def get(family: str) -> Engine:
        if family not in made:
            folder = tiny.build(family, tmp_path_factory.mktemp("lossless") / family)
            made[family] = load(str(folder), dtype="float64")
        made[family].target.model.generation_config.eos_token_id = None
        return made[family]

    return get


def answers(engine: Engine, family: str, rows: list[int], **options: Any) -> list[list[int]]:
    model = engine.target.model
    return [
        tiny.reference_generate(model, PICTURES[family][r], QUESTIONS[r], max_new_tokens=LENGTH, **options)
        for r in rows
    ]


def drafter_for(kind: str, expected: list[list[int]], engine: Engine) -> Drafter:
    if kind == "msd":  # any weights must do
        torch.manual_seed(0)
        head = EagleHead(new_head_config(engine.target)).to(engine.target.dtype)
        return MSDDrafter("in memory").with_head(head, engine.target.head)
    if kind == "ngram":
        made: Drafter = create(DRAFTERS, "drafter", "ngram")
        return made
    padded = [ids + [5] * LENGTH for ids in expected]  # right also behind the end, so that blocks cross it
    return ScriptedDrafter(padded, right=kind != "wrong", place=1 if kind == "second" else 0)


def ask(engine: Engine, family: str, rows: list[int], drafter: Drafter, policy: str, **options: Any) -> list[Any]:
    made = Engine(engine.target, drafter, create(POLICIES, "policy", policy))
    guessed = estimated(made)
    made.policy.bind_costs(CostModel(guessed.table), guessed.curves)
    sampling = mmsmart.SamplingParams(**({"max_new_tokens": LENGTH} | options))
    return made.generate_batch([Request(PICTURES[family][r], QUESTIONS[r], sampling) for r in rows])


@pytest.mark.parametrize("rows", [[0], [0, 1, 2]], ids=["single", "ragged"])
@pytest.mark.parametrize("policy", POLICY_SPECS)
@pytest.mark.parametrize("kind", ["right", "second", "wrong", "ngram", "msd"])
@pytest.mark.parametrize("family", FAMILIES)
def test_ids_equal_plain_generate(
    engines: Callable[[str], Engine], family: str, kind: str, policy: str, rows: list[int]
) -> None:
    engine = engines(family)
    expected = answers(engine, family, rows)
    outputs = ask(engine, family, rows, drafter_for(kind, expected, engine), policy)
    assert [o.token_ids for o in outputs] == expected
    assert {o.finish_reason for o in outputs} == {"length"}
    if kind == "right" and policy.startswith("chain"):
        assert all(o.stats.accepted > o.stats.rounds for o in outputs)
    if kind == "second" and policy.startswith("best-first"):
        assert all(o.stats.accepted > 0 for o in outputs)  # branchy commits did happen
    if kind == "wrong":
        assert all(o.stats.accepted == 0 for o in outputs)


@pytest.mark.parametrize("policy", POLICY_SPECS)
@pytest.mark.parametrize("kind", ["right", "second", "ngram", "msd"])
@pytest.mark.parametrize("family", FAMILIES)
def test_eos_inside_a_block(engines: Callable[[str], Engine], family: str, kind: str, policy: str) -> None:
    engine, rows = engines(family), [0, 1, 2]
    plain = answers(engine, family, rows)
    eos = [ids[3 + 2 * row] for row, ids in enumerate(plain)]
    engine.target.model.generation_config.eos_token_id = eos
    expected = answers(engine, family, rows)
    assert any(len(ids) < LENGTH for ids in expected)
    outputs = ask(engine, family, rows, drafter_for(kind, plain, engine), policy)
    assert [o.token_ids for o in outputs] == expected
    assert all(o.finish_reason == ("eos" if o.token_ids[-1] in eos else "length") for o in outputs)


@pytest.mark.parametrize("kind", ["right", "second"])
@pytest.mark.parametrize("family", FAMILIES)
def test_stop_string_inside_a_block(engines: Callable[[str], Engine], family: str, kind: str) -> None:
    engine, rows = engines(family), [0, 1, 2]
    plain = answers(engine, family, rows)
    stops = tuple(bytes(b for b in ids[4:6] if b < 128).decode() for ids in plain)
    stops = tuple(s for s in stops if s) or ("never",)
    expected = answers(engine, family, rows, stop_strings=list(stops))
    outputs = ask(engine, family, rows, drafter_for(kind, plain, engine), STOP_POLICY, stop=stops)
    assert [o.token_ids for o in outputs] == expected
    for output in outputs:
        assert not any(stop in output.text for stop in stops)
        assert output.stats.new_tokens == len(output.token_ids)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("cap", range(1, 10))
def test_cap_inside_a_block(engines: Callable[[str], Engine], family: str, cap: int) -> None:
    engine, rows = engines(family), [0, 1, 2]
    plain = answers(engine, family, rows)
    outputs = ask(engine, family, rows, drafter_for("right", plain, engine), "chain:depth=8", max_new_tokens=cap)
    assert [o.token_ids for o in outputs] == [ids[:cap] for ids in plain]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", ["right", "second", "wrong"])
def test_repetition_penalty_with_own_ancestors(engines: Callable[[str], Engine], family: str, kind: str) -> None:
    engine, rows = engines(family), [0, 1, 2]
    expected = answers(engine, family, rows, repetition_penalty=1.3)
    assert expected != answers(engine, family, rows)
    drafter = drafter_for(kind, expected, engine)
    outputs = ask(engine, family, rows, drafter, "best-first:nodes=9,top_k=3", repetition_penalty=1.3)
    assert [o.token_ids for o in outputs] == expected


def test_bfloat16_runs_and_reports_a_rate(tmp_path: Path) -> None:
    folder = tiny.build("llava", tmp_path / "llava")
    engine = load(str(folder), dtype="bfloat16")
    output = engine.generate(tiny.picture(1), QUESTIONS[0], max_new_tokens=LENGTH)
    assert len(output.token_ids) == LENGTH
