"""Targets and MSD heads of published shapes with random weights, made on the device: nothing is downloaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
)

from mmsmart.drafters.head import EagleHead, HeadConfig
from mmsmart.drafters.msd import MSDDrafter
from mmsmart.engine import Engine
from mmsmart.policies.none import NoDrafting
from mmsmart.targets.base import Target
from mmsmart.targets.llava import LlavaTarget
from mmsmart.targets.qwen2_vl import Qwen2VLTarget


@dataclass(frozen=True)
class Shape:
    """A target of the hub by its sizes, and the vocabulary of its MSD head.

    Attributes:
        family: ``llava`` or ``qwen2_vl``.
        name: The checkpoint whose shape it is.
        text, vision: Fields of the text and the vision config.
        head_vocab: Rows of the published head's embedding.
    """

    family: str
    name: str
    text: dict[str, Any]
    vision: dict[str, Any]
    head_vocab: int


_CLIP_L = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16}
_CLIP_L |= {"projection_dim": 768, "image_size": 336, "patch_size": 14}
_QWEN_TOWER = {"depth": 32, "embed_dim": 1280, "num_heads": 16, "mlp_ratio": 4, "patch_size": 14}
_QWEN_TOWER |= {"spatial_merge_size": 2, "temporal_patch_size": 2}
_LLAMA = {"vocab_size": 32064, "rms_norm_eps": 1e-5, "max_position_embeddings": 4096}
_QWEN = {"vocab_size": 152064, "rms_norm_eps": 1e-6, "max_position_embeddings": 32768}


def _sizes(hidden: int, inner: int, layers: int, heads: int, kv_heads: int) -> dict[str, int]:
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    return dict(zip(names, (hidden, inner, layers, heads, kv_heads), strict=True))


PUBLISHED = {
    "7b": Shape("llava", "LLaVA-1.5-7B", _LLAMA | _sizes(4096, 11008, 32, 32, 32), _CLIP_L, 32000),
    "13b": Shape("llava", "LLaVA-1.5-13B", _LLAMA | _sizes(5120, 13824, 40, 40, 40), _CLIP_L, 32000),
    "qwen": Shape("qwen2_vl", "Qwen2-VL-7B", _QWEN | _sizes(3584, 18944, 28, 28, 4), _QWEN_TOWER, 152064),
}
_TINY = {"vocab_size": 512, "max_position_embeddings": 1024}
_TINY_CLIP = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
_TINY_CLIP |= {"projection_dim": 32, "image_size": 28, "patch_size": 14}
_TINY_TOWER = _QWEN_TOWER | {"depth": 2, "embed_dim": 32, "num_heads": 2, "mlp_ratio": 2}
TINY = {
    "7b": Shape("llava", "LLaVA, tiny", _TINY | _sizes(64, 128, 2, 4, 4), _TINY_CLIP, 500),
    "13b": Shape("llava", "LLaVA, tiny and deeper", _TINY | _sizes(64, 128, 3, 4, 4), _TINY_CLIP, 500),
    "qwen": Shape("qwen2_vl", "Qwen2-VL, tiny", _TINY | _sizes(64, 128, 2, 4, 2), _TINY_TOWER, 512),
}


class NoText:
    """Stands where a tokenizer is expected; random models have nothing to say."""

    eos_token_id = None
    chat_template = None

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """No text."""
        return ""


def random_engine(shape: Shape, device: torch.device, dtype: torch.dtype) -> Engine:
    """A target with its MSD head, all weights normal with deviation 0.02, under plain decoding."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            torch.manual_seed(0)
            model = _FAMILIES[shape.family](shape)
            head = EagleHead(_head_config(shape))
    finally:
        torch.set_default_dtype(before)
    kind: type[Target] = LlavaTarget if shape.family == "llava" else Qwen2VLTarget
    for module in (model, head):
        _fill(module)
    target = kind(model.eval().requires_grad_(False), NoText(), name=shape.name)
    head.embed_tokens = target.embed_tokens  # as in every published checkpoint, whose table is the target's
    drafter = MSDDrafter("random").with_head(head.eval().requires_grad_(False), target.head)
    return Engine(target, drafter, NoDrafting())


def weights_read_bytes(target: Target) -> int:
    """Bytes of weights that one decode step reads: the language model and its head, one row of the embedding apart."""
    decoder, embedding = target.model.get_decoder(), target.embed_tokens.weight
    parameters: dict[int, Tensor] = {id(p): p for p in [*decoder.parameters(), *target.head.module.parameters()]}
    if embedding is not target.head.weight:
        parameters.pop(id(embedding), None)
    return sum(p.nbytes for p in parameters.values())


def cache_bytes(target: Target) -> int:
    """Bytes of keys and values of one slot of one row."""
    config = target.text_config
    dim = int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
    size = torch.empty((), dtype=target.dtype).element_size()
    return 2 * int(config.num_hidden_layers) * int(config.num_key_value_heads) * dim * size


@torch.no_grad()
def _fill(module: nn.Module) -> None:
    for parameter in module.parameters():
        if parameter.dim() > 1:
            parameter.normal_(0, 0.02)


def _llava(shape: Shape) -> Any:
    vision = CLIPVisionConfig(**shape.vision)
    config = LlavaConfig(
        vision_config=vision,
        text_config=LlamaConfig(**shape.text),
        image_token_index=shape.text["vocab_size"] - 64,
        image_seq_length=(vision.image_size // vision.patch_size) ** 2,
        vision_feature_layer=-2,
        vision_feature_select_strategy="default",
        tie_word_embeddings=False,
        attn_implementation="sdpa",
    )
    return LlavaForConditionalGeneration(config)


def _qwen2_vl(shape: Shape) -> Any:
    dim = shape.text["hidden_size"] // shape.text["num_attention_heads"]
    sections = [dim // 8, 3 * dim // 16, 3 * dim // 16]
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": sections}}
    first = shape.text["vocab_size"] - 8
    names = ("vision_start_token_id", "vision_end_token_id", "image_token_id", "video_token_id")
    config = Qwen2VLConfig(
        text_config=rope | shape.text | {"bos_token_id": None, "eos_token_id": None},
        vision_config=shape.vision | {"hidden_size": shape.text["hidden_size"]},
        tie_word_embeddings=False,
        attn_implementation="sdpa",
        **{name: first + i for i, name in enumerate(names)},
    )
    return Qwen2VLForConditionalGeneration(config)


_FAMILIES = {"llava": _llava, "qwen2_vl": _qwen2_vl}


def _head_config(shape: Shape) -> HeadConfig:
    """The published heads: LLaVA's without a first norm and without biases, Qwen2-VL's with both."""
    text, qwen = shape.text, shape.family == "qwen2_vl"
    return HeadConfig(
        hidden_size=text["hidden_size"],
        intermediate_size=text["intermediate_size"],
        num_heads=text["num_attention_heads"],
        num_kv_heads=text["num_key_value_heads"],
        head_dim=text["hidden_size"] // text["num_attention_heads"],
        vocab_size=shape.head_vocab,
        rms_norm_eps=text.get("rms_norm_eps", 1e-6),
        rope_theta=1e6 if qwen else 10000.0,
        qkv_bias=qwen,
        input_layernorm=qwen,
    )
