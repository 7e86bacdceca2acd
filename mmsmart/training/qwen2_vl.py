"""The family "qwen2_vl": configuration, construction, batched vision tower and growth of ``tiny-qwen2-vl``.

Qwen2-VL's vision tower has relative positions only: on an even background nothing tells it where in the picture it
is. So the place of a shape is not among its labels, and the language model reads it from the M-RoPE positions. With
head dimension 32 the base of the rotary frequencies must be small for that: columns get the slowest frequencies, and
at the usual 1e6 they would turn by less than a thousandth across a picture.
"""

from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedTokenizerFast, Qwen2VLConfig, Qwen2VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from mmsmart.training.card import CardNotes
from mmsmart.training.growth import grow
from mmsmart.training.rows import PromptForm
from mmsmart.training.saving import save_parts
from mmsmart.training.stage import StageSettings
from mmsmart.training.text_model import DEEP_LAYERS, SHALLOW_LAYERS, TEXT, TEXT_WIDTH, initialised
from mmsmart.training.tokenizer import SPACE, assemble_tokenizer, words
from mmsmart.training.view import View

PATCH = 8
MERGE = 2
FRAMES = 2
VISION_WIDTH = 160
ROPE_BASE = 100.0
MIN_PIXELS = 64 * 64
MAX_PIXELS = 128 * 160
"""Less than 144 x 144, so that a large square picture is seen at the usual 128 x 128."""

PAD, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
VISION_START, VISION_END, IMAGE, VIDEO = "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"
RENAMED = {"USER": "user", f"{SPACE}ASSISTANT": "assistant"}
TOKEN_IDS = {
    "image_token_id": IMAGE,
    "video_token_id": VIDEO,
    "vision_start_token_id": VISION_START,
    "vision_end_token_id": VISION_END,
}
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{% if message['role'] == 'assistant' %}{{ ' ' }}{% endif %}"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}{{ '<|vision_start|><|image_pad|><|vision_end|>' }}{% endif %}"
    "{% endfor %}"
    "{% for part in message['content'] %}{% if part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}"
    "{% endif %}"
    "{{ '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
VISION = {
    "depth": 4,
    "embed_dim": VISION_WIDTH,
    "num_heads": 5,
    "mlp_ratio": 4,
    "hidden_size": TEXT_WIDTH,
    "patch_size": PATCH,
    "spatial_merge_size": MERGE,
    "temporal_patch_size": FRAMES,
    "initializer_range": 0.04,
}
QWEN_TEXT = TEXT | {
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": ROPE_BASE, "mrope_section": [4, 6, 6]},
}


class PatchTower(nn.Module):
    """The model's own vision tower up to its merger, for a batch of pictures of one size.

    transformers runs pictures of any sizes as one long sequence; here they are a batch, which trains faster and
    computes the same. A still picture fills both frames of a patch, so the weights of the frames are added.
    """

    def __init__(self, visual: Any) -> None:
        super().__init__()
        self.patch_embed = visual.patch_embed
        self.blocks = visual.blocks
        self._rotary = [visual.rotary_pos_emb]
        self._merge = visual.spatial_merge_size

    def forward(self, images: Tensor) -> Tensor:
        """Maps normalised images [B, 3, height, width] to the patches of each visual token [B, P, merge^2 * width]."""
        kernel = self.patch_embed.proj.weight.sum(2)
        patches, positions = self._cut(images, kernel.shape[-1])
        hidden = functional.linear(patches, kernel.flatten(1))
        cos, sin = (part[None, :, None] for part in self._rotary[0](hidden, positions))
        for block in self.blocks:
            hidden = hidden + self._attend(block.attn, block.norm1(hidden), cos, sin)
            hidden = hidden + block.mlp(block.norm2(hidden))
        merged: Tensor = hidden.unflatten(1, (-1, self._merge**2)).flatten(2)
        return merged

    def _cut(self, images: Tensor, side: int) -> tuple[Tensor, Tensor]:
        """Patches [B, N, 3 * side * side] and their rows and columns [N, 2], the patches of a visual token together."""
        batch, channels, height, width = images.shape
        rows, columns, merge = height // side, width // side, self._merge
        blocks = (rows // merge, merge, columns // merge, merge)
        cut = images.reshape(batch, channels, *blocks[:2], side, *blocks[2:], side)
        patches = cut.permute(0, 2, 5, 3, 6, 1, 4, 7).reshape(batch, rows * columns, -1)
        places = torch.cartesian_prod(torch.arange(rows), torch.arange(columns))
        return patches, places.reshape(*blocks, 2).transpose(1, 2).reshape(-1, 2)

    def _attend(self, attention: Any, hidden: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        query, key, value = attention.qkv(hidden).unflatten(-1, (3, attention.num_heads, -1)).unbind(2)
        query, key = (_rotate(part.float(), cos, sin).to(value.dtype) for part in (query, key))
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))
        seen = functional.scaled_dot_product_attention(query, key, value)
        output: Tensor = attention.proj(seen.transpose(1, 2).flatten(2))
        return output


def _rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = heads.chunk(2, -1)
    return heads * cos + torch.cat([-high, low], -1) * sin


class Merger(nn.Module):
    """The model's own merger, for the features of ``PatchTower``."""

    def __init__(self, merger: Any) -> None:
        super().__init__()
        self.ln_q = merger.ln_q
        self.mlp = merger.mlp

    def forward(self, features: Tensor) -> Tensor:
        """Maps features [B, P, merge^2 * width] to visual tokens [B, P, H]."""
        parts = features.unflatten(-1, (-1, self.ln_q.weight.shape[0]))
        tokens: Tensor = self.mlp(self.ln_q(parts).flatten(-2))
        return tokens


