import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from mmsmart.drafters.checkpoints import head_config, load_head, read_checkpoint
from mmsmart.drafters.head import EagleHead, HeadConfig
from mmsmart.errors import ModelError

SMALL = HeadConfig(16, 24, num_heads=4, num_kv_heads=2, head_dim=4, vocab_size=20)
CONFIG: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "vocab_size": 20,
    "model_type": "llava",
}

# Keys and shapes of the published drafters (drafters.md, section 1.3), written out.
LLAVA = {"heads": 32, "kv": 32, "hidden": 4096, "mlp": 11008, "vocab": 32000, "qwen": False}
PUBLISHED = {
    "MSD-LLaVA1.5-7B": (LLAVA, 367_009_792),
    "MSD-LLaVA1.5-13B": (LLAVA | {"heads": 40, "kv": 40, "hidden": 5120, "mlp": 13824}, 533_473_280),
    "MSD-Qwen2VL-7B": (
        {"heads": 28, "kv": 4, "hidden": 3584, "mlp": 18944, "vocab": 152064, "qwen": True},
        803_748_864,
    ),
}


def published_shapes(size: dict[str, Any]) -> dict[str, list[int]]:
    hidden, mlp, kv = size["hidden"], size["mlp"], size["kv"] * 128
    shapes = {
        "embed_tokens.weight": [size["vocab"], hidden],
        "fc.weight": [hidden, 2 * hidden],
        "fc.bias": [hidden],
        "layers.0.self_attn.q_proj.weight": [hidden, hidden],
        "layers.0.self_attn.k_proj.weight": [kv, hidden],
        "layers.0.self_attn.v_proj.weight": [kv, hidden],
        "layers.0.self_attn.o_proj.weight": [hidden, hidden],
        "layers.0.mlp.gate_proj.weight": [mlp, hidden],
        "layers.0.mlp.up_proj.weight": [mlp, hidden],
        "layers.0.mlp.down_proj.weight": [hidden, mlp],
        "layers.0.post_attention_layernorm.weight": [hidden],
    }
    if size["qwen"]:
        shapes["layers.0.input_layernorm.weight"] = [hidden]
        shapes |= {f"layers.0.self_attn.{n}_proj.bias": [hidden if n == "q" else kv] for n in "qkv"}
    return shapes


class Target:
    name = "tiny"
    packing = True

    def __init__(self, hidden: int = 16, vocab: int = 24, embedding: torch.Tensor | None = None) -> None:
        self.embed_tokens = torch.nn.Embedding(vocab, hidden)
        if embedding is not None:
            self.embed_tokens.weight.data[: len(embedding)] = embedding
        self.head = torch.nn.Linear(hidden, vocab, bias=False)
        self.vocab_size, self.device, self.dtype = vocab, torch.device("cpu"), torch.float32


def written(folder: Path, *, changes: dict[str, Any] | None = None, settings: HeadConfig = SMALL) -> EagleHead:
    torch.manual_seed(0)
    head = EagleHead(settings)
    (folder / "config.json").write_text(json.dumps(CONFIG | (changes or {})))
    save_file(head.state_dict(), folder / "model.safetensors")
    return head


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes_have_the_published_keys_and_shapes(name: str) -> None:
    size, parameters = PUBLISHED[name]
    shapes = published_shapes(size)
    with torch.device("meta"):
        weights = {key: torch.empty(shape) for key, shape in shapes.items()}
    config = {
        "hidden_size": size["hidden"],
        "intermediate_size": size["mlp"],
        "num_attention_heads": size["heads"],
        "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]} if size["qwen"] else None,
    }
    with torch.device("meta"):
        head = EagleHead(head_config(name, config, weights))
    assert {key: list(value.shape) for key, value in head.state_dict().items()} == shapes
    assert sum(p.numel() for p in head.parameters()) == parameters


@pytest.mark.parametrize("layout", ["safetensors", "bin", "sharded", "module prefix", "old rotary buffer"])
def test_every_file_layout_loads_the_same(layout: str, tmp_path: Path) -> None:
    head = written(tmp_path)
    state = head.state_dict()
    if layout != "safetensors":
        (tmp_path / "model.safetensors").unlink()
    if layout == "bin":
        torch.save(state, tmp_path / "pytorch_model.bin")
    elif layout == "sharded":
        keys = sorted(state)
        names = {key: f"model-{i % 2}.safetensors" for i, key in enumerate(keys)}
        for shard in set(names.values()):
            save_file({key: state[key] for key in keys if names[key] == shard}, tmp_path / shard)
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    elif layout == "module prefix":
        torch.save({f"module.{key}": value for key, value in state.items()}, tmp_path / "pytorch_model.bin")
    elif layout == "old rotary buffer":
        extra = {"layers.0.self_attn.rotary_emb.inv_freq": torch.ones(2)}
        torch.save(state | extra, tmp_path / "pytorch_model.bin")
    loaded = load_head(str(tmp_path), Target())
    assert all(torch.equal(value, state[key]) for key, value in loaded.state_dict().items())


