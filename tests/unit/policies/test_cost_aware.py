"""`smart` against Algorithm 1 written plainly, `rate-optimal` against brute force and in a simulated device."""

import numpy as np
import pytest
from test_policies import all_paths, closed_subsets, context, mass, source

import trees
from mmsmart.costs.calibration import Calibration
from mmsmart.costs.fit import SmartCurves
from mmsmart.costs.online import CostModel
from mmsmart.costs.table import CostTable, Grid
from mmsmart.drafting import grow
from mmsmart.errors import InputError
from mmsmart.policies.base import RoundContext, RoundRecord
from mmsmart.policies.rate_optimal import RateOptimal
from mmsmart.policies.smart import Smart
from mmsmart.verification import accept

CURVES = SmartCurves(draft_slope=0.3, gamma=6.0, delta=0.02, rho=0.9, plain_ms=6.0)
FREE = SmartCurves(draft_slope=0.0, gamma=6.0, delta=0.5, rho=1e-9, plain_ms=6.0)  # a constant


def smart(curves=CURVES, **options):
    policy = Smart(**options)
    policy.bind_costs(None, curves)
    return policy


def algorithm_1(children, row, curves, *, budget, top_k, depth, alpha):
    """The paper's loop for one sequence: kept paths."""
    kept, layer, probability = [()], [()], {(): 1.0}
    for _ in range(depth):
        candidates = [(*path, token) for path in layer for token, _ in children(row, path)[:top_k]]
        leaves = [p for p in kept if not any(q[:-1] == p for q in kept if q)]
        sums = [sum(probability[leaf[:i]] for i in range(1, len(leaf) + 1)) for leaf in leaves]
        length = sum(sums) / len(sums)
        size = len(kept)  # the root counts
        reward = curves.plain_ms * length / float(curves.spec_ms(size))
        passed = []
        for path in candidates:
            p = float(np.exp(np.float64(mass(children, row, path))))
            if alpha * (curves.plain_ms * p / len(leaves)) / float(curves.marginal_ms(size)) > reward:
                passed.append((p, path))
        if len(passed) > budget - len(kept):
            order = sorted(range(len(passed)), key=lambda i: (-passed[i][0], i))[: max(budget - len(kept), 0)]
            passed = [passed[i] for i in sorted(order)]
        if not passed:
            break
        for p, path in passed:
            probability[path] = p
            kept.append(path)
        if len(kept) >= budget:
            break
        layer = [path for _, path in sorted(passed, key=lambda item: -item[0])]
    return set(kept) - {()}


