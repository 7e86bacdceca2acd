"""Rearranged weights: the same products, refused where they do not help, noticed where they are old."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from mmsmart import packed
from mmsmart.packed import PackedLinear, Projection, Watch, supported, worthwhile

needs_kernels = pytest.mark.skipif(not supported(torch.float32), reason="no oneDNN here")


def some(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@needs_kernels
@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(32,), (1, 1, 32), (1, 9, 32), (3, 5, 32), (200, 32)])
def test_the_products_are_those_of_the_weights(shape: tuple[int, ...], bias: bool, cached: bool) -> None:
    weights, scale = [some(24, 32), some(8, 32)], some(32)
    biases = [some(24), some(8)] if bias else [None, None]
    linear, rows, other = PackedLinear(weights, biases, scale, cached=cached), some(*shape), some(*shape[:-1], 32)
    whole = torch.cat([b for b in biases if b is not None]) if bias else None
    product = functional.linear(rows, torch.cat(weights) * scale, whole)
    close = {"rtol": 1e-5, "atol": 1e-4}
    with torch.inference_mode():
        torch.testing.assert_close(linear(rows), product, **close)
        torch.testing.assert_close(linear.silu(rows), functional.silu(product), **close)
        torch.testing.assert_close(linear.times(rows, other), product * other, **close)
        torch.testing.assert_close(linear.plus(rows, other), product + other, **close)


@needs_kernels
def test_rows_that_do_not_lie_side_by_side_are_read_right() -> None:
    weight, rows = some(16, 32), some(2, 7, 64)[..., 16:48]
    torch.testing.assert_close(PackedLinear([weight])(rows), functional.linear(rows, weight), rtol=1e-5, atol=1e-5)


def test_only_what_helps_is_rearranged(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not worthwhile([some(4, 4).double()])
    assert not worthwhile([some(4, 4).half()])
    assert not worthwhile([torch.empty(4, 4, device="meta")])
    assert not worthwhile([some(4, 4), some(4, 4).bfloat16()])
    assert not worthwhile([some(4, 8).T])
    assert worthwhile([some(4, 4)]) == supported(torch.float32)
    monkeypatch.setattr(packed.psutil, "virtual_memory", lambda: type("Memory", (), {"available": 100}))
    assert not worthwhile([some(4, 4)])


def test_a_torch_without_the_kernels_does_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "_ops", object())
    supported.cache_clear()
    try:
        assert not supported(torch.float32)
        module = nn.Linear(8, 4)
        with torch.inference_mode():
            assert torch.equal(Projection(module)(some(3, 8)), module(some(3, 8)))
    finally:
        supported.cache_clear()


@needs_kernels
def test_a_projection_follows_its_module() -> None:
    module: Any = nn.Linear(32, 16).requires_grad_(False)
    projection, rows = Projection(module), some(3, 32)

    def same() -> bool:
        with torch.inference_mode():
            return torch.allclose(projection(rows), module(rows), atol=1e-5)

    assert same()
    module.weight = nn.Parameter(some(16, 32), requires_grad=False)
    assert same()
    module.weight.mul_(2)
    assert not same()
    projection.refresh()
    assert same()
    handle = module.register_forward_hook(lambda *_: torch.zeros(3, 16))
    assert same()
    handle.remove()
    assert projection.weight is module.weight


@pytest.mark.parametrize("way", ["in place", "data", "other data", "other object", "not a number"])
def test_changed_weights_are_noticed(way: str) -> None:
    module = nn.Linear(32, 16).requires_grad_(False)
    watch = Watch([(module, "weight"), (module, "bias")])
    assert watch.same()
    assert watch.unchanged()
    if way == "in place":
        module.weight.add_(1)
    elif way == "data":  # as adapters are merged; it leaves no trace in the version
        module.weight.data += 1
    elif way == "other data":
        module.weight.data = module.weight.data.clone()
    elif way == "not a number":
        module.weight.data.fill_(torch.nan)
    else:
        module.weight = nn.Parameter(module.weight.clone())
        assert not watch.same()
    assert not watch.unchanged()


def test_a_projection_off_the_cpu_is_called_as_it_is() -> None:
    module = nn.Linear(8, 4, device="meta").requires_grad_(False)
    projection = Projection(module)
    with torch.inference_mode():
        for _ in range(2):
            assert projection(torch.empty(3, 8, device="meta")).shape == (3, 4)
            projection.refresh()
