"""The family "qwen2_vl": configuration, construction, batched vision tower and growth of ``tiny-qwen2-vl``."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedTokenizerFast, Qwen2VLConfig, Qwen2VLForConditionalGeneration

PATCH = 8
MERGE = 2
VISION_WIDTH = 160
TEXT_WIDTH = 256


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
        heads = (part.transpose(1, 2) for part in (query, key, value))
        seen = functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)
        output: Tensor = attention.proj(seen)
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