@pytest.mark.parametrize("alpha", [0.5, 0.8, 1.0])
@pytest.mark.parametrize("rows", [1, 3])
def test_smart_is_algorithm_1(alpha, rows):
    for seed in range(40):
        rng = np.random.default_rng(seed)
        curves = SmartCurves(*rng.uniform([0.01, 0.5, 0.005, 0.5, 4], [0.6, 9.0, 0.08, 1.2, 9]))
        b_verify, top_k, depth = int(rng.integers(4, 40)), int(rng.integers(1, 5)), int(rng.integers(1, 6))
        children = source(seed, branching=4)
        policy = smart(curves, b_verify=b_verify, top_k=top_k, depth=depth, alpha=alpha)
        session = trees.TableSession(children)
        tree = grow(policy, session, np.zeros(rows, np.int64), context([9] * rows))
        for row in range(rows):
            wanted = algorithm_1(
                children, row, curves, budget=max(1, b_verify // rows), top_k=top_k, depth=depth, alpha=alpha
            )
            assert trees.paths(tree, row) == wanted, (seed, row)


def test_smart_without_marginal_cost_keeps_all_that_the_budget_allows():
    children = source(1, branching=3)
    tree, _ = grown(smart(FREE, b_verify=12, top_k=3, depth=2, alpha=1.0), children, [9])
    assert tree.num_nodes == 12  # 1 root + 3 + 8 of 9
    best = sorted((mass(children, 0, p), p) for p in all_paths(children, 0, 2, 3) if len(p) == 2)[::-1][:8]
    assert {p for p in trees.paths(tree, 0) if len(p) == 2} == {p for _, p in best}


def test_smarts_first_layer_passes_whole_as_the_bare_root_has_length_zero():
    dear = SmartCurves(draft_slope=1e6, gamma=1e6, delta=0.5, rho=1.0, plain_ms=1.0)
    tree, _ = grown(smart(dear, b_verify=99, top_k=3, depth=4), source(2), [9])
    assert len({p for p in trees.paths(tree, 0) if len(p) == 1}) == 3


def test_smart_splits_the_budget_evenly():
    tree, _ = grown(smart(FREE, b_verify=12, top_k=3, depth=4, alpha=1.0), source(3), [9, 9, 9])
    assert tree.num_draft_tokens.tolist() == [3, 3, 3]  # 12 // 3 = 4 with the root


def grown(policy, children, limits):
    session = trees.TableSession(children)
    return grow(policy, session, np.zeros(len(limits), np.int64), context(limits)), session


def table(verify, draft=(0.5, 0.5, 0.5), sizes=(1, 4, 8, 16, 32, 64), batches=(1,)):
    verify_grid = Grid(sizes, batches, (10,), tuple((tuple((v,) for _ in batches)) for v in verify))
    draft_grid = Grid((0, 1, 8), batches, (10,), tuple((tuple((d,) for _ in batches)) for d in draft))
    return CostTable(verify_grid, draft_grid, fixed_ms=0.0, settings={})


def rate_optimal(costs, **options):
    policy = RateOptimal(**options)
    policy.calibration.strength = 1e12  # the drafter's own numbers are exact here
    policy.bind_costs(CostModel(costs), CURVES)
    return policy


@pytest.mark.parametrize("steps", [(6, 7.4, 6.8, 7.6, 10.5, 12.6), (8, 11.5, 14, 20, 32, 57), (1, 1, 9, 9, 9, 9)])
def test_the_selection_is_the_best_of_all_prefix_closed_trees(steps):
    costs = table(np.maximum.accumulate(steps))
    for seed in range(8):
        children = source(seed)
        policy = rate_optimal(costs, depth=3, top_k=3, width=99)
        policy.calibration.expected[:] = 1.0  # always worth one more depth: the whole pool is drafted
        tree, session = grown(policy, children, [3])
        rate = 1 / float(costs.verify.at(1, 1, 10))
        paths = all_paths(children, 0, len(session.expanded), 3)
        value = {p: float(np.exp(np.float64(mass(children, 0, p)))) for p in paths}
        best = max(
            1 + sum(value[p] for p in kept) - rate * float(costs.verify.at(size + 1, 1, 10))
            for size in range(5)
            for kept in closed_subsets(paths, size)
        )
        found = trees.paths(tree, 0)
        reached = 1 + sum(value[p] for p in found) - rate * float(costs.verify.at(len(found) + 1, 1, 10))
        assert reached >= best - 1e-5


def test_with_infinite_marginal_cost_nothing_is_verified():
    tree, _ = grown(rate_optimal(table((1, 1e9, 1e9, 1e9, 1e9, 1e9))), source(0), [9, 9])
    assert tree.num_nodes == 1


def test_with_flat_cost_it_is_best_first_at_the_largest_size():
    children = source(4)
    tree, _ = grown(rate_optimal(table((5, 5, 5, 5, 5, 5), draft=(0, 0, 0)), depth=3, top_k=3, nodes=9), children, [9])
    ranked = sorted(((mass(children, 0, p), p) for p in all_paths(children, 0, 3, 3)), key=lambda x: -x[0])
    assert trees.paths(tree, 0) == {p for _, p in ranked[:9]}


def test_a_costlier_verification_never_gives_a_larger_tree():
    for seed in range(6):
        sizes = [
            grown(rate_optimal(table(6 + slope * np.array([0, 3, 7, 15, 31, 63]))), source(seed), [9])[0].num_nodes
            for slope in (0.01, 0.1, 0.4, 1.0, 3.0, 20.0)
        ]
        assert sizes == sorted(sizes, reverse=True), (seed, sizes)


def test_a_dear_drafter_is_asked_for_fewer_depths():
    depths = [
        len(grown(rate_optimal(table((6,) * 6, draft=(d, d, d))), source(5), [9])[1].expanded)
        for d in (0.0, 0.5, 2.0, 50.0)
    ]
    assert depths == sorted(depths, reverse=True)
    assert depths[0] > depths[-1]


class Device:
    """Plays rounds against a table: drafts are right with a probability that the drafter overstates or not."""

    def __init__(self, costs, batch, truth, seed=0):
        self.costs, self.batch, self.truth = costs, batch, truth
        self.rng = np.random.default_rng(seed)
        self.elapsed = self.tokens = 0.0
        self.sizes = []

    def children(self, row, path):
        top = 0.88
        return [(1, np.log(top)), (2, np.log((1 - top) * 0.7)), (3, np.log((1 - top) * 0.2))]

    def play(self, policy, rounds, *, factor=1.0, prompt_every=0, prompt_ms=0.0):
        """Every so many rounds another prompt is read first, as with short answers."""
        for number in range(rounds):
            reads = prompt_every and number % prompt_every == 0
            session = trees.TableSession(self.children)
            limits = RoundContext(np.full(self.batch, 50), np.full(self.batch, 10))
            tree = grow(policy, session, np.zeros(self.batch, np.int64), limits)
            chosen = np.full(tree.token_ids.shape, 99)
            right = self.rng.random(tree.token_ids.shape) < self.truth
            chosen[right] = 1
            verification = accept(tree, chosen)
            noise = self.rng.uniform(0.97, 1.03)
            verify = factor * noise * float(self.costs.verify.at(tree.num_nodes, self.batch, 10))
            draft = sum(
                float(self.costs.draft.at(0 if i == 0 else len(f[0]), self.batch, 10))
                for i, f in enumerate(session.expanded)
            )
            read_ms, unread = (prompt_ms, 100) if reads else (0.0, 3)
            record = (factor * draft + read_ms, verify, tree, verification, limits.context_lengths, unread)
            policy.record(RoundRecord(*record))
            self.elapsed += factor * draft + verify
            self.tokens += float(verification.num_accepted.sum() + self.batch)
            self.sizes.append(tree.num_nodes)
        return self.tokens / self.elapsed


STEPS = (6, 7.4, 7.4, 7.6, 10.5, 12.6)
LINEAR = (8, 14, 22, 38, 70, 134)


@pytest.mark.parametrize(("steps", "batch"), [(STEPS, 1), (LINEAR, 4)])
def test_an_always_wrong_drafter_costs_almost_nothing(steps, batch):
    costs = table(steps, batches=(batch,))
    policy = RateOptimal()
    policy.bind_costs(CostModel(costs), CURVES)
    rate = Device(costs, batch, truth=0.0).play(policy, 600)
    assert rate > 0.95 * batch / float(costs.verify.at(1, batch, 10))


def test_a_drafter_that_turns_good_is_taken_up_again():
    costs = table(STEPS)
    policy = RateOptimal()
    policy.bind_costs(CostModel(costs), CURVES)
    Device(costs, 1, truth=0.0).play(policy, 120)
    good = Device(costs, 1, truth=0.9, seed=1)
    good.play(policy, 200)
    assert np.mean(np.array(good.sizes[-50:]) > 1) > 0.9


def test_reading_prompts_is_not_taken_for_the_price_of_drafting():
    costs = table(STEPS)
    sizes = []
    for prompt_every in (0, 3):
        policy = RateOptimal()
        policy.bind_costs(CostModel(costs), CURVES)
        device = Device(costs, 1, truth=0.9)
        device.play(policy, 120, prompt_every=prompt_every, prompt_ms=40.0)
        sizes.append(np.mean(device.sizes))
        assert policy.costs.factors["draft"] == pytest.approx(1, abs=0.05)
    assert sizes[1] == pytest.approx(sizes[0], rel=0.1)


def test_what_children_are_expected_is_learnt_quickly_and_kept():
    calibration = Calibration()
    calibration.expect(1, np.array([0.96, 0.02, 0.01]))
    assert calibration.expected[1, 0] == pytest.approx(0.73)  # half way from the guess
    for _ in range(6):
        calibration.expect(1, np.array([0.96, 0.02, 0.01]))
    other = Calibration()
    other.restore(calibration.state())
    assert other.expected[1] == pytest.approx([0.96, 0.02, 0.01], abs=0.08)
    for key, value in (("expected", [[2.0] * 3] * 12), ("offered", [[1.0]]), ("accepted", [[-1.0] * 11] * 12)):
        with pytest.raises(ValueError, match="accept"):
            other.restore(calibration.state() | {key: value})


def test_calibration_finds_the_true_acceptance():
    costs = table((6,) * 6, draft=(0.1, 0.1, 0.1))
    policy = RateOptimal(depth=3)
    policy.bind_costs(CostModel(costs), CURVES)
    Device(costs, 4, truth=0.55).play(policy, 120)
    learnt = policy.calibration.conditional(np.full(3, 0.88), np.array([1, 2, 3]))
    assert learnt == pytest.approx([0.55] * 3, abs=0.08)


@pytest.mark.parametrize("truth", [0.1, 0.3, 0.5, 0.7, 0.95])
def test_it_comes_close_to_the_best_chain_in_hindsight(truth):
    costs = table(STEPS)
    policy = RateOptimal()
    policy.bind_costs(CostModel(costs), CURVES)
    Device(costs, 1, truth).play(policy, 120)  # warm
    rate = Device(costs, 1, truth, seed=3).play(policy, 200)
    accepted = [sum(truth**i for i in range(1, depth + 1)) for depth in range(11)]
    times = [float(costs.verify.at(depth + 1, 1, 10)) + 0.5 * depth for depth in range(11)]
    best = max((1 + mass) / time for mass, time in zip(accepted, times, strict=True))
    assert rate > 0.9 * best


def test_g32_no_thrash_at_a_cost_step():
    """A kink in the cost, acceptance alternating high and low: few switches, near the better of the fixed choices."""
    costs = table((6, 6, 6, 30, 60, 120))
    policy = RateOptimal()
    policy.bind_costs(CostModel(costs), CURVES)
    device = Device(costs, 1, truth=0.9)
    for turn in range(20):
        device.truth = 0.9 if turn % 2 else 0.4
        device.play(policy, 30)
    sizes = np.array(device.sizes[60:])
    assert (sizes <= 9).mean() > 0.97  # the dear side of the kink is left alone
    assert device.tokens / device.elapsed > 1.2 / 6
    drafting = sizes > 1
    assert (drafting[1:] != drafting[:-1]).sum() < 60


def test_a_busy_neighbour_is_followed():
    costs = table(LINEAR)
    policy = RateOptimal()
    model = CostModel(costs)
    policy.bind_costs(model, CURVES)
    device = Device(costs, 1, truth=0.9)
    device.play(policy, 100)
    device.play(policy, 40, factor=2.0)
    sizes = np.array(device.sizes[-20:])
    predicted = model.target_ms(sizes, 1, 10)
    assert np.median(predicted / (2.0 * costs.verify.at(sizes, 1, 10))) == pytest.approx(1.0, abs=0.1)


def test_costs_must_be_there():
    for policy in (Smart(), RateOptimal()):
        with pytest.raises(InputError, match=r"mmsmart\.load"):
            grown(policy, source(0), [9])


def test_arguments_are_checked():
    for build, words in ((lambda: Smart(alpha=0), "alpha"), (lambda: RateOptimal(width=0), "width")):
        with pytest.raises(InputError, match=words):
            build()


def test_padding_is_free_so_every_row_gets_the_same_number():
    children = source(7)
    policy = rate_optimal(table((6, 7, 7, 8, 9, 12), batches=(3,)))
    tree, _ = grown(policy, children, [9, 9, 9])
    counts = tree.num_draft_tokens
    assert counts.max() == counts.min() or any(len(all_paths(children, row, 9, 4)) < counts.max() for row in range(3))
    assert counts.min() > 0
