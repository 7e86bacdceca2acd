"""The target's key-value cache: preallocated, one length per row, commits by moving only the rows of an accepted path.

This is the one file that touches transformers' ``Cache``. Attention layers write the states of a forward behind each
row's committed length; what was not accepted is simply overwritten by the next round.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from mmsmart.tree import Ints

GROWTH_STEP = 128
"""Slots added when the cache is full."""


class RaggedCache(Cache):
    """Keys and values of B rows of unequal lengths.

    Attributes:
        lengths: ``[B]`` committed slots of each row; the root of the next round is not among them.
        view_length: Slots that attention sees in the forward announced by `begin`.
    """

    def __init__(self, num_layers: int, batch: int, *, capacity: int, one_device: bool = True) -> None:
        """Prepares an empty cache.

        Args:
            num_layers: Attention layers of the target.
            batch: Rows.
            capacity: Slots to allocate at first; grows as needed.
            one_device: All layers sit on one device: they share one block of memory, and a commit is one move.
        """
        self.lengths: Ints = np.zeros(batch, np.int64)
        self._capacity = capacity
        self._writes = 0
        self._start = 0
        self.view_length = 0
        self._columns: Tensor | None = None
        self._rows: Tensor | None = None
        count = 1 if one_device else num_layers
        self._blocks = [_Block(num_layers // count) for _ in range(count)]
        per_block = num_layers // count
        super().__init__(layers=[_Layer(self, self._blocks[i // per_block], i % per_block) for i in range(num_layers)])

    @property
    def batch_size(self) -> int:
        """B."""
        return len(self.lengths)

    @property
    def ragged(self) -> bool:
        """Whether rows differ in length."""
        return bool((self.lengths != self.lengths[0]).any())

    def begin(self, count: int, device: torch.device) -> None:
        """Announces a forward of ``count`` tokens a row, written behind each row's length."""
        self._writes, self._start = count, int(self.lengths[0])
        self.view_length = int(self.lengths.max()) + count
        while self.view_length > self._capacity:
            self._capacity += GROWTH_STEP
        self._columns = None
        if self.ragged:
            self._columns = torch.from_numpy(self.lengths[:, None] + np.arange(count)).to(device)
            self._rows = torch.arange(self.batch_size, device=device)[:, None]

    def advance(self, counts: Sequence[int] | Ints) -> None:
        """Commits the first ``counts[b]`` written slots of each row ``[B]``."""
        self.lengths = self.lengths + np.asarray(counts, np.int64)
        self._writes = 0

    def keep_path(self, paths: Ints, num_accepted: Ints) -> None:
        """Commits the root and the accepted drafts of each row, closing the gaps between their slots.

        Args:
            paths: ``[B, D]`` node indices from the root on, -1 behind the end.
            num_accepted: ``[B]`` accepted drafts.
        """
        steps = np.arange(paths.shape[1])
        source = np.where(paths < 0, steps, paths)
        rows, places = (source != steps).nonzero()
        if len(rows):  # where a path leaves the first nodes; the others lie right
            base = self.lengths[rows]
            for block in self._blocks:
                block.move(rows, base + source[rows, places], base + places)
        self.advance(num_accepted + 1)

    def select_rows(self, rows: Sequence[int]) -> None:
        """Keeps these rows, in this order; finished requests leave the batch."""
        used = int(self.lengths.max())
        self.lengths = self.lengths[np.asarray(rows, np.int64)]
        for block in self._blocks:
            block.select_rows(rows, used)

    def states(self) -> Tensor:
        """``[layers, 2, B, kv heads, slots, head dim]`` keys and values of a cache on one device."""
        assert len(self._blocks) == 1
        data = self._blocks[0].data
        assert data is not None
        return data.transpose(0, 1)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Committed slots of the longest row."""
        return int(self.lengths.max())

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Key length and offset, as transformers' mask builder asks for them."""
        return self.view_length, 0


def additive_mask(visible: Tensor, like: Tensor) -> Tensor:
    """A float mask (0 where visible), which every attention implementation reads alike; a bool one is not."""
    mask = torch.zeros(visible.shape, dtype=like.dtype, device=like.device)
    return mask.masked_fill_(~visible, torch.finfo(like.dtype).min)


class _Block:
    """Storage ``[2, layers, B, kv heads, capacity, head dim]`` of layers on one device."""

    def __init__(self, layers: int) -> None:
        self.layers = layers
        self.data: Tensor | None = None

    def ensure(self, like: Tensor, capacity: int) -> Tensor:
        if self.data is None or self.data.shape[-2] < capacity:
            batch, heads, _, dim = like.shape
            grown = like.new_empty(2, self.layers, batch, heads, capacity, dim)
            filled = like.shape[2]  # the first write fills these slots at once
            if self.data is not None:
                filled = self.data.shape[-2]
                grown[..., :filled, :] = self.data
            grown[..., filled:, :] = 0  # masked slots must still be finite: 0 x NaN is NaN
            self.data = grown
        return self.data

    def move(self, rows: Ints, source: Ints, target: Ints) -> None:
        """Copies slot ``source[i]`` of row ``rows[i]`` to slot ``target[i]``."""
        assert self.data is not None
        row, src, dst = (torch.from_numpy(index).to(self.data.device) for index in (rows, source, target))
        self.data[:, :, row, :, dst] = self.data[:, :, row, :, src]

    def select_rows(self, rows: Sequence[int], used: int) -> None:
        """Keeps these rows, in place where no row is needed after it was written over; copies ``used`` slots."""
        if self.data is None:
            return
        moved = [(place, row) for place, row in enumerate(rows) if place != row]
        if len(set(rows)) < len(rows) or any(row < place for place, row in moved):
            self.data = self.data.index_select(2, torch.as_tensor(rows, device=self.data.device))
            return
        for place, row in moved:
            self.data[:, :, place, :, :used] = self.data[:, :, row, :, :used]
        self.data = self.data[:, :, : len(rows)]


