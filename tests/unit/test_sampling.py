import itertools
from collections import defaultdict

import numpy as np
import pytest
import torch
from transformers import (
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

import mmsmart
import tiny
import trees
from mmsmart.config import SamplingParams
from mmsmart.drafters.base import Drafter
from mmsmart.errors import NumericalError
from mmsmart.policies.best_first import BestFirst
from mmsmart.sampling import Sampler, inverse_cdf
from mmsmart.tree import TreeBatch
from mmsmart.verification import accept

CPU = torch.device("cpu")
VOCAB = 5
PROMPT, ROOT = (1, 3), 2

SETTINGS = [
    {"temperature": 1.0},
    {"temperature": 0.6, "top_p": 0.8},
    {"temperature": 1.7, "top_k": 3},
    {"temperature": 0.9, "repetition_penalty": 1.6},
    {"temperature": 1.2, "top_k": 4, "top_p": 0.85, "repetition_penalty": 1.3},
    {"temperature": 1.4, "top_k": 2, "repetition_penalty": 0.7},
]


def table(path):
    """The target: fixed random logits after each path of tokens below the root."""
    return torch.from_numpy(np.random.default_rng([7, len(path), *path]).normal(size=VOCAB) * 1.5).float()


def law(context, logits, params):
    """transformers' own processors in the order of `generate`, on one position."""
    ids, scores = torch.tensor([list(context)]), logits[None].clone()
    if params.repetition_penalty not in (None, 1.0):
        scores = RepetitionPenaltyLogitsProcessor(params.repetition_penalty)(ids, scores)
    if params.temperature != 1.0:
        scores = TemperatureLogitsWarper(params.temperature)(ids, scores)
    if params.top_k:
        scores = TopKLogitsWarper(params.top_k)(ids, scores)
    if params.top_p < 1:
        scores = TopPLogitsWarper(params.top_p)(ids, scores)
    return scores[0].double().softmax(-1).numpy()


def sampler_for(params, count=1, vocab=VOCAB, prompt=PROMPT, root=ROOT):
    sampler = Sampler([params] * count, [torch.tensor(prompt)] * count, vocab, CPU)
    for row in range(count):
        sampler.commit(row, [root])
    return sampler


def table_logits(nodes):
    tree = trees.tree_batch([nodes])
    return torch.stack([table(trees.path(tree, 0, node)) for node in range(len(nodes))])


def round_law(nodes, params):
    """The exact law of one round's tokens: every cell of the unit cube in which all nodes choose alike, weighed."""
    depths = trees.tree_batch([nodes]).depths[0]
    logits = table_logits(nodes)
    one, sampler = trees.tree_batch([nodes]), sampler_for(params)
    scores = logits[None] if sampler._seen is None else sampler._penalised(logits[None], one)
    own = sampler.probabilities(scores)[0].double()
    theirs = [law((*PROMPT, ROOT, *trees.path(one, 0, i)), logits[i], params) for i in range(len(nodes))]
    probs = torch.stack([own, torch.from_numpy(np.array(theirs))], dim=1)
    edges = []
    for depth in range(depths.max() + 1):
        cuts = probs[depths == depth].cumsum(-1).clamp(max=1).flatten().tolist()
        edges.append(sorted({0.0, 1.0, *cuts}))
    cells = list(itertools.product(*([(a, b) for a, b in itertools.pairwise(e) if b - a > 1e-6] for e in edges)))
    sampler = sampler_for(params, len(cells))
    start = 3  # some tokens of the answer are there already
    sampler._uniforms = [np.array([0.0] * start + [(a + b) / 2 for a, b in cell]) for cell in cells]
    tree = trees.tree_batch([nodes] * len(cells))
    chosen = sampler.choose(logits.expand(len(cells), -1, -1), tree, [start] * len(cells))
    outcome = accept(tree, chosen)
    found = defaultdict(float)
    for row, cell in enumerate(cells):
        found[tuple(outcome.emitted(tree)[row])] += float(np.prod([b - a for a, b in cell]))
    return found


@pytest.mark.parametrize("options", SETTINGS, ids=str)
def test_the_exact_law_of_a_round_is_the_targets_whatever_the_tree(options):
    params = SamplingParams(**options)
    rng = np.random.default_rng(len(str(options)))
    lengths = set()
    for count in (0, 3, 6, 9, 12):
        nodes = trees.random_nodes(rng, count, VOCAB, ROOT, max_depth=2)
        found = round_law(nodes, params)
        assert sum(found.values()) == pytest.approx(1, abs=1e-4)
        for tokens, mass in found.items():
            expected = 1.0
            for i, token in enumerate(tokens):
                expected *= law((*PROMPT, ROOT, *tokens[:i]), table(tokens[:i]), params)[token]
            assert mass == pytest.approx(expected, abs=1e-4), tokens
            lengths.add(len(tokens))
    assert lengths == {1, 2, 3}


def answer(params, rng, length=8):
    """Tokens of a whole answer; with a generator each round verifies a random tree, without one the empty tree."""
    sampler, tokens = sampler_for(params), []
    while len(tokens) < length:
        room = length - len(tokens) - 1
        root = tokens[-1] if tokens else ROOT
        nodes = trees.random_nodes(rng, 8 if room else 0, VOCAB, root, max_depth=room) if rng else [(-1, root)]
        tree = trees.tree_batch([nodes])
        logits = torch.stack([table((*tokens, *trees.path(tree, 0, i))) for i in range(len(nodes))])
        chosen = sampler.choose(logits[None], tree, [len(tokens)])
        emitted = accept(tree, chosen).emitted(tree)[0]
        sampler.commit(0, emitted)
        tokens += emitted
    return tokens


@pytest.mark.parametrize("options", SETTINGS, ids=str)
def test_a_seed_gives_the_same_answer_whatever_was_drafted(options):
    rng = np.random.default_rng(5)
    answers = set()
    for seed in range(15):
        params = SamplingParams(seed=seed, max_new_tokens=8, **options)
        plain = answer(params, None)
        assert answer(params, rng) == plain
        assert answer(params, rng) == plain
        answers.add(tuple(plain))
    assert len(answers) > 5  # seeds do differ


def test_a_seed_does_not_depend_on_the_cap_or_on_the_batch():
    rng = np.random.default_rng(0)
    logits = torch.from_numpy(rng.normal(size=(4, 1, 50)))
    params = [SamplingParams(temperature=1.3, seed=s, max_new_tokens=n) for s, n in ((3, 4), (9, 40), (3, 333), (1, 7))]
    whole = Sampler(params, [torch.tensor([0])] * 4, 50, CPU)
    tree = TreeBatch.roots([0] * 4)
    for position in range(4):
        together = whole.choose(logits, tree, [position] * 4)
        for row, each in enumerate(params):
            alone = Sampler([each], [torch.tensor([0])], 50, CPU)
            assert alone.choose(logits[row : row + 1], TreeBatch.roots([0]), [position]) == together[row]
        same = whole.choose(logits[[0, 0, 0, 0]], tree, [position] * 4)
        assert same[0] == same[2]


def test_without_a_seed_two_answers_differ():
    params = SamplingParams(temperature=1.0, max_new_tokens=64)
    draws = [Sampler([params], [torch.tensor([0])], VOCAB, CPU)._uniforms[0] for _ in range(2)]
    assert (draws[0] != draws[1]).any()


def test_random_numbers_follow_their_request_when_rows_leave():
    params = [SamplingParams(temperature=1.0, seed=s, repetition_penalty=1.0 + s) for s in range(4)]
    prompts = [torch.tensor([s]) for s in range(4)]
    sampler = Sampler(params, prompts, VOCAB, CPU)
    sampler.select_rows([3, 1])
    logits = torch.randn(2, 1, VOCAB, generator=torch.Generator().manual_seed(0)) * 2
    for position in range(6):
        chosen = sampler.choose(logits, TreeBatch.roots([0, 0]), [position, position])
        for row, old in enumerate((3, 1)):
            alone = Sampler([params[old]], [prompts[old]], VOCAB, CPU)
            assert alone.choose(logits[row : row + 1], TreeBatch.roots([0]), [position]) == chosen[row]


OPTIONS = [
    {"temperature": t, "top_k": k, "top_p": p, "repetition_penalty": r}
    for t, k, p, r in itertools.product((0.5, 1.0, 2.0), (0, 1, 7, 500), (1.0, 0.9, 0.3, 1e-6), (1.0, 1.4))
]


def test_every_node_has_the_law_of_transformers_for_its_own_prefix():
    rng = np.random.default_rng(11)
    vocab, prompt, root = 40, (4, 9, 9, 30), 12
    for options in OPTIONS:
        params = SamplingParams(**options)
        nodes = trees.random_nodes(rng, 9, vocab, root, max_depth=4)
        tree = trees.tree_batch([nodes])
        logits = torch.from_numpy(rng.normal(size=(1, len(nodes), vocab)) * 2).float()
        sampler = sampler_for(params, 1, vocab, prompt, root)
        scores = sampler._penalised(logits, tree) if params.repetition_penalty != 1 else logits
        probs = sampler.probabilities(scores)
        for i in range(len(nodes)):
            expected = law((*prompt, root, *trees.path(tree, 0, i)), logits[0, i], params)
            np.testing.assert_allclose(probs[0, i].numpy(), expected, atol=2e-6, err_msg=str((options, i)))
            assert ((probs[0, i].numpy() > 0) == (expected > 0)).all(), (options, i)


def test_the_repetition_penalty_of_greedy_rows_is_transformers_own_at_every_node():
    rng = np.random.default_rng(4)
    changed = 0
    for _ in range(60):
        params = SamplingParams(repetition_penalty=float(rng.choice([0.6, 1.3, 3.0])))
        nodes = trees.random_nodes(rng, 10, 12, 5)
        tree = trees.tree_batch([nodes])
        logits = torch.from_numpy(rng.normal(size=(1, len(nodes), 12))).float()
        chosen = sampler_for(params, 1, 12, (0, 7), 5).choose(logits, tree, [1])
        for i in range(len(nodes)):
            context = torch.tensor([[0, 7, 5, *trees.path(tree, 0, i)]])
            scores = RepetitionPenaltyLogitsProcessor(params.repetition_penalty)(context, logits[:, i].clone())
            assert chosen[0, i] == scores.argmax()
            changed += int(scores.argmax() != logits[0, i].argmax())
    assert changed > 50


def test_ties_at_the_edge_of_top_k_all_stay_as_in_transformers():
    logits = torch.tensor([[[1.0, 3.0, 2.0, 2.0, 0.0, 2.0]]])
    for k in range(1, 7):
        params = SamplingParams(temperature=1.0, top_k=k)
        probs = Sampler([params], [torch.tensor([0])], 6, CPU).probabilities(logits)
        np.testing.assert_allclose(probs[0, 0].numpy(), law((0,), logits[0, 0], params), atol=1e-7)


def test_top_p_keeps_the_token_that_crosses_it_and_no_more():
    logits = torch.tensor([[[0.5, 0.3, 0.15, 0.05]]]).log()
    for top_p, kept in ((0.3, 1), (0.49, 1), (0.51, 2), (0.79, 2), (0.81, 3), (0.96, 4)):
        sampler = Sampler([SamplingParams(temperature=1.0, top_p=top_p)], [torch.tensor([0])], 4, CPU)
        assert int((sampler.probabilities(logits) > 0).sum()) == kept, top_p


def test_rows_of_one_batch_keep_their_own_settings_greedy_ones_too():
    rng = np.random.default_rng(8)
    params = [
        SamplingParams(),
        SamplingParams(temperature=0.7, top_k=3, seed=1),
        SamplingParams(repetition_penalty=1.8),
        SamplingParams(temperature=1.5, top_p=0.7, repetition_penalty=1.2, seed=2),
        SamplingParams(temperature=1.0, seed=3),
    ]
    prompts = [torch.tensor([row, 6]) for row in range(5)]
    for _ in range(30):
        rows = [trees.random_nodes(rng, int(rng.integers(0, 8)), 9, 2, max_depth=3) for _ in params]
        tree = trees.tree_batch(rows)
        logits = torch.from_numpy(rng.normal(size=(5, tree.num_nodes, 9)))
        together = Sampler(params, prompts, 9, CPU)
        for row in range(5):
            together.commit(row, [2])
        chosen = together.choose(logits, tree, [1, 5, 2, 9, 0])
        for row, start in enumerate([1, 5, 2, 9, 0]):
            alone = Sampler([params[row]], [prompts[row]], 9, CPU)
            alone.commit(0, [2])
            size = len(rows[row])
            expected = alone.choose(logits[row : row + 1, :size], trees.tree_batch([rows[row]]), [start])
            assert chosen[row, :size].tolist() == expected[0].tolist()


@pytest.mark.parametrize("temperature", [1e-6, 1e-30, 1e-40, 1e-300])
def test_a_temperature_near_zero_is_greedy_and_never_leaves_the_vocabulary(temperature):
    logits = torch.tensor([[[1.0, 30.0, -4.0, 29.0, 2.0]]])
    sampler = sampler_for(SamplingParams(temperature=temperature, seed=0))
    assert sampler.choose(logits, TreeBatch.roots([ROOT]), [0]).tolist() == [[1]]


def test_prompt_ids_beyond_the_models_vocabulary_are_ignored_as_in_transformers():
    params = SamplingParams(repetition_penalty=2.0)
    sampler = Sampler([params], [torch.tensor([1, 7])], VOCAB, CPU)  # a picture placeholder may have no logit
    chosen = sampler.choose(torch.tensor([[[0.0, 3.0, 2.0, 0.0, 0.0]]]), TreeBatch.roots([1]), [0])
    assert chosen.tolist() == [[2]]


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-53, 0.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_token_of_probability_zero_is_never_drawn(uniform, dtype):
    rng = np.random.default_rng(0)
    probs = rng.random((300, 11)) * (rng.random((300, 11)) < 0.4)
    probs[:, 4] += 1e-12
    probs = torch.from_numpy(probs * rng.choice([1, 1e-30, 1e30], (300, 1))).to(dtype)
    drawn = inverse_cdf(probs, torch.full((300,), uniform, dtype=torch.float64))
    assert (probs.gather(-1, drawn[:, None]) > 0).all()


def test_the_ends_of_the_unit_interval_give_the_first_and_the_last_possible_token():
    probs = torch.tensor([[0.0, 0.25, 0.0, 0.75, 0.0]] * 2)
    assert inverse_cdf(probs, torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)).tolist() == [1, 3]


