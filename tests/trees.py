"""Draft trees for tests: written out by hand, drawn at random, and read back as sets of paths."""

from collections.abc import Callable, Sequence

import numpy as np

from mmsmart.drafters.base import DraftSession, RoundOutcome
from mmsmart.tree import ABSENT, CandidatePool, Candidates, Ints, TreeBatch

Nodes = list[tuple[int, int]]  # (parent, token), the root first with parent -1
Children = Callable[[int, tuple[int, ...]], list[tuple[int, float]]]  # row, path of tokens -> (token, log-probability)


def tree_batch(rows: Sequence[Nodes]) -> TreeBatch:
    size = (len(rows), max(map(len, rows)))
    tokens, parents, depths = np.zeros(size, np.int64), np.zeros(size, np.int64), np.zeros(size, np.int64)
    valid = np.zeros(size, np.bool_)
    for row, nodes in enumerate(rows):
        tokens[row] = nodes[0][1]  # padding repeats the root
        for i, (parent, token) in enumerate(nodes):
            tokens[row, i], parents[row, i], valid[row, i] = token, parent, True
            depths[row, i] = depths[row, parent] + 1 if i else 0
    return TreeBatch(tokens, parents, depths, valid, np.zeros(size, np.float32))


def random_nodes(rng: np.random.Generator, count: int, vocab: int, root: int = 0, max_depth: int = 99) -> Nodes:
    nodes: Nodes = [(-1, root)]
    depths, taken = [0], {(-1, root)}
    for _ in range(count):
        parent, token = int(rng.integers(len(nodes))), int(rng.integers(vocab))
        if (parent, token) not in taken and depths[parent] < max_depth:
            taken.add((parent, token))
            nodes.append((parent, token))
            depths.append(depths[parent] + 1)
    return nodes


def path(tree: TreeBatch, row: int, node: int) -> tuple[int, ...]:
    """Tokens from below the root to the node."""
    tokens: list[int] = []
    while node != 0:
        assert 0 <= tree.parents[row, node] < node, "a parent stands before its children"
        tokens.insert(0, int(tree.token_ids[row, node]))
        node = int(tree.parents[row, node])
    return tuple(tokens)


def paths(tree: TreeBatch, row: int) -> set[tuple[int, ...]]:
    """All drafted paths of a row, without the root's empty one."""
    found = [path(tree, row, int(node)) for node in np.flatnonzero(tree.valid[row])]
    assert len(found) == len(set(found)), "no path is there twice"
    return set(found) - {()}


class TableSession(DraftSession):
    """Answers from a function of the path; `ragged` returns no more columns than the widest node needs."""

    def __init__(self, children: Children, *, ragged: bool = False) -> None:
        self.children, self.ragged = children, ragged
        self.expanded: list[list[list[int]]] = []
        self.starts = 0

    def start_round(self, roots: Ints, depth_limit: Ints) -> None:
        self.starts += 1

    def expand(self, pool: CandidatePool, frontier: Ints, top_k: int) -> Candidates:
        self.expanded.append(frontier.tolist())
        assert len(self.expanded) < 100, "the policy never ends"
        known = [[self._of(pool, b, int(c), top_k) for c in row] for b, row in enumerate(frontier)]
        width = max(len(found) for row in known for found in row) if self.ragged else top_k
        shape = (*frontier.shape, width)
        token_ids, log_probs = np.zeros(shape, np.int64), np.full(shape, ABSENT, np.float32)
        for b, row in enumerate(known):
            for w, found in enumerate(row):
                for k, (token, log_prob) in enumerate(found):
                    token_ids[b, w, k], log_probs[b, w, k] = token, log_prob
        return Candidates(token_ids, log_probs)

    def _of(self, pool: CandidatePool, row: int, column: int, top_k: int) -> list[tuple[int, float]]:
        if column < 0:
            return []
        tokens: list[int] = []
        while column != 0:
            tokens.insert(0, int(pool.token_ids[row, column]))
            column = int(pool.parents[row, column])
        return self.children(row, tuple(tokens))[:top_k]

    def commit(self, outcome: RoundOutcome) -> None: ...

    def select_rows(self, rows: Sequence[int]) -> None: ...