def grid_positions(grid: tuple[int, int]) -> Tensor:
    """M-RoPE positions [3, P] of a picture's visual tokens, by rows, counted from the first: frame, row, column."""
    places = torch.cartesian_prod(torch.arange(grid[0]), torch.arange(grid[1]))
    return torch.cat([torch.zeros(len(places), 1, dtype=torch.long), places], dim=1).T


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Builds the tokenizer: tiny-llava's words with the same ids, Qwen2-VL's special tokens and chat template."""
    pieces = (RENAMED.get(piece, piece) for piece in words())
    specials = [PAD, IM_START, IM_END, VISION_START, IMAGE]
    return assemble_tokenizer(specials, pieces, CHAT_TEMPLATE, (VISION_END, VIDEO), pad_token=PAD, eos_token=IM_END)


def build_model(tokenizer: PreTrainedTokenizerFast, text_layers: int, seed: int) -> Qwen2VLForConditionalGeneration:
    """Builds a randomly initialised model.

    Args:
        tokenizer: Gives the ids of the special tokens.
        text_layers: Layers of the language model.
        seed: Seed of the initial weights.
    """
    ids: dict[str, Any] = {name: _id(tokenizer, token) for name, token in TOKEN_IDS.items()}
    text = {"bos_token_id": _id(tokenizer, PAD), "eos_token_id": _id(tokenizer, IM_END)}
    text_config = QWEN_TEXT | text | {"pad_token_id": _id(tokenizer, PAD), "num_hidden_layers": text_layers}
    config = Qwen2VLConfig(vision_config=dict(VISION), text_config=text_config, tie_word_embeddings=False, **ids)
    model: Qwen2VLForConditionalGeneration = initialised(Qwen2VLForConditionalGeneration, config, seed)
    return model


def _id(tokenizer: PreTrainedTokenizerFast, token: str) -> int:
    index: Any = tokenizer.convert_tokens_to_ids(token)
    return int(index)


class Qwen2VLFamily:
    """What the pipeline needs to know of the family."""

    name = "qwen2_vl"
    feature_width = MERGE**2 * VISION_WIDTH
    text_width = TEXT_WIDTH
    shallow_layers = SHALLOW_LAYERS
    deep_layers = DEEP_LAYERS
    view = View(
        features=lambda tower, images: tower(images),
        token_side=PATCH * MERGE,
        other_sizes=((144, 112), (160, 128), (112, 144), (128, 160), (96, 96)),
        other_share=0.4,
        hidden=("cell",),
        has_places=False,
    )
    card_notes = CardNotes(
        seen="pictures at their own resolution, 16 to 80 visual tokens (64 for 128x128 pixels)",
        scaling="A picture is seen at its own shape, scaled to at most 20,480 pixels (a large square one to 128x128).",
        processes="each stage ran in a one-thread process at low priority beside the training of `tiny-llava`.",
    )
    joint_trains_tower = True
    full_stages = MappingProxyType(
        {
            "vision": StageSettings(steps=1750, batch=16, learning_rate=2e-3, minutes=60),
            "main": StageSettings(steps=1400, batch=8, learning_rate=2e-3, minutes=30, evaluate_every=100),
            "regress": StageSettings(steps=700, batch=16, learning_rate=1e-3, minutes=12),
            "joint": StageSettings(steps=1200, batch=8, learning_rate=5e-4, minutes=55, evaluate_every=50),
        }
    )
    rotary_pairs = tuple(pair // 2 + 8 * (pair % 2) for pair in range(16))
    """At base 100 pair 2j turns as fast as pair j at LLaVA's base 10,000; the slower half goes between."""
    form = PromptForm(
        prefix=f"{IM_START}user\n{VISION_START}",
        image=IMAGE,
        question=f"{VISION_END}{{}}{IM_END}\n{IM_START}assistant\n",
        end=IM_END,
        picture_positions=grid_positions,
    )

    def build_tokenizer(self) -> PreTrainedTokenizerFast:
        """Builds the tokenizer."""
        return build_tokenizer()

    def build(self, tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen2VLForConditionalGeneration:
        """Builds the shallow, randomly initialised model."""
        return build_model(tokenizer, self.shallow_layers, seed)

    def tower(self, model: Qwen2VLForConditionalGeneration) -> nn.Module:
        """The vision tower up to its merger."""
        return PatchTower(model.model.visual)

    def projector(self, model: Qwen2VLForConditionalGeneration) -> nn.Module:
        """The vision tower's merger."""
        return Merger(model.model.visual.merger)

    def grow(self, model: Qwen2VLForConditionalGeneration) -> Qwen2VLForConditionalGeneration:
        """Grows the model to its final depth."""
        deep: Qwen2VLForConditionalGeneration = grow(model, self.deep_layers)
        return deep

    def save(self, model: Qwen2VLForConditionalGeneration, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
        """Writes the model as a folder that transformers loads."""
        image_processor = Qwen2VLImageProcessorPil(
            size={"shortest_edge": MIN_PIXELS, "longest_edge": MAX_PIXELS},
            patch_size=PATCH,
            merge_size=MERGE,
            temporal_patch_size=FRAMES,
            image_mean=[0.5, 0.5, 0.5],
            image_std=[0.5, 0.5, 0.5],
        )
        save_parts(model, tokenizer, image_processor, folder)
