"""Drafting with an EAGLE-1 head: one forward of the head for each depth of the tree.

The head's cache only ever keeps rows made from the target's true hidden states; the rows of a round's tree steps are
written behind them and forgotten. Positions in the drafter are one-dimensional row numbers for every family.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmsmart.drafters.base import Drafter, DraftSession, PromptContext, RoundOutcome, TargetFacts
from mmsmart.drafters.checkpoints import load_head
from mmsmart.drafters.head import EagleHead
from mmsmart.drafters.packed_head import PackedHead, served
from mmsmart.drafters.rows import Rows, committed_rows, prompt_rows
from mmsmart.errors import InputError
from mmsmart.kv_cache import RaggedCache, additive_mask
from mmsmart.masks import tree_mask
from mmsmart.tree import CandidatePool, Candidates, Ints


class EagleDrafter(Drafter):
    """An EAGLE-1/2 head, trained on text alone; picture placeholders of a multimodal prompt are skipped.

    Args:
        checkpoint: Embedded name, folder or hub id in the published layout, read by `bind`.
        visual_tokens: ``"all"`` feeds projected picture embeddings, ``"none"`` leaves picture rows out and closes up.
    """

    needs_hidden_states = True

    def __init__(self, checkpoint: str, visual_tokens: str = "none") -> None:
        if visual_tokens not in ("all", "none"):
            raise InputError(f"visual_tokens must be 'all' or 'none', got {visual_tokens!r}")
        self.checkpoint = checkpoint
        self.sees_pictures = visual_tokens == "all"
        self.head: EagleHead
        self.served: EagleHead | PackedHead
        self.output: Any

    def bind(self, target: TargetFacts) -> Drafter:
        """Loads the head for this target, unless it was given one."""
        if hasattr(self, "head"):
            return self
        return self.with_head(load_head(self.checkpoint, target), target.head, pack=target.packing)

    def with_head(self, head: EagleHead, output: Any, *, pack: bool = True) -> EagleDrafter:
        """A copy that drafts with this head, which is done with learning.

        Args:
            head: Of the target's width.
            output: The target's own output layer, ``[..., H]`` to ``[..., V]``.
            pack: Run on rearranged weights where that helps.
        """
        bound = copy.copy(self)
        bound.head, bound.output, bound.served = head, output, served(head) if pack else head
        return bound

    def open(self, prompts: Sequence[PromptContext], roots: Ints) -> DraftSession:
        """Starts a session; the prompts are read by the first `start_round`."""
        rows = [prompt_rows(p, int(r), pictures=self.sees_pictures) for p, r in zip(prompts, roots, strict=True)]
        return EagleSession(self, Rows.stacked(rows))

    def log_probs(self, outputs: Tensor) -> Tensor:
        """``[..., H]`` to log-probabilities over the ids that the head can embed ``[..., V']``, in float32."""
        logits: Tensor = self.output(outputs)
        return logits[..., : self.head.config.vocab_size].float().log_softmax(dim=-1)


class EagleSession(DraftSession):
    """The head's memory of one batch."""

    def __init__(self, drafter: EagleDrafter, pending: Rows) -> None:
        self.drafter = drafter
        self.pending: list[Rows | RoundOutcome] = [pending]  # outcomes become rows when they are read
        batch = pending.counts.shape[0]
        self.cache = RaggedCache(1, batch, capacity=int(pending.counts.max()) + 64)
        self.device = drafter.head.fc.weight.device
        self.seed: Tensor | None = None  # [B, H] output at the last true row
        self.steps: _Steps | None = None

    def start_round(self, roots: Ints, depth_limit: Ints) -> None:
        """Reads everything committed since the last round in one forward."""
        if self.pending:
            rows = Rows.appended([_as_rows(one) for one in self.pending])
            self.pending = []
            self.seed = self._read(rows)
        assert self.seed is not None
        self.steps = _Steps(self.seed, self.cache.lengths)

    def expand(self, pool: CandidatePool, frontier: Ints, top_k: int) -> Candidates:
        """The most probable children: of the root from the last true row, of others by one forward."""
        assert self.steps is not None
        assert self.seed is not None
        at_root = bool((pool.depths[np.arange(len(frontier))[:, None], np.maximum(frontier, 0)] == 0).all())
        outputs = self.seed[:, None] if at_root else self._step(pool, frontier)
        best = self.drafter.log_probs(outputs).topk(min(top_k, self.drafter.head.config.vocab_size), dim=-1)
        return Candidates(best.indices.cpu().numpy(), best.values.cpu().numpy())

    def commit(self, outcome: RoundOutcome) -> None:
        """Notes the true hidden states of the root and the accepted drafts."""
        self.pending.append(outcome)

    def select_rows(self, rows: Sequence[int]) -> None:
        """Keeps these rows, in this order."""
        self.cache.select_rows(rows)
        self.pending = [_as_rows(one).select(rows) for one in self.pending]
        if self.seed is not None:
            self.seed = self.seed[torch.as_tensor(rows, device=self.device)]

    def _read(self, rows: Rows) -> Tensor:
        """Keeps true rows ``[B, n]``, right-padded, in the cache; outputs ``[B, H]`` of each run's last one.

        A head of one layer needs no more of the others than their keys and values.
        """
        head = self.drafter.served
        inputs = torch.where(rows.is_picture[:, :, None], rows.states, head.fuse(rows.token_ids, rows.states))
        count, ends = inputs.shape[1], self.cache.lengths + rows.counts
        self.cache.begin(count, self.device)
        lengths = torch.from_numpy(self.cache.lengths).to(self.device)
        positions = lengths[:, None] + torch.arange(count, device=self.device)
        mask = None
        if (ends < self.cache.view_length).any():
            visible = torch.from_numpy(np.arange(self.cache.view_length) < ends[:, None]).to(self.device)
            mask = additive_mask(visible, inputs)[:, None, None]
        last = torch.from_numpy(rows.counts - 1).to(self.device)
        outputs: Tensor = head(inputs, positions, mask, self.cache, last)
        self.cache.advance(rows.counts)
        return outputs[:, 0]

    def _step(self, pool: CandidatePool, frontier: Ints) -> Tensor:
        """One tree step: outputs ``[B, W, H]`` at the frontier's nodes."""
        steps, head = self.steps, self.drafter.served
        assert steps is not None
        columns = np.maximum(frontier, 0)
        rows = np.arange(len(frontier))[:, None]
        parents, own = steps.place(columns, pool.parents[rows, columns])
        token_ids = torch.from_numpy(pool.token_ids[rows, columns]).to(self.device)
        fused = head.fuse(token_ids, steps.outputs_at(parents))
        positions = torch.from_numpy(steps.lengths[:, None] + pool.depths[rows, columns] - 1).to(self.device)
        true_lengths = self.cache.lengths
        self.cache.lengths = true_lengths + own.start  # behind the true rows and the earlier steps
        self.cache.begin(frontier.shape[1], self.device)
        mask = steps.mask(self.cache.view_length, own, fused)
        outputs: Tensor = head(fused, positions, mask, self.cache)
        self.cache.lengths = true_lengths
        steps.add(outputs)
        return outputs


class _Steps:
    """The tree steps of one round: which slot each expanded node took, whom it sees, and its output."""

    def __init__(self, seed: Tensor, lengths: Ints) -> None:
        batch = seed.shape[0]
        self.lengths = lengths
        self._device = seed.device
        self._outputs = [seed[:, None]]  # place 0 is the last true row; the node in slot s has place s + 1
        self._slots: dict[int, Ints] = {}
        self._sees = np.zeros((batch, 0, 0), np.bool_)
        self._place = np.zeros((batch, 1), np.int64)  # pool column -> place, 0 where never expanded

    def place(self, columns: Ints, parents: Ints) -> tuple[Ints, slice]:
        """Gives the nodes of ``columns`` ``[B, W]`` new slots; returns their parents' places and the slots."""
        batch, width = columns.shape
        rows = np.arange(batch)[:, None]
        needed = max(int(columns.max()), int(parents.max())) + 1
        if needed > self._place.shape[1]:
            self._place = np.concatenate([self._place, np.zeros((batch, needed), np.int64)], axis=1)
        parent_places = self._place[rows, parents]
        start = self._sees.shape[1]
        grown = np.zeros((batch, start + width, start + width), np.bool_)
        if start:
            grown[:, :start, :start] = self._sees
            inherited = self._sees[rows, np.maximum(parent_places - 1, 0)]
            grown[:, start:, :start] = inherited & (parent_places > 0)[:, :, None]
        own = np.arange(start, start + width)
        grown[:, own, own] = True
        self._sees = grown
        self._place[rows, columns] = own + 1
        return parent_places, slice(start, start + width)

    def outputs_at(self, places: Ints) -> Tensor:
        """``[B, W]`` places to outputs ``[B, W, H]``."""
        index = torch.from_numpy(places).to(self._device)
        outputs = torch.cat(self._outputs, dim=1) if len(self._outputs) > 1 else self._outputs[0]
        self._outputs = [outputs]
        return outputs.gather(1, index[:, :, None].expand(-1, -1, outputs.shape[-1]))

    def add(self, outputs: Tensor) -> None:
        """Keeps the outputs ``[B, W, H]`` of the nodes placed last."""
        self._outputs.append(outputs)

    def mask(self, view_length: int, own: slice, like: Tensor) -> Tensor | None:
        """``[B, 1, W, slots]``: all true rows, of the tree steps the ancestors and itself; ``None`` hides nothing."""
        sees = self._sees[:, own]
        if sees.shape[1] == 1 and sees.all() and (self.lengths == self.lengths[0]).all():
            return None  # a chain
        return tree_mask(self.lengths, sees, view_length, like)


def _as_rows(pending: Rows | RoundOutcome) -> Rows:
    return pending if isinstance(pending, Rows) else committed_rows(pending)
