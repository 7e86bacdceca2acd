"""Tiny random targets in the shape of hub checkpoints, and plain transformers as the oracle of what they say.

The weights are drawn wide (initializer_range 0.3), so that greedy output is varied and depends on the picture. They
are drawn in float32 and saved in the asked dtype: one seed is one model in every dtype. Nothing here imports mmsmart.
"""

import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    AutoImageProcessor,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoTokenizer,
    CLIPVisionConfig,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

FAMILIES = ("llava", "qwen2_vl", "llama", "qwen2")

LLAVA_TEMPLATE = """\
{%- for message in messages -%}
{%- if message['role'] != 'system' %}{{ message['role'].upper() + ': ' }}{% endif -%}
{%- for part in message['content'] if part['type'] == 'image' %}{{ '<image>\n' }}{% endfor -%}
{%- for part in message['content'] if part['type'] == 'text' %}{{ part['text'] + ' ' }}{% endfor -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif -%}
"""  # a plain string as content loses the question without an error, as in the published template

CHATML_TEMPLATE = """\
{%- for message in messages -%}
{%- if loop.first and message['role'] != 'system' -%}
{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}
{%- endif -%}
{{ '<|im_start|>' + message['role'] + '\n' }}
{%- if message['content'] is string %}{{ message['content'] }}{% else -%}
{%- for part in message['content'] -%}
{%- if part['type'] == 'image' %}{{ '<|vision_start|><|image_pad|><|vision_end|>' }}
{%- elif part['type'] == 'video' %}{{ '<|vision_start|><|video_pad|><|vision_end|>' }}
{%- elif part['type'] == 'text' %}{{ part['text'] }}{% endif -%}
{%- endfor -%}
{%- endif -%}
{{ '<|im_end|>\n' }}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif -%}
"""

LLAMA_TEMPLATE = """\
{{- bos_token -}}
{%- for message in messages -%}
{{ '[' + message['role'] + '] ' }}
{%- if message['content'] is string %}{{ message['content'] }}{% else -%}
{%- for part in message['content'] if part['type'] == 'text' %}{{ part['text'] }}{% endfor -%}
{%- endif -%}
{{ '\n' }}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '[assistant] ' }}{% endif -%}
"""

_LLAMA_NAMES = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
_QWEN_NAMES = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
_QWEN_SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_QWEN_VISION = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")


@dataclass(frozen=True)
class _Vocabulary:
    specials: tuple[str, ...]
    names: dict[str, str]
    template: str


_VOCABULARIES = {
    "llava": _Vocabulary(("<s>", "</s>", "<pad>", "<image>"), _LLAMA_NAMES, LLAVA_TEMPLATE),
    "qwen2_vl": _Vocabulary((*_QWEN_SPECIALS, *_QWEN_VISION), _QWEN_NAMES, CHATML_TEMPLATE),
    "llama": _Vocabulary(("<s>", "</s>", "<pad>"), _LLAMA_NAMES, LLAMA_TEMPLATE),
    "qwen2": _Vocabulary(_QWEN_SPECIALS, _QWEN_NAMES, CHATML_TEMPLATE),
}


_TEXT = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "initializer_range": 0.3,
    "tie_word_embeddings": False,
}


def byte_tokenizer(family: str) -> PreTrainedTokenizerFast:
    """Byte b is token b, the family's special tokens follow from 256 on; Llama kinds put `<s>` in front of a text."""
    vocabulary = _VOCABULARIES[family]
    core = Tokenizer(models.BPE(vocab={char: byte for byte, char in enumerate(_byte_characters())}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in vocabulary.specials])
    if "bos_token" in vocabulary.names:
        bos = vocabulary.names["bos_token"]
        core.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, core.token_to_id(bos))]
        )
    extra = {"extra_special_tokens": {"image_token": "<image>"}} if family == "llava" else {}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, padding_side="left", **vocabulary.names, **extra)
    tokenizer.chat_template = vocabulary.template
    return tokenizer


