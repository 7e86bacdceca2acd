"""Attention masks of tree forwards, built on the host: a few kilobytes, one copy, no small device operations."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmsmart.tree import Bools, Ints


def tree_mask(lengths: Ints, sees: Bools, view_length: int, like: Tensor) -> Tensor:
    """An additive mask ``[B, 1, n, slots]`` (0 where visible), in the dtype and on the device of ``like``.

    Args:
        lengths: ``[B]`` slots of each row that every query sees; its tree slots come behind them.
        sees: ``[B, n, m]`` which of the m tree slots each query sees.
        view_length: Slots that attention looks at.
        like: Gives dtype and device.
    """
    batch, queries, count = sees.shape
    kind: type[np.floating] = np.float64 if like.dtype == torch.float64 else np.float32
    hidden = kind(torch.finfo(like.dtype).min)
    mask: NDArray[np.floating] = np.full((batch, queries, view_length), hidden, kind)
    drafted = np.where(sees, kind(0), hidden)
    if (lengths == lengths[0]).all():
        mask[:, :, : lengths[0]] = 0
        mask[:, :, lengths[0] : lengths[0] + count] = drafted
    else:
        mask[np.broadcast_to((np.arange(view_length) < lengths[:, None])[:, None], mask.shape)] = 0
        rows, steps = np.arange(batch)[:, None, None], np.arange(queries)[None, :, None]
        mask[rows, steps, lengths[:, None, None] + np.arange(count)] = drafted
    return torch.from_numpy(mask[:, None]).to(like.device, like.dtype)
