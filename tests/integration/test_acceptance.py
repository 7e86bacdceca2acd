"""How much is accepted: everything when the target drafts for itself, and no less late in an answer than early."""

import itertools
import random
from pathlib import Path

import numpy as np
import pytest

import tiny
from drafters import TargetDrafter
from mmsmart.api import load
from mmsmart.config import SamplingParams
from mmsmart.engine import Engine, Request
from mmsmart.policies.base import RoundContext, TreePolicy
from mmsmart.policies.chain import Chain
from mmsmart.policies.static import StaticTree
from mmsmart.registry import EMBEDDED_DRAFTERS, EMBEDDED_MODELS
from mmsmart.training.pictures import draw_picture
from mmsmart.training.questions import heldout_samples
from mmsmart.tree import Bools, CandidatePool, Ints

LENGTH = 50
REQUESTS = [
    ([tiny.picture(1, (90, 120))], "what is it?"),
    ([tiny.picture(2, (40, 90)), tiny.picture(3)], "a longer question about both of them"),
    ([], "no picture"),
]
BRANCHY = tuple(path for depth in range(1, 4) for path in itertools.product(range(2), repeat=depth))
SHAPES: dict[str, tuple[TreePolicy, int]] = {  # and the depth of the path of first choices
    "chain": (Chain(5), 5),
    "tree of 14": (StaticTree(BRANCHY), 3),
    "medusa's": (StaticTree(), 4),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rows", [[0], [1], [2], [0, 1, 2]], ids=["picture", "two pictures", "text", "ragged"])
@pytest.mark.parametrize("family", ["llava", "qwen2_vl"])
def test_the_target_as_its_own_drafter_is_always_right(
    family: str, rows: list[int], shape: str, tmp_path: Path
) -> None:
    target = load(str(tiny.build(family, tmp_path / family)), dtype="float64").target
    target.model.generation_config.eos_token_id = None
    policy, depth = SHAPES[shape]
    inputs = [target.encode(*REQUESTS[row]) for row in rows]
    sampling = SamplingParams(max_new_tokens=LENGTH)
    engine = Engine(target, TargetDrafter(target, inputs), policy)
    batch = engine.start([engine.prepare(Request(*REQUESTS[row], sampling)) for row in rows])
    answers, tokens, rounds = [p.sequence for p in batch.running], 1, 0
    while not batch.done:
        taken = min(depth + 1, LENGTH - tokens)
        assert engine.step(batch).taken == (taken,) * len(rows)  # all of the path and the bonus, or what is left
        tokens, rounds = tokens + taken, rounds + 1
    assert rounds == -(-(LENGTH - 1) // (depth + 1))
    plain = [tiny.reference_generate(target.model, *REQUESTS[row], max_new_tokens=LENGTH) for row in rows]
    assert [answer.token_ids for answer in answers] == plain


class HalfTheRounds(TreePolicy):
    """Drafts one token, in half of the rounds by chance, so that answers of 50 tokens take more than 30 rounds."""

    def __init__(self) -> None:
        self.random, self.chain, self.drafts = random.Random(0), Chain(1), False

    def frontier(self, pool: CandidatePool, context: RoundContext) -> Ints | None:
        if not pool.blocks:
            self.drafts = self.random.random() < 0.5
        return self.chain.frontier(pool, context) if self.drafts else None

    def select(self, pool: CandidatePool, context: RoundContext) -> Bools:
        return self.chain.select(pool, context)


@pytest.mark.parametrize("name", [name for name in EMBEDDED_MODELS if f"{name}-msd" in EMBEDDED_DRAFTERS])
def test_acceptance_does_not_decay_over_30_rounds(name: str) -> None:
    loaded = load(name, dtype="float32")
    engine = Engine(loaded.target, loaded.drafter, HalfTheRounds())
    asked = [s for s in heldout_samples(500, seed=11) if any(w in s.question for w in ("sum", "left of", "right of"))]
    sampling = SamplingParams(max_new_tokens=80)
    batch = engine.start([engine.prepare(Request(draw_picture(s.facts), s.question, sampling)) for s in asked])
    rows: list[tuple[int, int, int]] = []  # round, accepted, drafted
    for number in itertools.count(1):
        done = engine.step(batch)
        rows.append(
            (number, int(done.record.verification.num_accepted.sum()), int(done.record.tree.num_draft_tokens.sum()))
        )
        if batch.done:
            break
    counts = np.array(rows)
    early, late = (counts[where].sum(axis=0) for where in (counts[:, 0] <= 15, counts[:, 0] > 15))
    assert len(counts) > 30
    assert min(early[2], late[2]) > 100
    assert (
        late[1] / late[2] > early[1] / early[2] - 0.15
    )  # the numbers at an answer's end are harder than its beginning
