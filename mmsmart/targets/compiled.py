"""Verification with few, fixed shapes: for GPUs that an eager forward leaves waiting for the next kernel's launch.

A tree is padded up to one of few sizes, the batch likewise, and attention always sees the whole storage, which grows by
a large step; all that changes from round to round is in tensors. So the layers can be compiled once for all shapes
(one layer stands for all: they differ in their weights only), and on a GPU the whole forward becomes a CUDA graph for
each shape, recorded when it is first needed and replayed from then on. Padding sees only itself, is written where
nothing committed lies, and is cut off the results.
"""

from __future__ import annotations

import copy
import logging
import threading
import types
import weakref
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from mmsmart.kv_cache import RaggedCache, SlotCache, Storage, additive_mask
from mmsmart.targets.inputs import TargetOutput
from mmsmart.targets.session import TargetSession
from mmsmart.tree import TreeBatch

if TYPE_CHECKING:
    from mmsmart.targets.base import Target

logger = logging.getLogger(__name__)

NODE_SIZES = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128)
"""Nodes that a tree is padded to; beyond the last one, multiples of it."""
ROW_SIZES = (1, 2, 4, 8, 16, 32)
"""Rows that a batch is padded to; likewise."""
SLOT_STEP = 256
"""Slots of a storage are a multiple of this."""
_KEPT_SHARE = 0.25
"""Most of a GPU's memory that storages without a session may hold, for the next requests to find their graphs."""
_KEPT_BYTES = 2**29
"""Likewise of a CPU's."""
_MOVING_ROPES = ("dynamic", "longrope")
_WARM_UPS = 3
"""Runs before a recording: compiles, and lets libraries set up what they allocate once."""


def obstacle(target: Target) -> str | None:
    """Why a target cannot be compiled, to follow its name; ``None`` when it can."""
    model, decoder = target.model, target.decoder
    if not target.one_device or hasattr(model, "_hf_hook") or hasattr(decoder, "_hf_hook"):
        return "is spread over several devices"
    if getattr(model, "is_quantized", False):
        return "is quantized"
    if not isinstance(getattr(decoder, "layers", None), nn.ModuleList):
        return f"keeps its layers in another place than expected ({type(decoder).__name__})"
    rope = getattr(target.text_config, "rope_parameters", None) or {}
    if (kind := rope.get("rope_type", "default")) in _MOVING_ROPES:
        return f"has rotary positions of type {kind!r}, which change with the length"
    return None


