"""A decoder's own weights through fewer, equal operations.

A decode step of one token is a few hundred small operations, and most of its time goes into finding the way to them:
keyword arguments, decorators, configuration looked up in every layer. `LeanDecoder` walks the same modules in a plain
loop. For float32 the results are bit for bit those of the modules' own forward; norms of other dtypes are the modules'
own, as their roundings are part of the model. On a CPU the layers run on rearranged weights (`mmsmart.packed`), where
results are equal up to the order of summation. Whatever is not exactly known (another layer class, quantised or wrapped
weights, hooks, layers spread over devices) is left to transformers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from mmsmart.kv_cache import RaggedCache, Storage
from mmsmart.packed import PackedLayer, worthwhile
from mmsmart.rotary import rotate, signed

_DECODERS = frozenset({"LlamaModel", "Qwen2Model", "Qwen2VLTextModel"})
_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class LeanDecoder:
    """Runs a decoder of the Llama kind; `ready` says whether it may."""

    def __init__(self, decoder: Any) -> None:
        """Takes any decoder; one of another kind is never `ready`."""
        self._decoder = decoder
        self._known = type(decoder).__name__ in _DECODERS and decoder.config.hidden_act == "silu"
        self._layers = [_Layer(layer) for layer in decoder.layers] if self._known else []
        self._hooks = [h for m in decoder.modules() for h in (m._forward_hooks, m._forward_pre_hooks)]
        self._packed: list[PackedLayer] | None = None
        self.packing = True
        """Whether weights may be rearranged."""

    def ready(self) -> bool:
        """Whether every layer is still what it was taken for: nothing hooked, wrapped, quantised or being trained."""
        decoder = self._decoder
        if not self._known or decoder.training or decoder.config._attn_implementation != "sdpa":
            return False
        return not any(self._hooks) and all(layer.ready() for layer in self._layers)

    def forward(self, embeds: Tensor, positions: Tensor, mask: Tensor | None, cache: RaggedCache | Storage) -> Tensor:
        """Embeddings ``[B, n, H]`` at positions ``[B, n]`` (``[3, B, n]`` for M-RoPE) to last hidden states."""
        cos, sin = self._decoder.rotary_emb(embeds, position_ids=positions)
        rotation = cos[:, None], signed(sin)[:, None]
        hidden = embeds
        layers: list[Any] = self._layers
        if packed := self._packed_layers():
            layers, rotation = packed, (cos[:, :, None], rotation[1].transpose(1, 2))
        for layer, memory in zip(layers, cache.layers, strict=True):
            hidden = layer.forward(hidden, rotation, mask, memory)
        return _norm(self._decoder.norm, hidden)

    def refresh(self) -> None:
        """Looks whether weights have changed where they lie; called for every prompt."""
        if self._packed and not all(layer.watch.unchanged() for layer in self._packed):
            self._packed = None

    def packed(self) -> bool:
        """Whether the next forward runs on rearranged weights."""
        return bool(self._packed_layers())

    def _packed_layers(self) -> list[PackedLayer]:
        """The layers on rearranged weights; none where that does not go."""
        if not self.packing or torch.is_grad_enabled():
            return []
        if self._packed is None or not all(layer.watch.same() for layer in self._packed):
            weights = [weight for layer in self._layers for weight in layer.weights()]
            self._packed = [layer.packed() for layer in self._layers] if worthwhile(weights) else []
        return self._packed


class _Layer:
    """One layer's modules, found once; weights are looked up in each forward, as a user may load others."""

    def __init__(self, layer: Any) -> None:
        self._layer = layer
        self._attention, self._mlp = layer.self_attn, layer.mlp
        self._homes = {name: (self._mlp if name in _LINEAR[4:] else self._attention)._modules for name in _LINEAR}
        self._linear = {name: self._homes[name][name]._parameters for name in _LINEAR}
        self._parts = {name: self._homes[name][name] for name in _LINEAR}
        self._norms = layer.input_layernorm, layer.post_attention_layernorm
        self._dim: int = self._attention.head_dim

    def ready(self) -> bool:
        """Whether all weights are plain, and still where they were."""
        homes, layer = self._homes, self._layer._modules
        return (
            layer["self_attn"] is self._attention
            and layer["mlp"] is self._mlp
            and all(homes[name][name] is part and type(part) is nn.Linear for name, part in self._parts.items())
        )

    def forward(self, hidden: Tensor, rotation: tuple[Tensor, Tensor], mask: Tensor | None, cache: Any) -> Tensor:
        """Attention and MLP with their residuals."""
        batch, count, _ = hidden.shape
        normed = _norm(self._norms[0], hidden)
        shape = (batch, count, -1, self._dim)
        queries = rotate(self._apply("q_proj", normed).view(shape).transpose(1, 2), *rotation)
        keys = rotate(self._apply("k_proj", normed).view(shape).transpose(1, 2), *rotation)
        values = self._apply("v_proj", normed).view(shape).transpose(1, 2)
        keys, values = cache.update(keys, values)
        attended = self._attend(queries, keys, values, mask)
        hidden = hidden + self._apply("o_proj", attended.reshape(batch, count, -1))
        normed = _norm(self._norms[1], hidden)
        gated = functional.silu(self._apply("gate_proj", normed)) * self._apply("up_proj", normed)
        return hidden + self._apply("down_proj", gated)

    def weights(self) -> list[Tensor]:
        """Of the linear maps."""
        return [part.weight for part in self._parts.values()]

    def packed(self) -> PackedLayer:
        """The same layer on rearranged weights."""
        return PackedLayer(self._attention, self._mlp, self._norms, self._dim)

    def _apply(self, name: str, rows: Tensor) -> Tensor:
        parameters = self._linear[name]
        weight = parameters["weight"]
        assert weight is not None
        return functional.linear(rows, weight, parameters["bias"])

    def _attend(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """``[B, n, heads, dim]``; grouped heads are spread the way transformers does."""
        if queries.shape[1] != keys.shape[1]:
            scaling = self._attention.scaling
            spread: Tensor = sdpa_attention_forward(self._attention, queries, keys, values, mask, scaling=scaling)[0]
            return spread
        causal = mask is None and queries.shape[2] > 1
        attended = functional.scaled_dot_product_attention(queries, keys, values, mask, is_causal=causal)
        return attended.transpose(1, 2)


def _norm(module: Any, hidden: Tensor) -> Tensor:
    if hidden.dtype != torch.float32:
        own: Tensor = module.forward(hidden)
        return own
    return functional.rms_norm(hidden, hidden.shape[-1:], module._parameters["weight"], module.variance_epsilon)
