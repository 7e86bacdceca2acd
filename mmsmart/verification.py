"""Which drafts the target agrees with.

The target's own token is chosen at every node first (the most probable one, or a draw from its processed law); a draft
is accepted when it *is* that token and its parent was accepted. The tree was drafted before the draw and independently
of it, so whatever the tree, the emitted tokens have exactly the target's law; at temperature 0 they are the greedy
tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mmsmart.tree import Ints, TreeBatch


@dataclass(frozen=True)
class Verification:
    """The outcome of one round for B rows.

    Attributes:
        paths: ``[B, D]`` node index of the root and the accepted drafts, -1 behind the end.
        num_accepted: ``[B]`` accepted drafts, the root excluded.
        bonus_token_id: ``[B]`` the target's own token after the accepted path.
    """

    paths: Ints
    num_accepted: Ints
    bonus_token_id: Ints

    def emitted(self, tree: TreeBatch) -> list[list[int]]:
        """Each row's tokens: accepted drafts, then the bonus token."""
        bonus = self.bonus_token_id.tolist()
        if self.paths.shape[1] == 1:
            return [[token] for token in bonus]
        tokens = tree.token_ids[np.arange(len(bonus))[:, None], np.maximum(self.paths, 0)].tolist()
        counts = self.num_accepted.tolist()
        return [[*row[1 : 1 + n], b] for row, n, b in zip(tokens, counts, bonus, strict=True)]


def accept(tree: TreeBatch, chosen: Ints) -> Verification:
    """Walks each tree from the root along the target's choices.

    Args:
        tree: The verified trees.
        chosen: ``[B, N]`` the target's own token after each node.
    """
    batch, nodes = tree.token_ids.shape
    rows = np.arange(batch)
    if nodes == 1:
        zeros = np.zeros(batch, np.int64)
        return Verification(zeros[:, None], zeros, chosen[:, 0])
    parents = np.maximum(tree.parents, 0)
    accepted = tree.valid & (tree.token_ids == chosen[rows[:, None], parents])
    accepted[:, 0] = True
    for depth in range(1, int(tree.depths.max()) + 1):
        level = tree.depths == depth
        accepted &= ~level | accepted[rows[:, None], parents]
    num_accepted = accepted.sum(axis=1) - 1
    order = np.argsort(~accepted, axis=1, kind="stable")[:, : int(num_accepted.max()) + 1]
    steps = np.arange(order.shape[1])
    paths = np.where(steps <= num_accepted[:, None], order, -1)
    assert ((paths < 0) | (tree.depths[rows[:, None], order] == steps)).all(), "siblings must be distinct tokens"
    return Verification(paths, num_accepted, chosen[rows, paths[rows, num_accepted]])
