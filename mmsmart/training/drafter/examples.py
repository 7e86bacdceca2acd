"""From answered questions to what a head is trained on: the target's hidden states over prompt and answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from mmsmart.batch import prompt_context
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

    @staticmethod
    def stacked(singles: Sequence[Examples]) -> Examples:
        """Puts single sequences under one another."""
        pad = torch.nn.utils.rnn.pad_sequence
        return Examples(
            Rows.stacked([one.rows for one in singles]),
            pad([one.wanted[0] for one in singles], batch_first=True),
            pad([one.graded[0] for one in singles], batch_first=True),
        )


@torch.no_grad()
def make_example(target: Target, answered: Answered, *, pictures: bool) -> Examples:
    """Runs the target over one prompt and answer, alone: its numbers must not depend on what stood beside it.

    Args:
        target: The model to imitate.
        answered: A question with its answer.
        pictures: Whether the head is given picture rows (MSD) or none (EAGLE).
    """
    target.forget_images()  # features kept from a batch may differ in the last bits, at least on a GPU
    prompt = target.encode(answered.question.pictures(), answered.question.text)
    inputs = _continued(prompt, answered.token_ids)
    features = target.embed_images([inputs])
    _, _, hidden = target.prefill([inputs], features, keep_hidden=True)
    assert hidden is not None
    states = hidden[0]
    # The last token has no row of its own: it only is the next token of the row before it.
    but_last = replace(inputs, token_ids=inputs.token_ids[:-1], image_mask=inputs.image_mask[:-1])
    context = prompt_context(but_last, features[0], states[:-1])
    rows = prompt_rows(context, int(inputs.token_ids[-1]), pictures=pictures)
    kept = slice(None) if pictures else torch.from_numpy(np.append(~inputs.image_mask[1:-1].numpy(), True))
    after = torch.arange(1, inputs.length)  # row j predicts token j + 2
    is_answer = (after + 1 > prompt.length) & (after + 1 < inputs.length)
    return Examples(rows, states[1:][kept][None], is_answer.to(states.device)[kept][None])


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

    def batches(self, answered: Sequence[Answered], count: int = 1) -> list[Examples]:
        """The examples of these questions in batches of like lengths; the same numbers whatever was asked for before.

        Args:
            answered: Questions with answers.
            count: Batches at most: padding costs as much as what is padded, and attention the square of it.
        """
        made = {one: self._kept.get(one) or self._make(one) for one in dict.fromkeys(answered)}
        singles = sorted((made[one] for one in answered), key=lambda one: one.graded.shape[1])
        size = -(-len(singles) // count)
        return [Examples.stacked(singles[start : start + size]) for start in range(0, len(singles), size)]

    def _make(self, answered: Answered) -> Examples:
        example = make_example(self.target, answered, pictures=self.pictures)
        size = example.rows.states.nbytes + example.wanted.nbytes
        if size <= self._room:
            self._kept[answered] = example
            self._room -= size
        return example


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