class _Layer(CacheLayerMixin):
    """One attention layer's window on its block."""

    def __init__(self, cache: RaggedCache, block: _Block, index: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # The cache owns its layers: a strong reference back would keep the memory until the cycle collector runs.
        self._cache: RaggedCache = weakref.proxy(cache)
        self._block = block
        self._index = index
        self._seen: Tensor | None = None
        self._views: tuple[Tensor, Tensor]

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do: the block allocates on the first write."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Writes ``[B, heads, n, dim]`` states and returns all that attention may see."""
        cache = self._cache
        data = self._block.ensure(key_states, cache._capacity)
        if data is not self._seen:
            self._seen, self._views = data, (data[0, self._index], data[1, self._index])
        keys, values = self._views
        if cache._columns is None:
            written = slice(cache._start, cache._start + cache._writes)
            keys[:, :, written] = key_states
            values[:, :, written] = value_states
        else:
            assert cache._rows is not None
            columns, rows = cache._columns.to(keys.device), cache._rows.to(keys.device)
            keys[rows, :, columns] = key_states.transpose(1, 2)
            values[rows, :, columns] = value_states.transpose(1, 2)
        view = cache.view_length
        return keys[:, :, :view], values[:, :, :view]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Key length and offset."""
        return self._cache.view_length, 0

    def get_seq_length(self) -> int:
        """Committed slots of the longest row."""
        return self._cache.get_seq_length()

    def get_max_length(self) -> int:
        """No bound."""
        return -1

    def get_max_cache_shape(self) -> int:
        """No bound (the name before transformers 5.24)."""
        return -1


class Storage:
    """Keys and values of fixed shape: every forward sees all slots, and writes where an index tensor says.

    Attributes:
        data: ``[layers, 2, R, kv heads, capacity, head dim]``, always finite.
        layers: What attention layers get in a cache's place.
        graphs: Forwards recorded on this memory, by their number of nodes.
    """

    def __init__(self, like: Tensor, rows: int, capacity: int) -> None:
        self.rows, self.capacity = rows, capacity
        layers, two, _, heads, _, dim = like.shape
        self.data = like.new_zeros(layers, two, rows, heads, capacity, dim)
        index = torch.arange(rows, device=like.device)[:, None]
        self.layers = [SlotLayer(states, index) for states in self.data]
        self.graphs: dict[int, Any] = {}

    @property
    def nbytes(self) -> int:
        """Memory of keys and values."""
        return self.data.nbytes

    def fill(self, source: Tensor, rows: Sequence[int], count: int) -> None:
        """Copies the first ``count`` slots of these rows of another storage, or of this one."""
        index = torch.as_tensor(rows, device=source.device)
        self.data[:, :, : len(rows), :, :count] = source[:, :, :, :, :count].index_select(2, index)
        self.data[:, :, :, :, count:] = 0  # who was here before may have left NaN, and 0 x NaN is NaN
        self.data[:, :, len(rows) :] = 0

    def write_to(self, slots: Tensor) -> None:
        """Says where the next forward writes ``[R, n]``."""
        for layer in self.layers:
            layer.slots = slots


class SlotLayer:
    """One layer's keys and values ``[2, R, kv heads, capacity, head dim]``; plain, for compilers to see through."""

    def __init__(self, states: Tensor, rows: Tensor) -> None:
        self.states, self.rows = states, rows
        self.slots: Tensor

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Writes ``[R, heads, n, dim]`` states and returns all slots."""
        keys, values = self.states[0], self.states[1]
        keys[self.rows, :, self.slots] = key_states.transpose(1, 2)
        values[self.rows, :, self.slots] = value_states.transpose(1, 2)
        return keys, values


class SlotCache(RaggedCache):
    """Rows of unequal lengths in a `Storage`, which may have more rows."""

    def __init__(self, storage: Storage, lengths: Ints) -> None:
        super().__init__(len(storage.layers), len(lengths), capacity=storage.capacity)
        self.lengths = lengths
        self.storage = storage
        self._blocks[0].data = storage.data.transpose(0, 1)

    def select_rows(self, rows: Sequence[int]) -> None:
        """Keeps these rows, in this order, at the front of the same storage."""
        self.lengths = self.lengths[np.asarray(rows, np.int64)]
        self.storage.fill(self.storage.data, rows, int(self.lengths.max()))
