import numpy as np

import trees
from mmsmart.tree import TreeBatch
from mmsmart.verification import accept


def walk(nodes, chosen):
    """The plain rule: from the root, go to the child that carries the target's token, as long as there is one."""
    path = [0]
    while True:
        token = chosen[path[-1]]
        step = [i for i, (parent, t) in enumerate(nodes) if i and parent == path[-1] and t == token]
        if not step:
            return path, token
        path.append(step[0])


def test_ragged_batches_of_random_trees_equal_a_naive_walk():
    rng = np.random.default_rng(0)
    longest = 0
    for _ in range(400):
        vocab = int(rng.integers(2, 5))
        rows = [
            trees.random_nodes(rng, int(rng.integers(0, 14)), vocab, int(rng.integers(vocab)))
            for _ in range(int(rng.integers(1, 5)))
        ]
        tree = trees.tree_batch(rows)
        chosen = rng.integers(vocab, size=tree.token_ids.shape)
        result = accept(tree, chosen)
        for b, nodes in enumerate(rows):
            path, bonus = walk(nodes, chosen[b].tolist())
            longest = max(longest, len(path))
            assert result.num_accepted[b] == len(path) - 1
            assert result.paths[b].tolist() == path + [-1] * (result.paths.shape[1] - len(path))
            assert result.bonus_token_id[b] == bonus
            assert result.emitted(tree)[b] == [*(nodes[i][1] for i in path[1:]), bonus]
    assert longest >= 4  # the walks were not all trivial


def test_the_empty_tree_gives_the_bonus_token_alone():
    tree = TreeBatch.roots([3, 5])
    result = accept(tree, np.array([[7], [9]]))
    assert [result.emitted(tree)[b] for b in range(2)] == [[7], [9]]
    assert result.paths.tolist() == [[0], [0]]
    assert result.num_accepted.tolist() == [0, 0]


def test_everything_accepted_ends_with_the_token_after_the_last_draft():
    tree = trees.tree_batch([[(-1, 0), (0, 1), (1, 2), (2, 3)]])
    result = accept(tree, np.array([[1, 2, 3, 4]]))
    assert result.emitted(tree)[0] == [1, 2, 3, 4]
    assert result.num_accepted.tolist() == [3]


def test_a_right_token_below_a_rejected_one_is_not_accepted():
    tree = trees.tree_batch([[(-1, 0), (0, 8), (0, 1), (1, 2), (3, 3)]])
    result = accept(tree, np.array([[1, 2, 6, 3, 4]]))
    assert result.emitted(tree)[0] == [1, 6]


def test_padding_is_never_accepted_though_it_carries_the_chosen_token():
    tree = trees.tree_batch([[(-1, 4)], [(-1, 4), (0, 4), (1, 4)]])
    result = accept(tree, np.full((2, 3), 4))
    assert result.num_accepted.tolist() == [0, 2]
    assert [result.emitted(tree)[b] for b in range(2)] == [[4], [4, 4, 4]]
    assert result.paths.tolist() == [[0, -1, -1], [0, 1, 2]]
