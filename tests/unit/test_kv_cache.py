import gc
import weakref

import numpy as np
import pytest
import torch

from mmsmart.kv_cache import GROWTH_STEP, RaggedCache

LAYERS, HEADS, DIM = 3, 2, 4
CPU = torch.device("cpu")


class Naive:
    """Keys and values of each row and layer, slot by slot."""

    def __init__(self, batch):
        self.rows = [[torch.zeros(2, HEADS, 0, DIM) for _ in range(LAYERS)] for _ in range(batch)]

    def keep(self, states, paths):
        for b, path in enumerate(paths):
            for layer in range(LAYERS):
                self.rows[b][layer] = torch.cat([self.rows[b][layer], states[layer][:, b][:, :, path]], dim=2)


def forward(cache, naive, count):
    """Writes random states through every layer as attention does, and checks all that it may see."""
    batch = cache.batch_size
    cache.begin(count, CPU)
    states = torch.randn(LAYERS, 2, batch, HEADS, count, DIM)
    assert cache.get_mask_sizes(count) == (cache.view_length, 0)
    for index, layer in enumerate(cache.layers):
        keys, values = layer.update(states[index, 0], states[index, 1])
        assert keys.shape == (batch, HEADS, cache.view_length, DIM)
        for b in range(batch):
            expected = torch.cat([naive.rows[b][index], states[index][:, b]], dim=2)
            seen = torch.stack([keys[b], values[b]])[:, :, : expected.shape[2]]
            assert torch.equal(seen, expected), (index, b)
    return states


def random_paths(rng, batch, count):
    """For each row the root and a rising choice of the other nodes."""
    rows = [[0, *np.sort(rng.permutation(np.arange(1, count))[: rng.integers(0, count)])] for _ in range(batch)]
    paths = np.full((batch, max(map(len, rows))), -1, np.int64)
    for b, row in enumerate(rows):
        paths[b, : len(row)] = row
    return rows, paths


@pytest.mark.parametrize("one_device", [True, False])
@pytest.mark.parametrize("ragged", [True, False])
def test_branchy_commits_growth_and_leaving_rows_equal_a_naive_cache(one_device, ragged):
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    batch = 5
    cache, naive = RaggedCache(LAYERS, batch, capacity=6, one_device=one_device), Naive(batch)
    states = forward(cache, naive, 6)
    counts = rng.integers(1, 7, size=batch) if ragged else np.full(batch, 6)
    cache.advance(counts)
    naive.keep(states, [list(range(n)) for n in counts])
    for step in range(70):
        count = int(rng.integers(1, 8))
        states = forward(cache, naive, count)
        rows, paths = random_paths(rng, cache.batch_size if ragged else 1, count)
        if not ragged:
            rows, paths = rows * cache.batch_size, np.repeat(paths, cache.batch_size, axis=0)
        cache.keep_path(paths, np.array([len(row) - 1 for row in rows]))
        naive.keep(states, rows)
        assert cache.lengths.tolist() == [row[0].shape[2] for row in naive.rows]
        assert cache.get_seq_length() == max(cache.lengths)
        if step % 20 == 19:
            keep = rng.permutation(cache.batch_size)[:-1].tolist()
            cache.select_rows(keep)
            naive.rows = [naive.rows[r] for r in keep]
    forward(cache, naive, 1)
    assert cache.lengths.max() > 6 + GROWTH_STEP  # it grew more than once
    assert cache.batch_size == 2


def test_rejected_states_are_overwritten_and_never_seen_again():
    cache, naive = RaggedCache(LAYERS, 2, capacity=4), Naive(2)
    for _ in range(3):
        states = forward(cache, naive, 5)
        cache.keep_path(np.array([[0, 2, 4], [0, -1, -1]]), np.array([2, 0]))
        naive.keep(states, [[0, 2, 4], [0]])
    assert cache.lengths.tolist() == [9, 3]
    assert cache.ragged


def test_rows_that_even_out_again_take_the_plain_write_and_still_agree():
    cache, naive = RaggedCache(LAYERS, 2, capacity=16), Naive(2)
    for paths in ([[0, 1], [0]], [[0], [0, 3]], [[0, 3], [0, 1]]):
        states = forward(cache, naive, 4)
        padded = np.array([p + [-1] * (2 - len(p)) for p in paths])
        cache.keep_path(padded, np.array([len(p) - 1 for p in paths]))
        naive.keep(states, paths)
    assert not cache.ragged
    forward(cache, naive, 2)


def test_a_forward_at_the_exact_capacity_does_not_grow():
    cache = RaggedCache(1, 1, capacity=8)
    cache.begin(8, CPU)
    cache.layers[0].update(torch.zeros(1, HEADS, 8, DIM), torch.zeros(1, HEADS, 8, DIM))
    cache.advance([8])
    before = cache._blocks[0].data.shape[-2]
    cache.begin(1, CPU)
    cache.layers[0].update(torch.ones(1, HEADS, 1, DIM), torch.ones(1, HEADS, 1, DIM))
    assert (before, cache._blocks[0].data.shape[-2]) == (8, 8 + GROWTH_STEP)


def test_a_cache_that_is_dropped_frees_its_memory_at_once():
    cache = RaggedCache(2, 1, capacity=8)
    cache.begin(1, torch.device("cpu"))
    cache.update(torch.zeros(1, 1, 1, 4), torch.zeros(1, 1, 1, 4), 0)
    data = weakref.ref(cache._blocks[0].data)
    gc.disable()
    del cache
    gc.enable()
    assert data() is None
