"""Every policy against its rule written plainly, over drafters whose probabilities are known."""

import itertools

import numpy as np
import pytest

import trees
from mmsmart.drafting import grow
from mmsmart.errors import InputError
from mmsmart.policies.base import RoundContext
from mmsmart.policies.best_first import BestFirst
from mmsmart.policies.chain import Chain
from mmsmart.policies.likelihood import Likelihood
from mmsmart.policies.none import NoDrafting
from mmsmart.policies.static import DEFAULT_PATHS, StaticTree

ALL = [
    NoDrafting(),
    Chain(4),
    StaticTree(),
    Likelihood(depth=3, top_k=3, total=8),
    BestFirst(nodes=6, depth=4, top_k=3),
]
DRAFTING = ALL[1:]


def context(limits):
    return RoundContext(np.array(limits, np.int64), np.full(len(limits), 10, np.int64))


def source(seed, *, branching=3, ties=False, sparse=False):
    """Distinct tokens, most probable first; with ties from few values (0 among them), sparse with missing children."""

    def children(row, path):
        rng = np.random.default_rng([seed, row, len(path), *path])
        count = int(rng.integers(0, branching + 1)) if sparse else branching
        tokens = rng.permutation(20)[:branching].tolist()
        if ties:
            log_probs = -np.sort(rng.choice([0.0, 0.5, 0.5, 1.0], branching))
        else:
            log_probs = np.sort(np.log(rng.dirichlet(np.ones(branching) * 0.7) + 1e-9))[::-1]
        return [(t, float(np.float32(p))) for t, p in zip(tokens[:count], log_probs, strict=False)]

    return children


def built(policy, children, limits, *, ragged=False):
    session = trees.TableSession(children, ragged=ragged)
    tree = grow(policy, session, np.zeros(len(limits), np.int64), context(limits))
    return tree, session


def mass(children, row, path):
    """Cumulative float32 log-probability of a path."""
    total = np.float32(0)
    for i, token in enumerate(path):
        total = np.float32(total + np.float32(dict(children(row, path[:i]))[token]))
    return total


def all_paths(children, row, depth, top_k):
    layer, found = [()], []
    for _ in range(depth):
        layer = [(*path, token) for path in layer for token, _ in children(row, path)[:top_k]]
        found += layer
    return found


def closed_subsets(paths, size):
    """Every set of `size` paths that holds the parent of each of its members, grown one path at a time."""
    level = {frozenset()}
    for _ in range(size):
        level = {kept | {p} for kept in level for p in paths if p not in kept and (len(p) == 1 or p[:-1] in kept)}
    return level


def test_best_first_with_wide_expansion_is_the_best_of_all_prefix_closed_trees():
    for seed, nodes in itertools.product(range(12), (1, 2, 4, 5)):
        children = source(seed)
        paths = all_paths(children, 0, 3, 3)
        value = {path: float(np.exp(np.float64(mass(children, 0, path)))) for path in paths}
        best = max(sum(value[p] for p in kept) for kept in closed_subsets(paths, nodes))
        tree, _ = built(BestFirst(nodes=nodes, depth=3, top_k=3), children, [9])
        found = trees.paths(tree, 0)
        assert len(found) == nodes
        assert sum(value[p] for p in found) == pytest.approx(best, rel=1e-6)


def test_best_first_with_ties_and_missing_children_is_still_the_best_closed_tree():
    for seed in range(30):
        children = source(seed, ties=True, sparse=True)
        paths = all_paths(children, 0, 3, 3)
        value = {path: float(np.exp(np.float64(mass(children, 0, path)))) for path in paths}
        size = min(4, len(paths))
        best = max(sum(value[p] for p in kept) for kept in closed_subsets(paths, size))
        tree, _ = built(BestFirst(nodes=4, depth=3, top_k=3), children, [3], ragged=True)
        found = trees.paths(tree, 0)
        assert len(found) == size
        assert sum(value[p] for p in found) == pytest.approx(best, rel=1e-6)


def test_best_first_expands_only_nodes_that_can_still_be_kept():
    children = source(0, branching=8)
    _, session = built(BestFirst(nodes=5, depth=4, top_k=8), children, [9])
    assert all(sum(c >= 0 for c in row) <= 5 for call in session.expanded for row in call)


def eagle2(children, row, depth, top_k, total, limit):
    """The published procedure in slow loops; a layer is expanded from its most probable node on."""
    made = [((token,), np.float32(p)) for token, p in children(row, ())[:top_k]] if limit else []
    layer = list(made)
    for level in range(depth):
        if level + 2 > limit:
            break
        order = sorted(range(len(layer)), key=lambda i: (-layer[i][1], i))[:top_k]
        grown = []
        for i in order:
            path, score = layer[i]
            grown += [((*path, token), np.float32(score + np.float32(p))) for token, p in children(row, path)[:top_k]]
        made += grown
        layer = grown
    order = sorted(range(len(made)), key=lambda i: (-made[i][1], i))[:total]
    return {made[i][0]: made[i][1] for i in order}


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
def test_likelihood_is_the_published_procedure_on_ragged_rows(ties, sparse):
    rng = np.random.default_rng(3)
    for seed in range(40):
        depth, top_k, total = (int(n) for n in rng.integers(1, (5, 5, 25)))
        limits = rng.integers(0, 7, size=3).tolist()
        children = source(seed, branching=4, ties=ties, sparse=sparse)
        tree, _ = built(Likelihood(depth, top_k, total), children, limits, ragged=bool(seed % 2))
        for row, limit in enumerate(limits):
            expected = eagle2(children, row, depth, top_k, total, limit)
            assert trees.paths(tree, row) == set(expected), (seed, row)
            for node in range(1, tree.num_nodes):
                if tree.valid[row, node]:
                    assert tree.log_probs[row, node] == expected[trees.path(tree, row, node)]