def _byte_characters() -> list[str]:
    """The character by which byte-level BPE writes each byte: printable ones as themselves, others from 256 on."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def build(
    family: str,
    folder: Path | str,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    extra_vocab: int = 0,
    generation: dict[str, Any] | None = None,
    **overrides: Any,
) -> Path:
    """Write a random target to `folder`, which `from_pretrained` of every part reads offline.

    Args:
        family: One of `FAMILIES`.
        folder: Made if it is not there.
        seed: Of the weights.
        dtype: Of the saved weights.
        extra_vocab: Rows of the model's vocabulary that the tokenizer does not know, as published models have.
        generation: Entries of generation_config.json besides the token ids, or in their place.
        **overrides: Fields of the text config; `vision=` takes a dict of fields of the vision config, `outer=` of the
            enclosing one.
    """
    folder = Path(folder)
    tokenizer = byte_tokenizer(family)
    ids = {
        f"{name.removesuffix('_token')}_token_id": _id(tokenizer, t) for name, t in _VOCABULARIES[family].names.items()
    }
    ids.setdefault("bos_token_id", ids["pad_token_id"])  # Qwen: `<|endoftext|>`, known to the config only
    vision, outer = overrides.pop("vision", {}), overrides.pop("outer", {})
    text = dict(vocab_size=len(tokenizer) + extra_vocab, **_TEXT, **ids) | overrides
    config = _CONFIGS[family](tokenizer, text, vision, outer)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _MODELS[family](config)
    with torch.no_grad():
        model.get_output_embeddings().weight[256:] *= 0.5  # or one answer in seven would end by chance
    eos = [ids["eos_token_id"], ids["pad_token_id"]] if family.startswith("qwen2") else ids["eos_token_id"]
    model.generation_config = GenerationConfig(**(ids | {"eos_token_id": eos} | (generation or {})))
    model.to(dtype).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    _save_image_processor(family, config, tokenizer, folder)
    return folder


def _id(tokenizer: PreTrainedTokenizerFast, token: str) -> int:
    index = tokenizer.convert_tokens_to_ids(token)
    assert isinstance(index, int), token
    return index


def _llava_config(tokenizer: Any, text: dict[str, Any], vision: dict[str, Any], outer: dict[str, Any]) -> LlavaConfig:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
    grid = {"projection_dim": 32, "image_size": 28, "patch_size": 14, "initializer_factor": 3.0}
    tower = CLIPVisionConfig(**(sizes | grid | vision))
    fields = {
        "image_token_index": _id(tokenizer, "<image>"),
        "image_seq_length": (tower.image_size // tower.patch_size) ** 2,
        "vision_feature_layer": -2,
        "vision_feature_select_strategy": "default",
        "tie_word_embeddings": text["tie_word_embeddings"],
        "initializer_range": text["initializer_range"],
    }
    return LlavaConfig(vision_config=tower, text_config=LlamaConfig(**text), **(fields | outer))


def _qwen2_vl_config(
    tokenizer: Any, text: dict[str, Any], vision: dict[str, Any], outer: dict[str, Any]
) -> Qwen2VLConfig:
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 3, 3]}}
    sizes = {"depth": 2, "embed_dim": 32, "num_heads": 2, "mlp_ratio": 2, "hidden_size": text["hidden_size"]}
    grid = {"patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2}
    tower = sizes | grid | {"initializer_range": text["initializer_range"]} | vision
    fields = {
        "image_token_id": _id(tokenizer, "<|image_pad|>"),
        "video_token_id": _id(tokenizer, "<|video_pad|>"),
        "vision_start_token_id": _id(tokenizer, "<|vision_start|>"),
        "vision_end_token_id": _id(tokenizer, "<|vision_end|>"),
        "tie_word_embeddings": text["tie_word_embeddings"],
    }
    return Qwen2VLConfig(text_config=rope | text, vision_config=tower, **(fields | outer))


_CONFIGS = {
    "llava": _llava_config,
    "qwen2_vl": _qwen2_vl_config,
    "llama": lambda tokenizer, text, vision, outer: LlamaConfig(**text),
    "qwen2": lambda tokenizer, text, vision, outer: Qwen2Config(**text),
}
_MODELS = {
    "llava": LlavaForConditionalGeneration,
    "qwen2_vl": Qwen2VLForConditionalGeneration,
    "llama": LlamaForCausalLM,
    "qwen2": Qwen2ForCausalLM,
}


def _save_image_processor(family: str, config: PreTrainedConfig, tokenizer: Any, folder: Path) -> None:
    if family == "llava":
        side = config.vision_config.image_size
        crop = {"height": side, "width": side}
        image_processor = CLIPImageProcessorPil(size={"shortest_edge": side}, crop_size=crop)
        image_processor.save_pretrained(folder)
        LlavaProcessor(
            image_processor,
            tokenizer,
            patch_size=config.vision_config.patch_size,
            vision_feature_select_strategy=config.vision_feature_select_strategy,
            num_additional_image_tokens=1,
            chat_template=tokenizer.chat_template,
        ).save_pretrained(folder)
    elif family == "qwen2_vl":
        tower = config.vision_config
        size = {"shortest_edge": 28 * 28, "longest_edge": 28 * 28 * 16}  # 1 to 16 image tokens
        Qwen2VLImageProcessorPil(
            size=size,
            patch_size=tower.patch_size,
            merge_size=tower.spatial_merge_size,
            temporal_patch_size=tower.temporal_patch_size,
        ).save_pretrained(folder)


def picture(seed: int, size: tuple[int, int] = (60, 48)) -> Image.Image:
    """A smooth random RGB picture of width x height pixels."""
    coarse = np.random.default_rng(seed).integers(0, 256, (4, 4, 3)).astype(np.uint8)
    return Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)


@dataclass(frozen=True)
class Reference:
    """A checkpoint as plain transformers reads it; `image_processor` is None for a text model."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    image_processor: Any


