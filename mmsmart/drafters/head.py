"""The EAGLE-1 head: one Llama layer that continues the target's last hidden states (Li et al., 2024, arXiv 2401.15077).

Row j pairs the target's hidden state h_j with the embedding of token j + 1 and predicts token j + 2 through the
target's own head; its output g_j stands for h_{j+1}:  ``g = Layer(fc([E(x_{j+1}); h_j]))``. Nothing follows the layer,
no norm and no head. Module names are the published checkpoints' keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from mmsmart.attention import at_last, attend
from mmsmart.kv_cache import RaggedCache
from mmsmart.rotary import rotate, signed


@dataclass(frozen=True)
class HeadConfig:
    """Sizes and switches of a head, read from a checkpoint's config and keys.

    Attributes:
        hidden_size, intermediate_size, num_heads, num_kv_heads, head_dim, vocab_size: Sizes.
        rms_norm_eps: Of the layer's norms.
        rope_theta: Base of the rotary positions, which are one-dimensional for every family.
        fc_bias, qkv_bias, input_layernorm: Whether the checkpoint has them.
    """

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    fc_bias: bool = True
    qkv_bias: bool = False
    input_layernorm: bool = False


class EagleHead(nn.Module):
    """Fuses next-token embeddings with hidden states and runs them through one layer with a cache."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.config = config
        hidden = config.hidden_size
        self.embed_tokens = nn.Embedding(config.vocab_size, hidden)
        self.fc = nn.Linear(2 * hidden, hidden, bias=config.fc_bias)
        self.layers = nn.ModuleList([HeadLayer(config)])

    @property
    def layer(self) -> HeadLayer:
        """The only layer."""
        layer = self.layers[0]
        assert isinstance(layer, HeadLayer)
        return layer

    def fuse(self, token_ids: Tensor, hidden: Tensor) -> Tensor:
        """``fc([E(next token); hidden])``: ids ``[...]`` and hidden ``[..., H]`` to ``[..., H]``."""
        fused: Tensor = self.fc(torch.cat([self.embed(token_ids), hidden], dim=-1))
        return fused

    def embed(self, token_ids: Tensor) -> Tensor:
        """``[...]`` to ``[..., H]``; an id that the table lacks is read as its last row rather than refused."""
        rows: Tensor = self.embed_tokens(token_ids.clamp(max=self.embed_tokens.num_embeddings - 1))
        return rows

    def forward(
        self, rows: Tensor, positions: Tensor, mask: Tensor | None, cache: RaggedCache, last: Tensor | None = None
    ) -> Tensor:
        """Fused rows ``[B, n, H]`` at ``[B, n]`` positions to outputs ``[B, n, H]``; writes ``n`` slots of the cache.

        Args:
            rows: From `fuse`, or projected picture embeddings.
            positions: Drafter positions.
            mask: Additive ``[B, 1, n, slots]``; ``None`` for causal rows of an empty cache, or a single row.
            cache: One layer, already told by `RaggedCache.begin` how many rows come.
            last: ``[B]`` one row of each run that is asked for alone (n = 1 in mask and result); all are remembered.
        """
        output: Tensor = self.layer(rows, positions, mask, cache, last)
        return output


class HeadLayer(nn.Module):
    """A Llama layer, with or without the norm before its attention."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = nn.RMSNorm(size, eps=eps) if config.input_layernorm else None
        self.self_attn = HeadAttention(config)
        self.post_attention_layernorm = nn.RMSNorm(size, eps=eps)
        self.mlp = _MLP(size, config.intermediate_size)

    def forward(
        self, rows: Tensor, positions: Tensor, mask: Tensor | None, cache: RaggedCache, last: Tensor | None = None
    ) -> Tensor:
        """See `EagleHead.forward`."""
        normed = rows if self.input_layernorm is None else self.input_layernorm(rows)
        attended = self.self_attn(normed, positions, mask, cache, last)
        rows = (rows if last is None else at_last(rows, last)) + attended
        output: Tensor = rows + self.mlp(self.post_attention_layernorm(rows))
        return output


class HeadAttention(nn.Module):
    """Grouped attention with rotary positions over a `RaggedCache` of one layer."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.dim = config.num_heads, config.num_kv_heads, config.head_dim
        hidden, bias = config.hidden_size, config.qkv_bias
        self.q_proj = nn.Linear(hidden, self.heads * self.dim, bias=bias)
        self.k_proj = nn.Linear(hidden, self.kv_heads * self.dim, bias=bias)
        self.v_proj = nn.Linear(hidden, self.kv_heads * self.dim, bias=bias)
        self.o_proj = nn.Linear(self.heads * self.dim, hidden, bias=False)
        exponents = torch.arange(0, self.dim, 2, dtype=torch.float64, device="cpu") / self.dim
        self._frequencies = (config.rope_theta**-exponents).tolist()  # plain numbers: no buffer to load, cast or place
        self._table: Tensor | None = None

    def forward(
        self, rows: Tensor, positions: Tensor, mask: Tensor | None, cache: RaggedCache, last: Tensor | None = None
    ) -> Tensor:
        """Attends over the cache, its own ``n`` new rows included; see `EagleHead.forward`."""
        queries, keys, values = self.projected(rows)
        cos, sin = self.rotation(positions, cache.view_length, rows.dtype)
        keys, values = cache.update(rotate(keys, cos, sin), values, 0)
        output: Tensor = self.o_proj(attend(rotate(queries, cos, sin), keys, values, mask, last))
        return output

    def projected(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values ``[B, heads, n, dim]`` of rows ``[B, n, H]``, not yet rotated."""
        batch, count, _ = rows.shape
        queries = self.q_proj(rows).view(batch, count, self.heads, self.dim).transpose(1, 2)
        keys = self.k_proj(rows).view(batch, count, self.kv_heads, self.dim).transpose(1, 2)
        values = self.v_proj(rows).view(batch, count, self.kv_heads, self.dim).transpose(1, 2)
        return queries, keys, values

    def rotation(self, positions: Tensor, limit: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines ``[B, 1, n, dim]`` of positions ``[B, n]`` below ``limit``, read from a table."""
        table = self._table
        if table is None or len(table) < limit or table.dtype != dtype or table.device != positions.device:
            table = self._table = self._tabulated(2 * limit, dtype, positions.device)
        cosines, sines = table[positions][:, None].unbind(-2)
        return cosines, sines

    @torch.inference_mode(False)
    @torch.no_grad()
    def _tabulated(self, count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Cosines and signed sines ``[count, 2, dim]``; no inference tensor, as training uses them too."""
        wide = torch.promote_types(dtype, torch.float32)
        frequencies = torch.tensor(self._frequencies, dtype=wide, device=device)
        angles = (torch.arange(count, device=device)[:, None].to(wide) * frequencies).repeat(1, 2)
        return torch.stack([angles.cos(), signed(angles.sin())], dim=1).to(dtype)


class _MLP(nn.Module):
    def __init__(self, hidden: int, intermediate: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, intermediate, bias=False)
        self.up_proj = nn.Linear(hidden, intermediate, bias=False)
        self.down_proj = nn.Linear(intermediate, hidden, bias=False)

    def forward(self, rows: Tensor) -> Tensor:
        output: Tensor = self.down_proj(functional.silu(self.gate_proj(rows)) * self.up_proj(rows))
        return output
