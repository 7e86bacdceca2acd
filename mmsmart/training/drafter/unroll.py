"""Training-time unrolling: the head is fed its own outputs for several steps, as in a chain of drafts.

At inference a chain that starts behind true row t sees the true rows up to t and then its own steps. In training all
starts run at once: at step s row j stands for the chain that started behind true row j - s, so it sees the true rows up
to j - s, and of step i the row j - s + i. Its hidden input is the previous step's output at row j - 1, which stands for
h_j. After HASS (arXiv 2408.15766) and EAGLE-3 (arXiv 2503.01840).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from mmsmart.drafters.head import EagleHead, HeadAttention
from mmsmart.rotary import rotate


class UnrolledHead(nn.Module):
    """A head in training; its forward returns the outputs of every step."""

    def __init__(self, head: EagleHead, steps: int) -> None:
        """Takes a head and the number of steps, 1 being plain teacher forcing."""
        super().__init__()
        self.head = head
        self.steps = steps

    def forward(self, token_ids: Tensor, states: Tensor, is_picture: Tensor) -> list[Tensor]:
        """True inputs as in `Rows` to ``[B, n, H]`` a step; at step s the first s rows mean nothing."""
        outputs: list[Tensor] = []
        states = states.to(self.head.fc.weight.dtype)  # the target may be in a narrower one
        memory, hidden = _Memory(), states
        for step in range(self.steps):
            fused = torch.where(is_picture[:, :, None], states, self.head.fuse(token_ids, hidden).to(states.dtype))
            outputs.append(_layer(self.head, fused, memory, step))
            hidden = functional.pad(outputs[-1], (0, 0, 1, 0))[:, :-1]
        return outputs


class _Memory:
    """Keys and values ``[B, heads, n, dim]`` of the steps so far."""

    def __init__(self) -> None:
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []


def _layer(head: EagleHead, rows: Tensor, memory: _Memory, step: int) -> Tensor:
    layer = head.layer
    normed = rows if layer.input_layernorm is None else layer.input_layernorm(rows)
    rows = rows + _attention(layer.self_attn, normed, memory, step)
    output: Tensor = rows + layer.mlp(layer.post_attention_layernorm(rows))
    return output


def _attention(attention: HeadAttention, rows: Tensor, memory: _Memory, step: int) -> Tensor:
    queries, keys, values = attention.projected(rows)
    positions = torch.arange(rows.shape[1], device=rows.device)[None]
    cos, sin = attention.rotation(positions, rows.shape[1], rows.dtype)
    queries, keys = rotate(queries, cos, sin), rotate(keys, cos, sin)
    repeats = queries.shape[1] // keys.shape[1]
    memory.keys.append(keys.repeat_interleave(repeats, dim=1))
    memory.values.append(values.repeat_interleave(repeats, dim=1))
    attended = _attend(queries, memory, step)
    output: Tensor = attention.o_proj(attended.transpose(1, 2).flatten(2))
    return output


def _attend(queries: Tensor, memory: _Memory, step: int) -> Tensor:
    """Row j over the true rows up to j - step, and over row j - step + i of every own step i."""
    count, scale = queries.shape[2], queries.shape[3] ** -0.5
    index = torch.arange(count, device=queries.device)
    hidden = index[None, :] > index[:, None] - step
    scores = (queries @ memory.keys[0].transpose(-1, -2) * scale).masked_fill(hidden, -torch.inf)
    own = [(queries * _shifted(memory.keys[i], step - i)).sum(-1, keepdim=True) * scale for i in range(1, step + 1)]
    wide = torch.promote_types(queries.dtype, torch.float32)
    weights = torch.cat([scores, *own], dim=-1).to(wide).softmax(dim=-1).to(queries.dtype)
    attended: Tensor = weights[..., :count] @ memory.values[0]
    for i in range(1, step + 1):
        attended = attended + weights[..., count + i - 1, None] * _shifted(memory.values[i], step - i)
    return attended


def _shifted(states: Tensor, by: int) -> Tensor:
    """Row j holds what row j - by held; the first rows are zero."""
    return functional.pad(states, (0, 0, by, 0))[:, :, : states.shape[2]]
