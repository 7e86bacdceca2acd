"""LLaVA-1.5 in the transformers layout (arXiv 2310.03744): CLIP tower, projector, Llama class language model."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from PIL import Image
from torch import Tensor

from mmsmart.targets.base import Target
from mmsmart.targets.inputs import EncodedImage

_VISION_BATCH = 8
"""Most pictures in one forward of the vision tower."""


class LlavaTarget(Target):
    """`LlavaForConditionalGeneration`: a fixed number of placeholders for each picture, plain positions."""

    auto_class = "AutoModelForImageTextToText"

    @property
    def image_token_id(self) -> int | None:
        """From the model's config."""
        return int(self.model.config.image_token_id)

    @property
    def reserved(self) -> tuple[str, ...]:
        """The placeholder's text."""
        return (str(self.tokenizer.convert_ids_to_tokens(self.image_token_id)),)

    def _default_prompt(self, question: str, num_images: int) -> str:
        return "USER: " + (self.reserved[0] + "\n") * num_images + question + " ASSISTANT:"

    def _encode_image(self, image: Image.Image, key: str) -> EncodedImage:
        # Told the layout, the processor cannot take a picture three pixels high for one with its channels first.
        tensors = self.image_processor(image, return_tensors="pt", input_data_format="channels_last")
        pixels: Tensor = tensors["pixel_values"]
        vision = self.model.config.vision_config
        height, width = pixels.shape[-2] // vision.patch_size, pixels.shape[-1] // vision.patch_size
        # CLIP's towers put a class token first, which the strategy "full" keeps and "default" drops.
        extra = int(self.model.config.vision_feature_select_strategy == "full" and vision.model_type.startswith("clip"))
        return EncodedImage(key, height * width + extra, {"pixel_values": pixels})

    def _image_features(self, images: Sequence[EncodedImage]) -> list[Tensor]:
        features: list[Tensor] = []
        for start in range(0, len(images), _VISION_BATCH):
            pixels = torch.cat([image.tensors["pixel_values"] for image in images[start : start + _VISION_BATCH]])
            tower = self.model.model.vision_tower
            output = self.model.get_image_features(pixel_values=pixels.to(tower.device, tower.dtype), return_dict=True)
            features.extend(output.pooler_output)
        return features