def test_equal_embeddings_are_shared_also_when_the_target_has_more_rows(tmp_path: Path) -> None:
    head = written(tmp_path)
    target = Target(embedding=head.embed_tokens.weight.data)
    assert load_head(str(tmp_path), target).embed_tokens is target.embed_tokens
    other = Target()
    loaded = load_head(str(tmp_path), other)
    assert loaded.embed_tokens is not other.embed_tokens
    assert torch.equal(loaded.embed_tokens.weight, head.embed_tokens.weight)


def test_a_head_follows_its_targets_dtype(tmp_path: Path) -> None:
    written(tmp_path)
    target = Target()
    target.dtype = torch.bfloat16
    assert {p.dtype for p in load_head(str(tmp_path), target).parameters()} == {torch.bfloat16}


def test_switches_are_read_from_the_keys_not_from_the_config(tmp_path: Path) -> None:
    settings = HeadConfig(16, 24, 4, 2, 4, 20, fc_bias=False, qkv_bias=True, input_layernorm=True)
    written(tmp_path, changes={"bias": True, "num_key_value_heads": None}, settings=settings)
    config, weights = read_checkpoint(str(tmp_path))
    assert head_config("x", config, weights) == settings


class Code:
    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("this must never run",))


def broken(kind: str, folder: Path) -> Target:
    head = written(folder)
    state, weights = dict(head.state_dict()), folder / "model.safetensors"
    if kind == "wrong target":
        return Target(hidden=8)
    if kind == "small vocabulary":
        return Target(vocab=19)
    if kind == "truncated":
        weights.write_bytes(weights.read_bytes()[:-100])
    elif kind == "truncated bin":
        weights.unlink()
        torch.save(state, folder / "pytorch_model.bin")
        whole = (folder / "pytorch_model.bin").read_bytes()
        (folder / "pytorch_model.bin").write_bytes(whole[: len(whole) // 2])
    elif kind == "missing key":
        save_file({key: value for key, value in state.items() if key != "fc.weight"}, weights)
    elif kind == "unknown key":
        save_file(state | {"lm_head.weight": torch.ones(2, 2)}, weights)
    elif kind == "wrong shape":
        save_file(state | {"fc.weight": torch.ones(16, 30)}, weights)
    elif kind == "wrong dtype":
        save_file(state | {"fc.bias": torch.ones(16, dtype=torch.int32)}, weights)
    elif kind == "code":
        weights.unlink()
        torch.save({"fc.weight": Code()}, folder / "pytorch_model.bin")
    elif kind == "no weights":
        weights.unlink()
    elif kind == "no config":
        (folder / "config.json").unlink()
    elif kind == "damaged config":
        (folder / "config.json").write_text("{")
    elif kind == "config that is a list":
        (folder / "config.json").write_text("[]")
    elif kind in ("damaged index", "empty index", "missing shard"):
        weights.unlink()
        index = {"damaged index": "{", "empty index": "{}", "missing shard": '{"weight_map": {"fc.weight": "a.bin"}}'}
        (folder / "pytorch_model.bin.index.json").write_text(index[kind])
    elif kind == "more than tensors":
        weights.unlink()
        torch.save({"state_dict": state}, folder / "pytorch_model.bin")
    elif kind == "no sizes":
        (folder / "config.json").write_text("{}")
    elif kind == "stretched positions":
        (folder / "config.json").write_text(json.dumps(CONFIG | {"rope_scaling": {"rope_type": "yarn"}}))
    return Target()


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("wrong target", "drafter hidden_size 16, target 8"),
        ("small vocabulary", "drafter vocab_size 20, target 19"),
        ("truncated", "cannot read model.safetensors"),
        ("truncated bin", "cannot read pytorch_model.bin"),
        ("missing key", "lacks fc.weight"),
        ("unknown key", "has unknown lm_head.weight"),
        ("wrong shape", r"fc.weight of shape \[16, 30\], expected \[16, 32\]"),
        ("wrong dtype", "fc.bias in torch.int32"),
        ("code", "cannot read pytorch_model.bin"),
        ("more than tensors", "holds more than tensors"),
        ("damaged index", "damaged pytorch_model.bin.index.json"),
        ("empty index", "damaged pytorch_model.bin.index.json: no weight_map"),
        ("missing shard", "has no a.bin"),
        ("no weights", "has no weights"),
        ("no config", "config.json"),
        ("damaged config", "damaged config.json"),
        ("config that is a list", "damaged config.json: no JSON object"),
        ("no sizes", "has no hidden_size"),
        ("stretched positions", "'yarn'"),
    ],
)
def test_what_does_not_fit_is_one_clear_error(
    kind: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = broken(kind, tmp_path)
    with pytest.raises(ModelError, match=words) as caught:
        load_head(str(tmp_path), target)
    assert len(str(caught.value).splitlines()) == 1
    assert "this must never run" not in capsys.readouterr().out
