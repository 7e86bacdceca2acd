"""An EAGLE head on a CPU, with its weights rearranged once for few rows; see `mmsmart.packed`."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from mmsmart.drafters.head import EagleHead
from mmsmart.kv_cache import RaggedCache
from mmsmart.packed import PackedLayer, PackedLinear, worthwhile

_CACHES = 16 * 2**20
"""A head of fewer bytes is taken to stay in the processor's caches from one step to the next."""


class PackedHead:
    """Runs a head that is done with learning; same calls as `EagleHead`, equal up to the order of summation."""

    def __init__(self, head: EagleHead) -> None:
        attention = head.layer.self_attn
        self._head, self._attention = head, attention
        small = sum(parameter.nbytes for parameter in head.parameters()) < _CACHES
        self._fc = PackedLinear([head.fc.weight], [head.fc.bias], cached=small)
        norms = (head.layer.input_layernorm, head.layer.post_attention_layernorm)
        self._layer = PackedLayer(attention, head.layer.mlp, norms, attention.dim, cached=small)
        self._table = head.embed_tokens.weight.detach()

    def fuse(self, token_ids: Tensor, hidden: Tensor) -> Tensor:
        """See `EagleHead.fuse`."""
        embedded = functional.embedding(token_ids.clamp(max=len(self._table) - 1), self._table)
        return self._fc(torch.cat([embedded, hidden], dim=-1))

    def __call__(
        self, rows: Tensor, positions: Tensor, mask: Tensor | None, cache: RaggedCache, last: Tensor | None = None
    ) -> Tensor:
        """See `EagleHead.forward`."""
        cosines, sines = self._attention.rotation(positions, cache.view_length, rows.dtype)
        rotation = cosines.transpose(1, 2), sines.transpose(1, 2)
        return self._layer.forward(rows, rotation, mask, cache.layers[0], last)


def served(head: EagleHead) -> EagleHead | PackedHead:
    """The head as it drafts fastest."""
    return PackedHead(head) if worthwhile(list(head.parameters())) else head
