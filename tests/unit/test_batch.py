from types import SimpleNamespace

import numpy as np
import torch

import tiny
import trees
from mmsmart.batch import Batch, Prompt
from mmsmart.config import SamplingParams
from mmsmart.sampling import Sampler
from mmsmart.sequence import Sequence
from mmsmart.stats import GenerationStats, RoundStats
from mmsmart.targets.inputs import TargetOutput
from mmsmart.verification import accept

EOS = 257
VOCAB = 259


class Memory:
    """Stands in for the target's and the drafter's memory: notes what it is told."""

    def __init__(self, lengths):
        self.lengths = np.array(lengths)
        self.told = []

    def commit(self, outcome):
        self.told.append(outcome)

    def select_rows(self, rows):
        self.told.append(list(rows))


def batch_of(params):
    tokenizer = tiny.byte_tokenizer("llama")
    prompts = [Prompt(SimpleNamespace(), p, Sequence(p, {EOS}, tokenizer), GenerationStats()) for p in params]
    sampler = Sampler(params, [torch.tensor([5])] * len(params), VOCAB, torch.device("cpu"))
    batch = Batch(prompts, Memory([10, 20, 30][: len(params)]), sampler)
    batch.draft = Memory([])
    return batch, prompts


def run_round(batch, rows, chosen, top_k=0):
    tree = trees.tree_batch(rows)
    logits = torch.randn(*tree.token_ids.shape, VOCAB, generator=torch.Generator().manual_seed(0))
    return batch.commit(tree, accept(tree, np.array(chosen)), TargetOutput(logits, None), top_k), logits


def test_the_limit_of_a_round_leaves_the_last_place_to_the_bonus_token():
    batch, _ = batch_of([SamplingParams(max_new_tokens=2), SamplingParams(max_new_tokens=4)])
    batch.commit_first(np.array([[65], [66]]))
    context = batch.context()
    assert context.depth_limit.tolist() == [0, 2]
    assert context.context_lengths.tolist() == [11, 21]
    assert batch.roots.tolist() == [65, 66]
    assert batch.positions == [1, 1]


def test_every_memory_hears_of_the_round_but_only_of_tokens_before_the_end():
    params = [SamplingParams(repetition_penalty=1.5), SamplingParams(stop="C"), SamplingParams(max_new_tokens=9)]
    batch, prompts = batch_of(params)
    batch.commit_first(np.array([[65], [66], [67]]))
    rows = [[(-1, 65), (0, 70), (1, EOS)], [(-1, 66), (0, 67), (1, 68)], [(-1, 67), (0, 90)]]
    taken, _ = run_round(batch, rows, [[70, EOS, 99], [67, 68, 69], [91, 92, 93]])
    assert taken == [2, 1, 1]
    outcome = batch.draft.told[-1]
    assert outcome.emitted == ((70, EOS), (67,), (91,))
    assert (outcome.top_token_ids, outcome.top_log_probs) == (None, None)
    assert [p.sequence.finish_reason for p in prompts] == ["eos", "stop", None]
    assert torch.nonzero(batch.sampler._seen[0]).flatten().tolist() == [5, 65, 70, EOS]
    batch.drop_finished()
    assert batch.target.told[-1] == batch.draft.told[-1] == [2]
    assert batch.running == [prompts[2]]
    assert batch.sampler.params == [params[2]]
    assert batch.roots.tolist() == [91]
    assert not batch.done


def test_a_drafter_that_wants_them_sees_the_best_tokens_of_rejected_nodes_too():
    batch, _ = batch_of([SamplingParams()])
    batch.commit_first(np.array([[65]]))
    _, logits = run_round(batch, [[(-1, 65), (0, 1), (0, 2)]], [[9, 9, 9]], top_k=3)
    outcome = batch.draft.told[-1]
    assert outcome.top_token_ids.tolist() == logits.topk(3).indices.tolist()
    torch.testing.assert_close(outcome.top_log_probs, logits.log_softmax(-1).topk(3).values)


def test_the_batch_is_done_when_the_last_row_has_left_and_a_round_is_booked_on_each():
    batch, prompts = batch_of([SamplingParams(max_new_tokens=2), SamplingParams(max_new_tokens=3)])
    batch.commit_first(np.array([[65], [66]]))
    run_round(batch, [[(-1, 65)], [(-1, 66), (0, 70)]], [[1, 1], [70, 71]])
    batch.record(RoundStats(1, 2, 3, drafted=(0, 1), accepted=(0, 1)))
    batch.drop_finished()
    assert batch.done
    assert [(p.stats.new_tokens, p.stats.accepted, p.stats.rounds) for p in prompts] == [(2, 0, 1), (3, 1, 1)]


def test_rows_are_moved_only_when_one_has_ended():
    batch, _ = batch_of([SamplingParams(), SamplingParams(max_new_tokens=2)])
    batch.commit_first(np.array([[65], [66]]))
    batch.drop_finished()
    assert batch.target.told == []
    run_round(batch, [[(-1, 65)], [(-1, 66)]], [[1], [2]])
    batch.drop_finished()
    assert batch.draft.told[-1] == [0]