def test_an_inverse_draw_has_the_law_itself():
    probs = torch.tensor([0.1, 0.0, 0.4, 0.3, 0.2], dtype=torch.float64)
    uniforms = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    drawn = inverse_cdf(probs.expand(1000, -1), uniforms)
    assert torch.bincount(drawn, minlength=5).tolist() == [100, 0, 400, 300, 200]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "top_p": 0.9, "seed": 0}, {"repetition_penalty": 1.3}])
def test_a_bad_number_anywhere_in_a_tree_is_an_error_that_names_the_request(bad, options):
    tree = trees.tree_batch([[(-1, 1)], [(-1, 1), (0, 2), (1, 3)]])
    logits = torch.zeros(2, 3, VOCAB)
    logits[1, 2, 4] = bad
    sampler = sampler_for(SamplingParams(**options), 2)
    with pytest.raises(NumericalError, match="request 1"):
        sampler.choose(logits, tree, [1, 1])


def test_the_named_request_is_the_callers_also_after_others_have_left():
    sampler = sampler_for(SamplingParams(), 3)
    sampler.select_rows([2])
    with pytest.raises(NumericalError, match="request 2"):
        sampler.choose(torch.full((1, 1, VOCAB), torch.nan), TreeBatch.roots([1]), [1])


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "top_k": 2, "seed": 0}, {"repetition_penalty": 1.3}])
def test_garbage_on_padding_harms_nobody(options):
    tree = trees.tree_batch([[(-1, 1)], [(-1, 1), (0, 2), (1, 3)]])
    logits = torch.randn(2, 3, VOCAB, generator=torch.Generator().manual_seed(1))
    clean = sampler_for(SamplingParams(**options), 2).choose(logits, tree, [1, 1])
    logits[0, 1:] = torch.tensor([torch.nan, torch.inf])[:, None]
    dirty = sampler_for(SamplingParams(**options), 2).choose(logits, tree, [1, 1])
    assert dirty[0, 0] == clean[0, 0]
    assert dirty[1].tolist() == clean[1].tolist()
    accept(tree, dirty)


