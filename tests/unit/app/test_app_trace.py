import numpy as np
import pytest

from app.race import Run
from app.trace import MOST_DRAFTS, MOST_DROPPED, Watcher, reasons
from mmsmart.costs.online import CostModel
from mmsmart.engine import Request


@pytest.fixture
def watched(session, picture, settings):
    """The rounds of an answer, each with its trace."""

    def watch(policy):
        list(session.ask("watcher", picture, "What?", settings))  # loads and measures
        bench, pair = session.workbench, (settings.model, settings.drafter)
        costs = CostModel(bench.profile(*pair, 1, lambda: None).table)
        run = Run(bench.engine(*pair, policy), Request(picture, "What?", settings.sampling()))
        watcher, seen = Watcher(run.engine, costs), []
        while not run.done:
            watcher.before(run.batch)
            done = run.step()
            seen.append((done, watcher.after(done)))
        return run, seen

    return watch


@pytest.mark.parametrize("policy", ["best-first", "likelihood", "smart", "rate-optimal", "chain", "static"])
def test_a_trace_says_what_the_round_did(watched, policy):
    run, seen = watched(policy)
    assert [trace.number for _, trace in seen] == list(range(1, len(seen) + 1))
    assert sum(trace.tokens for _, trace in seen) == len(run.token_ids) - 1
    assert sum(trace.num_accepted for _, trace in seen) == run.prompt.stats.accepted
    assert sum(trace.num_drafts for _, trace in seen) == run.prompt.stats.drafted
    for done, trace in seen:
        pool, tree = done.pool, done.record.tree
        assert trace.num_dropped == int(pool.present[0].sum()) - tree.num_nodes
        assert sum(not node.kept for node in trace.nodes) == min(trace.num_dropped, MOST_DROPPED)
        kept = sorted(node.probability for node in trace.nodes if node.kept)
        assert kept == pytest.approx(sorted(np.exp(tree.log_probs[0].astype(float))))
        assert bool(trace.bonus) == (trace.tokens > trace.num_accepted)


@pytest.mark.parametrize("policy", ["likelihood", "rate-optimal"])
def test_nodes_hang_together(watched, policy):
    for _, trace in watched(policy)[1]:
        root, *others = trace.nodes
        assert (root.parent, root.depth, root.gain, root.kept, root.accepted) == (-1, 0, 1.0, True, True)
        for place, node in enumerate(others, 1):
            parent = trace.nodes[node.parent]
            assert 0 <= node.parent < place
            assert node.depth == parent.depth + 1
            assert node.gain <= parent.gain + 1e-9
            assert parent.kept or not node.kept
            assert parent.accepted or not node.accepted


def test_gains_are_the_drafters_probabilities_unless_the_policy_corrects_them(watched):
    for _, trace in watched("best-first")[1]:
        assert not trace.calibrated
        assert all(node.gain == pytest.approx(node.probability) for node in trace.nodes)
    assert all(trace.calibrated for _, trace in watched("rate-optimal")[1])


def test_reasons_add_up_to_the_chosen_tree(watched):
    for _, trace in watched("likelihood")[1]:
        found = reasons(trace)
        assert len(found) == len(trace.nodes) - 1
        kept = [reason for reason in found if trace.nodes[reason.place].kept]
        if not kept:
            continue
        assert found[: len(kept)] == kept
        assert kept[0].rate_before == pytest.approx(trace.rate(1.0, 0))
        assert kept[-1].rate_after == pytest.approx(trace.rate(trace.expected, trace.num_drafts))
        costs = trace.verify_ms_of
        assert sum(r.cost_ms for r in kept) == pytest.approx(costs[trace.num_drafts] - costs[0])
        for reason in found[len(kept) :]:
            assert reason.rate_before == kept[-1].rate_after


def test_costs_are_the_profiles(watched, session, settings):
    _, seen = watched("best-first")
    table = session.workbench.profile(settings.model, settings.drafter, 1, lambda: None).table
    trace = seen[0][1]
    expected = CostModel(table).verify_ms(np.arange(1, MOST_DRAFTS + 2), 1, trace.context)
    assert trace.verify_ms_of == pytest.approx(expected.tolist())
