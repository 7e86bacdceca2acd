"""The rows that enter an EAGLE head: which token pairs with which hidden state, for prompts and for committed rounds.

The shift rule, for any number of pictures: where the *next* token is a picture placeholder, its projected embedding
goes in alone; elsewhere ``fc([E(next token); hidden state])``. For one picture it is the decoupling of MSD (arXiv
2505.14260).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mmsmart.drafters.base import PromptContext, RoundOutcome
from mmsmart.tree import Ints


@dataclass(frozen=True)
class Rows:
    """B runs of rows, right-padded to n.

    Attributes:
        token_ids: ``[B, n]`` the next token of each row.
        states: ``[B, n, H]`` the target's hidden state, or the picture's projected embedding where ``is_picture``.
        is_picture: ``[B, n]``.
        counts: ``[B]`` rows that are not padding.
    """

    token_ids: Tensor
    states: Tensor
    is_picture: Tensor
    counts: Ints

    def select(self, rows: Sequence[int]) -> Rows:
        """These runs, in this order."""
        index = torch.as_tensor(rows, device=self.states.device)
        kept = (self.token_ids[index], self.states[index], self.is_picture[index])
        return Rows(*kept, self.counts[np.asarray(rows, np.int64)])

    @staticmethod
    def stacked(runs: Sequence[Rows]) -> Rows:
        """Puts batches of runs under one another."""
        return _padded([one._run(row) for one in runs for row in range(len(one.counts))])

    @staticmethod
    def appended(parts: Sequence[Rows]) -> Rows:
        """Continues each run of the first part by the same run of the following ones."""
        if len(parts) == 1:
            return parts[0]
        runs = []
        for row in range(len(parts[0].counts)):
            pieces = [part._run(row) for part in parts]
            runs.append(tuple(torch.cat(column) for column in zip(*pieces, strict=True)))
        return _padded(runs)

    def _run(self, row: int) -> tuple[Tensor, ...]:
        count = int(self.counts[row])
        return self.token_ids[row, :count], self.states[row, :count], self.is_picture[row, :count]


def prompt_rows(prompt: PromptContext, root: int, *, pictures: bool) -> Rows:
    """The rows of one prompt whose first answer token is ``root``.

    Args:
        prompt: With hidden states, and with picture embeddings when there are pictures.
        root: The last row's next token.
        pictures: Feed picture rows; otherwise they are left out, and positions close up.
    """
    assert prompt.hidden_states is not None
    states = prompt.hidden_states
    token_ids = torch.from_numpy(np.append(prompt.token_ids[1:], root)).to(states.device)
    is_picture = torch.from_numpy(np.append(prompt.image_mask[1:], False)).to(states.device)
    if not pictures:
        kept = ~is_picture
        token_ids, states, is_picture = token_ids[kept], states[kept], is_picture[kept]
    elif prompt.image_embeds is not None:
        first = int(prompt.image_mask[0])  # a picture that opens the prompt has no row before it to enter by
        states = states.clone()
        states[is_picture] = prompt.image_embeds[first:].to(states.device, states.dtype)
    return Rows(token_ids[None], states[None], is_picture[None], np.array([len(token_ids)]))


def committed_rows(outcome: RoundOutcome) -> Rows:
    """The rows of a round: the root and the accepted drafts, each with the token that followed it."""
    assert outcome.hidden_states is not None
    verification, hidden = outcome.verification, outcome.hidden_states
    paths = np.maximum(verification.paths, 0)
    rows = np.arange(len(paths))
    following = np.roll(outcome.tree.token_ids[rows[:, None], paths], -1, axis=1)
    following[rows, verification.num_accepted] = verification.bonus_token_id
    index = torch.from_numpy(paths).to(hidden.device)
    states = hidden.gather(1, index[:, :, None].expand(-1, -1, hidden.shape[-1]))
    token_ids = torch.from_numpy(following).to(hidden.device)
    return Rows(token_ids, states, torch.zeros_like(token_ids, dtype=torch.bool), verification.num_accepted + 1)


def _padded(runs: Sequence[tuple[Tensor, ...]]) -> Rows:
    counts = np.array([len(run[0]) for run in runs])
    columns = [torch.nn.utils.rnn.pad_sequence(list(column), batch_first=True) for column in zip(*runs, strict=True)]
    return Rows(columns[0], columns[1], columns[2], counts)
