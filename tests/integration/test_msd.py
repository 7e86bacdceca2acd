"""An MSD session stays what a fresh one would be: after ragged rounds, rounds without drafting, and rows that left."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tiny
from mmsmart.api import load
from mmsmart.batch import Batch
from mmsmart.config import SamplingParams
from mmsmart.drafters.eagle import EagleSession
from mmsmart.drafters.head import EagleHead
from mmsmart.drafters.msd import MSDDrafter
from mmsmart.drafting import draft
from mmsmart.engine import Engine, Request
from mmsmart.policies.base import RoundContext, TreePolicy
from mmsmart.policies.chain import Chain
from mmsmart.policies.likelihood import Likelihood
from mmsmart.policies.none import NoDrafting
from mmsmart.policies.static import StaticTree
from mmsmart.targets.base import Target
from mmsmart.training.drafter.answers import Answered
from mmsmart.training.drafter.examples import make_example
from mmsmart.training.drafter.publish import new_head_config, publish
from mmsmart.training.drafter.questions import Question
from mmsmart.tree import Bools, CandidatePool, Ints

REQUESTS = [
    ([tiny.picture(1, (90, 120))], "what is it?"),
    ([tiny.picture(2, (40, 90)), tiny.picture(3)], "a longer question about both of them"),
    ([], "no picture"),
]


class Sometimes(TreePolicy):
    """Drafts in two rounds of three."""

    top_k = 120

    def __init__(self) -> None:
        self.rounds, self.inner, self.off = 0, Likelihood(depth=1, top_k=120, total=250), NoDrafting()

    def frontier(self, pool: CandidatePool, context: RoundContext) -> Ints | None:
        self.rounds += not pool.blocks
        return (self.off if self.rounds % 3 == 0 else self.inner).frontier(pool, context)

    def select(self, pool: CandidatePool, context: RoundContext) -> Bools:
        return self.inner.select(pool, context)


@pytest.fixture(params=["llava", "qwen2_vl"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    return load(str(tiny.build(request.param, tmp_path / request.param)), dtype="float64").target


def random_head(target: Target, seed: int = 0) -> EagleHead:
    torch.manual_seed(seed)
    head = EagleHead(new_head_config(target))
    head.embed_tokens.load_state_dict({"weight": target.embed_tokens.weight.detach()})
    return head.to(target.dtype)


def fresh_session(drafter: MSDDrafter, target: Target, row: int, answer: list[int]) -> EagleSession:
    """A new session for prompt and answer so far as one prompt."""
    pictures, question = REQUESTS[row]
    answered = Answered(_Given(question, pictures), tuple(answer))
    return EagleSession(drafter, make_example(target, answered, pictures=drafter.sees_pictures).rows)


def proposals(session: EagleSession, roots: Ints) -> CandidatePool:
    """All that a session proposes for a tree of three layers."""
    limits = RoundContext(np.full(len(roots), 9), np.full(len(roots), 9))
    return draft(Likelihood(depth=2, top_k=3, total=99), session, roots, limits)


class _Given(Question):
    def __init__(self, text: str, shown: list[object]) -> None:
        object.__setattr__(self, "text", text)
        object.__setattr__(self, "picture", tuple(shown))

    def pictures(self) -> list[object]:  # type: ignore[override]
        return list(self.picture)


@pytest.mark.parametrize("visual_tokens", ["all", "none"])
@torch.inference_mode()
def test_a_session_proposes_over_32_rounds_what_a_fresh_one_would(target: Target, visual_tokens: str) -> None:
    drafter = MSDDrafter("", visual_tokens=visual_tokens).with_head(random_head(target), target.head)
    engine = Engine(target, drafter, Sometimes())
    sampling = [SamplingParams(max_new_tokens=n, temperature=3.0, seed=n) for n in (120, 12, 120)]
    prompts = [engine.prepare(Request(*r, s)) for r, s in zip(REQUESTS, sampling, strict=True)]
    batch: Batch = engine.start(prompts)
    accepted = rejected = 0
    for _ in range(32):
        verification = engine.step(batch).record.verification
        accepted += int(verification.num_accepted.sum())
        rejected += int((verification.num_accepted == 0).sum())
        session, roots = batch.draft, batch.roots
        assert isinstance(session, EagleSession)
        pool = proposals(session, roots)
        assert session.seed is not None
        for index, prompt in enumerate(batch.running):
            fresh = fresh_session(drafter, target, prompts.index(prompt), prompt.sequence.token_ids)
            expected = proposals(fresh, roots[index : index + 1])
            assert fresh.seed is not None
            torch.testing.assert_close(session.seed[index], fresh.seed[0], rtol=1e-7, atol=1e-9)
            assert pool.token_ids[index].tolist() == expected.token_ids[0].tolist()
            np.testing.assert_allclose(pool.log_probs[index], expected.log_probs[0], rtol=1e-5, atol=1e-5)
    assert [prompts.index(p) for p in batch.running] == [0, 2]  # one row left in between
    assert accepted > 10
    assert rejected > 10


@pytest.mark.parametrize("policy", [Chain(4), StaticTree(), Likelihood(depth=2, top_k=60, total=200)])
@pytest.mark.parametrize(
    "settings",
    [{"temperature": 1.0}, {"temperature": 2.5, "top_k": 40}, {"temperature": 1.5, "top_p": 0.8}],
    ids=str,
)
def test_sampled_answers_are_plain_decodings_own(target: Target, policy: TreePolicy, settings: dict[str, Any]) -> None:
    """One seed, one answer, with MSD too; that plain decoding samples the law itself is shown in test_sampling."""
    drafter = MSDDrafter("").with_head(random_head(target), target.head)
    requests = [
        Request(*row, SamplingParams(max_new_tokens=20, seed=seed, **settings)) for seed, row in enumerate(REQUESTS)
    ]
    plain = [o.token_ids for o in Engine(target, drafter, NoDrafting()).generate_batch(requests)]
    engine = Engine(target, drafter, policy)
    outputs = engine.generate_batch(requests)
    assert [o.token_ids for o in outputs] == plain
    assert [engine.generate_batch([request])[0].token_ids for request in requests] == plain
    assert all(o.stats.drafted > o.stats.accepted for o in outputs)
    assert sum(o.stats.accepted for o in outputs) > 3 or not isinstance(policy, Likelihood)


@torch.inference_mode()
def test_a_published_head_drafts_from_its_folder(target: Target, tmp_path: Path) -> None:
    head = random_head(target)
    publish(head, target, tmp_path / "drafter")
    spec = f"msd:checkpoint={tmp_path / 'drafter'}"
    engine = load(target.name, dtype="float64", drafter=spec, policy="likelihood:depth=3,top_k=4,total=12")
    output = engine.generate(*REQUESTS[0], max_new_tokens=12)
    assert (
        output.token_ids
        == load(target.name, dtype="float64", policy="none").generate(*REQUESTS[0], max_new_tokens=12).token_ids
    )
    assert output.stats.drafted > 0


@torch.inference_mode()
def test_ids_beyond_the_heads_vocabulary_are_never_drafted_and_break_nothing(target: Target) -> None:
    settings = new_head_config(target)
    small = EagleHead(type(settings)(**(vars(settings) | {"vocab_size": 100}))).to(target.dtype)
    drafter = MSDDrafter("").with_head(small, target.head)
    drafted: list[int] = []

    class Watching(Likelihood):
        def select(self, pool: CandidatePool, context: RoundContext) -> Bools:
            drafted.extend(pool.token_ids[0, 1:].tolist())
            return super().select(pool, context)

    output = Engine(target, drafter, Watching(2, 3, 9)).generate(*REQUESTS[0], max_new_tokens=20)
    assert max(output.token_ids) >= 100  # committed ones did reach the head
    assert drafted
    assert max(drafted) < 100
