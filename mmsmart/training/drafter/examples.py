"""From answered questions to what a head is trained on: the target's hidden states over prompt and answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from mmsmart.drafters.base import PromptContext
from mmsmart.drafters.rows import Rows, prompt_rows
from mmsmart.targets.base import Target
from mmsmart.targets.inputs import ModelInputs
from mmsmart.training.drafter.answers import Answered


@dataclass(frozen=True)
class Examples:
    """B teacher-forced sequences, right-padded to n rows.

    Attributes:
        rows: Inputs of the head; row j holds token j + 1 and hidden state h_j.
        wanted: ``[B, n, H]`` h_{j+1}, what row j's output stands for.
        graded: ``[B, n]`` rows whose prediction (token j + 2) belongs to the answer; its first token is never drafted.
    """

    rows: Rows
    wanted: Tensor
    graded: Tensor


@torch.no_grad()
def make_examples(target: Target, answered: Sequence[Answered], *, pictures: bool) -> Examples:
    """Runs the target over prompts and answers.

    Args:
        target: The model to imitate.
        answered: Questions with its answers.
        pictures: Whether the head is given picture rows (MSD) or none (EAGLE).
    """
    prompts = [target.encode(one.question.pictures(), one.question.text) for one in answered]
    whole = [_continued(prompt, one.token_ids) for prompt, one in zip(prompts, answered, strict=True)]
    features = target.embed_images(whole)
    _, _, hidden = target.prefill(whole, features, keep_hidden=True)
    assert hidden is not None
    runs, wanted, graded = [], [], []
    for prompt, inputs, states, embeds in zip(prompts, whole, hidden, features, strict=True):
        # The last token has no row of its own: it only is the next token of the row before it.
        context = PromptContext(
            token_ids=inputs.token_ids[:-1].numpy(),
            image_mask=inputs.image_mask[:-1].numpy(),
            image_embeds=torch.cat(embeds) if embeds else None,
            hidden_states=states[:-1],
        )
        runs.append(prompt_rows(context, int(inputs.token_ids[-1]), pictures=pictures))
        kept = slice(None) if pictures else torch.from_numpy(np.append(~inputs.image_mask[1:-1].numpy(), True))
        after = torch.arange(1, inputs.length)  # row j predicts token j + 2
        is_answer = (after + 1 > prompt.length) & (after + 1 < inputs.length)
        wanted.append(states[1:][kept])
        graded.append(is_answer.to(states.device)[kept])
    pad = torch.nn.utils.rnn.pad_sequence
    return Examples(Rows.stacked(runs), pad(wanted, batch_first=True), pad(graded, batch_first=True))


class ExampleStore:
    """Makes examples, and keeps as many as fit in memory: the target runs over each of them once, not once an epoch.

    Args:
        target: The model to imitate.
        pictures: Whether the head is given picture rows.
        budget_bytes: Memory for kept examples; the rest are made anew each time.
    """

    def __init__(self, target: Target, *, pictures: bool, budget_bytes: int = 2 * 2**30) -> None:
        self.target, self.pictures = target, pictures
        self._room = budget_bytes
        self._kept: dict[Answered, Examples] = {}

    def batch(self, answered: Sequence[Answered]) -> Examples:
        """The examples of these questions, right-padded together."""
        missing = [one for one in dict.fromkeys(answered) if one not in self._kept]
        made: dict[Answered, Examples] = {}
        if missing:
            together = make_examples(self.target, missing, pictures=self.pictures)
            made = {one: _single(together, row) for row, one in enumerate(missing)}
        for one, example in made.items():
            size = example.rows.states.nbytes + example.wanted.nbytes
            if size <= self._room:
                self._kept[one] = example
                self._room -= size
        chosen = [self._kept[one] if one in self._kept else made[one] for one in answered]
        pad = torch.nn.utils.rnn.pad_sequence
        return Examples(
            Rows.stacked([example.rows for example in chosen]),
            pad([example.wanted[0] for example in chosen], batch_first=True),
            pad([example.graded[0] for example in chosen], batch_first=True),
        )


def _single(examples: Examples, row: int) -> Examples:
    """One sequence of a batch, its padding cut off."""
    count = int(examples.rows.counts[row])
    one = examples.rows.select([row])
    rows = Rows(one.token_ids[:, :count], one.states[:, :count].clone(), one.is_picture[:, :count], one.counts)
    at = slice(row, row + 1)
    return Examples(rows, examples.wanted[at, :count].clone(), examples.graded[at, :count].clone())


def _continued(inputs: ModelInputs, token_ids: Sequence[int]) -> ModelInputs:
    """A prompt with its answer behind it."""
    answer = torch.tensor(token_ids, dtype=torch.int64)
    index = torch.arange(inputs.length, inputs.length + len(answer)) + inputs.position_offset
    return replace(
        inputs,
        token_ids=torch.cat([inputs.token_ids, answer]),
        image_mask=torch.cat([inputs.image_mask, torch.zeros(len(answer), dtype=torch.bool)]),
        positions=torch.cat([inputs.positions, index.expand(len(inputs.positions), -1)], dim=1),
    )
