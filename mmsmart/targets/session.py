"""A target's memory of one batch, and the attention masks of its forwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from mmsmart.kv_cache import RaggedCache, additive_mask
from mmsmart.masks import tree_mask
from mmsmart.targets.inputs import TargetOutput
from mmsmart.tree import Ints, TreeBatch
from mmsmart.verification import Verification

if TYPE_CHECKING:
    from mmsmart.targets.base import Target


class TargetSession:
    """The target's memory of one batch: cache and position offsets. Rows leave when their answers end."""

    def __init__(self, target: Target, cache: RaggedCache, offsets: Ints) -> None:
        self.target = target
        self.cache = cache
        self.offsets = offsets

    @property
    def lengths(self) -> Ints:
        """``[B]`` committed slots, the next root excluded."""
        return self.cache.lengths

    def verify(self, tree: TreeBatch, *, keep_hidden: bool = False) -> TargetOutput:
        """One forward over every node of every tree; nothing is committed yet."""
        target, cache = self.target, self.cache
        device = target.device
        cache.begin(tree.num_nodes, device)
        index = cache.lengths[:, None] + self.offsets[:, None] + tree.depths
        positions = torch.from_numpy(index).to(device).expand(target.axes, -1, -1)
        embeds = target.embed_tokens(torch.from_numpy(tree.token_ids).to(device))
        hidden = target.forward(embeds, positions, _tree_mask(tree, cache, embeds), cache)
        return TargetOutput(target.logits(hidden), hidden if keep_hidden else None)

    def commit(self, verification: Verification) -> None:
        """Keeps the root and the accepted drafts of each row."""
        self.cache.keep_path(verification.paths, verification.num_accepted)

    def select_rows(self, rows: Sequence[int]) -> None:
        """Keeps these rows, in this order."""
        self.cache.select_rows(rows)
        self.offsets = self.offsets[np.asarray(rows, np.int64)]


def chunk_mask(start: int, end: int, embeds: Tensor) -> Tensor | None:
    """The causal mask ``[1, 1, q, end]`` of a prefill chunk; the first one needs none."""
    if start == 0:
        return None
    index = torch.arange(end, device=embeds.device)
    return additive_mask(index[None, :] <= index[start:, None], embeds)[None, None]


def _tree_mask(tree: TreeBatch, cache: RaggedCache, embeds: Tensor) -> Tensor | None:
    """``[B, 1, N, L + N]``: a node sees its row's committed slots, its ancestors and itself."""
    if tree.num_nodes == 1 and not cache.ragged:
        return None
    return tree_mask(cache.lengths, tree.ancestor_mask(), cache.view_length, embeds)
