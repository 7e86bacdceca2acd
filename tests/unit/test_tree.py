import numpy as np
import pytest

import trees
from mmsmart.tree import ABSENT, CandidatePool, Candidates, TreeBatch


def candidates(tokens, log_probs):
    return Candidates(np.array(tokens, np.int64), np.array(log_probs, np.float32))


def random_pool(rng, batch=3, layers=4, top_k=3, steps_from=(0.0, 0.5, 1.0)):
    """Expands random present nodes of the newest layer; the steps are few numbers, so that ties are many."""
    pool = CandidatePool(rng.integers(9, size=batch))
    limit = rng.integers(0, layers + 2, size=batch)
    for _ in range(layers):
        width = int(rng.integers(1, 4))
        frontier = np.full((batch, width), -1, np.int64)
        for b in range(batch):
            block = np.arange(pool.last_block.start, pool.last_block.stop)
            live = block[pool.present[b, block]]
            pick = np.sort(rng.permutation(live)[:width])
            frontier[b, : len(pick)] = pick
        shape = (batch, width, top_k)
        steps = -np.sort(rng.choice(steps_from, shape), axis=-1)
        steps = np.where(rng.random(shape) < 0.2, ABSENT, steps)
        pool.append(frontier, candidates(rng.integers(50, size=shape), steps), limit)
    return pool, limit


def test_a_pool_keeps_parents_depths_ranks_and_cumulative_scores():
    pool = CandidatePool([7, 8])
    pool.append(np.array([[0], [0]]), candidates([[[1, 2]], [[3, 4]]], [[[-0.5, -1]], [[-0.25, -2]]]), np.array([5, 5]))
    assert pool.last_block == slice(1, 3)
    pool.append(
        np.array([[2, -1], [1, 2]]),
        candidates([[[5, 6], [0, 0]], [[7, 8], [9, 10]]], [[[-1, -2], [0, 0]], [[-1, -3], [-4, -5]]]),
        np.array([5, 5]),
    )
    assert pool.last_block == slice(3, 7)
    assert pool.blocks == [1, 3]
    assert pool.parents[1].tolist() == [-1, 0, 0, 1, 1, 2, 2]
    assert pool.parents[0, 3:5].tolist() == [2, 2]
    assert pool.depths[1].tolist() == [0, 1, 1, 2, 2, 2, 2]
    assert pool.ranks[1].tolist() == [0, 0, 1, 0, 1, 0, 1]
    assert pool.log_probs[1].tolist() == [0, -0.25, -2, -1.25, -3.25, -6, -7]
    assert pool.log_probs[0].tolist() == [0, -0.5, -1, -2, -3, ABSENT, ABSENT]
    assert pool.present[0].tolist() == [True] * 5 + [False] * 2


def test_nothing_is_added_below_each_rows_own_depth_limit():
    pool = CandidatePool([0, 0, 0])
    one = candidates([[[1]]] * 3, [[[-1.0]]] * 3)
    for end in range(3):
        pool.append(np.full((3, 1), end, np.int64), one, np.array([0, 1, 3]))
    assert pool.present.tolist() == [[True, False, False, False], [True, True, False, False], [True] * 4]


def test_an_absent_candidate_has_no_children_and_is_never_kept():
    pool = CandidatePool([0])
    pool.append(np.array([[0]]), candidates([[[1, 2]]], [[[-1, ABSENT]]]), np.array([9]))
    pool.append(np.array([[2]]), candidates([[[3, 4]]], [[[-0.1, -0.2]]]), np.array([9]))
    assert pool.top(99).tolist() == [[True, True, False, False, False]]


def test_a_log_probability_above_zero_does_not_lift_a_child_above_its_parent():
    pool = CandidatePool([0])
    pool.append(np.array([[0]]), candidates([[[1]]], [[[-1.0]]]), np.array([9]))
    pool.append(np.array([[1]]), candidates([[[2]]], [[[1e-6]]]), np.array([9]))
    assert pool.top(1).tolist() == [[True, True, False]]


def test_a_sure_child_never_displaces_its_parent():
    # Defect of the published code: log p(child | parent) = 0 ties with the parent, and the parent may be dropped.
    pool = CandidatePool([0])
    pool.append(np.array([[0]]), candidates([[[1, 2, 3]]], [[[-1, -1, -1]]]), np.array([9]))
    pool.append(np.array([[1, 2, 3]]), candidates([[[4], [5], [6]]], [[[0], [0], [0]]]), np.array([9]))
    for count in range(7):
        keep = pool.top(count)
        assert keep.sum() == count + 1
        assert all(keep[0, pool.parents[0, node]] for node in np.flatnonzero(keep[0])[1:])