def test_likelihood_reaches_one_layer_more_than_its_depth():
    tree, session = built(Likelihood(depth=3, top_k=2, total=99), source(0, branching=2), [99])
    assert tree.depths.max() == 4
    assert len(session.expanded) == 4


def test_chain_is_the_first_child_again_and_again_until_each_rows_end():
    for seed in range(20):
        children, limits = source(seed, sparse=True), [9, 2, 0, 4]
        tree, _ = built(Chain(4), children, limits)
        for row, limit in enumerate(limits):
            path = ()
            while len(path) < min(limit, 4) and children(row, path):
                path = (*path, children(row, path)[0][0])
            assert trees.paths(tree, row) == {path[:n] for n in range(1, len(path) + 1)}


def test_static_keeps_exactly_the_ranks_of_its_table_that_exist():
    table = ((0,), (1,), (2,), (0, 0), (0, 2), (2, 1), (0, 2, 0), (2, 1, 1), (2, 1, 1, 2))
    for seed in range(20):
        children, limits = source(seed, sparse=bool(seed % 2)), [9, 3, 1, 0]
        tree, _ = built(StaticTree(table), children, limits, ragged=seed % 4 == 3)
        for row, limit in enumerate(limits):
            expected = set()
            for ranks in table:
                path = ()
                for rank in ranks:
                    found = children(row, path)
                    if rank >= len(found) or len(path) == limit:
                        break
                    path = (*path, found[rank][0])
                else:
                    expected.add(path)
            assert trees.paths(tree, row) == expected


def test_static_expands_inner_nodes_of_the_table_only():
    _, session = built(StaticTree(((0,), (1,), (2,), (1, 0))), source(0), [9])
    assert session.expanded == [[[0]], [[2]]]


def test_a_deep_and_wide_static_table_is_kept_whole():
    deep = tuple((0,) * n for n in range(1, 31))
    tree, _ = built(StaticTree((*deep, *((rank,) for rank in range(1, 10)))), source(0, branching=10), [99])
    assert len(trees.paths(tree, 0)) == 39
    assert tree.depths.max() == 30


@pytest.mark.parametrize("policy", ALL, ids=lambda p: type(p).__name__)
def test_with_no_room_the_drafter_is_not_called_at_all(policy):
    tree, session = built(policy, source(0), [0, 0])
    assert (session.starts, session.expanded) == (0, [])
    assert tree.num_nodes == 1


def test_none_never_calls_the_drafter():
    tree, session = built(NoDrafting(), source(0), [9, 9])
    assert (session.starts, session.expanded, tree.num_nodes) == (0, [], 1)


@pytest.mark.parametrize("policy", DRAFTING, ids=lambda p: type(p).__name__)
def test_each_row_keeps_to_its_own_limit(policy):
    tree, session = built(policy, source(1), [0, 1, 2, 9])
    deepest = [max(map(len, trees.paths(tree, row)), default=0) for row in range(4)]
    assert deepest[:3] == [0, 1, 2]
    assert deepest[3] > 2
    assert session.starts == 1


@pytest.mark.parametrize("policy", DRAFTING, ids=lambda p: type(p).__name__)
def test_a_layer_that_no_row_may_use_is_not_drafted(policy):
    _, session = built(policy, source(1), [2, 1])
    assert len(session.expanded) == 2


@pytest.mark.parametrize("policy", DRAFTING, ids=lambda p: type(p).__name__)
@pytest.mark.parametrize("ragged", [False, True])
def test_a_source_that_knows_nothing_gives_the_empty_tree(policy, ragged):
    tree, session = built(policy, lambda row, path: [], [9, 9], ragged=ragged)
    assert tree.num_nodes == 1
    assert len(session.expanded) == 1


@pytest.mark.parametrize("policy", DRAFTING, ids=lambda p: type(p).__name__)
@pytest.mark.parametrize("ragged", [False, True])
def test_a_source_that_runs_dry_in_one_row_serves_the_other(policy, ragged):
    def children(row, path):
        return [(len(path) + 1, -0.1)] if row or len(path) < 1 else []

    tree, _ = built(policy, children, [9, 9], ragged=ragged)
    assert trees.paths(tree, 0) == {(1,)}
    assert len(trees.paths(tree, 1)) == 4 if not isinstance(policy, StaticTree) else len(DEFAULT_PATHS) // 2


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Chain(0), r"'chain': depth must be .* got 0"),
        (lambda: Chain(2.0), r"'chain': depth must be .* got 2\.0"),
        (lambda: Likelihood(top_k=-3), r"'likelihood': top_k must be .* got -3"),
        (lambda: Likelihood(total=True), r"'likelihood': total must be .* got True"),
        (lambda: BestFirst(nodes="many"), r"'best-first': nodes must be .* got 'many'"),
        (lambda: StaticTree(()), r"'static': paths must be"),
        (lambda: StaticTree(((),)), r"'static': paths must be"),
        (lambda: StaticTree(((-1,),)), r"'static'.*got -1"),
        (lambda: StaticTree(((0,), (1, 0))), r"'static': path \(1, 0\) has no parent \(1,\)"),
        (lambda: StaticTree(((0.5,),)), r"'static'.*0\.5"),
        (lambda: StaticTree("((0,),"), r"'static'"),
    ],
)
def test_a_wrong_option_is_refused_with_its_name_and_value(build, message):
    with pytest.raises(InputError, match=message):
        build()