def reference(folder: Path | str | PreTrainedModel) -> Reference:
    """Read a folder (once for each time it is written), or the rest of a model that was read from one."""
    if isinstance(folder, PreTrainedModel):
        kept = _read(str(folder.name_or_path), 0)
        return Reference(folder, kept.tokenizer, kept.image_processor)
    weights = os.stat(Path(folder) / "model.safetensors")
    return _read(str(folder), weights.st_mtime_ns)


@functools.lru_cache(maxsize=16)
def _read(folder: str, written_ns: int) -> Reference:
    sees = (Path(folder) / "preprocessor_config.json").exists()
    loader = AutoModelForImageTextToText if sees else AutoModelForCausalLM
    image_processor = AutoImageProcessor.from_pretrained(folder, backend="pil") if sees else None
    return Reference(loader.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder), image_processor)


def reference_inputs(
    folder: Path | str | PreTrainedModel, images: Sequence[Image.Image] | Image.Image | None, question: str
) -> dict[str, torch.Tensor]:
    """What `forward` takes: ids of the rendered chat template, every image placeholder widened to its own features."""
    parts = reference(folder)
    config, tokenizer = parts.model.config, parts.tokenizer
    pictures = [images] if isinstance(images, Image.Image) else list(images or [])
    content = [{"type": "image"} for _ in pictures] + [{"type": "text", "text": question}]
    chat = [{"role": "user", "content": content}]
    prompt = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    has_bos = tokenizer.bos_token is not None and prompt.startswith(tokenizer.bos_token)
    ids = tokenizer(prompt, add_special_tokens=not has_bos)["input_ids"]
    if not pictures:
        return _with_mask(ids)
    pixels = dict(parts.image_processor(images=pictures, return_tensors="pt"))
    pixels["pixel_values"] = pixels["pixel_values"].to(parts.model.dtype)
    if "image_grid_thw" in pixels:
        counts = (pixels["image_grid_thw"].prod(-1) // config.vision_config.spatial_merge_size**2).tolist()
    else:
        counts = [config.image_seq_length] * len(pictures)
    remaining = iter(counts)
    ids = [i for i in ids for _ in range(next(remaining) if i == config.image_token_id else 1)]
    if "image_grid_thw" in pixels:
        pixels["mm_token_type_ids"] = torch.tensor([[int(i == config.image_token_id) for i in ids]])
    return _with_mask(ids) | pixels


def _with_mask(ids: list[int]) -> dict[str, torch.Tensor]:
    return {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}


@torch.inference_mode()
def reference_generate(
    folder: Path | str | PreTrainedModel,
    images: Sequence[Image.Image] | Image.Image | None,
    question: str,
    **options: Any,
) -> list[int]:
    """New token ids, the end token included if it came, of `model.generate(do_sample=False)`; options go to it."""
    parts = reference(folder)
    inputs = reference_inputs(folder, images, question)
    if "stop_strings" in options:
        options["tokenizer"] = parts.tokenizer
    output = parts.model.generate(**inputs, **({"max_new_tokens": 40, "do_sample": False} | options))
    return output[0, inputs["input_ids"].shape[1] :].tolist()