def test_a_step_too_small_for_float32_still_leaves_the_set_closed():
    rng = np.random.default_rng(0)
    for _ in range(100):
        pool, _ = random_pool(rng, steps_from=(0.0, 1e-12, 1e-9, 1.0, 7.0))
        for count in range(pool.token_ids.shape[1]):
            TreeBatch.pack(pool, pool.top(count))  # refuses a set that is not closed


def test_top_is_the_best_of_each_row_with_ties_by_order_and_is_prefix_closed():
    rng = np.random.default_rng(1)
    for _ in range(200):
        pool, limit = random_pool(rng)
        assert (pool.depths[pool.present] <= np.repeat(limit, pool.present.sum(axis=1))).all()
        count = int(rng.integers(0, 12))
        keep = pool.top(count)
        for b in range(keep.shape[0]):
            live = [m for m in range(1, pool.token_ids.shape[1]) if pool.log_probs[b, m] > ABSENT]
            best = sorted(live, key=lambda m: (-pool.log_probs[b, m], m))[:count]
            assert np.flatnonzero(keep[b]).tolist() == [0, *sorted(best)]
            assert all(keep[b, pool.parents[b, m]] for m in best)


def test_packing_ragged_rows_keeps_every_path_and_its_score():
    rng = np.random.default_rng(2)
    for _ in range(200):
        pool, _ = random_pool(rng)
        keep = pool.top(int(rng.integers(0, 9)))
        tree = TreeBatch.pack(pool, keep)
        assert tree.num_nodes == keep.sum(axis=1).max()
        assert tree.num_draft_tokens.tolist() == (keep.sum(axis=1) - 1).tolist()
        for b in range(keep.shape[0]):
            kept = np.flatnonzero(keep[b]).tolist()
            for node, column in enumerate(kept):
                assert tree.valid[b, node]
                assert tree.token_ids[b, node] == pool.token_ids[b, column]
                assert tree.depths[b, node] == pool.depths[b, column]
                assert tree.log_probs[b, node] == pool.log_probs[b, column]
                if column:
                    assert kept[tree.parents[b, node]] == pool.parents[b, column]
            assert tree.parents[b, 0] == -1
            rest = slice(len(kept), None)
            assert not tree.valid[b, rest].any()
            assert (tree.token_ids[b, rest] == tree.token_ids[b, 0]).all()
            assert (tree.depths[b, rest] == 0).all()
            assert (tree.parents[b, rest] == 0).all()


def test_packing_refuses_an_orphan():
    pool = CandidatePool([0])
    pool.append(np.array([[0]]), candidates([[[1]]], [[[-1.0]]]), np.array([9]))
    pool.append(np.array([[1]]), candidates([[[2]]], [[[-1.0]]]), np.array([9]))
    with pytest.raises(AssertionError, match="without its parent"):
        TreeBatch.pack(pool, np.array([[True, False, True]]))


def test_the_ancestor_mask_equals_a_walk_to_the_root():
    rng = np.random.default_rng(3)
    for _ in range(100):
        tree = trees.tree_batch([trees.random_nodes(rng, int(rng.integers(0, 12)), 20) for _ in range(3)])
        mask = tree.ancestor_mask()
        for b, i in np.argwhere(tree.valid).tolist():
            expected, node = set(), i
            while node >= 0:
                expected.add(node)
                node = int(tree.parents[b, node]) if node else -1
            assert set(np.flatnonzero(mask[b, i]).tolist()) == expected


def test_padding_is_seen_by_no_node_and_sees_something():
    tree = trees.tree_batch([[(-1, 5)], [(-1, 5), (0, 1), (1, 2)]])
    mask = tree.ancestor_mask()
    assert mask[0].tolist()[0] == [True, False, False]
    assert mask[0].any(axis=1).all()  # a query that sees nothing is NaN in attention


def test_the_empty_tree_is_the_roots_alone():
    tree = TreeBatch.roots([4, 6])
    assert tree.token_ids.tolist() == [[4], [6]]
    assert tree.num_draft_tokens.tolist() == [0, 0]
    assert tree.ancestor_mask().tolist() == [[[True]], [[True]]]
