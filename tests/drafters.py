"""Drafters whose acceptance is known beforehand."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mmsmart.drafters.base import Drafter, DraftSession, PromptContext, RoundOutcome
from mmsmart.targets.base import Target
from mmsmart.targets.inputs import ModelInputs
from mmsmart.targets.session import TargetSession
from mmsmart.tree import CandidatePool, Candidates, Ints, TreeBatch


@dataclass
class _Row:
    answer: list[int]
    position: int  # committed answer tokens, the root included


class ScriptedDrafter(Drafter):
    """Knows the answers beforehand (one list of ids for each prompt, found by its prompt ids or by order).

    Args:
        answers: The target's own answers, in the order of the prompts of every session.
        right: Draft what the answer says; otherwise every draft is wrong.
        width: Candidates for each node; with ``right`` the true one is at rank ``place``, the others are wrong.
        vocab_size: Wrong tokens are taken modulo this.
    """

    def __init__(
        self, answers: Sequence[Sequence[int]], *, right: bool = True, place: int = 0, vocab_size: int = 256
    ) -> None:
        self.answers = [list(answer) for answer in answers]
        self.right, self.place, self.vocab_size = right, place, vocab_size
        self.calls = 0

    def open(self, prompts: Sequence[PromptContext], roots: Ints) -> DraftSession:
        assert len(prompts) == len(self.answers)
        return _Session(self, [_Row(answer, 1) for answer in self.answers])


class _Session(DraftSession):
    def __init__(self, drafter: ScriptedDrafter, rows: list[_Row]) -> None:
        self.drafter = drafter
        self.rows = rows

    def start_round(self, roots: Ints, depth_limit: Ints) -> None:
        self.drafter.calls += 1
        for row, root in zip(self.rows, roots.tolist(), strict=True):
            assert row.answer[row.position - 1] == root, "the session lost count of the committed tokens"

    def expand(self, pool: CandidatePool, frontier: Ints, top_k: int) -> Candidates:
        self.drafter.calls += 1
        shape = (*frontier.shape, top_k)
        token_ids = np.zeros(shape, np.int64)
        log_probs = np.broadcast_to(np.log(0.6 * 0.5 ** np.arange(top_k)), shape).astype(np.float32)
        for b, w in np.argwhere(frontier >= 0).tolist():
            at = self.rows[b].position + int(pool.depths[b, frontier[b, w]])
            truth = self.rows[b].answer[at] if at < len(self.rows[b].answer) else 0
            tokens = [(truth + 1 + rank) % self.drafter.vocab_size for rank in range(top_k)]
            if self.drafter.right and self.drafter.place < top_k:
                tokens[self.drafter.place] = truth
            token_ids[b, w] = tokens
        return Candidates(token_ids, log_probs)

    def commit(self, outcome: RoundOutcome) -> None:
        for row, emitted in zip(self.rows, outcome.emitted, strict=True):
            row.position += len(emitted)

    def select_rows(self, rows: Sequence[int]) -> None:
        self.rows = [self.rows[r] for r in rows]


class TargetDrafter(Drafter):
    """The target itself, in a second session with a cache of its own; its first choices are always right.

    Args:
        target: The model.
        inputs: The encoded prompts of every session, in order.
    """

    def __init__(self, target: Target, inputs: Sequence[ModelInputs]) -> None:
        self.target, self.inputs = target, list(inputs)

    def open(self, prompts: Sequence[PromptContext], roots: Ints) -> DraftSession:
        assert [p.token_ids.tolist() for p in prompts] == [one.token_ids.tolist() for one in self.inputs]
        session, _, _ = self.target.prefill(self.inputs, self.target.embed_images(self.inputs))
        return _SecondSession(session)


class _SecondSession(DraftSession):
    def __init__(self, session: TargetSession) -> None:
        self.session = session

    def start_round(self, roots: Ints, depth_limit: Ints) -> None:
        pass  # a forward over the whole pool at every depth needs no start

    def expand(self, pool: CandidatePool, frontier: Ints, top_k: int) -> Candidates:
        present = pool.present
        logits = self.session.verify(TreeBatch.pack(pool, present)).logits
        place = np.cumsum(present, axis=1) - 1
        rows = np.arange(len(frontier))[:, None]
        best = logits[rows, place[rows, np.maximum(frontier, 0)]].log_softmax(dim=-1).topk(top_k, dim=-1)
        return Candidates(best.indices.numpy(), best.values.float().numpy())

    def commit(self, outcome: RoundOutcome) -> None:
        self.session.verify(outcome.tree)
        self.session.commit(outcome.verification)

    def select_rows(self, rows: Sequence[int]) -> None:
        self.session.select_rows(rows)
