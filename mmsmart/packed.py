"""A decoder layer's matrix products on a CPU, with weights rearranged once into its kernels' own layout (oneDNN's).

Decoding multiplies a few rows, one to some sixty, by weights that stay the same, and torch's general product spends
most of that time on rearranging the weights again and again. What is prepared once here takes half to two thirds less
for such row counts, a third less in a prefill (`python eval/packed.py`), and as much memory again as the weights. In
float32 a norm's weights are multiplied into the product behind it, and sums and gates are taken by the product's own
loop; in bfloat16, where every rounding is part of the model, they stay apart.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import psutil
import torch
from torch import Tensor, nn
from torch.nn import functional

from mmsmart.attention import at_last, attend
from mmsmart.rotary import rotate

_SHARE = 0.25
"""Most of the free memory that rearranged weights may take."""
_PLACES = 3
"""Entries of each weight that are looked at to see whether it has changed."""
_ops: Any = torch.ops.mkldnn


def worthwhile(weights: Sequence[Tensor]) -> bool:
    """Whether to rearrange these: all on the CPU in a dtype that the kernels know, and enough memory is free."""
    known = all(w.device.type == "cpu" and w.dtype == weights[0].dtype and w.is_contiguous() for w in weights)
    size = sum(weight.nbytes for weight in weights)
    return known and supported(weights[0].dtype) and size < _SHARE * psutil.virtual_memory().available


@functools.cache
def supported(dtype: torch.dtype) -> bool:
    """Whether this machine and torch version multiply by rearranged weights, found out by doing it."""
    if dtype not in (torch.float32, torch.bfloat16) or not torch.backends.mkldnn.is_available():
        return False
    rows, weight = torch.linspace(-1, 1, 64).view(2, 32).to(dtype), torch.linspace(-1, 2, 512).view(16, 32).to(dtype)
    try:
        if dtype == torch.bfloat16 and not _ops._is_mkldnn_bf16_supported():
            return False
        found = PackedLinear([weight])(rows)
    except (AttributeError, RuntimeError):  # private to torch: they may be another day's names
        return False
    return torch.allclose(found, functional.linear(rows, weight), rtol=1e-2, atol=1e-2)


class PackedLinear:
    """``x W^T + b``, also of several weights over one another."""

    def __init__(
        self,
        weights: Sequence[Tensor],
        biases: Sequence[Tensor | None] = (),
        scale: Tensor | None = None,
        *,
        cached: bool = False,
    ) -> None:
        """Rearranges.

        Args:
            weights: ``[out, in]`` each.
            biases: ``[out]`` each, all or none.
            scale: ``[in]`` multiplied into the weights.
            cached: The weights are few enough to stay in the processor's caches: torch is faster for a single row then.
        """
        with torch.inference_mode():
            weight = torch.cat([weight.detach() for weight in weights])
            weight = weight if scale is None else weight * scale.detach()
            self._weight = _ops._reorder_linear_weight(weight)
            self._single = weight if cached else None
            given = [bias.detach() for bias in biases if bias is not None]
            self._bias = torch.cat(given) if given else None

    def __call__(self, rows: Tensor) -> Tensor:
        """Rows ``[..., in]`` to ``[..., out]``."""
        if self._single is not None and rows.numel() == rows.shape[-1]:
            return functional.linear(rows, self._single, self._bias)
        result: Tensor = _ops._linear_pointwise(rows, self._weight, self._bias, "none", [], "")
        return result

    def silu(self, rows: Tensor) -> Tensor:
        """SiLU of the product."""
        if self._single is not None and rows.numel() == rows.shape[-1]:
            return functional.silu(functional.linear(rows, self._single, self._bias), inplace=True)
        result: Tensor = _ops._linear_pointwise(rows, self._weight, self._bias, "swish", [], "")
        return result

    def times(self, rows: Tensor, other: Tensor) -> Tensor:
        """The product's entries times those of ``other`` ``[..., out]``."""
        return self._with(rows, other, "mul", torch.mul)

    def plus(self, rows: Tensor, other: Tensor) -> Tensor:
        """The product plus ``other`` ``[..., out]``."""
        return self._with(rows, other, "add", torch.add)

    def _with(self, rows: Tensor, other: Tensor, name: str, operation: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        if self._single is not None and rows.numel() == rows.shape[-1]:
            return operation(functional.linear(rows, self._single, self._bias), other)
        result: Tensor = _ops._linear_pointwise(rows, other, self._weight, self._bias, name)
        return result


class Watch:
    """Notices that weights are others than before."""

    def __init__(self, parameters: Sequence[tuple[Any, str]]) -> None:
        """Takes ``(module, name)`` of every weight."""
        self._homes = [(module._parameters, name) for module, name in parameters]
        self._known = [home[name] for home, name in self._homes]
        self._samples = [_Sample(weight) for weight in self._known if weight is not None]

    def same(self) -> bool:
        """Whether they are the same objects: quick, for every forward."""
        return all(map(operator.is_, [home[name] for home, name in self._homes], self._known))

    def unchanged(self) -> bool:
        """Whether their memory and some of their entries are the same too: for every prompt."""
        return self.same() and all(sample.unchanged() for sample in self._samples)


class _Sample:
    """Where a weight lies, and a few of its entries: writing through ``.data`` leaves no other trace."""

    def __init__(self, weight: Tensor) -> None:
        flat = weight.detach().view(-1)
        self._weight, self._entries = weight, flat[:: max(1, flat.numel() // _PLACES)][:_PLACES]
        self._mark = self._now()

    def unchanged(self) -> bool:
        return self._now() == self._mark

    def _now(self) -> tuple[Any, ...]:
        weight = self._weight
        return weight.data_ptr(), 0 if weight.is_inference() else weight._version, self._entries.tolist()


class Projection:
    """A linear module, through a rearranged copy where that is possible; anything else is called as it is.

    Attributes:
        module: The module itself.
        packing: Whether its weights may be rearranged.
    """

    def __init__(self, module: Any) -> None:
        self.module = module
        self.packing = True
        self._source: Tensor | None = None  # what was last looked at
        self._packed: PackedLinear | None = None
        self._watch: Watch | None = None

    @property
    def weight(self) -> Tensor:
        """The module's."""
        weight: Tensor = self.module.weight
        return weight

    def refresh(self) -> None:
        """Looks whether the weights have changed; to be called now and then."""
        if self._watch is not None and not self._watch.unchanged():
            self._source = None

    def __call__(self, rows: Tensor) -> Tensor:
        """``[..., in]`` to ``[..., out]``."""
        if not self.packing or not plain(self.module) or torch.is_grad_enabled():
            result: Tensor = self.module(rows)
            return result
        weight = self.weight
        if self._source is not weight or (self._watch is not None and not self._watch.same()):
            self._source, self._packed, self._watch = weight, None, None
            if worthwhile([weight]):
                self._watch = Watch([(self.module, "weight"), (self.module, "bias")])
                self._packed = PackedLinear([weight], [self.module.bias])
        if self._packed is None or rows.dtype != weight.dtype:
            result = self.module(rows)
            return result
        return self._packed(rows)


def plain(module: Any) -> bool:
    """Whether a module is a linear map and nothing else."""
    return type(module) is nn.Linear and not module._forward_hooks and not module._forward_pre_hooks


class PackedLayer:
    """A layer of the Llama kind: attention and gated MLP with their residuals."""

    def __init__(self, attention: Any, mlp: Any, norms: Sequence[Any], dim: int, *, cached: bool = False) -> None:
        """Rearranges a layer's weights.

        Args:
            attention, mlp: Modules with the usual seven linear maps.
            norms: The RMS norms before them; ``None`` for none.
            dim: Of a head.
            cached: See `PackedLinear`.
        """
        maps = [getattr(attention, f"{name}_proj") for name in "qkvo"]
        maps += [getattr(mlp, f"{name}_proj") for name in ("gate", "up", "down")]
        query, key, value, output, gate, up, down = maps
        self.watch = Watch([(m, n) for m in maps for n in ("weight", "bias")] + [(n, "weight") for n in norms if n])
        self._fused = query.weight.dtype == torch.float32
        self._norms, self._dim = norms, dim
        first, second = (norm.weight if norm is not None and self._fused else None for norm in norms)

        def packed(*some: nn.Linear, scale: Tensor | None = None) -> PackedLinear:
            return PackedLinear([m.weight for m in some], [m.bias for m in some], scale, cached=cached)

        self._projection = packed(query, key, value, scale=first)
        self._gate, self._up = packed(gate, scale=second), packed(up, scale=second)
        self._output, self._down = packed(output), packed(down)
        self._heads = query.weight.shape[0] // dim, key.weight.shape[0] // dim
        self._epsilon = [torch.tensor([_epsilon(norm)]) if norm is not None else None for norm in norms]

    def forward(
        self,
        hidden: Tensor,
        rotation: tuple[Tensor, Tensor],
        mask: Tensor | None,
        cache: Any,
        last: Tensor | None = None,
    ) -> Tensor:
        """Hidden states ``[B, n, H]`` to those behind the layer.

        Args:
            hidden: Input.
            rotation: Cosines and signed sines ``[B, n, 1, dim]``.
            mask: Additive ``[B, 1, n, slots]``; ``None`` for causal rows of an empty cache, or a single row.
            cache: The layer's ``update(keys, values)``, which returns all that attention may see.
            last: ``[B]`` one row of each run that is asked for alone (n = 1 in mask and result); all are remembered.
        """
        batch, count, _ = hidden.shape
        queries, keys = self._heads
        rows = self._projection(self._normed(0, hidden)).view(batch, count, -1, self._dim)
        turned = rotate(rows[:, :, : queries + keys], *rotation).transpose(1, 2)
        seen_keys, seen_values = cache.update(turned[:, queries:], rows[:, :, queries + keys :].transpose(1, 2))
        attended = attend(turned[:, :queries], seen_keys, seen_values, mask, last)
        hidden = self._added(self._output, attended, hidden if last is None else at_last(hidden, last))
        normed = self._normed(1, hidden)
        if self._fused:
            gated = self._up.times(normed, self._gate.silu(normed))
        else:
            gated = functional.silu(self._gate(normed)) * self._up(normed)
        return self._added(self._down, gated, hidden)

    def _added(self, linear: PackedLinear, rows: Tensor, hidden: Tensor) -> Tensor:
        return linear.plus(rows, hidden) if self._fused else hidden + linear(rows)

    def _normed(self, place: int, hidden: Tensor) -> Tensor:
        epsilon = self._epsilon[place]
        if epsilon is None:
            return hidden
        if not self._fused:
            own: Tensor = self._norms[place].forward(hidden)
            return own
        length = torch.linalg.vector_norm(hidden, dim=-1, keepdim=True)
        return hidden * torch.addcmul(epsilon, length, length, value=1 / hidden.shape[-1]).rsqrt_()


def _epsilon(norm: Any) -> float:
    return float(getattr(norm, "eps", None) or norm.variance_epsilon)
