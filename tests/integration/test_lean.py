"""The lean decoder loop: the modules' own numbers to the last bit, and no guessing when something is unusual."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mmsmart.api import load
from mmsmart.drafters.packed_head import PackedHead
from mmsmart.kv_cache import RaggedCache
from mmsmart.packed import supported
from mmsmart.targets.base import Target
from mmsmart.targets.loading import load_target

FOLDERS = ("llava_folder", "qwen2_vl_folder", "llama_folder")


@pytest.fixture(params=FOLDERS)
def folder(request: pytest.FixtureRequest) -> Path:
    path: Path = request.getfixturevalue(request.param)
    return path


def twice(target: Target, rows: int, counts: tuple[int, ...], *, plain: bool) -> list[Tensor]:
    """Last hidden states of forwards of ``counts`` tokens one behind the other."""
    config = target.text_config
    cache = RaggedCache(config.num_hidden_layers, rows, capacity=8)
    generator = torch.Generator().manual_seed(0)
    results = []
    decoder: Any = target.decoder if plain else None
    for count in counts:
        embeds = torch.randn(rows, count, config.hidden_size, generator=generator).to(target.dtype)
        start = int(cache.lengths[0])
        positions = torch.arange(start, start + count).expand(target.axes, rows, -1)
        cache.begin(count, target.device)
        with torch.inference_mode():
            results.append(
                target.forward(
                    embeds,
                    positions,
                    None if start == 0 or count == 1 else mask(start, count, target.dtype),
                    cache,
                    decoder,
                )
            )
        cache.advance([count] * rows)
    return results


def mask(start: int, count: int, dtype: torch.dtype) -> Tensor:
    hidden = torch.full((count, start + count), torch.finfo(dtype).min, dtype=dtype)
    return hidden.triu(start + 1)[None, None]


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_results_are_those_of_the_modules_bit_by_bit(folder: Path, dtype: str) -> None:
    target = load_target(str(folder), device="cpu", dtype=dtype)
    assert target._lean.ready()
    target._lean.packing = False
    for lean, own in zip(
        twice(target, 2, (7, 1, 4), plain=False), twice(target, 2, (7, 1, 4), plain=True), strict=True
    ):
        assert torch.equal(lean, own)


@pytest.mark.skipif(not supported(torch.float32), reason="no oneDNN here")
@pytest.mark.parametrize(("dtype", "error"), [("float32", 1e-5), ("bfloat16", 3e-2)])
def test_rearranged_weights_give_the_same_up_to_the_order_of_sums(folder: Path, dtype: str, error: float) -> None:
    target = load_target(str(folder), device="cpu", dtype=dtype)
    assert target.packed
    for lean, own in zip(
        twice(target, 2, (7, 1, 4), plain=False), twice(target, 2, (7, 1, 4), plain=True), strict=True
    ):
        assert (lean - own).abs().max() <= error * own.abs().max()


def test_a_hook_a_wrapped_layer_and_training_are_left_to_transformers(folder: Path) -> None:
    target = load_target(str(folder), device="cpu", dtype="float32")
    seen: list[str] = []
    layer: Any = target.decoder.layers[0]
    handle = layer.mlp.register_forward_hook(lambda *_: seen.append("mlp"))
    assert not target._lean.ready()
    twice(target, 1, (3,), plain=False)
    assert seen == ["mlp"]
    handle.remove()
    assert target._lean.ready()

    own = layer.self_attn.q_proj
    layer.self_attn.q_proj = nn.Sequential(own)  # as an adapter would
    assert not target._lean.ready()
    layer.self_attn.q_proj = own
    assert target._lean.ready()
    target.model.train()
    assert not target._lean.ready()


def test_weights_loaded_later_are_used(folder: Path) -> None:
    target = load_target(str(folder), device="cpu", dtype="float32")
    before = twice(target, 1, (3,), plain=False)[0]
    layer: Any = target.decoder.layers[0]
    layer.mlp.down_proj.weight = nn.Parameter(torch.zeros_like(layer.mlp.down_proj.weight))
    after = twice(target, 1, (3,), plain=False)[0]
    assert not torch.allclose(before, after)
    own = twice(target, 1, (3,), plain=True)[0]
    assert torch.allclose(after, own, atol=1e-5)
    layer.mlp.up_proj.weight.data *= 3  # what merging an adapter does: noticed with the next prompt
    layer.self_attn.v_proj.weight.data *= 3
    target._lean.refresh()
    own = twice(target, 1, (3,), plain=True)[0]
    assert not torch.allclose(after, own, atol=1e-5)
    assert torch.allclose(twice(target, 1, (3,), plain=False)[0], own, atol=1e-5)


def test_packing_can_be_declined_and_results_are_transformers_own_then(folder: Path) -> None:
    engine = load(str(folder), drafter="ngram", policy="none", device="cpu", dtype="float32", pack=False)
    assert not engine.target.packed
    packed = load(str(folder), drafter="ngram", policy="none", device="cpu", dtype="float32")
    assert packed.target.packed == supported(torch.float32)
    for lean, own in zip(
        twice(engine.target, 1, (5, 1), plain=False), twice(engine.target, 1, (5, 1), plain=True), strict=True
    ):
        assert torch.equal(lean, own)
    hidden = torch.randn(3, engine.target.text_config.hidden_size)
    with torch.inference_mode():
        assert torch.equal(engine.target.logits(hidden), engine.target.head.module(hidden))


def test_a_drafter_is_packed_as_its_target_is() -> None:
    for pack in (True, False):
        drafter: Any = load("tiny-llava", policy="none", device="cpu", dtype="float32", pack=pack).drafter
        assert isinstance(drafter.served, PackedHead) == (pack and supported(torch.float32))
