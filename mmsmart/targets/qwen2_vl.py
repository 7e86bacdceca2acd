"""Qwen2-VL (arXiv 2409.12191): pictures at their own resolution, three-axis rotary positions (M-RoPE)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from PIL import Image
from torch import Tensor

from mmsmart.errors import ImageError
from mmsmart.targets.base import Target
from mmsmart.targets.inputs import EncodedImage

_VISION_PATCHES = 16384
"""Most patches in one forward of the vision tower (a single larger picture goes alone)."""
_MAX_ASPECT_RATIO = 200
"""The family's image processor refuses longer pictures."""


class Qwen2VLTarget(Target):
    """`Qwen2VLForConditionalGeneration`: as many placeholders as the picture's grid has merged patches."""

    auto_class = "AutoModelForImageTextToText"
    axes = 3

    @property
    def image_token_id(self) -> int | None:
        """From the model's config."""
        return int(self.model.config.image_token_id)

    @property
    def reserved(self) -> tuple[str, ...]:
        """Picture and video placeholders, and the marks around them."""
        config = self.model.config
        names = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
        ids = [value for value in (getattr(config, name, None) for name in names) if value is not None]
        return tuple(str(text) for text in self.tokenizer.convert_ids_to_tokens(ids))

    def _default_prompt(self, question: str, num_images: int) -> str:
        convert, config = self.tokenizer.convert_ids_to_tokens, self.model.config
        around = (config.vision_start_token_id, config.image_token_id, config.vision_end_token_id)
        return "".join(convert(list(around))) * num_images + question

    def _encode_image(self, image: Image.Image, key: str) -> EncodedImage:
        ratio = max(image.size) / min(image.size)
        if ratio > _MAX_ASPECT_RATIO:
            raise ImageError(
                f"the picture is {image.width} x {image.height}, an aspect ratio of {ratio:.0f}; "
                f"{self.name} takes at most {_MAX_ASPECT_RATIO}: crop or resize it"
            )
        # Told the layout, the processor cannot take a picture three pixels high for one with its channels first.
        tensors = self.image_processor(image, return_tensors="pt", input_data_format="channels_last")
        t, h, w = (int(n) for n in tensors["image_grid_thw"][0])
        merged = t * h * w // self._merge**2
        return EncodedImage(key, merged, {"pixel_values": tensors["pixel_values"]}, grid=(t, h, w))

    def _image_features(self, images: Sequence[EncodedImage]) -> list[Tensor]:
        features: list[Tensor] = []
        group: list[EncodedImage] = []
        for image in images:
            if group and sum(len(i.tensors["pixel_values"]) for i in [*group, image]) > _VISION_PATCHES:
                features.extend(self._features_of(group))
                group = []
            group.append(image)
        return features + self._features_of(group)

    def _features_of(self, images: Sequence[EncodedImage]) -> list[Tensor]:
        tower = self.model.model.visual
        pixels = torch.cat([image.tensors["pixel_values"] for image in images]).to(tower.device, tower.dtype)
        grids = torch.tensor([image.grid for image in images], device=tower.device)
        output = self.model.get_image_features(pixel_values=pixels, image_grid_thw=grids, return_dict=True)
        return list(output.pooler_output)

    def _positions(self, token_ids: Tensor, image_mask: Tensor, images: Sequence[EncodedImage]) -> tuple[Tensor, int]:
        if not images:
            return torch.arange(len(token_ids)).expand(self.axes, -1), 0
        grids = torch.tensor([image.grid for image in images])
        positions, delta = self.model.model.get_rope_index(
            token_ids[None], mm_token_type_ids=image_mask[None].int(), image_grid_thw=grids
        )
        return positions[:, 0], int(delta[0])

    @property
    def _merge(self) -> int:
        return int(self.model.config.vision_config.spatial_merge_size)