class PathDrafter(Drafter):
    """Drafts from a table over the whole answer so far, wrong candidates among right ones."""

    def __init__(self, children):
        self.children = children

    def open(self, prompts, roots):
        return _PathSession(self.children, roots)


class _PathSession(trees.TableSession):
    def __init__(self, children, roots):
        self.answers = [[root] for root in roots.tolist()]
        super().__init__(lambda row, path: children((*self.answers[row], *path)))

    def start_round(self, roots, depth_limit):
        assert [a[-1] for a in self.answers] == roots.tolist()

    def commit(self, outcome):
        for tokens, emitted in zip(self.answers, outcome.emitted, strict=True):
            tokens.extend(emitted)

    def select_rows(self, rows):
        self.answers = [self.answers[r] for r in rows]


def test_thousands_of_seeded_answers_have_the_law_of_plain_forwards(llama_folder):
    params = {"temperature": 8.0, "top_k": 4, "repetition_penalty": 1.1}
    model, question = tiny.reference(llama_folder).model, "Why?"
    prompt = tiny.reference_inputs(llama_folder, None, question)["input_ids"][0].tolist()
    laws = {}

    def law_after(path):
        if path not in laws:
            with torch.inference_mode():
                logits = model(torch.tensor([[*prompt, *path]])).logits[0, -1].float()
            laws[path] = law((*prompt, *path), logits, SamplingParams(**params))
        return laws[path]

    def children(path):
        best = np.argsort(-law_after(path))[:3].tolist()
        return [(best[1], -0.5), ((best[0] + 1) % 200, -1.0), (best[0], -1.2), (best[2], -2.0)]

    engine = mmsmart.load(
        str(llama_folder), drafter=PathDrafter(children), policy=BestFirst(nodes=4, depth=2, top_k=4), dtype="float64"
    )
    expected = {}
    for first in np.flatnonzero(law_after(())).tolist():
        for second in np.flatnonzero(law_after((first,))).tolist():
            expected[first, second] = law_after(())[first] * law_after((first,))[second]
    assert not engine.target.eos_token_ids & {token for pair in expected for token in pair}
    count, seen, accepted = 1500, defaultdict(int), 0
    requests = [
        mmsmart.Request(None, question, SamplingParams(max_new_tokens=3, seed=seed, **params)) for seed in range(count)
    ]
    for output in engine.generate_batch(requests, batch_size=64):
        seen[tuple(output.token_ids[:2])] += 1
        accepted += output.stats.accepted
    assert set(seen) <= set(expected)
    assert count / 5 < accepted < count  # drafts were both accepted and rejected
    statistic = sum((seen[pair] - count * p) ** 2 / (count * p) for pair, p in expected.items())
    p_value = 1 - float(torch.special.gammainc(torch.tensor((len(expected) - 1) / 2.0), torch.tensor(statistic / 2)))
    assert min(expected.values()) * count > 4
    assert p_value > 1e-3, statistic