def padded(count: int, sizes: Sequence[int]) -> int:
    """The least of the sizes that holds ``count``; multiples of the largest beyond it."""
    if count > sizes[-1]:
        return -(-count // sizes[-1]) * sizes[-1]
    return sizes[bisect_left(sizes, count)]


@dataclass(frozen=True)
class Inputs:
    """One forward's inputs for R rows of n nodes, padding included.

    Attributes:
        token_ids, positions, slots: ``[R, n]`` tokens, rotary positions, and where keys and values are written.
        lengths: ``[R]`` committed slots.
        sees: ``[R, n, n]`` a node's ancestors and itself.
    """

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    lengths: Tensor
    sees: Tensor

    def tensors(self) -> tuple[Tensor, ...]:
        """All of them, in order."""
        return self.token_ids, self.positions, self.slots, self.lengths, self.sees

    def on(self, device: torch.device) -> Inputs:
        """The same on a device."""
        return Inputs(*(tensor.to(device) for tensor in self.tensors()))


class CompiledForward:
    """A target's forward over trees, compiled; owns the storages of its sessions and the graphs recorded on them.

    Args:
        target: Whose forward it is.
        required: Raise when compiling fails; otherwise say so on the log and go on without.
    """

    def __init__(self, target: Target, *, required: bool = True) -> None:
        self._target, self._required = target, required
        self._decoder = _with_own_layers(target.decoder, target.cache_argument, _compiled_call())
        self._free: list[Storage] = []
        self._pool: Any = None
        self._kept_bytes = float(_KEPT_BYTES)
        if target.device.type == "cuda":
            self._pool = torch.cuda.graph_pool_handle()
            self._kept_bytes = _KEPT_SHARE * torch.cuda.get_device_properties(target.device).total_memory
        self._lock = threading.Lock()  # a recording takes the whole device

    def adopt(self, session: TargetSession) -> TargetSession:
        """A session that goes on from this one's prefill."""
        cache = session.cache
        needed = int(cache.lengths.max()) + NODE_SIZES[-3]
        return CompiledSession(self, session, self.moved(cache, list(range(cache.batch_size)), needed))

    def moved(self, cache: RaggedCache, rows: Sequence[int], needed: int) -> SlotCache:
        """These rows of a cache in a storage with room for ``needed`` slots."""
        shape = (padded(len(rows), ROW_SIZES), -(-needed // SLOT_STEP) * SLOT_STEP)
        source = cache.states()
        storage = self._storage(source, *shape)
        kept = cache.lengths[np.asarray(rows, np.int64)]
        storage.fill(source, rows, int(kept.max()))
        moved = SlotCache(storage, kept)
        # CPython frees a cache that is let go at once; the storage waits for the next one with its graphs.
        weakref.finalize(moved, self._take_back, storage).atexit = False
        return moved

    def forget(self) -> None:
        """Drops the memory kept for further requests, and what was recorded on it."""
        self._free.clear()

    @torch.inference_mode()
    def run(self, storage: Storage, inputs: Inputs, batch: int, nodes: int, *, keep_hidden: bool) -> TargetOutput:
        """The outputs of the first ``batch`` rows and ``nodes`` nodes."""
        with self._lock:
            hidden, logits = self._compiled_or_not(storage, inputs)
            # Cut and copied while nobody else runs: the next forward writes over what this one gave.
            kept = hidden[:batch, :nodes].clone() if keep_hidden else None
            return TargetOutput(logits[:batch, :nodes].clone(), kept)

    def _compiled_or_not(self, storage: Storage, inputs: Inputs) -> tuple[Tensor, Tensor]:
        try:
            return self._run(storage, inputs)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # the compiler's and the recorder's errors are of this kind
            if self._required:
                raise
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            logger.warning("going on without compiling %s: %s", self._target.name, reason)
        self._required, self._pool = True, None
        self._decoder = _with_own_layers(self._target.decoder, self._target.cache_argument, _call)
        self._target.compiled = None
        return self._run(storage, inputs)

    def _run(self, storage: Storage, inputs: Inputs) -> tuple[Tensor, Tensor]:
        if self._pool is None:
            return self._forward(storage, inputs.on(storage.data.device))
        nodes = inputs.slots.shape[1]
        if nodes not in storage.graphs:
            fixed = inputs.on(storage.data.device)
            storage.graphs[nodes] = Graph(lambda given: self._forward(storage, given), fixed, self._pool)
        result: tuple[Tensor, Tensor] = storage.graphs[nodes].replay(inputs)
        return result

    def _forward(self, storage: Storage, inputs: Inputs) -> tuple[Tensor, Tensor]:
        target = self._target
        embeds = target.embed_tokens(inputs.token_ids)
        mask = _mask(inputs, storage.capacity, embeds)
        storage.write_to(inputs.slots)
        positions = inputs.positions.expand(target.axes, -1, -1)
        hidden = target.forward(embeds, positions, mask, storage, decoder=self._decoder)
        return hidden, target.logits(hidden)

    def _storage(self, like: Tensor, rows: int, capacity: int) -> Storage:
        for place, storage in enumerate(self._free):
            if (storage.rows, storage.capacity) == (rows, capacity):
                return self._free.pop(place)
        try:
            return Storage(like, rows, capacity)
        except torch.OutOfMemoryError:
            if not self._free:
                raise
            self.forget()
            return Storage(like, rows, capacity)

    def _take_back(self, storage: Storage) -> None:
        self._free.append(storage)
        while sum(one.nbytes for one in self._free) > self._kept_bytes:
            self._free.pop(0)


class CompiledSession(TargetSession):
    """A session whose verification runs through a `CompiledForward`."""

    cache: SlotCache

    def __init__(self, forward: CompiledForward, session: TargetSession, cache: SlotCache) -> None:
        super().__init__(session.target, cache, session.offsets)
        self._forward = forward

    def verify(self, tree: TreeBatch, *, keep_hidden: bool = False) -> TargetOutput:
        """One forward over every node of every tree; nothing is committed yet."""
        batch, nodes = tree.token_ids.shape
        size = padded(nodes, NODE_SIZES)
        needed = int(self.lengths.max()) + size
        if needed > self.cache.storage.capacity:
            self.cache = self._forward.moved(self.cache, list(range(batch)), needed)
        inputs = self._inputs(tree, size)
        return self._forward.run(self.cache.storage, inputs, batch, nodes, keep_hidden=keep_hidden)

    def select_rows(self, rows: Sequence[int]) -> None:
        """Keeps these rows, in this order."""
        index = np.asarray(rows, np.int64)
        self.offsets = self.offsets[index]
        if padded(len(rows), ROW_SIZES) == self.cache.storage.rows:
            self.cache.select_rows(rows)
        else:
            self.cache = self._forward.moved(self.cache, rows, int(self.lengths[index].max()))

    def _inputs(self, tree: TreeBatch, size: int) -> Inputs:
        """The tree's tensors on the host, padded to ``size`` nodes and to the storage's rows."""
        batch, nodes = tree.token_ids.shape
        shape = (self.cache.storage.rows, size)
        lengths = np.zeros(shape[0], np.int64)
        lengths[:batch] = self.lengths
        token_ids, positions = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        token_ids[:batch, :nodes] = tree.token_ids
        positions[:batch, :nodes] = (self.lengths + self.offsets)[:, None] + tree.depths
        sees = np.zeros((*shape, size), np.bool_)
        sees[:, np.arange(size), np.arange(size)] = True
        sees[:batch, :nodes, :nodes] |= tree.ancestor_mask()
        arrays = (token_ids, positions, lengths[:, None] + np.arange(size), lengths, sees)
        return Inputs(*map(torch.from_numpy, arrays))


class Graph:
    """One recorded forward: inputs are copied into its own tensors, outputs lie always in the same place."""

    def __init__(self, run: Callable[[Inputs], tuple[Tensor, Tensor]], fixed: Inputs, pool: Any) -> None:
        self._inputs = fixed
        device = fixed.slots.device
        side = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            for _ in range(_WARM_UPS):
                run(self._inputs)
        torch.cuda.current_stream(device).wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        # Other threads may use the device meanwhile (an app's other requests): only this one is recorded.
        with torch.cuda.graph(self._graph, pool=pool, capture_error_mode="thread_local"):
            self._outputs = run(self._inputs)

    def replay(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """Runs the recording on these inputs."""
        for fixed, given in zip(self._inputs.tensors(), inputs.tensors(), strict=True):
            fixed.copy_(given)
        self._graph.replay()
        return self._outputs


def _mask(inputs: Inputs, capacity: int, embeds: Tensor) -> Tensor:
    """``[R, 1, n, capacity]``: a node sees its row's committed slots, its ancestors and itself."""
    nodes = inputs.slots.shape[1]
    relative = torch.arange(capacity, device=embeds.device)[None, :] - inputs.lengths[:, None]
    slot = relative.clamp(0, nodes - 1)[:, None, :].expand(-1, nodes, -1)
    drafted = ((relative >= 0) & (relative < nodes))[:, None, :] & inputs.sees.gather(2, slot)
    return additive_mask((relative < 0)[:, None, :] | drafted, embeds)[:, None]


class _OwnSlots(nn.Module):
    """A decoder layer that is called with its own slots in the place of the whole cache."""

    def __init__(self, layer: nn.Module, index: int, cache_argument: str, call: Callable[..., Any]) -> None:
        super().__init__()
        self.layer, self._index, self._argument, self._call = layer, index, cache_argument, call

    def forward(self, hidden: Tensor, **options: Any) -> Any:
        options[self._argument] = options[self._argument].layers[self._index]
        return self._call(self.layer, hidden, **options)


def _call(layer: nn.Module, hidden: Tensor, **options: Any) -> Any:
    return layer(hidden, **options)


def _compiled_call() -> Callable[..., Any]:
    """One function for every layer and every shape; compiled when it is first called, anew for one row or one node."""
    # Code of its own: torch counts compilations by code object, over all targets of a process, up to a limit.
    own = types.FunctionType(_call.__code__.replace(), _call.__globals__)
    compiled: Callable[..., Any] = torch.compile(own, dynamic=True, fullgraph=True)
    return compiled


def _with_own_layers(decoder: nn.Module, cache_argument: str, call: Callable[..., Any]) -> nn.Module:
    """The decoder over the same weights, its layers run by ``call`` on their own slots; the model stays as it is."""
    twin = _twin(decoder)
    layers = twin.layers
    assert isinstance(layers, nn.ModuleList)
    twin.layers = nn.ModuleList(_OwnSlots(one, i, cache_argument, call) for i, one in enumerate(layers))
    return twin


def _twin(module: nn.Module) -> nn.Module:
    """Modules of their own over shared parameters, and without the numbers that tell layers apart."""
    twin = copy.copy(module)
    twin._modules = {name: child and _twin(child) for name, child in module._modules.items()}
    if hasattr(twin, "layer_idx"):
        twin.layer_idx = 0  # type: ignore[assignment]
    return twin
