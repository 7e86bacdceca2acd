"""Attention of a drafter's or a target's layer over keys and values of a cache."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, last: Tensor | None = None) -> Tensor:
    """Grouped attention: queries ``[B, heads, n, dim]`` to ``[B, n, heads * dim]``.

    Args:
        queries: New rows, turned.
        keys, values: ``[B, kv heads, slots, dim]``, the new rows' own included.
        mask: Additive ``[B, 1, n, slots]``; ``None`` for causal rows of an empty cache, or a single row.
        last: ``[B]`` the one row of each run that asks (n = 1 in mask and result).
    """
    if last is not None:
        queries = at_last(queries.transpose(1, 2), last).transpose(1, 2)
    attended = functional.scaled_dot_product_attention(
        queries,
        keys,
        values,
        attn_mask=mask,
        is_causal=mask is None and queries.shape[2] > 1,
        enable_gqa=queries.shape[1] != keys.shape[1],
    )
    return attended.transpose(1, 2).flatten(2)


def at_last(rows: Tensor, last: Tensor) -> Tensor:
    """Of rows ``[B, n, ...]`` those at ``[B]`` places: ``[B, 1, ...]``."""
    return rows[torch.arange(len(last), device=last.device), last][:, None]
