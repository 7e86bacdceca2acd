"""The state of requests that are answered together; rows leave as their answers end."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mmsmart.config import SamplingParams
from mmsmart.drafters.base import DraftSession, PromptContext, RoundOutcome
from mmsmart.policies.base import RoundContext
from mmsmart.sampling import Sampler
from mmsmart.sequence import Sequence
from mmsmart.stats import GenerationStats, RoundStats
from mmsmart.targets.inputs import ModelInputs, TargetOutput
from mmsmart.targets.session import TargetSession
from mmsmart.tree import Ints, TreeBatch
from mmsmart.verification import Verification


@dataclass(frozen=True, eq=False)
class Prompt:
    """A request that was checked and encoded."""

    inputs: ModelInputs
    sampling: SamplingParams
    sequence: Sequence
    stats: GenerationStats


class Batch:
    """B running requests: the target's and the drafter's memory, the sampler, and each row's answer.

    Attributes:
        unread: Tokens a row, at most, that the drafter has not read; see `RoundRecord`.
    """

    def __init__(self, prompts: list[Prompt], target: TargetSession, sampler: Sampler) -> None:
        self.running = list(prompts)
        self.target = target
        self.sampler = sampler
        self.draft: DraftSession | None = None
        self.unread = int(target.lengths.max())

    @property
    def done(self) -> bool:
        """Whether every answer has ended."""
        return not self.running

    @property
    def positions(self) -> list[int]:
        """``[B]`` committed tokens of each answer."""
        return [len(p.sequence.token_ids) for p in self.running]

    @property
    def roots(self) -> Ints:
        """``[B]`` last committed tokens."""
        return np.array([p.sequence.token_ids[-1] for p in self.running], np.int64)

    def context(self) -> RoundContext:
        """What a policy may know of the next round."""
        remaining = np.array([p.sequence.remaining for p in self.running], np.int64)
        return RoundContext(depth_limit=remaining - 1, context_lengths=self.target.lengths + 1)

    def commit_first(self, chosen: Ints) -> None:
        """Takes the token after each prompt."""
        for row, prompt in enumerate(self.running):
            prompt.sequence.commit([int(chosen[row, 0])])
            self.sampler.commit(row, prompt.sequence.token_ids)

    def commit(self, tree: TreeBatch, verification: Verification, output: TargetOutput, top_k: int) -> list[int]:
        """Commits a round everywhere; returns how many tokens each row took."""
        self.target.commit(verification)
        emitted: list[tuple[int, ...]] = []
        for row, (prompt, tokens) in enumerate(zip(self.running, verification.emitted(tree), strict=True)):
            taken = tokens[: prompt.sequence.commit(tokens)]
            self.sampler.commit(row, taken)
            emitted.append(tuple(taken))
        if self.draft is not None:
            ids, log_probs = _top(output.logits, top_k)
            outcome = RoundOutcome(tree, verification, tuple(emitted), output.hidden_states, ids, log_probs)
            self.draft.commit(outcome)
        return [len(tokens) for tokens in emitted]

    def record(self, stats: RoundStats) -> None:
        """Books a round on every request that took part."""
        for row, prompt in enumerate(self.running):
            prompt.stats.add_round(stats, row)
            prompt.stats.new_tokens = len(prompt.sequence.token_ids)

    def drop_finished(self) -> None:
        """Lets finished rows leave the batch."""
        going = [row for row, p in enumerate(self.running) if p.sequence.finish_reason is None]
        if len(going) == len(self.running):
            return
        # The last rows fill the holes, so that few move.
        count = len(going)
        last = iter([row for row in reversed(going) if row >= count])
        staying = set(going)
        rows = [row if row in staying else next(last) for row in range(count)]
        self.running = [self.running[row] for row in rows]
        if rows:
            self.target.select_rows(rows)
            self.sampler.select_rows(rows)
            if self.draft is not None:
                self.draft.select_rows(rows)


def prompt_context(inputs: ModelInputs, pictures: Seq[Tensor], states: Tensor | None) -> PromptContext:
    """What a drafter gets to see of a prompt after its prefill.

    Args:
        inputs: The encoded prompt.
        pictures: Its projected features, ``[num_tokens, H]`` a picture.
        states: ``[T, H]`` its last hidden states; without them the drafter does not get the features either.
    """
    return PromptContext(
        token_ids=inputs.token_ids.numpy(),
        image_mask=inputs.image_mask.numpy(),
        image_embeds=torch.cat(list(pictures)) if states is not None and pictures else None,
        hidden_states=states,
    )


def _top(logits: Tensor, top_k: int) -> tuple[Tensor | None, Tensor | None]:
    if top_k == 0:
        return None, None
    best = logits.log_softmax(dim=-1).topk(top_k, dim=-1)
    return best.indices, best.values
